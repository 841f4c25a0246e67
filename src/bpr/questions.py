"""Questions whose answers or gold passages are known, from the files that people have of them.

`bpr evaluate` and `bpr compare` read with it. Knows layouts; nothing of models, passages or measures.

| kind | layout |
|---|---|
| dpr-tsv | DPR's test files: a question, a tab, and a Python list of strings, `['Homer', "Homer's son"]` |
| jsonl | an object a line: "question", "answers", and where known "id" and "positives" (ids of passages) |
| nq-open | an object a line: "question" and "answer", as NQ-open has them |
| squad | SQuAD's JSON; the gold passage is the paragraph, under the id that `bpr convert squad` gives it |
| beir | a folder with queries.jsonl and qrels/SPLIT.tsv or qrels.tsv |
| trec | a file of questions (id, a tab, text; or JSONL as BEIR's), and one of judgements, TREC's or BEIR's |

All of them may be packed (.gz, .xz, .zst). A question that cannot be judged is refused with its place, and so are two
with one id: figures over such files would look right and be wrong.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from .answers import Answers
from .errors import InvalidInput
from .layouts import (
    beir_judgement,
    judgement_lines,
    list_of,
    packed_or_not,
    squad_answers,
    squad_articles,
    squad_id,
    string_of,
    strings_of,
)
from .textfiles import parse_objects, read_lines, split_rows

KINDS = ("dpr-tsv", "jsonl", "nq-open", "squad", "beir", "trec")
SPLITS = ("test", "dev", "train")  # whose judgements are taken when nobody says which: the first that there is
LONGEST_LIST = 1 << 20  # characters of a list of answers: beyond this a file is not what it seems

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and its gold passages: their ids, each with how relevant it is, which is more than 0."""

    id: str
    text: str
    answers: tuple[str, ...] = ()
    gold: Mapping[str, int] = field(default_factory=dict)


Placed: TypeAlias = Iterator[tuple[str, Question]]  # where a question stands, and the question


def read_questions(
    path: PathLike,
    kind: str | None = None,
    *,
    regex: bool = False,
    prefix: str = "",
    split: str | None = None,
    qrels: PathLike | None = None,
) -> list[Question]:
    """The questions of a file or folder, in its order.

    kind: one of KINDS; None: recognised by its looks. regex: the answers are regular expressions, and a broken one is
    refused. prefix: what `bpr convert --prefix` put before the ids of passages. split: whose judgements of a BEIR
    folder to take (default: test, dev or train, the first that there is). qrels: the judgements of a trec collection.
    """
    source = Path(path)
    chosen = kind or ("trec" if qrels is not None else recognised(source))
    if chosen not in KINDS:
        raise InvalidInput(f"{chosen!r} is no kind of questions; those are {', '.join(KINDS)}")
    for given, name, only in ((split, "split", "beir"), (qrels, "qrels", "trec")):
        if given is not None and chosen != only:
            raise InvalidInput(f"{source} is read as {chosen}, which has no {name}: that goes with {only}")
    if chosen == "squad":
        found = _squad(source, prefix)
    elif chosen == "beir":
        found = _beir(source, prefix, split)
    elif chosen == "trec":
        found = _trec(source, prefix, qrels)
    else:
        found = _tsv(source) if chosen == "dpr-tsv" else _jsonl(source, prefix)
    questions = list(_checked(found, regex))
    if not questions:
        raise InvalidInput(f"{source} holds no questions that are judged")
    return questions


def recognised(source: Path) -> str:
    """Which kind this is, by its looks."""
    if source.is_dir():
        return "beir"
    first = next((line for _, line in read_lines(source) if line.strip()), "")
    if first.lstrip().startswith("{"):
        try:
            record = json.loads(first)
        except (ValueError, RecursionError):
            return "squad"  # an object of many lines; what is wrong with it, if anything, its reader says
        if "question" in record:
            return "nq-open" if "answer" in record else "jsonl"
        if "data" in record:
            return "squad"
    elif first.partition("\t")[2].lstrip(' "').startswith("["):
        return "dpr-tsv"
    raise InvalidInput(
        f"{source} does not look like questions with answers or judgements; if it is one of {', '.join(KINDS)}, say "
        "which (kind=…, --kind); trec and beir need judgements too (qrels=…, --qrels, or BEIR's folder)"
    )


