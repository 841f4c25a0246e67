"""What each step is made of: reproducible, complete, and blind to what is held out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import CLS, PAD, SEP, VOCABULARY, Toy, write_tokenizer

from bpr.errors import InvalidInput
from bpr.training.batches import Collate, Diet, Item, Schedule, padded, sentence
from bpr.training.data import Example
from bpr.training.prepared import prepare

DIET = Diet(hard=2, random=1, pairs=0.5, titles=0.5, question_length=16, passage_length=32)


def same(one: Item, other: Item) -> bool:
    return all(
        len(getattr(one, name)) == len(getattr(other, name))
        and all(np.array_equal(a, b) for a, b in zip(getattr(one, name), getattr(other, name), strict=True))
        for name in ("questions", "owned", "passages", "rows", "real", "made")
    )


def test_an_item_is_a_function_of_seed_and_place_alone(toy: Toy) -> None:
    forwards, backwards = Schedule(toy.data, DIET, 3, 5), Schedule(toy.data, DIET, 3, 5)
    ahead = [forwards[i] for i in range(len(forwards))]
    for i in reversed(range(len(backwards))):
        assert same(ahead[i], backwards[i])
    longer = Schedule(toy.data, DIET, 30, 5)
    assert all(same(ahead[i], longer[i]) for i in range(0, len(forwards), 7))
    other = Schedule(toy.data, DIET, 3, 6)
    assert not all(same(ahead[i], other[i]) for i in range(20))


def test_every_epoch_is_a_permutation_of_the_questions_that_are_not_held_out(toy: Toy) -> None:
    schedule = Schedule(toy.data, DIET, 3, 0)
    train = int((~toy.data.held).sum())
    wanted = Counter(tuple(toy.data.question(i, 16)) for i in np.flatnonzero(~toy.data.held))
    orders = []
    for epoch in range(3):
        asked = [tuple(schedule[epoch * train + i].questions[0]) for i in range(train)]
        assert Counter(asked) == wanted
        orders.append(asked)
    assert len(schedule) == 3 * train
    assert orders[0] != orders[1] != orders[2]


def test_what_is_held_out_never_appears(toy: Toy) -> None:
    """Not even as a positive of another group's question."""
    shared = Example("w7 w8 w9", positives=("p3", "p40"), negatives=("p4",), group="other")
    lost = Example("w9 w9 w9", positives=("p3",), group="other")
    held = Example("w1 w2 w3", positives=("p3", "p5"), group="held")
    data = prepare(toy.passages, [*toy.examples[60:90], shared, lost], toy.tokenizer, reserved=[held])
    assert list(np.flatnonzero(~data.trainable)) == [3, 5]
    schedule = Schedule(data, replace(DIET, pairs=1.0), 20, 1)
    items = [schedule[i] for i in range(len(schedule))]
    assert len(schedule) == 20 * 31  # all but the lost one
    seen = {row for item in items for row in item.rows}
    assert seen == set(range(60)) - {3, 5}
    asked = tuple(data.question(30, 16))
    positives = {item.rows[0] for item in items if tuple(item.questions[0]) == asked}
    assert positives == {40}
    assert next(item for item in items if tuple(item.questions[0]) == asked).owned[0] == [3, 40]


def test_held_out_questions_and_their_passages_never_appear(toy: Toy) -> None:
    schedule = Schedule(toy.data, replace(DIET, pairs=1.0), 10, 2)
    hidden = set(np.flatnonzero(~toy.data.trainable))
    held = {tuple(toy.data.question(i, 16)) for i in np.flatnonzero(toy.data.held)}
    for i in range(len(schedule)):
        item = schedule[i]
        assert not hidden & {*item.rows}
        assert not held & {tuple(each) for each in item.questions}


def test_what_an_item_is_made_of(toy: Toy) -> None:
    schedule = Schedule(toy.data, replace(DIET, hard_pool=2, titles=1.0, pairs=0.0), 5, 3)
    by_question = {tuple(toy.data.question(i, 16)): i for i in range(len(toy.data.questions))}
    for i in range(len(schedule)):
        item = schedule[i]
        question = by_question[tuple(item.questions[0])]
        own = [int(row) for row in toy.data.positives[question]]
        assert item.owned == [own] and item.real == [True] and item.rows[0] in own
        assert len(item.rows) == len(item.passages) == 4  # a positive, two hard or random ones, one random one
        assert not {*own} & {*item.rows[1:]}
        pool = [int(row) for row in toy.data.negatives[question][:2] if toy.data.trainable[row]]
        assert {*item.rows[1 : 1 + len(pool)]} == {*pool}
        for row, tokens in zip(item.rows, item.passages, strict=True):
            assert np.array_equal(tokens, toy.data.passage(row, 32))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_pairs_share(toy: Toy, share: float) -> None:
    schedule = Schedule(toy.data, replace(DIET, pairs=share), 8, 0)
    made = sum(len(schedule[i].questions) - 1 for i in range(len(schedule)))
    assert made == int(len(schedule) * share)  # every toy passage has a sentence to ask with


def test_a_passage_of_one_sentence_makes_no_pair(tmp_path: Path) -> None:
    source = tmp_path / "passages.jsonl"
    source.write_text('{"id": "a", "text": "w1 w2 w3 w4 w5 w6 w7 w8 ."}\n{"id": "b", "text": "w9"}\n')
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    data = prepare(source, [Example("w1", positives=("a",))], tokenizer)
    assert Schedule(data, replace(DIET, pairs=1.0), 1, 0)[0].real == [True]


