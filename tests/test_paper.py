"""examples/paper.py, every step of it, on small files in DPR's layout."""

from __future__ import annotations

import csv
import gzip
import json
import random
import runpy
from pathlib import Path

import pytest

from bpr import bench
from bpr.compare import measure
from tiny_models import WORDS, backbone, write_tokenizer

SCRIPT = Path(__file__).parent.parent / "examples" / "paper.py"
ROWS, EXAMPLES, ASKED = 300, 64, 12
SMALL = [
    "batch=16", "epochs=1", "evaluate_every=0", "learning_rate=2e-4", "pool=50", "diet.question_length=16",
    "diet.passage_length=48",
]  # fmt: skip


def write_data(folder: Path) -> None:
    """psgs_w100.tsv, biencoder-nq-train.json.gz and nq-test.qa.csv, as DPR has them."""
    folder.mkdir()
    dice = random.Random(4)
    passages = [(str(row), " ".join(dice.choices(WORDS, k=20)), dice.choice(WORDS)) for row in range(1, ROWS + 1)]
    with (folder / "psgs_w100.tsv").open("w", newline="") as out:
        csv.writer(out, delimiter="\t").writerows([("id", "text", "title"), *passages])

    def context(row: int) -> dict:
        number, text, title = passages[row % ROWS]
        return {"title": title, "text": text, "score": 1.0, "title_score": 0, "passage_id": number}

    items = [
        {
            "dataset": "nq_train",
            "question": " ".join(passages[row][1].split()[:5]),
            "answers": [passages[row][1].split()[3]],
            "positive_ctxs": [context(row)],
            "negative_ctxs": [],
            "hard_negative_ctxs": [context(row + step) for step in range(1, 4)],
        }
        for row in range(EXAMPLES)
    ]
    with gzip.open(folder / "biencoder-nq-train.json.gz", "wt") as out:
        json.dump(items, out, indent=4)
    asked = [(" ".join(text.split()[:6]), repr([" ".join(text.split()[2:6])])) for _, text, _ in passages[:ASKED]]
    (folder / "nq-test.qa.csv").write_text("".join(f"{question}\t{answers}\n" for question, answers in asked))


def write_start(folder: Path) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    backbone().save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")


def test_the_whole_experiment_and_what_is_done_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(measure, "ROUNDS", 1)
    monkeypatch.setattr(measure._Work, "_resident", lambda *given: None)  # test_compare.py measures it
    write_data(tmp_path / "data")
    write_start(tmp_path / "start")
    out = tmp_path / "out"
    script = runpy.run_path(str(SCRIPT))
    changes = [part for each in SMALL for part in ("--change", each)]
    given = [tmp_path / "data", out, "--set", "nq", "--start", tmp_path / "start", "--mined", *changes]
    script["main"]([*map(str, given)])
    shown = capsys.readouterr().out
    verbs = [line.split()[2] for line in shown.splitlines() if line.startswith("$ bpr ")]
    assert verbs == [
        "convert", "train", "export", "train", "export", "mine", "train", "export", "index", "evaluate", "compare",
    ]  # fmt: skip
    results = json.loads((out / "evaluate" / "results.json").read_text())
    assert {"top 1, answer", "top 20, answer", "top 100, answer"} <= {*results["measures"]}
    report = json.loads((out / "compare" / "compare.json").read_text())
    assert report["main"] == "BPR, one plane" and (report["passages"], report["questions"]) == (ROWS, ASKED)
    assert report["right"] == "a passage in which an answer stands"
    hnsw = next(row for row in report["rows"] if row["name"] == "DPR + HNSW")
    assert hnsw["settings"]["links"] == 512
    same = {row["name"]: row for row in report["rows"]}["BPR, one plane"]["top"]["20"]["mean"]
    assert same == pytest.approx(results["measures"]["top 20, answer"]["mean"])
    recipe = json.loads((out / "bpr" / "ledger.jsonl").read_text().splitlines()[-1])["recipe"]
    assert (recipe["objective"]["gamma"], recipe["objective"]["margin"], recipe["learning_rate"]) == (0.1, 2.0, 2e-4)
    assert (
        json.loads((out / "dpr" / "ledger.jsonl").read_text().splitlines()[-1])["recipe"]["objective"]["code"]
        == "float"
    )

    script["main"]([*map(str, given)])
    shown = capsys.readouterr().out
    assert [line.split()[2] for line in shown.splitlines() if line.startswith("$ bpr ")] == ["compare"]


def test_the_papers_settings_are_those_of_the_paper(tmp_path):
    """As far as a recipe says them; what it does not say is bpr's default."""
    from bpr.training import recipe

    path = tmp_path / "recipe.toml"
    path.write_text(runpy.run_path(str(SCRIPT))["RECIPE"].format(start="x", name="y", code="bits"))
    made = recipe.load(path)
    paper = (made.batch, made.epochs, made.learning_rate, made.warmup, made.dropout, made.clip, made.weight_decay)
    assert paper == (128, 40, 2e-5, 0.06, 0.1, 2.0, 0.0)
    assert (made.objective.gamma, made.objective.margin, made.objective.planes, made.pooling) == (0.1, 2.0, 1, "cls")
    assert (made.diet.hard, made.diet.question_length, made.diet.passage_length) == (1, 256, 256)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(SystemExit, match=r"psgs_w100\.tsv\(\.gz\) is missing"):
        runpy.run_path(str(SCRIPT))["main"]([str(tmp_path), str(tmp_path / "out")])
