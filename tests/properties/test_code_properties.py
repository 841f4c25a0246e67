"""Floats become bits by one rule, whatever their type, width and number."""

from __future__ import annotations

import numpy as np
from drawing import draw_codes, seeds, widths
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bpr.codes import Questions, hamming_reference, pack, pack_largest, pack_magnitudes, unpack
from bpr.transform import Transform, random_rotation

finite_vectors = st.tuples(
    st.sampled_from([np.float16, np.float32, np.float64]), st.integers(0, 5), st.integers(1, 9)
).flatmap(
    lambda drawn: arrays.arrays(
        drawn[0],
        (drawn[1], 8 * drawn[2]),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
thresholds = st.floats(0, 1e6)


@given(finite_vectors)
def test_a_bit_is_one_exactly_where_the_value_is_positive(vectors: np.ndarray) -> None:
    codes = pack(vectors)
    assert codes.shape == (len(vectors), vectors.shape[1] // 8)
    for row, code in zip(vectors.tolist(), codes.tolist(), strict=True):
        bits = [code[i // 8] >> (7 - i % 8) & 1 for i in range(len(row))]  # most significant first
        assert bits == [int(value > 0) for value in row]


@given(finite_vectors, thresholds)
def test_a_magnitude_bit_is_one_exactly_above_the_threshold(vectors: np.ndarray, threshold: float) -> None:
    codes = pack_magnitudes(vectors, threshold)
    for row, code in zip(vectors.tolist(), codes.tolist(), strict=True):
        bits = [code[i // 8] >> (7 - i % 8) & 1 for i in range(len(row))]
        assert bits == [int(abs(value) > threshold) for value in row]


@given(finite_vectors, st.floats(0, 1))
def test_a_magnitude_bit_is_one_for_the_largest_of_a_row(vectors: np.ndarray, share: float) -> None:
    count = round(share * vectors.shape[1])
    for row, code in zip(vectors.tolist(), pack_largest(vectors, count).tolist(), strict=True):
        large = sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))[:count]
        assert [i for i in range(len(row)) if code[i // 8] >> (7 - i % 8) & 1] == sorted(large)


@given(st.integers(0, 60), widths, seeds)
def test_unpack_undoes_pack(n: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes, large = draw_codes(random, n, width, "random"), draw_codes(random, n, width, "random")
    np.testing.assert_array_equal(pack(unpack(codes)), codes)
    values = unpack(codes, large, (0.25, 2.0))
    np.testing.assert_array_equal(pack(values), codes)
    np.testing.assert_array_equal(pack_magnitudes(values, 1.0), large)
    assert set(np.unique(values)) <= {-2.0, -0.25, 0.25, 2.0}


@given(st.integers(1, 20), widths, seeds)
def test_distance_and_inner_product_of_signs_say_the_same(n: int, width: int, seed: int) -> None:
    codes = draw_codes(np.random.default_rng(seed), n, width, "random")
    signs = unpack(codes)
    np.testing.assert_array_equal(signs @ signs.T, width * 8 - 2 * hamming_reference(codes, codes))


@given(finite_vectors.filter(lambda vectors: vectors.dtype != np.float64))
def test_the_identity_changes_nothing(vectors: np.ndarray) -> None:
    identity = Transform.identity(vectors.shape[1])
    np.testing.assert_array_equal(identity.passages(vectors), vectors)
    asked, plain = identity.questions(vectors), Questions(vectors)
    np.testing.assert_array_equal(asked.vectors, plain.vectors)
    np.testing.assert_array_equal(asked.codes, plain.codes)


@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 99))
def test_rotations_are_orthonormal_and_only_depend_on_the_seed(dim: int, bits: int, seed: int) -> None:
    rotation = random_rotation(dim, bits, seed)
    assert rotation.shape == (dim, bits)
    assert rotation.dtype == np.float32
    for first in range(0, bits, dim):
        turn = rotation[:, first : first + dim]
        np.testing.assert_allclose(turn.T @ turn, np.eye(turn.shape[1]), atol=1e-5)
    np.testing.assert_array_equal(rotation, random_rotation(dim, bits, seed))
    if dim > 1:  # in one dimension there are but two rotations
        assert not np.array_equal(rotation, random_rotation(dim, bits, seed + 1))
