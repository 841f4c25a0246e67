"""From a reader's numbers to answers: the best spans of a passage, one probability over all passages, a confidence.

The reader, its training and its evaluation call it. Knows arrays and strings; nothing of models, tokens or files.

A span is scored z = α·score + β·logit − γ·norm: the passage's score, the span's start + end logits, and what normalises
them within the passage (log Σ exp start + log Σ exp end). With α = β = γ that is P(passage) · P_start · P_end, the
paper's parts; with γ = 0 spans of all passages compete on one scale. Probabilities are a softmax of z over all spans of
a question, summed over those that give the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput
from .evaluation import answer_words

MOST_WORDS = 10  # of an answer, as in the paper
MOST_TOKENS = 48  # of those words: what has more is no word
SPANS = 5  # of a passage that are kept: what lies behind them has next to no probability
NEWTON_STEPS = 50  # at most; a handful is the rule
CERTAIN = 1e-6  # probabilities stay so far from 0 and 1, or their logits would be infinite

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
AnyFloats: TypeAlias = NDArray[np.floating[Any]]
Flags: TypeAlias = NDArray[np.bool_]


class Borders(NamedTuple):
    """Where spans of a text may begin and end, and how many words lie before each token."""

    begins: Flags  # [n]
    ends: Flags  # [n]
    words: NDArray[np.int64]  # [n]

    @classmethod
    def of(cls, inside: Flags, glued: Flags) -> Borders:
        """inside: a token goes on with the word of the one before; glued: no white space stands before it."""
        return cls(~inside, np.append(~inside[1:], True)[: len(inside)], np.cumsum(~glued))

    def part(self, some: slice) -> Borders:
        """Those of some of the tokens."""
        return Borders(self.begins[some], self.ends[some], self.words[some])


class Spans(NamedTuple):
    """Spans of a text, best first: their first and last tokens, and start + end logit."""

    firsts: NDArray[np.int64]  # [n]
    lasts: NDArray[np.int64]  # [n]
    logits: Floats  # [n]


def best_spans(start: Floats, end: Floats, borders: Borders, count: int = SPANS) -> Spans:
    """The `count` best spans of whole words, at most MOST_WORDS of them. start, end: float32[n], the logits."""
    tokens = len(start)
    if not tokens:
        return Spans(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    firsts = np.arange(tokens)[:, None]
    lasts = firsts + np.arange(min(tokens, MOST_TOKENS))  # [n, width]
    inside = np.minimum(lasts, tokens - 1)
    allowed = (lasts < tokens) & borders.begins[:, None] & borders.ends[inside]
    allowed &= borders.words[inside] - borders.words[:, None] < MOST_WORDS
    logits = np.where(allowed, start[:, None] + end[inside], -np.inf).ravel()
    best = np.argsort(-logits, kind="stable")[:count]
    best = best[np.isfinite(logits[best])]
    first, width = np.divmod(best, lasts.shape[1])
    return Spans(first, first + width, logits[best].astype(np.float32))


def log_sum(logits: Floats) -> float:
    """log Σ exp, without overflow."""
    most = logits.max(initial=-np.inf)
    return float(most + np.log(np.exp(logits - most).sum(dtype=np.float64))) if np.isfinite(most) else 0.0


@dataclass(frozen=True)
class Mix:
    """α, β and γ: how a passage's score and a span's logits become one number."""

    score: float = 1.0
    span: float = 1.0
    norm: float = 1.0

    def __call__(self, score: AnyFloats, logit: AnyFloats, norm: AnyFloats) -> Doubles:
        """z, for each span."""
        return np.asarray(self.score * score + self.span * logit - self.norm * norm, np.float64)


class Candidate(NamedTuple):
    """An answer's text, its probability among the question's, and which span of them all is its best."""

    text: str
    probability: float
    span: int


def merged(texts: Sequence[str], z: Doubles) -> list[Candidate]:
    """The different answers, best first: spans whose texts are one answer (as EM compares them) add up.

    texts, z: of all spans of all passages of a question. Of equals, the first stays first.
    """
    if not len(z):
        return []
    shares = np.exp(z - z.max())
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    best: dict[object, int] = {}
    total: dict[object, float] = {}
    for span in order.tolist():
        key = tuple(answer_words(texts[span])) or texts[span]  # an answer of nothing but punctuation is itself
        best.setdefault(key, span)
        total[key] = total.get(key, 0.0) + float(shares[span])
    ranked = sorted(total, key=lambda key: -total[key])
    return [Candidate(texts[best[key]], min(total[key], 1.0), best[key]) for key in ranked]


# ── Confidence ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Calibration:
    """The probability that an answer is exactly right: σ(bias + share·logit P + score·s + span·l).

    P: of the answer among the question's; s: the best passage's score; l: log P_start·P_end of the best span. The last
    two are the question's, so that a more probable answer never has less confidence. The default, share = 1 and nothing
    else, says P itself: it knows no question that has no answer.
    """

    bias: float = 0.0
    share: float = 1.0
    score: float = 0.0
    span: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what would turn the order of answers round."""
        if not np.isfinite([self.bias, self.share, self.score, self.span]).all() or self.share < 0:
            raise InvalidInput("a calibration has four finite numbers, and share is not negative")

    def confidence(self, probability: float, score: float, span: float) -> float:
        """From 0 to 1."""
        shown = features([probability], [score], [span]) @ [self.bias, self.share, self.score, self.span]
        return float(sigmoid(shown)[0])


