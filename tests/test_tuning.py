"""The index that is chosen is the one that measurements speak for, and it is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr import live, tuning
from bpr.errors import InvalidInput
from bpr.index import CellIndex, ScanIndex
from bpr.kinds import Plan
from bpr.tuning import Point, tune

ROWS, DIM = 3000, 64
RANDOM = np.random.default_rng(6)
MIDDLES = RANDOM.standard_normal((30, DIM)).astype(np.float32)
VECTORS = MIDDLES[RANDOM.integers(30, size=ROWS)] + 0.5 * RANDOM.standard_normal((ROWS, DIM)).astype(np.float32)
SCATTERED = RANDOM.standard_normal((40, DIM)).astype(np.float32)  # of no cell in particular
ASKED = MIDDLES + 0.3 * RANDOM.standard_normal((30, DIM)).astype(np.float32)


def passages(rows: int) -> list[dict[str, str]]:
    text = "Number {} is a number. It has some words in it, as all of them have."
    return [{"id": str(row), "text": text.format(row)} for row in range(rows)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    bpr.build(passages(ROWS), tmp_path / "x.bpr", vectors=VECTORS, planes=2)
    return tmp_path / "x.bpr"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells, however small the bundle and slow they are."""
    monkeypatch.setattr(tuning, "CELLS_FROM", 1)
    monkeypatch.setattr(tuning, "WORTH", 1e9)


def test_a_small_bundle_stays_a_scan_with_as_few_candidates_as_do(path: Path) -> None:
    found = tune(path, 0.95, vectors=ASKED)
    assert found.chosen.kind == "scan"
    assert found.chosen.recall >= 0.975  # half of what may be missed is the candidates'
    assert all(point.recall < 0.975 for point in found.points[:-1])
    assert found.cells is None
    with bpr.open(path) as opened:
        assert isinstance(opened.index, ScanIndex)
        assert opened.candidates == found.chosen.candidates


@pytest.mark.usefixtures("eager")
def test_cells_reach_the_recall_that_is_wanted(path: Path) -> None:
    found = tune(path, 0.99, vectors=SCATTERED)
    cells = [point for point in found.points if point.kind == "cells"]
    assert found.chosen == cells[-1]
    assert cells[-1].recall >= 0.99
    assert all(point.recall < 0.99 for point in cells[:-1])
    with bpr.open(path) as opened:
        assert isinstance(opened.index, CellIndex)
        assert len(opened.index.cells) == found.cells
        assert opened.index.probes == found.chosen.probes
        exact = opened.rank(SCATTERED, candidates="all").rows
        rows = opened.rank(SCATTERED).rows
        share = np.mean([np.isin(a, b).mean() for a, b in zip(exact, rows, strict=True)])
        assert share == pytest.approx(found.chosen.recall)
        assert opened._snapshot.index_for(None, 0.99).probes == found.chosen.probes


@pytest.mark.usefixtures("eager")
def test_tuning_again_begins_anew(path: Path) -> None:
    first, second = tune(path, 0.9, vectors=ASKED), tune(path, 0.9, vectors=ASKED)
    assert [(p.kind, p.candidates, p.probes, p.recall) for p in first.points] == [
        (p.kind, p.candidates, p.probes, p.recall) for p in second.points
    ]


@pytest.mark.usefixtures("eager")
def test_a_bundle_of_segments_is_made_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    bpr.add(path, [{"id": "new", "text": "x"}], vectors=VECTORS[:1])
    bpr.delete(path, "5")
    tune(path, 0.9, vectors=ASKED)
    with bpr.open(path) as opened:
        assert isinstance(opened.index, CellIndex)
        assert len(opened) == ROWS


@pytest.mark.usefixtures("eager")
def test_measuring_alone_changes_nothing(path: Path) -> None:
    before = (path / "manifest.json").read_bytes()
    assert tune(path, 0.9, vectors=ASKED, write=False).chosen.kind == "cells"
    assert (path / "manifest.json").read_bytes() == before


def test_its_own_codes_stand_for_questions(path: Path) -> None:
    found = tune(path, 0.9, write=False)
    assert (found.asked, found.questions) == ("its own codes", 500)
    one = tmp = path.with_name("one.bpr")
    bpr.build(passages(300), one, vectors=VECTORS[:300])
    assert tune(tmp, 0.9, write=False).questions == 300


def test_sentences_stand_for_questions(tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(passages(40), tmp_path / "x.bpr", model=tiny_model)
    found = tune(tmp_path / "x.bpr", 0.9, write=False)
    assert (found.asked, found.questions) == ("sentences of its passages", 40)
    found = tune(tmp_path / "x.bpr", 0.9, questions=["how many words?", "which number?"], write=False)
    assert (found.asked, found.questions) == ("given questions", 2)


def test_a_sentence_of_a_text() -> None:
    dice = np.random.default_rng(0)
    text = "One two three four. Short. Five six seven eight nine!"
    assert {tuning._sentence(text, dice) for _ in range(40)} == {"One two three four.", "Five six seven eight nine!"}
    assert tuning._sentence("a b c", dice) == "a b c"
    assert tuning._sentence("", dice) == "?"


def test_what_is_measured_is_told(path: Path) -> None:
    told = []
    found = tune(path, 0.9, vectors=ASKED, write=False, progress=lambda what, done, total: told.append(what))
    assert {"scoring all", "measuring scan"} <= set(told)
    assert found.to_dict()["points"][0]["kind"] == "scan"
    assert all(isinstance(point, Point) and point.milliseconds > 0 for point in found.points)


def test_what_makes_no_sense(path: Path) -> None:
    for target in (0.2, 1.0):
        with pytest.raises(InvalidInput, match="target_recall"):
            tune(path, target)
    with pytest.raises(InvalidInput, match="not both"):
        tune(path, questions=["x"], vectors=ASKED)
    with pytest.raises(InvalidInput, match="no questions"):
        tune(path, questions=[])
    with pytest.raises(InvalidInput, match="no questions"):
        tune(path, vectors=np.empty((0, DIM), np.float32))
    with pytest.raises(InvalidInput, match="dimensions"):
        tune(path, vectors=ASKED[:, :32])


def test_cells_of_other_rows_are_not_stored(path: Path) -> None:
    cells = CellIndex.build(bpr.pack(VECTORS[:100])).cells
    with pytest.raises(InvalidInput, match="changed meanwhile"):
        live.reindex(path, Plan("cells"), layout=cells)
