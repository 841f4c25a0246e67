"""Floats become bits in one place, by the formulas of the paper and its notes."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bpr
from bpr import codes
from bpr.codes import (
    BLOCK_ROWS,
    Questions,
    RowMask,
    best_reference,
    candidates_reference,
    checked_levels,
    hamming_reference,
    pack,
    pack_largest,
    pack_magnitudes,
    scores_reference,
    unpack,
)
from bpr.errors import InvalidInput

SMALLEST = {dtype: np.nextafter(dtype(0), dtype(1)) for dtype in (np.float16, np.float32, np.float64)}


# ── pack ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", SMALLEST)
def test_a_bit_is_one_where_the_value_is_positive_and_only_there(dtype: type) -> None:
    values = [0.0, -0.0, SMALLEST[dtype], -SMALLEST[dtype], 1, -1, np.finfo(dtype).max, np.finfo(dtype).min]
    assert pack(np.array([values], dtype)).tolist() == [[0b00101010]]


def test_the_first_dimension_is_the_most_significant_bit() -> None:
    vectors = -np.ones((2, 16))
    vectors[0, 0] = vectors[1, 15] = 1
    assert pack(vectors).tolist() == [[0b10000000, 0], [0, 1]]
    assert pack(vectors.tolist()).tolist() == pack(vectors).tolist()
    assert pack(vectors.astype(">f4")).tolist() == pack(vectors).tolist()


@pytest.mark.parametrize("bits", [8, 16, 24, 384, 768, 4096])
def test_widths_that_a_code_can_have(bits: int) -> None:
    assert pack(np.ones((3, bits), np.float16)).shape == (3, bits // 8)


@pytest.mark.parametrize("bits", [0, 1, 7, 9, 100, 4104, 5000])
@pytest.mark.parametrize("make", [pack, pack_magnitudes, Questions])
def test_widths_that_it_cannot_have(bits: int, make) -> None:
    with pytest.raises(InvalidInput, match=f"multiple of 8 bits from 8 to 4096.* {bits} dim"):
        make(np.ones((3, bits)))


@pytest.mark.parametrize("row", [0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [pack, pack_magnitudes])
def test_what_is_no_number_is_refused_with_its_row(row: int, value: float, make) -> None:
    vectors = np.ones((2 * BLOCK_ROWS + 2, 8), np.float16)
    vectors[row:, 3] = value
    with pytest.raises(InvalidInput, match=f"vector {row} contains NaN or infinity"):
        make(vectors)


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        (np.ones(8), r"two axes.*\(8,\).*vector\[None\]"),
        (np.ones((1, 2, 8)), "two axes"),
        (3.0, "two axes"),
        (np.ones((2, 8), int), "floats, not int64"),
        (np.ones((2, 8), bool), "floats, not bool"),
        (np.ones((2, 8), complex), "floats, not complex128"),
        (np.full((2, 8), "x"), "floats, not <U1"),
        (np.ones((2, 8), object), "floats, not object"),
        ([[1.0, 2.0], [3.0]], "not an array of numbers"),
    ],
)
def test_what_is_no_array_of_vectors(vectors, says: str) -> None:
    for make in (pack, pack_magnitudes, Questions):
        with pytest.raises(InvalidInput, match=says):
            make(vectors)


def test_no_vectors_are_no_codes() -> None:
    assert pack(np.ones((0, 64))).shape == (0, 8)
    assert pack_magnitudes(np.ones((0, 64))).shape == (0, 8)
    assert unpack(pack(np.ones((0, 64)))).shape == (0, 64)


def test_a_mapped_file_does_not_come_into_memory_whole(tmp_path: Path) -> None:
    rows, bits = 200_000, 128  # 102 MB, a sparse file
    vectors = np.lib.format.open_memmap(tmp_path / "v.npy", "w+", np.float32, (rows, bits))
    vectors[-1] = 1
    tracemalloc.start()
    for make in (pack, pack_magnitudes):
        assert make(vectors)[-2:].tolist() == [[0] * 16, [255] * 16]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 25_000_000


def test_magnitudes_by_one_threshold_or_one_a_dimension() -> None:
    vectors = np.array([[0.5, -0.5, 1, -1, 0, 2, -2, 0.98]], np.float32)
    assert pack_magnitudes(vectors).tolist() == [[0b00110110]]
    assert pack_magnitudes(vectors, 1).tolist() == [[0b00000110]]  # greater, not equal
    assert pack_magnitudes(vectors, [0, 1, 0, 1, 0, 3, 0, 0]).tolist() == [[0b10100011]]
    assert codes.THRESHOLD == 0.9816
    assert codes.LEVELS == (0.4528, 1.5104)


@pytest.mark.parametrize("thresholds", [-1, np.nan, np.inf, [1, 2], np.ones((1, 8)), [-1] + [1] * 7])
def test_thresholds_that_make_no_sense(thresholds) -> None:
    with pytest.raises(InvalidInput, match="one number >= 0, or 8 of them"):
        pack_magnitudes(np.ones((2, 8)), thresholds)


def test_the_largest_of_each_row_and_of_equal_ones_the_first() -> None:
    vectors = np.array([[1, -5, 2, 0, 4, -3, 0, 0], [100, 100, 100, 100, -100, 0, 0, 0], [0] * 8], np.float32)
    assert pack_largest(vectors, 3).tolist() == [[0b01001100], [0b11100000], [0b11100000]]
    assert pack_largest(vectors, 0).tolist() == [[0]] * 3
    assert pack_largest(vectors, 8).tolist() == [[255]] * 3
    assert pytest.approx(math.erfc(codes.THRESHOLD / math.sqrt(2)), abs=1e-4) == codes.LARGE


@pytest.mark.parametrize("count", [-1, 9])
def test_no_more_are_large_than_there_are(count: int) -> None:
    with pytest.raises(InvalidInput, match="between 0 and 8"):
        pack_largest(np.ones((2, 8)), count)


# ── unpack ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unpack_says_what_a_code_says() -> None:
    signs, large = np.array([[0b10100000]], np.uint8), np.array([[0b11000000]], np.uint8)
    assert unpack(signs).tolist() == [[1, -1, 1, -1, -1, -1, -1, -1]]
    assert unpack(signs, large, (0.5, 2)).tolist() == [[2, -2, 0.5, *[-0.5] * 5]]
    assert np.allclose(unpack(signs, large)[0, :2], [1.5104, -1.5104])
    assert unpack(signs).dtype == unpack(signs, large).dtype == np.float32


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(8, np.uint8), np.zeros((2, 8)), np.zeros((2, 0), np.uint8), np.zeros((2, 513), np.uint8), [[1], [2, 3]]],
)
def test_what_is_no_array_of_codes(wrong) -> None:
    for use in (unpack, bpr.ScanIndex, lambda each: Questions(np.ones((2, 64)), each)):
        with pytest.raises(InvalidInput, match=r"codes must be uint8|not an array"):
            use(wrong)


def test_planes_of_different_shapes() -> None:
    with pytest.raises(InvalidInput, match="differ in shape"):
        unpack(np.zeros((2, 8), np.uint8), np.zeros((3, 8), np.uint8))


@pytest.mark.parametrize("levels", [(2, 1), (-1, 1), (0, np.inf), (np.nan, 1)])
def test_levels_that_make_no_sense(levels: tuple) -> None:
    with pytest.raises(InvalidInput, match="0 <= low <= high"):
        checked_levels(levels)
    with pytest.raises(InvalidInput, match="0 <= low <= high"):
        unpack(np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.uint8), levels)


# ── Questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_questions_make_their_codes_and_keep_those_given() -> None:
    vectors = np.random.default_rng(0).standard_normal((3, 16))
    asked = Questions(vectors)
    assert len(asked) == 3
    assert asked.vectors.dtype == np.float32
    np.testing.assert_array_equal(asked.codes, pack(vectors))
    given = np.zeros((3, 2), np.uint8)
    assert Questions(vectors, given).codes is given
    same = asked.vectors
    assert Questions(same).vectors is same  # float32 and contiguous: no copy
    assert Questions(same[:, ::-1]).vectors.flags.c_contiguous


def test_questions_of_denormal_float64_keep_their_bits() -> None:
    asked = Questions(np.full((1, 8), 1e-300))
    assert asked.codes.tolist() == [[255]]
    assert asked.vectors.tolist() == [[0] * 8]


@pytest.mark.parametrize("given", [np.zeros((2, 2), np.uint8), np.zeros((3, 3), np.uint8)])
def test_question_codes_that_do_not_fit(given: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="do not fit"):
        Questions(np.ones((3, 16)), given)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_questions_beyond_numbers(value: float) -> None:
    vectors = np.ones((4, 8))
    vectors[2, 1] = value
    for make in (Questions, lambda each: Questions(each, np.zeros((4, 1), np.uint8))):
        with pytest.raises(InvalidInput, match="vector 2 contains"):
            make(vectors)


# ── the reference itself, by hand ────────────────────────────────────────────────────────────────────────────────────


def test_the_reference_by_hand() -> None:
    signs = np.array([[0b11110000], [0b11111111], [0b11110000], [0]], np.uint8)
    question = np.array([[0b11110001]], np.uint8)
    assert hamming_reference(signs, question).tolist() == [[1, 3, 1, 5]]
    assert hamming_reference(signs[:0], question).shape == (1, 0)
    rows, far = candidates_reference(signs, question, 3)
    assert (rows.tolist(), far.tolist()) == ([[0, 2, 1]], [[1, 1, 3]])
    rows, far = candidates_reference(signs, question, 9, np.array([False, True, True, True]))
    assert (rows.tolist(), far.tolist()) == ([[2, 1, 3]], [[1, 3, 5]])

    vector = np.arange(1.0, 9.0)[None]
    assert scores_reference(vector, signs).tolist() == [[10 - 26, 36, 10 - 26, -36]]
    assert scores_reference(vector, signs[1:2], signs[:1], (0.5, 2)).tolist() == [[2 * 10 + 0.5 * 26]]
    best, scores = best_reference(np.array([[1.0, 3, 3, 2]]), np.array([[7, 9, 8, 1]]), 3)
    assert (best.tolist(), scores.tolist()) == ([[8, 9, 1]], [[3, 3, 2]])


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_masks_of_rows() -> None:
    mask = RowMask.of(np.array([True, False, True] * 3))
    assert repr(mask) == "RowMask(6 of 9 rows)"
    assert np.asarray(mask).dtype == bool and np.asarray(mask).tolist() == [True, False, True] * 3
    assert mask != RowMask.none(9) and mask != "mask" and RowMask.none(9) != RowMask.none(10)
    assert repr(~RowMask.none(9)) == "RowMask(9 of 9 rows)"
    with pytest.raises(TypeError):
        hash(mask)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RowMask(np.zeros(2, np.uint8), 17), r"the bits of 17 rows are uint8\[3\], not uint8\[2\]"),
        (lambda: RowMask(np.zeros(2, np.int8), 16), "not int8"),
        (lambda: RowMask(np.full(2, 255, np.uint8), 15), "bits beyond its last row, 14"),
        (lambda: RowMask.none(9) & RowMask.none(10), "a mask of 9 rows and one of 10"),
        (lambda: RowMask.none(9) | RowMask.none(16), "a mask of 9 rows and one of 16"),
    ],
)
def test_masks_that_cannot_be(call, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call()


@given(rows=st.integers(0, 70), seed=st.integers(0, 1000))
def test_masks_are_sets_of_rows(rows: int, seed: int) -> None:
    one, other = np.random.default_rng(seed).random((2, rows)) < 0.5
    mask, second = RowMask.of(one), RowMask.of(other)
    for made, wanted in (
        (mask & second, one & other),
        (mask | second, one | other),
        (~mask, ~one),
    ):
        assert made == RowMask.of(wanted)
        assert (made.rows, made.count()) == (rows, wanted.sum())
    assert (mask == second) == bool((one == other).all())
