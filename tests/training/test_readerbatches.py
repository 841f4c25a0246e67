"""Batches of a reader: what stands where, against plain loops; and that they depend on (seed, i) alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reader_toys import ReaderToy
from toys import CLS, SEP

from bpr.errors import InvalidInput
from bpr.training.readerbatches import Collate, Item, Schedule, Window, pairs


@pytest.mark.parametrize("window", [Window(96, 16), Window(20, 2), Window(96, 16, True)])
def test_sequences_are_what_plain_loops_make(reader_toy: ReaderToy, window: Window) -> None:
    data = reader_toy.data
    questions, passages = np.array([0, 7, 3, 3]), np.array([5, 5, 0, 11])
    batch = pairs(data, questions, passages, window)
    for text, (question, passage) in enumerate(zip(questions, passages, strict=True)):
        asked = data.questions[question][: window.question_length].tolist()
        read = data.passages[passage][: window.length - 3 - len(asked)].tolist()
        first, last = batch["starts"][text : text + 2].tolist()
        wanted = [CLS, *asked, SEP, *read, SEP]
        assert batch["ids"][first:last].tolist() == wanted and len(wanted) <= window.length
        assert batch["positions"][first:last].tolist() == [*range(len(wanted))]
        assert set(batch["text"][first:last].tolist()) == {text}
        assert batch["offsets"][text] == len(asked) + 2 and batch["ends"][text] == len(wanted) - 1
        assert batch["begins"][text] == len(asked) + 2 + min(int(data.texts[passage]), len(read))
        if window.token_types:
            assert batch["segments"][first:last].tolist() == [0] * (len(asked) + 2) + [1] * (len(read) + 1)
    assert (batch["segments"] is None) == (not window.token_types)
    assert batch["longest"] == int(batch["starts"].diff().max())


def test_a_batch_knows_its_positives_and_their_spans(reader_toy: ReaderToy) -> None:
    data, schedule = reader_toy.data, Schedule(reader_toy.data, 3, 1, 0)
    items = [schedule[i] for i in range(6)]
    items[2] = Item(items[2].question, items[2].passages[:2], items[2].spans)  # one with fewer negatives
    batch = Collate(data, Window(96, 16))(items)
    assert batch["places"].shape == (6, 4) and batch["places"][2].tolist() == [8, 9, -1, -1]
    for row, item in enumerate(items):
        text = int(batch["places"][row, 0])
        start = int(batch["starts"][text])
        first, last = batch["spans"][row, 0].tolist()
        answer = reader_toy.examples[item.question].answers[0]
        token = data.passages[int(item.passages[0])][int(item.spans[0][0])]
        assert batch["ids"][start + first] == token and first == last
        assert reader_toy.tokenizer and answer.startswith("w")
        assert batch["spans"][row, len(item.spans) :].eq(-1).all()
    only = Collate(data, Window(96, 16), first_only=True)(items)
    assert only["spans"].shape == (6, 1, 2) and only["spans"][:, 0].equal(batch["spans"][:, 0])


def test_spans_that_the_window_cuts_off_are_gone(reader_toy: ReaderToy) -> None:
    item = Item(0, np.array([0]), np.array([[3, 4], [8, 9], [9, 10]], np.uint16))
    asked = len(reader_toy.data.questions[0])
    batch = Collate(reader_toy.data, Window(3 + asked + 10, 16))([item])
    shown = batch["spans"][0][batch["spans"][0, :, 0] >= 0] - (asked + 2)
    assert shown.tolist() == [[3, 4], [8, 9]]


def test_items_depend_on_seed_and_number_alone(reader_toy: ReaderToy) -> None:
    one, other = Schedule(reader_toy.data, 3, 2, 0), Schedule(reader_toy.data, 3, 2, 0)
    later = [other[i] for i in (len(one) - 1, 40, 3)][::-1]
    for i, wanted in zip((3, 40, len(one) - 1), later, strict=True):
        assert one[i].question == wanted.question and np.array_equal(one[i].passages, wanted.passages)
    half = len(one) // 2
    assert sorted(one[i].question for i in range(half)) == sorted(one[i].question for i in range(half, len(one)))
    assert not any(reader_toy.data.held[one[i].question] for i in range(len(one)))
    assert [Schedule(reader_toy.data, 3, 1, 1)[i].question for i in range(9)] != [one[i].question for i in range(9)]
    for i in range(20):
        item = one[i]
        assert len({*item.passages.tolist()}) == len(item.passages) <= 4
        assert item.passages[0] in reader_toy.data.positives[item.question]
        assert {*item.passages[1:].tolist()} <= {*reader_toy.data.negatives[item.question].tolist()}


def test_nothing_to_learn_from(reader_toy: ReaderToy) -> None:
    everything = replace(reader_toy.data, held=np.ones_like(reader_toy.data.held))
    with pytest.raises(InvalidInput, match="nothing to learn from"):
        Schedule(everything, 3, 1, 0)
