"""Cells are the scan: with all probes always, with fewer on what they visit; at every SIMD level, over threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from drawing import Case, cases
from guard import ends_at_guard, starts_at_guard
from hypothesis import given
from hypothesis import strategies as st

from bpr import kernels
from bpr.codes import Questions, candidates_reference, unpack
from bpr.index import CellIndex
from bpr.index.cells import lay_out
from bpr.kernels import Limits

SIMD = kernels.simd_levels()
SMALL = 300_000  # bytes that the slow reference may look at


def index_of(case: Case, cells: int) -> CellIndex:
    """Cells around codes drawn anywhere, good or bad: what is found must not depend on it."""
    random = case.random()
    centroids = random.integers(-127, 128, (cells, case.codes.shape[1] * 8)).astype(np.int8)
    layout = lay_out(centroids, random.integers(0, cells, len(case.codes)).astype(np.uint32))
    return CellIndex(layout, case.codes[layout.rows], probes=1.0)


def questions_of(case: Case) -> Questions:
    return Questions(unpack(case.questions), case.questions)


@given(cases(SMALL), st.integers(1, 50), st.integers(1, 8))
def test_all_probes_are_the_reference(case: Case, cells: int, threads: int) -> None:
    index = index_of(case, cells)
    expected = candidates_reference(case.codes, case.questions, case.l, case.mask)
    for level in SIMD:
        with kernels.using_simd(level):
            found = index.candidates(questions_of(case), case.l, mask=case.mask, threads=threads)
            for one, other in zip(found, expected, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                np.testing.assert_array_equal(one, other)


@given(cases(SMALL), st.integers(1, 50), st.integers(1, 8), st.floats(1e-6, 1))
def test_fewer_probes_are_the_reference_on_what_they_visit(case: Case, cells: int, threads: int, probes: float) -> None:
    index = index_of(case, cells).with_probes(probes)
    asked, live = questions_of(case), np.ones(len(case.codes), bool) if case.mask is None else case.mask
    rows, far, visited = index.visit(asked, case.l, mask=case.mask, limits=Limits(threads))
    assert rows.shape == (len(asked), min(case.l, live.sum()))
    products = asked.vectors.astype(np.float64) @ index.cells.centroids.T.astype(np.float64)
    for j, order in enumerate(np.argsort(-products, axis=1, kind="stable")):
        if not rows.shape[1]:
            continue
        sizes = np.diff(index.cells.starts)[order]
        ends = np.cumsum(sizes)
        count = int(np.searchsorted(ends, visited[j]))  # the cells before the last one visited
        seen = np.zeros(len(case.codes), bool)
        for cell in order[: count + 1]:
            seen[index.cells.rows[slice(*index.cells.starts[cell : cell + 2])]] = True
        fewest = probes / 4 / (1 - probes + probes / 4) * len(case.codes)
        assert seen.sum() == visited[j] >= fewest * (1 - 1e-9)
        expected = candidates_reference(case.codes, case.questions[j : j + 1], case.l, seen & live)
        np.testing.assert_array_equal(rows[j], expected[0][0])
        np.testing.assert_array_equal(far[j], expected[1][0])


@given(cases(SMALL), st.integers(1, 50), st.integers(1, 8))
def test_any_level_thread_count_and_batch_gives_the_same(case: Case, cells: int, threads: int) -> None:
    index, asked = index_of(case, cells).with_probes(0.2), questions_of(case)
    expected = index.candidates(asked, case.l, mask=case.mask, threads=1)
    for level in SIMD:
        with kernels.using_simd(level):
            found = index.candidates(asked, case.l, mask=case.mask, threads=threads)
            alone = index.candidates(
                Questions(asked.vectors[:1], asked.codes[:1]), case.l, mask=case.mask, threads=threads
            )
        for one, single, other in zip(found, alone, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(single, other[:1])


@given(cases(SMALL), st.integers(1, 60), st.integers(1, 8))
def test_assignment_is_the_nearest_centroid(case: Case, cells: int, threads: int) -> None:
    centroids = case.random().integers(-128, 128, (cells, case.codes.shape[1] * 8)).astype(np.int8)
    values = unpack(case.codes).astype(np.int64)
    fits = 2 * 127 * values @ centroids.T.astype(np.int64) - (centroids.astype(np.int64) ** 2).sum(axis=1)
    for level in SIMD:
        with kernels.using_simd(level):
            nearest, found = kernels.assign(case.codes, centroids, cells, limits=Limits(threads))
        np.testing.assert_array_equal(nearest, fits.argmax(axis=1))
        np.testing.assert_array_equal(found, fits.max(axis=1) if len(fits) else [])


@given(st.sampled_from([ends_at_guard, starts_at_guard]), cases(SMALL), st.integers(1, 20))
def test_no_byte_outside_is_touched(placed: Callable, case: Case, cells: int) -> None:
    index, asked = index_of(case, cells), questions_of(case)
    layout = tuple(placed(array) for array in (index.cells.rows, index.cells.starts, index.cells.centroids))
    signs, codes, vectors = placed(index.planes.signs), placed(asked.codes), placed(asked.vectors)
    positions, order = placed(index.cells.positions), placed(index.cells.rows)
    guarded = Questions(vectors, codes)
    assert guarded.vectors is vectors  # no copy: it is the guarded array that the kernel gets
    for level in SIMD:
        with kernels.using_simd(level):
            rows, _, _ = kernels.probe(signs, layout, guarded, case.l, 0.3)
            kernels.rerank(signs, None, None, guarded, placed(rows), 3, positions=positions)
            kernels.scan_scores(signs, None, None, guarded, 3, positions=positions)
            kernels.assign(signs, layout[2], 8)
            kernels.count_ones(signs, order, layout[1])
