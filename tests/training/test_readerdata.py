"""What a reader is trained on: which passages, which spans, and what training must never see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_toys import PASSAGES, ReaderToy

from bpr.errors import InvalidInput
from bpr.passages import DuplicateId
from bpr.training.data import Example
from bpr.training.readerdata import GLUED, INSIDE, LONGEST, SPANS, ReaderData, prepare, trec_rows
from tiny_models import PIECES, SPECIAL, WORDS, write_tokenizer

VOCABULARY = list(dict.fromkeys([*SPECIAL, *PIECES, *WORDS]))
TEXTS = [
    ("Troy", "Homer wrote the Iliad. Homers, homer!"),  # 0: gold; a homers that is no Homer
    ("Troy", "the war of Homer"),  # 1: the same article
    ("Sea", "Homer at sea"),  # 2: another article, with the answer
    ("Sea", "a ship, an island"),  # 3
    ("", "moon and sun"),  # 4
]


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path]:
    path = tmp_path / "p.jsonl"
    rows = ({"id": f"p{i}", "title": title, "text": text} for i, (title, text) in enumerate(TEXTS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path, write_tokenizer(tmp_path / "tokenizer.json")


def one(world: tuple[Path, Path], example: Example, rows: list[int], **options: Any) -> ReaderData:
    return prepare(world[0], [example], np.array([rows], np.int32), world[1], **{"held_share": 0.0, **options})


def in_file(data: ReaderData, numbers: Any) -> list[int]:
    return data.rows[np.asarray(numbers)].tolist()


def words(data: ReaderData, number: int) -> list[str]:
    return [VOCABULARY[token] for token in data.passages[number]]


def test_positives_are_of_the_gold_article_and_negatives_hold_no_answer(world: tuple[Path, Path]) -> None:
    data = one(world, Example("who wrote the iliad", ("Homer",), ("p0",)), [3, 2, 1, 4, -1])
    assert in_file(data, data.positives[0]) == [0, 1]  # the gold first; p2 has an answer but another title
    assert in_file(data, data.negatives[0]) == [3, 4]
    assert data.facts["train"] == 1 and data.facts["held"] == data.facts["without"] == 0
    assert sorted(data.rows.tolist()) == [0, 1, 3, 4]  # p2 is nowhere


def test_without_gold_every_passage_with_the_answer_is_positive(world: tuple[Path, Path]) -> None:
    data = one(world, Example("who", ("homer", "nobody")), [3, 2, 1])
    assert in_file(data, data.positives[0]) == [2, 1] and in_file(data, data.negatives[0]) == [3]


def test_spans_are_whole_words_of_the_text(world: tuple[Path, Path]) -> None:
    data = one(world, Example("who", ("Homer", "the  ILIAD"), ("p0",)), [3])
    gold = int(data.positives[0][0])
    shown, begin = words(data, gold), int(data.texts[gold])
    assert shown[:2] == ["troy", "[SEP]"] and begin == 2
    spans = data.spans[0].reshape(-1, 2)
    assert [" ".join(shown[first : last + 1]) for first, last in spans] == ["homer", "the iliad", "homer"]
    assert shown[int(spans[0][0])] == "homer" and int(spans[0][0]) == 2
    inside = (data.marks[: len(shown)] & INSIDE) > 0
    assert [each for each, mark in zip(shown, inside, strict=True) if mark] == ["##s"]
    glued = (data.marks[: len(shown)] & GLUED) > 0
    assert [each for each, mark in zip(shown, glued, strict=True) if mark] == [".", "##s", ",", "!"]


def test_an_answer_in_the_title_alone_is_no_span(world: tuple[Path, Path]) -> None:
    data = one(world, Example("where", ("troy",), ("p0",)), [3])
    assert len(data.positives[0]) == 0 and data.facts["without"] == 1


def test_no_more_than_so_many_spans_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "a", "title": "moon", "text": "homer " * 1000}) + "\n")
    tokenizer = write_tokenizer(tmp_path / "t.json")
    data = prepare(
        tmp_path / "p.jsonl", [Example("who", ("homer",), ("a",))], np.zeros((1, 0), int), tokenizer, held_share=0
    )
    assert len(data.spans[0]) == 2 * SPANS and len(data.passages[0]) == LONGEST


def test_held_and_reserved_passages_are_not_trained_on(world: tuple[Path, Path]) -> None:
    examples = [Example("who", ("Homer",), ("p0",), (), "troy"), Example("ship", ("island",), ("p3",), (), "sea")]
    rows = np.array([[3, 2, 4], [0, 1, 4]], np.int32)
    seen = []
    for seed in range(40):  # until each side was held out
        data = prepare(world[0], examples, rows, world[1], held_share=0.5, seed=seed)
        seen.append(tuple(data.held.tolist()))
        if seen[-1] == (True, False):
            assert in_file(data, data.retrieved[0]) == [3, 2, 4] and in_file(data, data.gold[0]) == [0]
            assert in_file(data, data.negatives[1]) == [1, 4]  # p0 is held out
            assert len(data.positives[0]) == len(data.negatives[0]) == len(data.retrieved[1]) == 0
            assert data.answers == {0: ["Homer"]}
    assert {(True, False), (False, True)} <= {*seen}
    data = prepare(world[0], examples[:1], rows[:1], world[1], held_share=0.0, reserved=examples[1:])
    assert in_file(data, data.negatives[0]) == [4]


def test_limits_of_depth_and_negatives(world: tuple[Path, Path]) -> None:
    example = Example("who", ("Homer",), ("p0",))
    assert in_file(*(lambda d: (d, d.negatives[0]))(one(world, example, [3, 4], depth=1))) == [3]
    assert in_file(*(lambda d: (d, d.negatives[0]))(one(world, example, [3, 3, 4], negatives=1))) == [3]


def test_it_is_kept_as_it_is(reader_toy: ReaderToy, tmp_path: Path) -> None:
    reader_toy.data.save(tmp_path / "data")
    again = ReaderData.load(tmp_path / "data")
    assert again.fingerprint() == reader_toy.data.fingerprint() and again.facts == reader_toy.data.facts
    assert again.answers == reader_toy.data.answers and again.passages.flat.dtype == np.uint16
    (tmp_path / "data" / "marks.npy").unlink()
    with pytest.raises(InvalidInput, match="is not data that `bpr prepare-reader` wrote"):
        ReaderData.load(tmp_path / "data")


def test_a_trec_run(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("2 Q0 p%201 1 3.0 x\n1 Q0 b 1 2.0 x\n2 Q0 b 2 1.0 x\n")
    found = trec_rows(tmp_path / "run")({"p 1": 0, "b": 1}, 3)
    assert found.tolist() == [[1, -1], [0, 1], [-1, -1]]
    for line in ("0 Q0 b 1 1 x", "4 Q0 b 1 1 x", "1 Q0 c 1 1 x", "1 b", "x Q0 b 1 1 x"):
        (tmp_path / "run").write_text(line + "\n")
        with pytest.raises(InvalidInput, match=r"line 1.*does not name one of the 3 examples"):
            trec_rows(tmp_path / "run")({"p 1": 0, "b": 1}, 3)


def test_what_is_refused(world: tuple[Path, Path], tmp_path: Path, reader_toy: ReaderToy) -> None:
    example = Example("who", ("Homer",), ("p9",))
    with pytest.raises(InvalidInput, match="names the passage 'p9', which the passages lack"):
        one(world, example, [1])
    fine = Example("who", ("Homer",), ("p0",))
    for wrong in (np.zeros((2, 3), int), np.zeros(3, int), np.zeros((1, 3)), np.array([[5]]), np.array([[-2]])):
        with pytest.raises(InvalidInput, match="what was retrieved"):
            prepare(world[0], [fine], wrong, world[1])
    (tmp_path / "twice.jsonl").write_text((json.dumps({"id": "a", "text": "x"}) + "\n") * 2)
    with pytest.raises(DuplicateId):
        prepare(tmp_path / "twice.jsonl", [fine], np.zeros((1, 1), int), world[1])
    assert len(reader_toy.data.rows) <= PASSAGES
