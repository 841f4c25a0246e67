"""The scan index: what it takes, what it gives, what it refuses."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr.codes import Questions, candidates_reference, pack
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.index import Index, Planes, ScanIndex
from bpr.kernels import Cancel

CODES = np.random.default_rng(1).integers(0, 256, (300, 8), dtype=np.uint8)
LARGE = np.random.default_rng(2).integers(0, 256, (300, 8), dtype=np.uint8)
VECTORS = np.random.default_rng(3).standard_normal((5, 64), np.float32)


def test_candidates_are_the_nearest_by_distance_and_row() -> None:
    index: Index = ScanIndex(CODES)
    expected = candidates_reference(CODES, pack(VECTORS), 20)
    for questions in (pack(VECTORS), Questions(VECTORS), pack(VECTORS).tolist()):
        if isinstance(questions, list):
            questions = np.array(questions, np.uint8)
        rows, far = index.candidates(questions, 20)
        assert (rows.dtype, far.dtype) == (np.int64, np.int32)
        np.testing.assert_array_equal(rows, expected[0])
        np.testing.assert_array_equal(far, expected[1])


def test_a_mask_leaves_rows_out() -> None:
    mask = np.random.default_rng(4).random(300) < 0.3
    rows, far = ScanIndex(CODES).candidates(pack(VECTORS), 20, mask=mask)
    expected = candidates_reference(CODES, pack(VECTORS), 20, mask)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(far, expected[1])
    as_list, _ = ScanIndex(CODES).candidates(pack(VECTORS), 20, mask=mask.tolist())
    np.testing.assert_array_equal(as_list, rows)
    assert ScanIndex(CODES).candidates(pack(VECTORS), 9, mask=np.zeros(300, bool))[0].shape == (5, 0)


def test_more_than_there_is_gives_what_there_is() -> None:
    for l in (300, 301, 10**6, 2**70):
        rows, _ = ScanIndex(CODES).candidates(pack(VECTORS), l)
        assert rows.shape == (5, 300)
        assert all(sorted(each) == list(range(300)) for each in rows.tolist())
    assert ScanIndex(CODES[:0]).candidates(pack(VECTORS), 3)[0].shape == (5, 0)


def test_the_limits_reach_the_kernel() -> None:
    index, asked = ScanIndex(CODES), pack(VECTORS)
    with pytest.raises(DeadlineExceeded):
        index.candidates(asked, 3, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        index.candidates(asked, 3, cancel=cancel)
    with pytest.raises(InvalidInput, match="threads"):
        index.candidates(asked, 3, threads=0)
    np.testing.assert_array_equal(index.candidates(asked, 3, threads=2), index.candidates(asked, 3))


def test_codes_are_not_copied(tmp_path: Path) -> None:
    assert ScanIndex(CODES).planes.signs is CODES
    np.save(tmp_path / "codes.npy", CODES)
    mapped = np.load(tmp_path / "codes.npy", mmap_mode="r")
    index = ScanIndex(mapped, LARGE, (0.5, 1.5))
    assert np.shares_memory(index.planes.signs, mapped)
    assert index.planes.magnitudes is LARGE
    np.testing.assert_array_equal(index.candidates(pack(VECTORS), 9), ScanIndex(CODES).candidates(pack(VECTORS), 9))


def test_an_index_says_what_it_is() -> None:
    index = ScanIndex(CODES)
    assert len(index) == 300
    assert repr(index) == "ScanIndex(300 rows, 64 bits, 1 plane)"
    assert not index.scores_are_final
    assert (index.planes.bits, index.planes.nbytes) == (64, 2400)
    two = bpr.ScanIndex(np.zeros((12_345, 8), np.uint8), np.zeros((12_345, 8), np.uint8), levels=(0.4528, 1.5104))
    assert repr(two) == "ScanIndex(12,345 rows, 64 bits, 2 planes)"
    assert two.planes.levels == (0.4528, 1.5104)
    assert two.planes.nbytes == 2 * 12_345 * 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"magnitudes": LARGE}, "magnitudes and levels come together"),
        ({"levels": (0.5, 1.5)}, "magnitudes and levels come together"),
        ({"magnitudes": LARGE[1:], "levels": (0.5, 1.5)}, "differ in shape"),
        ({"magnitudes": LARGE[:, 1:], "levels": (0.5, 1.5)}, "differ in shape"),
        ({"magnitudes": LARGE.astype(float), "levels": (0.5, 1.5)}, "codes must be uint8"),
        ({"magnitudes": LARGE, "levels": (1.5, 0.5)}, "0 <= low <= high"),
        ({"magnitudes": LARGE, "levels": (1.5, np.nan)}, "0 <= low <= high"),
    ],
)
def test_planes_that_do_not_fit(arguments: dict, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        ScanIndex(CODES, **arguments)


@pytest.mark.parametrize(
    ("questions", "l", "says"),
    [
        (np.zeros((2, 7), np.uint8), 3, "the questions have 56 bits, the index has 64"),
        (Questions(np.ones((2, 72))), 3, "the questions have 72 bits, the index has 64"),
        (VECTORS, 3, "codes must be uint8"),
        (pack(VECTORS)[0], 3, "codes must be uint8"),
        (pack(VECTORS), 0, "l must be at least 1"),
    ],
)
def test_questions_that_do_not_fit(questions, l: int, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        ScanIndex(CODES).candidates(questions, l)


def test_touch_is_told_what_will_be_read() -> None:
    told: list = []
    planes = Planes.of(CODES, LARGE, (0.5, 1.5), told.append)
    rows = np.arange(6).reshape(2, 3)
    planes.about_to_read(rows)
    planes.about_to_read(None)
    assert told[0] is rows
    assert told[1] is None
    Planes.of(CODES, None, None).about_to_read(rows)  # nobody to tell


@pytest.mark.parametrize("large", [None, LARGE], ids=["one plane", "two planes"])
def test_rows_are_taken_with_all_their_planes_wherever_they_lie(large: np.ndarray | None) -> None:
    order = np.random.default_rng(5).permutation(300)
    places = np.argsort(order).astype(np.uint32)  # row i lies at places[i]
    told: list[np.ndarray] = []
    moved = None if large is None else large[order]
    planes = Planes.of(CODES[order], moved, None if large is None else (0.5, 2.0), positions=places, touch=told.append)
    rows = np.array([7, 0, 299, 7])
    taken = planes.take(rows)
    np.testing.assert_array_equal(taken.signs, CODES[rows])
    assert taken.positions is None
    if large is not None:
        np.testing.assert_array_equal(taken.magnitudes, large[rows])
        assert taken.levels == (0.5, 2.0)
        np.testing.assert_array_equal(told, [places[rows]])
