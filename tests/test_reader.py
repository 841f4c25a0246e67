"""Answers: what is read, where it stands, what is merged, and what cannot be answered."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import reader as readers
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput, UnsupportedFormat
from bpr.kernels import Cancel
from bpr.reader import MOST_WINDOWS, Found, Reader, ReaderModel
from bpr.records import Answer, Passage
from bpr.spans import Calibration
from tiny_models import CLS, SEP, WORDS, make_reader

RANDOM = np.random.default_rng(3)
PASSAGES = [Passage(f"p{row}", "" if row % 3 else "Iliad", " ".join(RANDOM.choice(WORDS, 20))) for row in range(12)]


class Graph:
    """Stands in for the network: a token's logits are what a test says."""

    name, inputs, outputs = "fake", {"input_ids"}, ["logits"]

    def __init__(self, logits: Callable[[list[int]], list[tuple[float, float, float]]]) -> None:
        self.logits, self.seen = logits, []

    def run(self, output: str, ids: Any, segments: Any) -> Any:
        assert output == "logits"
        self.seen.append((ids.tolist(), segments.tolist()))
        return np.array(self.logits(ids.tolist()), np.float32)


@pytest.fixture
def reader(tiny_reader: Path) -> Reader:
    return Reader.open(tiny_reader)


def number(word: str) -> int:
    from tiny_models import PIECES, SPECIAL

    return list(dict.fromkeys([*SPECIAL, *PIECES, *WORDS])).index(word)


def likes(*words: str, score: float = 0.0) -> Graph:
    """A network that starts and ends answers at these words."""
    wanted = {number(word) for word in words}
    return Graph(lambda ids: [(9.0 if each in wanted else 0.0,) * 2 + (score,) for each in ids])


def faked(reader: Reader, graph: Graph) -> Reader:
    reader._graph = graph
    return reader


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ["bpr", "onnxruntime"])
def test_answers_cut_exactly_their_text(tiny_reader: Path, engine: str) -> None:
    reader = Reader.open(tiny_reader, engine=engine)
    assert reader.engine.startswith(engine)
    answers = reader.answer("who wrote the iliad", PASSAGES, 5)
    assert len(answers) == 5 and len({each.text for each in answers}) == 5
    for each in answers:
        assert isinstance(each, Answer) and each.passage in PASSAGES
        assert each.text and each.passage.text[each.start : each.end] == each.text
        assert len(each.text.split()) <= 10
    confidences = [each.confidence for each in answers]
    assert confidences == sorted(confidences, reverse=True) and 0 < confidences[-1] <= confidences[0] < 1
    assert json.loads(json.dumps(answers[0].to_dict()))["passage"]["id"] == answers[0].passage.id


def test_what_is_read(reader: Reader) -> None:
    graph = likes("homer")
    passages = [Passage("a", "Iliad", "Homer, king"), Passage("b", "", "moon")]
    faked(reader, graph).answer("who wrote", passages, threads=1)
    who, wrote, iliad, homer, comma, king, moon = map(number, ["who", "wrote", "iliad", "homer", ",", "king", "moon"])
    assert [ids for ids, _ in graph.seen] == [
        [CLS, who, wrote, SEP, iliad, SEP, homer, comma, king, SEP],
        [CLS, who, wrote, SEP, moon, SEP],
    ]
    assert graph.seen[0][1] == [0] * 4 + [1] * 6


def test_threads_and_batches_do_not_change_an_answer(reader: Reader) -> None:
    one = reader.answer("who wrote the iliad", PASSAGES, 3, threads=1)
    assert reader.answer("who wrote the iliad", PASSAGES, 3, threads=4) == one


def test_passages_that_give_the_same_text_are_one_answer(reader: Reader) -> None:
    passages = [Passage("a", "", "moon Homer!"), Passage("b", "", "sun"), Passage("c", "", "the homer")]
    graph = likes("homer", "sun")
    answers = faked(reader, graph).answer("who", passages, 9)
    assert answers[0].text == "homer" and answers[0].passage.id == "c"  # of fewer tokens, so the surer of the two
    assert "Homer" not in [each.text for each in answers]
    alone = faked(reader, graph).answer("who", passages[:2], 9)
    share = {each.text: each.confidence for each in alone}
    assert answers[0].confidence > share["Homer"]


def test_the_passage_s_score_counts(reader: Reader) -> None:
    moon = number("moon")
    graph = Graph(lambda ids: [(1.0, 1.0, 4.0 if moon in ids else 0.0) for _ in ids])
    (best,) = faked(reader, graph).answer("who", [Passage("a", "", "sun"), Passage("b", "", "moon")])
    assert best.passage.id == "b" and best.confidence > 0.9


def test_no_answer_below_the_threshold(reader: Reader) -> None:
    answers = reader.answer("who wrote the iliad", PASSAGES, 2)
    assert reader.answer("who wrote the iliad", PASSAGES, 2, least=answers[0].confidence + 1e-9) == []
    assert reader.answer("who wrote the iliad", PASSAGES, 2, least=answers[1].confidence + 1e-9) == answers[:1]
    reader.model = replace(reader.model, threshold=1.0)
    assert reader.answer("who wrote the iliad", PASSAGES) == []
    assert len(reader.answer("who wrote the iliad", PASSAGES, least=0.0)) == 1


