"""The kernel from outside: equal to its peers, clear about wrong input, polite about deadlines, signals and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from bpr import kernels
from bpr.codes import Questions, RowMask, candidates_reference, pack
from bpr.errors import Cancelled, CorruptBundle, DeadlineExceeded, InvalidInput
from bpr.kernels import Cancel, Limits

CODES = np.random.default_rng(1).integers(0, 256, (500, 12), dtype=np.uint8)
VECTORS = np.random.default_rng(2).standard_normal((4, 96), np.float32)
ROWS = np.random.default_rng(3).integers(0, 500, (4, 30))
ASKED = Questions(VECTORS)
# Minutes of work that take no memory: untouched zero pages. Every test that uses them ends the call early.
ENDLESS = np.zeros((4_000_000, 512), np.uint8)
MANY = np.ones((200, 512), np.uint8)

CALLS = {
    "scan": lambda codes, limits: kernels.scan(codes, np.ones((200, codes.shape[1]), np.uint8), 10, limits=limits),
    "scan one": lambda codes, limits: [
        kernels.scan(codes, np.ones((1, codes.shape[1]), np.uint8), 10, limits=limits) for _ in range(1000)
    ],
    "scan_scores": lambda codes, limits: kernels.scan_scores(
        codes, None, None, long_questions(codes), 10, limits=limits
    ),
    "scan of few": lambda codes, limits: [
        kernels.scan(codes, np.ones((200, codes.shape[1]), np.uint8), 10, mask=few_rows(codes), limits=limits)
        for _ in range(1000)
    ],
    "scan_scores of few": lambda codes, limits: [
        kernels.scan_scores(codes, None, None, long_questions(codes), 10, mask=few_rows(codes), limits=limits)
        for _ in range(1000)
    ],
    "rerank": lambda codes, limits: kernels.rerank(
        codes, None, None, long_questions(codes), np.zeros((200, 100_000), np.int64), 10, limits=limits
    ),
}


def few_rows(codes: np.ndarray) -> RowMask:
    """Every 64th row."""
    bits = np.zeros(-(-len(codes) // 8), np.uint8)
    bits[::8] = 1
    return RowMask(bits, len(codes))


def long_questions(codes: np.ndarray) -> Questions:
    return Questions(np.ones((200, codes.shape[1] * 8), np.float32))


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own."""
    known = {**os.environ, "PYTHONWARNINGS": "default", **environment}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=known)


# ── the peers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def clustered(random: np.random.Generator, rows: int, bits: int) -> np.ndarray:
    centres = random.standard_normal((20, bits), np.float32)
    return pack(centres[random.integers(0, 20, rows)] + 0.7 * random.standard_normal((rows, bits), np.float32))