def _checked(found: Placed, regex: bool) -> Iterator[Question]:
    """The questions, each of which can be asked and judged, under an id of its own."""
    places: dict[str, str] = {}
    for where, question in found:
        with _at(where):
            if not question.text.strip():
                raise ValueError("the question is empty")
            if not question.gold and not any(map(str.strip, question.answers)):
                raise ValueError("it has neither answers nor gold passages, so nothing found for it is right or wrong")
            if (first := places.setdefault(question.id, where)) != where:
                raise ValueError(f"the question id {question.id!r} is that of {first} already; give each its own")
            if regex:
                Answers(question.answers, regex=True)
        yield question


@contextmanager
def _at(where: str) -> Iterator[None]:
    """The place of an item, for what is wrong with it."""
    try:
        yield
    except (ValueError, InvalidInput) as flaw:
        raise InvalidInput(f"{where}: {flaw}") from None


# ── One question a line ──────────────────────────────────────────────────────────────────────────────────────────────


def _tsv(source: Path) -> Placed:
    for number, row in split_rows(source, read_lines(source)):
        where = f"{source}, line {number}"
        with _at(where):
            if len(row) != 2:
                raise ValueError(f"must be a question, a tab and a list of answers; it has {len(row)} columns")
            question = Question(str(number), row[0].strip(), parse_list(row[1]))
        yield where, question


# A list of string literals as Python writes it. Neither branch of a string can match what the other does, and every
# repetition begins with what cannot stand before it, so that no text makes the search long.
_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_LIST = re.compile(rf"\s*\[\s*(?:(?:{_STRING})(?:\s*,\s*(?:{_STRING}))*\s*,?\s*)?\]\s*", re.DOTALL)
_EACH = re.compile(_STRING, re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}


def parse_list(literal: str) -> tuple[str, ...]:
    """The strings of a list that is written as Python writes it: `['a', "b's"]`. Nothing is evaluated."""
    if len(literal) > LONGEST_LIST:
        raise ValueError(f"a list of answers of {len(literal):,} characters; is this a file of questions?")
    if not _LIST.fullmatch(literal):
        raise ValueError(
            f"the answers must be a list of strings such as ['Homer', \"Homer's son\"], not {literal!r:.80}"
        )
    return tuple(_ESCAPE.sub(_unescaped, each[1:-1]) for each in _EACH.findall(literal))


def _unescaped(escape: re.Match[str]) -> str:
    """What an escape stands for; one that Python does not know, as in a regular expression's '\\d', is left alone."""
    code = escape[1]
    if len(code) == 1:
        return _ESCAPED.get(code, escape[0])
    if (number := int(code[1:], 16)) > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"{escape[0]} is no character")
    return chr(number)


def _jsonl(source: Path, prefix: str) -> Placed:
    for number, record in parse_objects(source, read_lines(source)):
        where = f"{source}, line {number}"
        with _at(where):
            question = _of_record(record, number, prefix)
        yield where, question


def _of_record(record: Mapping[str, Any], number: int, prefix: str) -> Question:
    if "answer" in record and "answers" in record:
        raise ValueError('it has both "answer" and "answers": one of them is enough')
    answers = record.get("answers", record.get("answer"))
    listed = {"answers": [answers] if isinstance(answers, str) else answers}
    gold = {prefix + each: 1 for each in strings_of(record, "positives")}
    return Question(
        _id(record, str(number)), string_of(record, "question").strip(), strings_of(listed, "answers"), gold
    )


def _id(record: Any, default: str) -> str:
    """The id in a record, as text."""
    own = next((record[key] for key in ("id", "_id") if record.get(key) not in (None, "")), default)
    return string_of({"id": str(own) if type(own) is int else own}, "id")


