"""The only importer of the compiled kernel (native/), and that lazily: training and file work run without it.

Indexes, transforms, masks and the engine call it, and nobody calls the kernel past it. Takes arrays as codes.py makes
them, turns the kernel's complaints into bpr's errors, and knows the defaults of threads, deadline and cancel. No
algorithm lives here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import Codes, Mask, Questions, RowMask, candidates_reference
from .errors import Cancelled, CorruptBundle, DeadlineExceeded, InvalidInput

NO_LEVELS = (1.0, 1.0)
_MOST_THREADS = 1024


class Cancel:
    """A handle to stop a running call from another thread: pass it as `cancel=`, then call `set()`."""

    def __init__(self) -> None:
        """Not set."""
        self.flag = np.zeros(1, np.uint8)

    def set(self) -> None:
        """Every call that has this handle ends with Cancelled, within milliseconds."""
        self.flag[0] = 1


@dataclass(frozen=True)
class Limits:
    """How much a call may take.

    threads: None for BPR_THREADS, or else all cores that this process may use. deadline: a value of time.monotonic().
    """

    threads: int | None = None
    deadline: float | None = None
    cancel: Cancel | None = None

    def thread_count(self) -> int:
        """The number of threads that `threads` means."""
        if type(self.threads) is int and 0 < self.threads <= _MOST_THREADS:
            return self.threads
        wanted: Any = self.threads if self.threads is not None else os.environ.get("BPR_THREADS") or _cores()
        if not (str(wanted).isdecimal() and 1 <= int(wanted) <= _MOST_THREADS):
            raise InvalidInput(f"threads (or BPR_THREADS) must be a number from 1 to {_MOST_THREADS}, not {wanted!r}")
        return int(wanted)

    def seconds(self) -> float:
        """What is left until the deadline; the kernel's "none" is negative."""
        return -1.0 if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def flag(self) -> NDArray[np.uint8] | None:
        """The byte that cancels, if there is one."""
        return None if self.cancel is None else self.cancel.flag


NO_LIMITS = Limits()


