"""Several indexes as one, with deleted rows: the same as one index of what is left."""

from __future__ import annotations

import numpy as np
import pytest

import bpr
from bpr.baselines import flat
from bpr.codes import LEVELS, Questions
from bpr.errors import Cancelled, InvalidInput
from bpr.index import SegmentedIndex
from bpr.kernels import Cancel

RANDOM = np.random.default_rng(4)
CODES = RANDOM.integers(0, 4, (900, 6), dtype=np.uint8)  # many equal distances
LARGE = RANDOM.integers(0, 256, (900, 6), dtype=np.uint8)
ASKED = RANDOM.standard_normal((5, 48)).astype(np.float32)
CUTS = [(0, 500), (500, 501), (501, 501), (501, 900)]
GONE = [np.array([0, 7, 8, 9, 499]), np.array([0]), np.empty(0, np.int64), np.arange(0, 399, 3)]
LEFT = np.concatenate([np.setdiff1d(np.arange(*cut), gone + cut[0]) for cut, gone in zip(CUTS, GONE, strict=True)])


def planes(rows: slice | np.ndarray, count: int) -> bpr.ScanIndex:
    return bpr.ScanIndex(CODES[rows], *((LARGE[rows], LEVELS) if count == 2 else ()))


@pytest.fixture(params=[(1, False), (2, False), (1, True), (2, True)])
def both(request: pytest.FixtureRequest) -> tuple[SegmentedIndex, bpr.ScanIndex]:
    """In parts, or as one part from which rows are deleted."""
    count, whole = request.param
    if whole:
        gone = np.setdiff1d(np.arange(len(CODES)), LEFT)
        return SegmentedIndex([planes(slice(None), count)], [gone]), planes(LEFT, count)
    parts = [planes(slice(*cut), count) for cut in CUTS]
    return SegmentedIndex(parts, GONE), planes(LEFT, count)


@pytest.mark.parametrize("l", [1, 10, 700, 5000])
def test_candidates(both: tuple[SegmentedIndex, bpr.ScanIndex], l: int) -> None:
    ours, theirs = both
    assert len(ours) == len(theirs) == len(LEFT)
    for mask in (None, RANDOM.random(len(LEFT)) < 0.3):
        for asked in (Questions(ASKED), bpr.pack(ASKED)):
            for one, other in zip(
                ours.candidates(asked, l, mask=mask), theirs.candidates(asked, l, mask=mask), strict=True
            ):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("how", [{"candidates": 50}, {"candidates": None}, {"candidates": 9, "rerank": False}])
def test_search(both: tuple[SegmentedIndex, bpr.ScanIndex], how: dict) -> None:
    for mask in (None, RANDOM.random(len(LEFT)) < 0.3):
        for asked in (ASKED, ASKED[:1], ASKED[:0]):
            one, other = (bpr.search(index, asked, 7, mask=mask, **how) for index in both)
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.scores, other.scores)


def test_planes(both: tuple[SegmentedIndex, bpr.ScanIndex]) -> None:
    ours, theirs = both[0].planes, both[1].planes
    rows = RANDOM.integers(0, len(LEFT), 40)
    for one, other in ((ours, theirs), (ours.take(rows), theirs.take(rows))):
        np.testing.assert_array_equal(one.signs, other.signs)
        assert (one.magnitudes is None) == (other.magnitudes is None)
        if other.magnitudes is not None:
            np.testing.assert_array_equal(one.magnitudes, other.magnitudes)
        assert (one.bits, one.levels) == (other.bits, other.levels)
    assert ours.nbytes == CODES.nbytes * (1 if theirs.magnitudes is None else 2)
    assert "SegmentedIndex" in repr(both[0])


def test_what_will_be_read_is_announced_to_each_part() -> None:
    told: list[tuple[int, object]] = []

    def part(number: int) -> bpr.ScanIndex:
        rows = slice(*CUTS[number])
        return bpr.ScanIndex(CODES[rows], LARGE[rows], LEVELS, lambda rows: told.append((number, rows)))

    index = SegmentedIndex([part(0), part(3)], [GONE[0], GONE[3]])
    index.planes.about_to_read(None)
    assert told == [(0, None), (1 + 2, None)]
    told.clear()
    index.planes.about_to_read(np.array([[0, 494], [495, 496]]))
    assert [(number, rows.tolist()) for number, rows in told] == [(0, [1, 498]), (3, [1, 2])]


def test_limits_reach_the_parts(both: tuple[SegmentedIndex, bpr.ScanIndex]) -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        both[0].candidates(Questions(ASKED), 5, cancel=cancel)


def test_parts_must_be_of_one_kind() -> None:
    none = [np.empty(0, np.int64)] * 2
    with pytest.raises(InvalidInput, match="same bits and levels"):
        SegmentedIndex([bpr.ScanIndex(CODES), bpr.ScanIndex(CODES[:, :3].copy())], none)
    with pytest.raises(InvalidInput, match="has no codes"):
        SegmentedIndex([bpr.ScanIndex(CODES), flat(ASKED)], none)
