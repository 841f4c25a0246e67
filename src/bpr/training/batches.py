"""What each step trains on: questions, their positives, hard and random negatives, and pairs made from the passages.

The i-th item is a function of (seed, i) alone, over all epochs, so a resumed run sees exactly what an unbroken one
would have. trainer.py calls it. Knows prepared data; nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InvalidInput
from .prepared import Prepared

Tokens = NDArray[np.int64]
SHORTEST_SENTENCE, LONGEST_SENTENCE = 6, 48  # tokens
KEEP_SENTENCE = 0.1  # how often a sentence that asks stays in its passage, so that exact words count too
MULTIPLE = 8  # tokens: lengths are rounded up to it, which matrix units like
NEARBY = 8  # rows before and after a passage among which others of its article are looked for


@dataclass(frozen=True)
class Diet:
    """What a batch is made of.

    hard: hard negatives a question, drawn from its first `hard_pool`; random ones stand in where there are fewer.
    random: random ones. pairs: made-up pairs for each real question (0.5: one for every second); a sentence asks for
    the passage it was taken from. neighbours: passages of the same article that each of them brings along, as its
    negatives and, for an anchor, to be told apart as the start model does. titles: how often a passage shows its title.
    """

    hard: int = 1
    hard_pool: int = 30
    random: int = 0
    pairs: float = 0.0
    neighbours: int = 0
    titles: float = 1.0
    question_length: int = 256
    passage_length: int = 256

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if min(self.hard, self.random, self.neighbours) < 0 or self.hard_pool < 1:
            raise InvalidInput("hard, random and neighbours must be 0 or more, and hard_pool 1 or more")
        for name in ("pairs", "titles"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        if min(self.question_length, self.passage_length) < 8:
            raise InvalidInput("question_length and passage_length must be at least 8 tokens")


@dataclass
class Item:
    """One question (or none), and one made-up pair (or none)."""

    questions: list[Tokens]
    owned: list[list[int]]  # rows that are positives of each question
    passages: list[Tokens]  # the first len(questions) of them are the questions' own positives
    rows: list[int]
    real: list[bool]
    made: list[bool]  # which passages came with the made-up pair


class Schedule(Dataset[Item]):
    """All items of all epochs, one after the other."""

    def __init__(self, data: Prepared, diet: Diet, epochs: int, seed: int) -> None:
        """Every epoch is a permutation of the questions that are not held out and have a positive to look at."""
        self.data, self.diet, self.epochs, self.seed = data, diet, epochs, seed
        seen = np.append(data.trainable[data.positives.flat], False)  # so that every start has an end to reduce to
        known = np.logical_or.reduceat(seen, data.positives.starts[:-1]) & (np.diff(data.positives.starts) > 0)
        self.train = np.flatnonzero(~data.held & known)
        self.rows = np.flatnonzero(data.trainable)
        most = int(np.diff(data.positives.starts).max(initial=0))
        if len(self.rows) <= most:
            raise InvalidInput(f"{len(self.rows)} passages are left for training: too few to draw negatives from")
        self._order: tuple[int, NDArray[np.int64]] = (-1, self.train)

    def __len__(self) -> int:
        """Items over all epochs."""
        return len(self.train) * self.epochs

    def __getitem__(self, i: int) -> Item:
        """The i-th."""
        epoch, place = divmod(i, len(self.train))
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self.seed, 1, epoch]).permutation(self.train))
        random = np.random.default_rng([self.seed, 2, i])
        item = self._asked(int(self._order[1][place]), random)
        share = self.diet.pairs
        if int((i + 1) * share) > int(i * share):
            self._add_pair(item, random)
        return item

    def _asked(self, question: int, random: np.random.Generator) -> Item:
        data, diet = self.data, self.diet
        own = [int(row) for row in data.positives[question]]
        seen = [row for row in own if data.trainable[row]]
        pool = [int(row) for row in data.negatives[question][: diet.hard_pool] if data.trainable[row]]
        hard = [int(row) for row in random.choice(pool, min(diet.hard, len(pool)), replace=False)] if pool else []
        other = self._random_rows(diet.random + diet.hard - len(hard), own, random)
        rows = [seen[int(random.integers(len(seen)))], *hard, *other]
        return Item(
            [data.question(question, diet.question_length)],
            [own],
            [self._passage(row, random) for row in rows],
            rows,
            [True],
            [False] * len(rows),
        )

    def _random_rows(self, count: int, own: list[int], random: np.random.Generator) -> list[int]:
        rows: list[int] = []
        while len(rows) < count:
            row = int(self.rows[int(random.integers(len(self.rows)))])
            if row not in own:
                rows.append(row)
        return rows

    def _passage(self, row: int, random: np.random.Generator) -> Tokens:
        return self.data.passage(row, self.diet.passage_length, bool(random.random() < self.diet.titles))

    def _add_pair(self, item: Item, random: np.random.Generator) -> None:
        row = int(self.rows[int(random.integers(len(self.rows)))])
        text, title = self.data.texts[row], self.data.titles[row]
        span = sentence(text, self.data.facts["ends"], random)
        if span is None:
            return
        first, last = span
        rest = text if random.random() < KEEP_SENTENCE else np.concatenate([text[:first], text[last:]])
        shown = title if random.random() < self.diet.titles / 2 else ()  # its title would give too many away
        item.questions.append(self.data.joined((), text[first:last], self.diet.question_length))
        item.owned.append([row])
        item.passages.insert(1, self.data.joined(shown, rest, self.diet.passage_length))
        item.rows.insert(1, row)
        item.real.append(False)
        near = self._neighbours(row, random)
        item.passages += [self._passage(each, random) for each in near]
        item.rows += near
        item.made = [False, True, *item.made[1:], *[True] * len(near)]

    def _neighbours(self, row: int, random: np.random.Generator) -> list[int]:
        """Rows of the same article: those of one title stand together in every corpus that was cut from articles."""
        if not self.diet.neighbours:
            return []
        titles = self.data.titles
        near = range(max(0, row - NEARBY), min(len(titles), row + NEARBY + 1))
        same = [i for i in near if i != row and self.data.trainable[i] and np.array_equal(titles[i], titles[row])]
        return (
            [int(i) for i in random.choice(same, min(self.diet.neighbours, len(same)), replace=False)] if same else []
        )


def sentence(text: NDArray[Any], ends: list[int], random: np.random.Generator) -> tuple[int, int] | None:
    """Where a random sentence of a text begins and ends, or None where there is no other text beside one."""
    stops = [0, *(np.flatnonzero(np.isin(text, ends)) + 1), len(text)]
    spans = [(int(a), int(b)) for a, b in pairwise(stops) if SHORTEST_SENTENCE <= b - a <= LONGEST_SENTENCE]
    fitting = [span for span in spans if len(text) - (span[1] - span[0]) >= SHORTEST_SENTENCE]
    return fitting[int(random.integers(len(fitting)))] if fitting else None


@dataclass(frozen=True)
class Collate:
    """Items → tensors."""

    pad: int

    def __call__(self, items: list[Item]) -> dict[str, Any]:
        """Questions and passages padded to the longest; the first passages are the questions' own, in their order."""
        questions = [tokens for item in items for tokens in item.questions]
        own, others, own_rows, other_rows, own_made, other_made = [], [], [], [], [], []
        for item in items:
            n = len(item.questions)
            own += item.passages[:n]
            own_rows += item.rows[:n]
            own_made += item.made[:n]
            others += item.passages[n:]
            other_rows += item.rows[n:]
            other_made += item.made[n:]
        owned = [rows for item in items for rows in item.owned]
        most = max(len(rows) for rows in owned)
        question_ids, question_mask = padded(questions, self.pad)
        passage_ids, passage_mask = padded([*own, *others], self.pad)
        return {
            "question_ids": question_ids,
            "question_mask": question_mask,
            "passage_ids": passage_ids,
            "passage_mask": passage_mask,
            "tokens": (int(question_mask.sum()), int(passage_mask.sum())),
            "positive": torch.arange(len(questions)),
            "rows": torch.tensor([*own_rows, *other_rows]),
            "owned": torch.tensor([[*rows, *[-1] * (most - len(rows))] for rows in owned]),
            "real": torch.tensor([each for item in items for each in item.real]),
            "made": torch.tensor([*own_made, *other_made]),
        }


def padded(texts: list[Tokens], pad: int) -> tuple[Tensor, Tensor]:
    """ids and mask, int64[n, longest]."""
    longest = -(-max(len(text) for text in texts) // MULTIPLE) * MULTIPLE
    ids = np.full((len(texts), longest), pad, np.int64)
    mask = np.zeros((len(texts), longest), np.int64)
    for i, text in enumerate(texts):
        ids[i, : len(text)] = text
        mask[i, : len(text)] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
