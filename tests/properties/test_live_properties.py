"""Whatever is added, replaced, deleted and merged, in whatever order: the bundle is as if it had been built at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bpr
from bpr import bundle, live
from bpr.codes import LEVELS, pack, pack_magnitudes
from bpr.segments import load_transform

BITS = 16  # so few that many passages have equal distances and scores
RANDOM = np.random.default_rng(3)
POOL = RANDOM.standard_normal((40, BITS)).astype(np.float32)  # vectors are drawn from these: many twins
ASKED = RANDOM.standard_normal((3, BITS)).astype(np.float32)

Operation = tuple[str, list[int]]
ids = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True)
operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "upsert", "delete", "delete", "compact"]), ids), min_size=1, max_size=8
)


class World:
    """A bundle that is changed, and a dict that is changed likewise."""

    def __init__(self, folder: Path, planes: int, kind: str, first: list[int]) -> None:
        self.path, self.planes, self.kind, self.changes = folder / "x.bpr", planes, kind, 0
        self.known: dict[str, tuple[dict[str, Any], int]] = {}  # id: passage and the number of its vector, in order
        found, numbers = self.passages(first)
        bpr.build(found, self.path, vectors=POOL[numbers], planes=planes, rotate=planes == 2, kind=kind)
        self.remember(found, numbers)

    def passages(self, names: list[int]) -> tuple[list[dict[str, Any]], list[int]]:
        self.changes += 1
        texts = [{"id": f"p{n}", "title": f"T{n}", "text": f"{n} of {self.changes}", "year": n} for n in names]
        return texts, [(7 * n + self.changes) % len(POOL) for n in names]

    def remember(self, found: list[dict[str, Any]], numbers: list[int]) -> None:
        for passage, number in zip(found, numbers, strict=True):
            self.known.pop(passage["id"], None)
            self.known[passage["id"]] = passage, number

    def apply(self, operation: Operation) -> None:
        what, names = operation
        if what == "add":
            names = [n for n in names if f"p{n}" not in self.known]
        elif what == "delete":
            names = [n for n in names if f"p{n}" in self.known]
        if what == "compact":
            assert bpr.compact(self.path) == len(self.known)
        elif what == "delete":
            assert bpr.delete(self.path, [f"p{n}" for n in names]) == len(names)
            for n in names:
                del self.known[f"p{n}"]
        elif names:
            found, numbers = self.passages(names)
            assert bpr.add(self.path, found, vectors=POOL[numbers], upsert=what == "upsert") == len(names)
            self.remember(found, numbers)

    def check(self) -> None:
        with bundle.open(self.path, verify="all") as opened:
            assert opened.info["rows"] == len(self.known)
            assert [each.problem for each in opened.verify()] == [None] * len(opened.manifest.files)
            transform = load_transform(opened)
        if not self.known:
            with pytest.raises(bpr.EmptyBundle):
                bpr.open(self.path)
            return
        x = transform.passages(POOL[[number for _, number in self.known.values()]])
        index = bpr.ScanIndex(pack(x), *((pack_magnitudes(x), LEVELS) if self.planes == 2 else ()))
        with bpr.open(self.path) as retriever:
            assert [p.to_dict() for p in retriever.passages] == [as_stored(p) for p, _ in self.known.values()]
            assert [retriever.passages.row(each) for each in self.known] == list(range(len(self.known)))
            assert not any(f"p{n}" in retriever.passages for n in range(61) if f"p{n}" not in self.known)
            self.check_search(retriever, index)

    def check_search(self, retriever: bpr.Retriever, index: bpr.ScanIndex) -> None:
        n = len(self.known)
        asked = retriever.questions(ASKED)
        ours_all = retriever._snapshot.index_for(1.0, None)  # cells find the same where they look at all codes
        some = np.random.default_rng(n).random(n) < 0.6
        for mask in (None, some, np.zeros(n, bool)):
            for candidates in (5, 2 * n):
                expected = index.candidates(asked, candidates, mask=mask)
                for ours, theirs in zip(ours_all.candidates(asked, candidates, mask=mask), expected, strict=True):
                    assert ours.dtype == theirs.dtype
                    np.testing.assert_array_equal(ours, theirs)
                for rerank in (True, False):
                    how: dict[str, Any] = {"k": 5, "candidates": candidates, "rerank": rerank, "mask": mask}
                    if candidates >= 5:
                        same(retriever.rank(ASKED, probes=1.0, **how), bpr.search(index, asked, **how))
            same(
                retriever.rank(ASKED, k=7, candidates="all", mask=mask),
                bpr.search(index, asked, 7, None, mask=mask),
            )
        years = [passage["year"] for passage, _ in self.known.values()]
        early = {"k": n, "candidates": 2 * n, "mask": np.array(years) < 30}
        if any(early["mask"]):
            same(
                retriever.rank(ASKED, k=n, candidates=2 * n, where={"year": {"<": 30}}, probes=1.0),
                bpr.search(index, asked, **early),
            )
        hits = retriever.search(vectors=ASKED[0], k=3, probes=1.0)
        order = list(self.known)
        assert [hit.id for hit in hits] == [order[row] for row in bpr.search(index, asked, 3, 2000).rows[0]]


def as_stored(passage: dict[str, Any]) -> dict[str, Any]:
    return {**{key: passage[key] for key in ("id", "title", "text")}, "meta": {"year": passage["year"]}}


def same(ours: bpr.Hits, theirs: bpr.Hits) -> None:
    np.testing.assert_array_equal(ours.rows, theirs.rows)
    np.testing.assert_array_equal(ours.scores, theirs.scores)


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bpr-", dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@given(
    planes=st.sampled_from([1, 2]),
    kind=st.sampled_from(["scan", "hash", "cells"]),
    first=ids,
    changes=operations,
    small=st.sampled_from([0, 0, 3, 4096]),
)
def test_any_order_of_changes_is_a_bundle_built_at_once(
    room: Path, planes: int, kind: str, first: list[int], changes: list[Operation], small: int
) -> None:
    folder = Path(tempfile.mkdtemp(dir=room))
    with mock.patch.object(live, "SMALL_ROWS", small):  # else so few rows would never be more than one segment
        world = World(folder, planes, kind, first)
        for change in changes:
            world.apply(change)
            world.check()
        bpr.compact(world.path)
        world.check()
    if world.known and planes == 1:
        found, numbers = zip(*world.known.values(), strict=True)
        bpr.build(found, folder / "at once.bpr", vectors=POOL[list(numbers)], kind=kind)
        with bundle.open(world.path) as ours, bundle.open(folder / "at once.bpr") as theirs:
            assert ours.manifest.files == theirs.manifest.files
            assert ours.info == theirs.info
            assert not ours.manifest.features
    shutil.rmtree(folder)


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_segments_are_few_and_rows_are_copied_seldom(sizes: list[int]) -> None:
    """The arithmetic alone: how many segments there are, and how often their rows are written."""
    with mock.patch.object(live, "SMALL_ROWS", 0):
        segments: list[int] = []
        written = 0
        for size in sizes:
            merged = live._merged(segments, size)
            total = size + sum(segments[len(segments) - merged :])
            segments = [*segments[: len(segments) - merged], total]
            written += total
    rows = sum(sizes)
    assert sum(segments) == rows
    assert len(segments) <= np.log2(rows) + 1
    assert all(one >= 2 * other for one, other in pairwise(segments))
    assert written <= rows * (np.log(rows) / np.log(1.5) + 2)