# ── SQuAD ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _squad(source: Path, prefix: str) -> Placed:
    for number, article in enumerate(squad_articles(source)):
        where = f"{source}, article {number}"
        with _at(where):
            paragraphs = list_of(article, "paragraphs")
        for inner, paragraph in enumerate(paragraphs):
            place = f"{where}, paragraph {inner}"
            with _at(place):
                asked = list_of(paragraph, "qas")
            yield from _of_paragraph(asked, squad_id(prefix, number, inner), place)


def _of_paragraph(asked: list[Any], passage_id: str, place: str) -> Placed:
    for number, record in enumerate(asked):
        where = f"{place}, question {number}"
        with _at(where):
            text, answers = string_of(record, "question").strip(), tuple(squad_answers(record))
            question = Question(_id(record, f"{passage_id}-{number}"), text, answers, {passage_id: 1})
        yield where, question


# ── Questions here, judgements there ─────────────────────────────────────────────────────────────────────────────────


def _beir(folder: Path, prefix: str, split: str | None) -> Placed:
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder; BEIR's layout is one, with queries.jsonl and qrels/")
    queries = packed_or_not(folder / "queries.jsonl")
    splits = SPLITS if split is None else (split,)
    judged = packed_or_not(*(folder / "qrels" / f"{each}.tsv" for each in splits), folder / "qrels.tsv")
    return _judged(_records(queries), queries, _gold(judged, prefix, beir_judgement), judged)


def _trec(source: Path, prefix: str, qrels: PathLike | None) -> Placed:
    if qrels is None:
        raise InvalidInput(
            f"{source}: the judgements of a trec collection are in a file of their own: qrels=…, --qrels"
        )
    first = next((line for _, line in read_lines(source) if line.strip()), "")
    asked = _records(source) if first.lstrip().startswith("{") else _columns(source)
    return _judged(asked, source, _gold(Path(qrels), prefix, _trec_judgement), Path(qrels))


def _records(source: Path) -> Placed:
    for number, record in parse_objects(source, read_lines(source)):
        where = f"{source}, line {number}"
        with _at(where):
            question = Question(_id(record, ""), string_of(record, "text").strip())
        yield where, question


def _columns(source: Path) -> Placed:
    for number, line in read_lines(source):
        where = f"{source}, line {number}"
        question_id, tab, text = line.rstrip("\r\n").partition("\t")
        if not line.strip():
            continue
        if not tab:
            raise InvalidInput(f"{where}: must be a question's id, a tab and its text: {line!r:.200}")
        yield where, Question(question_id.strip(), text.strip())


def _judged(asked: Placed, source: Path, gold: dict[str, dict[str, int]], judged: Path) -> Placed:
    """The questions that have gold passages; a judgement of a question that is not there is an error."""
    known = set()
    for where, question in asked:
        known.add(question.id)
        if question.id in gold:
            yield where, replace(question, gold=gold[question.id])
    for question_id in gold.keys() - known:
        raise InvalidInput(f"{judged}: the question {question_id!r} is judged, but {source} does not have it")


def _gold(source: Path, prefix: str, parse: Callable[[str], tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Of each question that is judged, the passages that are relevant."""
    gold: dict[str, dict[str, int]] = {}
    seen: set[tuple[str, str]] = set()
    for where, line in judgement_lines(source):
        with _at(where):
            question_id, passage_id, grade = parse(line)
            if (question_id, passage_id) in seen:
                raise ValueError(f"the passage {passage_id!r} is judged twice for the question {question_id!r}")
        seen.add((question_id, passage_id))
        if grade > 0:
            gold.setdefault(question_id, {})[prefix + passage_id] = grade
    return gold


def _trec_judgement(line: str) -> tuple[str, str, int]:
    """TREC's four columns, of which the second means nothing; or BEIR's three, whose ids may have spaces in them."""
    columns = line.split()
    if line.count("\t") == 2 or len(columns) != 4:
        return beir_judgement(line)
    if not columns[3].removeprefix("-").isdecimal():
        raise ValueError(f"must be question id, 0, document id and a whole number: {line!r:.200}")
    return columns[0], columns[2], int(columns[3])
