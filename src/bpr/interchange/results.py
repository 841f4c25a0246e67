"""What was found for questions, in the files of several programs: read, and completed with what a file leaves out.

The command line (`bpr convert results`, `bpr score`) calls it, and writing.py writes what it gives. Layouts of
questions are questions.py's; nothing is searched here.

| kind | layout |
|---|---|
| dpr | an array of {"question", "answers", "ctxs": [{"id", "title", "text", "score", "has_answer"}]} |
| fid | the same with "id" and perhaps "target", as an array or an object a line, scores as numbers |
| pyserini | an object: question id → {"question", "answers", "contexts": [{"docid", "score", "text", "has_answer"}]} |
| trec | a line a passage: question id, Q0, passage id, rank, score, name |

All may be packed (.gz, .xz, .zst) when they are read. One question is in memory at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import InvalidInput
from ..layouts import list_of, string_of, strings_of
from ..passages import Passages
from ..questions import Question
from ..records import Hit
from ..textfiles import kind as kind_of
from ..textfiles import parse_objects, read_lines, read_pieces
from .jsonpieces import elements, members

KINDS = ("dpr", "pyserini", "fid", "trec")


@dataclass(frozen=True, slots=True)
class Context:
    """A passage that was found. text: None where the file does not have it; has_answer: None where nobody says."""

    id: str
    score: float
    title: str = ""
    text: str | None = None
    has_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A question and the passages that were found for it, the best first.

    id: the file's own, or the number of the question in it, from 1 (numbered). question, answers: empty where the file
    does not have them, as TREC's.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    contexts: tuple[Context, ...]
    numbered: bool = False

    def to_question(self) -> Question:
        """Without what was found."""
        return Question(self.id, self.question, self.answers)

    def hits(self) -> list[Hit]:
        """What was found, as bpr has it; a text that is not there is empty."""
        return [
            Hit(each.id, each.title, each.text or "", each.score, rank) for rank, each in enumerate(self.contexts, 1)
        ]


Placed: TypeAlias = Iterator[tuple[str, Result]]  # where a question stands, and the question


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: str | Path, kind: str | None = None) -> Iterator[Result]:
    """The questions of a file of results, in its order. kind: one of KINDS; None: recognised by its looks."""
    source = Path(path)
    chosen = kind or recognised(source)
    if chosen not in KINDS:
        raise InvalidInput(f"{chosen!r} is no kind of results; those are {', '.join(KINDS)}")
    if chosen == "trec":
        found = _trec(source)
    elif chosen == "pyserini":
        found = _placed(source, members(source), _of_pyserini)
    elif _begins(source).startswith("{"):
        found = _placed(source, parse_objects(source, read_lines(source)), _of_ctxs, "line")
    else:
        found = _placed(source, enumerate(elements(source), 1), _of_ctxs)
    return _checked(source, found)


def recognised(source: Path) -> str:
    """Which kind this is, by its first signs: "dpr" for every array, since those of FiD read alike."""
    begins = _begins(source)
    if begins.startswith("["):
        return "dpr"
    if begins.startswith("{"):
        is_map = re.match(r'\{\s*(\}|"(?:[^"\\]|\\.)*"\s*:\s*\{)', begins)
        return "pyserini" if is_map else "fid"
    if len(begins.partition("\n")[0].split()) == 6:
        return "trec"
    raise InvalidInput(
        f"{source} does not look like results of a search; if it is one of {', '.join(KINDS)}, say which (kind=…, "
        "--from)"
    )


def _begins(source: Path) -> str:
    """The first piece of a file that is not blank, without the space before it."""
    pieces = read_pieces(source)
    try:
        return next((piece.lstrip() for piece in pieces if piece.strip()), "")
    finally:
        pieces.close()  # type: ignore[attr-defined]  # a generator, whose file is to be closed now


def _checked(source: Path, found: Placed) -> Iterator[Result]:
    """The questions, each with an id of its own, and each passage once; none at all is refused."""
    places: dict[str, str] = {}
    for where, result in found:
        if result.id in places:
            raise InvalidInput(f"{where}: the question id {result.id!r} is that of {places[result.id]} already")
        places[result.id], seen = where, set()
        for each in result.contexts:
            if each.id in seen:
                raise InvalidInput(f"{where}: the passage {each.id!r} stands twice among those found for it")
            seen.update([each.id] if each.id else [])
        yield result
    if not places:
        raise InvalidInput(f"{source} holds no questions")


def _placed(
    source: Path, found: Iterable[tuple[Any, Any]], parse: Callable[[Any, Any], Result], unit: str = "question"
) -> Placed:
    for name, record in found:
        where = f"{source}, {unit} {name}"
        try:
            result = parse(name, record)
        except (ValueError, OverflowError) as flaw:
            raise InvalidInput(f"{where}: {flaw}") from None
        yield where, result


def _of_ctxs(number: int, record: Any) -> Result:
    """DPR's and FiD's. A target alone is the only answer."""
    contexts = list_of(record, "ctxs")
    own = next((record[key] for key in ("id", "q_id", "qid") if record.get(key) not in (None, "")), None)
    answers = strings_of(record, "answers")
    if not answers and record.get("target") is not None:
        answers = (string_of(record, "target"),)
    return Result(
        str(number) if own is None else _id(own),
        string_of(record, "question").strip(),
        answers,
        tuple(_context(each, "id", rank) for rank, each in enumerate(contexts, 1)),
        own is None,
    )


def _of_pyserini(question_id: str, record: Any) -> Result:
    """Its texts are a title, a line end and the passage; the title may stand in quotes."""
    found = []
    for rank, each in enumerate(list_of(record, "contexts"), 1):
        context = _context(each, "docid", rank)
        if context.text is not None and not context.title:
            title, end, text = context.text.partition("\n")
            if end:
                bare = title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title
                context = replace(context, title=bare, text=text)
        found.append(context)
    return Result(
        _id(question_id), string_of(record, "question", "").strip(), strings_of(record, "answers"), tuple(found)
    )


def _context(record: Any, key: str, rank: int) -> Context:
    """A passage in JSON. One without a score has 1 / rank, so that scores go down as the file does."""
    if not isinstance(record, Mapping):
        raise ValueError(f"passage {rank} must be a JSON object, not {kind_of(record)}")
    own, right, text = record.get(key), record.get("has_answer"), record.get("text")
    if right is not None and not isinstance(right, bool):
        raise ValueError(f'"has_answer" of passage {rank} must be true or false, not {kind_of(right)}')
    return Context(
        "" if own is None else _id(own),
        1 / rank if record.get("score") is None else _score(record["score"], rank),
        string_of(record, "title", ""),
        None if text is None else string_of(record, "text"),
        right,
    )


def _id(value: Any) -> str:
    return string_of({"id": str(value) if type(value) is int else value}, "id")


def _score(value: Any, rank: int) -> float:
    """A number, or one in a string, as DPR writes it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f'"score" of passage {rank} must be a number, not {kind_of(value)}')
    try:
        score = float(value)
    except ValueError:
        raise ValueError(f'"score" of passage {rank} must be a number, not {value!r:.80}') from None
    if not math.isfinite(score):
        raise ValueError(f'"score" of passage {rank} is {score}, which ranks nothing')
    return score


