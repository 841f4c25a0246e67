"""Questions from every layout that is known, and an error with its place for everything that cannot be measured."""

from __future__ import annotations

import ast
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr.errors import InvalidInput
from bpr.questions import KINDS, LONGEST_LIST, Question, parse_list, read_questions

SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Iliad",
            "paragraphs": [
                {
                    "context": "Homer wrote the Iliad.",
                    "qas": [
                        {
                            "id": "a1",
                            "question": " Who wrote the Iliad?",
                            "answers": [{"text": "Homer"}, {"text": "Homer"}, {"text": "the poet Homer"}],
                        }
                    ],
                },
                {"context": "Troy.", "qas": [{"question": "What burned?", "answers": [{"text": "Troy"}]}]},
            ],
        }
    ],
}
QUERIES = '{"_id": "q1", "text": "one?"}\n{"_id": "q2", "text": "two?"}\n{"_id": 3, "text": "three?"}\n'
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\nq1\td3\t0\nq2\td1\t0\n3\td 4\t1\n"
GOLD = [Question("q1", "one?", (), {"d1": 2, "d2": 1}), Question("3", "three?", (), {"d 4": 1})]


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, kind: str | None = None, **how) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_questions(path, kind, **how)
    return str(caught.value)


# ── DPR's TSV ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dprs_files_are_recognised_and_read(tmp_path):
    lines = [
        "who wrote the iliad\t['Homer', \"Homer's son\"]",
        'what is "it"\t"[\'the ""thing""\', \'café \\u00e9 \\\\ \\\'x\\\'\']"',
        "",
        "empty among others\t['', 'x', ]",
    ]
    assert read_questions(put(tmp_path / "nq-test.qa.csv", "\n".join(lines) + "\n")) == [
        Question("1", "who wrote the iliad", ("Homer", "Homer's son")),
        Question("2", 'what is "it"', ('the "thing"', "café é \\ 'x'")),
        Question("4", "empty among others", ("", "x")),
    ]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_a_list_is_read_as_python_writes_it(answers):
    assert parse_list(repr(answers)) == tuple(answers)
    assert parse_list(f"  {answers!r} ") == tuple(answers)


@given(st.text("[]'\", x0u{}()#+", max_size=12))
def test_what_is_read_as_a_list_is_one_to_python_too(text):
    try:
        found = parse_list(text)
    except ValueError:
        return
    assert list(found) == ast.literal_eval(text.strip())


@given(st.text(max_size=30))
def test_any_text_is_a_list_or_a_clear_error(text):
    try:
        parse_list(text)
    except ValueError as flaw:
        assert "must be a list of strings" in str(flaw) or "is no character" in str(flaw)


@pytest.mark.parametrize(
    "literal",
    [
        "",
        "Homer",
        "'Homer'",
        "['a' 'b']",
        "['a', 1]",
        "['a', None]",
        "[['a']]",
        "{'a'}",
        "('a',)",
        "['a'",
        "['a'] + ['b']",
        "[f'a']",
        "[b'a']",
        "[__import__('os').system('true')]",
        "['a',,]",
        "[,]",
        "['\\ud800']",
        "['\\U00110000']",
    ],
)
def test_other_literals_and_programs_are_refused_with_their_line(tmp_path, literal):
    path = put(tmp_path / "q.tsv", f"good\t['x']\nwho?\t{literal}\n")
    message = refusal(path, "dpr-tsv")
    assert "q.tsv, line 2: " in message
    assert "must be a list of strings" in message or "is no character" in message


def test_escapes_of_regular_expressions_stay_as_they_are():
    assert parse_list(r"['\d{4}', 'a\\d', '\s+(19|20)\d\d']") == (r"\d{4}", r"a\d", r"\s+(19|20)\d\d")


def test_a_list_that_is_too_long_is_none():
    with pytest.raises(ValueError, match="is this a file of questions"):
        parse_list(f"['{'a' * LONGEST_LIST}']")


def test_a_long_broken_list_takes_no_time_that_grows_with_its_square():
    with pytest.raises(ValueError, match="must be a list of strings"):
        parse_list("[" + "'a', " * 100_000)


@pytest.mark.parametrize("line", ["no tab", "a\tb\tc", "q\t['a']\t"])
def test_other_columns_are_refused(tmp_path, line):
    assert "line 1: must be a question, a tab and a list of answers" in refusal(put(tmp_path / "q", line), "dpr-tsv")