def features(probability: Iterable[float], score: Iterable[float], span: Iterable[float]) -> Doubles:
    """float[n, 4]: what a calibration weighs."""
    p = np.clip(np.asarray([*probability], np.float64), CERTAIN, 1 - CERTAIN)
    return np.stack([np.ones_like(p), np.log(p / (1 - p)), np.asarray([*score]), np.asarray([*span])], axis=1)


def sigmoid(x: Doubles) -> Doubles:
    """1 / (1 + e^−x), without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64))))


def fitted(known: Doubles, right: Flags, decay: float = 1e-3) -> Calibration:
    """Logistic regression by Newton's method. known: features float[n, 4]; right: bool[n], whether EM held."""
    if len(known) != len(right) or right.all() or not right.any():
        raise InvalidInput("a calibration needs answers of both kinds, right ones and wrong ones")
    scale = known.std(axis=0)
    constant = scale < 1e-9
    scale[constant] = 1.0
    x = known / scale
    x[:, 1:][:, constant[1:]] = 0.0
    weights = np.zeros(4)
    for _ in range(NEWTON_STEPS):
        p = sigmoid(x @ weights)
        gradient = x.T @ (p - right) / len(x) + decay * np.array([0, 1, 1, 1]) * weights
        curve = (x * (p * (1 - p))[:, None]).T @ x / len(x) + decay * np.eye(4)
        step = np.linalg.solve(curve, gradient)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    bias, share, score, span = (float(each) for each in weights / scale)
    return Calibration(bias, max(share, 0.0), score, span)


def calibration_error(confidence: Doubles, right: Flags, bins: int = 10) -> float:
    """ECE: the mean distance of confidence and accuracy over bins of equal numbers of answers."""
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    off = [abs(float(confidence[part].mean()) - float(right[part].mean())) * len(part) for part in parts]
    return sum(off) / len(order)


def auroc(confidence: Doubles, answerable: Flags) -> float:
    """How often a question with an answer has more confidence than one without; ties count half."""
    yes, no = confidence[answerable], confidence[~answerable]
    if not len(yes) or not len(no):
        raise InvalidInput("AUROC needs questions of both kinds, with and without an answer")
    order = np.sort(no)
    below, upto = np.searchsorted(order, yes, "left"), np.searchsorted(order, yes, "right")
    return float((below + upto).mean() / (2 * len(no)))


def coverage(confidence: Doubles, right: Flags) -> Doubles:
    """float[n]: the accuracy among the 1, 2, … n most confident answers."""
    order = np.argsort(-confidence, kind="stable")
    return np.asarray(np.cumsum(right[order]) / np.arange(1, len(order) + 1))
