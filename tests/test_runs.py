"""Runs over a bundle whose every ranking is known: what is measured, written, read again and refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr import evaluation, runs
from bpr.errors import InvalidInput, StorageError
from bpr.questions import Question
from bpr.records import Hit
from bpr.runs import RESULTS, RETRIEVED, TREC, Run, depth_for, digest, evaluate, load, missing_gold, to_dict, trec_lines

ROWS = 9
# Passage i begins with i ones: UP ranks p8, p7, … p0, and DOWN p0, p1, … p8.
VECTORS = np.array([[1.0] * i + [-1.0] * (8 - i) for i in range(ROWS)], np.float32)
UP = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], np.float32)
QUESTIONS = [
    Question("up", "which way?", ("number six",), {"p6": 1}),
    Question("down", "and now?", ("number 3",), {"p0": 2, "p3": 1}),
]
ASKED = np.stack([UP, -UP])


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "nine.bpr"
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
    passages = (
        {"id": f"p{i}", "title": f"T{i}", "text": f"This is number {word} (number {i})."}
        for i, word in enumerate(words)
    )
    bpr.build(passages, path, vectors=VECTORS)
    with bpr.open(path) as retriever:
        yield retriever


@pytest.fixture
def run(opened) -> Run:
    return evaluate(opened, QUESTIONS, ROWS, vectors=ASKED)


# ── Ask ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_figure_of_a_run_worked_out_by_hand(opened, run):
    assert run.depth == ROWS
    assert run.gold.tolist() == [3, 1]
    assert run.answer.tolist() == [3, 4]
    ideal, found = 2 + 1 / math.log2(3), 2 + 1 / math.log2(5)
    assert run.ndcg.tolist() == pytest.approx([1 / math.log2(4), found / ideal])
    summary = run.summary(QUESTIONS, [1, 3, 4])
    assert {name: each["mean"] for name, each in summary.items()} == pytest.approx(
        {
            "top 1, answer": 0,
            "top 3, answer": 50,
            "top 4, answer": 100,
            "MRR@10, answer": 100 * (1 / 3 + 1 / 4) / 2,
            "top 1, gold": 50,
            "top 3, gold": 100,
            "top 4, gold": 100,
            "MRR@10, gold": 100 * (1 / 3 + 1) / 2,
            "nDCG@10, gold": 100 * (0.5 + found / ideal) / 2,
        }
    )
    assert {each["questions"] for each in summary.values()} == {2}
    assert run.curves(QUESTIONS)["gold"].tolist() == [50, 50, *[100] * 7]


def test_batches_change_nothing(opened, monkeypatch):
    told: list[tuple[int, int | None]] = []
    many = [Question(str(i), "?", ("number six",), {"p6": 1}) for i in range(5)]
    monkeypatch.setattr(runs, "QUESTIONS_AT_ONCE", 2)
    found = evaluate(
        opened, many, 4, vectors=np.stack([UP] * 5), progress=lambda what, done, total: told.append((done, total))
    )
    assert found.gold.tolist() == [3] * 5
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_watch_sees_every_question_with_its_hits(opened, run):
    seen: list[tuple[Question, list[Hit], list[bool]]] = []
    found = evaluate(opened, QUESTIONS, 4, vectors=ASKED, watch=lambda *each: seen.append(each))
    assert found.answer.tolist() == run.answer.tolist()
    assert [question for question, _, _ in seen] == QUESTIONS
    assert [hit.id for hit in seen[0][1]] == ["p8", "p7", "p6", "p5"]
    assert [right for _, _, right in seen] == [[False, False, True, False], [False, False, False, True]]


def test_questions_are_encoded_with_the_bundles_model(tiny_model, tmp_path):
    passages = [{"id": "p0", "text": "homer wrote the iliad"}, {"id": "p1", "text": "paris is the capital of france"}]
    bpr.build(passages, tmp_path / "b.bpr", model=tiny_model)
    asked = [Question("q", "who wrote the iliad ?", ("homer",), {"p0": 1})]
    with bpr.open(tmp_path / "b.bpr") as opened:
        found = evaluate(opened, asked, 2)
        assert found.answer[0] == 1 + [hit.id for hit in opened.search(asked[0].text, k=2)].index("p0")


def test_without_gold_or_without_ir_measures_there_is_no_ndcg(opened, monkeypatch):
    answers_only = [Question("up", "?", ("number six",)), Question("down", "?", ("number 3",))]
    assert evaluate(opened, answers_only, 3, vectors=ASKED).ndcg is None
    monkeypatch.setattr(evaluation, "has_ndcg", lambda: False)
    found = evaluate(opened, QUESTIONS, 3, vectors=ASKED)
    assert found.ndcg is None
    assert "nDCG@10, gold" not in found.summary(QUESTIONS, [1])


def test_each_question_needs_its_vector(opened):
    with pytest.raises(InvalidInput, match="there are 1 vectors for 2 questions"):
        evaluate(opened, QUESTIONS, 3, vectors=ASKED[:1])


# ── What cannot be right ─────────────────────────────────────────────────────────────────────────────────────────────


def test_how_deep_to_look():
    assert depth_for([1], 1000, None) == 10  # MRR and nDCG need them
    assert depth_for([1, 100], 1000, "all") == 100
    assert depth_for([1, 5], 7, 1000) == 7
    with pytest.raises(InvalidInput, match="there are 99 passages, so top 100 means nothing: choose k up to 99"):
        depth_for([1, 100], 99, None)
    with pytest.raises(InvalidInput, match="20 candidates cannot give the first 100 passages"):
        depth_for([100], 1000, 20)


def test_a_k_beyond_the_depth_is_refused(opened):
    found = evaluate(opened, QUESTIONS, 4, vectors=ASKED)
    with pytest.raises(InvalidInput, match="top 5 cannot be told from the first 4 passages"):
        found.summary(QUESTIONS, [1, 5])


def test_gold_passages_that_the_bundle_does_not_have(opened):
    assert missing_gold(QUESTIONS, opened) is None
    assert missing_gold([Question("q", "?", ("a",))], opened) is None
    some = [*QUESTIONS, Question("lost", "?", (), {"x1": 1, "x2": 1}), Question("half", "?", (), {"x1": 1, "p1": 1})]
    told = missing_gold(some, opened)
    assert told.startswith("2 of 6 gold passages, such as 'x1', are not in ")
    assert told.endswith("nine.bpr: 1 questions cannot be found by gold")
    with pytest.raises(InvalidInput, match=r"none of the 2 gold passages, such as 'x1', and ids like 'p0': .*--prefix"):
        missing_gold(some[2:3], opened)


# ── Two runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def saved(path: Path, run: Run, **changes) -> Path:
    path.write_text(json.dumps(to_dict(run, QUESTIONS, False) | changes))
    return path


def test_a_run_is_read_as_it_was_written(run, tmp_path):
    other = load(saved(tmp_path / RESULTS, run), QUESTIONS, False)
    assert other.depth == run.depth
    for ours, theirs in ((other.answer, run.answer), (other.gold, run.gold), (other.ndcg, run.ndcg)):
        assert (ours == theirs).all() and ours.dtype == theirs.dtype
    assert load(tmp_path, QUESTIONS, False).depth == run.depth  # its folder will do
    assert load(saved(tmp_path / "r.json", run, ndcg=None), QUESTIONS, False).ndcg is None


def test_two_runs_are_compared_question_by_question(opened, run):
    other = evaluate(opened, QUESTIONS, 3, vectors=ASKED[::-1].copy())  # each with the other's vector
    assert other.gold.tolist() == [0, 0]
    found = run.summary(QUESTIONS, [1, 4], other)
    assert found["top 1, gold"]["difference"]["mean"] == 50
    assert found["MRR@10, gold"]["difference"]["mean"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    assert "difference" not in found["top 4, gold"]  # the other did not look that deep
    assert run.summary(QUESTIONS, [1], run)["top 1, gold"]["difference"]["p"] == 1


def test_a_run_of_other_questions_is_refused(run, tmp_path):
    path = saved(tmp_path / "r.json", run)

    def refusal(questions: list[Question], regex: bool = False) -> str:
        with pytest.raises(InvalidInput) as caught:
            load(path, questions, regex)
        return str(caught.value)

    assert "is of 2 questions, and these are 1; only runs of the same questions" in refusal(QUESTIONS[:1])
    assert "question 1 is 'down' here and 'up' in" in refusal(QUESTIONS[::-1])
    changed = [QUESTIONS[0], Question("down", "and now?", ("number 3",), {"p0": 1, "p3": 1})]
    assert "other texts, answers or gold passages" in refusal(changed)
    assert "settings of prefix or regex" in refusal(QUESTIONS, regex=True)
    assert digest(QUESTIONS, False) == digest([*QUESTIONS], False)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not what bpr evaluate --output writes"),
        ("[]", "must be a JSON object"),
        ('{"format": "other"}', "\"format\" is not 'bpr-evaluation' in version 1"),
        ({"version": 2}, "in version 1"),
        ({"answer": [1]}, '"answer" must have 2 values'),
        ({"gold": ["x", "y"]}, "is not what"),
        ({"gold": [[1], [2]]}, '"gold" must have 2 values'),
        ({"gold": [1e400, 2]}, "is not what"),
        ({"depth": None}, "is not what"),
    ],
)
def test_what_is_no_run_is_refused(run, tmp_path, content, complaint):
    path = saved(tmp_path / "r.json", run, **content) if isinstance(content, dict) else tmp_path / "r.json"
    if isinstance(content, str):
        path.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        load(path, QUESTIONS, False)
    assert str(path) in str(caught.value) and complaint in str(caught.value)


def test_no_run_there(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no .*results\.json: name a folder that bpr evaluate --output"):
        load(tmp_path, QUESTIONS, False)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StorageError, match="cannot read"):
        load(tmp_path / "loop", QUESTIONS, False)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def written(folder: Path, opened, contexts: int | None = None) -> Path:
    with runs.writing(folder, ["drawing.svg"], contexts) as out:
        found = evaluate(opened, QUESTIONS, 4, vectors=ASKED, watch=out.watch)
        out.finish(to_dict(found, QUESTIONS, False), {"drawing.svg": b"<svg/>"})
    return folder


def test_dprs_results_are_in_dprs_layout(opened, tmp_path):
    folder = written(tmp_path / "new" / "run", opened)
    entries = json.loads((folder / RETRIEVED).read_text(encoding="utf-8"))
    assert [(each["question"], each["answers"]) for each in entries] == [(q.text, [*q.answers]) for q in QUESTIONS]
    first = entries[0]["ctxs"]
    assert [*first[2]] == ["id", "title", "text", "score", "has_answer"]
    assert first[2] | {"score": ""} == {
        "id": "p6",
        "title": "T6",
        "text": "This is number six (number 6).",
        "score": "",
        "has_answer": True,
    }
    assert [each["has_answer"] for each in first] == [False, False, True, False]
    scores = [float(each["score"]) for each in first]
    assert scores == sorted(scores, reverse=True)
    assert (folder / "drawing.svg").read_bytes() == b"<svg/>"
    assert sorted(each.name for each in folder.iterdir()) == ["drawing.svg", RESULTS, RETRIEVED, TREC]


def test_fewer_passages_for_a_reader(opened, tmp_path):
    entries = json.loads((written(tmp_path, opened, contexts=2) / RETRIEVED).read_text())
    assert [len(each["ctxs"]) for each in entries] == [2, 2]


def test_the_trec_run_gives_other_tools_the_same_figures(opened, tmp_path):
    import ir_measures

    folder = written(tmp_path, opened)
    run = list(ir_measures.read_trec_run(str(folder / TREC)))
    assert [(each.query_id, each.doc_id) for each in run[:2]] == [("up", "p8"), ("up", "p7")]
    judged = {question.id: dict(question.gold) for question in QUESTIONS}
    metrics = ir_measures.iter_calc([ir_measures.nDCG @ 10], judged, run)
    ours = dict(zip(["up", "down"], json.loads((folder / RESULTS).read_text())["ndcg"], strict=True))
    assert {each.query_id: each.value for each in metrics} == pytest.approx(ours)


def test_ties_keep_their_order_and_ids_stay_one_word():
    hits = [Hit(f"p {i}", "", "", score, i) for i, score in enumerate([2.5, 2.5, 2.5, 2.4999998, -1.0, -1.0], 1)]
    columns = [line.split() for line in trec_lines(Question("q\t1", "?"), hits)]
    assert [row[:4] for row in columns] == [["q%091", "Q0", f"p%20{i}", str(i)] for i in range(1, 7)]
    scores = [np.float32(row[4]) for row in columns]
    assert all(high > low for high, low in itertools.pairwise(scores))
    assert scores == pytest.approx([hit.score for hit in hits], abs=1e-6)


def test_a_failed_run_leaves_the_old_files(opened, tmp_path):
    before = (written(tmp_path, opened) / RETRIEVED).read_bytes()
    with pytest.raises(RuntimeError), runs.writing(tmp_path) as out:
        evaluate(opened, QUESTIONS, 2, vectors=ASKED, watch=out.watch)
        raise RuntimeError("stop")
    assert (tmp_path / RETRIEVED).read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 4


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the folder"), runs.writing(tmp_path / "file"):
        pass
