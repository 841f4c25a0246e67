"""The kernel is the reference: at every SIMD level, for any shape and alignment, over threads and batch splits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drawing import (
    Case,
    at_offset,
    cases,
    counts,
    draw_codes,
    draw_mask,
    draw_questions,
    draw_vectors,
    levels,
    seeds,
    widths,
)
from guard import ends_at_guard, starts_at_guard
from hypothesis import given
from hypothesis import strategies as st

from bpr import kernels
from bpr.codes import Questions, RowMask, candidates_reference, scores_reference
from bpr.kernels import Limits

SIMD = kernels.simd_levels()
ONE_THREAD = Limits(threads=1)
planes = st.sampled_from([1, 2])
exponents = st.sampled_from([0, 0, 0, -20, 20])


def assert_same(found: tuple, expected: tuple) -> None:
    """Equal in every bit, shape and dtype."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)
        assert one.tobytes() == other.tobytes()  # where +0 is not -0


def at_every_level(call: Callable[[], tuple]) -> tuple:
    """What the portable level gives, after seeing that all others give the same."""
    with kernels.using_simd("portable"):
        expected = call()
    for level in SIMD:
        with kernels.using_simd(level):
            assert_same(call(), expected)
    return expected


# ── scan ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(cases(), st.integers(1, 8))
def test_scan_is_the_reference(case: Case, threads: int) -> None:
    found = at_every_level(
        lambda: kernels.scan(case.codes, case.questions, case.l, mask=case.mask, limits=Limits(threads))
    )
    assert_same(found, candidates_reference(case.codes, case.questions, case.l, case.mask))


@given(cases(), st.data())
def test_scan_of_any_batch_split(case: Case, data: st.DataObject) -> None:
    whole = kernels.scan(case.codes, case.questions, case.l, mask=case.mask)
    cuts = data.draw(st.lists(st.integers(0, len(case.questions)), max_size=4), "cuts")
    parts = [kernels.scan(case.codes, part, case.l, mask=case.mask) for part in np.split(case.questions, sorted(cuts))]
    assert_same(whole, tuple(np.concatenate(each) for each in zip(*parts, strict=True)))


@pytest.mark.parametrize("kind", ["random", "clustered", "few", "sparse"])
@pytest.mark.parametrize(("rows", "width", "count"), [(100_000, 96, 1), (60_000, 48, 5), (30_000, 31, 12)])
@pytest.mark.parametrize("masked", [None, "half"])
def test_threads_do_not_matter(kind: str, rows: int, width: int, count: int, masked: str | None) -> None:
    random = np.random.default_rng(7)
    codes = draw_codes(random, rows, width, kind)
    questions, mask = draw_questions(random, codes, count, "near"), draw_mask(random, rows, masked)
    expected = kernels.scan(codes, questions, 1000, mask=mask, limits=ONE_THREAD)
    for threads in range(2, 9):
        assert_same(kernels.scan(codes, questions, 1000, mask=mask, limits=Limits(threads)), expected)


def test_a_hundred_thousand_rows_are_the_reference() -> None:
    random = np.random.default_rng(11)
    codes = draw_codes(random, 100_000, 96, "clustered")
    questions = draw_questions(random, codes, 7, "near")
    found = at_every_level(lambda: kernels.scan(codes, questions, 1000, limits=Limits(4)))
    assert_same(found, candidates_reference(codes, questions, 1000))


def test_batches_of_eight_when_nearly_all_rows_are_wanted() -> None:
    """A large l makes native/scan.cpp cut the questions into batches of 8: here 8, 8 and 1 of them, at 140,000 rows."""
    random = np.random.default_rng(12)
    codes = draw_codes(random, 140_000, 2, "random")
    questions = draw_questions(random, codes, 17, "near")
    found = at_every_level(lambda: kernels.scan(codes, questions, 140_000, limits=Limits(2)))
    assert_same(found, candidates_reference(codes, questions, 140_000))


@pytest.mark.parametrize("width", [1, 16, 33, 48, 96, 511, 512])
@pytest.mark.parametrize("count", [1, 6])
def test_the_largest_distance_there_is(width: int, count: int) -> None:
    """All bits differ: the bit-sliced counters are full."""
    codes, questions = np.zeros((700, width), np.uint8), np.full((count, width), 255, np.uint8)
    rows, far = at_every_level(lambda: kernels.scan(codes, questions, 5))
    assert (far == width * 8).all()
    assert (rows == np.arange(5)).all()


