"""The index of cells: how it is made, what it finds, what it refuses."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpr import kernels, stages
from bpr.codes import Questions, hamming_reference, pack, pack_magnitudes, unpack
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.index import CellIndex, Cells, Index, ScanIndex, cells
from bpr.index.cells import default_cells, lay_out, train
from bpr.kernels import Cancel, Limits

LEVELS = (0.4528, 1.5104)
N, BITS = 3000, 64
RANDOM = np.random.default_rng(1)
TOPICS = RANDOM.standard_normal((40, BITS))
VECTORS = (TOPICS[RANDOM.integers(0, 40, N)] + 0.7 * RANDOM.standard_normal((N, BITS))).astype(np.float32)
CODES, LARGE = pack(VECTORS), pack_magnitudes(VECTORS)
ASKED = Questions((VECTORS[:9] + 0.5 * RANDOM.standard_normal((9, BITS))).astype(np.float32))


@pytest.fixture(scope="module")
def index() -> CellIndex:
    return CellIndex.build(CODES, LARGE, LEVELS, cells=30, probes=0.1)


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


# ── making cells ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_code_is_in_the_cell_of_its_nearest_centroid() -> None:
    centroids = (unpack(CODES[:20]) * 127).astype(np.int8)
    nearest, fits = kernels.assign(CODES, centroids, 20)
    products = unpack(CODES) @ centroids.T.astype(np.float32)  # whole numbers below 2^24: exact
    expected = 2 * 127 * products - (centroids.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_array_equal(nearest, expected.argmax(axis=1))
    np.testing.assert_array_equal(fits, expected.max(axis=1))
    # the nearest as bits stands on every shortlist, and these centroids are bits
    np.testing.assert_array_equal(
        kernels.assign(CODES, centroids, 1)[0], hamming_reference(CODES[:20], CODES).argmin(axis=1)
    )


def test_centroids_are_the_means_of_their_cells() -> None:
    centroids, nearest = train(CODES, 30)
    assert (centroids.dtype, centroids.shape, nearest.dtype) == (np.int8, (30, BITS), np.uint32)
    values = unpack(CODES)
    for cell in range(30):
        mean = values[nearest == cell].mean(axis=0)
        np.testing.assert_allclose(centroids[cell] / 127, mean, atol=0.5 / 127 + 1e-6)


def test_ones_are_counted_beyond_a_byte() -> None:
    codes = np.full((700, 2), 0b10000001, np.uint8)
    order, starts = np.arange(700, dtype=np.uint32), np.array([0, 0, 690, 700])
    ones = kernels.count_ones(codes, order, starts)
    np.testing.assert_array_equal(ones[:, [0, 1, 7, 8, 15]], [[0] * 5, [690, 0, 690, 690, 690], [10, 0, 10, 10, 10]])


def test_training_finds_the_topics_and_leaves_no_cell_empty() -> None:
    index = CellIndex.build(CODES, cells=40)
    sizes = np.diff(index.cells.starts)
    assert sizes.min() > 0
    assert sizes.max() < N / 8
    centroids = index.cells.centroids
    spread = unpack(CODES) @ centroids.T.astype(np.float32) / 127 / BITS
    assert spread.max(axis=1).mean() > 0.4  # cells of random codes have 0.2


def test_training_depends_on_the_seed_alone() -> None:
    expected = train(CODES, 25, seed=3)
    for level in kernels.simd_levels():
        with kernels.using_simd(level):
            for threads in (1, 2, 7):
                same(train(CODES, 25, seed=3, threads=threads), expected)
    assert (train(CODES, 25, seed=4)[0] != expected[0]).any()


def test_an_empty_cell_begins_anew() -> None:
    codes = np.zeros((500, 4), np.uint8)
    codes[::50] = 255
    nearest = np.zeros(500, np.uint32)
    fits = np.where(codes[:, 0] == 255, -1, 1).astype(np.int32)
    means = cells._means(codes, nearest, fits, 3, Limits())
    np.testing.assert_array_equal(means[1], np.full(32, 127))  # the worst code of the largest cell
    assert (means[2] == 0).all()  # nothing to take from a second one


def test_copies_of_one_code() -> None:
    codes = np.repeat(CODES[:1], 1000, axis=0)
    index = CellIndex.build(codes, cells=8, probes=0.01)
    rows, far = index.candidates(CODES[:1], 50)
    assert rows.shape == (1, 50)
    assert (far == 0).all()
    rows, _ = index.with_probes(1.0).candidates(CODES[:1], 50)
    np.testing.assert_array_equal(rows, [range(50)])


def test_progress_ends_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "TOGETHER", 1000)
    told: list[tuple[int, int]] = []
    train(CODES, 10, progress=lambda done, of: told.append((done, of)))
    assert len({of for _, of in told}) == 1
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_the_number_of_cells_fits_the_number_of_codes() -> None:
    assert [default_cells(n) for n in (0, 1, 99, 1000)] == [1, 1, 1, 10]
    for n in (50_000, 220_963, 5_000_000, 21_015_324):
        count = default_cells(n)
        beside = 8 * n + count * (384 + 8) + 8
        assert beside <= 0.25 * n * 48  # one plane of 384 bits
        assert beside <= 0.15 * n * 96  # two
        assert count >= min(n / 101, 3 * n**0.5)


def test_too_many_codes_for_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MOST_ROWS", N)
    with pytest.raises(InvalidInput, match="up to 2,999 rows, not 3,000: cut the index into shards"):
        train(CODES, 5)


def test_a_layout_has_every_row_once(index: CellIndex) -> None:
    layout = index.cells
    np.testing.assert_array_equal(np.sort(layout.rows), np.arange(N))
    np.testing.assert_array_equal(layout.positions[layout.rows], np.arange(N))
    for first, last in zip(layout.starts[:-1], layout.starts[1:], strict=True):
        assert (np.diff(layout.rows[first:last].astype(int)) > 0).all()
    np.testing.assert_array_equal(index.planes.signs[layout.positions], CODES)
    np.testing.assert_array_equal(index.planes.magnitudes[layout.positions], LARGE)
    assert len(layout) == 30
    assert layout.nbytes == 30 * 64 + 31 * 8 + 2 * 4 * N


# ── searching ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_probes_are_the_scan(index: CellIndex) -> None:
    every, scan = index.with_probes(1.0), ScanIndex(CODES, LARGE, LEVELS)
    mask = np.random.default_rng(5).random(N) < 0.3
    for live in (None, mask):
        for l in (1, 7, 100, N, 2 * N):
            for threads in (1, 2, 5):
                found = every.candidates(ASKED, l, mask=live, threads=threads)
                same(found, scan.candidates(ASKED, l, mask=live))
    for one, other in ((every, scan), (index, scan)):
        hits, expected = (stages.search(each, ASKED, 10, None, mask=mask) for each in (one, other))
        same((hits.rows, hits.scores), (expected.rows, expected.scores))
    hits, expected = (stages.search(each, ASKED, 10, 500) for each in (every, scan))
    same((hits.rows, hits.scores), (expected.rows, expected.scores))


def test_fewer_probes_find_the_nearest_of_what_they_visit(index: CellIndex) -> None:
    protocol: Index = index
    rows, far = protocol.candidates(ASKED, 20)
    again, distances, visited = index.visit(ASKED, 20)
    same((rows, far), (again, distances))
    products = ASKED.vectors @ index.cells.centroids.T.astype(np.float32)
    for j, order in enumerate(np.argsort(-products, axis=1)):
        sizes = np.cumsum(np.diff(index.cells.starts)[order])
        count = int(np.searchsorted(sizes, visited[j])) + 1
        assert visited[j] == sizes[count - 1]
        spans = [slice(*index.cells.starts[cell : cell + 2]) for cell in order[:count]]
        seen = np.sort(np.concatenate([index.cells.rows[span] for span in spans]))
        expected = seen[np.argsort(hamming_reference(CODES[seen], ASKED.codes[j : j + 1])[0], kind="stable")[:20]]
        np.testing.assert_array_equal(rows[j], expected)
    best = ScanIndex(CODES).candidates(ASKED, 20)[0]
    assert np.mean([np.isin(one, other).mean() for one, other in zip(best, rows, strict=True)]) > 0.8


def test_a_question_that_a_cell_fits_well_visits_fewer(index: CellIndex) -> None:
    centroids = index.cells.centroids.astype(np.float64)
    products = ASKED.vectors @ centroids.T
    usual = 23  # deviations of the best cell above the mean, squared (native/cells.cpp)
    times = np.clip(usual * products.var(axis=1) / (products.max(axis=1) - products.mean(axis=1)) ** 2, 0.25, 4)
    assert times.max() > 1.3 * times.min()
    for probes in (0.02, 0.2, 0.9, 1.0):
        wanted = times * probes / (1 - probes + times * probes) * N
        _, _, visited = index.with_probes(probes).visit(ASKED, 1)
        largest = np.diff(index.cells.starts).max()
        assert (visited >= 0.97 * wanted).all()  # the kernel counts in steps
        assert (visited <= 1.03 * wanted + largest).all()


def test_it_goes_on_until_there_are_enough(index: CellIndex) -> None:
    few = index.with_probes(1e-9)
    for l in (1, 500, N, 2 * N):
        rows, _, visited = few.visit(ASKED, l)
        assert rows.shape == (9, min(l, N))
        assert (visited >= min(l, N)).all()
        assert all(len(set(each)) == len(each) for each in rows.tolist())
    mask = np.zeros(N, bool)
    mask[[5, 700, 2999]] = True
    for threads in (1, 3):
        rows, _, visited = few.visit(ASKED, 2, mask=mask, limits=Limits(threads))
        assert rows.shape == (9, 2)
        assert np.isin(rows, [5, 700, 2999]).all()
        assert (visited <= N).all()
    same(few.candidates(ASKED, 9, mask=mask), ScanIndex(CODES).candidates(ASKED, 9, mask=mask))
    assert few.candidates(ASKED, 9, mask=np.zeros(N, bool))[0].shape == (9, 0)


def test_bare_codes_choose_cells_by_their_signs(index: CellIndex) -> None:
    as_vectors = Questions(unpack(ASKED.codes), ASKED.codes)
    same(index.candidates(ASKED.codes, 20), index.candidates(as_vectors, 20))


def test_the_length_of_a_vector_does_not_matter(index: CellIndex) -> None:
    for factor in (1e-30, 1e30):
        same(index.candidates(Questions(ASKED.vectors * np.float32(factor)), 20), index.candidates(ASKED, 20))
    rows, _ = index.candidates(Questions(np.zeros((1, BITS), np.float32)), 20)
    assert rows.shape == (1, 20)


def test_no_passages() -> None:
    index = CellIndex.build(CODES[:0])
    assert index.candidates(ASKED, 5)[0].shape == (9, 0)
    assert len(index) == 0


def test_the_limits_reach_the_kernel(index: CellIndex) -> None:
    for threads in (1, 3, 20):
        with pytest.raises(DeadlineExceeded):
            index.candidates(ASKED, 3, deadline=time.monotonic() - 1, threads=threads)
        cancel = Cancel()
        cancel.set()
        with pytest.raises(Cancelled):
            index.candidates(ASKED, 3, cancel=cancel, threads=threads)
    with pytest.raises(InvalidInput, match="threads"):
        index.candidates(ASKED, 3, threads=0)


def test_touch_is_told_positions(index: CellIndex) -> None:
    told: list[Any] = []
    planes = index.planes
    watched = CellIndex(index.cells, planes.signs, planes.magnitudes, LEVELS, touch=told.append)
    rows, _ = watched.candidates(ASKED, 20)
    watched.planes.rerank(ASKED, rows, 5, Limits())
    np.testing.assert_array_equal(told[0], index.cells.positions[rows])
    assert told[0].dtype == np.int64
    watched.planes.score_all(ASKED, 5, None, Limits())
    assert told[1] is None


def test_arrays_are_not_copied(index: CellIndex, tmp_path: Path) -> None:
    arrays = dataclasses.asdict(index.cells) | {"signs": index.planes.signs}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in arrays}
    signs = mapped.pop("signs")
    opened = CellIndex(Cells(**mapped), signs, probes=0.1)
    assert np.shares_memory(opened.planes.signs, signs)
    assert opened.with_probes(0.5).cells is opened.cells
    same(opened.candidates(ASKED, 20), index.candidates(ASKED, 20))


def test_an_index_says_what_it_is(index: CellIndex) -> None:
    assert repr(index) == "CellIndex(3,000 rows, 64 bits, 2 planes, 30 cells, probes=0.1)"
    assert repr(CellIndex(index.cells, index.planes.signs)).endswith(f"1 plane, 30 cells, probes={cells.PROBES:g})")
    assert len(index) == N
    assert not index.scores_are_final


# ── what does not fit ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda i: train(CODES, 0), "can have 1 to 3,000 cells"),
        (lambda i: train(CODES, N + 1), "can have 1 to 3,000 cells"),
        (lambda i: lay_out(i.cells.centroids[:5], np.array([3, 5], np.uint32)), "in cell 5, but there are 5"),
        (lambda i: i.with_probes(0), "more than 0, at most 1"),
        (lambda i: i.with_probes(1.1), "more than 0, at most 1"),
        (lambda i: i.with_probes(float("nan")), "more than 0, at most 1"),
        (lambda i: CellIndex(i.cells, CODES[:, :4]), "the centroids have 64 bits, the codes 32"),
        (lambda i: CellIndex(i.cells, CODES[:-1]), "2999 codes need as many positions"),
        (lambda i: i.candidates(CODES[:, :4], 3), "the questions have 32 bits, the index has 64"),
        (lambda i: i.candidates(Questions(np.ones((1, 72))), 3), "the questions have 72 bits"),
        (lambda i: i.candidates(ASKED, 0), "l must be at least 1"),
        (lambda i: i.candidates(ASKED, 3, mask=np.ones(5, bool)), "a mask must be"),
        (lambda i: kernels.assign(CODES, i.cells.centroids[:0], 8), "there must be a cell"),
        (
            lambda i: kernels.probe(CODES, (i.cells.rows, i.cells.starts, i.cells.centroids), ASKED, 5, 0),
            "a share must be",
        ),
        (lambda i: kernels.assign(CODES[:, 1:].copy(), i.cells.centroids, 8), "differ in width"),
        (lambda i: kernels.count_ones(CODES[:9], i.cells.rows, i.cells.starts), "outside the codes"),
    ],
)
def test_what_does_not_fit(index: CellIndex, what: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        what(index)


@pytest.mark.parametrize("name", ["centroids", "starts", "rows", "positions"])
def test_cells_of_wrong_types_and_shapes(index: CellIndex, name: str) -> None:
    array = getattr(index.cells, name)
    for wrong in (array.astype(np.float32), array[..., None], array[:-1], np.stack([array, array], axis=-1)[..., 0]):
        with pytest.raises(InvalidInput, match="of cells must be"):
            dataclasses.replace(index.cells, **{name: wrong})


def broken(index: CellIndex, **arrays: Any) -> CellIndex:
    planes = index.planes
    return CellIndex(dataclasses.replace(index.cells, **arrays), planes.signs, planes.magnitudes, LEVELS)


def test_corrupt_layouts_are_errors_and_nothing_worse(index: CellIndex) -> None:
    good = index.cells
    for at, value in ((0, 1), (0, -1), (-1, N + 1), (-1, N - 1), (5, N + 1), (5, -7), (9, 2**62)):
        starts = good.starts.copy()
        starts[at] = value
        with pytest.raises(InvalidInput, match="must ascend from 0"):
            broken(index, starts=starts).candidates(ASKED, 5)
    outside = np.full(N, N, np.uint32)
    for mask in (None, np.ones(N, bool)):
        for threads in (1, 2, 20):
            with pytest.raises(InvalidInput, match="a row that is not in the index"):
                broken(index, rows=outside).candidates(ASKED, 5, mask=mask, threads=threads)
    with pytest.raises(InvalidInput, match="do not have every row"):
        mask = np.zeros(N, bool)
        mask[1] = True
        broken(index, rows=np.zeros(N, np.uint32)).candidates(ASKED, 5, mask=mask)
    wrong = broken(index, positions=outside).planes
    for call in (
        lambda: wrong.rerank(ASKED, np.zeros((9, 3), int), 2, Limits()),
        lambda: wrong.score_all(ASKED, 2, None, Limits()),
    ):
        with pytest.raises(InvalidInput, match="a position is outside the index"):
            call()


def test_the_kernel_checks_shapes_itself(index: CellIndex) -> None:
    good, signs = index.cells, index.planes.signs
    for layout in (
        (good.rows[:-1], good.starts, good.centroids),
        (good.rows, good.starts[:-1], good.centroids),
        (good.rows, good.starts, good.centroids[:, :-8].copy()),
        (good.rows.astype(np.int64), good.starts, good.centroids),
    ):
        with pytest.raises(InvalidInput):
            kernels.probe(signs, layout, ASKED, 5, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="one position a row"):
        kernels.rerank(signs, None, None, ASKED, np.zeros((9, 3), int), 2, positions=good.positions[:-1])
