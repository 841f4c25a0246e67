"""What a reader is trained and validated on, as arrays: questions, passages, spans of answers, what was retrieved.

`bpr prepare-reader` makes the folder, once, on any machine; readerbatches.py and readings.py read nothing else. Knows
tokens and answers; nothing of torch. Every passage is stored once, as 16-bit tokens, so that the folder packs well.

A question's positives are its gold passages and those that were retrieved from the same article (the paper's rule of
gold titles), each if an answer's tokens stand in it. Its negatives are retrieved passages in which no answer stands by
DPR's has_answer. Questions of held-out articles are for validation: their passages are seen in no other way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from .. import model as models
from ..answers import Answers, Text
from ..errors import InvalidInput
from ..pieces import Cutter, Pieces
from ..reader import TITLE
from ..records import Passage, Progress
from ..textfiles import read_lines
from .arrays import ArrayFolder, Ragged, numbered, row_of
from .data import Example, hold_out

FACTS, ANSWERS = "reader-data.json", "answers.json"
LONGEST = 350  # tokens of a passage, its title included: what the paper's reader sees of it with its question
QUESTION = 64  # tokens of a question, at most
SPANS = 10  # of an answer in a passage that are kept
POSITIVES, NEGATIVES = 10, 30  # of a question
INSIDE, GLUED = 1, 2  # bits of a token's mark: goes on with a word; has no white space before it
BLOCK = 8192

Rows: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class ReaderData(ArrayFolder):
    """Questions and passages as numbers. A passage's number counts those that are stored, not all that there are.

    questions: tokens. passages: tokens of title, [SEP] and text, or of the text alone; texts: where the text begins;
    marks: of each of those tokens. rows: which passage of the file each is.
    positives: passages with an answer in them, of each question; spans: of each of the positives, pairs of first and
    last token in the passage. negatives: passages without one, best first.
    held: questions for validation; gold: their own passages; retrieved: theirs, best first. answers: of held questions.
    """

    questions: Ragged
    passages: Ragged
    texts: NDArray[np.uint16]
    marks: NDArray[np.uint8]
    rows: Rows
    positives: Ragged
    spans: Ragged
    negatives: Ragged
    gold: Ragged
    retrieved: Ragged
    held: NDArray[np.bool_]
    answers: dict[int, list[str]]
    facts: dict[str, Any]

    RAGGED = ("questions", "passages", "positives", "spans", "negatives", "gold", "retrieved")
    PLAIN = ("texts", "marks", "rows", "held")
    FACTS_FILE, REFUSAL = FACTS, "data that `bpr prepare-reader` wrote"

    def _save_rest(self, folder: Path) -> None:
        (folder / ANSWERS).write_text(json.dumps(self.answers), encoding="utf-8")

    @classmethod
    def _load_rest(cls, home: Path) -> dict[str, Any]:
        known = json.loads((home / ANSWERS).read_text(encoding="utf-8"))
        return {"answers": {int(question): answers for question, answers in known.items()}}

    def _rest_bytes(self) -> bytes:
        return json.dumps(self.answers, sort_keys=True).encode()


def prepare(
    passages: str | Path,
    examples: Iterable[Example],
    ranked: NDArray[np.integer[Any]] | Callable[[Mapping[str, int], int], NDArray[np.integer[Any]]],
    tokenizer: str | Path,
    *,
    reserved: Iterable[Example] = (),
    held_share: float = 0.03,
    negatives: int = NEGATIVES,
    depth: int = 50,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReaderData:
    """Cut everything into tokens, find the answers, and choose what each question is trained on.

    ranked: int[examples, k], rows of the passages file, best first, −1 where there are fewer (or a function that gives
    it, such as `trec_rows`); the first `depth` count. reserved: examples of test sets, whose positives training must
    not see. held_share: of the groups (articles), for validation; 1 for a set that is only evaluated.
    """
    say = progress or (lambda what, done, total: None)
    cutter, asked = Cutter(Path(tokenizer)), list(examples)
    if cutter.size > 1 << 16:
        raise InvalidInput(f"{tokenizer} has {cutter.size:,} tokens, and 16 bits hold 65,536")
    pile, numbers = _read(passages, say)
    rows = _checked(ranked(numbers, len(asked)) if callable(ranked) else ranked, len(asked), len(pile))[:, :depth]
    held = np.array([bool(hold_out([each], held_share, seed)[1]) for each in asked])
    gold = [[row_of(numbers, each, example) for each in example.positives] for example in asked]
    hidden = {row for own, out in zip(gold, held, strict=True) if out for row in own}
    hidden |= {row_of(numbers, each, example) for example in reserved for each in example.positives}
    chosen = _chosen(asked, pile, rows, gold, held, hidden, negatives, say)
    used = np.unique(np.fromiter((row for each in chosen for part in each for row in part), np.int32))
    place = np.full(len(pile), -1, np.int32)
    place[used] = np.arange(len(used))
    stored = _Stored(cutter, pile, used, say)
    questions = _cut(cutter, [each.question for each in asked], QUESTION, "cutting questions into tokens", say)
    positives, spans = _with_spans(cutter, asked, chosen, place, stored, say)

    def numbered(parts: Iterable[Sequence[int]]) -> Ragged:
        return Ragged.of([place[list(part)] for part in parts], np.int32)

    facts = {
        "cls": cutter.cls, "sep": cutter.sep, "pad": cutter.pad, "tokenizer": models.sha256(Path(tokenizer)),
        "passages": len(used), "train": int((~held).sum()), "held": int(held.sum()),
        "without": int(sum(not each for each, out in zip(positives, held, strict=True) if not out)),
    }  # fmt: skip
    return ReaderData(
        Ragged.of([each.ids for each in questions], np.uint16),
        *stored.arrays(),
        used,
        Ragged.of(positives, np.int32),
        Ragged.of([pair for each in spans for pair in each], np.uint16),
        numbered(each.negatives for each in chosen),
        numbered(each.gold for each in chosen),
        numbered(each.retrieved for each in chosen),
        held,
        {i: list(each.answers) for i, each in enumerate(asked) if held[i]},
        facts,
    )


def trec_rows(path: str | Path) -> Callable[[Mapping[str, int], int], NDArray[np.int32]]:
    """For `prepare`: the rows of a TREC run (`bpr evaluate -o` writes one) whose questions are numbered from 1.

    So `bpr evaluate` numbers the lines of a JSONL file whose questions have no ids of their own.
    """

    def rows(numbers: Mapping[str, int], questions: int) -> NDArray[np.int32]:
        found: list[list[int]] = [[] for _ in range(questions)]
        for line, text in read_lines(Path(path)):
            try:
                question, _, passage, *_ = text.split()
                found[range(1, questions + 1).index(int(question))].append(numbers[unquote(passage)])
            except (ValueError, IndexError, KeyError) as error:
                raise InvalidInput(
                    f"{path}, line {line}: {text.strip()!r:.80} does not name one of the {questions:,} examples (by "
                    f"its number from 1) and a passage of the file: {error}"
                ) from None
        table = np.full((questions, max(map(len, found), default=0)), -1, np.int32)
        for row, some in zip(table, found, strict=True):
            row[: len(some)] = some
        return table

    return rows


# ── What a question is trained on ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Chosen:
    """Rows of the passages file. candidates: positives, if an answer's tokens stand in them too; the gold first."""

    candidates: list[int]
    negatives: list[int]
    gold: list[int]
    retrieved: list[int]

    def __iter__(self) -> Any:
        return iter((self.candidates, self.negatives, self.gold, self.retrieved))


