"""Between two models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bpr import model as models
from bpr.errors import InvalidInput
from bpr.training.averaging import average
from bpr.training.tower import load_tower
from tiny_models import make_model

BODY, HEAD = "passage_encoder/model.safetensors", "passage_encoder/head.safetensors"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tuned model, and its start, which shares one encoder."""
    folder = tmp_path_factory.mktemp("pair")
    make_model(folder / "tuned", seed=1, onnx=False)
    make_model(folder / "start", seed=5, onnx=False, planes=1, shared=True)
    (folder / "tuned" / models.CARD).write_text("the best model\n")
    model, files = models.load(folder / "tuned")
    models.save(folder / "tuned", model, [*files, models.CARD])
    return folder / "tuned", folder / "start"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_weights_are_the_mean(pair: tuple[Path, Path], tmp_path: Path, share: float) -> None:
    tuned, start = pair
    model = average(tuned, start, share, tmp_path / "mean")
    for side in ("question", "passage"):
        ours = load_file(tuned / f"{side}_encoder" / "model.safetensors")
        theirs = load_file(start / BODY)
        mixed = load_file(tmp_path / "mean" / f"{side}_encoder" / "model.safetensors")
        assert mixed.keys() == ours.keys()
        for name, value in mixed.items():
            torch.testing.assert_close(value, share * ours[name] + (1 - share) * theirs[name], rtol=1e-5, atol=1e-6)
            if share in (0.0, 1.0):
                assert torch.equal(value, (ours if share else theirs)[name])
        heads = [load_file(each / f"{side}_encoder" / "head.safetensors") for each in (tuned, tmp_path / "mean")]
        assert all(torch.equal(value, heads[1][name]) for name, value in heads[0].items())
    before = models.load(tuned)[0]
    assert (model.fingerprint == before.fingerprint) == (model.weights == before.weights) == (share == 1.0)
    assert models.load(tmp_path / "mean")[0] == model
    assert not (tmp_path / "mean" / models.CARD).exists()  # it is of another model
    load_tower(tmp_path / "mean", "passage")  # every file is what bpr.json says


def test_it_may_take_the_place_of_the_tuned_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
    make_model(tmp_path / "tuned", seed=1, onnx=False)
    apart = average(tmp_path / "tuned", pair[1], 0.5, tmp_path / "mean")
    assert average(tmp_path / "tuned", pair[1], 0.5, tmp_path / "tuned") == apart


def test_what_has_no_mean(pair: tuple[Path, Path], tmp_path: Path) -> None:
    tuned, start = pair
    for share in (-0.1, 1.1):
        with pytest.raises(InvalidInput, match="share must be between 0 and 1"):
            average(tuned, start, share, tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"shares one encoder and .* has two"):
        average(start, tuned, 0.5, tmp_path / "out")
    make_model(tmp_path / "other", kind="distilbert", onnx=False)
    with pytest.raises(InvalidInput, match="not the same kind of encoder"):
        average(tuned, tmp_path / "other", 0.5, tmp_path / "out")
    with pytest.raises(InvalidInput, match="is no model folder"):
        average(tuned, tmp_path / "nowhere", 0.5, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="is not empty and holds no bpr model"):
        average(tuned, start, 0.5, tmp_path / "full")
    assert not (tmp_path / "out").exists()