@pytest.mark.parametrize("bits", [768, 384, 64])
@pytest.mark.parametrize("kind", ["random", "clustered"])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_distances_are_those_of_faiss(bits: int, kind: str, count: int) -> None:
    random = np.random.default_rng(bits + count)
    codes = random.integers(0, 256, (20_000, bits // 8), np.uint8)
    if kind == "clustered":
        codes = clustered(random, 20_000, bits)
    questions = np.concatenate(
        [codes[: count // 2], random.integers(0, 256, (count - count // 2, bits // 8), np.uint8)]
    )
    flat = faiss.IndexBinaryFlat(bits)
    flat.add(codes)
    theirs, their_rows = flat.search(questions, 200)
    rows, far = kernels.scan(codes, questions, 200)
    np.testing.assert_array_equal(far, theirs)
    for mine, other, distance in zip(rows, their_rows, far, strict=True):
        sure = distance < distance[-1]  # of the rows at the last distance each may choose its own
        assert set(mine[sure]) == set(other[sure])


@pytest.mark.parametrize("bits", [768, 384, 64])
def test_the_rerank_orders_as_the_authors_code_does(bits: int) -> None:
    """Their path: Faiss candidates, np.unpackbits to ±1 float32, einsum, argsort."""
    random = np.random.default_rng(bits)
    codes = clustered(random, 20_000, bits)
    vectors = random.standard_normal((30, bits), np.float32)
    flat = faiss.IndexBinaryFlat(bits)
    flat.add(codes)
    _, rows = flat.search(np.packbits(vectors > 0, axis=1), 500)
    unpacked = np.unpackbits(codes[rows], axis=2).astype(np.float32) * 2 - 1
    scores = np.einsum("ijk,ik->ij", unpacked, vectors)
    order = np.argsort(-scores, axis=1)
    theirs = np.take_along_axis(scores, order, axis=1)

    best, mine = kernels.rerank(codes, None, None, Questions(vectors), rows.astype(np.int64), 500)
    np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(vectors).sum(axis=1).max())
    by_row = [dict(zip(row.tolist(), score.tolist(), strict=True)) for row, score in zip(rows, scores, strict=True)]
    for question, (mine_rows, their_rows) in enumerate(zip(best, np.take_along_axis(rows, order, axis=1), strict=True)):
        for one, other in zip(mine_rows.tolist(), their_rows.tolist(), strict=True):
            assert one == other or abs(by_row[question][one] - by_row[question][other]) < 1e-3


@pytest.mark.parametrize("size", [1e-44, 1e-38, 3e-31, 1e-20, 1, 1e33])
@pytest.mark.parametrize("kind", ["even", "one far above", "one far below", "two values", "all alike"])
def test_the_best_of_scores_however_they_are_spread(size: float, kind: str) -> None:
    """The kernel counts scores in equal steps to find the best k: where that says little, it must still be exact."""
    random = np.random.default_rng(6)
    codes = random.integers(0, 256, (3000, 12), dtype=np.uint8)
    vector = np.full(96, 1e-3, np.float32) if kind != "even" else random.standard_normal(96).astype(np.float32)
    if kind != "even":
        vector[0] = 1000 if kind != "one far below" else -1000
        codes[:, 0] &= 127
        codes[random.integers(0, 3000, {"two values": 300, "all alike": 0}.get(kind, 1)), 0] |= 128
    if kind in ("two values", "all alike"):
        codes[:, 1:] = 0
        codes[:, 0] &= 128
    asked, rows = Questions((vector * size)[None]), random.permutation(3000)[None]
    all_rows, all_scores = kernels.rerank(codes, None, None, asked, rows, 3000)
    assert (np.lexsort((all_rows[0], -all_scores[0])) == np.arange(3000)).all()
    for k in (1, 2, 100, 299, 300, 301, 2999):
        best, scores = kernels.rerank(codes, None, None, asked, rows, k)
        np.testing.assert_array_equal(best, all_rows[:, :k])
        np.testing.assert_array_equal(scores, all_scores[:, :k])


# ── wrong input ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.scan(CODES.astype(np.int8), CODES, 1), "C-contiguous arrays"),
        (lambda: kernels.scan(CODES[0], CODES, 1), "C-contiguous arrays"),
        (lambda: kernels.scan(CODES[:, ::2], CODES[:, ::2], 1), "C-contiguous arrays"),
        (lambda: kernels.scan(np.asfortranarray(CODES), CODES, 1), "C-contiguous arrays"),
        (lambda: kernels.scan(CODES, VECTORS, 1), "C-contiguous arrays"),
        (lambda: kernels.scan(CODES, None, 1), "C-contiguous arrays"),
        (lambda: kernels.scan(CODES, CODES[:, :11].copy(), 1), "differ in width"),
        (lambda: kernels.scan(np.zeros((3, 0), np.uint8), np.zeros((3, 0), np.uint8), 1), "1 to 512 bytes"),
        (lambda: kernels.scan(np.zeros((3, 513), np.uint8), np.zeros((3, 513), np.uint8), 1), "1 to 512 bytes"),
        (lambda: kernels.scan(CODES, CODES, 0), "l must be at least 1, not 0"),
        (lambda: kernels.scan(CODES, CODES, -5), "l must be at least 1, not -5"),
        (lambda: kernels.scan(CODES, CODES, 1, mask=np.ones(499, bool)), r"bool\[500\]"),
        (lambda: kernels.scan(CODES, CODES, 1, mask=np.ones(500, np.uint8)), r"bool\[500\]"),
        (lambda: kernels.scan(CODES, CODES, 1, mask=np.ones((500, 1), bool)), r"bool\[500\]"),
        (lambda: kernels.scan(CODES, CODES, 1, mask=RowMask.none(499)), "mask is of 499 rows, and there are 500"),
        (lambda: kernels.mark_rows(RowMask.none(20), np.array([3, 20], np.uint32)), "outside the index"),
        (lambda: kernels.mark_rows(RowMask.none(20), np.array([3, 2**64 - 1], np.uint64)), "outside the index"),
        (lambda: kernels.scan_scores(CODES, None, None, ASKED, 0), "k must be at least 1, not 0"),
        (lambda: kernels.scan_scores(CODES, None, None, ASKED, 1, mask=np.ones(3, bool)), r"bool\[500\]"),
        (lambda: kernels.scan_scores(CODES, CODES[1:], (1, 2), ASKED, 1), "shape of the codes"),
        (lambda: kernels.scan_scores(CODES, CODES, (1, np.inf), ASKED, 1), "levels must be finite"),
        (lambda: kernels.scan_scores(CODES, None, None, Questions(VECTORS[:, :88]), 1), "differ in width"),
        (lambda: kernels.rerank(CODES, None, None, ASKED, ROWS, 0), "k must be at least 1, not 0"),
        (lambda: kernels.rerank(CODES, None, None, ASKED, ROWS[:3], 1), "one list of rows"),
        (lambda: kernels.rerank(CODES, None, None, ASKED, ROWS + 490, 1), "outside the index"),
        (lambda: kernels.rerank(CODES, None, None, ASKED, ROWS - 490, 1), "outside the index"),
        (lambda: kernels.rerank(CODES, None, None, ASKED, ROWS[0], 1), "C-contiguous arrays"),
    ],
)
def test_wrong_input_is_refused_in_words(call, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_questions_that_are_no_numbers_are_refused(value: float) -> None:
    vectors = VECTORS.copy()
    vectors[2, 5] = value
    with pytest.raises(InvalidInput):
        kernels.rerank(CODES, None, None, Questions(vectors), ROWS, 3)
    huge = object.__new__(Questions)  # even one that has passed no check of codes.py
    object.__setattr__(huge, "vectors", vectors)
    for call in (
        lambda: kernels.rerank(CODES, None, None, huge, ROWS, 3),
        lambda: kernels.scan_scores(CODES, CODES, (1.0, 2.0), huge, 3),
    ):
        with pytest.raises(InvalidInput, match="finite"):
            call()


def test_the_kernel_itself_refuses_mask_bits_beyond_the_last_row() -> None:
    bits = np.packbits(np.ones(504, bool), bitorder="little")
    with pytest.raises(ValueError, match="beyond the last row"):
        kernels.native().scan(CODES, CODES, 1, 1, bits, -1.0, None)
    with pytest.raises(ValueError, match="one bit a row"):
        kernels.native().scan(CODES, CODES, 1, 1, bits[:-1], -1.0, None)


@pytest.mark.parametrize("threads", [0, -1, 1025, 2.5, True, "two"])
def test_impossible_numbers_of_threads(threads) -> None:
    with pytest.raises(InvalidInput, match="from 1 to 1024"):
        kernels.scan(CODES, CODES[:1], 1, limits=Limits(threads=threads))


@pytest.mark.parametrize("threads", ["abc", "0", "-3", "1025", "1.5"])
def test_impossible_numbers_of_threads_from_the_environment(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("BPR_THREADS", threads)
    with pytest.raises(InvalidInput, match=f"BPR_THREADS.*{threads}"):
        kernels.scan(CODES, CODES[:1], 1)
    kernels.scan(CODES, CODES[:1], 1, limits=Limits(threads=1))  # what is asked for goes before


def test_the_number_of_threads_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limits().thread_count() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("BPR_THREADS", "3")
    assert Limits().thread_count() == 3
    assert Limits(threads=5).thread_count() == 5
    assert Limits(threads=np.int64(7)).thread_count() == 7
    monkeypatch.setenv("BPR_THREADS", "")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert Limits().thread_count() == os.cpu_count()


def test_questions_of_none_and_rows_of_none() -> None:
    nobody = Questions(np.zeros((0, 96), np.float32))
    rows, far = kernels.scan(CODES, nobody.codes, 7)
    assert rows.shape == far.shape == (0, 7)
    rows, scores = kernels.rerank(CODES, None, None, ASKED, np.zeros((4, 0), np.int64), 7)
    assert rows.shape == scores.shape == (4, 0)
    rows, far = kernels.scan(CODES[:0], ASKED.codes, 7)
    assert rows.shape == far.shape == (4, 0)


def test_arrays_that_cannot_be_written_or_are_mapped_are_as_good(tmp_path) -> None:
    np.save(tmp_path / "codes.npy", CODES)
    mapped = np.load(tmp_path / "codes.npy", mmap_mode="r")
    np.testing.assert_array_equal(kernels.scan(mapped, ASKED.codes, 9), kernels.scan(CODES, ASKED.codes, 9))
    rows = ROWS.copy()
    rows.flags.writeable = False
    found, expected = (
        kernels.rerank(codes, None, None, ASKED, each, 5) for codes, each in ((mapped, rows), (CODES, ROWS))
    )
    np.testing.assert_array_equal(found, expected)


def test_rows_of_another_whole_type_are_converted() -> None:
    expected = kernels.rerank(CODES, None, None, ASKED, ROWS, 5)
    for rows in (ROWS.astype(np.int32), np.asfortranarray(ROWS)):
        np.testing.assert_array_equal(kernels.rerank(CODES, None, None, ASKED, rows, 5), expected)


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [1, 5, 6, 40])
@pytest.mark.parametrize("width", [48, 96, 31])
@pytest.mark.parametrize("kind", ["none", "one", "few", "half", "most", "all", "first", "last", "stretches"])
def test_a_mask_of_any_density(width: int, count: int, threads: int, kind: str) -> None:
    """Few live rows are gathered, many are scanned in order, and stretches of each follow one another in one call."""
    random = np.random.default_rng(width + count)
    n = 30_003
    codes, questions = (random.integers(0, 256, (rows, width), dtype=np.uint8) for rows in (n, count))
    share = {"none": 0, "one": 0, "few": 0.01, "half": 0.5, "most": 0.9, "all": 1}.get(kind, 0)
    mask = random.random(n) < share
    if kind == "one":
        mask[n - 1] = True
    elif kind in ("first", "last"):
        mask[slice(0, 700) if kind == "first" else slice(n - 700, n)] = True
    elif kind == "stretches":
        mask = random.random(n) < np.repeat([0.01, 1, 0, 0.05, 0.8, 0.001], 6000)[:n]
    expected = candidates_reference(codes, questions, 100, mask)
    for given in (mask, RowMask.of(mask)):
        rows, far = kernels.scan(codes, questions, 100, mask=given, limits=Limits(threads))
        np.testing.assert_array_equal(rows, expected[0])
        np.testing.assert_array_equal(far, expected[1])
    vectors = Questions(random.standard_normal((2, width * 8), np.float32))
    rows, scores = kernels.scan_scores(codes, None, None, vectors, 50, mask=RowMask.of(mask), limits=Limits(threads))
    live = np.tile(np.flatnonzero(mask), (2, 1))
    best, expected_scores = kernels.rerank(codes, None, None, vectors, live, 50)
    np.testing.assert_array_equal(rows, best)
    np.testing.assert_array_equal(scores, expected_scores)


def test_rows_put_into_a_mask() -> None:
    mask = RowMask.none(20)
    kernels.mark_rows(mask, np.array([3, 19, 3], np.uint32))
    assert np.flatnonzero(mask).tolist() == [3, 19]
    kernels.mark_rows(mask, np.array([3, 4], np.uint64), toggle=True)
    assert np.flatnonzero(mask).tolist() == [4, 19]
    with pytest.raises(InvalidInput, match="C-contiguous"):
        kernels.mark_rows(mask, np.array([3, 4], np.int32))
    mask.bits.flags.writeable = False
    with pytest.raises(InvalidInput, match="C-contiguous"):
        kernels.mark_rows(mask, np.array([3, 4], np.uint32))
    with pytest.raises(ValueError, match="one bit a row"):
        kernels.native().mark_rows(np.zeros(2, np.uint8), np.array([3], np.uint32), 20, False)


# ── SIMD levels ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_fastest_level_is_used_unless_told_otherwise() -> None:
    levels = kernels.simd_levels()
    assert levels[0] == "portable"
    expected = os.environ.get("BPR_SIMD") or levels[-1]
    assert kernels.simd_level() == expected
    with kernels.using_simd("portable"):
        assert kernels.simd_level() == "portable"
    assert kernels.simd_level() == expected
    with pytest.raises(InvalidInput, match=r"'mmx' is not supported.*portable"), kernels.using_simd("mmx"):
        pass


def test_the_environment_names_the_level() -> None:
    script = "from bpr import kernels; print(kernels.simd_level())"
    assert python(script, BPR_SIMD="portable").stdout == "portable\n"
    done = python(script, BPR_SIMD="unknown")
    assert done.returncode == 1
    assert "bpr.errors.InvalidInput: SIMD level 'unknown' is not supported on this machine; it has: " in done.stderr


def test_an_unknown_level_in_the_environment_is_refused_by_every_call() -> None:
    script = """
import numpy, bpr
codes = numpy.zeros((3, 1), numpy.uint8)
try:
    bpr.ScanIndex(codes).candidates(codes, 1)
except bpr.InvalidInput as error:
    print(error)
"""
    assert "'unknown' is not supported" in python(script, BPR_SIMD="unknown").stdout


def test_a_missing_kernel_is_explained() -> None:
    script = """
import sys
sys.modules["bpr._native"] = None
from bpr import kernels
for _ in range(2):
    try:
        kernels.simd_levels()
    except ImportError as error:
        print(error)
"""
    said = python(script).stdout.splitlines()
    assert len(said) == 2
    for line in said:
        assert "compiled kernel is missing" in line
        assert "pip install --force-reinstall binary-passage-retriever" in line


def test_reading_everything_once() -> None:
    codes = np.random.default_rng(4).integers(0, 256, (4096, 64), dtype=np.uint8)
    expected = int(codes.reshape(-1).view(np.uint64).sum())
    assert {kernels.read_all(codes, Limits(threads=threads)) for threads in (1, 2, 5)} == {expected}


# ── deadlines, cancelling, signals ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CALLS)
def test_a_deadline_that_has_passed(name: str) -> None:
    with pytest.raises(DeadlineExceeded):
        CALLS[name](CODES, Limits(deadline=time.monotonic() - 1))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_deadline_ends_a_long_call(name: str, threads: int) -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        CALLS[name](ENDLESS, Limits(threads, deadline=began + 0.005))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("deadline", [float("inf"), 1e300])
def test_a_deadline_far_away_does_not_matter(deadline: float) -> None:
    found = kernels.scan(CODES, ASKED.codes, 5, limits=Limits(deadline=deadline))
    np.testing.assert_array_equal(found, kernels.scan(CODES, ASKED.codes, 5))


@pytest.mark.parametrize("name", CALLS)
def test_cancelling_from_another_thread(name: str) -> None:
    cancel = Cancel()
    timer = threading.Timer(0.02, cancel.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        CALLS[name](ENDLESS, Limits(threads=2, cancel=cancel))
    assert time.monotonic() - began < 2
    timer.join()
    with pytest.raises(Cancelled):  # a handle that is set stays set
        CALLS[name](CODES, Limits(cancel=cancel))


def test_a_handle_that_is_not_set_does_not_matter() -> None:
    found = kernels.scan(CODES, ASKED.codes, 5, limits=Limits(cancel=Cancel()))
    np.testing.assert_array_equal(found, kernels.scan(CODES, ASKED.codes, 5))


@pytest.mark.parametrize("name", ["scan", "scan_scores"])
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_call(name: str, threads: int) -> None:
    calls = {
        "scan": "kernels.scan(codes, numpy.ones((200, 512), numpy.uint8), 10, limits=limits)",
        "scan_scores": "kernels.scan_scores(codes, None, None, asked, 10, limits=limits)",
    }
    script = f"""
import os, signal, threading, time, numpy
from bpr import kernels
from bpr.codes import Questions
codes, asked = numpy.zeros((4_000_000, 512), numpy.uint8), Questions(numpy.ones((100, 4096), numpy.float32))
limits = kernels.Limits({threads})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with Ctrl-C ignored
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    {calls[name]}
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 2)
print(kernels.scan(codes[:100], codes[:1], 2)[0])
"""
    done = python(script)
    assert done.stdout == "interrupted True\n[[0 1]]\n", done.stderr


# ── threads and processes ────────────────────────────────────────────────────────────────────────────────────────────


def test_other_python_threads_run_meanwhile() -> None:
    """The GIL is released: else the counter would stand still until the call is over."""
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    with pytest.raises(DeadlineExceeded):
        kernels.scan(ENDLESS, MANY, 10, limits=Limits(1, deadline=time.monotonic() + 0.3))
    done.set()
    counter.join()
    assert ticks > 20


def test_many_threads_at_once_get_what_each_would_get_alone() -> None:
    random = np.random.default_rng(5)
    codes = random.integers(0, 256, (40_000, 48), dtype=np.uint8)
    vectors = random.standard_normal((12, 7, 384), np.float32)

    def work(each: int) -> tuple:
        asked = Questions(vectors[each])
        rows, far = kernels.scan(codes, asked.codes, 300, limits=Limits(threads=1 + each % 4))
        best, scores = kernels.rerank(codes, None, None, asked, rows, 50, limits=Limits(threads=1 + each % 3))
        every = kernels.scan_scores(codes[:2000], None, None, asked, 50, limits=Limits(threads=1 + each % 4))
        return rows, far, best, scores, *every

    alone = [work(each) for each in range(12)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for found, expected in zip(pool.map(work, range(12)), alone, strict=True):
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(one, other)


FORK = """
import multiprocessing, os, sys, numpy
from bpr import kernels
random = numpy.random.default_rng(3)
codes = random.integers(0, 256, (60_000, 96), dtype=numpy.uint8)
questions = random.integers(0, 256, (9, 96), dtype=numpy.uint8)
limits = kernels.Limits(threads=4)

def search(_=None):
    return [each.tolist() for each in kernels.scan(codes, questions, 20, limits=limits)]

expected = search()  # the parent's pool has threads now, and a child has none of them
"""


def test_a_forked_child_searches_with_threads_of_its_own() -> None:
    script = (
        FORK
        + """
for generation in range(3):
    child = os.fork()
    if child == 0:
        same = search() == expected
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if search() == expected else 1)
        os._exit(0 if same and os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0 else 1)
    assert search() == expected
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    done = python(script)
    assert done.stdout == "0\n0\n0\n", done.stderr


def test_a_multiprocessing_pool_of_forks_searches() -> None:
    script = (
        FORK
        + """
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(all(found == expected for found in pool.map(search, range(4))))
"""
    )
    done = python(script)
    assert done.stdout == "True\n", done.stderr


def test_forking_while_other_threads_search() -> None:
    """The child may be born while the pool's lock is held; it must not wait for an owner that it does not have."""
    script = (
        FORK
        + """
import threading
stop = threading.Event()

def busy():
    while not stop.is_set():
        search()

workers = [threading.Thread(target=busy) for _ in range(2)]
for worker in workers: worker.start()
codes_of_children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if search() == expected else 1)
    codes_of_children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for worker in workers: worker.join()
print(codes_of_children == [0] * 10)
"""
    )
    done = python(script)
    assert done.stdout == "True\n", done.stderr


def test_a_kernel_that_disagrees_with_numpy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.check(CODES)
    kernels.check(CODES[:3])
    scan = kernels.scan
    for wrong in (0, 1):  # its rows, or its distances

        def off(*given: Any, **how: Any) -> Any:
            found = scan(*given, **how)
            found[wrong][-1, -1] += 1  # noqa: B023
            return found

        with monkeypatch.context() as broken:
            broken.setattr(kernels, "scan", off)
            with pytest.raises(CorruptBundle, match=r"the kernel \(\w+\) and numpy disagree on this machine"):
                kernels.check(CODES)


def test_one_thread_is_a_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limits(1).thread_count() == 1
    monkeypatch.setenv("BPR_THREADS", "1")
    assert Limits().thread_count() == 1
    monkeypatch.delenv("BPR_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 8}, raising=False)
    assert Limits().thread_count() == 3
