"""What a reader sees in a step: pairs of question and passage laid end to end, without padding, made by numpy alone.

    [CLS] question [SEP] title [SEP] text [SEP]     (without a title: [CLS] question [SEP] text [SEP])

The i-th item is a function of (seed, i) alone, over all epochs, so a resumed run sees exactly what an unbroken one
would have. readertrainer.py and readings.py call it. Knows prepared data; nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InvalidInput
from .arrays import Ragged
from .readerdata import SPANS, ReaderData

Ints: TypeAlias = NDArray[np.int64]
Inputs: TypeAlias = dict[str, Any]  # what `pairs` and `Collate` give: tensors by name


class Item(NamedTuple):
    """A question, its passages (the positive first), and the positive's spans: uint16[n, 2] in the passage."""

    question: int
    passages: Ints
    spans: NDArray[np.uint16]


class Schedule(Dataset[Item]):
    """All items of all epochs, one after the other: one positive and up to `negatives` others of each question."""

    def __init__(self, data: ReaderData, negatives: int, epochs: int, seed: int) -> None:
        """Every epoch is a permutation of the questions that are not held out and have a positive."""
        self.data, self.negatives, self.epochs, self.seed = data, negatives, epochs, seed
        self.train = np.flatnonzero(~data.held & (np.diff(data.positives.starts) > 0))
        if not len(self.train):
            raise InvalidInput("no question has a passage with its answer in it: there is nothing to learn from")
        self._order: tuple[int, Ints] = (-1, self.train)

    def __len__(self) -> int:
        """Items over all epochs."""
        return len(self.train) * self.epochs

    def __getitem__(self, i: int) -> Item:
        """The i-th."""
        epoch, place = divmod(i, len(self.train))
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self.seed, 1, epoch]).permutation(self.train))
        random, data = np.random.default_rng([self.seed, 2, i]), self.data
        question = int(self._order[1][place])
        own, pool = data.positives[question], data.negatives[question]
        which = int(random.integers(len(own)))
        others = random.choice(pool, min(self.negatives, len(pool)), replace=False)
        spans = data.spans[int(data.positives.starts[question]) + which].reshape(-1, 2)
        return Item(question, np.append(own[which], others).astype(np.int64), spans)


@dataclass(frozen=True)
class Window:
    """How long a question, and all together, may be. token_types: title and text are segment 1, as BERT's pairs are."""

    length: int = 350
    question_length: int = 64
    token_types: bool = False


class Collate:
    """Items to a batch, for a DataLoader."""

    def __init__(self, data: ReaderData, window: Window, first_only: bool = False) -> None:
        """first_only: the first span of an answer alone; the others are not shown at all."""
        self._data, self._window, self._most = data, window, 1 if first_only else SPANS

    def __call__(self, items: Sequence[Item]) -> Inputs:
        """With places int64[q, passages], the text of each, −1 for none; spans int64[q, most, 2], in the sequence."""
        counts = np.array([len(item.passages) for item in items])
        questions = np.repeat([item.question for item in items], counts)
        batch = pairs(self._data, questions, np.concatenate([item.passages for item in items]), self._window)
        firsts = np.cumsum(counts) - counts
        places = firsts[:, None] + np.arange(counts.max())
        places[np.arange(counts.max()) >= counts[:, None]] = -1
        spans = np.full((len(items), self._most, 2), -1, np.int64)
        for i, item in enumerate(items):
            # From places in the passage to places in the sequence; what the window cuts off is no span.
            moved = item.spans.astype(np.int64) + int(batch["offsets"][firsts[i]])
            moved = moved[moved[:, 1] < int(batch["ends"][firsts[i]])][: self._most]
            spans[i, : len(moved)] = moved
        return {**batch, "places": torch.from_numpy(places), "spans": torch.from_numpy(spans)}


def pairs(data: ReaderData, questions: Ints, passages: Ints, window: Window) -> Inputs:
    """Sequences of questions and passages, int64[t] numbers each, end to end.

    ids, positions, text: int64[tokens]; starts: int32[t + 1]; begins, ends: int64[t], where the passage's text lies in
    its sequence; offsets: int64[t], where the passage's first token does; segments: int64[tokens], or None.
    """
    asked = np.minimum(_lengths(data.questions, questions), window.question_length)
    read = np.minimum(_lengths(data.passages, passages), window.length - 3 - asked)
    totals = asked + read + 3
    starts = np.zeros(len(totals) + 1, np.int64)
    np.cumsum(totals, out=starts[1:])
    ids = np.full(starts[-1], data.facts["sep"], np.int64)  # those that are not overwritten
    ids[starts[:-1]] = data.facts["cls"]
    ids[_ranges(starts[:-1] + 1, asked)] = data.questions.flat[_ranges(data.questions.starts[questions], asked)]
    ids[_ranges(starts[:-1] + 2 + asked, read)] = data.passages.flat[_ranges(data.passages.starts[passages], read)]
    text = np.repeat(np.arange(len(totals)), totals)
    positions = np.arange(starts[-1]) - starts[text]
    offsets = asked + 2
    ends = offsets + read
    given: dict[str, NDArray[Any]] = {
        "ids": ids,
        "positions": positions,
        "text": text,
        "starts": starts.astype(np.int32),
        "begins": np.minimum(offsets + data.texts[passages], ends),
        "ends": ends,
        "offsets": offsets,
    }
    batch: Inputs = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in given.items()}
    segments: Tensor | None = torch.from_numpy((positions >= offsets[text]).astype(np.int64))
    return {**batch, "segments": segments if window.token_types else None, "longest": int(totals.max())}


def _lengths(ragged: Ragged, which: Ints) -> Ints:
    return np.asarray(ragged.starts[which + 1] - ragged.starts[which], np.int64)


def _ranges(firsts: Ints, lengths: Ints) -> Ints:
    """first, first + 1, … of each, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(firsts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
