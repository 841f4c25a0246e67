"""Every baseline against the truth in numpy, through the same protocol and the same search. Real Faiss; no time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bpr import baselines
from bpr.baselines import CodeIndex, FloatIndex, TooFew, completed
from bpr.codes import LARGE, LEVELS, Questions, best_reference, candidates_reference, pack, scores_reference, unpack
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput, StorageError
from bpr.index import Planes, ScanIndex
from bpr.kernels import Cancel
from bpr.stages import search
from bpr.transform import Transform

ROWS, DIM, ASKED, SIZE = 1500, 32, 40, 8
random = np.random.default_rng(5)
CENTRES = random.standard_normal((50, DIM), np.float32)
PASSAGES = (CENTRES[random.integers(50, size=ROWS)] + 0.6 * random.standard_normal((ROWS, DIM), np.float32)) * (
    random.uniform(0.5, 2, (ROWS, 1)).astype(np.float32)
)  # of very different lengths: inner product, angle and distance rank them differently
QUESTIONS = (PASSAGES[:ASKED] + 0.3 * random.standard_normal((ASKED, DIM), np.float32)).astype(np.float32)
EXACT = QUESTIONS.astype(np.float64) @ PASSAGES.astype(np.float64).T
TRUTH = np.argsort(-EXACT, axis=1, kind="stable")
PLANES = Planes(pack(PASSAGES), pack(np.abs(PASSAGES) - 1), LEVELS)

MAKERS = {
    "flat": lambda: baselines.flat(PASSAGES),
    "hnsw": lambda: baselines.hnsw(PASSAGES, links=16),
    "pq": lambda: baselines.pq(PASSAGES, SIZE),
    "rabitq": lambda: baselines.rabitq(PASSAGES, 1, 2 * DIM),
    "rabitq, 2 bits": lambda: baselines.rabitq(PASSAGES, 2),
    "lsh": lambda: baselines.lsh(PASSAGES, SIZE),
    "signs": lambda: baselines.signs(PASSAGES, SIZE),
    "two bits": lambda: baselines.two_bits(PASSAGES, SIZE),
    "trained": lambda: baselines.trained(PLANES),
    "signs only": lambda: baselines.signs_only(PLANES),
    "faiss binary": lambda: baselines.faiss_binary(PLANES),
}
MADE = {name: make() for name, make in MAKERS.items()}
FLOATS = [name for name, index in MADE.items() if isinstance(index, FloatIndex)]
every = pytest.mark.parametrize("name", MADE)
every_float = pytest.mark.parametrize("name", FLOATS)


def found(index: baselines.Baseline, k: int = 10, candidates: int | None = 300, **how) -> np.ndarray:
    return search(index, index.questions(QUESTIONS), k, candidates, **how).rows


def overlap(rows: np.ndarray, k: int = 10) -> float:
    return float(np.mean([len({*mine[:k]} & {*true[:k]}) / k for mine, true in zip(rows, TRUTH, strict=True)]))


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


@every
def test_what_is_found_is_ordered_and_has_no_repeats(name) -> None:
    index = MADE[name]
    hits = search(index, index.questions(QUESTIONS), 50, 300)
    assert hits.rows.shape == hits.scores.shape == (ASKED, 50)
    assert (hits.rows.dtype, hits.scores.dtype) == (np.int64, np.float32)
    assert ((hits.rows >= 0) & (hits.rows < ROWS)).all()
    assert all(len({*row}) == 50 for row in hits.rows)
    order = np.lexsort((hits.rows, -hits.scores), axis=1)
    np.testing.assert_array_equal(order, np.tile(np.arange(50), (ASKED, 1)))


@every
def test_more_than_there_is_gives_what_there_is(name) -> None:
    index = MADE[name]
    hits = search(index, index.questions(QUESTIONS[:3]), 2 * ROWS, 2 * ROWS)
    assert hits.rows.shape == (3, ROWS) and all(len({*row}) == ROWS for row in hits.rows)
    assert len(index) == ROWS


@every
def test_no_questions_find_nothing(name) -> None:
    index = MADE[name]
    assert search(index, index.questions(QUESTIONS[:0]), 5, 100).rows.shape == (0, 5)


@every
def test_questions_of_another_width_are_refused(name) -> None:
    index = MADE[name]
    with pytest.raises(InvalidInput, match=r"dimensions|bits"):
        search(index, index.questions(QUESTIONS[:, :16]), 5, 100)


@every
def test_it_is_the_same_from_disk_and_its_bytes_add_up(name, tmp_path: Path) -> None:
    index = MADE[name]
    index.save(tmp_path)
    again = baselines.load(tmp_path)
    np.testing.assert_array_equal(found(index), found(again))
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    twice = index.planes.signs.nbytes if name == "faiss binary" else 0  # Faiss keeps a copy in memory
    assert 0 <= on_disk - (index.nbytes - twice) < 1000  # the heads of .npy files, settings.json
    assert again.nbytes == index.nbytes


@every
def test_two_threads_find_the_same(name) -> None:
    index = MADE[name]
    np.testing.assert_array_equal(found(index, threads=1), found(index, threads=2))


@pytest.mark.parametrize("name", [*FLOATS, "faiss binary"])
def test_what_faiss_cannot_do_is_refused(name) -> None:
    index, asked = MADE[name], MADE[name].questions(QUESTIONS)
    with pytest.raises(InvalidInput, match="takes no mask"):
        search(index, asked, 5, 100, mask=np.ones(ROWS, bool))
    with pytest.raises(DeadlineExceeded):
        search(index, asked, 5, 100, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        search(index, asked, 5, 100, cancel=cancel)


@pytest.mark.parametrize("make", [baselines.flat, baselines.hnsw, baselines.two_bits, baselines.pq])
def test_wrong_vectors_are_refused(make) -> None:
    more = {} if make in (baselines.flat, baselines.hnsw) else {"size": SIZE}
    with pytest.raises(TooFew):
        make(PASSAGES[:0], **more)
    with pytest.raises(InvalidInput, match="vector 3 contains NaN"):
        make(np.where(np.arange(ROWS)[:, None] == 3, np.nan, PASSAGES), **more)
    with pytest.raises(InvalidInput, match="floats"):
        make(PASSAGES.astype(int), **more)


@pytest.mark.parametrize("name", ["flat", "signs"])
def test_a_folder_that_is_not_there_is_a_storage_error(name, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        MADE[name].save(tmp_path / "none")
    with pytest.raises(StorageError):
        baselines.load(tmp_path / "none")


def test_without_faiss_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InvalidInput, match=r"pip install .*\[baselines\]"):
        baselines.flat(PASSAGES)


# ── floats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_float
def test_its_scores_are_final(name) -> None:
    """Neither candidates nor rerank change what a float index finds."""
    index = MADE[name]
    assert index.scores_are_final and index.planes is None
    np.testing.assert_array_equal(found(index), found(index, candidates=10, rerank=False))
    rows, _ = index.candidates(QUESTIONS, 10)
    np.testing.assert_array_equal(rows, found(index))


def test_flat_is_exact() -> None:
    hits = search(MADE["flat"], QUESTIONS, 20)
    np.testing.assert_array_equal(hits.rows, TRUTH[:, :20])
    np.testing.assert_allclose(hits.scores, np.take_along_axis(EXACT, hits.rows, axis=1), rtol=1e-4)
    assert 0 < MADE["flat"].nbytes - 4 * ROWS * DIM < 200


def test_many_questions_go_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr(baselines, "QUESTIONS_AT_ONCE", 7)
    np.testing.assert_array_equal(found(MADE["flat"]), TRUTH[:, :10])


def test_completion_keeps_inner_products_and_gives_all_one_length() -> None:
    """Neyshabur & Srebro: then the angle, which LSH sees, and L2, which HNSW walks by, rank as inner products do."""
    whole, norm = completed(PASSAGES)
    asked = np.hstack([QUESTIONS, np.zeros((ASKED, 1))])
    np.testing.assert_allclose(asked @ whole.T, EXACT, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), norm, rtol=1e-5)
    assert norm == pytest.approx(np.linalg.norm(PASSAGES, axis=1).max())
    far = ((asked[:, None] - whole[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(np.argsort(far, axis=1, kind="stable")[:, :20], TRUTH[:, :20])


def test_hnsw_finds_inner_products() -> None:
    generous = baselines.hnsw(PASSAGES, links=32, ef_search=400)
    hits = search(generous, QUESTIONS, 10)
    assert overlap(hits.rows) > 0.99
    np.testing.assert_allclose(hits.scores, np.take_along_axis(EXACT, hits.rows, axis=1), rtol=1e-3, atol=1e-2)
    links = 4 * 2 * 32 * ROWS
    assert 4 * ROWS * (DIM + 1) + links < generous.nbytes < 4 * ROWS * (DIM + 1) + 1.2 * links + 10_000


def test_hnsw_whose_graph_is_torn_looks_at_everything() -> None:
    """Thousands of equal passages: a graph of two links cannot lead to all of them. Still no −1, and no repeats."""
    same = np.repeat(PASSAGES[:2], 400, axis=0)
    torn = baselines.hnsw(same, links=2, ef_construction=2, ef_search=2)
    rows = search(torn, QUESTIONS[:3], 800).rows
    assert all(len({*row}) == 800 for row in rows) and rows.min() == 0


def test_pq_has_the_codes_size() -> None:
    centroids = 256 * DIM * 4
    assert 0 < MADE["pq"].nbytes - (ROWS * SIZE + centroids) < 300
    assert overlap(found(MADE["pq"])) > 0.3
    odd = baselines.pq(PASSAGES, 7)  # 7 does not divide 32
    assert 0 < odd.nbytes - (ROWS * 4 + centroids) < 300
    with pytest.raises(TooFew, match="256 centroids, and there are only 255"):
        baselines.pq(PASSAGES[:255], SIZE)


def test_rabitq_finds_more_with_more_bits() -> None:
    shares = [overlap(found(baselines.rabitq(PASSAGES, bits))) for bits in (1, 2, 4)]
    assert 0.3 < shares[0] < shares[1] < shares[2] and shares[2] > 0.85
    assert overlap(found(MADE["rabitq"])) > shares[0]  # twice as wide
    a, b = (found(baselines.rabitq(PASSAGES, 1, seed=seed)) for seed in (1, 1))
    np.testing.assert_array_equal(a, b)
    assert (found(baselines.rabitq(PASSAGES, 1, seed=2)) != a).any()
    rotation, centre = 4 * DIM * DIM, 4 * DIM
    assert 0 < baselines.rabitq(PASSAGES, 1).nbytes - (ROWS * (DIM // 8 + 8) + rotation + centre) < 300


# ── bits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lsh_is_the_sign_of_random_projections() -> None:
    index = MADE["lsh"]
    whole, norm = completed(PASSAGES)
    projection = index.transform.rotation
    assert projection.shape == (DIM + 1, 8 * SIZE) and index.planes.bits == 8 * SIZE
    turned = (whole / norm).astype(np.float64) @ projection  # divided as in the paper: it changes no sign
    sure = np.abs(turned) > 1e-4
    assert ((unpack(index.planes.signs) > 0) == (turned > 0))[sure].all()
    asked = np.hstack([QUESTIONS, np.zeros((ASKED, 1), np.float32)])
    rows, _ = candidates_reference(index.planes.signs, pack(asked @ projection), 10)
    np.testing.assert_array_equal(found(index, rerank=False), rows)


def test_lsh_agrees_with_the_angle() -> None:
    """The share of differing bits estimates the angle between completed vectors."""
    index = baselines.lsh(PASSAGES, 500)
    _, norm = completed(PASSAGES)
    rows, far = index.candidates(index.questions(QUESTIONS[:5]), ROWS)
    cosine = np.take_along_axis(EXACT[:5], rows, axis=1) / (norm * np.linalg.norm(QUESTIONS[:5], axis=1))[:, None]
    assert np.abs(far / 4000 - np.arccos(cosine) / np.pi).max() < 0.05


def test_rotate_and_sign_is_its_definition() -> None:
    """Bits of (p − μ)R, candidates by the bits of (q − μ)R, scores ⟨qRσ, ±1⟩."""
    index = MADE["signs"]
    mean, rotation, sigma = (each.astype(np.float64) for each in (PASSAGES.mean(axis=0), *_rotation(index)))
    turned = (PASSAGES - mean) @ rotation
    sure = np.abs(turned) > 1e-4
    assert ((unpack(index.planes.signs) > 0) == (turned > 0))[sure].all()
    np.testing.assert_allclose(sigma, np.sqrt((turned**2).mean(axis=0)), rtol=1e-4)
    rows, _ = candidates_reference(index.planes.signs, pack((QUESTIONS - mean) @ rotation), 300)
    scores = scores_reference((QUESTIONS @ rotation) * sigma, index.planes.signs)
    best, _ = best_reference(np.take_along_axis(scores, rows, axis=1), rows, 10)
    assert (found(index) == best).mean() > 0.99
    assert index.nbytes == ROWS * SIZE + 4 * (DIM + DIM * 8 * SIZE + 8 * SIZE)


def _rotation(index: CodeIndex) -> tuple[np.ndarray, np.ndarray]:
    return index.transform.rotation, index.transform.scales


def test_two_bits_are_codes_of_one_length() -> None:
    index = MADE["two bits"]
    bits = 4 * SIZE
    assert index.planes.bits == bits and index.planes.levels == LEVELS
    ones = np.unpackbits(index.planes.magnitudes, axis=1).sum(axis=1)
    assert (ones == round(bits * LARGE)).all()
    assert index.planes.nbytes == ROWS * SIZE
    turned = (PASSAGES - PASSAGES.mean(axis=0)) @ index.transform.rotation / index.transform.scales
    levels = unpack(index.planes.signs, index.planes.magnitudes)
    each = [np.corrcoef(one, other)[0, 1] for one, other in zip(turned, levels, strict=True)]
    assert np.mean(each) > 0.9  # a code says where its vector points, whatever its length


def test_a_trained_model_needs_no_transform() -> None:
    plain = ScanIndex(PLANES.signs, PLANES.magnitudes, PLANES.levels)
    np.testing.assert_array_equal(found(MADE["trained"]), search(plain, QUESTIONS, 10, 300).rows)
    np.testing.assert_array_equal(found(MADE["signs only"]), search(ScanIndex(PLANES.signs), QUESTIONS, 10, 300).rows)
    assert MADE["trained"].nbytes == PLANES.nbytes == 2 * MADE["signs only"].nbytes


def test_faiss_binary_finds_what_our_scan_finds() -> None:
    ours, theirs = MADE["trained"], MADE["faiss binary"]
    asked = Questions(QUESTIONS)
    np.testing.assert_array_equal(ours.candidates(asked, ROWS)[0], theirs.candidates(asked, ROWS)[0])
    np.testing.assert_array_equal(ours.candidates(asked, 50)[1], theirs.candidates(asked.codes, 50)[1])
    np.testing.assert_array_equal(found(ours, candidates=ROWS), found(theirs, candidates=ROWS))
    assert theirs.nbytes == ours.nbytes + PLANES.signs.nbytes


def test_the_seed_decides_the_rotation() -> None:
    one, same, other = (baselines.signs(PASSAGES, SIZE, seed=seed).planes.signs for seed in (1, 1, 2))
    assert (one == same).all() and (one != other).any()
    assert isinstance(baselines.lsh(PASSAGES, SIZE, seed=1).transform, Transform)
