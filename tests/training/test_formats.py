"""SQuAD, BEIR and DPR files to passages and examples, whole, streamed, broken."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr.errors import InvalidInput
from bpr.records import Passage
from bpr.training import formats
from bpr.training.data import Example, collect
from bpr.training.formats import beir, dpr, squad


def refusal(items) -> str:
    with pytest.raises(InvalidInput) as caught:
        list(items)
    return str(caught.value)


def put(path: Path, content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), newline="")
    return path


def skipping(convert, *arguments, **options) -> tuple[list[Passage], list[Example], list[str]]:
    told: list[str] = []
    return *collect(convert(*arguments, skip_bad=True, on_skip=told.append, **options)), told


# ── SQuAD ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def question(text: str, *answers: str) -> dict[str, Any]:
    return {"id": "x", "question": text, "answers": [{"text": each, "answer_start": 0} for each in answers]}


def paragraph(context: str, *questions: dict[str, Any]) -> dict[str, Any]:
    return {"context": context, "qas": list(questions)}


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Super_Bowl_50",
            "paragraphs": [
                paragraph("The Broncos won.", question("Who?", "Broncos", "The Broncos", "Broncos")),
                paragraph("Nobody asks."),
            ],
        },
        {"title": "", "paragraphs": [paragraph("It holds 😀.", question("What?", "😀"), question("How?", "..."))]},
    ],
}


@pytest.mark.parametrize("pack", [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_squad(tmp_path, pack):
    path = tmp_path / f"s.json{pack[0]}"
    path.write_bytes(pack[1](b"\xef\xbb\xbf" + json.dumps(SQUAD, indent=1).encode()))
    passages, examples = collect(squad(path, "dev-"))
    assert passages == [
        Passage("dev-0-0", "Super Bowl 50", "The Broncos won."),
        Passage("dev-0-1", "Super Bowl 50", "Nobody asks."),
        Passage("dev-1-0", "", "It holds 😀."),
    ]
    assert examples == [
        Example("Who?", ("Broncos", "The Broncos"), ("dev-0-0",), (), "Super Bowl 50"),
        Example("What?", ("😀",), ("dev-1-0",), (), "dev-1"),
        Example("How?", ("...",), ("dev-1-0",), (), "dev-1"),
    ]


GOOD = paragraph("text", question("q", "a"))


@pytest.mark.parametrize(
    ("articles", "complaint"),
    [
        ([7], "article 0: must be a JSON object, not int"),
        ([{"title": ["T"], "paragraphs": [GOOD]}], 'article 0: "title" must be a string, not list'),
        ([{"title": "T"}], 'article 0: "paragraphs" is missing'),
        ([{"paragraphs": [GOOD, None]}], "article 0, paragraph 1: must be a JSON object, not null"),
        ([{"paragraphs": [{"qas": []}]}], 'article 0, paragraph 0: "context" is missing'),
        ([{"paragraphs": [{"context": 1, "qas": []}]}], '"context" must be a string, not int'),
        ([{"paragraphs": [{"context": "c"}]}], 'article 0, paragraph 0: "qas" is missing'),
        ([{"paragraphs": [paragraph("c", question("q", "a"), "x")]}], "paragraph 0, question 1: must be a JSON object"),
        ([{"paragraphs": [paragraph("c", question(" ", "a"))]}], 'paragraph 0, question 0: "question" is empty'),
        ([{"paragraphs": [paragraph("c", {"question": "q"})]}], 'question 0: "answers" is missing'),
        ([{"paragraphs": [paragraph("c", question("q"))]}], "question 0: no answers; what cannot be answered"),
        ([{"paragraphs": [paragraph("c", {"question": "q", "answers": ["a"]})]}], "must be a JSON object, not str"),
        ([{"paragraphs": [paragraph("\ud800")]}], '"context" has half a surrogate pair at character 0'),
    ],
)
def test_what_is_broken_in_squad_is_refused_with_its_place_or_skipped(tmp_path, articles, complaint):
    path = put(tmp_path / "s.json", {"data": articles})
    assert f"{path}, article 0" in refusal(squad(path))
    assert complaint in refusal(squad(path))
    path = put(tmp_path / "s.json", {"data": [*articles, {"paragraphs": [GOOD]}]})
    passages, examples, told = skipping(squad, path)
    assert (passages[-1].id, examples[-1]) == ("1-0", Example("q", ("a",), ("1-0",), (), "1"))
    assert len(told) == 1
    assert complaint in told[0]
    assert {each for example in examples for each in example.positives} <= {passage.id for passage in passages}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"data": {}}', "[" * 100_000])
def test_what_is_not_squad_is_refused(tmp_path, text):
    path = put(tmp_path / "s.json", text)
    for skip_bad in (False, True):
        assert f"{path} is not JSON in SQuAD's layout" in refusal(squad(path, skip_bad=skip_bad))


# ── BEIR ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

CORPUS = '{"_id": "d1", "title": "T", "text": "x", "metadata": {"u": 1}}\n{"_id": "d2", "text": "y"}\n'
QUERIES = '{"_id": "q1", "text": "one?"}\n{"_id": "q2", "text": "two?"}\n{"_id": "q3", "text": "three?"}\n'
QRELS = "query-id\tcorpus-id\tscore\r\nq2\td2\t1\r\nq1\td2\t2\r\nq1\td1\t1\r\nq1\td2\t1\r\nq3\td1\t0\r\n"


def beir_folder(folder: Path, corpus: str = CORPUS, queries: str = QUERIES, qrels: str = QRELS) -> Path:
    put(folder / "corpus.jsonl", corpus)
    put(folder / "queries.jsonl", queries)
    put(folder / "qrels" / "train.tsv", qrels)
    return folder


BEIR = (
    [Passage("b-d1", "T", "x", {"u": 1}), Passage("b-d2", "", "y")],
    [Example("one?", (), ("b-d2", "b-d1"), (), "b-d2"), Example("two?", (), ("b-d2",), (), "b-d2")],
)


def test_beir(tmp_path):
    assert collect(beir(beir_folder(tmp_path), "b-")) == BEIR


def test_beir_packed_and_with_one_file_of_judgements(tmp_path):
    for name, text in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), ("qrels.tsv", QRELS)):
        (tmp_path / f"{name}.xz").write_bytes(lzma.compress(text.encode()))
    assert collect(beir(str(tmp_path), "b-", split="test")) == BEIR


def test_judgements_without_a_header_are_read_from_the_first_line(tmp_path):
    assert collect(beir(beir_folder(tmp_path, qrels="q1\td1\t1\n")))[1] == [Example("one?", (), ("d1",), (), "d1")]


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"corpus": CORPUS + "{"}, "corpus.jsonl, line 3: not valid JSON"),
        ({"corpus": CORPUS + '{"_id": "d3"}'}, 'corpus.jsonl, line 3: "text" is missing'),
        ({"queries": QUERIES + '{"text": "q"}'}, 'queries.jsonl, line 4: "id" is missing'),
        ({"queries": QUERIES.replace("three?", " "), "qrels": QRELS + "q3\td1\t1\n"}, 'line 3: "question" is empty'),
        ({"qrels": QRELS + "q3\td9\t1\n"}, "train.tsv, line 7: the corpus has no document 'd9'"),
        ({"qrels": QRELS + "q9\td1\t1\n"}, "train.tsv: the question 'q9' is judged, but"),
        ({"qrels": QRELS + "q3 d1 1\n"}, "train.tsv, line 7: must be question id, document id and a whole number"),
        ({"qrels": QRELS + "q3\td1\thigh\n"}, "train.tsv, line 7: must be question id, document id and a whole"),
        ({"qrels": QRELS + "q3\t0\td1\t1\n"}, "train.tsv, line 7: must be question id, document id and a whole"),
    ],
)
def test_what_is_broken_in_beir_is_refused_with_its_place_or_skipped(tmp_path, parts, complaint):
    folder = beir_folder(tmp_path, **parts)
    assert complaint in refusal(beir(folder))
    passages, examples, told = skipping(beir, folder, "b-")
    assert (passages, examples) == BEIR
    assert len(told) == 1
    assert complaint in told[0]


def test_what_is_not_beir_is_refused(tmp_path):
    assert f"there is no {tmp_path / 'corpus.jsonl'}; BEIR's layout has it" in refusal(beir(tmp_path))
    message = refusal(beir(beir_folder(tmp_path), split="dev"))
    assert f"there is no {tmp_path / 'qrels' / 'dev.tsv'} or {tmp_path / 'qrels.tsv'}" in message


# ── DPR ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def context(title: str, text: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "text": text, "score": 3.5, "title_score": 1, **more}


NQ = [
    {
        "dataset": "nq",
        "question": "who?",
        "answers": ["Ann"],
        "positive_ctxs": [context("A", "Ann", passage_id="11"), context("A", "Ann", passage_id="12")],
        "negative_ctxs": [context("N", "easy", passage_id=13)],
        "hard_negative_ctxs": [context("H", "hard", psg_id="14"), context("A", "Ann", passage_id="11")],
    },
    {
        "question": "where?",
        "answers": [],
        "positive_ctxs": [context("H", "hard")],
        "negative_ctxs": [context("N", "easy", passage_id="99"), context("", "without an id")],
        "hard_negative_ctxs": [context("X", "another text", passage_id="11")],
    },
]


def check_nq(path: Path) -> None:
    passages, examples = collect(dpr(path, "nq-"))
    named, (stranger, nameless) = passages[:3], passages[3:]
    assert named == [Passage("nq-11", "A", "Ann"), Passage("nq-14", "H", "hard"), Passage("nq-13", "N", "easy")]
    assert (stranger.text, nameless.text) == ("another text", "without an id")
    assert all(each.id.startswith("nq-") and len(each.id) == 35 for each in (stranger, nameless))
    assert stranger.id != nameless.id
    assert examples == [
        Example("who?", ("Ann",), ("nq-11",), ("nq-14", "nq-13"), "A"),
        Example("where?", (), ("nq-14",), (stranger.id, "nq-13", nameless.id), "H"),
    ]


@pytest.mark.parametrize("indent", [None, 4])
def test_dpr_array(tmp_path, indent):
    check_nq(put(tmp_path / "d.json", "\ufeff\n " + json.dumps(NQ, indent=indent) + "\n\n"))


def test_dpr_lines(tmp_path):
    check_nq(put(tmp_path / "d.jsonl", "\n" + "\n\n".join(map(json.dumps, NQ))))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress((tmp_path / "d.jsonl").read_bytes()))
    check_nq(tmp_path / "d.jsonl.gz")


GOOD_ITEM = {"question": "q", "positive_ctxs": [context("T", "x", psg_id="1")]}


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        (5, "not int"),
        ({"question": "q"}, 'no "positive_ctxs"'),
        ({**GOOD_ITEM, "positive_ctxs": []}, 'no "positive_ctxs"'),
        ({**GOOD_ITEM, "positive_ctxs": {}}, '"positive_ctxs" must be a list, not dict'),
        ({**GOOD_ITEM, "question": None}, '"question" is missing'),
        ({**GOOD_ITEM, "question": "\t"}, '"question" is empty'),
        ({**GOOD_ITEM, "answers": "a"}, '"answers" must be a list, not str'),
        ({**GOOD_ITEM, "negative_ctxs": ["x"]}, "must be a JSON object, not str"),
        ({**GOOD_ITEM, "negative_ctxs": [{"title": "x"}]}, '"text" is missing'),
        ({**GOOD_ITEM, "negative_ctxs": [context("T", "y", psg_id=1.5)]}, '"id" must be a string, not float'),
        ({**GOOD_ITEM, "hard_negative_ctxs": [context("T", "\udfff")]}, '"text" has half a surrogate pair'),
    ],
)
def test_what_is_broken_in_dpr_is_refused_with_its_place_or_skipped(tmp_path, item, complaint):
    """A passage that only a refused item had named before is passed on with the next item that names it."""
    array = put(tmp_path / "d.json", [item, GOOD_ITEM])
    lines = put(tmp_path / "d.jsonl", f"{json.dumps(item)}\n{json.dumps(GOOD_ITEM)}")
    for path, where in ((array, "item 0: "), (lines, "line 1: ")):
        message = refusal(dpr(path))
        assert f"{path}, {where}" in message
        assert complaint in message
        passages, examples, told = skipping(dpr, path)
        assert (passages, examples) == ([Passage("1", "T", "x")], [Example("q", (), ("1",), (), "T")])
        assert told == [message]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", " is empty"),
        ("\n \n", " is empty"),
        ("[]", " holds no items"),
        ("[", "item 0: not valid JSON"),
        ("[{]", "item 0: not valid JSON"),
        (f"[{json.dumps(GOOD_ITEM)}", "item 0: a comma or ] must follow, not 'the end of the file'"),
        (f"[{json.dumps(GOOD_ITEM)}}}]", "item 0: a comma or ] must follow, not '}'"),
        (f"[{json.dumps(GOOD_ITEM)},]", "item 1: not valid JSON"),
        (f"[{json.dumps(GOOD_ITEM)}, {{broken, {json.dumps(GOOD_ITEM)}]", "item 1: not valid JSON"),
        (f"[{json.dumps(GOOD_ITEM)}] x", "there is more behind the ]"),
        ("[" * 100_000, "item 0: not valid JSON"),
    ],
)
def test_an_array_that_is_broken_is_refused_even_when_items_may_be_skipped(tmp_path, text, complaint):
    path = put(tmp_path / "d.json", text)
    for skip_bad in (False, True):
        message = refusal(dpr(path, skip_bad=skip_bad))
        assert str(path) in message
        assert complaint in message


texts = st.text(st.sampled_from('a"\\[]{},: \n é😀'), max_size=20)


@settings(max_examples=60)
@given(
    pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=6),
    piece=st.integers(1, 60),
    indent=st.none() | st.just(1),
)
def test_an_array_in_small_pieces_is_the_same(tmp_path_factory, pairs, piece, indent):
    items = [{"question": f"q{title}", "positive_ctxs": [context(title, text)]} for title, text in pairs]
    path = put(tmp_path_factory.mktemp("d") / "d.json", json.dumps(items, indent=indent, ensure_ascii=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "PIECE", piece)
        passages, examples = collect(dpr(path))
    text_of = {passage.id: (passage.title, passage.text) for passage in passages}
    assert [text_of[example.positives[0]] for example in examples] == pairs
    assert len(text_of) == len(passages) == len({*pairs})


def test_an_item_without_an_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "PIECE", 100)
    monkeypatch.setattr(formats, "LONGEST_ITEM", 1000)
    path = put(tmp_path / "d.json", '[{"question": "' + "\n".join(["x" * 50] * 1000))
    assert "item 0: not valid JSON" in refusal(dpr(path))
