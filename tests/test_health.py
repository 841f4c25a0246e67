"""The code-health report: what was planted is found, what is healthy is not complained about."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bpr import codes, health
from bpr.errors import InvalidInput
from bpr.health import measure

BITS = 256


def random_bits(rows: int = 2000, bits: int = BITS, ones: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(7).random((rows, bits)) < ones).astype(np.uint8)


def measured(bits: np.ndarray) -> health.Health:
    return measure(np.packbits(bits, axis=1))


def test_random_codes_are_healthy():
    found = measured(random_bits())
    assert found.warnings() == []
    assert (found.rows, found.sampled, found.bits, found.dead, found.duplicates) == (2000, 2000, BITS, (), 0)
    assert 0.45 < found.balance.min <= found.balance.mean <= found.balance.max < 0.55
    assert found.balance.unbalanced == 0
    assert found.entropy > 0.99
    assert found.entropy_total == pytest.approx(found.entropy * BITS)
    assert found.correlation.mean < 0.03
    assert found.correlation.rows == 2000
    assert found.distances.mean == pytest.approx(BITS / 2, rel=0.01)
    assert found.distances.spread == pytest.approx(BITS**0.5 / 2, rel=0.05)
    assert found.distances.independent_bits == pytest.approx(BITS, rel=0.05)


def test_dead_bits_are_named():
    bits = random_bits()
    bits[:, [3, 200]] = 1
    bits[:, 77] = 0
    bits[:20, 77] = 1  # 1 % of the rows: dead all the same
    found = measured(bits)
    assert found.dead == (3, 77, 200)
    assert found.balance.max == 1
    (warning,) = found.warnings()
    assert warning.startswith("3 of 256 bits are dead")
    assert "3, 77, 200" in warning
    assert "--center --rotate" in warning


def test_a_bit_at_the_limit_is_not_dead():
    bits = random_bits()
    bits[:, 5] = np.arange(2000) < 40  # 2 % ones, 98 % zeros: not more than 98 %
    assert measured(bits).dead == ()


def test_one_dead_bit_is_one_and_many_are_not_all_named():
    bits = random_bits()
    bits[:, 0] = 0
    assert "1 of 256 bits is dead" in measured(bits).warnings()[0]
    bits[:, :20] = 0
    assert "(0, 1, 2, 3, 4, 5, 6, 7, …)" in measured(bits).warnings()[0]


def test_unbalanced_bits_are_counted():
    bits = random_bits()
    bits[:, :40] = random_bits(2000, 40, ones=0.05)
    found = measured(bits)
    assert found.balance.unbalanced == 40
    assert found.dead == ()
    (warning,) = found.warnings()
    assert warning.startswith("40 more of 256 bits are ones in less than 10%")
    bits[:, 20:40] = random_bits(2000, 20)  # 20 of 256 are not worth a word
    assert measured(bits).warnings() == []


def test_a_pair_of_equal_or_opposite_bits_is_found():
    bits = random_bits()
    bits[:, 90] = bits[:, 14]
    found = measured(bits)
    assert found.correlation.pair == (14, 90)
    assert found.correlation.strongest == pytest.approx(1)
    assert found.warnings() == ["bits 14 and 90 say the same (r +1.00): try --rotate"]
    bits[:, 90] = 1 - bits[:, 14]
    assert measured(bits).correlation.strongest == pytest.approx(-1)
    assert "r -1.00" in measured(bits).warnings()[0]


def test_bits_that_repeat_each_other_are_found():
    bits = np.repeat(random_bits(2000, 4), 64, axis=1)
    found = measured(bits)
    assert found.correlation.mean > 0.2
    assert found.distances.independent_bits < 6
    assert any("bits repeat each other" in warning for warning in found.warnings())


def test_correlations_are_those_of_numpy():
    bits = random_bits(500, 16, ones=0.3)
    bits[:, 3] = 1  # has none
    found = measured(bits).correlation
    varying = np.delete(np.arange(16), 3)
    expected = np.abs(np.corrcoef(bits[:, varying].T))
    np.fill_diagonal(expected, 0)
    assert found.mean == pytest.approx(expected.sum() / (15 * 14), rel=1e-4)
    assert abs(found.strongest) == pytest.approx(expected.max(), rel=1e-4)
    first, second = np.searchsorted(varying, found.pair)
    assert expected[first, second] == pytest.approx(expected.max())


def test_duplicates_are_counted():
    bits = random_bits(800)
    bits[600:] = bits[:200]
    found = measured(bits)
    assert found.duplicates == 0.25
    assert found.distances.min == found.distances.nearest_min == 0
    assert any(warning.startswith("25.0% of the passages have the code of another one") for warning in found.warnings())


def test_crowded_codes_are_found():
    bits = np.where(random_bits(ones=0.12) > 0, 1 - random_bits(1), random_bits(1)).astype(np.uint8)
    assert any("codes crowd together" in warning for warning in measured(bits).warnings())


def test_distances_are_those_of_the_reference():
    packed = np.packbits(random_bits(60, 64), axis=1)
    table = codes.hamming_reference(packed, packed)
    pairs = table[np.triu_indices(60, 1)]
    np.fill_diagonal(table, 999)
    found = measure(packed).distances
    assert (found.pairs, found.min, found.max) == (len(pairs), pairs.min(), pairs.max())
    assert (found.mean, found.spread) == pytest.approx((pairs.mean(), pairs.std()))
    nearest = table.min(axis=1)
    assert (found.nearest_min, found.nearest_max) == (nearest.min(), nearest.max())
    assert found.nearest_mean == pytest.approx(nearest.mean())
    for low, high, count in found.histogram:
        assert count == ((pairs >= low) & (pairs <= high)).sum()


def test_few_rows_are_not_judged():
    found = measured(np.zeros((99, 8), np.uint8))
    assert found.warnings() == ["only 99 passages: too few to judge the codes by; look again with 100"]
    assert len(measured(np.zeros((100, 8), np.uint8)).warnings()) == 3  # dead, crowded, repeated


def test_a_single_row_has_no_distances():
    found = measure(np.array([[0b10100000]], np.uint8))
    assert found.distances is None
    assert found.correlation is None
    assert found.dead == tuple(range(8))
    assert found.warnings()[0].startswith("only 1 passage:")


def test_many_rows_without_distances_cannot_be_but_warn_of_nothing():
    found = measured(random_bits())
    lonely = health.Health(**{**{name: getattr(found, name) for name in found.__slots__}, "distances": None})
    assert lonely.warnings() == []


def test_equal_rows_are_no_division_by_zero():
    found = measure(np.full((200, 2), 0x5A, np.uint8))
    assert found.distances.independent_bits == 0
    assert found.distances.histogram == ((0, 0, 199 * 200 // 2),)
    assert found.entropy == 0
    assert found.duplicates == pytest.approx(199 / 200)


def test_nothing_cannot_be_measured():
    with pytest.raises(InvalidInput, match="holds no passages"):
        measure(np.empty((0, 4), np.uint8))
    with pytest.raises(InvalidInput, match="codes must be uint8"):
        measure(np.zeros((3, 4), np.float32))


def test_only_a_sample_of_many_rows_is_read(monkeypatch):
    monkeypatch.setattr(health, "BIT_ROWS", 500)
    monkeypatch.setattr(health, "CORRELATION_ROWS", 300)
    monkeypatch.setattr(health, "PAIR_ROWS", 100)
    found = measured(random_bits(3000))
    assert (found.rows, found.sampled, found.correlation.rows) == (3000, 500, 300)
    assert found.distances.pairs == 100 * 99 // 2
    assert found.warnings() == []


@pytest.mark.parametrize(("rows", "most"), [(1, 10), (10, 10), (11, 10), (1000, 7), (10**9, 1 << 16)])
def test_the_sample_is_spread_over_all_rows(rows, most):
    chosen = health.spread(rows, most)
    assert len(chosen) == min(rows, most)
    assert (chosen[0], chosen[-1]) == (0, rows - 1)
    assert len(chosen) == 1 or (np.diff(chosen) >= 1).all()


@settings(max_examples=60, deadline=None)
@given(arrays(np.uint8, st.tuples(st.integers(1, 150), st.integers(1, 6))))
def test_every_number_is_in_its_range(packed):
    found = measure(packed)
    rows, bits = len(packed), packed.shape[1] * 8
    assert 0 <= found.balance.min <= found.balance.mean + 1e-12
    assert found.balance.mean <= found.balance.max + 1e-12 <= 1 + 1e-12
    assert 0 <= len(found.dead) <= found.balance.unbalanced <= bits
    assert 0 <= found.entropy <= 1
    assert 0 <= found.entropy_total <= bits
    assert 0 <= found.duplicates < 1
    if found.correlation:
        assert 0 <= found.correlation.mean <= abs(found.correlation.strongest) + 1e-6
        assert abs(found.correlation.strongest) <= 1
        assert found.correlation.pair[0] != found.correlation.pair[1]
    if rows > 1:
        far = found.distances
        assert 0 <= far.min == far.nearest_min <= far.nearest_mean <= far.nearest_max <= far.max <= bits
        assert far.min <= far.mean <= far.max
        assert 0 <= far.independent_bits <= bits
        assert sum(count for _, _, count in far.histogram) == far.pairs == rows * (rows - 1) // 2
        assert 1 <= len(far.histogram) <= health.BINS
        assert far.histogram[0][0] == far.min
        assert far.histogram[-1][1] >= far.max
    assert json.loads(json.dumps(found.to_dict()))["warnings"] == found.warnings()
