"""What was found for questions, written as the file of another program; results.py says how each kind is laid out.

The command line (`bpr convert results`) calls it. DPR's entries and TREC's lines are those that runs.py writes of bpr's
own searches. Knows results; must not know where they were read, nor search for anything but answers in their texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..disk import replacing
from ..errors import InvalidInput
from ..evaluation import AnswerFinder
from ..records import Hit
from ..runs import dpr_entry, trec_lines
from .results import KINDS, Context, Result


@dataclass(frozen=True, slots=True)
class Count:
    """How much was written."""

    questions: int
    passages: int


def write(found: Iterable[Result], path: str | Path, kind: str, *, regex: bool = False) -> Count:
    """Write results as the file `path`; it takes its place when all is well. kind: one of KINDS.

    Which passages hold an answer is looked for where the results do not say it. regex: answers are expressions.
    """
    if kind not in KINDS:
        raise InvalidInput(f"{kind!r} is no kind of results; those are {', '.join(KINDS)}")
    questions = passages = 0
    finder = AnswerFinder(regex)
    before, between, behind = _FRAMES[kind]
    with replacing(path) as (out,):
        out.write(before)
        for result in found:
            if questions:
                out.write(between)
            out.write(_WRITERS[kind](result, finder).encode())
            questions, passages = questions + 1, passages + len(result.contexts)
        out.write(behind)
    return Count(questions, passages)


def _dpr(result: Result, finder: AnswerFinder) -> str:
    return _json(dpr_entry(result.to_question(), _with_text(result), _right(result, finder)))


def _fid(result: Result, finder: AnswerFinder) -> str:
    """As DPR's, but FiD sorts by "score", so it is a number here; "target" is left to it, which takes an answer."""
    entry = dpr_entry(result.to_question(), _with_text(result), _right(result, finder))
    for written, context in zip(entry["ctxs"], result.contexts, strict=True):
        written["score"] = context.score
    return _json({"id": result.id, **entry})


def _pyserini(result: Result, finder: AnswerFinder) -> str:
    """Without texts where there are none, as its own converter writes it unless it is told otherwise."""
    has_texts = all(context.text is not None for context in result.contexts)
    known = _right(result, finder) if has_texts else [context.has_answer for context in result.contexts]
    contexts = []
    for context, right in zip(_named(result), known, strict=True):
        entry: dict[str, Any] = {"docid": context.id, "score": f"{context.score:.9g}"}
        if has_texts:  # its evaluation takes the second line for the text
            entry["text"] = f"{_one_line(context.title)}\n{_one_line(context.text or '')}"
        contexts.append(entry if right is None else {**entry, "has_answer": right})
    value = {"question": _asked(result), "answers": result.answers, "contexts": contexts}
    return f"{json.dumps(result.id, ensure_ascii=False)}: {_json(value)}"


def _trec_run(result: Result, finder: AnswerFinder) -> str:
    _named(result)
    return "".join(trec_lines(result.to_question(), result.hits()))


_WRITERS: dict[str, Callable[[Result, AnswerFinder], str]] = {
    "dpr": _dpr,
    "fid": _fid,
    "pyserini": _pyserini,
    "trec": _trec_run,
}
_ARRAY = (b"[\n", b",\n", b"\n]\n")
_FRAMES = {"dpr": _ARRAY, "fid": _ARRAY, "pyserini": (b"{\n", b",\n", b"\n}\n"), "trec": (b"", b"", b"")}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _asked(result: Result) -> str:
    if not result.question:
        raise InvalidInput(
            f"the results do not say what the question {result.id!r} is: name the file of questions (--questions QA)"
        )
    return result.question


def _with_text(result: Result) -> list[Hit]:
    """What was found, with its texts, for those who cannot do without."""
    _asked(result)
    for context in result.contexts:
        if context.text is None:
            raise InvalidInput(
                f"the results have no text of the passage {context.id!r}: name a bundle that has it (--bundle NAME.bpr)"
            )
    return result.hits()


def _named(result: Result) -> tuple[Context, ...]:
    """What was found, each with an id, for those who cannot do without."""
    for rank, context in enumerate(result.contexts, 1):
        if not context.id:
            raise InvalidInput(f"passage {rank} of the question {result.id!r} has no id, which is all that is written")
    return result.contexts


def _right(result: Result, finder: AnswerFinder) -> list[bool]:
    """Which passages hold an answer: as the results say, or found in their texts."""
    if all(context.has_answer is not None for context in result.contexts):
        return [bool(context.has_answer) for context in result.contexts]
    return finder.holds(result.to_question(), [context.text or "" for context in result.contexts])