# ── JSONL ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nq_open_and_our_own_lines(tmp_path):
    text = '{"question": "who?", "answer": ["Homer", "he"]}\n\n{"question": "what?", "answer": "Troy"}\n'
    assert read_questions(put(tmp_path / "NQ-open.dev.jsonl", text)) == [
        Question("1", "who?", ("Homer", "he")),
        Question("3", "what?", ("Troy",)),
    ]
    ours = '{"question": "who?", "answers": ["a"], "positives": ["p7", "p8"], "negatives": ["p1"], "group": "g"}\n'
    ours += '{"id": 12, "question": "what?", "positives": ["p9"]}\n'
    assert read_questions(put(tmp_path / "examples.jsonl", ours), prefix="x-") == [
        Question("1", "who?", ("a",), {"x-p7": 1, "x-p8": 1}),
        Question("12", "what?", (), {"x-p9": 1}),
    ]


def test_packed_files(tmp_path):
    (tmp_path / "q.jsonl.xz").write_bytes(lzma.compress(b'{"question": "who?", "answer": ["Homer"]}\n'))
    assert read_questions(tmp_path / "q.jsonl.xz") == [Question("1", "who?", ("Homer",))]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"answer": ["a"]}', '"question" is missing'),
        ('{"question": 7, "answer": ["a"]}', '"question" must be a string, not int'),
        ('{"question": " ", "answer": ["a"]}', "the question is empty"),
        ('{"question": "q"}', "it has neither answers nor gold passages"),
        ('{"question": "q", "answer": []}', "it has neither answers nor gold passages"),
        ('{"question": "q", "answers": ["", " "]}', "it has neither answers nor gold passages"),
        ('{"question": "q", "answers": ["a"], "answer": ["a"]}', 'both "answer" and "answers"'),
        ('{"question": "q", "answers": [1]}', '"answers" must be a string, not int'),
        ('{"question": "q", "answers": {"a": 1}}', '"answers" must be a list, not dict'),
        ('{"question": "q", "positives": "p1"}', '"positives" must be a list, not str'),
        ('{"question": "q", "answers": ["a"], "id": true}', '"id" must be a string, not bool'),
        ('{"question": "q", "answers": ["\\ud800"]}', "half a surrogate pair"),
        ("[]", "each line must be a JSON object"),
        ("{", "not valid JSON"),
    ],
)
def test_lines_that_cannot_be_measured_are_refused_with_their_place(tmp_path, line, complaint):
    message = refusal(put(tmp_path / "q.jsonl", f'{{"question": "good", "answers": ["x"]}}\n{line}\n'))
    assert "q.jsonl, line 2: " in message
    assert complaint in message


# ── SQuAD ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("indent", [None, 2])
def test_squad_has_the_ids_that_convert_gives_its_paragraphs(tmp_path, indent):
    from bpr.training.data import collect
    from bpr.training.formats import squad

    path = put(tmp_path / "dev.json", json.dumps(SQUAD, indent=indent))
    found = read_questions(path, prefix="dev-")
    assert found == [
        Question("a1", "Who wrote the Iliad?", ("Homer", "the poet Homer"), {"dev-0-0": 1}),
        Question("dev-0-1-0", "What burned?", ("Troy",), {"dev-0-1": 1}),
    ]
    passages, examples = collect(squad(path, "dev-"))
    assert [{*question.gold} for question in found] == [{*example.positives} for example in examples]
    assert {passage.id for passage in passages} == {"dev-0-0", "dev-0-1"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda article: article.pop("paragraphs"), 'article 0: "paragraphs" is missing'),
        (lambda article: article["paragraphs"][1].pop("qas"), 'article 0, paragraph 1: "qas" is missing'),
        (lambda article: article["paragraphs"][1]["qas"][0].pop("question"), "paragraph 1, question 0: "),
        (lambda article: article["paragraphs"][1]["qas"][0].update(answers=[]), "cannot be answered (as in SQuAD 2.0)"),
        (lambda article: article["paragraphs"][1]["qas"][0].update(id="a1"), "'a1' is that of"),
    ],
)
def test_broken_squad_is_refused_with_its_place(tmp_path, change, complaint):
    whole = json.loads(json.dumps(SQUAD))
    change(whole["data"][0])
    assert complaint in refusal(put(tmp_path / "dev.json", json.dumps(whole)))


# ── BEIR and TREC ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["qrels/test.tsv", "qrels/dev.tsv", "qrels.tsv"])
def test_a_beir_folder(tmp_path, place):
    put(tmp_path / "queries.jsonl", QUERIES)
    put(tmp_path / place, QRELS)
    assert read_questions(tmp_path) == GOLD


def test_the_split_that_is_asked_for(tmp_path):
    put(tmp_path / "queries.jsonl", QUERIES)
    put(tmp_path / "qrels" / "test.tsv", QRELS)
    put(tmp_path / "qrels" / "train.tsv", "q2\td9\t1\n")
    assert read_questions(tmp_path) == GOLD
    assert read_questions(tmp_path, split="train", prefix="x-") == [Question("q2", "two?", (), {"x-d9": 1})]
    assert "there is no" in refusal(tmp_path, split="dev")


