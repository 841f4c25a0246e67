"""Other people's files to passages and examples: SQuAD, BEIR, DPR's training files.

`bpr convert` calls it. Knows their layouts and no more: what an example is, and how one is refused, stands in data.py.
Each converter yields Passage and Example values as it meets them, each passage once; data.write_converted writes them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..layouts import (
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
from ..passages import to_passage
from ..records import Passage
from ..textfiles import kind, read_lines
from .data import Careful, Example, Item, OnSkip, PathLike, line_records, to_example

PIECE = 1 << 20  # characters of a JSON array that are taken apart at a time
LONGEST_ITEM = 64 << 20  # characters of an item of such an array: beyond this its end is not coming


# ── SQuAD ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def squad(path: PathLike, prefix: str = "", *, skip_bad: bool = False, on_skip: OnSkip | None = None) -> Iterator[Item]:
    """A file in SQuAD's layout (also packed). A paragraph's id is prefix, article and paragraph from 0: "dev-3-14".

    The group is the article's title. The file is read as a whole, into about four times its size of memory.
    """
    source, careful = Path(path), Careful(skip_bad, on_skip)
    for number, article in enumerate(squad_articles(source)):
        where = f"{source}, article {number}"
        with careful.at(where):
            title = string_of(article, "title", "").replace("_", " ").strip()
            for inner, paragraph in enumerate(list_of(article, "paragraphs")):
                passage_id = squad_id(prefix, number, inner)
                with careful.at(f"{where}, paragraph {inner}"):
                    passage = to_passage({"id": passage_id, "title": title, "text": string_of(paragraph, "context")})
                    questions = list_of(paragraph, "qas")
                    yield passage
                    yield from _squad_examples(questions, passage, f"{where}, paragraph {inner}", careful)


def _squad_examples(questions: list[Any], passage: Passage, where: str, careful: Careful) -> Iterator[Example]:
    article = passage.id.rpartition("-")[0]
    for number, question in enumerate(questions):
        with careful.at(f"{where}, question {number}"):
            facts = {"question": string_of(question, "question"), "answers": squad_answers(question)}
            yield to_example({**facts, "positives": [passage.id], "group": passage.title or article})


# ── BEIR ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def beir(
    folder: PathLike,
    prefix: str = "",
    *,
    split: str = "train",
    skip_bad: bool = False,
    on_skip: OnSkip | None = None,
) -> Iterator[Item]:
    """A folder in BEIR's layout: corpus.jsonl, queries.jsonl, and qrels/SPLIT.tsv or one qrels.tsv (each also packed).

    Documents judged 1 or more are positives. Questions that this split does not judge are left out. The group is the
    first positive, so that questions about one document stay together.
    """
    home, careful = Path(folder), Careful(skip_bad, on_skip)
    corpus, queries = packed_or_not(home / "corpus.jsonl"), packed_or_not(home / "queries.jsonl")
    judgements = packed_or_not(home / "qrels" / f"{split}.tsv", home / "qrels.tsv")
    known: set[str] = set()
    for where, record in line_records(corpus, read_lines(corpus), careful):
        with careful.at(where):
            passage = to_passage(record)
            known.add(passage.id)
            yield Passage(prefix + passage.id, passage.title, passage.text, passage.meta)
    judged: dict[str, dict[str, None]] = {}
    for question_id, document_id in _beir_judgements(judgements, known, careful):
        judged.setdefault(question_id, {})[prefix + document_id] = None
    for where, record in line_records(queries, read_lines(queries), careful):
        with careful.at(where):
            question = to_passage(record)
            positives = list(judged.pop(question.id, ()))
            if positives:
                yield to_example({"question": question.text, "positives": positives, "group": positives[0]})
    for question_id in judged:
        with careful.at(str(judgements)):
            raise ValueError(f"the question {question_id!r} is judged, but {queries} does not have it")


def _beir_judgements(source: Path, known: set[str], careful: Careful) -> Iterator[tuple[str, str]]:
    """Each (question id, document id) that is judged 1 or more."""
    for where, line in judgement_lines(source):
        with careful.at(where):
            question_id, document_id, grade = beir_judgement(line)
            if document_id not in known:
                raise ValueError(f"the corpus has no document {document_id!r}")
            if grade > 0:
                yield question_id, document_id


# ── DPR ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def dpr(path: PathLike, prefix: str = "", *, skip_bad: bool = False, on_skip: OnSkip | None = None) -> Iterator[Item]:
    """A training file of DPR, an array or one object a line (also packed), in memory of 250 bytes for each passage.

    A passage with the same title and text is one passage, under the id (passage_id or psg_id) that it had first, or
    under a hash where it has none or another text has that id. Negatives: hard_negative_ctxs, then negative_ctxs. The
    group is the title of the first positive. JSON that is broken inside an array ends the reading even with skip_bad.
    """
    source, careful = Path(path), Careful(skip_bad, on_skip)
    lines = read_lines(source)
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        raise InvalidInput(f"{source} is empty")
    whole = chain([first], lines)
    if first[1].lstrip().startswith("["):
        records = _array_records(source, (line for _, line in whole), careful)
    else:
        records = line_records(source, whole, careful)
    known = _Known(prefix)
    for where, record in records:
        with careful.at(where):
            yield from _dpr_items(record, known)


def _dpr_items(record: Mapping[str, Any], known: _Known) -> list[Item]:
    # All that can be refused comes first: a passage of a refused item must not count as one that was passed on.
    pools = [
        [_dpr_passage(context) for context in list_of(record, key, [])]
        for key in ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
    ]
    if not pools[0]:
        raise ValueError('no "positive_ctxs", so there is nothing to learn from it')
    facts = {"question": string_of(record, "question"), "answers": list(strings_of(record, "answers"))}
    example = to_example({**facts, "positives": ["0"], "group": pools[0][0].title})
    new: list[Item] = []
    positives, *others = [list(dict.fromkeys(known.add(passage, new) for passage in pool)) for pool in pools]
    negatives = [each for each in dict.fromkeys(chain(*others)) if each not in positives]
    return [*new, replace(example, positives=tuple(positives), negatives=tuple(negatives))]


def _dpr_passage(context: Any) -> Passage:
    """The passage of a context, whose id is empty where the context has none."""
    title, text = string_of(context, "title", ""), string_of(context, "text")
    own_id = next((context[key] for key in ("passage_id", "psg_id") if context.get(key) not in (None, "")), None)
    passage = to_passage({"id": "none" if own_id is None else own_id, "title": title, "text": text})
    return passage if own_id is not None else replace(passage, id="")


class _Known:
    """The passages that were passed on, by a digest of title and text."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ids: dict[bytes, str] = {}
        self._taken: set[str] = set()

    def add(self, passage: Passage, new: list[Item]) -> str:
        """The id under which the passage goes; one that is met for the first time is added to `new`."""
        digest = hashlib.blake2b(f"{passage.title}\0{passage.text}".encode(), digest_size=16).digest()
        if digest not in self._ids:
            own_id = f"{self._prefix}{passage.id or digest.hex()}"
            if own_id in self._taken:
                own_id = f"{self._prefix}{digest.hex()}"
            self._ids[digest] = own_id
            self._taken.add(own_id)
            new.append(replace(passage, id=own_id))
        return self._ids[digest]


