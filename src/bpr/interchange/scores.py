"""Somebody's results measured as bpr measures its own: the figures of `bpr evaluate`, of a search that bpr did not do.

The command line (`bpr score`) calls it. It composes results with runs; what is measured stands in evaluation.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..evaluation import DEPTH
from ..questions import Question
from ..runs import Run, Tally, Watch
from .results import Matched, Result


@dataclass(frozen=True)
class Scored:
    """A run of these questions, and what is to be said of it."""

    run: Run
    questions: list[Question]
    warnings: list[str]


def score(
    found: Iterable[Result],
    questions: Sequence[Question] | None = None,
    *,
    regex: bool = False,
    watch: Watch | None = None,
) -> Scored:
    """Measure results. questions: with answers or gold passages; None: those of the results, with their answers.

    An answer is looked for in the texts of the passages; where the results have no texts, what they say of answers
    counts. A question without results has found nothing.
    """
    tally, depth = Tally(regex, watch), 0
    matched = None if questions is None else Matched(questions)
    places: list[int] = []
    believed = 0
    for place, result in enumerate(found) if matched is None or questions is None else matched.pairs(found):
        question = _judged(result) if questions is None else questions[place]
        known = _known(result, question)
        tally.add(question, result.hits(), known)
        believed += known is not None
        places.append(place)
        depth = max(depth, len(result.contexts))
    if not depth:
        raise InvalidInput("nothing was found for any of the questions, so there is nothing to measure")
    missing = [] if questions is None else sorted({*range(len(questions))} - {*places})
    for place in missing:
        tally.add((questions or tally.questions)[place], [])
    order = np.argsort([*places, *missing])
    asked = [tally.questions[at] for at in order.tolist()]
    return Scored(_ordered(tally.run(depth), order), asked, _warnings(depth, len(missing), believed, matched))


def _judged(result: Result) -> Question:
    if not any(map(str.strip, result.answers)):
        raise InvalidInput(
            f"the results have no answers to the question {result.id!r}, so nothing found for it is right or wrong: "
            "name a file of questions with answers or judgements (--questions QA)"
        )
    return result.to_question()


def _known(result: Result, question: Question) -> list[bool] | None:
    """What the results say of answers, where nothing else can: None where there are texts to look into."""
    if not question.answers or all(context.text is not None for context in result.contexts):
        return None
    if any(context.has_answer is None for context in result.contexts):
        raise InvalidInput(
            f"the results of the question {result.id!r} have neither texts nor has_answer: name the bundle that has "
            "the passages (--bundle NAME.bpr)"
        )
    return [bool(context.has_answer) for context in result.contexts]


def _ordered(run: Run, order: NDArray[np.int64]) -> Run:
    """The same with the questions in this order."""
    return Run(run.depth, run.answer[order], run.gold[order], None if run.ndcg is None else run.ndcg[order])


def _warnings(depth: int, missing: int, believed: int, matched: Matched | None) -> list[str]:
    found = []
    if depth < DEPTH:
        found.append(f"the results have {depth} passages of a question at most: MRR and nDCG@{DEPTH} see no more")
    if believed:
        found.append(
            f"of {believed:,} questions the results have no texts: what they say of answers (has_answer) counts"
        )
    if missing:
        found.append(f"{missing:,} questions have no results: nothing right was found for them")
    if matched is not None and matched.left_out:
        found.append(f"{matched.left_out:,} results are of questions that are not asked, and are left out")
    return found
