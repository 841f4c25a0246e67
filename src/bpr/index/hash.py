"""Exact look-up in hash tables with a growing radius, and groups of near duplicates.

Whoever asks for what is nearly the same as a passage, or for few candidates that are near, finds them here without
looking at every code; whoever asks otherwise gets the scan, for a few percent more. Knows the kernel; must not know
bundles or text: tables are arrays, and whoever stores them hands them back.

How it works (multi-index hashing): each table is over some bits of the code, no bit in two, and holds the rows sorted
by them. A question looks up, table by table, the keys that differ from its own in 0, 1, 2, … bits. A row that was not
shown so far differs in at least that many bits of each table, so the sum is a distance within which every row is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from math import comb, log2

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..codes import Codes, Mask, Questions, as_array, blocks, checked_codes
from ..errors import CorruptBundle, InvalidInput
from ..kernels import NO_LIMITS, Cancel, Limits
from .protocol import Planes

MAX_WIDTH = 24  # bits of a key: 2^24 starts are 64 MB a table
MARGIN = 4  # tables are built for radii at which a look-up is estimated at a quarter of a scan
SAMPLE_ROWS = 65_536  # rows that say how balanced a bit is
CACHED, UNCACHED = 16 << 20, 256 << 20  # bytes of codes between which costs grow
QUESTIONS_PER_THREAD = 4  # look-ups worth waking one more thread for
BATCH = 6  # questions from which on native/scan.cpp counts bit-sliced
CHECKED_ROWS = 64  # rows of each table that are looked at when it is opened


@dataclass(frozen=True)
class Costs:
    """What things cost on one thread, in nanoseconds: the look-up gives up where these say that a scan is cheaper.

    Of pairs, the first holds while the codes stay in a cache (16 MiB), the second where they do not (from 256 MiB on).
    From scans, and from look-ups divided by their probes and rows, on Zen 4 (AVX-512), 384 bits, 221 thousand to 5
    million rows: 13 to 17 ns each in the cache, 20 to 35 out of it; a scan 0.03 and 0.04 to 0.07 ns a byte, in a batch
    of 64 0.010 to 0.018. Where they are wrong, a question is answered the slower of two ways; the answer is the same.
    """

    probe: tuple[float, float] = (10, 20)  # a key's place in its table
    listed: tuple[float, float] = (2, 2)  # a row in a key's list
    visit: tuple[float, float] = (13, 30)  # a row compared with the question
    scan_byte: tuple[float, float] = (0.03, 0.048)  # a byte of all codes, for one question alone …
    batch_byte: tuple[float, float] = (0.010, 0.012)  # … for one of many …
    shared_byte: tuple[float, float] = (0.14, 0.20)  # … and for all of them together

    def at(self, nbytes: int) -> OneSize:
        """The costs with so many bytes of codes: in between, they grow with the logarithm."""
        share = min(max(log2(max(nbytes, 1) / CACHED) / log2(UNCACHED / CACHED), 0), 1)
        each = (getattr(self, one.name) for one in fields(self))
        return OneSize(nbytes, *(near + share * (far - near) for near, far in each))


@dataclass(frozen=True)
class OneSize:
    """What things cost with codes of so many bytes."""

    nbytes: int
    probe: float
    listed: float
    visit: float
    scan_byte: float
    batch_byte: float
    shared_byte: float

    def scan(self, questions: int = 1, threads: int = 1) -> float:
        """A scan of all codes for all these questions."""
        each = self.scan_byte if questions < BATCH else self.batch_byte + self.shared_byte / questions
        return float(self.nbytes * each * questions / threads)

    def reach(self, rows: int, tables: int, width: int, nanoseconds: float) -> int:
        """The radius within which every row is known in that time, were all keys equally frequent; -1: none."""
        left = nanoseconds / (self.probe + rows / 2**width * (self.listed + self.visit))  # keys
        rings = 0
        for ring in range(width + 1):
            asked = min(tables, int(left / comb(width, ring)))
            rings, left = rings + asked, left - asked * comb(width, ring)
            if asked < tables:
                break
        return rings - 1


MEASURED = Costs()
NEVER_SCAN = Costs(scan_byte=(1e100, 1e100), batch_byte=(1e100, 1e100))  # for tests: look up, whatever it takes


@dataclass(frozen=True)
class Tables:
    """The hash tables of some codes, as arrays that can be stored and memory-mapped.

    bits: uint16[m, s], the bits of the code that each table is over. starts: uint32[m, 2^s + 1], where each key's rows
    begin. rows: uint32[m, n], sorted by (key, row): 4 bytes a row and table; the starts add 1 to 2.
    """

    bits: NDArray[np.uint16]
    starts: NDArray[np.uint32]
    rows: NDArray[np.uint32]

    def __post_init__(self) -> None:
        """Check all that is quickly checked; the kernel looks at the rest as it reads it."""
        for name, kind in (("bits", np.uint16), ("starts", np.uint32), ("rows", np.uint32)):
            array = as_array(getattr(self, name))
            if array.ndim != 2 or array.dtype != kind:
                found = f"{array.dtype}{list(array.shape)}"
                raise InvalidInput(f"{name} of hash tables must be {np.dtype(kind)} with two axes, not {found}")
            object.__setattr__(self, name, np.require(array, requirements=["C", "A"]))
        count, width = self.bits.shape
        if count < 1 or not 1 <= width <= MAX_WIDTH:
            raise InvalidInput(f"hash tables are over 1 to {MAX_WIDTH} bits each, not uint16[{count}, {width}]")
        if self.starts.shape != (count, 2**width + 1) or len(self.rows) != count:
            raise InvalidInput(
                f"{count} tables over {width} bits need starts [{count}, {2**width + 1}] and rows [{count}, n], "
                f"not {list(self.starts.shape)} and {list(self.rows.shape)}"
            )
        if len(np.unique(self.bits)) != self.bits.size:
            raise CorruptBundle("a bit is in two hash tables: build them again with Tables.build")
        if self.starts[:, 0].any() or (self.starts[:, -1] != self.rows.shape[1]).any():
            raise CorruptBundle("the hash tables do not hold every row: build them again with Tables.build")

    def __repr__(self) -> str:
        """Number, width and bytes."""
        return f"Tables({len(self.bits)} over {self.bits.shape[1]} bits, {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.bits.nbytes + self.starts.nbytes + self.rows.nbytes

    @classmethod
    def build(
        cls, codes: ArrayLike, tables: int | None = None, radius: int | None = None, *, limits: Limits = NO_LIMITS
    ) -> Tables:
        """The tables of these codes, the same ones every time.

        tables: how many; None for the fewest that let a question look up `radius` (a twelfth of the bits, or as far as
        it can win) for a quarter of a scan, and for no more bytes than the codes have.
        """
        signs = checked_codes(codes)
        count, width = _plan(len(signs), signs.shape[1] * 8, tables, radius)
        bits = _balanced_bits(signs, count * width).reshape(width, count).T
        return cls(bits, *kernels.build_tables(signs, np.ascontiguousarray(bits), limits=limits))

    def check_fit(self, codes: Codes) -> None:
        """An error where these are not the tables of these codes, as far as a look at some rows can tell."""
        count = len(codes)
        if self.rows.shape[1] != count or int(self.bits.max()) >= codes.shape[1] * 8:
            raise InvalidInput(
                f"the hash tables hold {self.rows.shape[1]:,} rows and look at bits up to {int(self.bits.max())}; "
                f"there are {count:,} codes of {codes.shape[1] * 8} bits"
            )
        at = np.arange(0, count, max(1, count // CHECKED_ROWS))
        for bits, starts, rows in zip(self.bits, self.starts, self.rows, strict=True):
            shown = np.unpackbits(codes[rows[at] % max(count, 1)], axis=1)[:, bits].astype(np.int64)
            keys = shown @ (1 << np.arange(len(bits) - 1, -1, -1))
            if not ((starts[keys] <= at) & (at < starts[keys + 1]) & (rows[at] < count)).all():
                raise CorruptBundle("the hash tables are not those of these codes, or damaged: build them again")


def _plan(rows: int, bits: int, tables: int | None, radius: int | None) -> tuple[int, int]:
    """How many tables over how many bits each: two rows or more a key, and the fewest tables that do."""
    width = min(max((rows // 2).bit_length() - 1, 1), MAX_WIDTH, bits)
    most = bits // width
    if tables is not None:
        if not 1 <= tables <= most:
            raise InvalidInput(f"{rows:,} codes of {bits} bits can have 1 to {most} hash tables, not {tables}")
        return tables, width
    wanted = bits // 12 if radius is None else radius
    if wanted < 0:
        raise InvalidInput(f"radius must be at least 0, not {wanted}")
    most = max(1, min(most, rows * bits // 8 // (4 * (rows + 2**width + 1))))  # no more bytes than the codes
    costs = MEASURED.at(rows * bits // 8)
    reach = partial(costs.reach, rows, width=width, nanoseconds=costs.scan() / MARGIN)
    goal = min(wanted, reach(most))
    return next((count for count in range(1, most) if reach(count) >= goal), most), width


def _balanced_bits(codes: Codes, count: int) -> NDArray[np.uint16]:
    """The bits that are most nearly 0 as often as 1, the best first: so that keys are about equally frequent."""
    sample = codes[:: max(1, len(codes) // SAMPLE_ROWS)]
    ones = np.zeros(codes.shape[1] * 8, np.int64)
    for rows in blocks(len(sample)):
        ones += np.unpackbits(sample[rows], axis=1).sum(axis=0, dtype=np.int64)
    order = np.argsort(np.abs(2 * ones - len(sample)), kind="stable")
    return order[:count].astype(np.uint16)


@dataclass(frozen=True)
class Lookup:
    """What a look-up found for each question, and what it took.

    rows: int64[q, l], distances: int32[q, l], as ScanIndex gives them. probes: int64[q], keys looked up. visited:
    int64[q], rows compared with the question in vain or not, without those of a scan. fell_back: bool[q], where a scan
    was cheaper and gave the answer.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.int32]
    probes: NDArray[np.int64]
    visited: NDArray[np.int64]
    fell_back: NDArray[np.bool_]


