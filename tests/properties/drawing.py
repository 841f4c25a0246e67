"""What the property tests draw: codes of every width, many ties and duplicates, masks, any alignment.

Hypothesis draws the shapes and a seed, numpy fills the arrays: so large arrays cost nothing to draw and shapes shrink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# The widths of the paper and of MiniLM, whole vectors of every level and their neighbours, and the widest.
WIDTHS = (96, 48, 1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 49, 63, 64, 65, 95, 97, 128, 129, 192, 511, 512)
# Around the places where native/scan.cpp changes its ways: row by row or sliced (6), batches (256).
FEW, MANY = (1, 2, 3, 5, 6, 7, 8, 9, 12, 16, 20), (255, 256, 257, 263, 300)
WORK = 3_000_000  # bytes that the slow reference may look at

widths = st.sampled_from(WIDTHS) | st.integers(1, 512)
counts = st.sampled_from(4 * FEW + MANY) | st.integers(1, 20)
# From a few rows over some tiles (64 to 512 rows) to many tasks (256 KiB); the seed picks the number in the range.
rows = st.sampled_from([(0, 3), (0, 65), (65, 1100), (65, 1100), (1100, 10_000), (10_000, 100_001)])
wishes = st.sampled_from(["one", "ten", "some", "some", "all", "more"])
masks = st.sampled_from([None, None, None, "half", "most", "few", "none", "one"])
seeds = st.integers(0, 2**32 - 1)
# Not below 1/1024: a product that falls under float32's normal range is not 1e-5 near to anything.
levels = st.tuples(st.just(0.0) | st.floats(2**-10, 1, width=32), st.floats(1, 4, width=32))


@dataclass(frozen=True)
class Case:
    """One search: codes [n, width], questions [q, width], how many are wanted, which rows are live."""

    codes: Bytes
    questions: Bytes
    l: int
    mask: NDArray[np.bool_] | None
    seed: int

    def __repr__(self) -> str:
        shape = f"{len(self.codes)} codes of {self.codes.shape[1]} bytes, {len(self.questions)} questions, l={self.l}"
        live = "all" if self.mask is None else str(self.mask.sum())
        return f"Case({shape}, live={live}, seed={self.seed})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # else Hypothesis prints whole arrays

    def random(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


@st.composite
def cases(draw: st.DrawFn, work: int = WORK) -> Case:
    width, count, seed = draw(widths), draw(counts), draw(seeds)
    random = np.random.default_rng(seed)
    n = min(random.integers(*draw(rows)), work // (width * count))
    codes = draw_codes(random, n, width, draw(st.sampled_from(["random", "clustered", "few", "same", "sparse"])))
    questions = draw_questions(random, codes, count, draw(st.sampled_from(["random", "near", "row", "opposite"])))
    l = {"one": 1, "ten": 10, "some": random.integers(1, n + 2), "all": n + 1, "more": n + 1000}[draw(wishes)]
    mask = draw_mask(random, n, draw(masks))
    return Case(
        at_offset(codes, draw(st.integers(0, 65))), at_offset(questions, draw(st.integers(0, 65))), int(l), mask, seed
    )


def draw_codes(random: np.random.Generator, n: int, width: int, kind: str) -> Bytes:
    if kind == "random":
        return random.integers(0, 256, (n, width), dtype=np.uint8)
    if kind == "clustered":  # a few centres, a few bits flipped: distances pile up
        centres = random.integers(0, 256, (5, width), dtype=np.uint8)[random.integers(0, 5, n)]
        return centres ^ flips(random, (n, width), 0.01)
    if kind == "few":  # duplicates of four codes: nearly all rows tie
        return random.integers(0, 256, (4, width), dtype=np.uint8)[random.integers(0, 4, n)]
    if kind == "same":
        return np.full((n, width), random.integers(0, 256), np.uint8)
    return flips(random, (n, width), 0.02)


def draw_questions(random: np.random.Generator, codes: Bytes, count: int, kind: str) -> Bytes:
    n, width = codes.shape
    if kind == "random" or n == 0:
        return random.integers(0, 256, (count, width), dtype=np.uint8)
    chosen = codes[random.integers(0, n, count)]
    if kind == "near":
        return chosen ^ flips(random, chosen.shape, 0.05)
    return chosen if kind == "row" else ~chosen  # distance 0; distance `bits`, the largest there is


def draw_mask(random: np.random.Generator, n: int, kind: str | None) -> NDArray[np.bool_] | None:
    if kind is None:
        return None
    mask = np.zeros(n, np.bool_)
    if kind == "half":
        mask = random.random(n) < 0.5
    elif kind == "most":
        mask = random.random(n) < 0.9
    elif kind == "few":
        mask = random.random(n) < 0.03
    elif kind == "one" and n:
        mask[random.integers(0, n)] = True
    return mask


def flips(random: np.random.Generator, shape: tuple[int, int], share: float) -> Bytes:
    """Bytes in which about this share of bits is set (a whole bit a byte at most)."""
    hit = random.random(shape, np.float32) < 8 * share
    return np.where(hit, np.left_shift(1, random.integers(0, 8, shape)), 0).astype(np.uint8)


def at_offset(array: NDArray, offset: int) -> NDArray:
    """A copy that begins `offset` bytes behind a 64-byte boundary."""
    buffer = np.empty(array.nbytes + 192, np.uint8)
    first = -buffer.ctypes.data % 64 + offset
    copy = buffer[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def draw_vectors(random: np.random.Generator, count: int, bits: int, exponent: int = 0) -> NDArray[np.float32]:
    """Float questions of about 10^exponent, some values exactly zero."""
    vectors = random.standard_normal((count, bits)) * 10.0**exponent
    vectors[random.random(vectors.shape) < 0.05] = 0
    return vectors.astype(np.float32)
