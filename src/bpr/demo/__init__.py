"""A first look: real passages that come with bpr are indexed, asked, and asked a thousand times for the recall.

`bpr demo` calls it step by step and prints what comes back. It composes builder, encoder and retriever as any program
could: nothing here is a short cut that a bundle of one's own would not have.

Beside it lie the sample, passages.jsonl.xz and questions.jsonl.xz (benchmarks/demo_sample.py made them), and
ATTRIBUTION.md, which says whose they are.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..answers import Answers
from ..builder import build
from ..disk import storage_error
from ..encoder import Encodes
from ..parts import Parts
from ..reader import has_reader
from ..records import Answer, Hit, Progress
from ..retriever import Retriever, Timings
from ..textfiles import read_records

HOME = Path(__file__).parent
PASSAGES, QUESTIONS = HOME / "passages.jsonl.xz", HOME / "questions.jsonl.xz"
TOP = (1, 20, 100)

# Asked one by one: questions of the sample, chosen for variety. The last one is not easy: the passage that
# ranks first for it need not be the one with the answer.
SHOWN = (
    "How many languages did Tesla know?",
    "What are the most abundant kind of phagocyte?",
    "What did the Greek root pharmakos imply?",
    "What is the seldom used force unit equal to one thousand newtons?",
    "Who built a castle in Newcastle in 1080?",
)


class Question(NamedTuple):
    """A question of the sample, the answers that people gave, and the row of the paragraph it was written for."""

    question: str
    answers: tuple[str, ...]
    row: int


class Answered(NamedTuple):
    """What was found for a question; holds: whether each hit has one of the answers in it.

    answer: what the reader says, where the model has one, and the milliseconds that it took.
    """

    asked: Question
    hits: list[Hit]
    holds: list[bool]
    times: Timings
    answer: Answer | None = None
    read: float | None = None


class Recall(NamedTuple):
    """shares: how often the paragraph of a question is among the best k, by k. The times are seconds for all."""

    questions: int
    shares: dict[int, float]
    encode: float
    search: float


def questions() -> list[Question]:
    """The sample's."""
    return [Question(q["question"], tuple(q["answers"]), q["passage"]) for _, q in read_records(QUESTIONS)]


def shown(asked: Sequence[Question]) -> list[Question]:
    """Those of them that are asked one by one, in the order of SHOWN."""
    return [next(each for each in asked if each.question == text) for text in SHOWN]


@contextmanager
def place(output: Path | None) -> Iterator[Path]:
    """Where the bundle goes: the path that is wanted, or one in a temporary folder that is gone in the end."""
    if output is not None:
        yield output
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="bpr-demo-")
    except OSError as error:
        raise storage_error("make", "a temporary folder", error) from error
    with folder as name:
        yield Path(name) / "demo.bpr"


def index(path: Path, encoder: Encodes, say: Progress, threads: int | None = None) -> float:
    """Build the sample's bundle; the seconds that it took."""
    began = time.perf_counter()
    try:
        build(PASSAGES, path, model=encoder, threads=threads, progress=say)
    except KeyboardInterrupt:  # of a long build they would be kept, for the next try; a look leaves nothing behind
        Parts(path).remove()
        raise
    return time.perf_counter() - began


def facts(opened: Retriever) -> dict[str, Any]:
    """How large the bundle is, and how large its vectors would be as float32."""
    known, manifest = opened.info, opened.bundle.manifest
    return {
        "rows": len(opened),
        "bits": known["bits"],
        "planes": known["planes"],
        "code_bytes": len(opened) * known["bits"] // 8 * known["planes"],
        "float32_bytes": len(opened) * known["dimensions"] * 4,
        "bytes": manifest.bytes + manifest.checksums.bytes,
    }


def answer(opened: Retriever, asked: Sequence[Question], k: int, threads: int | None = None) -> Iterator[Answered]:
    """Each of the questions alone, as a person would ask it."""
    reads = has_reader(getattr(opened.encoder, "folder", ""))
    opened.search(asked[0].question, k=k, threads=threads)  # loads the model: what a question costs shows afterwards
    if reads:
        opened.answer(asked[0].question, threads=threads)
    for each in asked:
        hits, times = opened.search_timed(each.question, k=k, threads=threads)
        wanted = Answers(each.answers)
        began = time.perf_counter()
        said = opened.answer(each.question, threads=threads) if reads else None
        took = 1000 * (time.perf_counter() - began) if reads else None
        yield Answered(each, hits, [wanted.found_in(hit.text) for hit in hits], times, said, took)


def recall(opened: Retriever, asked: Sequence[Question], say: Progress, threads: int | None = None) -> Recall:
    """All the questions in one batch."""
    began = time.perf_counter()
    texts = [each.question for each in asked]
    pieces = []
    step = opened.encoder.at_once
    for first in range(0, len(texts), step):
        pieces.append(opened.encoder.questions(texts[first : first + step], threads=threads))
        say("encoding questions", min(first + step, len(texts)), len(texts))
    vectors = np.concatenate(pieces)
    encoded = time.perf_counter()
    found = opened.rank(vectors, k=min(max(TOP), len(opened)), threads=threads).rows
    ended = time.perf_counter()
    right = found == np.array([each.row for each in asked])[:, None]  # bool[q, k]: rows are the sample's order
    shares = {k: float(right[:, :k].any(axis=1).mean()) for k in TOP}
    return Recall(len(asked), shares, encoded - began, ended - encoded)
