"""Centre, rotate, scale: the formulas of the notes, and that no vector's bits depend on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import bpr
from bpr import transform as transform_module
from bpr.codes import LEVELS, pack, pack_magnitudes
from bpr.errors import InvalidInput
from bpr.transform import Transform, random_rotation


def offset_data(seed: int, rows: int = 3000, dim: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of passages, and questions near some: a mean off zero, dimensions of very unequal spread."""
    random = np.random.default_rng(seed)
    spread, mean, centres = np.exp(random.normal(0, 1, dim)), random.normal(0, 1, dim), random.normal(0, 1, (100, dim))
    passages = (centres[random.integers(0, 100, rows)] + random.normal(0, 0.7, (rows, dim))) * spread + mean
    questions = passages[random.integers(0, rows, 50)] + random.normal(0, 1, (50, dim)) * spread
    return passages.astype(np.float32), questions.astype(np.float32)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_the_formulas_of_the_notes(center: bool, rotate: bool, scale: bool) -> None:
    """Bits of x = (p − μ)R / σ and of (q − μ)R; but the vector that scores is qR·σ, not centred."""
    passages, questions = (each.astype(np.float64) for each in offset_data(1))
    transform = Transform.fit(passages, center=center, rotate=rotate, scale=scale, seed=9)
    mean = passages.mean(axis=0) if center else np.zeros(128)
    turn = random_rotation(128, 128, 9).astype(np.float64) if rotate else np.eye(128)
    spread = np.sqrt((((passages - mean) @ turn) ** 2).mean(axis=0)) if scale else np.ones(128)
    np.testing.assert_allclose(transform.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(transform.scales, spread, rtol=1e-5)
    assert (transform.rotation is not None) == rotate

    np.testing.assert_allclose(transform.passages(passages), (passages - mean) @ turn / spread, atol=2e-3)
    asked = transform.questions(questions)
    np.testing.assert_allclose(asked.vectors, questions @ turn * spread, rtol=1e-3, atol=1e-3)
    exact = (questions - mean) @ turn
    clear = np.abs(exact) > 1e-3
    np.testing.assert_array_equal(np.unpackbits(asked.codes, axis=1)[clear], (exact > 0)[clear])


def test_a_transform_by_default_only_scales() -> None:
    passages, _ = offset_data(2)
    transform = Transform.fit(passages)
    assert not transform.mean.any()
    assert transform.rotation is None
    assert Transform.identity(64).scales.tolist() == [1] * 64


def test_more_or_fewer_bits_than_dimensions() -> None:
    passages, questions = offset_data(3, dim=20)
    for bits in (8, 16, 40, 64):
        transform = Transform.fit(passages, center=True, rotate=True, bits=bits)
        assert transform.rotation.shape == (20, bits)
        assert transform.passages(passages).shape == (len(passages), bits)
        assert transform.questions(questions).codes.shape == (50, bits // 8)


def test_the_seed_decides_the_rotation() -> None:
    passages, _ = offset_data(4)
    first, again, other = (Transform.fit(passages, rotate=True, seed=seed).rotation for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("constant", [0.0, 3.0, 1e-60])
def test_dimensions_that_never_vary(constant: float) -> None:
    passages = np.random.default_rng(5).standard_normal((100, 16))
    passages[:, 3] = constant
    transform = Transform.fit(passages, center=True)
    assert transform.scales[3] > 0
    assert np.isfinite(transform.passages(passages)).all()
    assert np.isfinite(transform.questions(passages).vectors).all()


def test_a_transform_of_nothing() -> None:
    transform = Transform.fit(np.ones((0, 8)), center=True, rotate=True)
    assert transform.scales.tolist() == [1] * 8
    assert transform.passages(np.ones((0, 8))).shape == (0, 8)


def test_the_spread_is_measured_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    passages, _ = offset_data(6)
    monkeypatch.setattr(transform_module, "SAMPLE_ROWS", 1000)
    sampled = Transform.fit(passages, center=True)
    monkeypatch.undo()
    np.testing.assert_array_equal(sampled.mean, Transform.fit(passages[::3], center=True).mean)


def test_a_sample_names_the_right_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_module, "SAMPLE_ROWS", 10)
    passages = np.ones((30, 8))
    passages[12, 1] = np.nan
    with pytest.raises(InvalidInput, match="vector 12 contains"):
        Transform.fit(passages, center=True)


@pytest.mark.parametrize("bits", [0, -8, 12, 4104, 10**9])
def test_impossible_numbers_of_bits(bits: int) -> None:
    with pytest.raises(InvalidInput, match="multiple of 8 bits"):
        Transform.fit(np.ones((3, 8)), rotate=True, bits=bits)


def test_other_widths_need_a_rotation() -> None:
    with pytest.raises(InvalidInput, match="8 dimensions: 16 bits need a rotation"):
        Transform.fit(np.ones((3, 8)), bits=16)
    with pytest.raises(InvalidInput, match="multiple of 8 bits"):
        Transform.fit(np.ones((3, 0)), rotate=True)


def test_vectors_of_another_model_are_refused() -> None:
    transform = Transform.fit(np.ones((3, 16)))
    for use in (transform.passages, transform.questions):
        with pytest.raises(InvalidInput, match="have 8 dimensions, and those of the passages had 16"):
            use(np.ones((3, 8)))


def test_values_that_overflow_on_the_way_are_refused_without_a_warning() -> None:
    large = Transform(np.zeros(8, np.float32), None, np.full(8, 10, np.float32))
    with pytest.raises(InvalidInput, match="vector 0 contains"):
        large.questions(np.full((1, 8), 1e38, np.float32))
    assert np.isinf(large.passages(np.full((1, 8), 1e300))).all()


def overlap(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(found, wanted, strict=True)]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_centring_and_rotating_find_more_of_the_float_neighbours(seed: int) -> None:
    passages, questions = offset_data(seed)
    wanted = np.argsort(-(questions @ passages.T), axis=1)[:, :20]
    plain = bpr.search(bpr.ScanIndex(pack(passages)), questions, 20, candidates=None)
    transform = Transform.fit(passages, center=True, rotate=True)
    turned = bpr.search(bpr.ScanIndex(pack(transform.passages(passages))), transform.questions(questions), 20, None)
    assert overlap(turned.rows, wanted) > overlap(plain.rows, wanted) + 0.05


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_second_plane_finds_more_of_the_float_neighbours(seed: int) -> None:
    passages, questions = offset_data(seed)
    wanted = np.argsort(-(questions @ passages.T), axis=1)[:, :20]
    transform = Transform.fit(passages, center=True, rotate=True)
    x, asked = transform.passages(passages), transform.questions(questions)
    one, two = bpr.ScanIndex(pack(x)), bpr.ScanIndex(pack(x), pack_magnitudes(x), LEVELS)
    found = [overlap(bpr.search(index, asked, 20, None).rows, wanted) for index in (one, two)]
    assert found[1] > found[0] + 0.05


def test_no_arrays_are_refused_by_every_door() -> None:
    for make in (Transform.fit, Transform.identity(8).passages, Transform.identity(8).questions):
        with pytest.raises(InvalidInput):
            make([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize("bits", [128, 256])
def test_a_rotated_vector_does_not_depend_on_its_neighbours(bits: int) -> None:
    passages, questions = offset_data(7)
    transform = Transform.fit(passages, center=True, rotate=True, bits=bits)
    together, asked = transform.passages(passages[:301]), transform.questions(questions)
    for first, last in ((0, 1), (1, 2), (3, 8), (37, 101), (300, 301)):
        np.testing.assert_array_equal(transform.passages(passages[first:last]), together[first:last])
    for row in range(0, 50, 7):
        alone = transform.questions(questions[row : row + 1])
        np.testing.assert_array_equal(alone.vectors[0], asked.vectors[row])
        np.testing.assert_array_equal(alone.codes[0], asked.codes[row])


def test_the_identity_leaves_every_float_as_it_is() -> None:
    tiny = np.array([[1e-60, -1e-60, 1, -1, 0, 2, 3, 4]])
    identity = Transform.identity(8)
    assert identity.is_identity and not Transform.fit(tiny).is_identity
    np.testing.assert_array_equal(pack(identity.passages(tiny)), pack(tiny))
    np.testing.assert_array_equal(identity.questions(tiny).codes, pack(tiny))
