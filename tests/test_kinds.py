"""Indexes of every kind in bundles: found, kept by every change, and not believed where the files disagree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import bundle, kinds, live
from bpr.codes import pack
from bpr.errors import CorruptBundle, InvalidInput
from bpr.index import CellIndex, HashIndex, ScanIndex
from bpr.kinds import CELLS, HASH, SIGNS, Plan

ROWS, DIM = 900, 32
RANDOM = np.random.default_rng(4)
VECTORS = RANDOM.standard_normal((ROWS + 60, DIM)).astype(np.float32)
ASKED = RANDOM.standard_normal((5, DIM)).astype(np.float32)
CLASSES = {"scan": ScanIndex, "hash": HashIndex, "cells": CellIndex}


def passages(*rows: int) -> list[dict[str, Any]]:
    return [{"id": str(row), "text": f"text {row}", "even": row % 2 == 0} for row in rows]


def built(path: Path, kind: str = "scan", planes: int = 2, rows: range = range(ROWS)) -> Path:
    bpr.build(passages(*rows), path, vectors=VECTORS[list(rows)], planes=planes, kind=kind)
    return path


def ranked(path: Path, **how: Any) -> tuple[list[list[str]], np.ndarray]:
    """Ids and scores."""
    with bpr.open(path) as opened:
        found = opened.rank(ASKED, k=30, **how)
        return [[each.id for each in opened.passages.get(rows)] for rows in found.rows], found.scores


def assert_same(first: Path, second: Path, **how: Any) -> None:
    (ids, scores), (other_ids, other_scores) = ranked(first, **how), ranked(second, **how)
    assert ids == other_ids
    np.testing.assert_array_equal(scores, other_scores)


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("kind", ["hash", "cells"])
def test_every_kind_finds_what_the_scan_finds(tmp_path: Path, kind: str, planes: int) -> None:
    scan, other = built(tmp_path / "scan.bpr", planes=planes), built(tmp_path / "x.bpr", kind, planes)
    with bpr.open(other) as opened:
        assert type(opened.index) is CLASSES[kind]
        assert opened.info["kind"] == kind
    for how in ({}, {"candidates": 100}, {"candidates": "all"}, {"rerank": False}, {"where": {"even": True}}):
        assert_same(scan, other, probes=1.0, **how)
    assert [each.problem for each in bundle.verify(other)] == [None] * len(bundle.verify(other))


@pytest.mark.parametrize("kind", ["scan", "hash", "cells"])
def test_changes_keep_the_kind_and_what_is_found(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    path = built(tmp_path / "x.bpr", kind)
    bpr.add(path, passages(*range(ROWS, ROWS + 60)), vectors=VECTORS[ROWS:])
    bpr.delete(path, ["3", "500", str(ROWS + 7)])
    bpr.add(path, passages(8), vectors=VECTORS[8:9], upsert=True)
    order = [row for row in range(ROWS + 60) if row not in (3, 8, 500, ROWS + 7)] + [8]
    with bundle.open(path) as opened:
        assert [each["kind"] for each in opened.info["segments"]] == [kind, "scan", "scan"]
    before = ranked(path, probes=1.0)
    assert bpr.compact(path) == len(order)
    with bpr.open(path) as opened:
        assert type(opened.index) is CLASSES[kind]
        assert "segments" not in opened.info
    after = ranked(path, probes=1.0)
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("kind", ["scan", "hash", "cells"])
def test_changes_in_one_plane_give_what_is_built_at_once(tmp_path: Path, kind: str) -> None:
    path, whole = built(tmp_path / "x.bpr", kind, planes=1), tmp_path / "whole.bpr"
    bpr.delete(path, [str(row) for row in range(0, ROWS, 3)])
    bpr.add(path, passages(ROWS), vectors=VECTORS[ROWS : ROWS + 1])
    order = [row for row in range(ROWS + 1) if row % 3 or row == ROWS]
    bpr.build(passages(*order), whole, vectors=VECTORS[order])
    for how in ({}, {"candidates": 40}, {"candidates": "all"}, {"where": {"even": False}}):
        assert_same(path, whole, probes=1.0, **how)


@pytest.mark.parametrize("one", ["scan", "hash", "cells"])
@pytest.mark.parametrize("other", ["scan", "hash", "cells"])
def test_an_index_is_exchanged_for_another(tmp_path: Path, one: str, other: str) -> None:
    path, scan = built(tmp_path / "x.bpr", one), built(tmp_path / "scan.bpr")
    kept = (path / "gen-000001" / "passages.jsonl").stat().st_ino
    assert live.reindex(path, Plan(other), candidates=77) == ROWS
    assert (path / "gen-000002" / "passages.jsonl").stat().st_ino == kept
    with bpr.open(path) as opened:
        assert type(opened.index) is CLASSES[other]
        assert opened.candidates == 77
        names = set(opened.bundle.manifest.files)
    assert names & {*HASH.values()} == ({*HASH.values()} if other == "hash" else set())
    assert names & {*CELLS.values()} == ({*CELLS.values()} if other == "cells" else set())
    assert_same(path, scan, probes=1.0, candidates=200)


def test_an_index_is_exchanged_in_a_bundle_of_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    path, whole = built(tmp_path / "x.bpr", planes=1), tmp_path / "whole.bpr"
    bpr.add(path, passages(*range(ROWS, ROWS + 9)), vectors=VECTORS[ROWS : ROWS + 9])
    bpr.delete(path, ["0"])
    assert live.reindex(path, Plan("cells", cells=7, probes=0.5)) == ROWS + 8
    with bpr.open(path) as opened:
        assert isinstance(opened.index, CellIndex)
        assert (len(opened.index.cells), opened.index.probes) == (7, 0.5)
    bpr.build(passages(*range(1, ROWS + 9)), whole, vectors=VECTORS[1 : ROWS + 9])
    assert_same(path, whole, probes=1.0)


def test_cells_look_at_as_many_codes_as_they_are_told(tmp_path: Path) -> None:
    path = built(tmp_path / "x.bpr", "cells")
    live.reindex(path, Plan("cells", cells=30, probes=0.1, recall={"0.9": 0.2, "0.99": 0.7}))
    with bpr.open(path) as opened:
        assert opened.index.probes == 0.1
        snapshot = opened._snapshot
        assert snapshot.index_for(0.3, None).probes == 0.3
        assert snapshot.index_for(None, 0.9).probes == 0.2
        assert snapshot.index_for(None, 0.95).probes == 0.7
        assert snapshot.index_for(None, 0.999).probes == 1.0
        with pytest.raises(InvalidInput, match="give one of them"):
            opened.rank(ASKED, probes=0.3, target_recall=0.9)
        with pytest.raises(InvalidInput, match="probes"):
            opened.rank(ASKED, probes=0.0)


def test_an_exact_index_has_nothing_to_probe(tmp_path: Path) -> None:
    path = built(tmp_path / "x.bpr")
    with bpr.open(path) as opened:
        assert opened._snapshot.index_for(0.01, None) is opened.index


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "tree"}, "one of scan, hash, cells"),
        ({"kind": "scan", "cells": 5}, "cells is for an index of kind cells"),
        ({"kind": "cells", "tables": 5}, "tables is for an index of kind hash"),
        ({"kind": "cells", "probes": 2.0}, "at most 1"),
    ],
)
def test_a_plan_that_no_index_has(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Plan(**wrong)


def test_build_refuses_an_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="kind must be one of"):
        built(tmp_path / "x.bpr", "tree")
    assert not (tmp_path / "x.bpr").exists()


def republished(path: Path, change: Callable[[dict[str, Any]], object] = lambda info: None, **files: Any) -> None:
    """A bundle whose bytes are sound, and whose meaning is not."""
    with bundle.update(path) as (old, new):
        info = old.info
        change(info)
        for name in old.manifest.files:
            if name in files:
                new.save(name, files[name])
            else:
                new.keep(name)
        new.publish(info, old.manifest.features)


def test_files_that_are_no_index(tmp_path: Path) -> None:
    path = built(tmp_path / "x.bpr", "cells", planes=1)
    republished(path, **{CELLS["starts"]: np.zeros(3, np.int64)})
    with pytest.raises(CorruptBundle, match="cannot be one"):
        bpr.open(path)
    path = built(tmp_path / "y.bpr", "cells", planes=1)
    republished(path, **{CELLS["rows"]: np.full(ROWS, ROWS + 5, np.uint32)})
    with bpr.open(path) as opened, pytest.raises((CorruptBundle, InvalidInput)):
        opened.rank(ASKED)
    path = built(tmp_path / "z.bpr", "hash", planes=1)
    with bundle.open(path) as opened:
        others = pack(RANDOM.standard_normal((ROWS, DIM)).astype(np.float32))
    republished(path, **{SIGNS: others})
    with pytest.raises(CorruptBundle):
        bpr.open(path)


def test_an_info_that_is_no_plan(tmp_path: Path) -> None:
    path = built(tmp_path / "x.bpr", "cells", planes=1)
    republished(path, lambda info: info.update(index={"leaves": 3}))
    with pytest.raises(CorruptBundle, match="does not say which index"):
        bpr.open(path)


def test_what_is_verified_at_open() -> None:
    assert kinds.resident("scan", "s1-") == ["s1-signs.npy"]
    assert kinds.resident("cells", "") == [SIGNS, *CELLS.values()]
    assert kinds.resident("hash", "") == [SIGNS, *HASH.values()]


def test_few_rows_of_every_kind(tmp_path: Path) -> None:
    for kind in CLASSES:
        path = built(tmp_path / f"{kind}.bpr", kind, rows=range(3))
        assert sorted(ranked(path)[0][0]) == ["0", "1", "2"]


def test_probes_for_a_recall() -> None:
    plan = Plan("cells", recall={"0.9": 0.01, "0.99": 0.05})
    shares = [plan.probes_for(recall) for recall in (0.5, 0.9, 0.95, 0.99, 0.995, 1)]
    assert shares == [0.01, 0.01, 0.05, 0.05, 1, 1]
    assert Plan("cells").probes_for(0.9) == 1.0
    with pytest.raises(InvalidInput, match="target_recall must be"):
        plan.probes_for(1.5)
