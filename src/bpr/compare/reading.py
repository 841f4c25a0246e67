"""The EM column: what a reader answers from the passages that each row found, on a fixed sample of the questions.

Rows find mostly the same passages, so each pair of question and passage is read once. What a row gave is kept in
FOLDER/read, and taken from there as long as the row and the reader are the same. It knows what rows found, and nothing
of their indexes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..answering import best_text
from ..disk import replacing
from ..errors import InvalidInput
from ..evaluation import exact_match
from ..reader import Found, Reader
from ..records import Progress
from .inputs import SEED, Corpus
from .measure import READ, storing
from .rows import MAIN

SAMPLE = 2000  # questions that are read, if there are as many


def exact(
    results: Sequence[Mapping[str, Any]],
    corpus: Corpus,
    reader: Reader,
    folder: Path,
    *,
    sample: int = SAMPLE,
    threads: int | None = None,
    say: Progress = lambda what, done, total: None,
) -> dict[str, list[bool]]:
    """For each row of the first table, whether the answers to the sampled questions are exactly right."""
    asked = [i for i, question in enumerate(corpus.questions) if question.answers]
    if not asked:
        raise InvalidInput("none of the questions has answers, so a reader's cannot be judged: leave out --reader")
    some = np.sort(np.random.default_rng(SEED).permutation(asked)[:sample]).tolist()
    rows = [each for each in results if each["table"] == MAIN and "best" in each]
    with storing(folder / "read"):
        (folder / "read").mkdir(parents=True, exist_ok=True)
    homes = {each["name"]: folder / "read" / f"{_key(each, corpus, reader, some)}.json" for each in rows}
    found = {name: _kept(path) for name, path in homes.items()}
    todo = [each for each in rows if found[each["name"]] is None]
    right: dict[str, list[bool]] = {each["name"]: [] for each in todo}
    for done, question in enumerate(some if todo else ()):
        _answer(question, todo, corpus, reader, threads, right)
        say(f"reading with {reader.model.name}", done + 1, len(some))
    for name, values in right.items():
        with replacing(homes[name]) as [file]:
            file.write(json.dumps(values).encode())
    return {name: right[name] if kept is None else kept for name, kept in found.items()}


def _answer(
    number: int,
    rows: Sequence[Mapping[str, Any]],
    corpus: Corpus,
    reader: Reader,
    threads: int | None,
    right: dict[str, list[bool]],
) -> None:
    """All rows' answers to one question."""
    question, most = corpus.questions[number], reader.model.passages
    wanted = {each["name"]: each["best"][number][:most] for each in rows}
    every = list(dict.fromkeys(row for rows in wanted.values() for row in rows))
    passages = [corpus.passages[row] for row in every]
    found = reader.read(question.text, passages, threads=threads)
    spans: dict[int, list[Found]] = {row: [] for row in every}
    for each in found:
        spans[every[each.passage]].append(each)
    for name, own in wanted.items():
        mine = [each._replace(passage=place) for place, row in enumerate(own) for each in spans[row]]
        text = best_text(reader, mine, [corpus.passages[row] for row in own], len(own))
        right[name].append(exact_match(text, question.answers))


def _key(result: Mapping[str, Any], corpus: Corpus, reader: Reader, asked: Sequence[int]) -> str:
    answers = [corpus.questions[i].answers for i in asked]
    facts = [result["best"], answers, asdict(reader.model), reader.engine, READ, list(asked)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _kept(path: Path) -> list[bool] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not there, or not whole: it is read again
    return values if isinstance(values, list) and all(type(each) is bool for each in values) else None
