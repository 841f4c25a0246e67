"""BM25 on random texts, cut into random segments, against its definition; and rankings fused in any way."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bpr.fusion import reciprocal, weighted
from bpr.lexical import ENGLISH, search
from test_lexical import assert_same, reference, write

WORDS = st.sampled_from(["troy", "Troy!", "war", "épic", "the", "is", "a b", "東京都", "東京", "x1", "homer", "…", ""])
TEXT = st.lists(WORDS, max_size=12).map(" ".join)


@given(
    texts=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=12),
    question=TEXT,
    n=st.integers(1, 6),
    data=st.data(),
)
def test_bm25_over_any_segments_and_any_mask(texts: list[tuple[str, str]], question: str, n: int, data: Any) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)) | st.none())
    cut = sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=3)))
    stopwords = data.draw(st.sampled_from([ENGLISH, frozenset()]))
    bounds = [0, *cut, len(texts)]
    parts = [texts[start:stop] for start, stop in pairwise(bounds)]
    with tempfile.TemporaryDirectory() as folder:
        segments = write(Path(folder) / "b", *parts, stopwords=stopwords)
        whole = write(Path(folder) / "c", texts, stopwords=stopwords)
        alive = None if mask is None else np.array(mask)
        [found] = search(segments, [question], n, mask=alive)
        [same] = search(whole, [question], n, mask=alive)
    np.testing.assert_array_equal(found[0], same[0])
    np.testing.assert_array_equal(found[1], same[1])
    wanted = reference(texts, question, len(texts), mask, stopwords)
    everything = {row: score for row, score in wanted}
    np.testing.assert_allclose(found[1], [score for _, score in wanted][:n], rtol=1e-5)
    np.testing.assert_allclose(found[1], [everything[row] for row in found[0].tolist()], rtol=1e-5)
    if n >= len(wanted):
        assert_same(found, wanted)


RANKING = st.lists(st.integers(0, 30), unique=True, max_size=10)


@given(
    lists=st.lists(RANKING, max_size=4),
    k=st.floats(0, 100),
    data=st.data(),
)
def test_fused_rankings(lists: list[list[int]], k: float, data: Any) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(lists), max_size=len(lists)) | st.none())
    points = [data.draw(st.lists(st.floats(-9, 9, width=32), min_size=len(one), max_size=len(one))) for one in lists]
    scored = [(rows, sorted(some, reverse=True)) for rows, some in zip(lists, points, strict=True)]
    for rows, sums in (reciprocal(lists, k, weights), weighted(scored, weights)):
        assert {*rows.tolist()} == {row for one in lists for row in one} and len({*rows.tolist()}) == len(rows)
        assert sorted(zip(-sums, rows, strict=True)) == list(zip(-sums, rows, strict=True))
    for rows in lists:
        assert reciprocal([rows, []], k)[0].tolist() == rows
