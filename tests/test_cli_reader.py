"""The verbs around a reader, as a person types them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import reader as readers
from bpr.cli import settings
from tiny_models import WORDS, backbone, make_reader, write_tokenizer

Run = Callable[..., tuple[int, str, str]]

RANDOM = np.random.default_rng(9)
PASSAGES = [
    {"id": f"p{row}", "title": f"article {row // 4}", "text": " ".join(RANDOM.choice(WORDS, 18))} for row in range(24)
]
QUESTIONS = [
    {"question": " ".join(each["text"].split()[:4]), "answers": [each["text"].split()[5]], "positives": [each["id"]]}
    for each in PASSAGES
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A bundle, its passages, and questions about them."""
    folder = tmp_path_factory.mktemp("reading")
    bpr.build(PASSAGES, folder / "a.bpr", model=tiny_model)
    for name, records in (("passages", PASSAGES), ("qa", QUESTIONS), ("examples", QUESTIONS)):
        grouped = [{**each, "group": str(i // 4)} for i, each in enumerate(records)] if name == "examples" else records
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in grouped))
    return folder


# ── answer ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_answers_for_people(run: Run, home: Path, tiny_reader: Path) -> None:
    status, out, err = run("answer", home / "a.bpr", "who wrote the iliad", "moon", "--reader", tiny_reader)
    assert (status, err) == (0, "") and out.startswith("who wrote the iliad\n") and "\nmoon\n" in out
    assert "%" in out and "article" in out
    status, out, _ = run("answer", home / "a.bpr", "moon", "--reader", tiny_reader, "--least", 1)
    assert status == 0 and out == "moon\n  no answer that is sure enough\n"


def test_answers_for_programs(run: Run, home: Path, tiny_reader: Path, tmp_path: Path) -> None:
    texts = {each["id"]: each["text"] for each in PASSAGES}
    (tmp_path / "q.txt").write_text("who wrote the iliad\n\n moon \n")
    status, out, _ = run(
        "answer", home / "a.bpr", "--file", tmp_path / "q.txt", "--reader", tiny_reader, "-n", 3, "-k", 5, "--json"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["question"] for line in lines] == ["who wrote the iliad", "moon"]
    for each in (answer for line in lines for answer in line["answers"]):
        assert texts[each["passage"]["id"]][each["start"] : each["end"]] == each["text"] and 0 < each["confidence"] < 1
    assert [len(line["answers"]) for line in lines] == [3, 3]
    status, other, _ = run("answer", home / "a.bpr", "--file", home / "qa.jsonl", "--reader", tiny_reader, "--json")
    assert status == 0 and json.loads(other.splitlines()[3])["question"] == QUESTIONS[3]["question"]


def test_what_answer_refuses(run: Run, home: Path, tiny_reader: Path, tmp_path: Path) -> None:
    assert run("answer", home / "a.bpr")[0] == 2
    assert run("answer", home / "a.bpr", "who", "--file", home / "qa.jsonl")[0] == 2
    (tmp_path / "none.txt").write_text("\n \n")
    for given, says in (
        (["--file", tmp_path / "none.txt"], "holds no questions"),
        (["who", "--reader", tmp_path], "has no reader"),
    ):
        status, out, err = run("answer", home / "a.bpr", *given)
        assert (status, out) == (1, "") and says in err


# ── evaluate, calibrate ──────────────────────────────────────────────────────────────────────────────────────────────


def test_evaluate_with_a_reader(run: Run, home: Path, tiny_reader: Path, tmp_path: Path) -> None:
    given = ("evaluate", home / "a.bpr", home / "qa.jsonl", "-k", 1, "--reader", tiny_reader, "--read", 1, "--read", 12)
    status, out, _ = run(*given, "-o", tmp_path / "run", "--json")
    found = json.loads(out)
    assert status == 0 and found["reader"] == str(tiny_reader)
    for name in ("EM, 1 read", "EM, 12 read", "F1, 1 read", "F1, 12 read"):
        assert 0 <= found["measures"][name]["low"] <= found["measures"][name]["mean"] <= 100
    assert found["measures"]["F1, 12 read"]["mean"] >= found["measures"]["EM, 12 read"]["mean"]
    kept = json.loads((tmp_path / "run" / "results.json").read_text())
    assert np.mean(kept["read"]["EM, 12 read"]) * 100 == pytest.approx(found["measures"]["EM, 12 read"]["mean"])
    status, out, _ = run(*given, "--against", tmp_path / "run", "--json")
    assert json.loads(out)["measures"]["EM, 12 read"]["difference"]["mean"] == 0
    status, out, _ = run(*given)
    assert status == 0 and "EM, 12 read" in out


def test_em_is_that_of_the_answers(run: Run, home: Path, tiny_reader: Path) -> None:
    from bpr.evaluation import exact_match

    with bpr.open(home / "a.bpr", reader=tiny_reader) as opened:
        given = [opened.answer(each["question"], k=7, least=0.0) for each in QUESTIONS]
    right = [exact_match(each.text, asked["answers"]) for each, asked in zip(given, QUESTIONS, strict=True)]
    _, out, _ = run(
        "evaluate", home / "a.bpr", home / "qa.jsonl", "-k", 1, "--reader", tiny_reader, "--read", 7, "--json"
    )
    assert json.loads(out)["measures"]["EM, 7 read"]["mean"] == pytest.approx(100 * np.mean(right))


def test_read_without_a_reader_and_questions_without_answers(
    run: Run, home: Path, tiny_reader: Path, tmp_path: Path
) -> None:
    assert run("evaluate", home / "a.bpr", home / "qa.jsonl", "--read", 5)[0] == 2
    (tmp_path / "gold.jsonl").write_text(json.dumps({"question": "moon", "positives": ["p1"], "answers": []}) + "\n")
    status, _, err = run("evaluate", home / "a.bpr", tmp_path / "gold.jsonl", "-k", 1, "--reader", tiny_reader)
    assert status == 1 and "none of the questions has answers" in err


@pytest.fixture
def lucky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third answer is right: a random network has none."""
    from bpr import answering

    turns = iter(range(10_000))
    monkeypatch.setattr(answering, "exact_match", lambda text, answers: next(turns) % 3 == 0)


def test_calibrate(run: Run, home: Path, tiny_reader: Path, tmp_path: Path, lucky: None) -> None:
    shutil.copytree(tiny_reader, tmp_path / "reader")
    given = ("calibrate", home / "a.bpr", home / "qa.jsonl", "--reader", tmp_path / "reader", "-k", 6)
    status, out, err = run(*given, "-o", tmp_path / "plots", "--json")
    found = json.loads(out)
    assert status == 0, err
    assert found["questions"] == 24 and found["exact"] == pytest.approx(100 / 3) and 0 <= found["ece"] <= 1
    assert [each["answers"] for each in found["reliability"]] == [3] * 4 + [2] * 6 and "auroc" not in found
    assert found["coverage"]["100%"] == pytest.approx(100 / 3)
    assert {each.name for each in (tmp_path / "plots").iterdir()} == {"reliability.png", "reliability.svg"}
    assert readers.load_model(tmp_path / "reader")[0] == readers.load_model(tiny_reader)[0]

    status, out, err = run(*given, "--absent", "--write", "--json")
    found = json.loads(out)
    assert status == 0 and found["absent"] == 24 and 0 <= found["auroc"] <= 1
    stored = readers.load_model(tmp_path / "reader")[0]
    assert stored.passages == 6 and stored.threshold == found["threshold"]
    assert vars(stored.calibration) == found["calibration"]
    readers.Reader.open(tmp_path / "reader")
    status, out, _ = run(*given, "--absent", "--limit", 20)
    assert status == 0 and "AUROC" in out and "ECE" in out and "20 questions without their article" in out


def test_what_counts_as_right(home: Path, tiny_reader: Path) -> None:
    from bpr import answering
    from bpr.evaluation import f1
    from bpr.questions import read_questions

    asked = read_questions(home / "qa.jsonl")
    with bpr.open(home / "a.bpr", reader=tiny_reader) as opened:
        said = [opened.answer(question.text, k=6, least=0.0).text for question in asked]
        more = ["indeed", "or so it is told"] * len(said)  # one word too many, and five
        near = [replace(each, answers=(" ".join(texts),)) for each, *texts in zip(asked, said, more, strict=False)]
        assert not answering.ask(opened, near, 6).right.any()
        overlap = [f1(text, each.answers) for text, each in zip(said, near, strict=True)]
        level = float(np.mean(overlap))
        assert min(overlap) < level < max(overlap) < 1
        assert answering.ask(opened, near, 6, right_from=level).right.tolist() == [each >= level for each in overlap]


def test_confidence_is_fitted_to_questions_that_have_an_answer() -> None:
    from bpr.answering import Sure

    dice = np.random.default_rng(0)
    known = np.stack([np.ones(200), *dice.standard_normal((3, 200))], axis=1)
    right = dice.random(200) < 1 / (1 + np.exp(-known[:, 1]))
    there = Sure(known, right, np.ones(200, bool))
    gone = Sure(known, np.zeros(200, bool), np.zeros(200, bool))
    assert (there + gone).fit() == there.fit()
    assert abs(float((there + gone).crossed()[:200].mean()) - float(right.mean())) < 0.02


def test_an_absent_article_is_not_read(run: Run, home: Path, tiny_reader: Path) -> None:
    from bpr import answering
    from bpr.questions import read_questions

    asked = read_questions(home / "qa.jsonl")
    with bpr.open(home / "a.bpr") as opened:
        for question, mask in zip(asked, answering._without_articles(opened, asked), strict=True):
            own = int(next(iter(question.gold))[1:]) // 4
            assert np.flatnonzero(~mask).tolist() == list(range(4 * own, 4 * own + 4))


def test_what_calibrate_refuses(run: Run, home: Path, tiny_reader: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "moon", "answers": ["sun"]}) + "\n")
    given = ("calibrate", home / "a.bpr", tmp_path / "q.jsonl", "--reader", tiny_reader)
    status, _, err = run(*given)
    assert status == 1 and "right ones and wrong ones" in err
    status, _, err = run(*given, "--absent")
    assert status == 1 and "has no gold passage" in err


# ── prepare, train, export ───────────────────────────────────────────────────────────────────────────────────────────


def test_from_examples_to_a_reader_that_answers(run: Run, home: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "start.json")
    backbone(places=128).save_pretrained(tmp_path / "start")
    shutil.copy(tokenizer, tmp_path / "start" / "tokenizer.json")
    trec = [f"{i + 1} Q0 p{(i + step) % 24} {step + 1} {9 - step} x\n" for i in range(24) for step in range(5)]
    (tmp_path / "run.trec").write_text("".join(trec))
    status, out, err = run(
        "prepare-reader", home / "passages.jsonl", home / "examples.jsonl", "--retrieved", tmp_path / "run.trec",
        "--tokenizer", tokenizer, "--hold-out", 0.3, "-o", tmp_path / "data", "--json",
    )  # fmt: skip
    assert status == 0, err
    facts = json.loads(out)
    assert facts["train"] + facts["held"] == 24 and facts["passages"] == 24
    recipe = tmp_path / "reader.toml"
    recipe.write_text(f'start = "{tmp_path / "start"}"\nlength = 96\nquestion_length = 16\nbatch = 4\nepochs = 2\n')
    status, out, err = run(
        "train-reader", recipe, "--data", tmp_path / "data", "--set", "negatives=2", "-o", tmp_path / "reader", "--json"
    )
    assert status == 0, err
    (line,) = json.loads(out)["runs"]
    assert line["recipe"]["negatives"] == 2 and "eval_em" in line["metrics"]
    status, out, err = run("export", tmp_path / "reader", "-o", tmp_path / "small", "--json")
    assert status == 0 and json.loads(out)["agreement"] > 0.9, err
    status, out, _ = run("export", tmp_path / "reader")
    assert status == 0 and "reader.onnx" in out
    status, _, err = run("export", tmp_path / "reader", "--texts", home / "passages.jsonl")
    assert status == 1 and "too few pairs of question and passage to round weights by (24)" in " ".join(err.split())
    status, out, _ = run("answer", home / "a.bpr", "moon", "--reader", tmp_path / "small", "--json")
    assert status == 0 and json.loads(out)["answers"]


def test_rows_as_an_array_and_what_is_refused(run: Run, home: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t.json")
    files = ("prepare-reader", home / "passages.jsonl", home / "examples.jsonl", "--tokenizer", tokenizer)
    np.save(tmp_path / "r.npy", np.tile(np.arange(5, dtype=np.int32), (24, 1)))
    status, _, err = run(*files, "--retrieved", tmp_path / "r.npy", "-o", tmp_path / "d")
    assert status == 0 and "questions to train on" in err
    np.save(tmp_path / "wrong.npy", np.full((24, 5), 24))
    (tmp_path / "wrong.trec").write_text("99 Q0 p1 1 1 x\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for given, says in (
        (["--retrieved", tmp_path / "wrong.npy", "-o", tmp_path / "e"], "the passages are 0 to 23"),
        (["--retrieved", tmp_path / "none.npy", "-o", tmp_path / "e"], "no array of row numbers"),
        (["--retrieved", tmp_path / "wrong.trec", "-o", tmp_path / "e"], "does not name one of the 24 examples"),
        (["--retrieved", tmp_path / "r.npy", "-o", tmp_path / "full"], "holds something else"),
    ):
        status, out, err = run(*files, *given)
        assert (status, out) == (1, "") and says in err
    assert run("train-reader")[0] == 2
    status, _, err = run("train-reader", tmp_path / "x.toml", "--data", tmp_path, "-o", tmp_path / "o")
    assert status == 1 and "is not data that `bpr prepare-reader` wrote" in err


def test_the_recipe_is_printed_with_every_setting_explained(run: Run, tmp_path: Path) -> None:
    from bpr.training.readerrun import ReaderRecipe
    from bpr.training.recipe import known, load_as

    status, out, _ = run("train-reader", "--print-recipe")
    assert status == 0
    (tmp_path / "r.toml").write_text(out)
    assert load_as(ReaderRecipe, tmp_path / "r.toml") == ReaderRecipe()
    assert {*known(ReaderRecipe)} <= settings.READER_EXPLAINED.keys()


def test_a_reader_moved_in_with_a_model_is_found_by_the_verbs(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    from bpr.training.readerexport import export_reader

    made: Any = make_reader(tmp_path / "r", onnx=False)
    assert made.name == "tiny reader"
    shutil.copytree(tiny_model, tmp_path / "both")
    export_reader(tmp_path / "r", tmp_path / "both")
    bpr.build(PASSAGES, tmp_path / "b.bpr", model=tmp_path / "both")
    status, out, _ = run("answer", tmp_path / "b.bpr", "moon", "--json")
    assert status == 0 and json.loads(out)["answers"]


@pytest.mark.parametrize("verb", ["answer", "prepare-reader", "train-reader", "calibrate"])
def test_the_help_explains_every_option_with_examples(run: Run, verb: str) -> None:
    status, out, _ = run(verb, "--help")
    assert status == 0 and re.search(rf"^ +\$ bpr {verb} ", out, re.M)
    for option in re.findall(r"^  (?:-\w, )?(--[\w-]+)", out, re.M):
        assert re.search(rf"{option}\b.*\s{{2,}}\S|{option}\b.*\n +\S", out), option
    program = run("--help")[1]
    assert re.search(rf"^  {verb} +[A-Z].*[^.]\.$", program, re.M)
