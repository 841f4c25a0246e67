"""From questions to rows, by BM25 over all segments of a bundle.

segments.py calls it through `lexical`. It knows counts of words and rows, and no codes; how its ranking is joined with
that of the codes is fusion.py's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..codes import Mask, RowMask
from ..errors import Cancelled, DeadlineExceeded, InvalidInput
from ..kernels import NO_LIMITS, Limits
from .layout import ROWS
from .reader import Lexical
from .words import Numbers, words_of

K1, B = 0.9, 0.4
MOST_K1 = 1e6
SCORED_AT_ONCE = 1 << 22  # rows: bounds the memory of searching, to 8 bytes a row
SLACK = 1 + 1e-6  # for what rounding may add to a sum

Ranked: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]  # rows and scores of a question, the best first


def search(
    segments: Sequence[Lexical],
    questions: Sequence[str],
    n: int,
    *,
    mask: Mask | None = None,
    limits: Limits = NO_LIMITS,
    k1: float = K1,
    b: float = B,
) -> list[Ranked]:
    """Of each question up to n rows that share a word with it, by (BM25 descending, row): int64[m], float32[m].

    segments: of one bundle, whose rows are counted through. mask: the rows that may be found.
    k1: how much more a second occurrence of a word counts; b: how much less a word counts in a long passage.

    BM25 = Σ over the question's words of ln(1 + (N − df + ½) / (df + ½)) · tf / (tf + k1 · (1 − b + b · length/mean)).
    """
    if n < 1 or not (0 <= k1 <= MOST_K1 and 0 <= b <= 1):
        raise InvalidInput(f"n must be at least 1, k1 from 0 to {MOST_K1:g} and b from 0 to 1; got {n}, {k1} and {b}")
    rows = sum(map(len, segments))
    alive = mask if mask is None or isinstance(mask, RowMask) else RowMask.of(np.asarray(mask))
    if alive is not None and len(alive) != rows:
        raise InvalidInput(f"the mask is of {len(alive)} rows, and there are {rows}")
    if len({segment.stopwords for segment in segments}) > 1:
        raise InvalidInput("the segments leave out different words: write them with the same stopwords")
    mean = max(1, sum(segment.tokens for segment in segments)) / max(1, rows)
    numbers, found = Numbers(), []
    for question in questions:
        _check_time(limits)
        counted = Counter(words_of(question))
        for word in segments[0].stopwords & counted.keys() if segments else ():
            del counted[word]
        asked = dict(zip(map(numbers.__getitem__, counted), counted.values(), strict=True))
        found.append(_ranked(segments, asked, n, alive, _Norm(k1 * (1 - b), k1 * b / mean)))
    return found


def _ranked(segments: Sequence[Lexical], asked: dict[int, int], n: int, alive: RowMask | None, norm: _Norm) -> Ranked:
    """The n best rows of one question. asked: how often it has each word."""
    words = np.array(sorted(asked), np.uint64)
    places = [segment.find(words) for segment in segments]
    df = sum((ends - starts for starts, ends in places), np.zeros(len(words), np.int64))
    weights = np.log1p((sum(map(len, segments)) - df + 0.5) / (df + 0.5)) * [asked[int(word)] for word in words]
    order = np.argsort(-weights, kind="stable")  # rare words first: they decide, and their lists are short
    best, offset = _Best(n, alive), 0
    for segment, (starts, ends) in zip(segments, places, strict=True):
        lists = [(*segment.postings(int(starts[at]), int(ends[at])), float(weights[at])) for at in order]
        for first in range(0, len(segment), SCORED_AT_ONCE):
            size = min(SCORED_AT_ONCE, len(segment) - first)
            _score_block(segment, lists, range(first, first + size), offset, norm, best)
        offset += len(segment)
    return best.rows, best.scores


class _Norm(NamedTuple):
    """What the length of a passage does to its words: tf / (tf + base + by · length)."""

    base: float
    by: float

    def terms(self, counts: NDArray[np.uint8], lengths: NDArray[np.uint32], weight: float) -> NDArray[np.float64]:
        """What a word of this weight adds to passages that have it so often, and are so long."""
        often = np.maximum(counts, 1).astype(np.float64)  # none was written as 0
        found: NDArray[np.float64] = weight * often / (often + (lengths * self.by + self.base))
        return found


class _Best:
    """The n best rows so far, by (score descending, row)."""

    def __init__(self, n: int, alive: RowMask | None) -> None:
        self._n, self._alive = n, alive
        self.rows, self.scores = np.empty(0, np.int64), np.empty(0, np.float32)

    def allowed(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the rows that may be found."""
        if self._alive is None:
            return rows
        found: NDArray[np.int64] = rows[(self._alive.bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 != 0]
        return found

    def floor(self, scores: NDArray[np.float64]) -> float:
        """What a row must reach to be among the n best of those so far and these, which are others."""
        known = np.append(self.scores, scores)
        return float(np.partition(known, len(known) - self._n)[len(known) - self._n]) if len(known) >= self._n else 0.0

    def add(self, rows: NDArray[np.int64], scores: NDArray[np.float64]) -> None:
        rows, points = np.append(self.rows, rows), np.append(self.scores, scores.astype(np.float32))
        if len(rows) > self._n:  # to sort few is faster than to sort many
            least = np.partition(points, len(points) - self._n)[len(points) - self._n]
            rows, points = rows[points >= least], points[points >= least]
        order = np.lexsort((rows, -points))[: self._n]
        self.rows, self.scores = rows[order], points[order]


_List: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.uint8], float]  # rows, counts, and the weight of their word


