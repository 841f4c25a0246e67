"""Rows that are numbered over several parts, deleted ones left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr.errors import InvalidInput
from bpr.index.rows import Rows

parts = st.lists(st.tuples(st.integers(0, 700), st.sampled_from([0.0, 0.02, 0.5, 1.0])), max_size=5)


@given(parts=parts, seed=st.integers(0, 99))
def test_as_if_the_deleted_rows_had_never_been(parts: list[tuple[int, float]], seed: int) -> None:
    random = np.random.default_rng(seed)
    live = [random.random(size) >= share for size, share in parts]
    rows = Rows([size for size, _ in parts], [np.flatnonzero(~each) for each in live])
    expected = [(part, row) for part, each in enumerate(live) for row in np.flatnonzero(each).tolist()]
    assert len(rows) == len(expected)
    for part, each in enumerate(live):
        inside = random.permutation(np.flatnonzero(each))
        outside = rows.outside(part, inside)
        assert [expected[row] for row in outside.tolist()] == [(part, row) for row in inside.tolist()]
        np.testing.assert_array_equal(rows.inside(part, outside), inside)
        assert [rows.is_deleted(part, row) for row in range(len(each))] == (~each).tolist()
    asked = random.integers(0, len(expected), 50) if expected else np.empty(0, np.int64)
    found = {}
    for part, places, inside in rows.by_part(asked):
        found.update(zip(places.tolist(), ((part, row) for row in inside.tolist()), strict=True))
    assert [found[place] for place in range(len(asked))] == [expected[row] for row in asked.tolist()]
    mask = random.random(len(expected)) < 0.5
    allowed = {each for each, yes in zip(expected, mask.tolist(), strict=True) if yes}
    for part, (own, each) in enumerate(zip(rows.masks(mask), live, strict=True)):
        assert own.tolist() == [(part, row) in allowed for row in range(len(each))]
    for own, each in zip(rows.masks(None), live, strict=True):
        assert own is None if each.all() else np.asarray(own).tolist() == each.tolist()
    starts = np.cumsum([0, *(size for size, _ in parts)])
    through = rows.physical(asked)
    assert through.tolist() == [int(starts[part]) + row for part, row in (expected[each] for each in asked.tolist())]
    np.testing.assert_array_equal(rows.outside_of(through), asked)
    whole = np.concatenate([*live, np.empty(0, bool)])
    together = rows.counted_through(None)
    assert together is None if whole.all() else np.asarray(together).tolist() == whole.tolist()
    masked = np.flatnonzero(np.asarray(rows.counted_through(mask)))
    assert rows.outside_of(masked).tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("mask", [np.ones(3, bool), np.ones(4, np.int8), np.ones((4, 1), bool)])
def test_a_mask_must_fit(mask: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=r"a mask must be bool\[4\]"):
        Rows([2, 3], [np.array([1]), np.empty(0, np.int64)]).masks(mask)
