"""A reader's graph: the same numbers on bpr's engine, on ONNX Runtime and in torch, within the roundings of int8."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpr import kernels
from bpr import model as models
from bpr import reader as readers
from bpr.encoder import open_graph
from bpr.errors import InvalidInput
from bpr.pieces import Cutter
from bpr.training.reader import load
from bpr.training.readerexport import _sequence, export_reader, triples
from tiny_models import WORDS, make_reader

RANDOM = np.random.default_rng(5)
TRIPLES = [
    tuple(" ".join(RANDOM.choice(WORDS, size)) for size in (5, int(RANDOM.integers(0, 3)), int(RANDOM.integers(1, 70))))
    for _ in range(20)
]


@torch.inference_mode()
def logits_of(folder: Path, engine: str | None) -> tuple[list[Any], list[Any]]:
    """Of some sequences: torch's, and an engine's."""
    reader, model = load(folder)
    cutter, graph = Cutter(folder / "tokenizer.json"), open_graph(folder / "reader.onnx", engine)
    theirs, ours = [], []
    for triple in TRIPLES:
        ids, segments = _sequence(cutter, model, triple)
        given = {"token_type_ids": torch.from_numpy(segments[None])} if model.token_types else {}
        states = reader.backbone(input_ids=torch.from_numpy(ids[None]), **given).last_hidden_state
        theirs.append(reader.head(states)[0].numpy())
        ours.append(graph.run("logits", ids, segments))
        assert ours[-1].shape == (len(ids), 8) and not ours[-1][:, 3:].any()
    return theirs, ours


@pytest.mark.parametrize("engine", ["bpr", "onnxruntime"])
@pytest.mark.parametrize("token_types", [False, True])
def test_both_engines_are_close_to_torch(tmp_path: Path, engine: str, token_types: bool) -> None:
    make_reader(tmp_path / "r", token_types=token_types)
    for expected, found in zip(*logits_of(tmp_path / "r", engine), strict=True):
        spread = expected.std()
        assert np.abs(found[:, :3] - expected).mean() < 0.1 * spread
        assert np.corrcoef(found[:, :3].ravel(), expected.ravel())[0, 1] > 0.98


def test_in_float32_it_is_what_torch_computes(tmp_path: Path) -> None:
    make_reader(tmp_path / "r", int8=False)
    for expected, found in zip(*logits_of(tmp_path / "r", None), strict=True):
        np.testing.assert_allclose(found[:, :3], expected, rtol=1e-3, atol=1e-4)


def test_the_same_bits_at_every_level(tiny_reader: Path) -> None:
    seen = []
    for level in kernels.simd_levels():
        with kernels.using_simd(level):
            seen.append(np.concatenate(logits_of(tiny_reader, "bpr")[1]))
    assert all(np.array_equal(seen[0], each) for each in seen)


def test_the_folder_without_float_weights(tmp_path: Path, tiny_reader: Path) -> None:
    made = export_reader(tiny_reader, tmp_path / "out")
    assert made.agreement > 0.98 and made.bytes == (tmp_path / "out" / "reader.onnx").stat().st_size
    model, files = readers.load_model(tmp_path / "out")
    assert {*files} == {"reader.onnx", "tokenizer.json"} and model == readers.load_model(tiny_reader)[0]
    assert readers.has_reader(tmp_path / "out") and not readers.has_reader(tmp_path)


def test_a_reader_moves_in_with_a_retrieval_model_of_the_same_tokenizer(
    tmp_path: Path, tiny_reader: Path, tiny_model: Path
) -> None:
    shutil.copytree(tiny_model, tmp_path / "both")
    export_reader(tiny_reader, tmp_path / "both")
    assert models.load(tmp_path / "both")[0] == models.load(tiny_model)[0]
    models.check_file(tmp_path / "both", "tokenizer.json", models.load(tmp_path / "both")[1])
    assert readers.has_reader(tmp_path / "both")
    (tmp_path / "both" / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInput, match="another tokenizer than the reader's"):
        export_reader(tiny_reader, tmp_path / "both")


def test_other_kinds_of_networks_are_refused(tmp_path: Path) -> None:
    make_reader(tmp_path / "r", kind="distilbert", onnx=False)
    with pytest.raises(InvalidInput, match="of the kind 'distilbert'"):
        export_reader(tmp_path / "r")


def test_a_broken_export_is_noticed(tmp_path: Path, tiny_reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bpr.training import readerexport

    real = readerexport._tower

    def wrong(*given: Any) -> Any:
        tower = real(*given)
        torch.nn.init.normal_(tower.head.projection.weight)
        return tower

    monkeypatch.setattr(readerexport, "_tower", wrong)
    with pytest.raises(InvalidInput, match="correlate only by"):
        export_reader(tiny_reader, tmp_path / "out")


def test_rounded_by_texts_it_is_closer_to_torch(tmp_path: Path, tiny_reader: Path) -> None:
    often = 1 / np.arange(1, len(WORDS) + 1)  # a few words come often, as in a language
    passages = [("moon", " ".join(RANDOM.choice(WORDS, 30, p=often / often.sum()))) for _ in range(200)]
    asked = [" ".join(RANDOM.choice(WORDS, 5)) for _ in range(190)]
    given = triples(passages, asked)
    assert given[3] == (asked[3], *passages[3]) and len(given) == 190  # as many as there are of both
    assert triples(passages, None)[0][0] == " ".join(passages[0][1].split()[:12])
    off = {}
    for name, texts in (("plain", None), ("rounded", given)):
        made = shutil.copytree(tiny_reader, tmp_path / name)
        export_reader(made, texts=texts)
        pairs = zip(*logits_of(made, "bpr"), strict=True)
        off[name] = np.mean([np.abs(found[:, :3] - expected).mean() for expected, found in pairs])
    assert off["rounded"] < 0.95 * off["plain"]
    with pytest.raises(InvalidInput, match="too few pairs of question and passage to round weights by \\(20\\)"):
        export_reader(tiny_reader, tmp_path / "few", texts=TRIPLES)