class HashIndex:
    """Candidates by hash tables with a growing radius where that is cheaper than a scan; always what ScanIndex gives.

        index = bpr.HashIndex(codes)                              # builds the tables; or tables=Tables(…), tables=8
        rows, distances = index.candidates(question_codes, 10)    # as ScanIndex
        index.lookup(question_codes, 10).fell_back                # bool[q]: where the scan was cheaper
        index.duplicates(4)                                       # groups of passages within 4 bits of each other

    It wins for near duplicates and small l, not for the 1000 candidates of a question (docs/reproduction.md).
    """

    scores_are_final = False

    def __init__(
        self,
        codes: ArrayLike,
        magnitudes: ArrayLike | None = None,
        levels: tuple[float, float] | None = None,
        tables: Tables | int | None = None,
        touch: Callable[[NDArray[np.int64] | None], None] | None = None,
        costs: Costs = MEASURED,
    ) -> None:
        """tables: those that were built before, or how many to build; `touch` as in Planes."""
        self.planes = Planes.of(codes, magnitudes, levels, touch)
        self.tables = tables if isinstance(tables, Tables) else Tables.build(self.planes.signs, tables)
        self.tables.check_fit(self.planes.signs)
        self.costs = costs.at(self.planes.signs.nbytes)

    def __len__(self) -> int:
        """How many passages."""
        return len(self.planes.signs)

    def __repr__(self) -> str:
        """Rows, bits, planes and tables."""
        planes = 1 if self.planes.magnitudes is None else 2
        size = f"{len(self):,} rows, {self.planes.bits} bits, {planes} plane{'s' if planes > 1 else ''}"
        return f"HashIndex({size}, {self.tables!r})"

    def candidates(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The l nearest rows of each question by (distance, row): exactly those of ScanIndex.candidates."""
        found = self.lookup(questions, l, mask=mask, threads=threads, deadline=deadline, cancel=cancel)
        return found.rows, found.distances

    def lookup(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Lookup:
        """The same with what it took: probes, visited rows, and whether the scan was cheaper, for each question."""
        asked = self.planes.question_codes(questions)
        signs, limits = self.planes.signs, Limits(threads, deadline, cancel)
        costs, workers = self._costs(max(1, len(asked)), limits.thread_count())
        arrays = (self.tables.bits, self.tables.starts, self.tables.rows)
        rows, distances, effort = kernels.lookup(signs, arrays, asked, l, costs, workers, mask=mask, limits=limits)
        return Lookup(rows, distances, effort[0], effort[1], effort[2].astype(np.bool_))

    def _costs(self, questions: int, threads: int) -> tuple[list[float], int]:
        """What the kernel weighs, and on how many threads questions are looked up.

        A scan shares its work among the questions and the threads, so it is cheaper for one of many. What it takes in
        all is what the look-ups may take in all, one after another on each thread.
        """
        workers = min(threads, -(-questions // QUESTIONS_PER_THREAD))
        scan = self.costs.scan(questions, threads) / -(-questions // workers)
        return [self.costs.probe, self.costs.listed, self.costs.visit, scan], workers

    def duplicates(
        self,
        radius: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> list[NDArray[np.int64]]:
        """Groups of passages within `radius` bits of each other: the function `duplicates` on this index's codes."""
        limits = Limits(threads, deadline, cancel)
        return duplicates(self.planes.signs, radius, mask=mask, limits=limits)


def duplicates(
    codes: ArrayLike, radius: int, *, mask: Mask | None = None, limits: Limits = NO_LIMITS
) -> list[NDArray[np.int64]]:
    """Groups of rows that are connected by steps of at most `radius` bits, exactly; needs no tables.

    Each group is int64[at least 2], ascending; groups are in the order of their first rows. mask: rows that count.
    Fast for a radius of up to a twentieth of the bits; beyond, more and more pairs are compared.
    """
    if radius < 0:
        raise InvalidInput(f"radius must be at least 0, not {radius}")
    signs = checked_codes(codes)
    groups = kernels.duplicates(signs, min(radius, signs.shape[1] * 8), mask=mask, limits=limits)
    order = np.argsort(groups, kind="stable")
    _, begins, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    return [order[begin : begin + size] for begin, size in zip(begins[sizes > 1], sizes[sizes > 1], strict=True)]
