"""Section 3 of the paper: two encoders, a hash layer that hardens while it trains, and the two losses.

    e_q, e_p    outputs of the two encoders                     h = sign(e)      the code
    σ           spread of e, running over the global batch      x = e / σ

trainer.py trains it; every ablation of the paper is a switch of `Objective`. Knows tensors only: no files, no tokens,
no Trainer. What the paper misprints, and what is measured instead, is in docs/reproduction.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, pad, softmax

from ..codes import LARGE, LEVELS, THRESHOLD
from ..errors import InvalidInput
from . import packed
from .tower import Head, Tower, projected

BUCKETS, SMALLEST_BUCKET = 4, 32
VERY_LOW = -1e4  # a score that no softmax sees, without the NaN of a row of nothing but infinities
SIGMA_MOMENTUM = 0.02  # of the running σ: some 50 steps
STEP_OF_SIGN = LEVELS[0]  # c1
STEP_OF_MAGNITUDE = (LEVELS[1] - LEVELS[0]) / 2  # c2


@dataclass(frozen=True)
class Objective:
    """What is minimised. The defaults are the paper's, except for where β ends.

    code: "bits" trains codes; "float" is plain DPR, the twin that codes are compared with.
    planes: 1, the paper's signs; 2, sign + magnitude (the soft staircase).
    candidates: L_cand as margin ranking (the paper's), cross-entropy (its ablation) or off. rerank: L_rerank or off.
    margin: α. reduction: L_cand as the mean over all pairs, or as the sum the paper prints (it kills bits).
    gamma: β = sqrt(γ·step + 1) on raw outputs, the paper's (0.1); exclusive with beta_end.
    beta_start, beta_end: β in units of σ, from … to …, by the same law; what counts is how hard it ends.
    straight_through: the share of the last steps in which codes are hard and the gradient passes straight through
    (1.0: always, the paper's ablation).
    scale: what scores are multiplied by before a softmax; 1 is the paper's.
    distill: weight of KL(teacher ‖ student) over the batch's passages, where a teacher is given; distill_scale: what
    the student's scores are multiplied by there (0: scale), softer than elsewhere to learn more than who is first.
    balance, decorrelate: weights of penalties on bits that are mostly on or off, and on bits that say the same.
    nested: lengths of prefixes that shall be good codes themselves.
    """

    code: Literal["bits", "float"] = "bits"
    planes: int = 1
    candidates: Literal["margin", "cross-entropy", "off"] = "margin"
    rerank: bool = True
    margin: float = 2.0
    reduction: Literal["mean", "sum"] = "mean"
    gamma: float | None = None
    beta_start: float = 0.15
    beta_end: float | None = 6.0
    straight_through: float = 0.0
    scale: float = 1.0
    distill: float = 0.0
    distill_scale: float = 0.0
    balance: float = 0.0
    decorrelate: float = 0.0
    nested: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.code not in ("bits", "float") or self.candidates not in ("margin", "cross-entropy", "off"):
            raise InvalidInput(f"unknown objective: code = {self.code!r}, candidates = {self.candidates!r}")
        if self.reduction not in ("mean", "sum"):
            raise InvalidInput(f"reduction must be 'mean' or 'sum', not {self.reduction!r}")
        if self.planes not in (1, 2):
            raise InvalidInput(f"planes must be 1 or 2, not {self.planes}")
        if (self.gamma is None) == (self.beta_end is None):
            raise InvalidInput("give either gamma (the paper's, on raw outputs) or beta_end (in units of their spread)")
        if self.gamma is not None and self.planes == 2:
            raise InvalidInput("two planes need beta_end: their levels are in units of the outputs' spread")
        if self.candidates == "off" and not self.rerank and not self.distill:
            raise InvalidInput("both losses are off: nothing would be trained")
        if not 0 <= self.straight_through <= 1:
            raise InvalidInput(f"straight_through is a share of the steps, not {self.straight_through}")
        if min(self.beta_start, self.beta_end or 1.0, self.scale) <= 0 or (self.gamma or 0) < 0:
            raise InvalidInput("beta_start, beta_end and scale must be more than 0, and gamma not less")

    def beta(self, step: int, steps: int) -> float:
        """β after `step` finished optimizer steps of `steps`; in units of σ unless γ is given."""
        if self.gamma is not None:
            return math.sqrt(self.gamma * step + 1)  # β = sqrt(γ·step + 1)
        assert self.beta_end is not None
        gamma = ((self.beta_end / self.beta_start) ** 2 - 1) / max(steps, 1)  # the γ that ends at β_end
        return self.beta_start * math.sqrt(gamma * step + 1)

    def hard(self, step: int, steps: int) -> bool:
        """Whether codes are hard in this step."""
        return step >= steps * (1 - self.straight_through)


@dataclass(frozen=True)
class Batch:
    """What the losses need beside the outputs: which passage is whose.

    positive: the column of each question's own positive. ids: the passages' numbers. owned: numbers of all positives of
    a question, padded with −1; they never count as its negatives. weight: of each question. teacher: a teacher's
    scores, −inf where it has none.
    """

    positive: Tensor  # int64 [q]
    ids: Tensor  # int64 [p]
    owned: Tensor  # int64 [q, most]
    weight: Tensor  # float [q]
    teacher: Tensor | None = None  # float [q, p]

    def negatives(self) -> Tensor:
        """Whose negative a passage is: everything in the batch that is not a positive of the question.  bool [q, p]"""
        mine = (self.owned.unsqueeze(2) == self.ids).any(1)  # [q, p]; duplicates of the positive too
        return ~mine

    def competitors(self) -> Tensor:
        """The negatives and the one positive: what a question's softmax runs over.  bool [q, p]"""
        return self.negatives().scatter(1, self.positive.unsqueeze(1), True)


class BiEncoder(nn.Module):
    """The question's and the passage's encoder, and the losses on their outputs."""

    question: Tower
    passage: Tower

    def __init__(self, question: Tower, passage: Tower, objective: Objective) -> None:
        """The towers may share backbone and head, both or neither."""
        super().__init__()
        self.shared = question.backbone is passage.backbone
        if self.shared:  # beside the registered modules: a checkpoint holds every weight once
            self.__dict__["question"] = question
        else:
            self.question = question
        self.objective, self.passage = objective, passage
        self._known: list[nn.Parameter] = []

    def train(self, mode: bool = True) -> BiEncoder:
        """Both towers, also one that is not registered; the Trainer asks before every step."""
        parts = (self, self.question, self.passage, self.question.backbone, self.passage.backbone)
        if any(part.training != mode for part in parts):  # or they all are already: a walk takes milliseconds
            super().train(mode)
            self.question.train(mode)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Also asked for before every step: a walk through all modules each time would take a millisecond."""
        self._known = self._known or list(self.parameters())
        for weight in self._known:
            weight.grad = None if set_to_none or weight.grad is None else torch.zeros_like(weight)

    def forward(
        self,
        question_ids: Tensor,
        question_mask: Tensor,
        passage_ids: Tensor,
        passage_mask: Tensor,
        tokens: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The outputs e of both sides.  [q, tokens], [p, tokens] → [q, bits], [p, bits]

        tokens: of both sides, without padding, if the host knows them (see packed.Packed.of).
        """
        if self.shared and packed.fits(self.passage.backbone):
            return self._together((question_ids, passage_ids), (question_mask, passage_mask), tokens)
        counts = tokens or (None, None)
        return (
            outputs(self.question, question_ids, question_mask, counts[0]),
            outputs(self.passage, passage_ids, passage_mask, counts[1]),
        )

    def _together(
        self, ids: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor], tokens: tuple[int, int] | None
    ) -> tuple[Tensor, Tensor]:
        """One pass of a shared encoder over both sides: half as many kernels to launch."""
        longest = max(each.shape[1] for each in ids)
        all_ids, all_masks = (torch.cat([pad(x, (0, longest - x.shape[1])) for x in some]) for some in (ids, masks))
        pooled = self.passage.pooled(all_ids, all_masks, tokens=tokens and sum(tokens))  # [q + p, hidden]
        count = len(ids[0])
        return projected(pooled[:count], self.question.head), projected(pooled[count:], self.passage.head)

    def losses(self, e_q: Tensor, e_p: Tensor, batch: Batch, step: int, steps: int) -> dict[str, Tensor]:
        """The parts whose sum is minimised.  e_q: [q, bits], e_p: [p, bits], float32"""
        o = self.objective
        if o.code == "float":  # DPR: cross-entropy of ⟨e_q, e_p⟩
            scores = e_q @ e_p.T  # [q, p]
            return {"rerank": contrastive(scores * o.scale, batch), **self._distilled(scores, batch)}
        beta, hard = o.beta(step, steps), o.hard(step, steps)
        raw = o.gamma is not None
        x_q = e_q if raw else e_q / self.question.head.sigma  # [q, bits]
        x_p = e_p if raw else e_p / self.passage.head.sigma  # [p, bits]
        h_q, h_p = soft_sign(x_q, beta, hard), soft_sign(x_p, beta, hard)  # h̃ = tanh(βe)       [q, bits], [p, bits]
        value_p = (
            h_p if o.planes == 1 else staircase(of_one_length(x_p), beta, hard)
        )  # what the rerank reads  [p, bits]
        parts: dict[str, Tensor] = {}
        if o.candidates == "margin":
            parts["candidates"] = margin_ranking(h_q @ h_p.T, batch, o.margin, o.reduction)  # L_cand
        elif o.candidates == "cross-entropy":
            parts["candidates"] = contrastive(h_q @ h_p.T * o.scale, batch)
        scores = e_q @ value_p.T  # ⟨e_q, h̃_p⟩  [q, p]
        if o.rerank:
            parts["rerank"] = contrastive(scores * o.scale, batch)  # L_rerank
        parts |= self._distilled(scores, batch)
        for bits in o.nested:
            parts[f"nested {bits}"] = contrastive(e_q[:, :bits] @ value_p[:, :bits].T * o.scale, batch) / len(o.nested)
        if o.balance:
            parts["balance"] = o.balance * h_p.mean(0).square().mean()
        if o.decorrelate:
            parts["decorrelate"] = o.decorrelate * off_diagonal(h_p)
        return parts

    def _distilled(self, scores: Tensor, batch: Batch) -> dict[str, Tensor]:
        if not self.objective.distill or batch.teacher is None:
            return {}
        o = self.objective
        return {"distill": o.distill * divergence(scores * (o.distill_scale or o.scale), batch)}

    @torch.no_grad()
    def watch_spread(self, e_q: Tensor, e_p: Tensor) -> None:
        """Move the running σ of both sides towards this (global) batch's; a shared head's σ is the passages'."""
        sides = [(self.passage.head, e_p)] + ([] if self.shared else [(self.question.head, e_q)])
        for head, e in sides:
            moment = e.float().square().mean(0)  # [bits]; about 0, where the threshold of the bit is
            head.sigma.copy_(head.sigma.square().lerp(moment.clamp_min(1e-12), SIGMA_MOMENTUM).sqrt())


def outputs(tower: Tower, ids: Tensor, mask: Tensor, tokens: int | None = None) -> Tensor:
    """A side's outputs e, not yet in units of σ.  [n, tokens] → [n, bits]

    Where nothing can run without padding, texts of like length go through the encoder together: less than half as much
    padding is computed.
    """
    if packed.fits(tower.backbone) or len(ids) <= BUCKETS * SMALLEST_BUCKET:
        return tower.outputs(ids, mask, tokens=tokens)
    lengths = mask.sum(1)  # [n]
    order = lengths.argsort(stable=True)  # [n]
    parts = []
    for some in order.chunk(BUCKETS):
        longest = int(lengths[some[-1]])
        parts.append(tower.outputs(ids[some, :longest], mask[some, :longest]))
    return torch.cat(parts)[order.argsort()]


@torch.no_grad()
def start_orthogonal(head: Head, mean: Tensor, seed: int) -> None:
    """Stacked random rotations, and bias = −mean of the outputs: no bit starts constant, and no distance is lost.

    Both sides get the same rotations, or inner products would mean nothing at the start. mean: of the pooled [hidden].
    """
    if head.projection is None:
        return
    random = torch.Generator().manual_seed(seed)
    weight = head.projection.weight  # [bits, hidden]
    bits, hidden = weight.shape
    frames = []
    for _ in range(-(-bits // hidden)):
        q, r = torch.linalg.qr(torch.randn(hidden, hidden, generator=random, dtype=torch.float64))
        frames.append(q * r.diagonal().sign())  # so that every rotation is as likely as any other
    weight.copy_(torch.cat(frames)[:bits])
    head.projection.bias.copy_(-(weight @ mean))


def soft_sign(x: Tensor, beta: float, hard: bool = False) -> Tensor:
    """tanh(βx); hard: its sign, with the gradient of the soft one."""
    soft = torch.tanh(beta * x)
    return soft + (torch.where(x > 0, 1.0, -1.0) - soft).detach() if hard else soft


def staircase(x: Tensor, beta: float, hard: bool = False) -> Tensor:
    """Four levels, softly: c1·tanh(βx) + c2·(tanh(β(x − t)) + tanh(β(x + t))); x in units of σ."""
    t = THRESHOLD
    return STEP_OF_SIGN * soft_sign(x, beta, hard) + STEP_OF_MAGNITUDE * (
        soft_sign(x - t, beta, hard) + soft_sign(x + t, beta, hard)
    )


def of_one_length(x: Tensor) -> Tensor:
    """Each row scaled so that as many of its values as codes.pack_largest takes are beyond the threshold.  [n, bits]

    The scale is a constant to the gradient: which values are large is learned, not how large a row is.
    """
    count = round(x.shape[1] * LARGE)
    edge = x.detach().abs().topk(count + 1, dim=1).values[:, -2:].mean(1, keepdim=True)  # between the last two
    return x * (THRESHOLD / edge.clamp_min(1e-12))


def contrastive(scores: Tensor, batch: Batch) -> Tensor:
    """−log softmax of the positive among its competitors, the weighted mean over questions.  scores: [q, p]"""
    masked = scores.masked_fill(~batch.competitors(), -math.inf)  # [q, p]
    each = cross_entropy(masked, batch.positive, reduction="none")  # [q]
    return (each * batch.weight).sum() / batch.weight.sum()


def margin_ranking(scores: Tensor, batch: Batch, margin: float, reduction: str) -> Tensor:
    """max(0, α − (s⁺ − s⁻)): the paper prints a plus between the products, a misprint.  scores: [q, p]"""
    own = scores.gather(1, batch.positive.unsqueeze(1))  # [q, 1]
    short = (margin - (own - scores)).clamp_min(0)  # [q, p]
    pairs = batch.negatives() * batch.weight.unsqueeze(1)  # [q, p]
    total = (short * pairs).sum()
    return total / pairs.sum().clamp_min(1) if reduction == "mean" else total


def divergence(scores: Tensor, batch: Batch) -> Tensor:
    """KL(teacher ‖ student) over the passages that the teacher scored, mean over its questions.  scores: [q, p]"""
    assert batch.teacher is not None
    scored = batch.teacher.isfinite() & batch.competitors()
    weight = scored.any(1).float()  # [q]; a made-up pair's weight is for its own losses
    theirs = softmax(batch.teacher.masked_fill(~scored, VERY_LOW), 1)  # [q, p]
    ours = log_softmax(scores.masked_fill(~scored, VERY_LOW), 1)  # [q, p]
    each = kl_div(ours, theirs, reduction="none").masked_fill(~scored, 0).sum(1)  # [q]
    return (each * weight).sum() / weight.sum().clamp_min(1e-6)


def off_diagonal(h: Tensor) -> Tensor:
    """The mean square of the correlation of two bits.  h: [p, bits]"""
    centred = h - h.mean(0)  # [p, bits]
    normed = centred / centred.norm(dim=0).clamp_min(1e-6)  # [p, bits]
    square = (normed.T @ normed).square()  # [bits, bits]
    bits = h.shape[1]
    total: Tensor = square.sum() - square.diagonal().sum()
    return total / (bits * (bits - 1))
