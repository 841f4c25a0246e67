"""Spans, mixing, merging and confidence, against plain loops and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr.errors import InvalidInput
from bpr.spans import (
    MOST_TOKENS,
    MOST_WORDS,
    Borders,
    Calibration,
    Mix,
    auroc,
    best_spans,
    calibration_error,
    coverage,
    features,
    fitted,
    log_sum,
    merged,
)


def by_loops(start: np.ndarray, end: np.ndarray, inside: np.ndarray, glued: np.ndarray) -> list[tuple[float, int, int]]:
    found = []
    for first in range(len(start)):
        for last in range(first, min(len(start), first + MOST_TOKENS)):
            whole = not inside[first] and (last + 1 == len(start) or not inside[last + 1])
            words = 1 + sum(not each for each in glued[first + 1 : last + 1])
            if whole and words <= MOST_WORDS:
                found.append((-float(start[first] + end[last]), first, last))
    return sorted(found)


@given(st.integers(0, 70), st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_best_spans_are_those_of_plain_loops(tokens: int, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    start, end = random.normal(size=(2, tokens)).astype(np.float32)
    inside, glued = random.random(tokens) < 0.3, random.random(tokens) < 0.5
    found = best_spans(start, end, Borders.of(inside, glued), count)
    wanted = by_loops(start, end, inside, glued)[:count]
    assert [*zip(found.firsts, found.lasts, strict=True)] == [(first, last) for _, first, last in wanted]
    np.testing.assert_allclose(found.logits, [-z for z, _, _ in wanted], rtol=1e-6)


def test_an_answer_has_ten_words_at_most() -> None:
    start, end = np.zeros(30, np.float32), np.zeros(30, np.float32)
    start[3], end[20] = 5, 5
    apart = np.zeros(30, bool)
    (found,) = zip(*best_spans(start, end, Borders.of(apart, apart), 1), strict=True)
    assert found[1] - found[0] + 1 <= MOST_WORDS
    (whole,) = zip(*best_spans(start, end, Borders.of(apart, ~apart), 1), strict=True)  # one word of many tokens
    assert whole[:2] == (3, 20)


def test_log_sum() -> None:
    assert log_sum(np.array([1.0, 2.0], np.float32)) == pytest.approx(math.log(math.e + math.e**2), rel=1e-6)
    assert log_sum(np.array([1e30, 1e30], np.float32)) == pytest.approx(1e30)
    assert log_sum(np.array([], np.float32)) == 0


def test_spans_with_the_same_answer_add_up() -> None:
    texts = ["Homer", "Virgil", "the homer.", "Homer"]
    z = np.log([0.2, 0.4, 0.25, 0.15])
    first, second = merged(texts, z)
    assert (first.text, first.span) == ("the homer.", 2) and first.probability == pytest.approx(0.6)
    assert (second.text, second.span) == ("Virgil", 1) and second.probability == pytest.approx(0.4)
    assert merged([], np.array([])) == []


def test_answers_of_nothing_but_punctuation_stay_apart() -> None:
    assert [each.text for each in merged(["?", "!", "?"], np.log([0.3, 0.4, 0.3]))] == ["?", "!"]


def test_the_mix() -> None:
    z = Mix(1, 2, 3)(np.array([1.0]), np.array([10.0]), np.array([100.0]))
    assert z.tolist() == [1 + 20 - 300]


def test_confidence_without_a_calibration_is_the_probability() -> None:
    assert Calibration().confidence(0.3, 5.0, -2.0) == pytest.approx(0.3)
    assert 0 < Calibration().confidence(0.0, 0, 0) < 1e-5 and 1 - 1e-5 < Calibration().confidence(1.0, 0, 0) < 1


def test_a_calibration_is_fitted_to_what_is_true() -> None:
    random = np.random.default_rng(0)
    known = features(random.uniform(0.05, 0.95, 20_000), random.normal(size=20_000), random.normal(size=20_000))
    wanted = Calibration(-1.0, 0.7, 0.5, -0.3)
    truth = 1 / (1 + np.exp(-known @ [-1.0, 0.7, 0.5, -0.3]))
    found = fitted(known, random.random(20_000) < truth, decay=0.0)
    for name in ("bias", "share", "score", "span"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=0.08)
    confidence = 1 / (1 + np.exp(-known @ [found.bias, found.share, found.score, found.span]))
    assert calibration_error(confidence, random.random(20_000) < truth) < 0.02


def test_a_feature_that_never_changes_does_no_harm() -> None:
    random = np.random.default_rng(0)
    known = features(random.uniform(0.05, 0.95, 500), np.full(500, 3.0), np.zeros(500))
    found = fitted(known, random.random(500) < 0.4)
    assert np.isfinite([found.bias, found.share, found.score, found.span]).all()


def test_what_no_calibration_can_be() -> None:
    known = features([0.5, 0.5], [0, 0], [0, 0])
    for right in ([True, True], [False, False]):
        with pytest.raises(InvalidInput, match="both kinds"):
            fitted(known, np.array(right))
    for values in ((0, -1, 0, 0), (math.nan, 1, 0, 0)):
        with pytest.raises(InvalidInput, match="four finite numbers"):
            Calibration(*values)


def test_ece_auroc_and_coverage_by_hand() -> None:
    confidence, right = np.array([0.9, 0.9, 0.1, 0.1]), np.array([True, False, False, False])
    assert calibration_error(confidence, right, bins=2) == pytest.approx((0.4 + 0.1) / 2)
    assert auroc(np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False])) == pytest.approx(3.5 / 4)
    with pytest.raises(InvalidInput, match="both kinds"):
        auroc(confidence, np.ones(4, bool))
    assert coverage(confidence, right).tolist() == [1.0, 0.5, 1 / 3, 0.25]