# ── A long JSON array ────────────────────────────────────────────────────────────────────────────────────────────────


def _array_records(source: Path, lines: Iterator[str], careful: Careful) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON array, with their places, in memory of a few of them."""
    window, number = _Window(lines), 0
    window.take()
    while number or window.peek() != "]":
        where = f"{source}, item {number}"
        value = window.value(where)
        with careful.at(where):
            if not isinstance(value, dict):
                raise ValueError(f"each item must be a JSON object, not {kind(value)}")
            yield where, value
        number += 1
        mark = window.take()
        if mark == "]":
            break
        if mark != ",":
            raise InvalidInput(f"{where}: a comma or ] must follow, not {mark or 'the end of the file'!r}")
    if number == 0:
        raise InvalidInput(f"{source} holds no items")
    if window.peek():
        raise InvalidInput(f"{source}: there is more behind the ] that ends the array")


class _Window:
    """A part of a long text, moved along it. What is tried again grows to twice its size, so the time stays linear."""

    _space = re.compile(r"[ \t\r\n]*")
    _decode = json.JSONDecoder().raw_decode

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self._text, self._at = lines, "", 0

    def peek(self) -> str:
        """The next character that is not white space; nothing at the end."""
        while True:
            self._at = self._space.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches nothing too
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def take(self) -> str:
        """As `peek`, and move behind it."""
        mark = self.peek()
        self._at += len(mark)
        return mark

    def value(self, where: str) -> Any:
        """The next JSON value, and move behind it."""
        self.peek()
        while True:
            try:
                value, self._at = self._decode(self._text, self._at)
                return value
            except (ValueError, RecursionError) as error:
                flaw = getattr(error, "msg", str(error))
                if len(self._text) - self._at > LONGEST_ITEM or not self._grow():
                    raise InvalidInput(f"{where}: not valid JSON: {flaw}") from None

    def _grow(self) -> bool:
        pieces, size = [self._text[self._at :]], 0
        for line in self._lines:
            pieces.append(line)
            size += len(line)
            if size >= max(PIECE, len(pieces[0])):
                break
        self._text, self._at = "".join(pieces), 0
        return size > 0
