"""How good what was found is: ranks of the right passages, top-k, MRR, nDCG, EM, F1, and how sure one can be of them.

`bpr evaluate`, `bpr compare` and benchmarks/quality.py call it. Knows questions, ids and texts; nothing of models,
indexes or files. A measure has one value a question, so that two runs can be compared question by question.

Ranks count from 1; 0: not among those found. nDCG is that of ir-measures (extra `eval`); all else is here.
"""

from __future__ import annotations

import re
import signal
import string
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from types import FrameType
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .answers import Answers, Text
from .errors import InvalidInput
from .questions import Question

DEPTH = 10  # of MRR and nDCG
RESAMPLES, PERMUTATIONS = 2000, 10_000
DRAWN_AT_ONCE = 1 << 22  # random numbers, which bounds the memory of a test
TEXTS_KEPT = 1 << 17  # that are taken apart already: about 200 MB of passages
REGEX_SECONDS = 10.0  # for a question's expressions in all its passages: a thousand times what sane ones take

Ranks: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]


# ── Where the right passages stand ───────────────────────────────────────────────────────────────────────────────────


def gold_ranks(questions: Sequence[Question], found_ids: Sequence[Sequence[str]]) -> Ranks:
    """int64[q]: the rank of the first gold passage. found_ids: of each question, the best first."""
    pairs = _pairs(questions, found_ids)
    return np.array([first(map(question.gold.__contains__, ids)) for question, ids in pairs], np.int64)


def answer_ranks(questions: Sequence[Question], found_texts: Sequence[Sequence[str]], regex: bool = False) -> Ranks:
    """int64[q]: the rank of the first passage that holds an answer. found_texts: of each question, the best first."""
    pairs, finder = _pairs(questions, found_texts), AnswerFinder(regex)
    return np.array([finder.rank(question, texts) for question, texts in pairs], np.int64)


class AnswerFinder:
    """Looks for answers in texts, most of which many questions find: what was taken apart is kept for the next one."""

    def __init__(self, regex: bool = False) -> None:
        """regex: answers are regular expressions, as CuratedTREC's are."""
        self._regex = regex
        self._taken_apart = lru_cache(TEXTS_KEPT)(Text)

    def holds(self, question: Question, texts: Iterable[str]) -> list[bool]:
        """Of each text, whether it holds an answer."""
        with _in_time(question) if self._regex else nullcontext():
            return list(self._each(question, texts))

    def rank(self, question: Question, texts: Iterable[str]) -> int:
        """Which text is the first that holds an answer, from 1; 0: none. Those behind it are not looked at."""
        with _in_time(question) if self._regex else nullcontext():
            return first(self._each(question, texts))

    def _each(self, question: Question, texts: Iterable[str]) -> Iterator[bool]:
        answers = Answers(question.answers, regex=self._regex)
        return (answers.found_in(self._taken_apart(text)) for text in texts)


@contextmanager
def _in_time(question: Question) -> Iterator[None]:
    """Stop regular expressions that take for ever: "(a+)+$" can spend years on one line.

    By an alarm, the only thing that Python's `re` listens to while it searches. It rings in the main thread alone, and
    there may be but one: in other threads, and where somebody else has set one, the search is not watched.
    """
    if threading.current_thread() is not threading.main_thread() or any(signal.getitimer(signal.ITIMER_REAL)):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise InvalidInput(
            f"the answers of the question {question.id!r} are regular expressions that search a passage for more than "
            f"{REGEX_SECONDS:g} s; simplify {list(question.answers)!r:.200}"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, REGEX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


def first(right: Iterable[bool]) -> int:
    """The place of the first that is right, from 1; 0 where there is none."""
    return next((rank for rank, yes in enumerate(right, 1) if yes), 0)


def _pairs(questions: Sequence[Question], found: Sequence[Any]) -> Iterator[tuple[Question, Any]]:
    if len(questions) != len(found):
        raise InvalidInput(f"there are {len(questions)} questions and what was found for {len(found)}")
    return zip(questions, found, strict=True)


# ── Measures: one value a question ───────────────────────────────────────────────────────────────────────────────────


def top_k(ranks: ArrayLike, k: int) -> NDArray[np.bool_]:
    """bool[q]: whether the right passage is among the first k."""
    known = np.asarray(ranks)
    return (known > 0) & (known <= k)


def recall_curve(ranks: ArrayLike, depth: int) -> Values:
    """float[depth]: of 100 questions, how many have the right passage among the first 1, 2, … depth."""
    known = np.asarray(ranks)
    firsts = np.bincount(known[top_k(known, depth)], minlength=depth + 1)[1:]
    return 100 * np.cumsum(firsts) / len(known)


def reciprocal_rank(ranks: ArrayLike, depth: int = DEPTH) -> Values:
    """float[q]: 1 / rank, or 0 beyond the depth; their mean is MRR."""
    known = np.asarray(ranks)
    return np.where(top_k(known, depth), 1 / np.maximum(known, 1), 0.0)


def has_ndcg() -> bool:
    """Whether what computes nDCG is installed."""
    return find_spec("ir_measures") is not None


def ndcg(questions: Sequence[Question], found_ids: Sequence[Sequence[str]], depth: int = DEPTH) -> Values:
    """float[q]: nDCG at the depth, trec_eval's, by ir-measures (extra `eval`)."""
    if not has_ndcg():
        raise InvalidInput("nDCG needs ir-measures: pip install 'binary-passage-retriever[eval]'")
    import ir_measures

    judged, run = {}, {}
    for number, (question, ids) in enumerate(_pairs(questions, found_ids)):
        judged[str(number)] = dict(question.gold)
        run[str(number)] = {passage_id: float(-rank) for rank, passage_id in enumerate(ids[:depth])}
    values = np.zeros(len(questions))
    for metric in ir_measures.iter_calc([ir_measures.nDCG @ depth], judged, run):
        values[int(metric.query_id)] = metric.value
    return values


def measures(
    questions: Sequence[Question],
    ks: Sequence[int],
    *,
    answer: Ranks | None = None,
    gold: Ranks | None = None,
    ndcg: Values | None = None,
) -> dict[str, Values]:
    """Each measure that the questions allow, by its name: float[q], NaN for a question that it cannot judge.

    answer, gold: ranks; ndcg: of the gold passages. A question without answers (or gold) has no rank that counts.
    """
    found: dict[str, Values] = {}
    for name, ranks in (("answer", answer), ("gold", gold)):
        judged = np.array([bool(question.answers if name == "answer" else question.gold) for question in questions])
        if ranks is None or not judged.any():
            continue
        for k in ks:
            found[f"top {k}, {name}"] = np.where(judged, top_k(ranks, k), np.nan)
        found[f"MRR@{DEPTH}, {name}"] = np.where(judged, reciprocal_rank(ranks), np.nan)
        if name == "gold" and ndcg is not None:
            found[f"nDCG@{DEPTH}, gold"] = np.where(judged, ndcg, np.nan)
    return found


# ── Answers that a reader gave ───────────────────────────────────────────────────────────────────────────────────────

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))


