"""How right a reader's answers are, and how well its confidence says so: all questions answered from a bundle.

`bpr evaluate --reader` and `bpr calibrate` call it. It composes retriever and reader with the measures of evaluation.py
and spans.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput
from .evaluation import Values, exact_match, f1
from .questions import Question
from .reader import Found, Reader
from .records import Hit, Passage, Progress, passages_of
from .retriever import Retriever
from .spans import Calibration, Doubles, Flags, auroc, calibration_error, coverage, features, fitted, sigmoid

TOP = (1, 5, 10, 20, 50, 100)  # passages that are read, where nobody says how many
FOLDS = 5  # a calibration is judged on questions that it was not fitted to
BINS = 10  # of a reliability diagram


class Answered:
    """EM and F1 of each question, by how many of its passages were read: each passage is read once."""

    def __init__(self, reader: Reader, ks: Sequence[int], threads: int | None = None) -> None:
        """ks: numbers of passages."""
        self._reader, self.ks, self._threads = reader, ks, threads
        self._exact: list[list[float]] = []
        self._f1: list[list[float]] = []

    def watch(self, question: Question, hits: list[Hit], right: list[bool]) -> None:
        """A `runs.Watch`. A question without answers cannot be judged."""
        if not question.answers:
            self._exact.append([np.nan] * len(self.ks))
            self._f1.append([np.nan] * len(self.ks))
            return
        passages = passages_of(hits)[: max(self.ks)]
        found = self._reader.read(question.text, passages, threads=self._threads)
        texts = [best_text(self._reader, found, passages, k) for k in self.ks]
        self._exact.append([float(exact_match(text, question.answers)) for text in texts])
        self._f1.append([f1(text, question.answers) for text in texts])

    def measures(self) -> dict[str, Values]:
        """By name, float[q]: NaN for a question that cannot be judged."""
        exact, overlap = (np.array(each, np.float64).reshape(-1, len(self.ks)) for each in (self._exact, self._f1))
        columns = [(f"EM, {k} read", exact[:, i]) for i, k in enumerate(self.ks)]
        return dict(columns + [(f"F1, {k} read", overlap[:, i]) for i, k in enumerate(self.ks)])


def best_text(reader: Reader, found: Sequence[Found], passages: Sequence[Passage], k: int) -> str:
    """The best answer of the first k passages, however sure it is; "" where there is none."""
    answers = reader.answers([each for each in found if each.passage < k], passages, least=0.0)
    return answers[0].text if answers else ""


# ── Confidence ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sure:
    """Of each question: what a calibration weighs, whether the best answer is exactly right, whether there is one."""

    known: Doubles  # [q, 4]
    right: Flags  # [q]
    answerable: Flags  # [q]

    def __add__(self, other: Sure) -> Sure:
        """The questions of both."""
        pairs = zip(
            (self.known, self.right, self.answerable), (other.known, other.right, other.answerable), strict=True
        )
        return Sure(*(np.concatenate(pair) for pair in pairs))

    def confidence(self, by: Calibration) -> Doubles:
        """float[q]."""
        return sigmoid(self.known @ [by.bias, by.share, by.score, by.span])

    def fit(self, which: Flags | None = None) -> Calibration:
        """To those of some questions, or of all, that have an answer: nobody knows how many will have none."""
        some = self.answerable if which is None else which & self.answerable
        return fitted(self.known[some], self.right[some])

    def crossed(self) -> Doubles:
        """float[q]: each question's confidence, by a calibration that was fitted to the other folds."""
        fold = np.random.default_rng(0).permutation(len(self.right)) % FOLDS
        confidence = np.empty(len(self.right))
        for each in range(FOLDS):
            confidence[fold == each] = self.confidence(self.fit(fold != each))[fold == each]
        return confidence


