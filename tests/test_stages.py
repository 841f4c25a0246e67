"""The paper's two stages over any index."""

from __future__ import annotations

import time

import numpy as np
import pytest

import bpr
from bpr.codes import LEVELS, Questions, best_reference, candidates_reference, pack, scores_reference
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.index import Planes, ScanIndex
from bpr.kernels import Cancel

ROWS, BITS = 2000, 64
CODES = np.random.default_rng(1).integers(0, 256, (ROWS, BITS // 8), dtype=np.uint8)
LARGE = np.random.default_rng(2).integers(0, 256, (ROWS, BITS // 8), dtype=np.uint8)
# Whole numbers and levels that are powers of two: scores are exact in float32, so that the reference's order is too.
VECTORS = np.random.default_rng(3).integers(-50, 50, (9, BITS)).astype(np.float32)
ONE, TWO = ScanIndex(CODES), ScanIndex(CODES, LARGE, (0.5, 2.0))
MASK = np.random.default_rng(4).random(ROWS) < 0.2


def reference(index: ScanIndex, k: int, candidates: int, mask: np.ndarray | None) -> tuple:
    rows, _ = candidates_reference(CODES, pack(VECTORS), candidates, mask)
    scores = scores_reference(VECTORS, CODES, index.planes.magnitudes, index.planes.levels or LEVELS)
    return best_reference(np.take_along_axis(scores, rows, axis=1), rows, k)


def assert_hits(hits: bpr.Hits, expected: tuple) -> None:
    assert (hits.rows.dtype, hits.scores.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(hits.rows, expected[0])
    np.testing.assert_array_equal(hits.scores, expected[1])


@pytest.mark.parametrize("index", [ONE, TWO], ids=["one plane", "two planes"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize(("k", "candidates"), [(1, 1), (10, 10), (10, 100), (100, 1000), (7, ROWS), (300, 5 * ROWS)])
def test_the_two_stages_are_the_reference(index: ScanIndex, mask, k: int, candidates: int) -> None:
    assert_hits(bpr.search(index, VECTORS, k, candidates, mask=mask), reference(index, k, candidates, mask))


@pytest.mark.parametrize("index", [ONE, TWO], ids=["one plane", "two planes"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_without_candidate_generation_every_row_is_scored(index: ScanIndex, mask) -> None:
    assert_hits(bpr.search(index, VECTORS, 50, candidates=None, mask=mask), reference(index, 50, ROWS, mask))


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_without_rerank_the_score_is_the_inner_product_of_signs(mask) -> None:
    hits = bpr.search(ONE, VECTORS, 50, 200, rerank=False, mask=mask)
    rows, far = candidates_reference(CODES, pack(VECTORS), 50, mask)
    assert_hits(hits, (rows, BITS - 2 * far))
    signs = bpr.unpack(CODES)[hits.rows]
    np.testing.assert_array_equal(hits.scores, np.einsum("qkb,qb->qk", signs, bpr.unpack(pack(VECTORS))))
    assert hits.rows.flags.owndata  # not a view that keeps all candidates alive


def test_the_defaults_are_the_papers() -> None:
    assert_hits(bpr.search(ONE, VECTORS), reference(ONE, 100, 1000, None))


def test_questions_may_bring_their_own_codes() -> None:
    asked = Questions(VECTORS, np.zeros((9, BITS // 8), np.uint8))
    rows, _ = candidates_reference(CODES, asked.codes, 30)
    scores = np.take_along_axis(scores_reference(VECTORS, CODES), rows, axis=1)
    assert_hits(bpr.search(ONE, asked, 10, 30), best_reference(scores, rows, 10))
    assert_hits(bpr.search(ONE, VECTORS.astype(np.float64).tolist(), 10, 30), reference(ONE, 10, 30, None))


@pytest.mark.parametrize("how", [{}, {"rerank": False}, {"candidates": None}])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_more_than_there_is_gives_what_there_is(how: dict, rows: int) -> None:
    hits = bpr.search(ScanIndex(CODES[:rows]), VECTORS, 100, **{"candidates": 1000, **how})
    assert hits.rows.shape == hits.scores.shape == (9, rows)
    assert all(sorted(each) == list(range(rows)) for each in hits.rows.tolist())  # never −1, never a repeat
    one = np.zeros(ROWS, bool)
    one[5] = True
    assert bpr.search(ONE, VECTORS, 100, **{"candidates": 1000, **how}, mask=one).rows.tolist() == [[5]] * 9


def test_no_questions_give_no_hits() -> None:
    for how in ({}, {"rerank": False}, {"candidates": None}):
        hits = bpr.search(ONE, np.zeros((0, BITS), np.float32), 10, **how)
        assert hits.rows.shape == hits.scores.shape == (0, 10)


@pytest.mark.parametrize("how", [{}, {"rerank": False}, {"candidates": None}])
@pytest.mark.parametrize("k", [0, -1])
def test_no_hits_cannot_be_asked_for(how: dict, k: int) -> None:
    with pytest.raises(InvalidInput, match=f"k must be at least 1, not {k}"):
        bpr.search(ONE, VECTORS, k, **how)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"k": 10, "candidates": 9}, "9 candidates cannot give 10 hits"),
        ({"k": 10, "candidates": 0}, "0 candidates cannot give 10 hits"),
        ({"k": 10, "candidates": None, "rerank": False}, "cannot go without rerank"),
        ({"mask": np.ones(3, bool)}, r"bool\[2000\]"),
        ({"mask": np.ones(ROWS)}, r"bool\[2000\]"),
        ({"mask": [[True], [True, False]]}, "inhomogeneous"),
        ({"threads": 0}, "threads"),
        ({"questions": np.ones((1, 72))}, "72 dimensions, the index has 64 bits"),
        ({"questions": np.ones(64)}, "two axes"),
        ({"questions": np.full((1, 64), np.nan)}, "NaN"),
        ({"questions": np.full((1, 64), 3e37, np.float32)}, "astronomically large"),
    ],
)
def test_what_cannot_be_searched(arguments: dict, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        bpr.search(**{"index": ONE, "questions": VECTORS, **arguments})


@pytest.mark.parametrize("how", [{}, {"rerank": False}, {"candidates": None}])
def test_the_limits_reach_both_stages(how: dict) -> None:
    with pytest.raises(DeadlineExceeded):
        bpr.search(ONE, VECTORS, 10, **how, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        bpr.search(ONE, VECTORS, 10, **how, cancel=cancel)
    expected = bpr.search(ONE, VECTORS, 10, **how)
    for threads in (1, 2, 8):
        assert_hits(bpr.search(ONE, VECTORS, 10, **how, threads=threads, deadline=time.monotonic() + 60), expected)


# ── any index ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Flat:
    """A float baseline, as small as the protocol allows: its scores are final."""

    scores_are_final = True

    def __init__(self, vectors: np.ndarray) -> None:
        self.planes = Planes(pack(vectors))
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def candidates(self, questions: Questions, l: int, *, mask=None, threads=None, deadline=None, cancel=None):
        scores = questions.vectors @ self.vectors.T
        if mask is not None:
            scores = scores[:, mask]
        rows = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
        return best_reference(scores, np.tile(rows, (len(scores), 1)), l)


def test_final_scores_are_not_reranked() -> None:
    passages = np.random.default_rng(6).standard_normal((400, BITS)).astype(np.float32)
    exact = VECTORS @ passages.T
    hits = bpr.search(Flat(passages), VECTORS, 5)
    assert_hits(hits, best_reference(exact, np.tile(np.arange(400), (9, 1)), 5))
    assert bpr.search(Flat(passages), VECTORS, 5, mask=np.arange(400) % 100 == 3).rows.shape == (9, 4)
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        bpr.search(Flat(passages), VECTORS, 0)


def test_magnitudes_are_announced_before_they_are_read() -> None:
    """Until `touch` has been called the second plane holds nonsense: what is read before is wrong."""
    hidden = np.zeros_like(LARGE)
    told: list = []

    def touch(rows: np.ndarray | None) -> None:
        told.append(rows)
        some = np.arange(ROWS) if rows is None else np.unique(rows)
        hidden[some] = LARGE[some]

    index = ScanIndex(CODES, hidden, (0.5, 2.0), touch)
    assert_hits(bpr.search(index, VECTORS, 10, 100), reference(TWO, 10, 100, None))
    np.testing.assert_array_equal(told[0], candidates_reference(CODES, pack(VECTORS), 100)[0])
    assert_hits(bpr.search(index, VECTORS, 10, None), reference(TWO, 10, ROWS, None))
    assert told[1] is None
    bpr.search(index, VECTORS, 10, 100, rerank=False)  # reads no magnitudes
    assert len(told) == 2


def test_what_touch_refuses_is_not_served() -> None:
    def refuse(rows: np.ndarray | None) -> None:
        raise bpr.CorruptBundle("damaged")

    index = ScanIndex(CODES, LARGE, (0.5, 2.0), refuse)
    for candidates in (100, None):
        with pytest.raises(bpr.CorruptBundle, match="damaged"):
            bpr.search(index, VECTORS, 10, candidates)


class Listening(ScanIndex):
    """An index that remembers how it was asked."""

    def candidates(self, *given, **how):
        self.how = how
        return super().candidates(*given, **how)


def test_the_index_hears_all_that_the_caller_said() -> None:
    index, cancel, mask, laps = Listening(CODES), Cancel(), np.ones(ROWS, bool), []
    deadline = time.monotonic() + 60
    said = {"mask": mask, "threads": 1, "deadline": deadline, "cancel": cancel}
    bpr.search(index, VECTORS, 10, 100, lap=laps.append, **said)
    assert index.how == said
    assert laps == ["candidates"]
