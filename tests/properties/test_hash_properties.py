"""The hash index is the scan, for any codes, masks, tables, threads and costs; duplicates are those by definition."""

from __future__ import annotations

import numpy as np
from drawing import WIDTHS, Case, cases, draw_codes, draw_mask, flips, masks, seeds
from guard import ends_at_guard, starts_at_guard
from hypothesis import given
from hypothesis import strategies as st

from bpr import kernels
from bpr.codes import candidates_reference, hamming_reference
from bpr.errors import CorruptBundle
from bpr.index import HashIndex, Tables, duplicates
from bpr.index.hash import MEASURED, NEVER_SCAN, Costs
from bpr.kernels import Limits

SIMD = kernels.simd_levels()
# Costs of a slow scan: look-ups that set out, and some that are given up, even among few rows.
DEAR_SCAN = Costs(scan_byte=(3.0, 3.0), batch_byte=(1.0, 1.0))
costs = st.sampled_from([NEVER_SCAN, NEVER_SCAN, DEAR_SCAN, MEASURED])
kinds = st.sampled_from(["random", "clustered", "few", "same", "sparse"])


def some_tables(case: Case, data: st.DataObject) -> Tables:
    n, bits = len(case.codes), case.codes.shape[1] * 8
    width = max((n // 2).bit_length() - 1, 1)
    return Tables.build(case.codes, data.draw(st.none() | st.integers(1, min(40, bits // min(width, bits))), "tables"))


@given(cases(work=300_000), costs, st.integers(1, 4), st.sampled_from(SIMD), st.data())
def test_the_hash_index_is_the_scan(case: Case, what: Costs, threads: int, level: str, data: st.DataObject) -> None:
    index = HashIndex(case.codes, tables=some_tables(case, data), costs=what)
    with kernels.using_simd(level):
        found = index.lookup(case.questions, case.l, mask=case.mask, threads=threads)
    rows, far = candidates_reference(case.codes, case.questions, case.l, case.mask)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.distances, far)
    assert found.rows.shape == rows.shape
    live = len(case.codes) if case.mask is None else int(case.mask.sum())
    assert (found.visited <= live).all()  # no row twice
    assert (found.visited[~found.fell_back] >= rows.shape[1]).all()
    assert what is not NEVER_SCAN or not found.fell_back.any()


@given(cases(work=8_000), st.sampled_from([ends_at_guard, starts_at_guard]), st.sampled_from(["starts", "rows"]), seeds)
def test_no_tables_whatever_make_it_read_outside(case: Case, placed, which: str, seed: int) -> None:
    """Changed arrays beside forbidden pages: an answer (perhaps a wrong one) or CorruptBundle, never a crash."""
    random = np.random.default_rng(seed)
    built = Tables.build(case.codes)
    arrays = {"bits": built.bits, "starts": built.starts.copy(), "rows": built.rows.copy()}
    changed = arrays[which]
    if changed.size:
        at = random.integers(0, changed.size, random.integers(1, 20))
        changed.ravel()[at] = random.choice([0, 1, len(case.codes), 2**31, 2**32 - 1], len(at))
    arrays = {name: placed(array) for name, array in arrays.items()}
    try:
        index = HashIndex(case.codes, tables=Tables(**arrays), costs=NEVER_SCAN)
        rows, distances = index.candidates(case.questions, case.l, mask=case.mask)
    except CorruptBundle:
        return
    assert rows.shape == distances.shape
    assert ((rows >= 0) & (rows < len(case.codes))).all()


# ── duplicates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def groups_reference(codes: np.ndarray, radius: int, mask: np.ndarray | None) -> list[list[int]]:
    """Who can be reached by steps of at most `radius` bits, by trying all of them."""
    live = np.ones(len(codes), np.bool_) if mask is None else mask
    near = (hamming_reference(codes, codes) <= radius) & live & live[:, None]
    left, groups = set(np.flatnonzero(live).tolist()), []
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = set(np.flatnonzero(near[sorted(edge)].any(axis=0)).tolist()) - group
        left -= group
        groups += [sorted(group)] if len(group) > 1 else []
    return groups


@given(st.sampled_from(WIDTHS), st.integers(0, 250), kinds, masks, st.integers(0, 40), st.integers(1, 4), seeds)
def test_duplicates_are_those_by_definition(
    width: int, n: int, kind: str, masked: str | None, radius: int, threads: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    codes, mask = draw_codes(random, n, width, kind), draw_mask(random, n, masked)
    if n:  # some near ones among strangers
        some = random.integers(0, n, n // 3)
        codes[random.integers(0, n, n // 3)] = codes[some] ^ flips(
            random, (n // 3, width), min(0.1, radius / width / 16)
        )
    found = duplicates(codes, radius, mask=mask, limits=Limits(threads))
    assert [group.tolist() for group in found] == groups_reference(codes, radius, mask)
    assert all(group.dtype == np.int64 for group in found)


@given(st.integers(300, 1000), st.integers(0, 12), st.integers(1, 3), seeds)
def test_crowded_parts_of_codes(n: int, radius: int, centres: int, seed: int) -> None:
    """Many different codes around few centres: large groups share their parts, and are compared as a crowd."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (centres, 6), dtype=np.uint8)[random.integers(0, centres, n)]
    codes ^= flips(random, (n, 6), 0.06)
    expected = groups_reference(codes, radius, None)
    assert [group.tolist() for group in duplicates(codes, radius)] == expected
