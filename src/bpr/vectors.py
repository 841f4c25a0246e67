"""The third stage: vectors of passages beside their codes, on disk, read only for the last few rows of a search.

    with writing(new, dimensions, "int8", prefix) as out:     # the builder; new: a bundle.Writer
        out.add(block)                                        # float[m, dimensions], in the order of the rows

    segment = Vectors(opened, prefix)                         # the retriever; if stored(opened, prefix)
    rerank([segment, …], rows, question_vectors, k)           # → Hits, by ⟨question, passage⟩

It knows bundles and arrays; it must not know texts, nor how vectors are made. Passages and questions must be of one
space: what an encoder gives, or the vectors that were given, before any transform for codes.

Files, each behind the caller's prefix:

    vectors.npy           int8[rows, dimensions] or float16[rows, dimensions]
    vectors-scales.npy    float32[rows]: a value of an int8 vector is its number times the row's scale; float16 has none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .codes import blocks, checked_vectors, finite, overflow_is_infinite
from .errors import CorruptBundle, InvalidInput
from .records import Hits

if TYPE_CHECKING:
    from . import bundle

VALUES, SCALES = "vectors.npy", "vectors-scales.npy"
LARGEST = 127  # of int8; −128 is not used, so that x and −x are as exact
Kind: TypeAlias = Literal["int8", "float16"]


class VectorsOut:
    """Vectors on their way to disk, block of rows after block of rows. Made by `writing`."""

    def __init__(self, values: bundle.ArrayOut, scales: bundle.ArrayOut | None, dimensions: int) -> None:
        """Where they go; scales: None for float16."""
        self._values, self._scales, self._dimensions = values, scales, dimensions

    @property
    def rows(self) -> int:
        """How many were added."""
        return self._values.rows

    def add(self, block: ArrayLike) -> None:
        """More rows; block: float[m, dimensions]."""
        vectors = checked_vectors(block)
        if vectors.shape[1] != self._dimensions:
            raise InvalidInput(f"these vectors have {vectors.shape[1]} dimensions, those before {self._dimensions}")
        for rows in blocks(len(vectors)):
            some = finite(vectors[rows], self.rows)
            if self._scales is None:
                self._values.append(_half(some, self.rows))
            else:
                numbers, scales = quantized(some)
                self._values.append(numbers)
                self._scales.append(scales)


def _half(vectors: NDArray[Any], first_row: int) -> NDArray[np.float16]:
    with overflow_is_infinite():
        halves = vectors.astype(np.float16)
    if not np.isfinite(halves).all():
        row = first_row + int(np.flatnonzero(~np.isfinite(halves).all(axis=1))[0])
        raise InvalidInput(f"vector {row} has values beyond float16's 65,504: keep int8, or scale the vectors")
    return halves


def quantized(vectors: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Each row as int8 times a scale of its own, its largest value at ±127: off by half a scale at most.

    A row by itself needs to know nothing of the others, so vectors may stream.
    """
    wide = np.asarray(vectors, np.float64)
    most = np.abs(wide).max(axis=1, initial=0)
    with overflow_is_infinite():
        scales = (most / LARGEST).astype(np.float32)
    if not np.isfinite(scales).all():
        raise InvalidInput("the vectors have values beyond float32: scale them")
    divisors = np.where(scales > 0, scales, 1).astype(np.float64)  # a row of zeros, or of next to nothing
    return np.clip(np.rint(wide / divisors[:, None]), -LARGEST, LARGEST).astype(np.int8), scales


@contextmanager
def writing(new: bundle.Writer, dimensions: int, kind: Kind = "int8", prefix: str = "") -> Iterator[VectorsOut]:
    """Files of vectors in a bundle that is being written, to be added to inside the with block."""
    if kind not in get_args(Kind):
        raise InvalidInput(f"vectors are kept as int8 or float16, not {kind!r}")
    with ExitStack() as files:
        values = files.enter_context(new.array(prefix + VALUES, np.dtype(kind), (dimensions,)))
        scales = None
        if kind == "int8":
            scales = files.enter_context(new.array(prefix + SCALES, np.dtype(np.float32)))
        yield VectorsOut(values, scales, dimensions)


def stored(opened: bundle.Opened, prefix: str = "") -> bool:
    """Whether the bundle has kept its vectors."""
    return prefix + VALUES in opened.manifest.files


