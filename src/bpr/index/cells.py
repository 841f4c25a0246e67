"""The sub-linear index: codes in cells around centroids, of which a question visits the few that fit it best.

Makes cells out of codes (train, lay_out) and searches in them (CellIndex). Builders and retrievers call it; it must
not know bundles or text: arrays in, arrays out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..codes import Codes, Mask, Questions, checked_codes, unpack
from ..errors import InvalidInput
from ..kernels import Cancel, Limits
from .protocol import Planes

Centroids = NDArray[np.int8]
Progress = Callable[[int, int], None]  # called with what is done and what there is to do

PROBES = 0.04  # of all codes: what a question looks at unless told otherwise
SHALLOWEST = 100  # codes a cell, at least: a centroid takes as much memory as eight codes
SAMPLES = (32,) * 6 + (128,) * 3 + (0,) * 2  # codes a cell that each round of training looks at; 0: all
SHORTLIST = 8  # centroids that are nearest as bits, of which the nearest is chosen
TOGETHER = 1 << 18  # codes that are assigned in one call, between two calls of progress
ONE = 127  # what a bit is worth in a centroid
MOST_ROWS = 2**32  # rows and positions are uint32


@dataclass(frozen=True)
class Cells:
    """How codes are laid out: those of cell c stand at the positions starts[c] to starts[c + 1], by row.

    centroids: int8[cells, bits], ±127 for ±1. starts: int64[cells + 1]. rows: uint32[n], the row at each position.
    positions: uint32[n], the position of each row. Arrays or memory maps.
    """

    centroids: Centroids
    starts: NDArray[np.int64]
    rows: NDArray[np.uint32]
    positions: NDArray[np.uint32]

    def __post_init__(self) -> None:
        """Shapes and types; the kernel checks what the arrays say where it uses it."""
        cells, n = len(self.centroids), len(self.rows)
        wanted = {"centroids": ("int8", 2, cells), "starts": ("int64", 1, cells + 1)}
        for name, (kind, axes, size) in (wanted | dict.fromkeys(("rows", "positions"), ("uint32", 1, n))).items():
            array: NDArray[np.generic] = getattr(self, name)
            if array.dtype != kind or array.ndim != axes or len(array) != size or not array.flags.c_contiguous:
                raise InvalidInput(
                    f"{name} of cells must be {kind}, C-contiguous, {axes} axes, the first {size} long, "
                    f"not {array.dtype}{list(array.shape)}"
                )

    def __len__(self) -> int:
        """How many cells."""
        return len(self.centroids)

    @property
    def nbytes(self) -> int:
        """Bytes beside the codes."""
        return int(self.centroids.nbytes + self.starts.nbytes + self.rows.nbytes + self.positions.nbytes)


# ---- making cells ----


def default_cells(n: int) -> int:
    """A number of cells for n codes: 4·√n, but so few that a centroid is little beside the codes of its cell."""
    return max(1, min(4 * math.isqrt(n), n // SHALLOWEST))


def train(
    codes: ArrayLike,
    cells: int | None = None,
    *,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[Centroids, NDArray[np.uint32]]:
    """Cells by k-means on ±1 codes: their centroids, int8[cells, bits], and the cell of each code, uint32[n].

    codes: uint8[n, bits/8], an array or a memory map, read in pieces. Most rounds look at a sample, the last at all: a
    centroid that has not seen the codes of its cell is a worse guide to them. The same for the same seed, whatever the
    machine and its threads.
    """
    every, limits = checked_codes(codes), Limits(threads)
    n, count = len(every), default_cells(len(every)) if cells is None else cells
    if not 1 <= count <= max(1, n):
        raise InvalidInput(f"{n:,} codes can have 1 to {max(1, n):,} cells, not {count:,}")
    if n >= MOST_ROWS:
        raise InvalidInput(f"cells can have up to {MOST_ROWS - 1:,} rows, not {n:,}: cut the index into shards")
    chosen = np.random.default_rng(seed).permutation(n)
    centroids = _as_centroids(every[np.sort(chosen[:count])]) if n else np.zeros((1, every.shape[1] * 8), np.int8)
    nearest = np.zeros(n, np.uint32)
    sizes = [min(n, count * size) if size else n for size in SAMPLES]
    told = _Told(progress, sum(sizes))
    for size in sizes if n else ():
        taken = every if size == n else every[np.sort(chosen[:size])]
        nearest, fits = _assigned(taken, centroids, limits, told)
        centroids = _means(taken, nearest, fits, len(centroids), limits)
    return centroids, nearest


class _Told:
    """Adds up what is done, for progress."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def __call__(self, more: int) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


def _assigned(
    codes: Codes, centroids: Centroids, limits: Limits, told: _Told
) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """The cell of each code, and how well it fits."""
    nearest, fits = np.empty(len(codes), np.uint32), np.empty(len(codes), np.int32)
    for first in range(0, len(codes), TOGETHER):
        some = codes[first : first + TOGETHER]
        rows = slice(first, first + len(some))
        nearest[rows], fits[rows] = kernels.assign(some, centroids, SHORTLIST, limits=limits)
        told(len(some))
    return nearest, fits


def _as_centroids(codes: Codes) -> Centroids:
    return (unpack(codes) * ONE).astype(np.int8)


