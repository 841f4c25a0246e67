"""The verbs of exchange: the commands of docs/interchange.md as they stand, what is printed, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import bpr
from bpr import cli
from bpr.cli.interchange import ResultKind
from bpr.interchange import results
from saying import examples

faiss = pytest.importorskip("faiss")

PAGE = (Path(__file__).parent.parent / "docs" / "interchange.md").read_text(encoding="utf-8")
VERBS = ("convert faiss", "convert codes", "convert bundle", "convert results", "score")
ROWS, BITS = 12, 32
VECTORS = np.random.default_rng(1).standard_normal((ROWS, BITS)).astype(np.float32)
QUESTIONS = [
    {"id": "a", "question": "which is three?", "answers": ["number 3"], "positives": ["3"]},
    {"id": "b", "question": "which is four?", "answers": ["number 4"], "positives": ["4"]},
]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with all that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    lines = ["id\ttext\ttitle", *(f"{row}\tThis is number {row}.\tT{row}" for row in range(ROWS))]
    (tmp_path / "passages.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    codes = bpr.pack(VECTORS)
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "q.npy", VECTORS[[3, 5]])
    (tmp_path / "codes.ids.txt").write_text("".join(f"{row}\n" for row in range(ROWS)))
    flat = faiss.IndexBinaryFlat(BITS)
    flat.add(codes)
    faiss.write_index_binary(flat, "index.faiss")
    mapped = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(BITS))
    mapped.add_with_ids(codes, np.arange(ROWS))
    faiss.write_index_binary(mapped, "old.idx")
    bpr.build("passages.tsv", "ours.bpr", vectors=VECTORS)
    return tmp_path


@pytest.fixture
def evaluated(here, run) -> Path:
    """… and a run of bpr's, in runs/ours and retrieved.json."""
    assert run("evaluate", "ours.bpr", "qa.jsonl", "--vectors", "q.npy", "-o", "runs/ours", "-q")[0] == 0
    (here / "runs" / "ours" / "retrieved.json").rename(here / "retrieved.json")
    return here


def test_every_command_of_the_page_does_what_it_says(evaluated, run):
    commands = re.findall(r"^\$ bpr (.+)$", PAGE, re.MULTILINE)
    assert {verb for verb in VERBS if any(each.startswith(f"{verb} ") for each in commands)} == {*VERBS}
    for command in commands:
        status, _, err = run(*shlex.split(command))
        assert status == 0, (command, err)
        if command.endswith("-o wiki.bpr"):
            with bpr.open("wiki.bpr") as opened, bpr.open("ours.bpr") as ours:
                assert opened.search(vectors=VECTORS[0]) == ours.search(vectors=VECTORS[0])
    assert json.loads(Path("again.json").read_text()) == json.loads(Path("retrieved.json").read_text())
    assert faiss.read_index_binary("codes.faiss").ntotal == faiss.read_index_binary("mapped.faiss").ntotal == ROWS


