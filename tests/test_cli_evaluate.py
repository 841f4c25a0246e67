"""`bpr evaluate`: what a person or a program sees, what is refused in one line, and the commands of its page."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import bpr
from bpr import cli, questions
from bpr.cli import evaluate as verb

PAGE = (Path(__file__).parent.parent / "docs" / "evaluation.md").read_text(encoding="utf-8")
ROWS = 9
UP = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], np.float32)


@pytest.fixture(scope="module")
def nine(tmp_path_factory) -> SimpleNamespace:
    """Nine passages, and two questions: the first finds p8, p7, … p0, the second p0, p1, … p8. Not to be changed."""
    folder = tmp_path_factory.mktemp("nine")
    vectors = np.array([[1.0] * i + [-1.0] * (8 - i) for i in range(ROWS)], np.float32)
    passages = ({"id": f"p{i}", "title": f"T{i}", "text": f"Here is number {i}."} for i in range(ROWS))
    bpr.build(passages, folder / "nine.bpr", vectors=vectors)
    np.save(folder / "q.npy", np.stack([UP, -UP]))
    lines = [
        {"id": "up", "question": "which way?", "answers": ["number 6"], "positives": ["p6"]},
        {"id": "down", "question": "and now?", "answers": ["Number 3"], "positives": ["p0", "p3"]},
    ]
    (folder / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SimpleNamespace(folder=folder, bundle=folder / "nine.bpr", qa=folder / "q.jsonl", vectors=folder / "q.npy")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("BPR_DEBUG", "BPR_THREADS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def refusal(run, nine):
    """The one line with which questions of the nine passages are refused."""

    def call(*arguments: object, qa: Path = nine.qa) -> str:
        status, out, err = run("evaluate", nine.bundle, qa, "--vectors", nine.vectors, *arguments)
        assert (status, out) == (1, "")
        assert re.fullmatch(r"bpr: [^\n]+\n", err), err
        return err

    return call


# ── What it prints ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_has_every_figure_that_was_worked_out_by_hand(run, nine):
    status, out, err = run("evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors, "-k", 4, "-k", 1, "-k", 3)
    assert (status, err) == (0, "")
    found = {line[:14].strip(): line[14:].split()[0] for line in out.splitlines() if re.match(r"(top|MRR|nDCG)", line)}
    ideal = 1 + 1 / math.log2(3)
    assert found == {
        "top 1, answer": "0.00",
        "top 3, answer": "50.00",
        "top 4, answer": "100.00",
        "MRR@10, answer": f"{100 * (1 / 3 + 1 / 4) / 2:.2f}",
        "top 1, gold": "50.00",
        "top 3, gold": "100.00",
        "top 4, gold": "100.00",
        "MRR@10, gold": f"{100 * (1 / 3 + 1) / 2:.2f}",
        "nDCG@10, gold": f"{100 * (0.5 + (1 + 1 / math.log2(5)) / ideal) / 2:.2f}",
    }
    assert out.splitlines()[-1] == "2 questions, 9 passages"


def test_json_for_programs(run, nine):
    status, out, err = run("evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["measures"]["top 1, gold"] == {"mean": 50, "low": 0, "high": 100, "questions": 2}
    assert [name for name in found["measures"] if name.startswith("top")] == [
        "top 1, answer",
        "top 5, answer",
        "top 1, gold",
        "top 5, gold",
    ]  # 20 and 100 are more than there are passages
    assert (found["asked"], found["rows"], found["against"], found["warnings"]) == (2, ROWS, None, [])


def test_a_run_is_written_and_another_compared_with_it(run, nine, tmp_path):
    common = ("evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors)
    status, out, _ = run(*common, "-o", tmp_path / "one", "--contexts", 3)
    assert status == 0 and "difference" not in out
    names = ["recall.png", "recall.svg", "results.json", "retrieved.json", "run.trec"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    assert [len(each["ctxs"]) for each in json.loads((tmp_path / "one" / "retrieved.json").read_text())] == [3, 3]
    np.save(tmp_path / "swapped.npy", np.stack([-UP, UP]))
    other = (*common[:4], tmp_path / "swapped.npy", "--against", tmp_path / "one", "-o", tmp_path / "two")
    status, out, err = run(*other)
    assert (status, err) == (0, "")
    assert re.search(r"top 1, gold +0.00 +0.00 to 0.00 +-50.00 +-100.00 to \+0.00 +1.0000", out)
    assert f"difference: to {tmp_path / 'one'}, question by question" in out
    assert "one" in (tmp_path / "two" / "recall.svg").read_text()
    assert json.loads((tmp_path / "two" / "results.json").read_text())["against"] == str(tmp_path / "one")


def test_questions_that_a_measure_cannot_judge_are_counted(run, nine, tmp_path):
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('{"question": "a", "answers": ["number 6"]}\n{"question": "b", "positives": ["p0"]}\n')
    status, out, _ = run("evaluate", nine.bundle, mixed, "--vectors", nine.vectors)
    assert status == 0
    assert re.search(r"top 1, answer, of 1 +0\.00", out) and re.search(r"top 1, gold, of 1 +100\.00", out)


def test_missing_gold_is_said_unless_quiet(run, nine, tmp_path):
    lines = nine.qa.read_text().replace('"p3"', '"elsewhere"')
    (tmp_path / "q.jsonl").write_text(lines)
    common = ("evaluate", nine.bundle, tmp_path / "q.jsonl", "--vectors", nine.vectors)
    _, _, err = run(*common)
    assert err.startswith("warning: 1 of 3 gold passages, such as 'elsewhere', are not in ")
    status, out, err = run(*common, "--quiet")
    assert (status, err) == (0, "") and "top 1, gold" in out
    assert len(json.loads(run(*common, "--json")[1])["warnings"]) == 1


def test_without_the_extra_it_measures_what_it_can(run, nine, tmp_path, monkeypatch):
    for package in ("ir_measures", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    status, out, err = run("evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors, "-o", tmp_path / "run")
    assert status == 0 and "nDCG" not in out and "MRR@10, gold" in out
    assert "nDCG is left out: it needs ir-measures, pip install 'binary-passage-retriever[eval]'" in err
    assert "nothing is drawn: that needs matplotlib" in err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["results.json", "retrieved.json", "run.trec"]


def test_search_options_are_passed_on(run, nine):
    common = ("evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors, "--json", "-k", 1)
    plain = json.loads(run(*common)[1])
    assert plain["rerank"] and plain["candidates"] == 1000
    assert json.loads(run(*common, "--candidates", "all")[1])["candidates"] == "all"
    unranked = json.loads(run(*common, "--no-rerank", "--candidates", 9, "--threads", 1)[1])
    assert (unranked["rerank"], unranked["candidates"]) == (False, 9)
    assert unranked["measures"].keys() == plain["measures"].keys()


def test_it_needs_no_torch(nine):
    """The serving install has none: nothing that the verb imports may need it."""
    program = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import bpr.cli; bpr.cli.main()"
    command = [sys.executable, "-c", program, "evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "top 1, gold" in done.stdout


# ── What it refuses ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_right_is_refused_in_one_line(refusal, nine, tmp_path):
    def put(text: str) -> Path:
        (tmp_path / "bad.jsonl").write_text(text)
        return tmp_path / "bad.jsonl"

    assert "there are 9 passages, so top 10 means nothing" in refusal("-k", 1, "-k", 10)
    assert "4 candidates cannot give the first 9 passages" in refusal("-k", 5, "--candidates", 4)
    assert "has none of the 3 gold passages, such as 'x-p0'" in refusal("--prefix", "x-")
    assert "neither answers nor gold" in refusal(qa=put('{"question": "q", "answers": []}\n'))
    assert "the question id '7' is that of" in refusal(qa=put('{"id": 7, "question": "q", "answers": ["a"]}\n' * 2))
    assert "does not look like questions" in refusal(qa=put('{"id": "1", "text": "a passage"}\n'))
    assert "there are 2 vectors for 1 questions" in refusal(qa=put('{"question": "q", "answers": ["a"]}\n'))
    assert "is not JSON in SQuAD's layout" in refusal("--kind", "squad")
    assert "is not a regular expression" in refusal("--regex", qa=put('{"question": "q", "answers": ["("]}\n'))
    assert "there is no" in refusal("--against", tmp_path / "nothing")


def test_a_run_of_other_questions_is_refused(run, refusal, nine, tmp_path):
    run("evaluate", nine.bundle, nine.qa, "--vectors", nine.vectors, "-o", tmp_path / "one")
    (tmp_path / "q.jsonl").write_text(nine.qa.read_text().replace("and now?", "and then?"))
    assert "other texts, answers or gold" in refusal("--against", tmp_path / "one", qa=tmp_path / "q.jsonl")
    assert not (tmp_path / "two").exists()


def test_a_bundle_without_a_model_needs_vectors(run, nine):
    status, _, err = run("evaluate", nine.bundle, nine.qa)
    assert status == 1 and "was built from vectors of yours and cannot read text" in err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("w.bpr",),
        ("w.bpr", "q", "--kind", "csv"),
        ("w.bpr", "q", "-k", "0"),
        ("w.bpr", "q", "--contexts", "3"),
        ("w.bpr", "q", "--candidates", "few"),
        ("w.bpr", "q", "--candidates", "all", "--no-rerank"),
    ],
)
def test_wrong_usage_is_2(run, arguments):
    status, out, err = run("evaluate", *arguments)
    assert (status, out) == (2, "") and "Usage: bpr evaluate" in err


# ── Its help and its page ────────────────────────────────────────────────────────────────────────────────────────────


def parameters() -> list:
    return typer.main.get_command(cli.app).commands["evaluate"].params


def test_the_help_explains_every_option_with_examples(run):
    status, out, err = run("evaluate", "--help")
    assert (status, err) == (0, "")
    assert len(re.findall(r"^ +\$ bpr evaluate ", out, re.M)) == 4
    for parameter in parameters():
        assert parameter.help


def test_the_page_names_every_option_and_every_kind():
    for parameter in parameters():
        if parameter.param_type_name == "option":
            assert f"`{max(parameter.opts, key=len)}" in PAGE, parameter.opts
    assert {kind.value for kind in verb.Kind} == {*questions.KINDS}
    assert all(f"| `{kind}` |" in PAGE for kind in questions.KINDS)


@pytest.fixture
def as_on_the_page(tmp_path, monkeypatch, tiny_model) -> Path:
    """The files that the page's commands name, small, and a small model in place of mini."""
    monkeypatch.setattr("bpr.model.MINI", tiny_model)
    numbers = [
        f"{tens} {ones}" for tens in ("red", "green", "blue", "old", "new") for ones in ("sea", "sky", "sun", "ice")
    ]
    paragraphs = [
        {
            "context": f"The {name} lies {place} of the {name} house. Its king is number {row}.",
            "qas": [{"id": f"q{row}-{place}", "question": f"What lies {place} of it?", "answers": [{"text": name}]}],
        }
        for place in ("north", "south", "east", "west", "ahead")
        for row, name in enumerate(numbers)
    ]
    whole = {"version": "1.1", "data": [{"title": "Places", "paragraphs": paragraphs}]}
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(whole))
    (tmp_path / "nq-test.qa.csv").write_text("what lies north\t['red sea', \"the king's\"]\nwho\t['number 3']\n")
    (tmp_path / "curatedtrec-test.qa.csv").write_text("what lies north\t['(red|green)\\s+sea']\n")
    (tmp_path / "scifact" / "qrels").mkdir(parents=True)
    (tmp_path / "scifact" / "queries.jsonl").write_text('{"_id": "1", "text": "what lies north"}\n')
    (tmp_path / "scifact" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\tdev-0-0\t1\n")
    (tmp_path / "topics.tsv").write_text("1\twhat lies north\n")
    (tmp_path / "qrels.txt").write_text("1 0 dev-0-0 2\n1 0 dev-0-7 0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_page_run_as_they_stand(run, as_on_the_page):
    commands = re.findall(r"^\$ bpr (.+)$", PAGE, re.M)
    assert len(commands) == 8
    for command in commands:
        status, out, err = run(*command.split())
        assert status == 0, (command, err)
        if command.startswith("evaluate"):
            assert "95 % interval" in out and "warning" not in err
    assert (as_on_the_page / "runs" / "mini" / "recall.svg").exists()


def test_the_program_of_the_page_prints_what_it_should():
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[1, 2] 50.0", "50.0", "True 0.5"]