def _score_block(segment: Lexical, lists: list[_List], block: range, offset: int, norm: _Norm, best: _Best) -> None:
    """Add the best rows of a block of a segment.

    A word adds less than its weight to a row. So once the weights of the words that are left sum up to less than the
    n-th best row has already, only rows that were met can still be among the n best, and these few are looked up in the
    long lists of frequent words, which are not read. Each row's terms are added in the order of the words, whatever the
    segments and blocks are, so its score is always the same.
    """
    lists, lengths = [_within(each, block) for each in lists], segment.lengths()
    left = np.append(np.cumsum([weight for _, _, weight in lists][::-1])[::-1], 0.0)
    sums = np.zeros(len(block))
    met: list[NDArray[np.int64]] = []
    count, at, floor = 0, 0, best.floor(sums[:0])
    while at < len(lists) and left[at] * SLACK >= floor:
        rows, counts, weight = lists[at]
        if len(rows) and not block.start <= int(rows.min()) <= int(rows.max()) < block.stop:
            raise segment.corrupt(f"{ROWS} has rows out of their order")
        here = rows.astype(np.int64) - block.start
        before = sums[here]
        sums[here] = before + norm.terms(counts, lengths[rows], weight)
        met.append(best.allowed(here[before == 0] + (block.start + offset)))
        count, at = count + len(met[-1]), at + 1
        if sum(len(some) for some, _, _ in lists[at:]) > count:  # worth a look whether they must be read
            floor = best.floor(sums[np.concatenate(met) - (block.start + offset)])
    found = np.concatenate([np.empty(0, np.int64), *met]) - offset
    scores = sums[found - block.start]
    for number, (some, counts, weight) in enumerate(lists[at:], at):
        kept = (scores + left[number]) * SLACK >= best.floor(scores)
        found, scores = found[kept], scores[kept]
        place = np.searchsorted(some, found)
        has = np.flatnonzero(place < len(some))
        has = has[some[place[has]] == found[has]]
        scores[has] += norm.terms(counts[place[has]], lengths[found[has]], weight)
    best.add(found + offset, scores)


def _within(postings: _List, block: range) -> _List:
    """The part of the list that is about these rows."""
    rows, counts, weight = postings
    start, stop = np.searchsorted(rows, [block.start, block.stop])
    return rows[start:stop], counts[start:stop], weight


def _check_time(limits: Limits) -> None:
    if limits.cancel is not None and limits.cancel.flag[0]:
        raise Cancelled("the search was cancelled")
    if limits.deadline is not None and time.monotonic() >= limits.deadline:
        raise DeadlineExceeded("the search did not end before its deadline")
