"""Texts as tokens and examples as numbers: nothing lost, nothing shifted, cut as the encoder cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from toys import CLS, PAD, SEP, VOCABULARY, WORDS, Toy, write_tokenizer

from bpr.errors import InvalidInput, StorageError
from bpr.training import prepared
from bpr.training.arrays import Ragged
from bpr.training.data import Example, hold_out
from bpr.training.prepared import FACTS, Prepared, prepare


def words_of(tokens: Any) -> list[str]:
    names = {number: word for word, number in VOCABULARY.items()}
    return [names[int(each)] for each in tokens]


def passages(path: Path, *texts: tuple[str, str]) -> Path:
    lines = [{"id": str(row), "title": title, "text": text} for row, (title, text) in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_text_and_number_is_in_its_place(toy: Toy) -> None:
    data = toy.data
    train, held = hold_out(toy.examples, 0.3)
    every = [*train, *held]
    assert len(data.questions) == len(every) == 180 and 0 < data.held.sum() == len(held) < 180
    assert not data.held[: len(train)].any()
    for i, example in enumerate(every):
        assert words_of(data.questions[i]) == example.question.split()
        assert [f"p{row}" for row in data.positives[i]] == list(example.positives)
        assert [f"p{row}" for row in data.negatives[i]] == list(example.negatives)
    for row, line in enumerate(toy.passages.read_text().splitlines()):
        passage = json.loads(line)
        assert words_of(data.titles[row]) == [passage["title"]]
        assert words_of(data.texts[row]) == passage["text"].split()
    hidden = {row for example in held for row in example.positives}
    assert {f"p{row}" for row in np.flatnonzero(~data.trainable)} == hidden
    assert data.facts["ends"] == [VOCABULARY[mark] for mark in ".!?"]
    assert (data.facts["cls"], data.facts["sep"], data.facts["pad"]) == (CLS, SEP, PAD)
    assert (data.facts["passages"], data.facts["train"], data.facts["held"]) == (60, len(train), len(held))


def test_blocks_do_not_matter(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "BLOCK", 20)
    assert prepare(toy.passages, toy.examples, toy.tokenizer, held_share=0.3).fingerprint() == toy.data.fingerprint()


def test_reserved_examples_hide_their_passages_from_training(toy: Toy) -> None:
    test = [Example("w1", positives=("p5", "p7"))]
    data = prepare(toy.passages, toy.examples, toy.tokenizer, reserved=test)
    assert list(np.flatnonzero(~data.trainable)) == [5, 7] and not data.held.any()


def test_a_folder_gives_back_what_was_saved(toy: Toy, tmp_path: Path) -> None:
    toy.data.save(tmp_path / "data")
    back = Prepared.load(tmp_path / "data")
    assert back.facts == toy.data.facts and back.fingerprint() == toy.data.fingerprint()
    for name in Prepared.RAGGED:
        ours, theirs = getattr(toy.data, name), getattr(back, name)
        assert len(ours) == len(theirs) and ours.flat.dtype == theirs.flat.dtype
        assert all(np.array_equal(ours[i], theirs[i]) for i in range(len(ours)))
    assert np.array_equal(back.held, toy.data.held) and np.array_equal(back.trainable, toy.data.trainable)


def test_the_fingerprint_is_of_all_arrays(toy: Toy) -> None:
    whole = toy.data.fingerprint()
    for name in (*Prepared.RAGGED, "held", "trainable"):
        parts = dict(vars(toy.data))
        if name in Prepared.RAGGED:
            flat = parts[name].flat.copy()
            flat[-1] += 1
            parts[name] = Ragged(flat, parts[name].starts)
        else:
            parts[name] = ~parts[name]
        assert Prepared(**parts).fingerprint() != whole, name


@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "facts", "absent"])
def test_a_folder_that_is_not_whole_is_refused(toy: Toy, tmp_path: Path, harm: str) -> None:
    if harm != "absent":
        toy.data.save(tmp_path)
    if harm == "missing":
        (tmp_path / "texts.starts.npy").unlink()
    if harm == "empty":
        (tmp_path / "held.npy").write_bytes(b"")
    if harm == "cut":
        (tmp_path / "questions.npy").write_bytes((tmp_path / "questions.npy").read_bytes()[:50])
    if harm == "facts":
        (tmp_path / FACTS).write_text("{")
    with pytest.raises(InvalidInput, match="is not training data"):
        Prepared.load(tmp_path if harm != "absent" else tmp_path / "nowhere")


def test_a_disk_that_says_no(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        toy.data.save(tmp_path / "file")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example("who", positives=("p1", "nobody")), "names the passage 'nobody'"),
        (Example("who", positives=("p1",), negatives=("nobody",)), "names the passage 'nobody'"),
        (Example("who", answers=("me",)), "has no positives"),
    ],
)
def test_examples_that_cannot_be_learned(toy: Toy, example: Example, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        prepare(toy.passages, [example], toy.tokenizer)


def test_an_id_that_stands_twice_is_an_error(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text("".join(json.dumps({"id": each, "text": "w1"}) + "\n" for each in "abca"))
    with pytest.raises(InvalidInput, match="lines 1 and 4: the id 'a' stands twice"):
        prepare(path, [], toy.tokenizer)


def test_tokenizers_that_do_not_fit(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a tokenizer"):
        prepare(toy.passages, [], tmp_path / "none.json")
    Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save(str(tmp_path / "plain.json"))
    with pytest.raises(InvalidInput, match=r"has no \[CLS\], \[SEP\] and \[PAD\]"):
        prepare(toy.passages, [], tmp_path / "plain.json")


@pytest.mark.parametrize("longest", [8, 9, 16, 17])
def test_cutting_is_what_tokenizers_do(tmp_path: Path, longest: int) -> None:
    """[CLS] title [SEP] text [SEP] with longest_first, for all lengths around the limit."""
    sizes = range(longest + 3)
    texts = [(" ".join(WORDS[:title]), " ".join(WORDS[100 : 100 + text])) for title in sizes for text in sizes[1:]]
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    source = passages(tmp_path / "passages.jsonl", *texts)
    examples = [Example(text, positives=(str(row),)) for row, (_, text) in enumerate(texts)]
    data = prepare(source, examples, tokenizer)
    real = Tokenizer.from_file(str(tokenizer))
    real.enable_truncation(longest, strategy="longest_first")
    for row, (title, text) in enumerate(texts):
        pair = real.encode(title, text) if title else real.encode(text)
        assert data.passage(row, longest).tolist() == pair.ids, (len(title.split()), len(text.split()))
        assert data.passage(row, longest, titled=False).tolist() == real.encode(text).ids
        assert data.question(row, longest).tolist() == real.encode(text).ids


def test_long_texts_and_progress(tmp_path: Path) -> None:
    source = passages(tmp_path / "passages.jsonl", ("w1", "w2 " * 100_000), ("", "w3"))
    said: list[tuple[str, int, int | None]] = []
    data = prepare(
        source,
        [Example("w4 " * 1000, positives=("0",))],
        write_tokenizer(tmp_path / "tokenizer.json"),
        progress=lambda *what: said.append(what),
    )
    assert len(data.texts[0]) == len(data.questions[0]) == 512 and len(data.titles[1]) == 0
    assert len(data.passage(0, 300)) == 300
    assert said == [("cutting passages into tokens", 2, None), ("cutting questions into tokens", 1, 1)]