def answer_words(text: str) -> list[str]:
    """As SQuAD compares answers: in lower case, without (ASCII's) punctuation and without articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the prediction is one of the answers, but for case, punctuation, articles and spaces."""
    words = answer_words(prediction)
    return any(answer_words(answer) == words for answer in answers)


def f1(prediction: str, answers: Iterable[str]) -> float:
    """The best F1 over the words of the prediction and an answer, from 0 to 1; where one has no words, exact_match."""
    return max((_f1(answer_words(prediction), answer_words(answer)) for answer in answers), default=0.0)


def _f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    return 2 * (Counter(words) & Counter(wanted)).total() / (len(words) + len(wanted))


# ── How sure one can be ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval, in percent; questions: over how many."""

    mean: float
    low: float
    high: float
    questions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better the first of two runs is, in percentage points, with the 95 % interval.

    p: how likely a difference as large, either way, is when each question's two values are swapped at random.
    """

    mean: float
    low: float
    high: float
    p: float

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


def interval(values: ArrayLike, resamples: int = RESAMPLES) -> Interval:
    """The mean of values (those that are NaN are left out), with a bootstrap over the questions.

    A resample is known by how often it has each of the different values: a multinomial, which takes no time for the few
    values that ranks can lead to.
    """
    known = _not_nan(np.asarray(values, np.float64))
    distinct, counts = np.unique(known, return_counts=True)
    random, share = np.random.default_rng(0), counts / len(known)
    drawn = (random.multinomial(len(known), share, some) for some in _pieces(resamples, len(distinct)))
    means = np.concatenate([counted @ distinct for counted in drawn]) / len(known)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(100 * float(known.mean()), 100 * float(low), 100 * float(high), len(known))


def paired(a: ArrayLike, b: ArrayLike) -> Difference:
    """How much better a is than b on the same questions: a bootstrap of the differences, and a permutation test.

    Swapping the values of a question turns its difference's sign: among differences of one size, a binomial number.
    """
    ours, theirs = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if ours.shape != theirs.shape:
        raise InvalidInput(f"two runs over the same questions are needed, not {ours.shape} and {theirs.shape} values")
    differences = _not_nan(ours - theirs)
    mean = interval(differences)
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)
    random, extreme = np.random.default_rng(0), 0
    least = abs(differences.sum()) - 1e-9  # sums of the same numbers in another order differ by less
    for some in _pieces(PERMUTATIONS, len(sizes)):
        sums = (2 * random.binomial(counts, 0.5, (some, len(sizes))) - counts) @ sizes
        extreme += int((np.abs(sums) >= least).sum())
    return Difference(mean.mean, mean.low, mean.high, (1 + extreme) / (1 + PERMUTATIONS))


def _not_nan(values: Values) -> Values:
    known: Values = values[~np.isnan(values)]
    if not len(known):
        raise InvalidInput("there is no value to take the mean of")
    return known


def _pieces(draws: int, width: int) -> Iterator[int]:
    """How many draws of so many numbers to make at a time."""
    most = max(1, DRAWN_AT_ONCE // max(width, 1))
    for first in range(0, draws, most):
        yield min(most, draws - first)