def _chosen(
    asked: Sequence[Example],
    pile: Sequence[Passage],
    ranked: NDArray[np.integer[Any]],
    gold: Sequence[list[int]],
    held: NDArray[np.bool_],
    hidden: set[int],
    most: int,
    say: Progress,
) -> list[_Chosen]:
    texts = [Text(passage.text) for passage in pile]
    chosen = []
    for i, example in enumerate(asked):
        if i % BLOCK == 0:
            say("looking for answers", i, len(asked))
        rows = [row for row in dict.fromkeys(ranked[i].tolist()) if row >= 0]
        if held[i]:
            chosen.append(_Chosen([], [], gold[i], rows))
            continue
        own = [row for row in gold[i] if row not in hidden]
        titles = {pile[row].title.lower() for row in gold[i]}
        answers, found = Answers(example.answers), _Chosen(list(own), [], [], [])
        for row in rows:
            if row in hidden or row in own:
                continue
            if answers.found_in(texts[row]):
                if not titles or pile[row].title.lower() in titles:
                    found.candidates.append(row)
            elif len(found.negatives) < most:
                found.negatives.append(row)
        chosen.append(found)
    say("looking for answers", len(asked), len(asked))
    return chosen


def _with_spans(
    cutter: Cutter,
    asked: Sequence[Example],
    chosen: Sequence[_Chosen],
    place: Rows,
    stored: _Stored,
    say: Progress,
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """The positives of each question, as numbers of stored passages, and the spans of each of them."""
    every = [answer for example in asked for answer in example.answers]
    cut = iter(_cut(cutter, every, LONGEST, "cutting answers into tokens", say))
    positives: list[list[int]] = []
    spans: list[list[list[int]]] = []
    for example, each in zip(asked, chosen, strict=True):
        wanted = [next(cut).ids for _ in example.answers]
        found: dict[int, list[int]] = {}
        for row in each.candidates:
            number = int(place[row])
            if len(found) < POSITIVES and (pairs := stored.find(number, wanted)):
                found[number] = pairs
        positives.append(list(found))
        spans.append(list(found.values()))
    return positives, spans


class _Stored:
    """The passages that are used, as tokens."""

    def __init__(self, cutter: Cutter, pile: Sequence[Passage], used: Rows, say: Progress) -> None:
        titles = _cut(cutter, [pile[row].title for row in used], TITLE, "cutting titles into tokens", say)
        self._ids: list[NDArray[np.uint16]] = []
        self._marks: list[NDArray[np.uint8]] = []
        self._texts: list[int] = []
        sep = np.array([cutter.sep], np.uint16)
        for first in range(0, len(used), BLOCK):
            some = used[first : first + BLOCK]
            for title, text in zip(titles[first:], cutter.cut([pile[row].text for row in some], LONGEST), strict=False):
                head = np.concatenate([title.ids.astype(np.uint16), sep]) if len(title.ids) else sep[:0]
                keep = LONGEST - len(head)
                marks = text.inside * np.uint8(INSIDE) | text.glued * np.uint8(GLUED)
                self._ids.append(np.concatenate([head, text.ids[:keep].astype(np.uint16)]))
                self._marks.append(np.concatenate([np.zeros(len(head), np.uint8), marks[:keep].astype(np.uint8)]))
                self._texts.append(len(head))
            say("cutting passages into tokens", first + len(some), len(used))

    def find(self, number: int, wanted: Sequence[NDArray[np.int64]]) -> list[int]:
        """The spans in a passage's text whose tokens are one of the wanted lists: first, last, first, last, …"""
        ids, begin = self._ids[number], self._texts[number]
        inside = np.append(self._marks[number] & INSIDE, 0)  # behind the last token no word goes on
        found: set[tuple[int, int]] = set()
        for tokens in wanted:
            size = len(tokens)
            if not 0 < size <= len(ids) - begin:
                continue
            starts = begin + np.flatnonzero(ids[begin : len(ids) - size + 1] == tokens[0])
            for start in starts.tolist():
                whole = not inside[start] and not inside[start + size]
                if whole and np.array_equal(ids[start : start + size], tokens):
                    found.add((start, start + size - 1))
        return [each for pair in sorted(found)[:SPANS] for each in pair]

    def arrays(self) -> tuple[Ragged, NDArray[np.uint16], NDArray[np.uint8]]:
        """Tokens, where texts begin, and marks."""
        marks = np.concatenate([np.empty(0, np.uint8), *self._marks])
        return Ragged.of(self._ids, np.uint16), np.array(self._texts, np.uint16), marks


# ── Files and their parts ────────────────────────────────────────────────────────────────────────────────────────────


def _read(source: str | Path, say: Progress) -> tuple[list[Passage], dict[str, int]]:
    pile: list[Passage] = []
    numbers: dict[str, int] = {}
    for passage in numbered(source, numbers):
        pile.append(passage)
        if len(pile) % BLOCK == 0:
            say("reading passages", len(pile), None)
    return pile, numbers


def _checked(ranked: NDArray[np.integer[Any]], questions: int, passages: int) -> NDArray[np.integer[Any]]:
    if ranked.ndim != 2 or ranked.dtype.kind not in "iu" or len(ranked) != questions:
        raise InvalidInput(
            f"what was retrieved must be rows of whole numbers for {questions:,} examples, not "
            f"{ranked.dtype}{list(ranked.shape)}"
        )
    if ranked.size and not -1 <= int(ranked.min()) <= int(ranked.max()) < passages:
        raise InvalidInput(
            f"what was retrieved has rows {ranked.min()} to {ranked.max()}, and the passages are 0 to {passages - 1}"
        )
    return ranked


def _cut(cutter: Cutter, texts: Sequence[str], longest: int, what: str, say: Progress) -> list[Pieces]:
    found: list[Pieces] = []
    for first in range(0, len(texts), BLOCK):
        found += cutter.cut(texts[first : first + BLOCK], longest)
        say(what, len(found), len(texts))
    return found
