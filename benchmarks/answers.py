"""How right the reader that ships is, how well its confidence says so, and how long it takes, over SQuAD's corpus.

python benchmarks/answers.py --data FOLDER --bundle squad.bpr [--questions 2000]     writes results/reader.json
python benchmarks/answers.py --data FOLDER --bundle squad.bpr --time                 writes results/reader-time.json

FOLDER is laid out as docs/reproduction.md says; the bundle holds SQuAD's paragraphs and Wikipedia's passages, as
quality.py builds it. EM and F1 are of some of SQuAD's dev questions, always the same ones; confidence is judged on half
of them, and on questions of the articles that no training saw, once with their article and once without it. Half an
hour on 2 cores.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bpr
from bpr import answering
from bpr.evaluation import exact_match, f1, interval
from bpr.questions import Question, read_questions
from bpr.reader import Found, Reader
from bpr.records import Passage
from bpr.retriever import Retriever
from bpr.terminal import bars
from bpr.training.data import collect, hold_out
from bpr.training.formats import squad
from common import Figure, save

READ = (1, 5, 10, 20)
HELD, HELD_SHARE = 1200, 0.03
RIGHT_FROM = 0.7  # F1: the held-out questions have one answer each
TIMED = 40
COMMAND = "python benchmarks/answers.py --data FOLDER --bundle squad.bpr"


def some(questions: Sequence[Question], count: int) -> list[Question]:
    """So many of them, as `bpr calibrate --limit` takes them."""
    return [questions[i] for i in sorted(np.random.default_rng(0).permutation(len(questions))[:count])]


def dev_questions(data: Path, count: int) -> list[Question]:
    every = read_questions(data / "squad" / "dev-v1.1.json.xz", prefix="squad-dev-")
    kept = {*random.Random(0).sample([each.id for each in every], min(count, len(every)))}
    return [each for each in every if each.id in kept]


def held_questions(data: Path) -> list[Question]:
    """Of the articles that were held out of all training."""
    _, examples = collect(squad(data / "squad" / "train-v1.1.json.xz", "squad-train-"))
    _, held = hold_out(examples, HELD_SHARE)
    return [Question(str(i), e.question, e.answers, dict.fromkeys(e.positives, 1)) for i, e in enumerate(held)]


class Remembering(Reader):
    """Reads a passage for a question once: half of dev's questions are asked twice, and what is found without an
    article is mostly what was found with it.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._known: dict[tuple[str, str], list[Found]] = {}

    def read(self, question: str, passages: Sequence[Passage], **how: Any) -> list[Found]:
        """As a reader does; the spans of one passage do not depend on those beside it."""
        known = self._known
        fresh = [each for each in passages if (question, each.id) not in known]
        found = super().read(question, fresh, **how) if fresh else []
        for number, passage in enumerate(fresh):
            known[question, passage.id] = [each for each in found if each.passage == number]
        return [each._replace(passage=row) for row, one in enumerate(passages) for each in known[question, one.id]]


def read_found(opened: Retriever, questions: Sequence[Question]) -> dict[str, Any]:
    """EM and F1 by the number of passages read."""
    answered = answering.Answered(opened.reader, READ)
    with bars(True) as say:
        for number, question in enumerate(questions, 1):
            answered.watch(question, opened.search(question.text, k=max(READ)), [])
            say("reading what was found", number, len(questions))
    values = answered.measures()
    return {str(k): {what: interval(values[f"{what}, {k} read"]).to_dict() for what in ("EM", "F1")} for k in READ}


def read_gold(opened: Retriever, questions: Sequence[Question]) -> dict[str, Any]:
    """EM and F1 on each question's own paragraph."""
    rows = [[row for row in opened.passages.find_all(list(each.gold)) if row is not None] for each in questions]
    said = [
        opened.reader.answer(each.text, opened.passages.get(own), least=0.0)
        for each, own in zip(questions, rows, strict=True)
    ]
    texts = [answers[0].text if answers else "" for answers in said]
    pairs = list(zip(texts, questions, strict=True))
    measures = {"EM": exact_match, "F1": f1}
    return {
        name: interval([float(of(text, q.answers)) for text, q in pairs]).to_dict() for name, of in measures.items()
    }


def confidence(opened: Retriever, questions: Sequence[Question], right_from: float, absent: bool) -> dict[str, Any]:
    """What `bpr calibrate` says."""
    reads = opened.reader.model
    with bars(True) as say:
        sure = answering.ask(opened, questions, reads.passages, right_from=right_from, progress=say)
        if absent:
            sure += answering.ask(opened, questions, reads.passages, absent=True, progress=say)
    return {"right_from": right_from, **answering.report(sure, reads.calibration, reads.threshold)}


def milliseconds(opened: Retriever, questions: Sequence[Question]) -> dict[str, float]:
    """Of one question at a time, search included."""
    took = []
    for question in questions[: TIMED + 3]:
        begin = time.perf_counter()
        opened.answer(question.text)
        took.append(1000 * (time.perf_counter() - begin))
    own = took[3:] or took  # the first ones load and plan
    return {"least": min(own), "median": float(np.median(own)), "most": max(own)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--time", action="store_true", help="how long an answer takes, and nothing else")
    given = parser.parse_args(arguments)
    (clock if given.time else judge)(given)


def clock(given: argparse.Namespace) -> None:
    with bpr.open(given.bundle) as opened:
        took, passages = milliseconds(opened, dev_questions(given.data, given.questions)), len(opened)
    slowest = Figure("one question, 20 passages, search included: the slowest", took["most"], 1000, True, " ms")
    save("reader-time", [], [slowest], command=f"{COMMAND} --time", passages=passages, milliseconds=took)


def judge(given: argparse.Namespace) -> None:
    dev = dev_questions(given.data, given.questions)
    with bpr.open(given.bundle, reader=Remembering.open("mini")) as opened:
        gold, read = read_gold(opened, dev), read_found(opened, dev)
        on_dev = confidence(opened, some(dev, len(dev) // 2), 1.0, absent=False)
        held = confidence(opened, some(held_questions(given.data), min(HELD, given.questions)), RIGHT_FROM, absent=True)
        threshold, passages = opened.reader.model.threshold, len(opened)
    figures = [
        Figure("EM, 20 passages read", read["20"]["EM"]["mean"], 40, unit=" %"),
        Figure("F1, the gold paragraph alone", gold["F1"]["mean"], 80, unit=" %"),
        Figure("ECE of the stored confidence, SQuAD dev", on_dev["ece_now"], 0.05, True),
    ]
    found = {"passages": passages, "questions": len(dev), "read": read, "gold": gold, "dev": on_dev, "held": held}
    save("reader", [], figures, command=COMMAND, **found, threshold=threshold)


if __name__ == "__main__":
    main()