def test_a_made_up_pair_is_a_sentence_and_its_passage(toy: Toy) -> None:
    schedule = Schedule(toy.data, replace(DIET, pairs=1.0, passage_length=64, titles=0.0), 4, 0)
    kept = 0
    for i in range(len(schedule)):
        item = schedule[i]
        asked, shown, row = item.questions[1], item.passages[1], item.rows[1]
        assert item.owned[1] == [row] and item.real == [True, False] and len(item.passages) == 1 + 1 + 3
        text, span = list(toy.data.texts[row]), [int(each) for each in asked[1:-1]]
        at = next(a for a in range(len(text)) if text[a : a + len(span)] == span)
        whole = list(shown[1:-1]) == text
        kept += whole
        assert whole or list(shown[1:-1]) == text[:at] + text[at + len(span) :]
        assert (asked[0], asked[-1]) == (CLS, SEP)
    assert 0 < kept < len(schedule) / 4  # about a tenth


def test_a_made_up_pair_brings_neighbours_of_its_article(tmp_path: Path) -> None:
    lines = [
        {
            "id": str(i),
            "title": f"w{i // 4}",
            "text": " ".join(f"w{(i * 7 + j) % 40}" for j in range(8)) + " . w1 w2 w3 w4 w5 w6 .",
        }
        for i in range(12)
    ]
    source = tmp_path / "passages.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    held = Example("w3", positives=("1",), group="held")
    data = prepare(source, [Example("w1", positives=("8",))] * 8, write_tokenizer(tmp_path / "t.json"), reserved=[held])
    schedule = Schedule(data, replace(DIET, hard=0, random=1, pairs=1.0, neighbours=2), 5, 0)
    for i in range(len(schedule)):
        item = schedule[i]
        asked, near = item.rows[1], item.rows[3:]
        assert item.made == [False, True, False, *[True] * len(near)] and len(item.passages) == len(item.rows)
        assert len(set(near)) == len(near) == 2 and asked not in near and 1 not in near
        assert {row // 4 for row in near} == {asked // 4}
    whole = Collate(PAD)([schedule[0], schedule[1]])
    assert whole["made"].tolist() == [False, True, False, True, False, True, True, False, True, True]
    assert whole["rows"].tolist()[:4] == [*schedule[0].rows[:2], *schedule[1].rows[:2]]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_titles_share(toy: Toy, share: float) -> None:
    schedule = Schedule(toy.data, replace(DIET, titles=share), 6, 0)
    shown = []
    for i in range(len(schedule)):
        item = schedule[i]
        n = len(item.questions)
        for row, tokens in zip(item.rows[:1] + item.rows[n:], item.passages[:1] + item.passages[n:], strict=True):
            shown.append(list(tokens[1:3]) == [int(toy.data.titles[row][0]), SEP])
    assert np.mean(shown) == pytest.approx(share, abs=0.05)


def test_sentences() -> None:
    end, dice = VOCABULARY["."], np.random.default_rng(0)
    text = np.array([*range(20, 27), end, 30, 31, end, *range(40, 48), end])
    found = {sentence(text, [end], dice) for _ in range(50)}
    assert found == {(0, 8), (11, 20)}  # not the one of three tokens
    assert sentence(text[:8], [end], dice) is None  # nothing else would be left
    assert sentence(np.array([end] * 20), [end], dice) is None
    assert sentence(np.array([], int), [end], dice) is None


def test_collated_items(toy: Toy) -> None:
    data = toy.data
    schedule = Schedule(data, replace(DIET, pairs=0.5), 1, 4)
    items = [schedule[i] for i in range(6)]
    batch = Collate(PAD)(items)
    questions = [each for item in items for each in item.questions]
    own = [row for item in items for row in item.rows[: len(item.questions)]]
    others = [row for item in items for row in item.rows[len(item.questions) :]]
    assert batch["rows"].tolist() == own + others
    assert batch["positive"].tolist() == list(range(len(questions))) and len(questions) == 9
    assert batch["real"].tolist() == [each for item in items for each in item.real]
    for i, each in enumerate(questions):
        assert batch["question_ids"][i, : len(each)].tolist() == each.tolist()
        assert batch["question_mask"][i].sum() == len(each) and (batch["question_ids"][i, len(each) :] == PAD).all()
    for i, rows in enumerate(rows for item in items for rows in item.owned):
        kept = batch["owned"][i]
        assert kept[kept >= 0].tolist() == rows
    passages = [each for item in items for each in item.passages[: len(item.questions)]]
    passages += [each for item in items for each in item.passages[len(item.questions) :]]
    for i, each in enumerate(passages):
        assert batch["passage_ids"][i][batch["passage_mask"][i].bool()].tolist() == each.tolist()


def test_padding_goes_up_to_a_multiple() -> None:
    ids, mask = padded([np.array([1, 2, 3]), np.arange(9)], pad=7)
    assert ids.shape == mask.shape == (2, 16) and ids.dtype == torch.int64
    assert ids[0].tolist() == [1, 2, 3] + [7] * 13 and mask.sum(1).tolist() == [3, 9]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hard": -1}, "0 or more"),
        ({"hard_pool": 0}, "hard_pool 1 or more"),
        ({"pairs": 1.5}, "pairs must be between 0 and 1"),
        ({"titles": -0.1}, "titles must be between 0 and 1"),
        ({"passage_length": 2}, "at least 8 tokens"),
    ],
)
def test_diets_that_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Diet(**settings)  # type: ignore[arg-type]


def test_too_few_passages_to_draw_from(toy: Toy) -> None:
    every = tuple(f"p{row}" for row in range(60))
    data = prepare(toy.passages, [Example("w1", positives=every)], toy.tokenizer)
    with pytest.raises(InvalidInput, match="60 passages are left for training: too few"):
        Schedule(data, DIET, 1, 0)