def scan(
    codes: Codes,
    questions: Codes,
    l: int,
    *,
    mask: Mask | None = None,
    limits: Limits = NO_LIMITS,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The l nearest live rows by (distance, row): int64[q, l], int32[q, l]; fewer columns where fewer rows are live."""
    with _explained:
        live = _bits(mask, len(codes))
        rows, far = native().scan(
            codes, questions, _count("l", l), limits.thread_count(), live, limits.seconds(), limits.flag()
        )
    return rows, far


def check(signs: Codes) -> None:
    """Compare the kernel with the numpy reference on a few codes of a bundle; CorruptBundle where they disagree."""
    found, wanted = scan(signs, signs[:8], 20), candidates_reference(signs, signs[:8], 20)
    if not (np.array_equal(found[0], wanted[0]) and np.array_equal(found[1], wanted[1])):
        raise CorruptBundle(f"the kernel ({simd_level()}) and numpy disagree on this machine: report this")


def rerank(
    codes: Codes,
    magnitudes: Codes | None,
    levels: tuple[float, float] | None,
    questions: Questions,
    rows: NDArray[np.int64],
    k: int,
    *,
    limits: Limits = NO_LIMITS,
    positions: NDArray[np.uint32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k best of each question's rows by (⟨e_q, code⟩ descending, row); rows: int64[q, m].

    positions: uint32[n], where the codes of each row stand; None: in the order of rows.
    """
    with _explained:
        best, scores = native().rerank(
            codes,
            magnitudes,
            levels or NO_LEVELS,
            questions.vectors,
            _rows(rows),
            _count("k", k),
            limits.thread_count(),
            limits.seconds(),
            limits.flag(),
            positions,
        )
    return best, scores


def scan_scores(
    codes: Codes,
    magnitudes: Codes | None,
    levels: tuple[float, float] | None,
    questions: Questions,
    k: int,
    *,
    mask: Mask | None = None,
    limits: Limits = NO_LIMITS,
    positions: NDArray[np.uint32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k best of all live rows by (⟨e_q, code⟩ descending, row): no candidates, every row is scored."""
    with _explained:
        live = _bits(mask, len(codes))
        best, scores = native().scan_scores(
            codes,
            magnitudes,
            levels or NO_LEVELS,
            questions.vectors,
            _count("k", k),
            limits.thread_count(),
            live,
            limits.seconds(),
            limits.flag(),
            positions,
        )
    return best, scores


def mark_rows(mask: RowMask, rows: NDArray[Any], *, toggle: bool = False) -> None:
    """Put rows into a mask, in place; toggle: those that are in it already go out. rows: uint32[m] or uint64[m]."""
    with _explained:
        native().mark_rows(mask.bits, rows, mask.rows, toggle)


# ── hash tables (index/hash.py) ──


def build_tables(
    codes: Codes, bits: NDArray[np.uint16], *, limits: Limits = NO_LIMITS
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Rows sorted by some of their bits, for each table: bits uint16[m, s] → starts uint32[m, 2^s + 1], rows [m, n]."""
    with _explained:
        starts, rows = native().build_tables(codes, bits, limits.thread_count(), limits.seconds(), limits.flag())
    return starts, rows


def lookup(
    codes: Codes,
    tables: tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.uint32]],
    questions: Codes,
    l: int,
    costs: list[float],
    workers: int,
    *,
    mask: Mask | None = None,
    limits: Limits = NO_LIMITS,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """As `scan`, by tables (bits, starts, rows) where that is cheaper; and int64[3, q]: probes, visited, scanned.

    costs: nanoseconds of a probe, of a row in a list, of a row compared, of a scan for one question. workers: threads
    for the look-ups; a scan has all.
    """
    with _explained:
        live = _bits(mask, len(codes))
        threads, seconds, flag = limits.thread_count(), limits.seconds(), limits.flag()
        rows, far, effort, corrupt = native().lookup(
            codes, *tables, questions, _count("l", l), costs, workers, threads, live, seconds, flag
        )
    if corrupt:
        raise CorruptBundle("the hash tables are not those of these codes, or damaged: build them again")
    return rows, far, effort


def duplicates(codes: Codes, radius: int, *, mask: Mask | None = None, limits: Limits = NO_LIMITS) -> NDArray[np.int64]:
    """The lowest row that each row is joined with, by steps of at most `radius` bits: int64[n]."""
    with _explained:
        live = _bits(mask, len(codes))
        (groups,) = native().duplicates(codes, radius, limits.thread_count(), live, limits.seconds(), limits.flag())
    return np.asarray(groups, np.int64)


# ── cells (index/cells.py) ──


def probe(
    codes: Codes,
    layout: tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int8]],
    questions: Questions,
    l: int,
    share: float,
    *,
    mask: Mask | None = None,
    limits: Limits = NO_LIMITS,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """The l nearest live rows by (distance, row) of the best cells, about a `share` of all: int64, int32[q, l].

    codes: in the order of cells. layout: their rows uint32[n], the starts of cells int64[cells + 1] and the centroids
    int8[cells, bits]. Third: how many codes were looked at, int64[q].
    """
    with _explained:
        rows, far, visited = native().probe(
            codes,
            *layout,
            questions.codes,
            questions.vectors,
            _count("l", l),
            share,
            limits.thread_count(),
            _bits(mask, len(codes)),
            limits.seconds(),
            limits.flag(),
        )
    return rows, far, visited[:, 0]


def assign(
    codes: Codes, centroids: NDArray[np.int8], shortlist: int, *, limits: Limits = NO_LIMITS
) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """The nearest centroid of each code, of those nearest as bits, and how well it fits: uint32[n], int32[n]."""
    with _explained:
        cells, fits = native().assign(codes, centroids, shortlist, limits.thread_count())
    return cells[:, 0], fits[:, 0]


def count_ones(
    codes: Codes, order: NDArray[np.uint32], starts: NDArray[np.int64], *, limits: Limits = NO_LIMITS
) -> NDArray[np.int32]:
    """How many codes of each cell have each bit: int32[cells, bits]; order: the rows of codes, cell by cell."""
    with _explained:
        ones: NDArray[np.int32] = native().count_ones(codes, order, starts, limits.thread_count())
    return ones


def rotate(
    vectors: NDArray[np.float32], panels: NDArray[np.float32], limits: Limits = NO_LIMITS
) -> NDArray[np.float32]:
    """float32[n, dim] x rotation → float32[n, bits], each row the same bits whatever its neighbours.

    panels: float32[bits/8, dim, 8], the rotation's columns eight by eight.
    """
    with _explained:
        turned: NDArray[np.float32] = native().rotate(np.ascontiguousarray(vectors), panels, limits.thread_count())
    return turned


def read_all(codes: Codes, limits: Limits = NO_LIMITS) -> int:
    """Read every byte once: the physical limit that `bpr bench` compares a scan with."""
    return int(native().read_all(codes, limits.thread_count()))


def simd_levels() -> list[str]:
    """The instruction sets this machine can run, slowest first."""
    return list(native().levels())


def simd_level() -> str:
    """The one in use: the fastest, or what BPR_SIMD names."""
    with _explained:
        return str(native().level())


@contextmanager
def using_simd(level: str) -> Iterator[None]:
    """Use one level for a while, in the whole process: for tests and benchmarks."""
    with _explained:
        native().use_level(level)
    try:
        yield
    finally:
        native().use_level(None)


@cache
def native() -> Any:
    """The compiled module; a clear word where it is missing."""
    try:
        from . import _native
    except ImportError as error:
        raise ImportError(
            "bpr's compiled kernel is missing or does not fit this Python; install bpr again: "
            f"pip install --force-reinstall binary-passage-retriever ({error})"
        ) from error
    return _native


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Explained:
    """The kernel speaks Python's own exceptions; callers of bpr get bpr's.

    A class, not a generator with @contextmanager: around a rerank of 0.1 ms the generator's 10 µs would be seen.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TimeoutError):
            raise DeadlineExceeded("the search did not end before its deadline") from error
        if isinstance(error, InterruptedError):
            raise Cancelled("the search was cancelled") from error
        if isinstance(error, ValueError):
            raise InvalidInput(str(error)) from error
        if isinstance(error, TypeError):
            raise InvalidInput(
                "the kernel takes C-contiguous arrays: codes uint8[n, w], questions uint8[q, w] or float32[q, bits], "
                "rows int64[q, m]"
            ) from error


_explained = _Explained()


def _count(name: str, value: int) -> int:
    if value < 1:
        raise InvalidInput(f"{name} must be at least 1, not {value}")
    return min(int(value), 1 << 48)  # the kernel gives what there is


def _rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(rows, np.int64)


def _bits(mask: Mask | None, rows: int) -> NDArray[np.uint8] | None:
    """One bit a row, least significant first, as the kernel wants it."""
    if isinstance(mask, RowMask):
        if len(mask) != rows:
            raise InvalidInput(f"the mask is of {len(mask)} rows, and there are {rows}")
        return np.ascontiguousarray(mask.bits)
    if mask is None:
        return None
    mask = np.asarray(mask)
    if mask.shape != (rows,) or mask.dtype != np.bool_:
        raise InvalidInput(f"a mask must be bool[{rows}], one for each row, not {mask.dtype}{list(mask.shape)}")
    return np.packbits(mask, bitorder="little")