def test_the_code_of_the_page_runs_as_it_stands(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"


# ── What is printed ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_says_what_became_a_bundle(here, run, tiny_model):
    common = ("--passages", "passages.tsv", "-o", "a.bpr")
    said = "a.bpr: 12 passages, 32 bits of {}; to be asked with vectors; --model DIR would let it read text\n"
    assert run("convert", "faiss", "index.faiss", *common)[2] == said.format("IndexBinaryFlat")
    np.save("signed.npy", (np.load("codes.npy").astype(int) - 128).astype(np.int8))
    assert run("convert", "codes", "signed.npy", *common)[2] == said.format("binary")
    assert run("convert", "codes", "signed.npy", *common, "-q") == (0, "", "")
    status, out, _ = run("convert", "faiss", "old.idx", *common, "--json", "-q")
    assert status == 0 and json.loads(out) == {
        "bundle": "a.bpr",
        "rows": ROWS,
        "bits": BITS,
        "codes": "IndexBinaryIDMap of IndexBinaryFlat",
        "model": None,
    }
    np.save("wide.npy", np.zeros((ROWS, 8), np.uint8))
    _, _, err = run("convert", "codes", "wide.npy", *common, "--model", tiny_model)
    assert err == "a.bpr: 12 passages, 64 bits of ubinary; to be asked with text and vectors\n"


def test_a_line_names_the_files_of_an_export(here, run):
    status, out, err = run("convert", "bundle", "ours.bpr", "-o", "x.npy")
    assert (status, out, err) == (0, "", "x.npy, x.ids.txt: codes of 12 passages\n")
    bpr.build("passages.tsv", "two.bpr", vectors=VECTORS, planes=2)
    assert "left out: the magnitudes" in run("convert", "bundle", "two.bpr", "-o", "x.faiss")[2]
    facts = json.loads(run("convert", "bundle", "two.bpr", "-o", "x.npy", "--json")[1])
    assert facts["files"] == ["x.npy", "x.magnitudes.npy", "x.ids.txt"] and facts["left_out"] is None
    assert run("convert", "bundle", "two.bpr", "-o", "x.faiss", "-q") == (0, "", "")


def test_results_as_json_and_nothing_when_quiet(evaluated, run):
    words = ("convert", "results", "retrieved.json", "--to", "trec", "-o", "run.trec")
    assert run(*words)[2] == "run.trec: 2 questions, 20 passages, from dpr to trec\n"
    assert json.loads(run(*words, "--json", "-q")[1]) == {
        "results": "run.trec",
        "from": "dpr",
        "to": "trec",
        "questions": 2,
        "passages": 20,
    }
    assert run(*words, "-q") == (0, "", "")


def test_scores_are_those_of_evaluate(evaluated, run):
    questions = ("--questions", "qa.jsonl")
    ours = json.loads(run("evaluate", "ours.bpr", "qa.jsonl", "--vectors", "q.npy", "--json")[1])
    theirs = json.loads(run("score", "retrieved.json", *questions, "--json", "-q")[1])
    assert theirs["measures"] == ours["measures"] and theirs["measures"]["top 1, gold"]["mean"] == 50
    assert (theirs["depth"], theirs["asked"], theirs["warnings"]) == (10, 2, [])
    status, out, err = run("score", "retrieved.json", *questions, "--against", "runs/ours", "-q")
    assert (status, err) == (0, "")
    assert re.search(r"top 1, gold +50\.00 .*\+0\.00 +\+0\.00 to \+0\.00 +1\.0000", out)
    assert (
        out.splitlines()[-1] == "2 questions, up to 10 results of each; difference: to runs/ours, question by question"
    )


def test_a_scored_run_is_kept_and_another_compared_with_it(evaluated, run):
    status, _, err = run("score", "retrieved.json", "--questions", "qa.jsonl", "-o", "theirs", "-q")
    assert (status, err) == (0, "")
    assert {"results.json", "retrieved.json", "run.trec"} <= {path.name for path in Path("theirs").iterdir()}
    assert json.loads(Path("theirs/retrieved.json").read_text()) == json.loads(Path("retrieved.json").read_text())
    compared = run("evaluate", "ours.bpr", "qa.jsonl", "--vectors", "q.npy", "--against", "theirs")
    assert compared[0] == 0 and "difference: to theirs" in compared[1]


def test_warnings_say_what_the_figures_cannot(evaluated, run):
    Path("short.trec").write_text("a Q0 3 1 9 n\nz Q0 3 1 9 n\n")
    status, out, err = run("score", "short.trec", "--questions", "qa.jsonl", "--bundle", "ours.bpr")
    assert status == 0 and re.search(r"top 1, answer +50\.00", out)
    assert [line.removeprefix("warning: ") for line in err.splitlines()] == [
        "the results have 1 passages of a question at most: MRR and nDCG@10 see no more",
        "1 questions have no results: nothing right was found for them",
        "1 results are of questions that are not asked, and are left out",
    ]
    assert "warning" not in run("score", "short.trec", "--questions", "qa.jsonl", "--bundle", "ours.bpr", "-q")[2]


# ── What is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("convert faiss nothing --passages passages.tsv -o new", "nothing: there is no such file"),
        ("convert faiss codes.npy --passages passages.tsv -o new", "no name of an index stands here"),
        ("convert faiss index.faiss --passages nothing -o new", "nothing: there is no such file"),
        ("convert faiss index.faiss --passages passages.tsv --model runs -o new", "is no model folder"),
        ("convert codes index.faiss --passages passages.tsv -o new", "not a plain .npy array"),
        ("convert codes q.npy --passages passages.tsv -o new", "codes are uint8"),
        ("convert bundle nothing.bpr -o new.npy", "there is no bundle"),
        ("convert bundle ours.bpr -o new.bin", "the suffix says what to write"),
        ("convert results codes.ids.txt --to dpr -o new", "does not look like results"),
        ("convert results retrieved.json --from trec --to dpr -o new", "line 1: must be question id"),
        ("convert results retrieved.json --to dpr --questions nothing -o new", "nothing: there is no such file"),
        ("score runs/ours/run.trec", "no answers to the question 'a'"),
        ("score retrieved.json -k 13", "top 13 cannot be told from the first 10 passages"),
        ("score retrieved.json --against runs/ours", "is '1' here and 'a' in"),
    ],
)
def test_expected_failures_are_1_and_one_line(evaluated, run, command, word):
    status, out, err = run(*command.split(), "-q")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"bpr: [^\n]+\n", err) and word in err
    assert not list(evaluated.glob("new*"))


@pytest.mark.parametrize(
    "command",
    [
        "convert faiss",
        "convert faiss a -o b",
        "convert codes a --passages p",
        "convert bundle a.bpr",
        "convert results a -o b",
        "convert results a -o b --to word",
        "convert results a -o b --to dpr --qrels q",
        "score",
        "score a --kind jsonl",
        "score a --prefix x",
        "score a --split test",
        "score a -k 0",
    ],
)
def test_wrong_usage_is_2(run, command):
    status, out, err = run(*command.split())
    assert (status, out) == (2, "") and "Usage: bpr" in err and "Traceback" not in err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example_and_every_option(run, verb, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*verb.split(), "--help")
    assert (status, err) == (0, "")
    command: Any = typer.main.get_command(cli.app)
    for word in verb.split():
        command = command.commands[word]
    assert {"quiet", "as_json"} <= {parameter.name for parameter in command.params}
    for parameter in command.params:
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
        assert parameter.help and all(name in out for name in names)
    shown = examples(out)
    assert shown and all(each.startswith(f"{verb} ") for each in shown)
    for example in shown:  # as far as its files, which are not there
        assert run(*example.split())[0] == 1, example


def test_the_program_and_convert_list_the_verbs_in_whole_sentences(run, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    program, group = run("--help")[1], run("convert", "--help")[1]
    for verb in VERBS:
        shown = group if verb.startswith("convert") else program
        assert re.search(rf"^  {verb.split()[-1]} +[A-Z].*[^.]\.$", shown, re.M), verb


def test_the_layouts_are_those_of_the_room():
    assert {kind.value for kind in ResultKind} == {*results.KINDS}