def test_the_calibration_is_the_folder_s(tmp_path: Path, tiny_reader: Path) -> None:
    make_reader(tmp_path / "r", calibration=Calibration(bias=-3.0), threshold=0.25, passages=7)
    sure, unsure = (
        Reader.open(folder).answer("who", PASSAGES[:1], least=0.0)[0] for folder in (tiny_reader, tmp_path / "r")
    )
    assert unsure.text == sure.text and unsure.confidence < sure.confidence
    model = Reader.open(tmp_path / "r").model
    assert (model.threshold, model.passages, model.calibration.bias) == (0.25, 7, -3.0)


@pytest.mark.parametrize("accent", ["\u0301", "\u0301\u0323", "\u0308"])
def test_a_letter_keeps_its_accents(reader: Reader, accent: str) -> None:
    text = f"moon homer{accent} sun"
    (best,) = faked(reader, likes("homer")).answer("who", [Passage("a", "", text)])
    assert best.text == f"homer{accent}" == text[best.start : best.end]


def test_pieces_of_a_word_are_no_answer(reader: Reader) -> None:
    (best,) = faked(reader, likes("homer")).answer("who", [Passage("a", "", "Homering sun")])
    assert best.text in ("Homering", "Homering sun")


# ── Long passages ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_passage_is_read_in_windows_that_overlap(reader: Reader) -> None:
    text = " ".join(["moon"] * 200 + ["homer"] + ["sun"] * 50)
    graph = likes("homer")
    (best,) = faked(reader, graph).answer("who wrote", [Passage("a", "", text)], threads=1)
    assert best.text == "homer" and text[best.start : best.end] == "homer"
    assert len(graph.seen) > 3 and all(len(ids) <= 96 for ids, _ in graph.seen)


def test_an_answer_across_the_end_of_a_window_is_found_in_the_next(reader: Reader) -> None:
    room = reader.model.room(2, 0)
    words = ["moon"] * (room - 2) + ["king", "of", "the", "sea"] + ["moon"] * 40
    starts, ends = number("king"), number("sea")
    graph = Graph(lambda ids: [(9.0 if each == starts else 0.0, 9.0 if each == ends else 0.0, 0.0) for each in ids])
    (best,) = faked(reader, graph).answer("who wrote", [Passage("a", "", " ".join(words))])
    assert best.text == "king of the sea"


def test_what_two_windows_share_counts_once(reader: Reader) -> None:
    room = reader.model.room(2, 0)
    words = ["moon"] * (room - 5) + ["homer"] + ["sun"] * 30
    found = faked(reader, likes("homer")).read("who wrote", [Passage("a", "", " ".join(words))])
    places = [(each.passage, each.start, each.end) for each in found]
    assert len(places) == len(set(places))


def test_of_a_book_the_first_windows_are_read(reader: Reader) -> None:
    graph = likes("homer")
    text = "moon " * 100_000 + "homer"
    began = time.perf_counter()
    answers = faked(reader, graph).answer("who wrote", [Passage("a", "", text)])
    assert len(graph.seen) == MOST_WINDOWS and answers[0].text != "homer" and time.perf_counter() - began < 5


def test_a_word_that_the_window_cuts_is_no_answer(reader: Reader) -> None:
    long = "zzzz" * 20  # eighty pieces, and a span has 48
    found = faked(reader, likes("homer")).read("who", [Passage("a", "", long)])
    assert found == [] and reader.answer("who", [Passage("a", "", long)]) == []


# ── Bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("question", ["", "  \n\t", "\u200b"])
def test_a_question_without_tokens(reader: Reader, question: str) -> None:
    with pytest.raises(InvalidInput, match="holds no words"):
        reader.answer(question, PASSAGES)


def test_blanks_before_a_question_and_a_passage(reader: Reader) -> None:
    """SQuAD has a question with ten thousand of them."""
    blanks, plain = " " * 10_000, Passage("a", "", "homer wrote the iliad")
    (far,) = reader.answer(f"{blanks}who wrote", [Passage("a", "", blanks + plain.text)], 1)
    (near,) = reader.answer("who wrote", [plain], 1)
    assert (far.text, far.start, far.confidence) == (near.text, near.start + len(blanks), near.confidence)


def test_no_passages_and_empty_ones(reader: Reader) -> None:
    assert reader.answer("who", []) == []
    assert reader.answer("who", [Passage("a", "", ""), Passage("b", "Iliad", " ")]) == []
    (best,) = reader.answer("who", [Passage("a", "", ""), Passage("b", "", "homer")])
    assert best.passage.id == "b"


def test_wrong_types_and_half_characters(reader: Reader) -> None:
    with pytest.raises(InvalidInput, match="the question must be a string, not int"):
        reader.answer(3, PASSAGES)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="text of passage 0 has half a surrogate pair"):
        reader.answer("who", [Passage("a", "", "x\ud800")])
    with pytest.raises(InvalidInput, match="n must be at least 1"):
        reader.answer("who", PASSAGES, 0)


