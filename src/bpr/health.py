"""The health of codes: whether their bits are balanced, alive, independent, and tell passages apart.

`bpr info` calls it. Pure numpy over the sign plane: it needs no kernel, and must not know files, text or how its report
is shown. Everything is measured on rows spread evenly over the index, so that a large one takes no longer than a small.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .codes import Codes, blocks, checked_codes
from .errors import InvalidInput

BIT_ROWS = 1 << 16  # rows that bits are counted on
CORRELATION_ROWS = 1 << 13  # rows for correlations: their cost grows with bits², and 8192 tell 0.01 from 0.02
PAIR_ROWS = 1000  # rows whose distances to each other are taken
BINS = 16  # bars of the histogram, at most
BALANCED = (0.1, 0.9)  # the share of ones of a bit that is worth its place
DEAD = 0.98  # a bit that has one value in more rows than this
FEW_ROWS = 100  # with fewer, chance alone looks like illness
_MOST_NUMBERS = 8  # bit numbers named in a sentence


@dataclass(frozen=True, slots=True)
class Balance:
    """The share of ones in each bit: over all bits, and how many bits are outside BALANCED."""

    mean: float
    min: float
    max: float
    unbalanced: int


@dataclass(frozen=True, slots=True)
class Correlation:
    """Pearson's r between two bits: the mean of |r| over all pairs of bits, and the pair with the largest |r|."""

    mean: float
    strongest: float
    pair: tuple[int, int]
    rows: int