def _trec(source: Path) -> Placed:
    """The lines of a question stand together; they are ranked by score, equal ones as in the file."""
    for question_id, lines in groupby(_trec_lines(source), key=lambda line: line[1]):
        some = list(lines)
        ranked = sorted((context for _, _, context in some), key=lambda context: -context.score)
        yield f"{source}, line {some[0][0]}", Result(question_id, "", (), tuple(ranked))


def _trec_lines(source: Path) -> Iterator[tuple[int, str, Context]]:
    for number, line in read_lines(source):
        columns = line.split()
        if not columns:
            continue
        try:
            if len(columns) != 6:
                raise ValueError(f"must be question id, Q0, passage id, rank, score and name: {line!r:.200}")
            yield number, columns[0], Context(columns[2], _score(columns[4], number))
        except ValueError as flaw:
            raise InvalidInput(f"{source}, line {number}: {flaw}") from None


# ── Completing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def with_texts(found: Iterable[Result], texts: Passages) -> Iterator[Result]:
    """The same, with titles and texts of a bundle's passages where the file has none."""
    for result in found:
        lacking = [each.id for each in result.contexts if each.text is None]
        rows = texts.find_all(lacking)
        if None in rows:
            raise InvalidInput(
                f"the bundle has no passage {lacking[rows.index(None)]!r}, which was found for the question "
                f"{result.id!r}: it is of other passages"
            )
        known = {each.id: each for each in texts.get([row for row in rows if row is not None])}
        yield replace(
            result,
            contexts=tuple(
                each if each.text is not None else replace(each, title=known[each.id].title, text=known[each.id].text)
                for each in result.contexts
            ),
        )


class Matched:
    """Results brought together with questions that are known from elsewhere: by id, or where they have none by number.

    left_out: how many results are of no question that is known.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        """Nothing is read yet."""
        self._questions = questions
        self._place = {question.id: place for place, question in enumerate(questions)}
        self.left_out = 0

    def pairs(self, found: Iterable[Result]) -> Iterator[tuple[int, Result]]:
        """Each result with the place of its question, whose text and answers it then has."""
        matched = 0
        for result in found:
            place = self._number(result) if result.numbered else self._place.get(result.id)
            if place is None:
                self.left_out += 1
                continue
            matched += 1
            question = self._questions[place]
            if result.question and result.question != question.text.strip():
                raise InvalidInput(
                    f"the question {result.id} is {result.question!r:.100} in the results and {question.text!r:.100} "
                    "in the file of questions: they are not of the same questions, or not in the same order"
                )
            yield place, replace(result, id=question.id, question=question.text, answers=question.answers)
        if not matched:
            raise InvalidInput(
                f"none of the {self.left_out:,} results is of one of the {len(self._questions):,} questions, whose ids "
                f"are like {self._questions[0].id!r}"
            )

    def _number(self, result: Result) -> int | None:
        place = int(result.id) - 1
        return place if place < len(self._questions) else None
