"""Section 3 of the paper, formula by formula, and every switch of the objective."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toys import HIDDEN, PAD, WORDS, Toy

from bpr.codes import LARGE, LEVELS, THRESHOLD, pack_largest
from bpr.errors import InvalidInput
from bpr.model import Model
from bpr.training import biencoder
from bpr.training.batches import padded
from bpr.training.biencoder import (
    SIGMA_MOMENTUM,
    Batch,
    BiEncoder,
    Objective,
    contrastive,
    divergence,
    margin_ranking,
    of_one_length,
    off_diagonal,
    outputs,
    soft_sign,
    staircase,
    start_orthogonal,
)
from bpr.training.tower import Head, Tower, load_backbone

BITS, STEPS = 16, 100
GENERATOR = torch.Generator().manual_seed(3)
E_Q = torch.randn(4, BITS, generator=GENERATOR)
E_P = torch.randn(8, BITS, generator=GENERATOR)
BATCH = Batch(
    positive=torch.arange(4),
    ids=torch.tensor([10, 11, 12, 13, 20, 21, 22, 23]),
    owned=torch.tensor([[10, -1], [11, 23], [12, -1], [13, -1]]),  # question 1 has a second positive in the batch
    weight=torch.ones(4),
)
TEACHER = replace(BATCH, teacher=torch.randn(4, 8, generator=GENERATOR))


def encoder(objective: Objective, shared: bool = False) -> BiEncoder:
    """Without a backbone: the losses look at heads only."""
    model = Model("toy", BITS)
    question, passage = (Tower(nn.Identity(), Head(BITS, BITS, False), model, s) for s in ("question", "passage"))
    if shared:
        question.backbone, question.head = passage.backbone, passage.head
    bi = BiEncoder(question, passage, objective)
    with torch.no_grad():
        question.head.sigma.fill_(0.5)
        passage.head.sigma.fill_(1.5)
    return bi


def losses(objective: Objective, batch: Batch = BATCH, step: int = 50) -> dict[str, Tensor]:
    return encoder(objective).losses(E_Q, E_P, batch, step, STEPS)


# ── β ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", [0, 1, 460, 9200, 18400])
def test_beta_of_the_paper(step: int) -> None:
    assert Objective(gamma=0.1, beta_end=None).beta(step, 18400) == math.sqrt(0.1 * step + 1)


def test_beta_of_the_paper_ends_where_the_paper_ended() -> None:
    assert Objective(gamma=0.1, beta_end=None).beta(18400, 18400) == pytest.approx(42.9, abs=0.01)


def test_beta_goes_from_where_it_starts_to_where_it_shall_end_by_the_same_law() -> None:
    objective = Objective(beta_start=0.15, beta_end=6.0)
    assert objective.beta(0, 1000) == 0.15
    assert objective.beta(1000, 1000) == pytest.approx(6.0, rel=1e-12)
    assert objective.beta(500, 1000) == pytest.approx(math.sqrt((0.15**2 + 6.0**2) / 2), rel=1e-12)  # β² is linear
    gamma = ((6.0 / 0.15) ** 2 - 1) / 1000
    assert objective.beta(123, 1000) == pytest.approx(0.15 * math.sqrt(gamma * 123 + 1), rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.1}, "either gamma"),
        ({"beta_end": None}, "either gamma"),
        ({"gamma": 0.1, "beta_end": None, "planes": 2}, "two planes need beta_end"),
        ({"candidates": "off", "rerank": False}, "both losses are off"),
        ({"planes": 3}, "planes must be 1 or 2"),
        ({"code": "ternary"}, "unknown objective"),
        ({"candidates": "maybe"}, "unknown objective"),
        ({"reduction": "max"}, "reduction must be"),
        ({"straight_through": 1.5}, "share of the steps"),
        ({"beta_start": 0.0}, "more than 0"),
    ],
)
def test_objectives_that_contradict_themselves(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Objective(**settings)  # type: ignore[arg-type]


# ── What each switch changes, and what it leaves ─────────────────────────────────────────────────────────────────────

SWITCHES = {
    "cross-entropy": ({"candidates": "cross-entropy"}, {"candidates"}, set(), set()),
    "candidates off": ({"candidates": "off"}, set(), set(), {"candidates"}),
    "rerank off": ({"rerank": False}, set(), set(), {"rerank"}),
    "margin": ({"margin": 4.0}, {"candidates"}, set(), set()),
    "sum": ({"reduction": "sum"}, {"candidates"}, set(), set()),
    "planes": ({"planes": 2}, {"rerank"}, set(), set()),
    "scale": ({"scale": 2.0}, {"rerank"}, set(), set()),
    "straight through": ({"straight_through": 1.0}, {"candidates", "rerank"}, set(), set()),
    "beta_end": ({"beta_end": 2.0}, {"candidates", "rerank"}, set(), set()),
    "gamma": ({"gamma": 0.1, "beta_end": None}, {"candidates", "rerank"}, set(), set()),
    "distill": ({"distill": 0.5}, set(), {"distill"}, set()),
    "balance": ({"balance": 0.5}, set(), {"balance"}, set()),
    "decorrelate": ({"decorrelate": 0.5}, set(), {"decorrelate"}, set()),
    "nested": ({"nested": (8, 12)}, set(), {"nested 8", "nested 12"}, set()),
    "float": ({"code": "float"}, {"rerank"}, set(), {"candidates"}),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_what_it_should_and_nothing_else(name: str) -> None:
    settings, other, more, gone = SWITCHES[name]
    plain, found = losses(Objective(), TEACHER), losses(Objective(**settings), TEACHER)
    assert set(found) == set(plain) - gone | more
    for part in set(plain) - gone:
        assert torch.equal(found[part], plain[part]) == (part not in other), part


def test_without_a_teacher_there_is_nothing_to_distill() -> None:
    assert "distill" not in losses(Objective(distill=1.0))


def test_the_parts_are_the_formulas_of_the_paper() -> None:
    """One plane, raw outputs: h̃ = tanh(βe), L_rerank on ⟨e_q, h̃_p⟩, L_cand on ⟨h̃_q, h̃_p⟩."""
    objective = Objective(gamma=0.1, beta_end=None)
    found, beta = losses(objective, step=50), math.sqrt(0.1 * 50 + 1)
    h_q, h_p = torch.tanh(beta * E_Q), torch.tanh(beta * E_P)
    rerank, shortfalls = 0.0, []
    for q in range(4):
        rivals = [p for p in range(8) if p == q or (q, p) != (1, 7)]
        rerank += float(-torch.log_softmax(E_Q[q] @ h_p[rivals].T, 0)[rivals.index(q)]) / 4
        shortfalls += [max(0.0, 2 - float(h_q[q] @ h_p[q] - h_q[q] @ h_p[p])) for p in rivals if p != q]
    assert float(found["rerank"]) == pytest.approx(rerank, rel=1e-5)
    assert float(found["candidates"]) == pytest.approx(sum(shortfalls) / len(shortfalls), rel=1e-5)


def test_outputs_are_in_units_of_their_sides_spread_unless_gamma_is_given() -> None:
    beta = Objective().beta(50, STEPS)
    h_q, h_p = torch.tanh(beta * E_Q / 0.5), torch.tanh(beta * E_P / 1.5)
    found = losses(Objective())
    torch.testing.assert_close(found["candidates"], margin_ranking(h_q @ h_p.T, BATCH, 2.0, "mean"))
    torch.testing.assert_close(found["rerank"], contrastive(E_Q @ h_p.T, BATCH))


def test_float_is_plain_dpr() -> None:
    masked = (E_Q @ E_P.T * 3).masked_fill(~BATCH.competitors(), -math.inf)
    found = losses(Objective(code="float", scale=3.0))
    torch.testing.assert_close(found["rerank"], cross_entropy(masked, BATCH.positive))


# ── The margin loss ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_margin_loss_by_hand_and_not_as_printed() -> None:
    scores = torch.tensor([[5.0, 4.0, 1.0]])
    batch = Batch(torch.tensor([0]), torch.tensor([1, 2, 3]), torch.tensor([[1]]), torch.ones(1))
    # 2 − (5 − 4) = 1 and 2 − (5 − 1) < 0; as printed, with a plus, both would be max(0, −(5 + …) + 2) = 0.
    assert float(margin_ranking(scores, batch, 2.0, "mean")) == 0.5
    assert float(margin_ranking(scores, batch, 2.0, "sum")) == 1.0
    printed = (2.0 - (scores[:, :1] + scores[:, 1:])).clamp_min(0).mean()
    assert float(printed) == 0.0
    assert float(margin_ranking(scores, batch, 0.0, "mean")) == 0.0
    assert float(margin_ranking(scores, batch, 6.0, "mean")) == (5 + 2) / 2


def test_the_sum_is_the_mean_times_the_pairs() -> None:
    mean, total = (losses(Objective(reduction=each))["candidates"] for each in ("mean", "sum"))
    pairs = int(BATCH.negatives().sum())
    assert pairs == 4 * 7 - 1  # all but the own positives and the duplicate
    torch.testing.assert_close(total, mean * pairs)


# ── Who competes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_duplicate_of_the_positive_is_no_negative() -> None:
    ids = torch.tensor([10, 11, 10, 30])  # the third passage is the first question's positive again
    batch = Batch(torch.tensor([0, 1]), ids, torch.tensor([[10], [11]]), torch.ones(2))
    assert batch.negatives().tolist() == [[False, True, False, True], [True, False, True, True]]
    assert batch.competitors().tolist() == [[True, True, False, True], [True, True, True, True]]
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for loss in (contrastive(scores, batch), margin_ranking(scores, batch, 100.0, "mean")):
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient[0, 2] == 0 and (gradient[gradient != gradient[0, 2]] != 0).sum() == 7


def test_other_positives_of_a_question_are_no_negatives_either() -> None:
    assert BATCH.negatives()[1].tolist() == [True, False, True, True, True, True, True, False]


def test_weights_count_questions() -> None:
    scores = E_Q @ E_P.T
    one = replace(BATCH, weight=torch.tensor([0.0, 0.0, 1.0, 0.0]))
    torch.testing.assert_close(contrastive(scores, one), cross_entropy(scores[2:3], torch.tensor([2])))
    short = (2.0 - (scores[2, 2] - scores[2])).clamp_min(0)[[0, 1, 3, 4, 5, 6, 7]]
    torch.testing.assert_close(margin_ranking(scores, one, 2.0, "mean"), short.mean())
    half = replace(BATCH, weight=torch.tensor([1.0, 1.0, 0.5, 0.5]))
    each = [contrastive(scores, replace(BATCH, weight=torch.eye(4)[q])) for q in range(4)]
    torch.testing.assert_close(contrastive(scores, half), (each[0] + each[1] + (each[2] + each[3]) / 2) / 3)


# ── The hash layer ───────────────────────────────────────────────────────────────────────────────────────────────────

X = torch.tensor([-3.0, -1.0, -0.97, -0.5, 0.2, 0.9, 1.0, 4.0])
CODED = torch.tensor([-LEVELS[1], -LEVELS[1], -LEVELS[0], -LEVELS[0], LEVELS[0], LEVELS[0], LEVELS[1], LEVELS[1]])


def test_the_staircase_becomes_the_four_levels() -> None:
    assert (LEVELS, THRESHOLD) == ((0.4528, 1.5104), 0.9816)
    torch.testing.assert_close(staircase(X, 1e6), CODED)
    errors = [(staircase(X, beta) - CODED).abs().max() for beta in (1.0, 10.0, 100.0, 1000.0)]
    assert errors == sorted(errors, reverse=True)
    c1, c2, t = 0.4528, 0.5288, 0.9816
    soft = c1 * torch.tanh(2 * X) + c2 * (torch.tanh(2 * (X - t)) + torch.tanh(2 * (X + t)))
    torch.testing.assert_close(staircase(X, 2.0), soft)


def test_rows_of_one_length_have_as_many_large_values_as_the_codes() -> None:
    x = (
        torch.randn(20, 64, generator=torch.Generator().manual_seed(3)) * torch.arange(1, 21)[:, None]
    ).requires_grad_()
    level = of_one_length(x)
    large = np.packbits((level.detach().abs() > THRESHOLD).numpy(), axis=1)
    np.testing.assert_array_equal(large, pack_largest(x.detach().numpy(), round(64 * LARGE)))
    (slope,) = torch.autograd.grad(level.sum(), x)
    torch.testing.assert_close(slope, (level / x).detach())  # a row's scale is a constant to the gradient
    assert of_one_length(torch.zeros(2, 64)).tolist() == torch.zeros(2, 64).tolist()


@pytest.mark.parametrize("layer", [soft_sign, staircase])
def test_straight_through_has_hard_values_and_soft_gradients(layer: object) -> None:
    x = X.clone().requires_grad_()
    hard, soft = layer(x, 2.0, True), layer(x, 2.0)  # type: ignore[operator]
    torch.testing.assert_close(hard, CODED if layer is staircase else X.sign())
    (through,), (plain,) = (torch.autograd.grad(each.sum(), x) for each in (hard, soft))
    torch.testing.assert_close(through, plain)


def test_straight_through_is_a_share_of_the_last_steps() -> None:
    assert [Objective(straight_through=0.25).hard(step, 100) for step in (0, 74, 75, 99)] == [False, False, True, True]
    assert not any(Objective().hard(step, 100) for step in range(100))
    assert all(Objective(straight_through=1.0).hard(step, 100) for step in range(100))


# ── Distilling ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_to_learn_from_a_teacher_that_agrees_up_to_a_constant() -> None:
    scores = E_Q @ E_P.T
    same = replace(BATCH, teacher=scores + torch.randn(4, 1))
    assert float(divergence(scores, same)) == pytest.approx(0, abs=1e-5)
    assert float(divergence(scores, TEACHER)) > 0.1
    student = losses(Objective(code="float", scale=2.0, distill=3.0, distill_scale=0.5), same)
    softer = losses(Objective(code="float", distill=3.0), replace(BATCH, teacher=scores))
    assert float(student["distill"]) > 0.01  # at half of the teacher's scale
    assert float(softer["distill"]) == pytest.approx(0, abs=1e-4)


def test_only_what_the_teacher_has_scored_is_compared() -> None:
    scores = (E_Q @ E_P.T).requires_grad_()
    teacher = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    teacher[0], teacher[2, 4:] = -math.inf, -math.inf
    loss = divergence(scores, replace(BATCH, teacher=teacher))
    (gradient,) = torch.autograd.grad(loss, scores)
    assert not gradient[0].any() and not gradient[2, 4:].any() and not gradient[1, 7].any()
    rows = []
    for q, columns in ((1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 1, 2, 3]), (3, list(range(8)))):
        theirs, ours = teacher[q, columns].softmax(0), scores[q, columns].log_softmax(0)
        rows.append((theirs * (theirs.log() - ours)).sum())
    torch.testing.assert_close(loss, torch.stack(rows).mean())
    silent = replace(BATCH, teacher=teacher, weight=torch.tensor([1.0, 0.0, 0.0, 1.0]))  # pairs without own losses
    torch.testing.assert_close(divergence(scores, silent), loss)
    nobody = replace(BATCH, teacher=torch.full((4, 8), -math.inf))
    assert float(divergence(scores.detach(), nobody)) == 0


def test_a_model_may_learn_from_its_teacher_alone() -> None:
    parts = losses(Objective(candidates="off", rerank=False, distill=1.0), TEACHER)
    assert set(parts) == {"distill"} and float(parts["distill"]) > 0


# ── Penalties and prefixes ───────────────────────────────────────────────────────────────────────────────────────────


def test_balance_punishes_bits_that_are_always_the_same() -> None:
    bi = encoder(Objective(balance=2.0, straight_through=1.0))
    always = torch.ones(8, BITS)
    half = torch.where(torch.arange(8).unsqueeze(1) % 2 == 0, always, -always)
    assert float(bi.losses(E_Q, always, BATCH, 0, STEPS)["balance"]) == pytest.approx(2.0)
    assert float(bi.losses(E_Q, half, BATCH, 0, STEPS)["balance"]) == pytest.approx(0.0, abs=1e-6)


def test_decorrelate_punishes_bits_that_say_the_same() -> None:
    twins = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)).repeat(1, 4)
    assert float(off_diagonal(twins)) == pytest.approx(1.0, rel=1e-5)
    signs = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    assert float(off_diagonal(signs)) == pytest.approx(0.0, abs=1e-6)
    assert float(losses(Objective(decorrelate=3.0))["decorrelate"]) == pytest.approx(
        3 * float(losses(Objective(decorrelate=1.0))["decorrelate"]), rel=1e-5
    )


def test_a_nested_prefix_is_a_code_of_its_own() -> None:
    found = losses(Objective(nested=(8,)))["nested 8"]
    h_p = torch.tanh(Objective().beta(50, STEPS) * E_P / 1.5)
    torch.testing.assert_close(found, contrastive(E_Q[:, :8] @ h_p[:, :8].T, BATCH))


# ── The head's start and σ ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bits", [HIDDEN, 2 * HIDDEN, 3 * HIDDEN])
def test_an_orthogonal_start_keeps_inner_products_and_centres_the_bits(bits: int) -> None:
    pooled = torch.randn(500, HIDDEN, generator=torch.Generator().manual_seed(5)) + 2.0
    question, passage = Head(HIDDEN, bits), Head(HIDDEN, bits)
    start_orthogonal(question, torch.zeros(HIDDEN), 7)
    start_orthogonal(passage, pooled.mean(0), 7)
    times = bits // HIDDEN
    turned = question.projection(pooled)
    torch.testing.assert_close(turned @ turned.T, times * pooled @ pooled.T, rtol=1e-4, atol=1e-3)
    e = passage.projection(pooled)
    torch.testing.assert_close(e.mean(0), torch.zeros(bits), atol=1e-4, rtol=0)
    assert (e > 0).float().mean(0).sub(0.5).abs().max() < 0.1  # no bit starts constant
    apart, were_apart = (each[:250] - each[250:] for each in (e, pooled))
    torch.testing.assert_close(apart.norm(dim=1), times**0.5 * were_apart.norm(dim=1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(question.projection.weight, passage.projection.weight)


def test_fewer_bits_than_outputs_are_still_orthogonal() -> None:
    head = Head(HIDDEN, 16)
    start_orthogonal(head, torch.zeros(HIDDEN), 0)
    weight = head.projection.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(16), atol=1e-5, rtol=0)
    plain = Head(HIDDEN, HIDDEN, projected=False)
    start_orthogonal(plain, torch.zeros(HIDDEN), 0)  # nothing to do
    assert plain.projection is None


def test_sigma_follows_the_spread_of_each_side() -> None:
    bi = encoder(Objective())
    bi.watch_spread(E_Q, E_P)
    for head, e, before in ((bi.question.head, E_Q, 0.5), (bi.passage.head, E_P, 1.5)):
        moved = (1 - SIGMA_MOMENTUM) * before**2 + SIGMA_MOMENTUM * e.square().mean(0)
        torch.testing.assert_close(head.sigma, moved.sqrt())
    for _ in range(400):
        bi.watch_spread(E_Q, E_P)
    torch.testing.assert_close(bi.passage.head.sigma, E_P.square().mean(0).sqrt(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(bi.question.head.sigma, E_Q.square().mean(0).sqrt(), rtol=1e-3, atol=1e-3)


def test_a_shared_heads_sigma_is_the_passages() -> None:
    bi = encoder(Objective(), shared=True)
    for _ in range(400):
        bi.watch_spread(E_Q * 100, E_P)
    torch.testing.assert_close(bi.passage.head.sigma, E_P.square().mean(0).sqrt(), rtol=1e-3, atol=1e-3)


# ── Towers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def towers(toy: Toy, shared: bool) -> BiEncoder:
    model = Model("toy", 64, pooling="mean", shared=shared)
    passage = Tower(load_backbone(toy.start), Head(HIDDEN, 64), model, "passage")
    backbone, head = (passage.backbone, passage.head) if shared else (load_backbone(toy.start), Head(HIDDEN, 64))
    return BiEncoder(Tower(backbone, head, model, "question"), passage, Objective())


def test_shared_towers_are_registered_once(toy: Toy) -> None:
    single, double = towers(toy, True), towers(toy, False)
    assert len(list(single.parameters())) * 2 == len(list(double.parameters()))
    pointers = [each.data_ptr() for each in single.state_dict().values()]
    assert len(pointers) == len({*pointers}) and len(pointers) * 2 == len(double.state_dict())
    for bi in (single, double):
        for mode in (True, False):
            bi.train(mode)
            assert {each.training for each in (bi, bi.question, bi.passage, bi.question.backbone)} == {mode}
    assert single.to(torch.float64).question.head.sigma.dtype == torch.float64


def test_texts_in_buckets_of_like_length_give_what_they_give_together(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    bi = towers(toy, False).eval()
    dice = torch.Generator().manual_seed(2)
    texts = [
        torch.randint(8, 8 + len(WORDS), (int(torch.randint(3, 30, (), generator=dice)),), generator=dice).numpy()
        for _ in range(150)
    ]
    ids, mask = padded(texts, PAD)
    bucketed = outputs(bi.passage, ids, mask)
    monkeypatch.setattr(biencoder, "SMALLEST_BUCKET", 1000)
    together = outputs(bi.passage, ids, mask)
    assert bucketed.shape == (150, 64)
    torch.testing.assert_close(bucketed, together, rtol=1e-4, atol=1e-5)
    e_q, e_p = bi(ids[:5], mask[:5], ids, mask)
    torch.testing.assert_close(e_p, together)
    torch.testing.assert_close(e_q, outputs(bi.question, ids[:5], mask[:5]))


def test_a_shared_encoder_reads_both_sides_in_one_pass(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where texts go unpadded, which is on a GPU; here its arithmetic alone."""
    bi = towers(toy, True).eval()
    short, long = (torch.randint(8, 8 + len(WORDS), (4, n), generator=torch.Generator().manual_seed(n)) for n in (5, 9))
    masks = torch.ones_like(short), torch.ones_like(long)
    for questions, passages, (q_mask, p_mask) in ((short, long, masks), (long, short, masks[::-1])):
        wanted = bi(questions, q_mask, passages, p_mask)
        with monkeypatch.context() as patch:
            patch.setattr(biencoder.packed, "fits", lambda backbone: True)
            found = bi(questions, q_mask, passages, p_mask)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)  # bfloat16
