"""THE place where floats become bits, and the numpy reference of both stages of the search.

Everyone may call it; it knows arrays only: no files, no kernel. The kernel in native/ is tested against the functions
at the end of this file, which follow the paper's definitions and are slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidInput

Floats: TypeAlias = NDArray[np.floating[Any]]
Codes: TypeAlias = NDArray[np.uint8]

MIN_BITS, MAX_BITS = 8, 4096
# The two-plane code in units of a dimension's spread: Lloyd–Max for a Gaussian (PAPER: "Two planes").
THRESHOLD = 0.9816
LARGE = 0.3263  # the share of a Gaussian that lies beyond it
LEVELS = (0.4528, 1.5104)
BLOCK_ROWS = 8192  # rows handled at a time, so that a memory-mapped array never comes into memory whole


def pack(vectors: ArrayLike) -> Codes:
    """Sign bits of vectors: float[n, bits] → uint8[n, bits/8]; bit = x > 0, most significant bit first."""
    floats = checked_vectors(vectors)
    checked_bits(floats.shape[1])
    codes = np.empty((len(floats), floats.shape[1] // 8), np.uint8)
    for rows in blocks(len(floats)):
        codes[rows] = np.packbits(finite(floats[rows], rows.start) > 0, axis=1)
    return codes


def pack_magnitudes(vectors: ArrayLike, thresholds: ArrayLike = THRESHOLD) -> Codes:
    """The second plane: float[n, bits] → uint8[n, bits/8]; bit = |x_i| > threshold_i (a number, or float[bits])."""
    floats = checked_vectors(vectors)
    checked_bits(floats.shape[1])
    limits = np.asarray(thresholds, np.float64)
    if limits.shape not in ((), (floats.shape[1],)) or not (np.isfinite(limits).all() and (limits >= 0).all()):
        raise InvalidInput(f"thresholds must be one number >= 0, or {floats.shape[1]} of them: one for each dimension")
    codes = np.empty((len(floats), floats.shape[1] // 8), np.uint8)
    for rows in blocks(len(floats)):
        codes[rows] = np.packbits(np.abs(finite(floats[rows], rows.start)) > limits, axis=1)
    return codes


def pack_largest(vectors: ArrayLike, count: int) -> Codes:
    """The second plane of a trained model: the `count` largest |x_i| of each row; of equal ones, the first.

    Every code then has the same length, so levels tell a vector's direction. With a fixed threshold, texts unlike those
    that the model was trained on would have longer codes than others, and be found whatever is asked.
    """
    floats = checked_vectors(vectors)
    bits = checked_bits(floats.shape[1])
    if not 0 <= count <= bits:
        raise InvalidInput(f"count must be between 0 and {bits}, not {count}")
    codes = np.empty((len(floats), bits // 8), np.uint8)
    for rows in blocks(len(floats)):
        order = np.argsort(-np.abs(finite(floats[rows], rows.start)), axis=1, kind="stable")  # [some, bits]
        large = np.zeros(order.shape, bool)
        np.put_along_axis(large, order[:, :count], True, axis=1)
        codes[rows] = np.packbits(large, axis=1)
    return codes


def unpack(
    codes: ArrayLike, magnitudes: ArrayLike | None = None, levels: tuple[float, float] = LEVELS
) -> NDArray[np.float32]:
    """What a code says of its vector: uint8[n, bits/8] → float32[n, bits], ±1, or ±level with two planes."""
    signs = np.unpackbits(checked_codes(codes), axis=1).astype(np.float32) * 2 - 1
    if magnitudes is None:
        return signs
    large = np.unpackbits(checked_codes(magnitudes), axis=1)
    if large.shape != signs.shape:
        raise InvalidInput(f"magnitudes {large.shape} and signs {signs.shape} differ in shape")
    return signs * np.asarray(checked_levels(levels), np.float32)[large]


@dataclass(frozen=True)
class Questions:
    """Questions on their way through a search: `vectors` score, `codes` find candidates.

    vectors: float32[q, bits]; codes: uint8[q, bits/8], made from the vectors unless a transform made them otherwise.
    """

    vectors: NDArray[np.float32]
    codes: Codes = field(default=None)  # type: ignore[arg-type]  # filled in below

    def __post_init__(self) -> None:
        """Check, and make what was not given."""
        given = checked_vectors(self.vectors)
        codes = pack(given) if self.codes is None else checked_codes(self.codes)
        if codes.shape != (len(given), given.shape[1] // 8):
            raise InvalidInput(f"question codes {codes.shape} do not fit question vectors {given.shape}")
        with overflow_is_infinite():
            vectors = finite(np.ascontiguousarray(given, np.float32))
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "codes", codes)

    def __len__(self) -> int:
        """How many questions."""
        return len(self.vectors)


class RowMask:
    """Which rows a search may return, one bit a row: what filters give, and an eighth of bool[n].

    Masks of the same rows combine with &, | and ~. numpy takes one for bool[n].
    """

    __slots__ = ("bits", "rows")

    def __init__(self, bits: NDArray[np.uint8], rows: int) -> None:
        """bits: uint8[ceil(rows / 8)], row i's is bit i % 8 (1 << i % 8) of byte i // 8; none behind the last row."""
        if bits.dtype != np.uint8 or bits.shape != (-(-rows // 8),):
            raise InvalidInput(
                f"the bits of {rows} rows are uint8[{-(-rows // 8)}], not {bits.dtype}{list(bits.shape)}"
            )
        if rows % 8 and bits[-1] >> (rows % 8):
            raise InvalidInput(f"the mask has bits beyond its last row, {rows - 1}")
        self.bits, self.rows = bits, rows

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> RowMask:
        """The same as bool[n]."""
        return cls(np.packbits(mask, bitorder="little"), len(mask))

    @classmethod
    def none(cls, rows: int) -> RowMask:
        """No row at all."""
        return cls(np.zeros(-(-rows // 8), np.uint8), rows)

    def __len__(self) -> int:
        """How many rows there are, in the mask or not."""
        return self.rows

    def __repr__(self) -> str:
        """How many rows, of how many."""
        return f"RowMask({self.count():,} of {self.rows:,} rows)"

    def __eq__(self, other: object) -> bool:
        """The same rows of as many."""
        return isinstance(other, RowMask) and self.rows == other.rows and bool((self.bits == other.bits).all())

    __hash__ = None  # type: ignore[assignment]  # its bits may be changed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.bool_]:
        """As bool[n]."""
        return np.unpackbits(self.bits, count=self.rows, bitorder="little").view(np.bool_)

    def count(self) -> int:
        """How many rows are in the mask."""
        return int.from_bytes(self.bits.tobytes(), "little").bit_count()

    def __and__(self, other: RowMask) -> RowMask:
        """The rows that are in both."""
        return RowMask(self.bits & self._like(other), self.rows)

    def __or__(self, other: RowMask) -> RowMask:
        """The rows that are in one of them, or in both."""
        return RowMask(self.bits | self._like(other), self.rows)

    def __invert__(self) -> RowMask:
        """The other rows."""
        bits = ~self.bits
        if self.rows % 8:
            bits[-1] &= (1 << self.rows % 8) - 1
        return RowMask(bits, self.rows)

    def _like(self, other: RowMask) -> NDArray[np.uint8]:
        if self.rows != other.rows:
            raise InvalidInput(f"a mask of {self.rows} rows and one of {other.rows} do not go together")
        return other.bits


Mask: TypeAlias = NDArray[np.bool_] | RowMask


# ---- checks, in the words of the caller ----


def checked_vectors(vectors: ArrayLike) -> Floats:
    """The same as an array float[n, width]; anything else is InvalidInput."""
    array = as_array(vectors)
    if array.ndim != 2:
        raise InvalidInput(
            f"vectors must have two axes [n, dimensions], not the shape {array.shape}; one vector is vector[None]"
        )
    if array.dtype.kind != "f":
        raise InvalidInput(f"vectors must be floats, not {array.dtype}")
    return array


def as_array(values: ArrayLike) -> NDArray[Any]:
    """np.asarray, but what is no array is InvalidInput."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidInput(f"this is not an array of numbers: {error}") from error


def checked_bits(bits: int) -> int:
    """A width that a code can have: a multiple of 8 from 8 to 4096."""
    if bits % 8 or not MIN_BITS <= bits <= MAX_BITS:
        raise InvalidInput(
            f"a code has a multiple of 8 bits from {MIN_BITS} to {MAX_BITS}; the vectors have {bits} dimensions"
        )
    return bits


def checked_codes(codes: ArrayLike) -> Codes:
    """The same as a C-contiguous array uint8[n, 1..512]."""
    array = as_array(codes)
    if array.ndim != 2 or array.dtype != np.uint8 or not MIN_BITS <= array.shape[1] * 8 <= MAX_BITS:
        raise InvalidInput(
            f"codes must be uint8[n, 1 to {MAX_BITS // 8}], not {array.dtype}{list(array.shape)}; bpr.pack makes them"
        )
    return np.ascontiguousarray(array)


def checked_levels(levels: tuple[float, float]) -> tuple[float, float]:
    """Two finite levels, the smaller first."""
    low, high = (float(level) for level in levels)
    if not (np.isfinite([low, high]).all() and 0 <= low <= high):
        raise InvalidInput(f"levels must be two finite numbers, 0 <= low <= high, not {tuple(levels)}")
    return low, high


def overflow_is_infinite() -> np.errstate:
    """Values beyond float32 become infinite without a warning: `finite` refuses them next."""
    return np.errstate(over="ignore", invalid="ignore")


def finite(vectors: Any, first_row: int = 0, step: int = 1) -> Any:
    """The same array; NaN or infinity in it is InvalidInput, which names the row (row i here is first_row + i·step)."""
    if not np.isfinite(vectors).all():
        row = first_row + step * int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise InvalidInput(f"vector {row} contains NaN or infinity: its bits would mean nothing")
    return vectors


def blocks(rows: int) -> Iterator[slice]:
    """Slices of at most BLOCK_ROWS that cover [0, rows)."""
    return (slice(first, min(first + BLOCK_ROWS, rows)) for first in range(0, rows, BLOCK_ROWS))


# ---- the reference: the paper's definitions in numpy ----

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int32)


def hamming_reference(codes: Codes, questions: Codes) -> NDArray[np.int32]:
    """Number of differing bits: uint8[n, w], uint8[q, w] → int32[q, n]."""
    distances = [_ONES[codes ^ question].sum(axis=1, dtype=np.int32) for question in questions]
    return np.array(distances, np.int32).reshape(len(questions), len(codes))


def candidates_reference(
    codes: Codes,
    questions: Codes,
    l: int,
    mask: Mask | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The l nearest live rows of each question by (distance, row): int64[q, l], int32[q, l]."""
    live = np.arange(len(codes)) if mask is None else np.flatnonzero(mask)
    distances = hamming_reference(codes[live], questions)
    order = np.argsort(distances, axis=1, kind="stable")[:, :l]  # stable: equal distances stay in the order of rows
    return live[order].astype(np.int64), np.take_along_axis(distances, order, axis=1)


def scores_reference(
    vectors: Floats, codes: Codes, magnitudes: Codes | None = None, levels: tuple[float, float] = LEVELS
) -> NDArray[np.float64]:
    """⟨e_q, h_p⟩ with h_p = ±1, or ±level with two planes, in float64: float[q, bits] → float64[q, n]."""
    scores = vectors.astype(np.float64) @ unpack(codes, magnitudes, levels).astype(np.float64).T
    return np.asarray(scores, np.float64)


def best_reference(scores: NDArray[Any], rows: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The k best by (score descending, row); scores, rows: [q, m]."""
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