# ── rerank and scan_scores ───────────────────────────────────────────────────────────────────────────────────────────


@given(cases(work=150_000), planes, levels, exponents, st.integers(1, 8))
def test_rerank_is_the_reference(case: Case, count: int, sizes: tuple, exponent: int, threads: int) -> None:
    asked, large, size = two_planes(case, count, sizes, exponent)
    n, q = len(case.codes), len(asked)
    some = case.random().random((q, n)).argsort(axis=1)[:, : max(1, n // 2)].astype(np.int64)  # no row twice
    everything = at_every_level(
        lambda: kernels.rerank(case.codes, large, size, asked, some, n + 1, limits=Limits(threads))
    )
    assert_scores(everything, some, scores_reference(asked.vectors, case.codes, large, size or (1, 1)), asked, size)
    best = kernels.rerank(case.codes, large, size, asked, some, case.l, limits=ONE_THREAD)
    assert_same(best, tuple(each[:, : case.l] for each in everything))


@given(cases(work=150_000), planes, levels, exponents, st.integers(1, 8))
def test_scan_scores_is_a_rerank_of_all_rows(case: Case, count: int, sizes: tuple, exponent: int, threads: int) -> None:
    asked, large, size = two_planes(case, count, sizes, exponent)
    found = at_every_level(
        lambda: kernels.scan_scores(case.codes, large, size, asked, case.l, mask=case.mask, limits=Limits(threads))
    )
    live = np.arange(len(case.codes)) if case.mask is None else np.flatnonzero(case.mask)
    rows = np.tile(live, (len(asked), 1))
    assert_same(found, kernels.rerank(case.codes, large, size, asked, rows, case.l, limits=ONE_THREAD))


@given(cases(work=150_000), planes, levels, st.data())
def test_scores_of_any_batch_split(case: Case, count: int, sizes: tuple, data: st.DataObject) -> None:
    asked, large, size = two_planes(case, count, sizes, 0)
    whole = kernels.scan_scores(case.codes, large, size, asked, case.l, mask=case.mask)
    cut = data.draw(st.integers(0, len(asked)), "cut")
    parts = [
        kernels.scan_scores(case.codes, large, size, Questions(vectors, codes), case.l, mask=case.mask)
        for vectors, codes in zip(np.split(asked.vectors, [cut]), np.split(asked.codes, [cut]), strict=True)
    ]
    assert_same(whole, tuple(np.concatenate(each) for each in zip(*parts, strict=True)))


@given(
    st.integers(1, 32).map(lambda sixteens: 16 * sixteens) | widths,
    st.integers(0, 40),
    st.sampled_from(["random", "few", "same", "sparse"]),
    planes,
    levels,
    st.booleans(),
    st.data(),
)
def test_every_level_gives_the_same_scores_of_few_rows(
    width: int, n: int, kind: str, count: int, sizes: tuple, whole: bool, data: st.DataObject
) -> None:
    """Rows in any order and more than once, and not in whole groups of eight.

    Whole questions: half of all sums in a table are zero, and the sign of a zero must not show.
    """
    random = np.random.default_rng(data.draw(seeds, "seed"))
    codes, large = (at_offset(draw_codes(random, n, width, kind), data.draw(st.integers(0, 65))) for _ in range(2))
    vectors = random.integers(-1, 2, (3, width * 8)).astype(np.float32) if whole else draw_vectors(random, 3, width * 8)
    asked, second = Questions(vectors), (large, sizes) if count == 2 else (None, None)
    rows = random.integers(0, max(n, 1), (3, data.draw(st.integers(0, 40), "rows") if n else 0))
    every = np.tile(np.arange(n), (3, 1))
    best, scores = at_every_level(lambda: kernels.rerank(codes, *second, asked, rows, 41))
    alone = at_every_level(lambda: kernels.rerank(codes, *second, asked, every, n + 1))
    assert_same(at_every_level(lambda: kernels.scan_scores(codes, *second, asked, n + 1)), alone)
    by_row = np.take_along_axis(alone[1], alone[0].argsort(axis=1), axis=1)
    assert_same((scores,), (np.take_along_axis(by_row, best, axis=1),))  # a score does not depend on its neighbours
    np.testing.assert_array_equal(np.sort(best, axis=1), np.sort(rows, axis=1))


@pytest.mark.parametrize("count", [1, 2])
def test_scores_do_not_depend_on_threads(count: int) -> None:
    random = np.random.default_rng(13)
    codes, large = draw_codes(random, 20_000, 48, "few"), draw_codes(random, 20_000, 48, "few")
    asked = Questions(draw_vectors(random, 3, 384))
    second = (large, (0.4528, 1.5104)) if count == 2 else (None, None)
    everyone = np.tile(np.arange(20_000), (3, 1))
    expected = kernels.rerank(codes, *second, asked, everyone, 500, limits=ONE_THREAD)
    for threads in range(1, 9):
        assert_same(kernels.scan_scores(codes, *second, asked, 500, limits=Limits(threads)), expected)
        assert_same(kernels.rerank(codes, *second, asked, everyone, 500, limits=Limits(threads)), expected)


def two_planes(case: Case, count: int, sizes: tuple, exponent: int) -> tuple:
    """Float questions, and the second plane with its levels, or None twice."""
    random = case.random()
    asked = Questions(draw_vectors(random, len(case.questions), case.codes.shape[1] * 8, exponent))
    if count == 1:
        return asked, None, None
    return asked, at_offset(draw_codes(random, *case.codes.shape, "random"), 3), sizes


def assert_scores(found: tuple, rows: np.ndarray, expected: np.ndarray, asked: Questions, size: tuple | None) -> None:
    """Every row once, in the order (score descending, row), each score within 1e-5 · Σ|e_q| · level."""
    best, scores = found
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(np.sort(best, axis=1), np.sort(rows, axis=1))
    np.testing.assert_array_equal(
        np.lexsort((best, -scores), axis=1), np.tile(np.arange(rows.shape[1]), (len(rows), 1))
    )
    allowed = 1e-5 * np.abs(asked.vectors.astype(np.float64)).sum(axis=1) * (1 if size is None else size[1])
    error = np.abs(scores - np.take_along_axis(expected, best, axis=1))
    assert (error <= allowed[:, None]).all(), f"{(error / allowed[:, None]).max()} of what is allowed"


# ── nothing outside the arrays is read ───────────────────────────────────────────────────────────────────────────────


@given(
    st.sampled_from([ends_at_guard, starts_at_guard]),
    st.integers(1, 70) | st.integers(1, 1100),
    widths,
    counts.filter(lambda count: count <= 20),
    st.integers(1, 20),
    seeds,
)
def test_no_byte_outside_is_touched(placed: Callable, n: int, width: int, count: int, l: int, seed: int) -> None:
    """A byte read outside an array is a SIGSEGV here (see the next test)."""
    random = np.random.default_rng(seed)
    codes, large, questions = (placed(random.integers(0, 256, (many, width), dtype=np.uint8)) for many in (n, n, count))
    vectors = placed(draw_vectors(random, count, width * 8))
    rows = placed(random.integers(0, n, (count, l)))
    bits, few = (placed(np.packbits(random.random(n) < share, bitorder="little")) for share in (0.7, 0.05))
    marked = placed(np.zeros(-(-n // 8), np.uint8))
    kernels.mark_rows(RowMask(marked, n), placed(rows.ravel().astype(np.uint32)), toggle=True)
    asked = Questions(vectors, questions)
    assert asked.vectors is vectors  # no copy: it is the guarded array that the kernel gets
    for level in SIMD:
        with kernels.using_simd(level):
            kernels.scan(codes, questions, l)
            for mask in (bits, few):
                kernels.native().scan(codes, questions, l, 1, mask, -1.0, None)
                kernels.native().scan_scores(codes, large, (0.5, 1.5), vectors, l, 1, mask, -1.0, None)
            for second in ((None, None), (large, (0.5, 1.5))):
                kernels.rerank(codes, *second, asked, rows, l)
                kernels.scan_scores(codes, *second, asked, l)
            kernels.read_all(codes)


@pytest.mark.parametrize(("placed", "byte"), [("ends_at_guard", "array.nbytes"), ("starts_at_guard", "-1")])
def test_the_guard_bites(placed: str, byte: str) -> None:
    script = f"""
import ctypes, numpy, guard
array = guard.{placed}(numpy.ones(100, numpy.uint8))
assert array.sum() == 100
ctypes.string_at(array.ctypes.data + {byte}, 1)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True)
    assert done.returncode == -signal.SIGSEGV or b"AddressSanitizer: SEGV" in done.stderr, done.stderr