def ask(
    opened: Retriever,
    questions: Sequence[Question],
    k: int,
    *,
    absent: bool = False,
    right_from: float = 1.0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Sure:
    """Answer all questions with k passages. absent: with all passages of the gold ones' articles (titles) left out.

    right_from: the F1 with one of its answers from which an answer is right; 1: only if it is one of them (EM).
    """
    say, reader = progress or (lambda what, done, total: None), opened.reader
    known: list[tuple[float, float, float]] = []
    right: list[bool] = []
    masks = _without_articles(opened, questions) if absent else iter([None] * len(questions))
    for number, (question, mask) in enumerate(zip(questions, masks, strict=True), 1):
        if not question.answers:
            raise InvalidInput(f"the question {question.id!r} has no answers, so no answer to it can be judged")
        hits = opened.search(question.text, k=min(k, len(opened)), mask=mask, threads=threads)
        passages = passages_of(hits)
        found = reader.read(question.text, passages, threads=threads)
        known.append(reader.known(found, passages))
        text = best_text(reader, found, passages, k)
        close = right_from < 1 and f1(text, question.answers) >= right_from
        right.append(not absent and (close or exact_match(text, question.answers)))
        say("answering without the article" if absent else "answering", number, len(questions))
    return Sure(features(*zip(*known, strict=True)), np.array(right), np.full(len(right), not absent))


def _without_articles(opened: Retriever, questions: Sequence[Question]) -> Iterator[NDArray[np.bool_]]:
    """For each question the rows that are not of its gold passages' articles: bool[rows]."""
    titles, article = np.unique([passage.title.lower() for passage in opened.passages], return_inverse=True)
    for question in questions:
        rows = [opened.passages.row(each) for each in question.gold if each in opened.passages]
        if not rows:
            raise InvalidInput(f"the question {question.id!r} has no gold passage in {opened.bundle.path}: no article")
        gone = np.zeros(len(titles), bool)
        gone[article[rows]] = True
        yield ~gone[article]


def report(sure: Sure, now: Calibration, threshold: float) -> dict[str, Any]:
    """What `bpr calibrate` prints, JSON-able. now: the calibration that the reader has."""
    present = sure.answerable
    confidence, before = sure.crossed(), sure.confidence(now)
    found: dict[str, Any] = {
        "questions": int(present.sum()),
        "exact": 100 * float(sure.right[present].mean()),
        "ece": calibration_error(confidence[present], sure.right[present]),
        "ece_now": calibration_error(before[present], sure.right[present]),
        "reliability": reliability(confidence[present], sure.right[present]),
        "answered": float((before >= threshold).mean()),
    }
    shares = np.linspace(0.1, 1, 10)
    curve = coverage(confidence[present], sure.right[present])
    found["coverage"] = {f"{share:.0%}": 100 * float(curve[max(0, round(share * len(curve)) - 1)]) for share in shares}
    if not present.all():
        found["absent"] = int((~present).sum())
        found["auroc"] = auroc(confidence, present)
        found["threshold"] = best_threshold(confidence, sure.right, present)
    return found


def reliability(confidence: Doubles, right: Flags) -> list[dict[str, float]]:
    """Of as many answers each, from the least to the most confident: mean confidence, accuracy, number."""
    parts = [part for part in np.array_split(np.argsort(confidence, kind="stable"), BINS) if len(part)]
    return [
        {"confidence": float(confidence[part].mean()), "right": float(right[part].mean()), "answers": len(part)}
        for part in parts
    ]


def best_threshold(confidence: Doubles, right: Flags, answerable: Flags) -> float:
    """Where right answers given plus absent ones refused are most, each kind of question counting as much."""
    edges = np.unique(np.concatenate([[0.0], confidence]))
    present, gone = max(int(answerable.sum()), 1), max(int((~answerable).sum()), 1)
    kept = [float((right & (confidence >= edge)).sum()) / present for edge in edges]
    refused = [float((~answerable & (confidence < edge)).sum()) / gone for edge in edges]
    return float(edges[int(np.argmax(np.add(kept, refused)))])
