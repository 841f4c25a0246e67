"""A filter is what is left of all rows after it: for any metadata, any condition, any kind of search."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from drawing import Case, cases, draw_vectors, seeds
from hypothesis import given
from hypothesis import strategies as st

from bpr import bundle, kernels
from bpr.codes import Questions, RowMask
from bpr.columns import Columns, ColumnsOut, writer
from bpr.filters import OPERATORS, matches, parse, path, spelt
from bpr.kernels import Limits

numbers = st.sampled_from([0, 1, 1.0, -1, 2, 0.5, 2**53, 2**53 + 1, float(2**53), -(2**70), 1e300, 5e-324, -0.0])
strings = st.sampled_from(["", "a", "b", "aa", "é", "\U0001f600", "\uffff", '"', "\n", "1", "null"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=4
)
scalars = st.none() | st.booleans() | numbers | strings
keys = st.sampled_from(["a", "b", "c", "and", "x.y", "$or", "\\"])
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3))
metas = st.dictionaries(keys, trees, max_size=4)
fields = st.lists(keys, min_size=1, max_size=3).map(lambda some: spelt(tuple(some)))


@st.composite
def operators(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {"exists": st.booleans(), "in": st.lists(scalars, max_size=4)}
    values["not in"] = values["in"]
    ordered = numbers | strings
    return {
        operator: draw(values.get(operator, ordered if operator[0] in "<>" else scalars))
        for operator in draw(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=3, unique=True))
    }


tests = st.dictionaries(fields, scalars | operators(), min_size=1, max_size=2)
wheres = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, max_size=3)}),
    ),
    max_leaves=6,
)


@given(st.lists(metas, max_size=20), st.lists(wheres, min_size=1, max_size=5), st.integers(1, 9), st.integers(1, 9))
def test_columns_give_the_rows_that_match(some: list[dict], asked: list[dict], step: int, at_once: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "LEAST_STEP", step)
        patch.setattr(writer, "SORTED_AT_ONCE", at_once)
        out = ColumnsOut()
        for row, meta in enumerate(some):
            out.add(row, json.loads(json.dumps(meta)))
        with bundle.create(Path(folder) / "b") as new:
            out.write(new)
            new.publish({})
        with bundle.open(Path(folder) / "b") as opened:
            columns = Columns(opened)
        for where in asked:
            condition = parse(where)
            found = np.flatnonzero(columns.rows(condition)).tolist()
            assert found == [row for row, meta in enumerate(some) if matches(condition, meta)]


@given(wheres)
def test_the_same_in_another_order_is_the_same(where: dict) -> None:
    def turned(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: turned(found[key]) for key in reversed(found)}
        return [turned(each) for each in reversed(found)] if isinstance(found, list) else found

    assert parse(where) == parse(turned(where))
    assert hash(parse(where)) == hash(parse(json.loads(json.dumps(where))))


@given(st.lists(st.text(max_size=5), min_size=1, max_size=16))
def test_any_key_can_be_spelt(some: list[str]) -> None:
    assert path(spelt(tuple(some))) == tuple(some)


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────

bools = st.integers(0, 200).flatmap(lambda n: st.tuples(*[st.lists(st.booleans(), min_size=n, max_size=n)] * 2))


@given(bools)
def test_masks_are_sets_of_rows(pair: tuple[list[bool], list[bool]]) -> None:
    one, other = (np.array(each, np.bool_) for each in pair)
    mask, second = RowMask.of(one), RowMask.of(other)
    np.testing.assert_array_equal(mask, one)
    np.testing.assert_array_equal(mask & second, one & other)
    np.testing.assert_array_equal(mask | second, one | other)
    np.testing.assert_array_equal(~mask, ~one)
    assert mask.count() == one.sum() and len(mask) == len(one)
    assert (mask == second) == (one == other).all() and ~~mask == mask
    rows = np.flatnonzero(other).astype(np.uint32)
    kernels.mark_rows(mask, rows)
    assert mask == RowMask.of(one | other)
    kernels.mark_rows(mask, rows.astype(np.uint64), toggle=True)
    assert mask == RowMask.of(one & ~other)


densities = st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0, "blocks"])


def draw_density(random: np.random.Generator, n: int, density: float | str) -> np.ndarray:
    if density == "blocks":  # stretches of all, none and few: a search changes its ways on the way
        length = int(random.integers(1, 6000))
        return np.repeat(random.choice([0.0, 1.0, 0.01, 0.7], n // length + 1), length)[:n] > random.random(n)
    return random.random(n) < density


@given(cases(work=1_000_000), densities, st.integers(1, 4))
def test_a_masked_scan_is_a_scan_of_everything_then_filtered(case: Case, density: float | str, threads: int) -> None:
    mask = draw_density(case.random(), len(case.codes), density)
    everything, far = kernels.scan(case.codes, case.questions, len(case.codes) + 1)
    for level in kernels.simd_levels():
        with kernels.using_simd(level):
            rows, distances = kernels.scan(
                case.codes, case.questions, case.l, mask=RowMask.of(mask), limits=Limits(threads)
            )
        for found, near, all_rows, all_far in zip(rows, distances, everything, far, strict=True):
            kept = mask[all_rows]
            np.testing.assert_array_equal(found, all_rows[kept][: case.l])
            np.testing.assert_array_equal(near, all_far[kept][: case.l])


@given(cases(work=150_000), densities, seeds, st.integers(1, 4))
def test_masked_scores_are_all_scores_then_filtered(case: Case, density: float | str, seed: int, threads: int) -> None:
    random = np.random.default_rng(seed)
    mask = draw_density(random, len(case.codes), density)
    asked = Questions(draw_vectors(random, len(case.questions), case.codes.shape[1] * 8))
    everything, scores = kernels.scan_scores(case.codes, None, None, asked, len(case.codes) + 1)
    rows, best = kernels.scan_scores(
        case.codes, None, None, asked, case.l, mask=RowMask.of(mask), limits=Limits(threads)
    )
    for found, score, all_rows, all_scores in zip(rows, best, everything, scores, strict=True):
        kept = mask[all_rows]
        np.testing.assert_array_equal(found, all_rows[kept][: case.l])
        np.testing.assert_array_equal(score, all_scores[kept][: case.l])