def test_a_question_that_is_too_long_is_cut(reader: Reader) -> None:
    graph = likes("homer")
    faked(reader, graph).answer("moon " * 500, [Passage("a", "", "homer")])
    assert graph.seen[0][0].count(number("moon")) == reader.model.question_length


def test_deadline_and_cancel(reader: Reader) -> None:
    with pytest.raises(DeadlineExceeded):
        reader.answer("who", PASSAGES, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        reader.answer("who", PASSAGES, cancel=cancel)


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_folders_that_hold_no_reader(tmp_path: Path, tiny_reader: Path, tiny_model: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no reader: there is no reader\.json"):
        Reader.open(tmp_path)
    folder = tmp_path / "r"
    shutil.copytree(tiny_reader, folder)
    facts = json.loads((folder / "reader.json").read_text())

    def tried(change: dict[str, Any]) -> Reader:
        (folder / "reader.json").write_text(json.dumps({**facts, **change}))
        return Reader.open(folder)

    with pytest.raises(InvalidInput, match="does not describe a reader"):
        tried({"format": "x"})
    with pytest.raises(UnsupportedFormat, match="version 9"):
        tried({"version": 9})
    for change in ({"length": "long"}, {"length": 50}, {"mix": 3}, {"calibration": {"slope": 1}}, {"files": {"a": {}}}):
        with pytest.raises(InvalidInput, match="is not what `bpr train-reader` writes"):
            tried(change)
    with pytest.raises(InvalidInput, match=r"has no reader\.onnx"):
        tried({"files": {name: each for name, each in facts["files"].items() if name != "reader.onnx"}})
    with pytest.raises(InvalidInput, match=r"reader\.onnx is not the file that reader\.json describes"):
        tried({"files": {**facts["files"], "reader.onnx": {"bytes": 1, "sha256": ""}}})
    (folder / "reader.json").write_text("{")
    with pytest.raises(InvalidInput, match="is not JSON"):
        Reader.open(folder)
    shutil.copyfile(tiny_model / "passage.onnx", folder / "reader.onnx")
    readers.save_model(folder, readers.load_model(tiny_reader)[0], ["reader.onnx", "tokenizer.json"])
    with pytest.raises(InvalidInput, match="is not the graph of a reader"):
        Reader.open(folder)


def test_models_that_cannot_be() -> None:
    for wrong in ({"length": 100}, {"question_length": 0}, {"passages": 0}, {"threshold": 1.5}):
        with pytest.raises(InvalidInput):
            ReaderModel("x", **wrong)
    assert ReaderModel("x").room(10, 0) == 337 and ReaderModel("x").room(10, 5) == 331
    assert Found(0, 1, 2, 0.0, 0.0, 0.0).end == 2


# ── With a retriever ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "a.bpr"
    rows = [{"id": each.id, "title": each.title, "text": each.text, "row": row} for row, each in enumerate(PASSAGES)]
    bpr.build(rows, path, model=tiny_model)
    return path


def test_the_retriever_answers(bundle: Path, tiny_reader: Path) -> None:
    with bpr.open(bundle, reader=tiny_reader) as retriever:
        best = retriever.answer("who wrote the iliad", k=6)
        assert isinstance(best, Answer) and best.passage.text[best.start : best.end] == best.text
        assert best.passage.meta == {"row": int(best.passage.id[1:])}
        hits = {hit.id for hit in retriever.search("who wrote the iliad", k=6)}
        several = retriever.answer("who wrote the iliad", n=4, k=6)
        assert several[0] == best and len(several) == 4 and {each.passage.id for each in several} <= hits
        assert retriever.answer("who wrote the iliad", least=1.0) is None
        assert retriever.answer("who wrote the iliad", n=2, least=1.0) == []
        pair = retriever.answer(["who wrote the iliad", "moon"], k=6)
        assert len(pair) == 2 and pair[0] == best
        assert [len(each) for each in retriever.answer(["moon", "sun"], n=2)] == [2, 2]
        assert retriever.answer([]) == []
        with pytest.raises(InvalidInput, match="holds no words"):
            retriever.answer(" ")
        with pytest.raises(InvalidInput, match="questions must be a list"):
            retriever.answer(3)  # type: ignore[call-overload]


def test_a_reader_beside_the_model_is_found(tmp_path: Path, tiny_reader: Path, tiny_model: Path) -> None:
    from bpr.training.readerexport import export_reader

    shutil.copytree(tiny_model, tmp_path / "both")
    export_reader(tiny_reader, tmp_path / "both")
    bpr.build([each.to_dict() for each in PASSAGES], tmp_path / "a.bpr", model=tmp_path / "both")
    with bpr.open(tmp_path / "a.bpr") as retriever:
        assert retriever.answer("who wrote the iliad") is not None
        assert retriever.reader.folder == retriever.encoder.folder


def test_without_a_reader_it_says_so(bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bpr.model.MINI", tmp_path)
    with bpr.open(bundle) as retriever, pytest.raises(InvalidInput, match="has a reader: say where one is"):
        retriever.answer("who")