class Vectors:
    """The vectors of an open bundle, or of one segment of it. Threads may share one. kind: how they are kept."""

    def __init__(self, opened: bundle.Opened, prefix: str = "") -> None:
        """Map the files behind the prefix, and see that they belong together."""
        self._values = opened.view(prefix + VALUES)
        self._scales = opened.view(prefix + SCALES) if prefix + SCALES in opened.manifest.files else None
        array, scales = self._values.array, None if self._scales is None else self._scales.array
        fits = scales is None or (scales.dtype == np.float32 and scales.shape == (len(array),))
        if array.ndim != 2 or array.dtype != (np.float16 if scales is None else np.int8) or not fits:
            raise CorruptBundle(f"{prefix}{VALUES} and {SCALES} do not belong together; restore or rebuild the bundle")
        self.kind: Kind = "float16" if scales is None else "int8"
        self._values.advise_random()  # rows are scattered: reading ahead would fetch what nobody asked for

    def __len__(self) -> int:
        """How many rows; those of the bundle or segment must be as many."""
        return len(self._values.array)

    @property
    def dimensions(self) -> int:
        """Of a vector."""
        return int(self._values.array.shape[1])

    def get(self, rows: ArrayLike) -> NDArray[np.float32]:
        """The vectors of these rows, as they were but for rounding: int[m] → float32[m, dimensions]."""
        return self.wide(_checked_rows(rows, len(self), 1)).astype(np.float32)

    def score(self, rows: ArrayLike, questions: ArrayLike) -> NDArray[np.float32]:
        """⟨question, passage⟩: rows int[q, m], questions float[q, dimensions] → float32[q, m].

        In float64, each row by itself: a score does not depend on what else is scored.
        """
        wanted, asked = _checked_rows(rows, len(self), 2), _checked_questions(questions, self.dimensions)
        if len(wanted) != len(asked):
            raise InvalidInput(f"there are {len(asked)} questions, and rows of {len(wanted)}")
        scores = np.empty(wanted.shape, np.float32)
        for number, vector in enumerate(asked):
            scores[number] = (self.wide(wanted[number]) * vector).sum(axis=1)
        return scores

    def wide(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The vectors of rows that are there, exactly as they are kept: kept again, they are the same bytes."""
        self._values.require_rows(rows)
        values = self._values.array[rows].astype(np.float64)
        if self._scales is not None:
            self._scales.require_rows(rows)
            values *= self._scales.array[rows, None]
        return values


def rerank(segments: Sequence[Vectors], rows: ArrayLike, questions: ArrayLike, k: int) -> Hits:
    """The k best of each question's rows by (⟨question, passage⟩ descending, row).

    segments: of one bundle, whose rows are counted through. rows: int[q, m]; questions: float[q, dimensions].
    """
    if k < 1:
        raise InvalidInput(f"k must be at least 1, not {k}")
    ends = np.cumsum([len(segment) for segment in segments])
    wanted = _checked_rows(rows, int(ends[-1]) if len(ends) else 0, 2)
    asked = _checked_questions(questions, segments[0].dimensions if segments else None)
    if len(wanted) != len(asked):
        raise InvalidInput(f"there are {len(asked)} questions, and rows of {len(wanted)}")
    scores = np.empty(wanted.shape, np.float32)
    homes = np.searchsorted(ends, wanted, "right")
    for number, segment in enumerate(segments):
        for question in np.flatnonzero((homes == number).any(axis=1)):
            here = homes[question] == number
            local = wanted[question, here] - (ends[number] - len(segment))
            scores[question, here] = segment.score(local[None], asked[question, None])[0]
    order = np.lexsort((wanted, -scores), axis=1)[:, :k]
    return Hits(np.take_along_axis(wanted, order, axis=1), np.take_along_axis(scores, order, axis=1))


def _checked_rows(rows: ArrayLike, size: int, axes: int) -> NDArray[np.int64]:
    wanted = np.asarray(rows)
    if wanted.ndim != axes or (wanted.size and wanted.dtype.kind not in "iu"):
        raise InvalidInput(f"rows must be whole numbers with {axes} axes, not {wanted.dtype}{list(wanted.shape)}")
    if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < size:
        raise InvalidInput(f"there are {size} vectors; asked for {wanted.min()} to {wanted.max()}")
    return wanted.astype(np.int64)


def _checked_questions(questions: ArrayLike, dimensions: int | None) -> NDArray[np.float64]:
    asked = checked_vectors(questions)
    if dimensions is not None and asked.shape[1] != dimensions:
        raise InvalidInput(f"the questions have {asked.shape[1]} dimensions, the kept vectors {dimensions}")
    return np.asarray(finite(asked), np.float64)
