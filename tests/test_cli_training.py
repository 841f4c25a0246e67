"""The verbs of training, as a person runs them: docs/training.md from top to bottom in a toy world; what goes wrong.

The whole way, from a SQuAD file to a search with the model that was trained on it, is walked once (`guide`).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer

import bpr
from bpr import cli
from bpr import model as models
from bpr.answers import has_answer
from bpr.cli import settings
from bpr.passages import read
from bpr.training.data import Example, hold_out, read_examples
from saying import examples
from small_disk import files_up_to
from tiny_models import PIECES, SPECIAL, WORDS, backbone, make_model, write_tokenizer

pytest.importorskip("torch")

GUIDE = (Path(__file__).parent.parent / "docs" / "training.md").read_text(encoding="utf-8")
CONVERTERS = ("convert squad", "convert beir", "convert dpr", "convert checkpoint", "convert encoder")
VERBS = (*CONVERTERS, "mine", "train", "export", "average")
ARTICLES, PARAGRAPHS, QUESTIONS = 20, 3, 2


class Said(NamedTuple):
    status: int
    out: str
    err: str


def call(*arguments: object) -> Said:
    """Run `bpr` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["bpr", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:
            cli.main()
    return Said(int(end.value.code or 0), out.getvalue(), err.getvalue())


def one_line(said: Said) -> str:
    assert (said.status, said.out) == (1, ""), said
    assert re.fullmatch(r"bpr: [^\n]+\n", said.err), said.err
    return said.err


# ── The toy world ────────────────────────────────────────────────────────────────────────────────────────────────────


def titles(held: int, others: int) -> list[str]:
    """Of articles that --hold-out's default puts aside, and of others."""
    names = [f"article {number}" for number in range(1000)]
    train, kept = (
        [example.group for example in side] for side in hold_out([Example("?", group=name) for name in names], 0.03)
    )
    return [*kept[:held], *train[:others]]


def write_squad(path: Path, seed: int, names: list[str]) -> None:
    dice = random.Random(seed)
    data = []
    for name in names:
        paragraphs = []
        for _ in range(PARAGRAPHS):
            words = dice.choices(WORDS, k=20)
            asked = [
                {
                    "question": f"what is {' '.join(dice.sample(words, 3))}?",
                    "answers": [{"text": " ".join(words[q : q + 3])}],
                }
                for q in range(QUESTIONS)
            ]
            paragraphs.append({"context": f"{' '.join(words)}.", "qas": asked})
        data.append({"title": name, "paragraphs": paragraphs})
    path.write_text(json.dumps({"data": data}))


def write_start(folder: Path) -> None:
    """Transformers weights and a tokenizer."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    backbone().save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")


def write_foreign_data(folder: Path) -> None:
    context = {"title": "iliad", "text": "homer wrote the iliad", "passage_id": "7"}
    item = {"question": "who wrote the iliad?", "answers": ["homer"], "positive_ctxs": [context]}
    with gzip.open(folder / "biencoder-nq-train.json.gz", "wt") as file:
        json.dump([item], file)
    home = folder / "scifact"
    (home / "qrels").mkdir(parents=True)
    (home / "corpus.jsonl").write_text('{"_id": "d1", "title": "", "text": "the moon"}\n')
    (home / "queries.jsonl").write_text('{"_id": "q1", "text": "what moon?"}\n')
    for split in ("train", "test"):
        (home / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")


def write_foreign_weights(folder: Path) -> None:
    """A checkpoint and two folders as they are published, but small."""
    import torch
    import transformers

    size = {
        "vocab_size": len(dict.fromkeys([*SPECIAL, *PIECES, *WORDS])),
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    weights = transformers.BertModel(transformers.BertConfig(**size)).state_dict()
    sides = ("query_encoder", "passage_encoder")
    state = {f"{side}.{key}": value for side in sides for key, value in weights.items()}
    torch.save({"state_dict": state, "hyper_parameters": {"max_query_length": 20}}, folder / "bpr_nq.ckpt")
    config = transformers.DPRConfig(**size)
    transformers.DPRQuestionEncoder(config).save_pretrained(folder / "dpr-question_encoder")
    transformers.DPRContextEncoder(config).save_pretrained(folder / "dpr-ctx_encoder")
    for name in ("bert-base-uncased", "dpr-question_encoder"):
        (folder / name).mkdir(exist_ok=True)
        write_tokenizer(folder / name / "tokenizer.json")


def write_recipe(path: Path) -> None:
    """The guide's recipe, as far as its settings go; smaller numbers."""
    from bpr.training import recipe

    path.write_text(re.search(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[1])
    small = {
        "bits": "64",
        "batch": "16",
        "epochs": "1",
        "evaluate_every": "4",
        "log_every": "2",
        "learning_rate": "2e-4",
    }
    lengths = {"diet.question_length": "16", "diet.passage_length": "48"}
    path.write_text(settings.as_toml(recipe.load(path, {**small, **lengths}).to_dict()))


def commands() -> list[str]:
    """What stands behind a $ in the guide."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    return [line[2:].partition("  #")[0].strip() for block in blocks for line in block.splitlines() if line[:2] == "$ "]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Every command of the guide, run in its order in one folder; what each said. Not to be changed."""
    folder = tmp_path_factory.mktemp("guide")
    write_squad(folder / "train-v1.1.json", 1, titles(2, ARTICLES - 2))
    write_squad(folder / "dev-v1.1.json", 2, ["x", "y", "z"])
    write_start(folder / "all-MiniLM-L6-v2")
    write_foreign_data(folder)
    write_foreign_weights(folder)
    write_recipe(folder / "recipe.toml")
    said: dict[str, Said] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands():
            words = shlex.split(command)
            if words[0] == "bpr":
                said[command] = call(*words[1:])
                assert said[command].status == 0, (command, said[command])
            else:
                subprocess.run(command, shell=True, check=True, cwd=folder)
    return SimpleNamespace(folder=folder, said=said)


@pytest.fixture
def here(guide: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with what the guide began with, and its first steps, to do other things in."""
    for name in ("squad", "dev", "all-MiniLM-L6-v2", "recipe.toml", "train-v1.1.json"):
        source = guide.folder / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said_by(guide: SimpleNamespace, start: str) -> Said:
    (found,) = [said for command, said in guide.said.items() if command.startswith(start)]
    return found


# ── The whole way ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_command_of_the_guide_succeeds(guide):
    assert len(guide.said) >= 17
    for command, said in guide.said.items():  # all with status 0, or the fixture had failed
        assert "Traceback" not in said.err and "warning" not in said.err, (command, said)
    asked = {verb for verb in VERBS if any(command.startswith(f"bpr {verb} ") for command in guide.said)}
    assert asked == {*VERBS}


def test_from_squad_to_a_search(guide):
    """Each step used what the one before it made, and said so."""
    folder = guide.folder
    passages, examples = ARTICLES * PARAGRAPHS, ARTICLES * PARAGRAPHS * QUESTIONS
    assert said_by(guide, "bpr convert squad train").err == f"squad: {passages} passages, {examples} examples\n"
    texts = {passage.id: passage.text for passage in read(folder / "squad" / "passages.jsonl")}
    mined = list(read_examples(folder / "squad" / "bm25.jsonl"))
    assert (len(texts), len(mined)) == (passages, examples)
    for example in mined:
        assert example.negatives and not {*example.negatives} & {*example.positives}
        assert not any(has_answer(example.answers, texts[each]) for each in example.negatives)
    assert re.fullmatch(
        rf"squad/bm25.jsonl: {examples} examples, \d+\.\d negatives each; 0 have none\n",
        said_by(guide, "bpr mine squad/passages.jsonl squad/examples.jsonl").err,
    )

    trained = said_by(guide, "bpr train recipe.toml --passages squad/passages.jsonl --examples squad/bm25.jsonl")
    (line,) = [json.loads(line) for line in (folder / "first" / "ledger.jsonl").read_text().splitlines()]
    assert line["recipe"]["start"] == "all-MiniLM-L6-v2" and line["data"]["held"] > 0
    header, figures = trained.out.splitlines()[:2]
    assert re.split(r"  +", header.strip()) == ["model", "steps", "average rank", "top 1", "top 5", "top 20", "top 100"]
    assert figures.split() == ["first", str(line["steps"]), *(f"{each:,.2f}" for each in line["metrics"].values())]
    assert "first/ledger.jsonl" in trained.err.splitlines()[-1]
    assert re.search(r"^step 2  loss [\d.]+ ", trained.err, re.M)

    exported = said_by(guide, "bpr export first").out.splitlines()
    assert [row.split()[0] for row in exported[1:3]] == ["question.onnx", "passage.onnx"]
    assert all(re.search(r" \d+\.\d kB +\d+\.\d\d%$", row.rstrip()) for row in exported[1:3])
    found = said_by(guide, "bpr search").out.splitlines()
    assert found[0] == "who wrote the Iliad?" and len(found) == 1 + 2 * 20
    assert json.loads(call("info", folder / "squad.bpr", "--json").out)["model"]["name"] == "mine"
    with bpr.open(folder / "squad.bpr") as retriever:
        assert retriever.search(mined[0].question, k=1)[0].text in texts.values()


def test_a_model_s_negatives_are_the_first_of_what_it_finds_and_old_ones_follow(guide):
    folder = guide.folder
    before = list(read_examples(folder / "squad" / "bm25.jsonl"))
    after = list(read_examples(folder / "squad" / "mined.jsonl"))
    assert [each.question for each in after] == [each.question for each in before]
    with bpr.open(folder / "squad.bpr") as retriever:
        found = retriever.search([each.question for each in after[:5]], k=100)
    for old, new, hits in zip(before, after, found, strict=False):
        fit = [hit.id for hit in hits if hit.id not in old.positives and not has_answer(old.answers, hit.text)]
        assert list(new.negatives[:20]) == fit[:20]
        assert list(new.negatives[20:]) == [each for each in old.negatives if each not in fit[:20]][:10]


def test_the_second_round_begins_with_the_first_model(guide):
    (line,) = [json.loads(line) for line in (guide.folder / "second" / "ledger.jsonl").read_text().splitlines()]
    assert line["models"]["start"] == models.load(guide.folder / "first")[0].fingerprint


def test_a_sweep_shows_every_run_and_marks_the_best(guide):
    said = said_by(guide, "bpr train recipe.toml --prepared first.data --sweep")
    rows = [row.split() for row in said.out.splitlines()[1:3]]
    assert {row[0] for row in rows} == {"rates/learning_rate=2e-5", "rates/learning_rate=5e-5"}
    marked = [row for row in rows if row[1] == "*"]
    assert len(marked) == 1
    assert f"bpr export {marked[0][0]}" in said.err.splitlines()[-1]


def test_the_mean_stands_between_its_two_models(guide):
    from bpr.training.tower import load_tower

    tuned, start, mean = (
        load_tower(guide.folder / name, "passage").backbone.state_dict() for name in ("second", "first", "mean")
    )
    name = "encoder.layer.0.output.dense.weight"
    assert np.allclose(mean[name], 0.8 * tuned[name] + 0.2 * start[name], atol=1e-6)
    assert not (guide.folder / "mean-int8" / "passage_encoder").exists()
    assert (guide.folder / "mean-int8" / "passage.onnx").exists()
    assert said_by(guide, "bpr average").err.startswith("mean: 0.8 × second + 0.2 × first; ")


def test_a_test_set_is_neither_mined_nor_looked_at(guide):
    from bpr.training.prepared import Prepared

    dev = {each for example in read_examples(guide.folder / "dev" / "examples.jsonl") for each in example.positives}
    assert dev and all(each.startswith("dev-") for each in dev)
    mined = [each for example in read_examples(guide.folder / "all-bm25.jsonl") for each in example.negatives]
    assert mined and not dev & {*mined}
    data = Prepared.load(guide.folder / "honest.data")
    ids = [passage.id for passage in read(guide.folder / "all.jsonl")]
    seen = {each for each, trainable in zip(ids, data.trainable, strict=True) if trainable}
    assert seen and not dev & seen


def test_foreign_weights_become_models(guide):
    authors, facebook = (models.load(guide.folder / name)[0] for name in ("bpr-nq", "dpr-nq"))
    assert (authors.name, authors.bits, authors.question_length, authors.token_types) == ("bpr_nq", 64, 20, True)
    assert (facebook.name, facebook.bits, facebook.token_types) == ("dpr-nq", 64, False)
    assert said_by(guide, "bpr convert checkpoint bpr_nq.ckpt").err.startswith("bpr-nq: 64 bits; `bpr export bpr-nq`")
    minilm, _ = models.load(guide.folder / "minilm")
    assert (minilm.name, minilm.pooling, minilm.normalize, minilm.shared) == ("all-MiniLM-L6-v2", "mean", True, True)


def test_the_guide_s_recipe_is_one(tmp_path):
    from bpr.training import recipe

    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)):
        (tmp_path / f"{number}.toml").write_text(block)
        assert recipe.load(tmp_path / f"{number}.toml").start
    (line,) = re.findall(r"```json\n(.*?)\n```", GUIDE, re.DOTALL)
    (tmp_path / "e.jsonl").write_text(line)
    assert [example.positives for example in read_examples(tmp_path / "e.jsonl")] == [("p7",)]


# ── convert ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_converted_counts_as_json_and_nothing_when_quiet(guide, tmp_path):
    source = guide.folder / "train-v1.1.json"
    said = call("convert", "squad", source, "-o", tmp_path / "a" / "b", "--json", "--prefix", "x-")
    counts = {"passages": 60, "examples": 120, "skipped": 0}
    assert (said.status, json.loads(said.out), said.err) == (0, {"folder": str(tmp_path / "a" / "b"), **counts}, "")
    assert next(read(tmp_path / "a" / "b" / "passages.jsonl")).id == "x-0-0"
    assert call("convert", "squad", source, "-o", tmp_path / "c", "-q") == (0, "", "")


def test_broken_items_are_an_error_or_counted(guide, tmp_path):
    whole = json.loads((guide.folder / "train-v1.1.json").read_text())
    for article in whole["data"][:15]:
        article["paragraphs"][0]["qas"][0]["answers"] = []
    (tmp_path / "s.json").write_text(json.dumps(whole))
    folder = tmp_path / "new"
    said = call("convert", "squad", tmp_path / "s.json", "-o", folder)
    assert "article 0, paragraph 0, question 0: no answers" in one_line(said)
    assert not folder.exists()
    said = call("convert", "squad", tmp_path / "s.json", "-o", folder, "--skip-bad")
    assert said.status == 0
    *skips, summary = said.err.splitlines()
    assert len(skips) == 10 and all(each.startswith("skipped: ") for each in skips)
    assert summary == f"{folder}: 60 passages, 105 examples, 15 items skipped"


def test_beir_has_splits(guide, tmp_path):
    assert call("convert", "beir", guide.folder / "scifact", "--split", "test", "-o", tmp_path / "b", "-q").status == 0
    said = call("convert", "beir", guide.folder / "scifact", "--split", "dev", "-o", tmp_path / "c")
    assert "dev.tsv" in one_line(said)
    assert not (tmp_path / "c").exists()


def test_checkpoints_as_json_and_quietly(guide, tmp_path):
    words = ["convert", "checkpoint", guide.folder / "bpr_nq.ckpt", "--tokenizer", guide.folder / "bert-base-uncased"]
    said = call(*words, "-o", tmp_path / "m", "--name", "nq", "--json")
    facts = json.loads(said.out)
    assert (facts["name"], facts["bits"]) == ("nq", 64)
    assert facts["fingerprint"] == models.load(tmp_path / "m")[0].fingerprint
    assert call(*words, "-o", tmp_path / "n", "-q") == (0, "", "")
    assert "is there already" in one_line(call(*words, "-o", tmp_path / "n"))


# ── mine ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mining_with_a_model_is_mining_with_its_bundle(guide, tmp_path):
    files = [guide.folder / "squad" / "passages.jsonl", guide.folder / "squad" / "bm25.jsonl"]
    exclude = ["--exclude", guide.folder / "squad" / "few.jsonl", "--pool", 8, "--depth", 4, "--keep-bm25", 1, "--json"]
    some = (guide.folder / "squad" / "examples.jsonl").read_text().splitlines(keepends=True)
    (guide.folder / "squad" / "few.jsonl").write_text("".join(some[:40]))
    by_model = call("mine", *files, "--model", guide.folder / "first", "-o", tmp_path / "a.jsonl", *exclude)
    by_bundle = call("mine", *files, "--bundle", guide.folder / "squad.bpr", "-o", tmp_path / "b.jsonl", *exclude)
    assert (by_model.status, by_model.err, by_bundle.status, by_bundle.err) == (0, "", 0, "")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    mined = list(read_examples(tmp_path / "a.jsonl"))
    counts = {"examples": 120, "negatives": sum(len(each.negatives) for each in mined), "without": 0}
    assert json.loads(by_model.out) == {"output": str(tmp_path / "a.jsonl"), **counts}
    hidden = {each for line in some[:40] for each in json.loads(line)["positives"]}
    assert not hidden & {each for example in mined for each in example.negatives}
    assert max(len(each.negatives) for each in mined) == 5


def test_a_place_that_cannot_be_written_is_one_line(guide, tmp_path):
    files = [guide.folder / "squad" / name for name in ("passages.jsonl", "examples.jsonl")]
    for how in (["--model", guide.folder / "first"], ["--bundle", guide.folder / "squad.bpr"]):
        assert "nowhere" in one_line(call("mine", *files, *how, "-o", tmp_path / "nowhere" / "m.jsonl"))


def test_an_exclusion_without_effect_is_told(guide, tmp_path):
    files = [guide.folder / "squad" / name for name in ("passages.jsonl", "examples.jsonl")]
    dev = guide.folder / "dev" / "examples.jsonl"
    command = ["mine", *files, "--exclude", dev, "--bundle", guide.folder / "squad.bpr", "-o", tmp_path / "m.jsonl"]
    said = call(*command)
    assert said.status == 0
    assert said.err.splitlines()[0] == f"warning: no positive of {dev} is among the passages, so it excludes nothing"
    assert call(*command, "-q") == (0, "", "")


def test_a_bundle_of_other_passages_is_refused(guide, tmp_path):
    lines = (guide.folder / "squad" / "passages.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "turned.jsonl").write_text("".join([*lines[1:], lines[0]]))
    (tmp_path / "fewer.jsonl").write_text("".join(lines[1:]))
    rest = [
        guide.folder / "squad" / "examples.jsonl",
        "--bundle",
        guide.folder / "squad.bpr",
        "-o",
        tmp_path / "m.jsonl",
    ]
    assert "passage 1 is '0-1' in" in one_line(call("mine", tmp_path / "turned.jsonl", *rest))
    assert "holds 59 passages and" in one_line(call("mine", tmp_path / "fewer.jsonl", *rest))
    assert not (tmp_path / "m.jsonl").exists()


# ── train ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Runs(list[dict[str, Any]]):
    """The calls of run.train and run.sweep, which do nothing here."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    from bpr.training import run

    calls = Runs()
    line = {"steps": 1, "metrics": {}, "output": "m"}

    def train(recipe, data, tokenizer, output, **how):
        print("a library speaks")
        calls.append({"recipe": recipe, "data": data, "tokenizer": tokenizer, "output": output, **how})
        return line

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(run, "sweep", lambda recipe, choices, *rest, **how: ([train(recipe, *rest, **how)], choices))
    return calls


TRAIN = ["train", "recipe.toml", "--passages", "squad/passages.jsonl", "--examples", "squad/examples.jsonl", "-o", "m"]


def test_training_gets_what_the_options_say(here, runs):
    options = [
        "--set",
        "seed=7",
        "--set",
        "objective.margin = 4",
        "--hold-out",
        "0.5",
        "--reserve",
        "squad/examples.jsonl",
    ]
    assert call(*TRAIN, *options, "--resume", "-q") == (0, "", "a library speaks\n")
    (asked,) = runs
    assert (asked["recipe"].seed, asked["recipe"].objective.margin, asked["recipe"].epochs) == (7, 4.0, 1)
    assert (asked["tokenizer"], asked["output"]) == (Path("all-MiniLM-L6-v2/tokenizer.json"), Path("m"))
    assert asked["resume"] is True
    assert 20 < asked["data"].held.sum() < 100
    assert not asked["data"].trainable.any()


def test_texts_are_cut_once_and_again_only_for_other_files(here, runs, monkeypatch):
    from bpr.training import prepared

    cut = []
    real = prepared.prepare
    monkeypatch.setattr(prepared, "prepare", lambda *given, **how: cut.append(given) or real(*given, **how))
    assert call(*TRAIN).status == call(*TRAIN, "--set", "seed=3").status == 0
    assert (len(cut), len(runs)) == (1, 2)
    assert runs[0]["data"].fingerprint() == runs[1]["data"].fingerprint()
    assert call(*TRAIN, "--hold-out", "0.4").status == 0
    assert len(cut) == 2
    with Path("squad/examples.jsonl").open("a") as file:
        file.write('{"question": "and this?", "positives": ["0-0"]}\n')
    assert call(*TRAIN, "--hold-out", "0.4").status == 0
    assert len(cut) == 3
    (here / "m.data" / "source.json").write_text("")  # killed while it was written
    assert call(*TRAIN, "--hold-out", "0.4").status == 0
    assert len(cut) == 4
    assert call("train", "recipe.toml", "--prepared", "m.data", "-o", "n").status == 0
    assert len(cut) == 4
    assert runs[-1]["data"].fingerprint() == runs[-2]["data"].fingerprint()


def test_a_folder_that_is_in_the_way_of_the_tokens_is_left_alone(here, runs):
    (here / "m.data").mkdir()
    (here / "m.data" / "mine.txt").write_text("precious")
    assert "holds something else" in one_line(call(*TRAIN))
    assert [path.name for path in (here / "m.data").iterdir()] == ["mine.txt"]


def test_tokens_that_the_disk_does_not_take_leave_nothing(here, runs):
    with files_up_to(200):
        assert "cannot write" in one_line(call(*TRAIN))
    assert not (here / "m.data").exists() and not runs


def test_another_process_than_the_first_neither_writes_nor_speaks(here, runs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert call(*TRAIN) == (0, "", "a library speaks\n")
    assert not (here / "m.data").exists()
    assert len(runs[0]["data"].questions) == 120


def test_a_start_from_the_hub_brings_its_tokenizer(here, runs, monkeypatch):
    import huggingface_hub

    cached = {("some/bert", "tokenizer.json"): str(here / "all-MiniLM-L6-v2" / "tokenizer.json")}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *asked: cached.get(asked))
    assert call(*TRAIN, "--set", "start=some/bert").status == 0
    assert runs[0]["tokenizer"] == here / "all-MiniLM-L6-v2" / "tokenizer.json"
    assert "'other/bert' is not on this machine" in one_line(call(*TRAIN, "--set", "start=other/bert"))
    assert call(*TRAIN, "--set", "start=other/bert", "--tokenizer", "all-MiniLM-L6-v2/tokenizer.json").status == 0


def test_a_run_goes_on_only_if_it_is_asked_to(guide, here):
    for name in ("first", "first.data", "first.checkpoints"):
        shutil.copytree(guide.folder / name, here / name)
    command = "train recipe.toml --passages squad/passages.jsonl --examples squad/bm25.jsonl -o first"
    assert "of an earlier run: resume it, or delete that folder" in one_line(call(*command.split()))
    assert call(*command.split(), "--resume").status == 0
    before, after = [json.loads(line) for line in (here / "first" / "ledger.jsonl").read_text().splitlines()]
    assert (before["resumed"], after["resumed"][:11]) == (None, "checkpoint-")
    assert before["weights"] == after["weights"]
    said = call(*command.split(), "--resume", "--set", "seed=5")
    assert "belongs to a run with other settings (seed)" in one_line(said)


def test_without_held_out_questions_there_is_no_table(here, runs):
    said = call(*TRAIN, "--hold-out", "0")
    assert said.out == ""
    assert "m: 1 step; no questions were held out" in said.err
    assert "m/ledger.jsonl" in said.err
    said = call(*TRAIN, "--hold-out", "0", "--json")
    assert json.loads(said.out) == {"best": "m", "runs": [{"steps": 1, "metrics": {}, "output": "m"}]}


def test_progress_is_steps_of_all_steps_and_a_line_of_figures(capsys):
    from bpr.cli import training

    drawn = []
    report = training.reporter(True, lambda *given: drawn.append(given))
    report({"step": 50, "loss": 1.25, "epoch": 0.1})
    report({"step": 50, "eval_top_1": 12.345678})
    assert drawn == [("training", 50, 500), ("training", 50, None)]
    assert capsys.readouterr().err == "step 50  loss 1.25\nstep 50  eval_top_1 12.346\n"
    training.reporter(False, lambda *given: drawn.append(given))({"step": 1})
    assert len(drawn) == 2 and capsys.readouterr().err == ""


def test_the_printed_recipe_is_the_default_one_and_explains_every_setting(tmp_path):
    from bpr.training import recipe

    said = call("train", "--print-recipe")
    assert (said.status, said.err) == (0, "")
    (tmp_path / "r.toml").write_text(said.out)
    assert recipe.load(tmp_path / "r.toml") == recipe.Recipe()
    assert list(settings.EXPLAINED) == recipe.known(), "say in cli/settings.py what each setting is for, in their order"
    lines = said.out.splitlines()
    values = [number for number, line in enumerate(lines) if re.match(r"\w+ = ", line)]
    assert len(values) == len(recipe.known())
    assert all(lines[number - 1].startswith("# ") for number in values)
    assert max(map(len, lines)) <= 120


# ── export, average ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_export_as_json_and_in_float32(tmp_path):
    make_model(tmp_path / "m", onnx=False)
    said = call("export", tmp_path / "m", "--json")
    facts = json.loads(said.out)
    assert (said.status, said.err, facts["model"]) == (0, "", str(tmp_path / "m"))
    for side in ("question", "passage"):
        assert facts["bytes"][side] == (tmp_path / "m" / f"{side}.onnx").stat().st_size
        assert 0.9 < facts["agreement"][side] <= 1
    said = call("export", tmp_path / "m", "-o", tmp_path / "f", "--float32")
    assert (said.status, said.out.count("100.00%"), said.err) == (0, 2, "")
    assert (tmp_path / "f" / "passage.onnx").stat().st_size > 2 * facts["bytes"]["passage"]


def test_an_export_by_texts(here):
    make_model(here / "m")
    nearest = (here / "m" / "passage.onnx").read_bytes()
    by_texts = ["export", here / "m", "--texts", "squad/passages.jsonl"]
    said = call(*by_texts, "-o", "a")
    assert (said.status, said.err) == (0, "") and "passage.onnx" in said.out
    said = call(*by_texts, "-o", "b", "--questions", "squad/examples.jsonl", "--json")
    assert 0.9 < json.loads(said.out)["agreement"]["question"] <= 1
    passages, questions = ([Path(out, f"{side}.onnx").read_bytes() for out in "ab"] for side in ("passage", "question"))
    assert passages[0] == passages[1] != nearest and questions[0] != questions[1]
    Path("few.jsonl").write_text('{"id": "1", "text": "the moon"}\n')
    assert "too few passages to round weights by (1)" in one_line(call("export", here / "m", "--texts", "few.jsonl"))
    Path("none.jsonl").write_text("")
    assert "none.jsonl holds no passages" in one_line(call("export", here / "m", "--texts", "none.jsonl"))


def test_an_average_as_json(tmp_path):
    for seed, name in enumerate("ab"):
        make_model(tmp_path / name, seed=seed, onnx=False)
    said = call("average", tmp_path / "a", tmp_path / "b", "--share", "0.25", "-o", tmp_path / "m", "--json")
    fingerprint = models.load(tmp_path / "m")[0].fingerprint
    assert json.loads(said.out) == {"model": str(tmp_path / "m"), "share": 0.25, "fingerprint": fingerprint}
    assert call("average", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "n", "-q") == (0, "", "")


# ── What goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────

BOTH = "--passages squad/passages.jsonl --examples squad/examples.jsonl"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("convert squad nothing.json -o new", "nothing.json: there is no such file"),
        ("convert squad squad/passages.jsonl -o new", "not JSON in SQuAD's layout"),
        ("convert squad train-v1.1.json -o recipe.toml", "recipe.toml"),
        ("convert dpr train-v1.1.json -o new", "positive_ctxs"),
        ("convert beir squad -o new", "corpus.jsonl"),
        ("convert checkpoint nothing.ckpt --tokenizer all-MiniLM-L6-v2 -o new", "there is no such file"),
        ("convert encoder all-MiniLM-L6-v2 -o new", "give the pooling"),
        ("convert checkpoint recipe.toml --tokenizer all-MiniLM-L6-v2 -o new", "cannot be read as plain weights"),
        ("convert checkpoint squad dev --family bpr -o new", "squad has neither model.safetensors nor"),
        ("mine squad/examples.jsonl squad/passages.jsonl -o new", "is no field of an example"),
        ("mine squad/examples.jsonl squad/examples.jsonl -o new", '"id" is missing'),
        ("mine nothing.jsonl squad/examples.jsonl -o new", "nothing.jsonl: there is no such file"),
        ("mine squad/passages.jsonl nothing.jsonl -o new", "nothing.jsonl: there is no such file"),
        ("mine squad/passages.jsonl squad/examples.jsonl --exclude nothing -o new", "nothing: there is no such file"),
        ("mine squad/passages.jsonl squad/examples.jsonl --bundle nothing.bpr -o new", "there is no bundle"),
        ("mine squad/passages.jsonl squad/examples.jsonl --model squad -o new", "is no model folder"),
        (f"train nothing.toml {BOTH} -o new", "nothing.toml cannot be read"),
        (f"train squad/passages.jsonl {BOTH} -o new", "is not TOML"),
        (f"train bad.toml {BOTH} -o new", "bad.toml: there is no setting 'epoch'"),
        (f"train recipe.toml {BOTH} --set epoch=3 -o new", "there is no setting 'epoch'"),
        (f"train recipe.toml {BOTH} --set epochs=many -o new", "epochs must be int, not 'many'"),
        (f"train recipe.toml {BOTH} --set epochs=0 -o new", "epochs must be at least 1"),
        (f"train recipe.toml {BOTH} --set start= -o new", "the recipe has no start"),
        (f"train recipe.toml {BOTH} --set start=squad -o new", "squad has no tokenizer.json"),
        (f"train recipe.toml {BOTH} --set start=a//b -o new", "'a//b' is not on this machine"),
        (f"train recipe.toml {BOTH} -o recipe.toml/new", "cannot make the folder"),
        ("train recipe.toml --passages squad --examples squad/examples.jsonl -o new", "cannot read squad"),
        (f"train recipe.toml {BOTH} --tokenizer nothing.json -o new", "nothing.json: there is no such file"),
        (f"train recipe.toml {BOTH} --hold-out 0 -o new", "no questions are held out"),
        (f"train recipe.toml {BOTH} --hold-out 0.3 -o squad", "squad is not empty and holds no bpr model"),
        (f"train recipe.toml {BOTH} --sweep epoch=1,2 --hold-out 0.3 -o new", "there is no setting 'epoch'"),
        (f"train recipe.toml {BOTH} --reserve squad/passages.jsonl -o new", "is no field of an example"),
        (f"train recipe.toml {BOTH} --reserve dev/examples.jsonl -o new", "names the passage 'dev-0-0'"),
        (
            "train recipe.toml --passages squad/examples.jsonl --examples squad/passages.jsonl -o new",
            "is no field of an example",
        ),
        (
            "train recipe.toml --passages nothing --examples squad/examples.jsonl -o new",
            "nothing: there is no such file",
        ),
        ("train recipe.toml --prepared squad -o new", "squad is not training data"),
        ("export squad", "is no model folder"),
        ("export all-MiniLM-L6-v2", "is no model folder"),
        ("average squad all-MiniLM-L6-v2 -o new", "is no model folder"),
    ],
)
def test_expected_failures_are_1_and_one_line(here, command, word):
    (here / "bad.toml").write_text('start = "all-MiniLM-L6-v2"\nepoch = 3\n')
    assert word in one_line(call(*command.split()))
    assert not (here / "new").exists() and not (here / "squad.data").exists()


@pytest.mark.parametrize(
    "command",
    [
        "convert",
        "convert word -o new",
        "convert squad",
        "convert squad s.json",
        "convert squad s.json -o new --split dev",
        "convert checkpoint a.ckpt -o new",
        "convert checkpoint a.ckpt --tokenizer t --family bpr -o new",
        "convert checkpoint a b -o new",
        "convert checkpoint a b --family bpr --config c -o new",
        "convert checkpoint a b c --family bpr -o new",
        "convert checkpoint squad --tokenizer t -o new",
        "convert checkpoint a b --family colbert -o new",
        "mine p.jsonl -o new",
        "mine p.jsonl e.jsonl",
        "mine p.jsonl e.jsonl -o new --depth 0",
        "mine p.jsonl e.jsonl -o new --keep-bm25 3",
        "train",
        "train recipe.toml",
        "train recipe.toml -o new",
        "train -o new --prepared d",
        "train recipe.toml -o new --passages p",
        "train recipe.toml -o new --examples e",
        "train recipe.toml -o new --prepared d --passages p",
        "train recipe.toml -o new --prepared d --set epochs",
        "train recipe.toml -o new --prepared d --set =3",
        "train recipe.toml -o new --prepared d --set epochs=3 --set epochs=4",
        "train recipe.toml -o new --prepared d --sweep epochs",
        "train recipe.toml -o new --prepared d --hold-out 2",
        "export",
        "export a b",
        "export a --float32 --texts b",
        "export a --questions b",
        "average a -o new",
        "average a b",
        "average a b --share 1.5 -o new",
    ],
)
def test_wrong_usage_is_2(here, command):
    said = call(*command.split())
    assert (said.status, said.out) == (2, "")
    assert "Usage: bpr" in said.err and "Traceback" not in said.err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example_and_every_option(verb):
    said = call(*verb.split(), "--help")
    assert (said.status, said.err) == (0, "")
    assert re.search(rf"^ +\$ bpr {verb} ", said.out, re.M)
    command: Any = typer.main.get_command(cli.app)
    for word in verb.split():
        command = command.commands[word]
    assert {"quiet", "as_json"} <= {parameter.name for parameter in command.params}
    for parameter in command.params:
        assert parameter.help
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
        assert all(name in said.out for name in names)


def test_the_examples_are_accepted_by_the_parser(monkeypatch, tmp_path):
    """Each example gets as far as its files, which are not there: a failure, not wrong usage."""
    monkeypatch.chdir(tmp_path)
    for verb in VERBS:
        for example in examples(call(*verb.split(), "--help").out):
            assert call(*example.split()).status == (0 if "--print-recipe" in example else 1), example


def test_the_program_and_convert_list_their_verbs_in_whole_sentences():
    program, group = call("--help").out, call("convert", "--help").out
    for verb in VERBS:
        shown = group if verb in CONVERTERS else program
        assert re.search(rf"^  {verb.split()[-1]} +[A-Z].*[^.]\.$", shown, re.M), verb
    assert re.search(r"^  convert +[A-Z].*[^.]\.$", program, re.M)


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("torch", "train recipe.toml --prepared d -o new"),
        ("torch", "train --print-recipe"),
        ("torch", "export m"),
        ("torch", "average a b -o new"),
        ("torch", "convert checkpoint a.ckpt --tokenizer t -o new"),
        ("bm25s", "mine squad/passages.jsonl squad/examples.jsonl -o new"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(here, package, command):
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv[0] = 'bpr'; import bpr.cli; bpr.cli.main()"
    process = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(bpr.__file__).parents[1])},
    )
    err = one_line(Said(process.returncode, process.stdout, process.stderr))
    assert f"needs {package}" in err
    assert re.search(r"pip install ['\"]binary-passage-retriever\[train\]", err)


def test_what_is_missing_for_other_reasons_says_so_itself():
    from bpr.cli.common import train_extra

    with pytest.raises(ImportError, match="kernel"), train_extra():
        raise ImportError("the compiled kernel is missing", name="bpr._native")
