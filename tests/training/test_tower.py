"""Pooling, projection and the division by σ, and how a side is stored."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bpr import model as models
from bpr.errors import InvalidInput
from bpr.model import Model
from bpr.training.tower import Head, load_backbone, load_tower, pool, save_model, saving, vectors_of
from tiny_models import BITS, HIDDEN, make_model

HIDDEN_STATES = torch.randn(3, 5, HIDDEN, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])


def a_model(**settings: object) -> Model:
    return Model("some", BITS, **settings)  # type: ignore[arg-type]


def test_pooling_is_the_first_token_or_the_mean_of_the_real_ones() -> None:
    first = pool(HIDDEN_STATES, MASK, a_model(pooling="cls"))
    torch.testing.assert_close(first, HIDDEN_STATES[:, 0])
    mean = pool(HIDDEN_STATES, MASK, a_model(pooling="mean"))
    for row, count in enumerate((5, 2, 1)):
        torch.testing.assert_close(mean[row], HIDDEN_STATES[row, :count].mean(0))
    torch.testing.assert_close(pool(HIDDEN_STATES, None, a_model(pooling="mean")), HIDDEN_STATES.mean(1))
    unit = pool(HIDDEN_STATES, MASK, a_model(pooling="mean", normalize=True))
    torch.testing.assert_close(unit, mean / mean.norm(dim=1, keepdim=True))


def test_only_passages_are_divided_by_sigma() -> None:
    head, model = Head(HIDDEN, BITS), a_model(pooling="mean")
    head.sigma.uniform_(0.5, 2)
    question, passage = (vectors_of(HIDDEN_STATES, MASK, head, model, side) for side in ("question", "passage"))
    torch.testing.assert_close(question, head.projection(pool(HIDDEN_STATES, MASK, model)))
    torch.testing.assert_close(passage * head.sigma, question)


def test_without_a_projection_the_pooled_vector_is_the_output() -> None:
    head = Head(HIDDEN, HIDDEN, projected=False)
    model = Model("some", HIDDEN)
    torch.testing.assert_close(vectors_of(HIDDEN_STATES, MASK, head, model, "question"), HIDDEN_STATES[:, 0])
    with pytest.raises(InvalidInput, match="needs a projection"):
        Head(HIDDEN, BITS, projected=False)


def test_a_backbone_in_bfloat16_may_have_a_head_in_float32() -> None:
    found = vectors_of(HIDDEN_STATES.bfloat16(), MASK, Head(HIDDEN, BITS), a_model(), "passage")
    assert found.dtype == torch.float32


def test_padding_does_not_change_a_text(tiny_model: Path) -> None:
    tower = load_tower(tiny_model, "passage")
    ids = torch.tensor([[2, 50, 60, 70, 3]])
    padded = torch.nn.functional.pad(ids, (0, 4))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, 4))
    with torch.inference_mode():
        torch.testing.assert_close(tower(ids), tower(padded, mask), rtol=1e-4, atol=1e-4)


def test_what_is_saved_is_loaded(tiny_model: Path, tmp_path: Path) -> None:
    towers = [load_tower(tiny_model, side) for side in ("question", "passage")]
    assert not any(tower.training for tower in towers)
    model = save_model(tmp_path, towers[0].model, towers, tiny_model / "tokenizer.json")
    assert model == models.load(tmp_path)[0]
    assert model.fingerprint == towers[0].model.fingerprint  # the same weights and tokenizer
    for side, tower in zip(("question", "passage"), towers, strict=True):
        for name, value in load_tower(tmp_path, side).state_dict().items():
            torch.testing.assert_close(value, tower.state_dict()[name], rtol=0, atol=0)
    assert save_model(tmp_path, model, towers, tmp_path / "tokenizer.json") == model  # onto itself
    with torch.no_grad():
        towers[1].head.sigma[0] += 1
    assert save_model(tmp_path, model, towers, tmp_path / "tokenizer.json").fingerprint != model.fingerprint


def test_a_shared_model_has_its_weights_once(tmp_path: Path) -> None:
    make_model(tmp_path, shared=True, onnx=False)
    assert not (tmp_path / "question_encoder").exists()
    one, two = (load_tower(tmp_path, side).state_dict() for side in ("question", "passage"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_head_may_be_absent(tmp_path: Path) -> None:
    make_model(tmp_path, bits=HIDDEN, projected=False, onnx=False)
    model, files = models.load(tmp_path)
    models.save(tmp_path, model, [name for name in files if "head" not in name])
    tower = load_tower(tmp_path, "passage")
    assert tower.head.projection is None
    assert (tower.head.sigma == 1).all()


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def resealed(folder: Path) -> None:
    model, files = models.load(folder)
    models.save(folder, model, files)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "head.safetensors"])
def test_changed_files_are_refused(copy: Path, name: str) -> None:
    path = copy / "passage_encoder" / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(InvalidInput, match=f"{name} is not the file"):
        load_tower(copy, "passage")
    path.unlink()
    with pytest.raises(InvalidInput, match=f"{name} is missing"):
        load_tower(copy, "passage")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sigma": torch.zeros(BITS)}, "sigma must be finite and positive"),
        ({"sigma": torch.full((BITS,), np.nan)}, "sigma must be finite and positive"),
        ({"sigma": torch.ones(BITS + 1)}, "is not the head of a model with 64 bits"),
        ({"more": torch.ones(1)}, "is not the head"),
    ],
)
def test_heads_that_do_not_fit(copy: Path, change: dict, says: str) -> None:
    path = copy / "passage_encoder" / "head.safetensors"
    save_file({**load_file(path), **change}, path)
    resealed(copy)
    with pytest.raises(InvalidInput, match=says):
        load_tower(copy, "passage")


def test_what_is_no_encoder(copy: Path, tmp_path: Path) -> None:
    (copy / "passage_encoder" / "head.safetensors").write_bytes(b"no tensors")
    resealed(copy)
    with pytest.raises(InvalidInput, match="is not the head"):
        load_tower(copy, "passage")
    known = json.loads((copy / "passage_encoder" / "config.json").read_text())
    for content in ("{}", "nonsense"):
        (copy / "passage_encoder" / "config.json").write_text(content)
        with pytest.raises(InvalidInput, match="holds no encoder that transformers can open"):
            load_backbone(copy / "passage_encoder")
    (copy / "passage_encoder" / "config.json").write_text(json.dumps({**known, "hidden_size": "x"}))
    with pytest.raises(InvalidInput, match=r"holds no encoder .*hidden_size") as refused:
        load_backbone(copy / "passage_encoder")
    assert "\n" not in str(refused.value)
    with pytest.raises(InvalidInput, match="holds no encoder"):
        load_backbone(tmp_path / "nowhere")


def test_too_little_memory_is_not_a_bad_encoder(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", full)
    with pytest.raises(MemoryError):
        load_backbone(copy / "passage_encoder")


def test_pickled_weights_are_never_opened(copy: Path) -> None:
    where = copy / "passage_encoder"
    torch.save(load_file(where / "model.safetensors"), where / "pytorch_model.bin")
    (where / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="holds no encoder"):
        load_backbone(where)


def test_whoever_may_read_a_model_may_read_its_weights(tiny_model: Path, tiny_reader: Path) -> None:
    for home in (tiny_model / "passage_encoder", tiny_model / "question_encoder", tiny_reader / "reader_encoder"):
        modes = {path.name: path.stat().st_mode for path in home.iterdir()}
        assert {"model.safetensors", "head.safetensors"} < {*modes} and len({*modes.values()}) == 1


def test_what_the_disk_refuses_safetensors_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused, saving(tmp_path):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert refused.value.errno == errno.ENOSPC
    with pytest.raises(SafetensorError), saving(tmp_path):
        raise SafetensorError("anything else")