def _means(codes: Codes, nearest: NDArray[np.uint32], fits: NDArray[np.int32], cells: int, limits: Limits) -> Centroids:
    """The means of the codes of each cell. An empty cell begins anew at the code that fits worst in a largest one."""
    order, starts = _sorted_by_cell(nearest, cells)
    sizes = np.diff(starts)
    ones = kernels.count_ones(codes, order, starts, limits=limits)
    means = np.rint(ONE * (2 * ones - sizes[:, None]) / np.maximum(sizes, 1)[:, None]).astype(np.int8)
    empty = np.flatnonzero(sizes == 0)
    for cell, source in zip(empty, np.argsort(-sizes, kind="stable"), strict=False):
        members = order[starts[source] : starts[source + 1]]
        if len(members) > 1:
            means[cell] = _as_centroids(codes[members[np.argmin(fits[members])]][None])[0]
    return means


def _sorted_by_cell(nearest: NDArray[np.uint32], cells: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Rows cell by cell, ascending in each, and where each cell begins."""
    starts = np.zeros(cells + 1, np.int64)
    np.cumsum(np.bincount(nearest, minlength=cells), out=starts[1:])
    return np.argsort(nearest, kind="stable").astype(np.uint32), starts


def lay_out(centroids: Centroids, nearest: NDArray[np.uint32]) -> Cells:
    """The layout of codes whose cells are known; plane[cells.rows] is a plane in its order."""
    if len(nearest) and nearest.max() >= len(centroids):
        raise InvalidInput(f"a code is in cell {nearest.max()}, but there are {len(centroids)} cells")
    rows, starts = _sorted_by_cell(nearest, len(centroids))
    positions = np.empty_like(rows)
    positions[rows] = np.arange(len(rows), dtype=np.uint32)
    return Cells(centroids, starts, rows, positions)


# ---- searching in them ----


class CellIndex:
    """Candidates from the cells whose centroids fit a question best. Approximate: `bpr.tune` measures by how much.

        index = bpr.CellIndex.build(codes, magnitudes, levels)           # from codes in the order of rows
        index = bpr.CellIndex(cells, signs, magnitudes, levels)          # from planes in the order of cells.rows
        rows, distances = index.candidates(bpr.Questions(vectors), 1000)

    probes: the share of all codes that a usual question looks at, in cells of descending ⟨e_q, centroid⟩. One that a
    cell fits far better than most cells do looks at fewer, one that none fits at more. 1.0 finds exactly what ScanIndex
    finds. More cells are visited where these have fewer than the wanted candidates.
    """

    scores_are_final = False

    def __init__(
        self,
        cells: Cells,
        signs: ArrayLike,
        magnitudes: ArrayLike | None = None,
        levels: tuple[float, float] | None = None,
        probes: float | None = None,
        touch: Callable[[NDArray[np.int64] | None], None] | None = None,
    ) -> None:
        """`touch` is called with positions before magnitudes are read (see Planes)."""
        self.cells = cells
        self.planes = Planes.of(signs, magnitudes, levels, touch, cells.positions)
        self.probes = _checked_probes(PROBES if probes is None else probes)
        if cells.centroids.shape[1] != self.planes.bits:
            raise InvalidInput(f"the centroids have {cells.centroids.shape[1]} bits, the codes {self.planes.bits}")

    @classmethod
    def build(
        cls,
        codes: ArrayLike,
        magnitudes: ArrayLike | None = None,
        levels: tuple[float, float] | None = None,
        cells: int | None = None,
        probes: float | None = None,
        *,
        seed: int = 0,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> CellIndex:
        """Train cells on codes (in the order of rows) and lay out a copy of all planes in their order."""
        planes = Planes.of(codes, magnitudes, levels)
        layout = lay_out(*train(planes.signs, cells, seed=seed, threads=threads, progress=progress))
        large = None if planes.magnitudes is None else planes.magnitudes[layout.rows]
        return cls(layout, planes.signs[layout.rows], large, levels, probes)

    def with_probes(self, probes: float) -> CellIndex:
        """The same index, looking at another share of the codes; nothing is copied."""
        planes = self.planes
        return CellIndex(self.cells, planes.signs, planes.magnitudes, planes.levels, probes, planes.touch)

    def __len__(self) -> int:
        """How many passages."""
        return len(self.planes.signs)

    def __repr__(self) -> str:
        """Rows, bits, planes and cells."""
        planes = "1 plane" if self.planes.magnitudes is None else "2 planes"
        inside = f"{len(self):,} rows, {self.planes.bits} bits, {planes}, {len(self.cells):,} cells"
        return f"CellIndex({inside}, probes={self.probes:g})"

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
        """The l nearest rows of each question, of the cells it visits, by (distance, row).

        questions: Questions, or uint8[q, bits/8] codes, whose ±1 then choose the cells. mask: bool[n], rows that may be
        returned. deadline: a value of time.monotonic(). Asking for more than there is gives what there is.
        """
        limits = Limits(threads, deadline, cancel)
        rows, distances, _ = self.visit(questions, l, mask=mask, limits=limits)
        return rows, distances

    def visit(
        self, questions: Questions | ArrayLike, l: int, *, mask: Mask | None = None, limits: Limits = kernels.NO_LIMITS
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """`candidates`, and how many codes each question looked at: int64[q]."""
        asked = questions if isinstance(questions, Questions) else _with_vectors(checked_codes(questions))
        if asked.vectors.shape[1] != self.planes.bits:
            raise InvalidInput(f"the questions have {asked.vectors.shape[1]} bits, the index has {self.planes.bits}")
        layout = (self.cells.rows, self.cells.starts, self.cells.centroids)
        return kernels.probe(self.planes.signs, layout, asked, l, self.probes, mask=mask, limits=limits)


def _with_vectors(codes: Codes) -> Questions:
    return Questions(unpack(codes), codes)


def _checked_probes(probes: float) -> float:
    if not 0 < probes <= 1:
        raise InvalidInput(f"probes is the share of the codes to look at: more than 0, at most 1, not {probes}")
    return float(probes)
