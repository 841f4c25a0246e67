"""What a float reader reads: the same as the reader that serves, and EM and F1 as evaluation.py has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bpr.errors import InvalidInput, StorageError
from bpr.reader import Reader
from bpr.records import Passage
from bpr.spans import Mix
from bpr.training import reader as float_reader
from bpr.training.data import Example
from bpr.training.readerbatches import Window
from bpr.training.readerdata import ReaderData, prepare
from bpr.training.readings import Readings, Texts, gold, judge, plain, read, retrieved
from tiny_models import WORDS, make_reader

RANDOM = np.random.default_rng(2)
TEXTS = [" ".join(RANDOM.choice([*WORDS, "homers,", "moon-sun", "3,1."], 25)) for _ in range(12)]
QUESTIONS = [" ".join(RANDOM.choice(WORDS, 5)) for _ in range(6)]
WINDOW = Window(96, 16)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReaderData]:
    """A reader whose graph is float32, and data whose questions are all held out."""
    folder = tmp_path_factory.mktemp("readings")
    make_reader(folder / "reader", int8=False)
    rows = [{"id": f"p{i}", "title": "" if i % 3 else "Troy", "text": text} for i, text in enumerate(TEXTS)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = [Example(each, (TEXTS[i].split()[3],), (f"p{i}",)) for i, each in enumerate(QUESTIONS)]
    ranked = np.array([[(i + step) % 12 for step in range(5)] for i in range(6)], np.int32)
    ranked[2, 3:] = -1
    data = prepare(folder / "p.jsonl", examples, ranked, folder / "reader" / "tokenizer.json", held_share=1.0)
    return folder / "reader", data


def passages_of(data: ReaderData, numbers: np.ndarray) -> list[Passage]:
    rows = [int(data.rows[number]) for number in numbers if number >= 0]
    return [Passage(f"p{row}", "" if row % 3 else "Troy", TEXTS[row]) for row in rows]


def test_torch_reads_what_the_serving_reader_reads(world: tuple[Path, ReaderData]) -> None:
    folder, data = world
    network, _ = float_reader.load(folder)
    serving, questions = Reader.open(folder), np.arange(6)
    found = read(network, data, questions, retrieved(data, questions, 5), WINDOW)
    texts = Texts(data, folder / "tokenizer.json")
    assert (found.passages[2] >= 0).tolist() == [True] * 3 + [False] * 2
    for row, question in enumerate(QUESTIONS):
        passages = passages_of(data, found.passages[row])
        wanted = serving.read(question, passages)
        ours = texts.answers(found, row, 5, Mix())
        theirs = serving.answers(wanted, passages, 3)
        assert [each.text for each in ours[:3]] == [each.text.lower() for each in theirs]
        np.testing.assert_allclose([each.probability for each in ours[:3]], [a.confidence for a in theirs], rtol=1e-3)
        known = judge(found, data, texts, 5).known[row]
        probability, score, span = serving.known(wanted, passages)
        np.testing.assert_allclose(known[1:], [np.log(probability / (1 - probability)), score, span], rtol=2e-3)


def test_fewer_passages_and_the_gold_alone(world: tuple[Path, ReaderData]) -> None:
    folder, data = world
    network, _ = float_reader.load(folder)
    network.train()
    questions = np.arange(6)
    found = read(network, data, questions, retrieved(data, questions, 5), WINDOW)
    assert network.training
    alone = read(network, data, questions, gold(data, questions), WINDOW)
    texts = Texts(data, folder / "tokenizer.json")
    one, own = judge(found, data, texts, 1), judge(alone, data, texts, 1)  # the gold stands first
    assert np.array_equal(one.exact, own.exact) and np.allclose(one.f1, own.f1)
    assert own.summary() == {"em": 100 * own.exact.mean(), "f1": 100 * own.f1.mean()}


def test_right_answers_are_right(world: tuple[Path, ReaderData]) -> None:
    folder, data = world
    network, _ = float_reader.load(folder)
    questions, texts = np.arange(6), Texts(data, folder / "tokenizer.json")
    found = read(network, data, questions, retrieved(data, questions, 5), WINDOW)
    best = {row: texts.answers(found, row, 5, Mix())[0].text for row in range(6)}
    right = replace(data, answers={row: ["wrong", best[row].upper() if row % 2 else "nobody"] for row in range(6)})
    judged = judge(found, right, texts, 5)
    assert judged.exact.tolist() == [False, True] * 3 and (judged.f1[1::2] == 1).all()
    assert judged.calibration().share >= 0


def test_texts_are_put_together_as_they_stand(world: tuple[Path, ReaderData]) -> None:
    folder, data = world
    texts = Texts(data, folder / "tokenizer.json")
    for number, row in enumerate(data.rows.tolist()):
        begin, size = int(data.texts[number]), len(data.passages[number])
        assert texts.text(number, begin, size - 1) == TEXTS[row].lower()
    assert plain("Ångström Café") == "angstrom cafe"


def test_readings_are_kept(world: tuple[Path, ReaderData], tmp_path: Path) -> None:
    folder, data = world
    network, _ = float_reader.load(folder)
    said: list[tuple[str, int, int | None]] = []
    questions = np.arange(3)
    found = read(network, data, questions, retrieved(data, questions, 2), WINDOW, lambda *told: said.append(told))
    assert said[-1] == ("reading", 6, 6)
    found.save(tmp_path / "r.npz")
    again = Readings.load(tmp_path / "r.npz")
    assert all(np.array_equal(getattr(found, name), getattr(again, name)) for name in vars(found))
    (tmp_path / "x.npz").write_bytes(b"no")
    with pytest.raises(InvalidInput, match="holds no readings"):
        Readings.load(tmp_path / "x.npz")
    with pytest.raises(StorageError):
        found.save(tmp_path / "none" / "r.npz")


def test_a_question_without_passages_has_no_answer(world: tuple[Path, ReaderData]) -> None:
    folder, data = world
    network, _ = float_reader.load(folder)
    found = read(network, data, np.arange(2), np.full((2, 3), -1, np.int32), WINDOW)
    judged = judge(found, data, Texts(data, folder / "tokenizer.json"), 3)
    assert not judged.exact.any() and not judged.f1.any() and judged.known.shape == (2, 4)
