"""The engine's network in torch: the same bits as the kernel's, whatever the lengths and neighbours of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bpr
from bpr import bert, bundle
from bpr import model as models
from bpr.encoder import Encoder
from bpr.errors import InvalidInput
from bpr.training.bytebert import ByteBert, fma, quotient
from bpr.training.encode import GraphEncoder, TorchEncoder
from bpr.training.export import export_onnx
from tiny_models import KINDS, WORDS, make_model

RANDOM = np.random.default_rng(5)
TEXTS = ["", *(" ".join(RANDOM.choice(WORDS, int(RANDOM.integers(1, 60)))) for _ in range(40))]
PAIRS = [("" if row % 2 else "moon", text) for row, text in enumerate(TEXTS)]


def served(folder: Path, **settings: Any) -> Path:
    """A model folder with graphs alone."""
    make_model(folder / "whole", onnx=False, **settings)
    export_onnx(folder / "whole", folder / "served")
    return folder / "served"


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_kernel(tmp_path: Path, kind: str) -> None:
    folder = served(tmp_path, **KINDS[kind])
    here, there = Encoder.open(folder, engine="bpr"), TorchEncoder.open(folder, "cpu")
    assert isinstance(there, GraphEncoder)
    np.testing.assert_array_equal(there.passages(PAIRS), here.passages(PAIRS))
    np.testing.assert_array_equal(there.questions(TEXTS), here.questions(TEXTS))


def test_vectors_of_the_model_that_ships_are_those_of_the_kernel() -> None:
    """It has what no random model has: values beyond the bytes of a row, which pass a layer twice."""
    pairs = [("Iliad", "The Iliad is one of two major ancient Greek epic poems attributed to Homer."), ("", "x")]
    pairs += [("Padding", "word, " * 25), ("", "the " * 300)]
    here, there = Encoder.open("mini", engine="bpr"), TorchEncoder.open("mini", "cpu")
    np.testing.assert_array_equal(there.passages(pairs), here.passages(pairs))
    asked = ["who wrote the Iliad?", "?"]
    np.testing.assert_array_equal(there.questions(asked), here.questions(asked))


def test_a_bundle_is_the_same_and_begun_parts_go_on(tmp_path: Path) -> None:
    folder = served(tmp_path)
    passages = [{"id": str(row), "title": title, "text": text} for row, (title, text) in enumerate(PAIRS[1:])]
    here, there = Encoder.open(folder, engine="bpr"), TorchEncoder.open(folder, "cpu")
    assert here.engine == there.engine and here.fingerprint == there.fingerprint
    for name, encoder in (("here", here), ("there", there)):
        bpr.build(passages, tmp_path / f"{name}.bpr", model=encoder)
    with bundle.open(tmp_path / "here.bpr") as one, bundle.open(tmp_path / "there.bpr") as other:
        sums = [{n: entry.sha256 for n, entry in each.manifest.files.items()} for each in (one, other)]
    assert sums[0] == sums[1]


def test_arithmetic_is_rounded_as_the_kernels() -> None:
    a, b, c = (RANDOM.standard_normal(100_000).astype(np.float32) for _ in range(3))
    x, y, z = map(torch.from_numpy, (a, b, c))
    np.testing.assert_array_equal(fma(x, y, z), (a.astype(np.float64) * b + c).astype(np.float32))
    np.testing.assert_array_equal(quotient(x, y), a / b)
    np.testing.assert_array_equal(quotient(127, y), np.float32(127) / b)
    np.testing.assert_array_equal(quotient(x, 3), a / np.float32(3))


def test_graphs_that_are_not_ours(tmp_path: Path) -> None:
    folder = served(tmp_path, kind="distilbert")
    with pytest.raises(InvalidInput, match=r"passage\.onnx is not a graph that bpr's own engine knows, so a GPU needs"):
        TorchEncoder.open(folder, "cpu").passages(PAIRS)


def test_a_graph_that_lacks_a_constant(tmp_path: Path) -> None:
    folder = served(tmp_path)
    path = folder / "passage.onnx"
    path.write_bytes(path.read_bytes().replace(b"last.gamma", b"last.gimme"))
    models.save(folder, *models.load(folder))  # with the sum that it has now
    with pytest.raises(InvalidInput, match=r"is not a graph as `bpr export` makes it: .*last\.gamma"):
        TorchEncoder.open(folder, "cpu").passages(PAIRS)


def test_places_need_not_be_whole_lanes(tmp_path: Path) -> None:
    """A batch is padded to whole lanes, beyond the last place that the network has."""
    facts, constants = bert.open_constants(served(tmp_path) / "passage.onnx")
    ids = RANDOM.integers(0, 40, 13)
    shorter = {**constants, "places": constants["places"][:, :13]}
    padded = torch.zeros(1, 16, dtype=torch.int64)
    padded[0, :13] = torch.from_numpy(ids)
    mask = torch.zeros(1, 16, dtype=torch.int64)
    mask[0, :13] = 1
    found = ByteBert(facts, shorter, torch.device("cpu")).vectors(padded, mask, None, "vector")
    whole = ByteBert(facts, constants, torch.device("cpu")).vectors(padded, mask, None, "vector")
    np.testing.assert_array_equal(found, whole)