def test_trec_judgements_with_questions_as_lines_or_records(tmp_path):
    trec = put(tmp_path / "qrels.txt", "q1 0 d1 2\nq1  0\td2 1\nq1 Q0 d3 0\nq2 0 d1 0\n3 0 d4 -1\n3 0 d5 1\n")
    topics = put(tmp_path / "topics.tsv", "q1\tone?\n\nq2\ttwo?\n3\tthree?\n")
    wanted = [GOLD[0], Question("3", "three?", (), {"d5": 1})]
    assert read_questions(topics, qrels=trec) == wanted
    assert read_questions(put(tmp_path / "queries.jsonl", QUERIES), "trec", qrels=trec) == wanted
    assert read_questions(topics, qrels=put(tmp_path / "qrels.tsv", QRELS)) == GOLD


@pytest.mark.parametrize(
    ("qrels", "complaint"),
    [
        ("q1 0 d1 high\nq1 0 d2 1\nq1 0 d1 high\n", "line 3: must be question id, 0, document id and a whole number"),
        ("q1 d1 1\n", "line 1: must be question id, document id and a whole number, with tabs between"),
        ("q1 0 d1 1\nq1 0 d1 2\n", "line 2: the passage 'd1' is judged twice for the question 'q1'"),
        ("q1 0 d1 1\nq9 0 d1 2\n", "the question 'q9' is judged, but"),
        ("q1 0 d1 0\n", "holds no questions that are judged"),
    ],
)
def test_broken_judgements_are_refused(tmp_path, qrels, complaint):
    topics = put(tmp_path / "topics.tsv", "q1\tone?\n")
    assert complaint in refusal(topics, qrels=put(tmp_path / "qrels.txt", qrels))


def test_what_trec_and_beir_need(tmp_path):
    topics = put(tmp_path / "topics.tsv", "q1\tone?\n")
    assert "are in a file of their own" in refusal(topics, "trec")
    assert "is no folder" in refusal(topics, "beir")
    assert "line 1: must be a question's id, a tab and its text" in refusal(
        put(tmp_path / "x", "one?\n"), qrels=put(tmp_path / "r", "q1 0 d1 1\n")
    )
    assert "queries.jsonl" in refusal(put(tmp_path / "folder" / "x", "").parent)


# ── What is refused whatever the layout ──────────────────────────────────────────────────────────────────────────────


def test_two_questions_with_one_id_are_refused(tmp_path):
    twice = '{"id": "a", "question": "x", "answers": ["y"]}\n'
    assert "line 2: the question id 'a' is that of" in refusal(put(tmp_path / "q.jsonl", twice * 2))
    put(tmp_path / "beir" / "queries.jsonl", QUERIES + QUERIES)
    put(tmp_path / "beir" / "qrels.tsv", QRELS)
    assert "queries.jsonl, line 4: the question id 'q1' is that of" in refusal(tmp_path / "beir")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("biencoder.json", '[{"question": "q", "answers": ["a"], "positive_ctxs": []}]'),
        ("passages.tsv", "id\ttext\ttitle\n1\tsome [text]\tT\n"),
        ("passages.jsonl", '{"id": "1", "text": "some text"}\n'),
        ("queries.jsonl", QUERIES),
        ("table.csv", "question,answer\nwho?,Homer\n"),
        ("empty.jsonl", ""),
        ("prose.txt", "Sing, goddess.\n"),
    ],
)
def test_files_of_other_layouts_are_refused_with_the_kinds_there_are(tmp_path, name, text):
    message = refusal(put(tmp_path / name, text))
    assert name in message
    assert all(kind in message for kind in KINDS)


def test_a_wrong_kind_is_refused(tmp_path):
    path = put(tmp_path / "q.jsonl", '{"question": "who?", "answer": ["Homer"]}\n')
    assert "'csv' is no kind of questions; those are dpr-tsv" in refusal(path, "csv")
    assert "is not JSON in SQuAD's layout" in refusal(path, "squad")
    assert "line 1: must be a question, a tab" in refusal(path, "dpr-tsv")
    assert "is read as nq-open, which has no split: that goes with beir" in refusal(path, split="test")
    assert "is read as squad, which has no qrels: that goes with trec" in refusal(path, "squad", qrels=path)
    assert "there is no such file" in refusal(tmp_path / "none.jsonl")


def test_answers_that_are_no_regular_expressions_are_refused_with_their_place(tmp_path):
    path = put(tmp_path / "trec.tsv", "good\t['19\\d\\d']\nbad\t['(']\n")
    assert len(read_questions(path)) == 2
    message = refusal(path, regex=True)
    assert "line 2: the answer '(' is not a regular expression" in message
    assert "mend it" in message
