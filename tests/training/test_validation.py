"""Ranks and recall against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import PAD, Toy

from bpr import codes
from bpr.training import validation
from bpr.training.biencoder import Objective
from bpr.training.building import built
from bpr.training.run import held_out
from bpr.training.validation import Validation, encode, nearest, ranks, summary, values

RANDOM = np.random.default_rng(4)
BITS = 64
QUESTIONS = RANDOM.normal(size=(300, BITS)).astype(np.float32)
PASSAGES = RANDOM.normal(size=(90, BITS)).astype(np.float32)
GOLD = [RANDOM.choice(90, RANDOM.integers(1, 4), replace=False).astype(np.int32) for _ in range(300)]


def slow_rank(question: np.ndarray, gold: np.ndarray, objective: Objective, candidates: int | None) -> int:
    """By codes.py: signs, levels, (distance, row)."""
    reads = PASSAGES
    if objective.code == "bits":
        large = codes.pack_largest(PASSAGES, round(BITS * codes.LARGE)) if objective.planes == 2 else None
        reads = codes.unpack(codes.pack(PASSAGES), large)
    rows = np.arange(90)
    if candidates is not None:
        distance = ((question > 0) != (PASSAGES > 0)).sum(1)
        rows = np.lexsort((rows, distance))[:candidates]
    scores = {int(row): float(reads[row].astype(np.float64) @ question) for row in rows}
    best = max((scores[int(row)] for row in gold if int(row) in scores), default=None)
    return 91 if best is None else 1 + sum(score > best + 1e-9 for score in scores.values())


@pytest.mark.parametrize("candidates", [None, 1, 10, 40, 90, 1000])
@pytest.mark.parametrize("objective", [Objective(), Objective(planes=2), Objective(code="float")], ids=["1", "2", "f"])
def test_ranks_are_those_of_the_reference(objective: Objective, candidates: int | None) -> None:
    found = ranks(torch.from_numpy(QUESTIONS), torch.from_numpy(PASSAGES), GOLD, objective, candidates)
    wanted = [slow_rank(q, gold, objective, candidates) for q, gold in zip(QUESTIONS, GOLD, strict=True)]
    assert found.tolist() == wanted


def test_equally_near_candidates_are_taken_in_the_order_of_rows() -> None:
    agree = torch.tensor([[2.0, 4.0, 2.0, 4.0, 2.0]])
    assert sorted(nearest(agree, 3)[0].tolist()) == [0, 1, 3]


def test_values_are_what_the_codes_say() -> None:
    vectors = torch.from_numpy(PASSAGES)
    signs, large = codes.pack(PASSAGES), codes.pack_largest(PASSAGES, round(BITS * codes.LARGE))
    np.testing.assert_array_equal(values(vectors, Objective()).numpy(), codes.unpack(signs))
    np.testing.assert_array_equal(values(vectors, Objective(planes=2)).numpy(), codes.unpack(signs, large))
    assert values(vectors, Objective(code="float")) is vectors


def test_summary() -> None:
    found = summary(torch.tensor([1, 2, 5, 6, 21, 100, 101, 1000]))
    assert found == {
        "average_rank": pytest.approx(1236 / 8),
        "top_1": pytest.approx(12.5),
        "top_5": pytest.approx(37.5),
        "top_20": pytest.approx(50),
        "top_100": pytest.approx(75),
    }


def test_texts_come_back_in_their_order(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    bi, model = built(toy.recipe(planes=2), toy.data)
    texts = [toy.data.passage(row, 32) for row in range(40)]
    bi.train()
    whole = encode(bi.passage, texts, PAD)
    assert bi.passage.training and whole.shape == (40, model.bits)  # dropout was off, and is on again
    monkeypatch.setattr(validation, "TOKENS_A_BATCH", 70)
    torch.testing.assert_close(encode(bi.passage, texts, PAD), whole, rtol=1e-4, atol=1e-5)
    alone = torch.cat([encode(bi.passage, [text], PAD) for text in texts])
    torch.testing.assert_close(alone, whole, rtol=1e-4, atol=1e-5)


def test_held_out_questions_are_measured_among_their_own_and_other_passages(toy: Toy) -> None:
    recipe = toy.recipe(pool=7)
    found = held_out(toy.data, recipe)
    assert found is not None
    held = np.flatnonzero(toy.data.held)
    gold = {int(row) for i in held for row in toy.data.positives[int(i)]}
    assert len(found.questions) == len(held) and len(found.passages) == len(gold) + 7
    for i, own in zip(held, found.gold, strict=True):
        for place, row in zip(own, toy.data.positives[int(i)], strict=True):
            assert np.array_equal(found.passages[place], toy.data.passage(int(row), 32))
    again = held_out(toy.data, recipe)
    assert all(np.array_equal(a, b) for a, b in zip(found.passages, again.passages, strict=True))
    bi, _ = built(recipe, toy.data)
    measured = found.measure(bi)
    questions, passages = encode(bi.question, found.questions, PAD), encode(bi.passage, found.passages, PAD)
    assert measured == summary(ranks(questions, passages, found.gold, recipe.objective))
    assert Validation.measure(found, bi, 5)["average_rank"] >= 1


def test_nothing_held_out_is_nothing_to_measure(toy: Toy) -> None:
    parts = {**vars(toy.data), "held": np.zeros_like(toy.data.held)}
    assert held_out(type(toy.data)(**parts), toy.recipe()) is None