@dataclass(frozen=True, slots=True)
class Distances:
    """Hamming distances between the rows of a sample.

    `nearest_…` are from a row to its nearest other row in the sample. `independent_bits` is how many independent bits
    would spread distances as much as these codes do (Daugman's degrees of freedom): at most the bits of a code.
    `histogram`: (from, to, pairs) with both ends inside, ascending and without gaps.
    """

    pairs: int
    mean: float
    spread: float
    min: int
    max: int
    nearest_mean: float
    nearest_min: int
    nearest_max: int
    independent_bits: float
    histogram: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Health:
    """What `measure` found. Bit i is the i-th value of a (transformed) vector; entropy is in bits.

    dead: the numbers of bits that have one value in more than 98 % of the sample. entropy: of each bit, on average;
    entropy_total: their sum, what the code could say at most. duplicates: the share of sampled rows whose code an
    earlier one has too. correlation is None where fewer than two bits vary, distances where there is a single row.
    """

    rows: int
    sampled: int
    bits: int
    balance: Balance
    entropy: float
    entropy_total: float
    dead: tuple[int, ...]
    correlation: Correlation | None
    distances: Distances | None
    duplicates: float

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict, warnings included."""
        return {**asdict(self), "warnings": self.warnings()}

    def warnings(self) -> list[str]:
        """What is wrong, each in a sentence that says what to do; nothing where all is well."""
        if self.rows < FEW_ROWS:
            return [f"only {_count(self.rows, 'passage')}: too few to judge the codes by; look again with {FEW_ROWS}"]
        found = (self._dead(), self._unbalanced(), self._correlated(), self._crowded(), self._repeated())
        return [sentence for sentence in found if sentence]

    def _dead(self) -> str | None:
        if not self.dead:
            return None
        return (
            f"{len(self.dead)} of {_count(self.bits, 'bit')} {'is' if len(self.dead) == 1 else 'are'} dead, the same "
            f"in more than {DEAD:.0%} of the passages ({_numbers(self.dead)}): room that tells nothing apart; "
            "try --center --rotate, or train longer"
        )

    def _unbalanced(self) -> str | None:
        lopsided = self.balance.unbalanced - len(self.dead)
        if lopsided <= self.bits / 10:
            return None
        return (
            f"{lopsided} more of {_count(self.bits, 'bit')} are ones in less than {BALANCED[0]:.0%} or more than "
            f"{BALANCED[1]:.0%} of the passages: try --center"
        )

    def _correlated(self) -> str | None:
        if self.correlation is None:
            return None
        if self.correlation.mean > 0.1 + _chance(self.correlation.rows):
            return (
                f"bits repeat each other (mean |r| {self.correlation.mean:.2f}): the code says less than its length; "
                "try --center --rotate, or fewer bits"
            )
        if abs(self.correlation.strongest) > 0.95:
            first, second = self.correlation.pair
            return f"bits {first} and {second} say the same (r {self.correlation.strongest:+.2f}): try --rotate"
        return None

    def _crowded(self) -> str | None:
        if self.distances is None or self.distances.mean >= self.bits / 4:
            return None
        return (
            f"codes crowd together: two passages differ in {self.distances.mean / self.bits:.0%} of the bits on "
            "average, where 50% would be best; try --center"
        )

    def _repeated(self) -> str | None:
        if self.duplicates <= 0.01:
            return None
        return (
            f"{self.duplicates:.1%} of the passages have the code of another one, and only their row orders them: "
            "remove repeated passages, or use more bits (--rotate --bits N)"
        )


def measure(codes: ArrayLike) -> Health:
    """The health of sign codes, uint8[n, bits/8] with n >= 1; an array or a memory map, of which a sample is read."""
    signs = checked_codes(codes)
    if not len(signs):
        raise InvalidInput("there are no codes to measure: the index holds no passages")
    sample = signs[spread(len(signs), BIT_ROWS)]  # uint8[m, bits/8]
    bits = sample.shape[1] * 8
    ones = _ones(sample)  # float64[bits], the share of ones
    entropy = _entropy(ones)
    low, high = BALANCED
    return Health(
        rows=len(signs),
        sampled=len(sample),
        bits=bits,
        balance=Balance(
            float(ones.mean()), float(ones.min()), float(ones.max()), int(((ones < low) | (ones > high)).sum())
        ),
        entropy=float(entropy.mean()),
        entropy_total=float(entropy.sum()),
        dead=tuple(np.flatnonzero(np.maximum(ones, 1 - ones) > DEAD).tolist()),
        correlation=_correlation(signs[spread(len(signs), CORRELATION_ROWS)]),
        distances=_distances(signs[spread(len(signs), PAIR_ROWS)]),
        duplicates=1 - len(np.unique(sample.view(f"V{sample.shape[1]}"))) / len(sample),
    )


def spread(rows: int, most: int = BIT_ROWS) -> NDArray[np.int64]:
    """At most so many of the rows, ascending and evenly spaced, the first and the last among them."""
    return np.linspace(0, rows - 1, min(rows, most)).round().astype(np.int64)


def _ones(codes: Codes) -> NDArray[np.float64]:
    """The share of ones in each bit: uint8[n, bits/8] → float64[bits]."""
    counts = np.zeros(codes.shape[1] * 8, np.int64)
    for rows in blocks(len(codes)):
        counts += np.unpackbits(codes[rows], axis=1).sum(axis=0, dtype=np.int64)
    return np.asarray(counts / len(codes), np.float64)


def _entropy(ones: NDArray[np.float64]) -> NDArray[np.float64]:
    """−p log p − (1 − p) log(1 − p) in bits, 0 at both ends."""
    shares = np.stack((ones, 1 - ones))
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(np.abs((shares * logs).sum(axis=0)), np.float64)


def _correlation(codes: Codes) -> Correlation | None:
    """Over the bits that vary at all: a constant has no correlation with anything."""
    values = np.unpackbits(codes, axis=1)
    alive = np.flatnonzero(values.any(axis=0) & ~values.all(axis=0))
    if len(alive) < 2:
        return None
    standard = values[:, alive].astype(np.float32)  # float32 as it can be large: bits² numbers, at most 64 MB
    standard -= standard.mean(axis=0)
    standard /= standard.std(axis=0)
    r = standard.T @ standard
    r /= len(codes)
    np.fill_diagonal(r, 0)
    size = np.abs(r)
    first, second = divmod(int(size.argmax()), len(alive))
    strongest = max(-1.0, min(float(r[first, second]), 1.0))
    mean = min(float(size.sum(dtype=np.float64) / (len(alive) * (len(alive) - 1))), 1.0)
    return Correlation(mean, strongest, (int(alive[first]), int(alive[second])), len(codes))


def _distances(codes: Codes) -> Distances | None:
    if len(codes) < 2:
        return None
    bits = codes.shape[1] * 8
    signs = np.unpackbits(codes, axis=1).astype(np.float32) * 2 - 1
    table = ((bits - signs @ signs.T) / 2).astype(np.int64)  # int64[n, n]; exact: whole numbers below 2²⁴
    pairs = table[np.triu_indices(len(codes), 1)]
    np.fill_diagonal(table, bits + 1)  # a row is not its own neighbour
    nearest = table.min(axis=1)
    mean, spread = float(pairs.mean()), float(pairs.std())
    return Distances(
        pairs=len(pairs),
        mean=mean,
        spread=spread,
        min=int(pairs.min()),
        max=int(pairs.max()),
        nearest_mean=float(nearest.mean()),
        nearest_min=int(nearest.min()),
        nearest_max=int(nearest.max()),
        independent_bits=min(mean * (bits - mean) / spread**2, float(bits)) if spread else 0.0,
        histogram=_histogram(pairs),
    )


def _histogram(distances: NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    """(from, to, how many) in at most BINS bins of one width, a whole number."""
    low, high = int(distances.min()), int(distances.max())
    width = -(-(high - low + 1) // BINS)
    counts = np.bincount((distances - low) // width)
    starts = range(low, high + 1, width)
    return tuple((start, start + width - 1, int(count)) for start, count in zip(starts, counts, strict=True))


def _chance(rows: int) -> float:
    """The mean |r| that independent bits show in so many rows."""
    return math.sqrt(2 / (math.pi * rows))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _numbers(numbers: tuple[int, ...]) -> str:
    named = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
    return named if len(numbers) <= _MOST_NUMBERS else f"{named}, …"
