"""The command line: what a person or a program sees, and how every verb ends. In this process, and as a real one."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from rich.cells import cell_len

import bpr
from bpr import bundle, cli, documents, kernels, terminal
from bpr.kinds import SIGNS
from bpr.records import Hit
from saying import examples
from tiny_models import make_model

ROWS, DIMENSIONS = 300, 64
VERBS = ("passages", "index", "search", "verify", "info")
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r\n\x00"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> SimpleNamespace:
    """Passages, vectors, questions and a bundle of them; not to be changed."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(3)
    vectors = random.standard_normal((ROWS, DIMENSIONS)).astype(np.float32) + 0.3
    np.save(folder / "v.npy", vectors)
    np.save(folder / "q.npy", vectors[:5] + random.standard_normal((5, DIMENSIONS)).astype(np.float32))
    passages = [
        {"id": f"p{row}", "title": f"Title {row}", "text": f"text of {row} " * 60, "page": row} for row in range(ROWS)
    ]
    passages[0] |= {"id": f"p0{EVIL}", "title": f"中文 {EVIL}", "text": f"{EVIL}[red]not markup[/red] :smile: {EVIL}"}
    (folder / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in passages))
    bpr.build(folder / "p.jsonl", folder / "w.bpr", vectors=vectors)
    names = {"passages": "p.jsonl", "vectors": "v.npy", "questions": "q.npy", "bundle": "w.bpr"}
    return SimpleNamespace(folder=folder, **{key: str(folder / name) for key, name in names.items()})


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("BPR_DEBUG", "BPR_THREADS", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


PROGRAM = ("-m", "bpr.cli")
# Jobs that a script puts into the background ignore SIGINT, and so would what they start.
HANGS = 60  # seconds after which a program that should have ended is given up
HEEDS_SIGINT = (
    "-c",
    "import signal, bpr.cli; signal.signal(signal.SIGINT, signal.default_int_handler); bpr.cli.main()",
)


def start(*arguments: object, program: tuple[str, ...] = PROGRAM, **options) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(bpr.__file__).parents[1]), **options.pop("env", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, *program, *map(str, arguments)], env=environment, **streams)


def in_terminal(*arguments: object, columns: int = 80, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `bpr` with stdout and stderr on a terminal of so many columns; exit status and what it showed."""
    ours, theirs = pty.openpty()
    process = start(
        *arguments, stdout=theirs, stderr=theirs, stdin=theirs, env={"COLUMNS": str(columns), **(env or {})}
    )
    os.close(theirs)
    shown, readable = b"", select.poll()  # select() knows no more than 1,024 files
    readable.register(ours, select.POLLIN)
    while readable.poll(20_000):
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        shown += piece
    os.close(ours)
    return process.wait(HANGS), shown.decode().replace("\r\n", "\n")


def one_line(err: str) -> str:
    assert re.fullmatch(r"bpr: [^\n]+\n", err), err
    return err


# ── Help, version, usage ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", [*VERBS, "bench"])
def test_every_verb_explains_itself_with_an_example_and_every_option(run, verb):
    status, out, err = run(verb, "--help")
    assert (status, err) == (0, "")
    assert re.search(rf"^ +\$ bpr {verb} ", out, re.M)
    parameters = typer.main.get_command(cli.app).commands[verb].params
    assert {"quiet"} <= {parameter.name for parameter in parameters}
    for parameter in parameters:
        assert parameter.help
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
        assert all(name in out for name in names)


def test_the_examples_are_accepted_by_the_parser(run, monkeypatch, tmp_path):
    """Each example gets as far as its files, which are not there: a failure, not wrong usage."""
    monkeypatch.chdir(tmp_path)
    for verb in ("", *VERBS):
        for example in examples(run(*[verb] * bool(verb), "--help")[1]):
            assert run(*shlex.split(example))[0] == 1, example


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_help_fits_and_has_an_example(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in [(), *every_verb(typer.main.get_command(cli.app))]:
        out = run(*words, "--help")[1]
        assert max(map(len, out.splitlines())) <= columns, words
        shown = examples(out)
        assert shown and all(each.split()[: len(words)] == list(words) for each in shown)


def every_verb(group, words: tuple[str, ...] = ()):
    for name, command in group.commands.items():
        yield (*words, name)
        if hasattr(command, "commands"):
            yield from every_verb(command, (*words, name))


def test_a_file_that_may_not_be_read_is_no_wrong_usage(run, corpus, monkeypatch):
    """The parser asks nobody: as root it would be told that all is well."""
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)
    assert run("verify", corpus.bundle, "--quiet")[0] == 0


def test_a_folder_that_is_gone_is_said(run, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    status, _, err = run("info", "w.bpr")
    monkeypatch.chdir(tmp_path)
    assert (status, one_line(err)) == (
        1,
        "bpr: the folder that you are in cannot be used (No such file or directory): cd to another\n",
    )


def test_an_error_that_cannot_be_written_is_still_an_exit_status(tmp_path):
    with open("/dev/full", "w") as full:
        assert start("info", tmp_path, stdout=full, stderr=full).wait(60) == 1


def test_the_program_lists_its_verbs_and_what_the_environment_does(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(re.search(rf"^  {verb} +[A-Z].*[^.]\.$", out, re.M) for verb in VERBS)
    assert all(word in out for word in ("$ bpr", "BPR_DEBUG=1", "BPR_THREADS", "NO_COLOR", "130"))
    assert run("-h")[1] == out


def test_the_version_is_shown(run):
    assert run("--version") == (0, f"bpr {bpr.__version__}\n", "")


def test_the_start_imports_nothing_heavy():
    code = "import sys, bpr.cli; print([name for name in ('numpy', 'rich', 'bpr._native') if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={"PYTHONPATH": str(Path(bpr.__file__).parents[1])}
    )
    assert (process.stdout, process.stderr) == (b"[]\n", b"")


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nonsense",
        "--nonsense",
        "index",
        "index p.jsonl",
        "index p.jsonl -o w.bpr --planes 3",
        "index p.jsonl -o w.bpr --planes x",
        "index p.jsonl -o w.bpr --seed -1",
        "passages d.txt",
        "passages -o p.jsonl",
        "passages d.txt -o p.jsonl --by page",
        "passages d.txt -o p.jsonl --words 0",
        "passages d.txt -o p.jsonl --overlap -1",
        "search w.bpr",
        "search w.bpr --vectors q.npy -k 0",
        "search w.bpr --vectors q.npy --threads 0",
        "search w.bpr --vectors q.npy --candidates 0",
        "search w.bpr --vectors q.npy --candidates some",
        "search w.bpr --vectors q.npy --candidates all --no-rerank",
        "search w.bpr question --vectors q.npy",
        "verify",
        "verify a b",
        "info",
        "info --frob",
    ],
)
def test_wrong_usage_is_2(run, arguments):
    status, out, err = run(*arguments.split())
    assert (status, out) == (2, "")
    assert "Usage: bpr" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", ["search", "answer"])
@pytest.mark.parametrize("question", ["", "  \t"])
def test_an_empty_question_is_wrong_usage(run, verb, question):
    status, out, err = run(verb, "w.bpr", "who?", question)
    assert (status, out) == (2, "")
    assert "a question is empty: put what you want to know in quotes" in err


# ── index ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_index_builds_what_build_builds_and_says_what_it_saved(run, corpus, tmp_path):
    new = tmp_path / "new.bpr"
    status, out, err = run("index", corpus.passages, "--vectors", corpus.vectors, "-o", new)
    assert (status, out) == (0, "")
    summary, saving = err.splitlines()
    assert re.fullmatch(rf"{re.escape(str(new))}: 300 passages, 64 bits, 1 plane, built in \d+\.\d s", summary)
    assert saving == "2.4 kB of codes; float32 vectors would need 76.8 kB: 32× smaller"
    with bundle.open(new) as ours, bundle.open(corpus.bundle) as theirs:
        assert ours.info == theirs.info
        assert {name: e.sha256 for name, e in ours.manifest.files.items()} == {
            name: e.sha256 for name, e in theirs.manifest.files.items()
        }


@pytest.mark.parametrize(
    "how",
    [
        {"planes": 2},
        {"center": True},
        {"rotate": True, "seed": 5},
        {"center": True, "rotate": True, "bits": 128, "planes": 2},
        {"rotate": True, "bits": 32},
    ],
)
def test_index_passes_its_options_on(run, corpus, tmp_path, how):
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in how.items()]
    status, *said = run("index", corpus.passages, "--vectors", corpus.vectors, "-o", tmp_path / "a", "-q", *options)
    assert (status, said) == (0, ["", ""])
    bpr.build(corpus.passages, tmp_path / "b", vectors=corpus.vectors, **how)
    with bundle.open(tmp_path / "a") as ours, bundle.open(tmp_path / "b") as theirs:
        assert ours.info == theirs.info
        assert ours.array(SIGNS).tobytes() == theirs.array(SIGNS).tobytes()
    facts = json.loads(run("info", tmp_path / "a", "--json")[1])
    assert facts["planes"] == how.get("planes", 1)
    assert facts["bits"] == how.get("bits", DIMENSIONS)
    assert (facts["centered"], facts["rotated"]) == (how.get("center", False), how.get("rotate", False))
    shown = run("info", tmp_path / "a")[1]
    done = [name for name, key in (("centered", "center"), ("rotated", "rotate")) if key in how]
    assert re.search(rf"^transform +{', '.join(done) or 'none'} *$", shown, re.M)
    ours = json.loads(run("search", tmp_path / "a", "--vectors", corpus.questions, "--json")[1].splitlines()[2])
    with bpr.open(tmp_path / "b") as retriever:
        expected = retriever.search(vectors=np.load(corpus.questions))[2]
    assert ours == {"question": 2, "hits": [hit.to_dict() for hit in expected]}


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def of_text(run, tiny_model, tmp_path) -> Path:
    """A bundle that `bpr index` made of text."""
    texts = ["homer wrote the iliad", "paris is the capital of france", "the moon is a star"]
    lines = [json.dumps({"id": f"p{row}", "title": "", "text": text}) + "\n" for row, text in enumerate(texts)]
    (tmp_path / "t.jsonl").write_text("".join(lines))
    status, out, err = run("index", tmp_path / "t.jsonl", "--model", tiny_model, "-o", tmp_path / "t.bpr")
    assert (status, out) == (0, "")
    assert "3 passages, 64 bits, 2 planes" in err
    return tmp_path / "t.bpr"


def test_questions_in_words_get_the_hits_of_the_retriever(run, of_text):
    asked = ["who wrote the iliad?", "what is the capital of france?"]
    status, out, err = run("search", of_text, *asked, "-k", "2", "--json")
    assert (status, err) == (0, "")
    with bpr.open(of_text) as retriever:
        expected = retriever.search(asked, k=2)
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["question"] for each in found] == asked
    assert [each["hits"] for each in found] == [[hit.to_dict() for hit in hits] for hits in expected]


def test_questions_in_words_stand_above_their_hits(run, of_text):
    status, out, _ = run("search", of_text, "who\x1b[2J wrote?", "-k", "2")
    assert status == 0
    assert out.splitlines()[0].startswith("who [2J wrote?")
    assert "homer wrote the iliad" in out


def test_documents_are_indexed_at_once(run, tiny_model, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "moon.md").write_text("# The moon\n\nIs a star?\n")
    assert run("index", tmp_path / "docs", "--model", tiny_model, "-o", tmp_path / "d.bpr", "-q") == (0, "", "")
    assert "The moon" in run("search", tmp_path / "d.bpr", "moon")[1]


def test_info_names_the_model(run, of_text, tiny_model):
    out = run("info", of_text)[1]
    assert re.search(r"^model +tiny \(\w{12}…\) *$", out, re.M)
    known = json.loads(run("info", of_text, "--json")[1])["model"]
    assert (known["name"], len(known["fingerprint"])) == ("tiny", 64)


def test_another_model_is_refused_in_one_line(run, of_text, tmp_path):
    make_model(tmp_path / "other", seed=3)
    status, out, err = run("search", of_text, "who?", "--model", tmp_path / "other")
    assert (status, out) == (1, "")
    assert "is another one" in one_line(err)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("index {passages} -o {new} --model {folder}", "is no model folder"),
        ("index {passages} -o {new} --model {model} --planes 2", "are for vectors of yours"),
        ("search {bundle} who?", "built from vectors of yours"),
        ("index {folder}/nothing.jsonl -o {new} --model {model}", "there is no such file"),
    ],
)
def test_text_failures_are_1_and_one_line(run, corpus, tiny_model, tmp_path, arguments, word):
    filled = arguments.format(**vars(corpus), new=tmp_path / "new", model=tiny_model)
    status, out, err = run(*filled.split())
    assert (status, out) == (1, "")
    assert word in one_line(err)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        "search w.bpr who? --vectors q.npy",
        "search w.bpr",
        "index p.jsonl -o w.bpr --vectors v.npy --model m",
        "index p.jsonl -o w.bpr --vectors v.npy --device cuda",
        "index p.jsonl -o w.bpr --device toaster",
    ],
)
def test_text_and_vectors_exclude_each_other(run, arguments):
    status, out, err = run(*arguments.split())
    assert (status, out) == (2, "")
    assert "Usage: bpr" in err


def test_a_gpu_is_used_through_torch(run, tiny_model, tmp_path, monkeypatch):
    (tmp_path / "t.jsonl").write_text('{"id": "a", "text": "homer wrote"}\n')
    command = ["index", tmp_path / "t.jsonl", "--model", tiny_model, "--device", "cuda", "-o", tmp_path / "t.bpr", "-q"]
    from bpr.training import encode

    asked = []

    def opened(folder: Path, device: str) -> encode.TorchEncoder:
        asked.append((folder, device))
        return encode.TorchEncoder(folder, encode.torch.device("cpu"))

    monkeypatch.setattr(encode.TorchEncoder, "open", opened)
    assert run(*command) == (0, "", "")
    assert asked == [(tiny_model, "cuda")]
    monkeypatch.setitem(sys.modules, "bpr.training.encode", None)
    status, out, err = run(*command)
    assert (status, out) == (1, "")
    assert "needs torch: pip install" in one_line(err)


def test_without_a_model_there_is_one_line(run, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("bpr.model.MINI", tmp_path / "mini")
    monkeypatch.chdir(tmp_path)
    status, out, err = run("index", corpus.passages, "-o", tmp_path / "new.bpr")
    assert (status, out) == (1, "")
    assert "built without its model" in one_line(err)


def test_a_filter_in_json(run, corpus):
    asked = ("search", corpus.bundle, "--vectors", corpus.questions, "--json")
    status, out, _ = run(*asked, "-k", "5", "--where", '{"page": {">=": 10, "<": 13}}')
    assert status == 0
    assert [sorted(hit["meta"]["page"] for hit in json.loads(line)["hits"]) for line in out.splitlines()] == [
        [10, 11, 12]
    ] * 5
    status, _, err = run(*asked, "--where", "page > 3")
    assert status == 2
    assert "is not JSON" in err


def save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def wrong_vectors(tmp_path: Path, kind: str) -> Path:
    good = np.ones((ROWS, DIMENSIONS), np.float32)
    path = tmp_path / "wrong.npy"
    if kind == "text":
        path.write_text("not an array")
    elif kind == "archive":
        np.savez(path.with_suffix(".npz"), a=good)
        path.with_suffix(".npz").rename(path)
    elif kind != "missing":
        wrong = {"width": good[:, :60], "rows": good[1:], "integers": good.astype(int), "three": good[None]}
        wrong["nan"] = np.where(np.arange(ROWS)[:, None] == 17, np.float32(np.nan), good)
        np.save(path, wrong[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("nan", "vector 17 contains NaN"),
        ("text", "not a plain .npy array"),
        ("archive", "wrong.npy"),
        ("missing", "No such file"),
        ("width", "multiple of 8"),
        ("rows", "299 vectors; the i-th vector"),
        ("integers", "must be floats"),
        ("three", "two axes"),
    ],
)
def test_index_refuses_wrong_vectors_in_one_line_and_leaves_the_old_bundle(run, corpus, tmp_path, kind, word):
    old = tmp_path / "w.bpr"
    shutil.copytree(corpus.bundle, old)
    status, out, err = run("index", corpus.passages, "--vectors", wrong_vectors(tmp_path, kind), "-o", old)
    assert (status, out) == (1, "")
    assert word in one_line(err)
    assert run("verify", old)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("index {folder}/nothing.tsv --vectors {vectors} -o {new}", "no such file"),
        ("index {folder} --vectors {vectors} -o {new}", "is a folder"),
        ("index {passages} --vectors {vectors} -o {vectors}", "not a bundle"),
        ("index {passages} --vectors {vectors} -o {folder}", "choose another path"),
        ("index {passages} --vectors {vectors} -o {new} --bits 128", "need a rotation"),
        ("search {folder}/nothing --vectors {questions}", "there is no bundle"),
        ("search {passages} --vectors {questions}", "is a file, not a bundle"),
        ("search {bundle} --vectors {folder}/nothing.npy", "No such file"),
        ("search {bundle} --vectors {passages}", "not a plain .npy array"),
        ("search {bundle} --vectors {questions} -k 30 --candidates 20", "candidates must be at least k"),
        ("search {bundle} --vectors {questions} --threads 100000", "threads"),
        ('search {bundle} --vectors {questions} --where {{"pages":1}}', "there is no field 'pages'"),
        ("verify {folder}/nothing", "there is no bundle"),
        ("verify {folder}", "holds no bundle"),
        ("info {folder}/nothing", "there is no bundle"),
        ("passages {folder}/nothing.txt -o {new}", "no such file"),
        ("passages {vectors} -o {new}", "not a type of document"),
        ("passages {passages} -o {folder}", "not a plain file"),
        ("passages {passages} -o {new} --overlap 100", "overlap"),
        ("passages {passages} -o {folder}/nowhere/p.jsonl", "create the folder above"),
    ],
)
def test_expected_failures_are_1_and_one_line(run, corpus, tmp_path, arguments, word):
    filled = arguments.format(**vars(corpus), new=tmp_path / "new")
    status, out, err = run(*filled.split())
    assert (status, out) == (1, "")
    assert word in one_line(err)
    assert not (tmp_path / "new").exists()


def test_a_locked_bundle_is_1_and_one_line(run, corpus, tmp_path):
    with bundle.create(tmp_path / "w.bpr"):
        status, out, err = run("index", corpus.passages, "--vectors", corpus.vectors, "-o", tmp_path / "w.bpr")
    assert (status, out) == (1, "")
    assert "being written by another process" in one_line(err)


def test_names_cannot_take_over_the_terminal_through_an_error(run, tmp_path):
    err = run("info", tmp_path / "a\x1b[31m\nb")[2]
    assert "\x1b" not in one_line(err)


# ── search ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ([], {}),
        (["-k", "7"], {"k": 7}),
        (["-k", "3", "--candidates", "50", "--threads", "1"], {"k": 3, "candidates": 50}),
        (["--candidates", "all"], {"candidates": "all"}),
        (["--no-rerank", "-q"], {"rerank": False}),
        (["-k", "1000"], {"k": 1000}),
    ],
)
def test_hits_are_those_of_the_retriever(run, corpus, monkeypatch, options, how):
    monkeypatch.setattr(cli.bundles, "QUESTIONS_AT_ONCE", 2)  # five questions: the last batch is a short one
    status, out, err = run("search", corpus.bundle, "--vectors", corpus.questions, "--json", *options)
    assert (status, err) == (0, "")
    with bpr.open(corpus.bundle) as retriever:
        expected = retriever.search(vectors=np.load(corpus.questions), **how)
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["question"] for each in found] == [0, 1, 2, 3, 4]
    assert [each["hits"] for each in found] == [[hit.to_dict() for hit in hits] for hits in expected]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_question_may_have_one_axis(run, corpus, tmp_path, dtype):
    question = np.load(corpus.questions)[0].astype(dtype)
    one = run("search", corpus.bundle, "--vectors", save(tmp_path / "one.npy", question), "--json")
    two = run("search", corpus.bundle, "--vectors", save(tmp_path / "two.npy", question[None]), "--json")
    assert one == two
    assert one[0] == 0
    assert json.loads(one[1])["question"] == 0


def test_no_questions_give_no_hits(run, corpus, tmp_path):
    none = save(tmp_path / "none.npy", np.empty((0, DIMENSIONS), np.float32))
    assert run("search", corpus.bundle, "--vectors", none) == (0, "", "")


@pytest.mark.parametrize(
    ("shape", "word"), [((2, 32), "vectors have 32 dimensions"), ((32,), "vectors have 32"), ((1, 1, 64), "two axes")]
)
def test_questions_of_the_wrong_shape_are_refused(run, corpus, tmp_path, shape, word):
    status, out, err = run("search", corpus.bundle, "--vectors", save(tmp_path / "q.npy", np.ones(shape, np.float32)))
    assert (status, out) == (1, "")
    assert word in one_line(err)


def test_questions_with_nan_or_of_integers_are_refused(run, corpus, tmp_path):
    for array, word in ((np.full((2, 64), np.nan), "NaN"), (np.ones(64, int), "must be floats")):
        status, out, err = run("search", corpus.bundle, "--vectors", save(tmp_path / "q.npy", array))
        assert (status, out) == (1, "")
        assert word in one_line(err)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_hits_fit_the_terminal_and_are_harmless(run, corpus, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    question = save(tmp_path / "q.npy", np.load(corpus.vectors)[0])
    status, out, err = run("search", corpus.bundle, "--vectors", question, "-k", "12")
    lines = out.splitlines()
    assert (status, err, len(lines), lines[0]) == (0, "", 1 + 2 * 12, "question 0")
    assert re.match(r"   1  +[\d,]+\.\d{4}  p0", lines[1])
    assert re.match(r"  12  +[\d,]+\.\d{4}  p", lines[23])
    assert all(cell_len(line) <= columns for line in lines)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
    if columns >= 80:
        assert "中文" in lines[1]
        assert "[red]not markup[/red] :smile:" in lines[2]
        starts = {line.index("Title") for line in lines[3::2]}
        assert len(starts) == 1  # columns are aligned


def test_json_is_ascii_and_keeps_what_the_passage_says(run, corpus, tmp_path):
    question = save(tmp_path / "q.npy", np.load(corpus.vectors)[0])
    out = run("search", corpus.bundle, "--vectors", question, "-k", "1", "--json")[1]
    assert out.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out)
    (hit,) = json.loads(out)["hits"]
    assert (hit["id"], hit["title"], hit["meta"]) == (f"p0{EVIL}", f"中文 {EVIL}", {"page": 0})


def test_hits_without_titles_leave_no_spaces_behind(capsys):
    terminal.print_hits(3, [Hit("a", "", "", -1.5, 1)])
    assert capsys.readouterr().out == "question 3\n  1  -1.5000  a\n\n"


# ── verify and info ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_verify_has_a_line_for_each_file(run, corpus):
    status, out, err = run("verify", corpus.bundle)
    assert (status, err) == (0, "")
    assert re.search(r"^ok +2\.5 kB  signs\.npy$", out, re.M)
    assert len(out.splitlines()) == len(bundle.verify(corpus.bundle))
    assert run("verify", corpus.bundle, "--quiet") == (0, "", "")
    found = json.loads(run("verify", corpus.bundle, "--json")[1])
    assert (found["bundle"], found["ok"]) == (corpus.bundle, True)
    assert found["files"] == [each._asdict() for each in bundle.verify(corpus.bundle)]


@pytest.fixture
def damaged(corpus, tmp_path) -> Path:
    path = tmp_path / "damaged.bpr"
    shutil.copytree(corpus.bundle, path)
    signs = path / "gen-000001" / "signs.npy"
    changed = bytearray(signs.read_bytes())
    changed[-1] ^= 1
    signs.write_bytes(changed)
    return path


def test_verify_says_what_is_damaged(run, damaged):
    status, out, err = run("verify", damaged)
    assert status == 1
    assert re.search(r"^damaged  .*signs\.npy has changed since it was published", out, re.M)
    assert re.search(r"^ok .* offsets\.npy$", out, re.M)
    assert re.search(r"is damaged in 1 of \d+ files", one_line(err))
    status, out, err = run("verify", damaged, "--quiet")
    assert (status, len(out.splitlines()), len(err.splitlines())) == (1, 1, 1)
    status, out, err = run("verify", damaged, "--json")
    assert status == 1
    assert json.loads(out)["ok"] is False
    assert [each["file"] for each in json.loads(out)["files"] if each["problem"]] == ["signs.npy"]


@pytest.mark.parametrize("verb", ["info", "search"])
def test_a_corrupt_bundle_is_1_and_one_line(run, corpus, damaged, verb):
    status, out, err = run(verb, damaged, *["--vectors", corpus.questions] * (verb == "search"))
    assert (status, out) == (1, "")
    assert "restore the bundle" in one_line(err)


@pytest.mark.parametrize("columns", [40, 100])
def test_info_shows_facts_files_health_and_a_histogram(run, corpus, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, err = run("info", corpus.bundle)
    assert (status, err) == (0, "")
    for line in (
        r"generation +gen-000001",
        r"passages +300",
        r"codes +64 bits, 1 plane",
        r"model +none",
        r"signs\.npy +2\.5 kB +8\.4 B",
        r"in all +\d+\.\d kB +\d+\.\d B",
        r"Code health, on 300 of 300 passages",
        r"dead +0 of 64 bits",
        r"duplicates +0\.00%",
        r"Distances of 44,850 pairs",
        r" *\d+–\d+  █+[▏▎▍▌▋▊▉]? [\d,]+",
        r"The codes look healthy\.",
    ):
        assert re.search(f"^{line}", out, re.M), line
    unbroken = out.replace(corpus.bundle, "")
    assert all(cell_len(line) <= columns for line in unbroken.splitlines() if "/" not in line)


def test_info_is_json_for_programs(run, corpus):
    status, out, err = run("info", corpus.bundle, "--json")
    assert (status, err, out.count("\n")) == (0, "", 1)
    facts = json.loads(out)
    assert (facts["rows"], facts["bits"], facts["planes"], facts["dimensions"]) == (ROWS, 64, 1, DIMENSIONS)
    assert (facts["code_bytes"], facts["float32_bytes"]) == (ROWS * 8, ROWS * DIMENSIONS * 4)
    assert facts["bytes"] == sum(facts["files"].values())
    on_disk = {path.name: path.stat().st_size for path in Path(corpus.bundle, facts["generation"]).iterdir()}
    assert facts["files"] == on_disk
    assert facts["bytes_per_passage"] == facts["bytes"] / ROWS
    assert (facts["health"]["sampled"], facts["health"]["warnings"]) == (ROWS, [])


def test_info_warns_and_tells_what_to_do(run, corpus, tmp_path):
    vectors = np.load(corpus.vectors)
    vectors[:, 5] = 1
    bpr.build(corpus.passages, tmp_path / "w", vectors=vectors)
    out = " ".join(run("info", tmp_path / "w")[1].split())
    assert "warning: 1 of 64 bits is dead" in out
    assert "--center --rotate" in out
    assert "healthy" not in out


def test_info_of_a_single_passage(run, tmp_path):
    bpr.build([{"id": "a", "text": "b"}], tmp_path / "w", vectors=np.ones((1, 8), np.float32))
    status, out, _ = run("info", tmp_path / "w")
    assert status == 0
    assert "warning: only 1 passage" in out
    assert "Distances" not in out


def test_info_of_a_bundle_without_passages(run, tmp_path):
    with bundle.create(tmp_path / "w") as new:
        known = {"rows": 0, "bits": 8, "dimensions": 8, "planes": 1, "levels": None, "model": None}
        new.publish({**known, "centered": False, "rotated": False})
    status, out, _ = run("info", tmp_path / "w")
    assert status == 0
    assert re.search(r"^passages +0", out, re.M)
    assert "0 B of codes; float32 vectors would need 0 B" in out
    facts = json.loads(run("info", tmp_path / "w", "--json")[1])
    assert (facts["health"], facts["bytes_per_passage"]) == (None, None)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (153_600_000, "153.6 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (2 * 10**9, "2.0 GB"),
        (10**15, "1,000.0 TB"),
    ],
)
def test_sizes_are_in_powers_of_ten(number, text):
    assert terminal.size(number) == text


# ── passages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_documents_become_passages(run, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("One two three. Four five. " * 50)
    (tmp_path / "docs" / "b.md").write_text("# Heading\n\nSome words.")
    (tmp_path / "docs" / "c.bin").write_bytes(b"\0")
    status, out, err = run("passages", tmp_path / "docs", "-o", tmp_path / "p.jsonl")
    assert (status, out, err) == (0, "", "2 documents, 0 empty, 4 passages, 1 other file ignored\n")
    expected = [passage.to_dict() for passage in documents.cut(tmp_path / "docs")]
    assert [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()] == expected
    status, out, err = run("passages", tmp_path / "docs", "-o", "-", "--quiet")
    assert (status, out, err) == (0, (tmp_path / "p.jsonl").read_text(), "")
    options = ("--words", "12", "--by", "sentence", "--overlap", "3")
    out = run("passages", tmp_path / "docs", "-o", "-", *options)[1]
    expected = documents.cut(tmp_path / "docs", words=12, by="sentence", overlap=3)
    assert [json.loads(line) for line in out.splitlines()] == [passage.to_dict() for passage in expected]


# ── Progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_drawn_for_people_only(run, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    build = ("index", corpus.passages, "--vectors", corpus.vectors, "-o", tmp_path / "w")
    status, out, err = run(*build)
    assert (status, out) == (0, "")
    assert all(part in err for part in ("reading passages", "publishing", "300 passages"))
    assert run(*build, "--quiet") == (0, "", "")
    status, out, err = run("search", corpus.bundle, "--vectors", corpus.questions, "--json")
    assert (len(out.splitlines()), "searching" in err) == (5, True)
    (tmp_path / "a.txt").write_text("word " * 150_000)
    assert "cutting documents" in run("passages", tmp_path / "a.txt", "-o", tmp_path / "p.jsonl")[2]


def test_on_a_terminal_results_are_progress_enough(run, corpus, monkeypatch):
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert run("search", corpus.bundle, "--vectors", corpus.questions, "--json")[2] == ""


# ── How it ends ──────────────────────────────────────────────────────────────────────────────────────────────────────


def raising(error: BaseException):
    def call(*arguments: object, **options: object) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "bpr: interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (OSError(28, "No space left on device"), 1, "bpr: cannot write the output: No space left on device\n"),
        (OSError("odd"), 1, "bpr: cannot write the output: odd\n"),
        (MemoryError(), 1, "bpr: there is not enough memory: close some programs, or give it less at a time\n"),
        (bpr.CorruptBundle("two\nlines"), 1, "bpr: two lines\n"),
    ],
)
def test_every_end_has_its_status_and_one_line(run, monkeypatch, error, status, message):
    monkeypatch.setattr(bundle, "verify", raising(error))
    assert run("verify", "w.bpr") == (status, "", message)


def test_a_missing_kernel_is_said_in_one_line(run, corpus, monkeypatch):
    monkeypatch.setattr(kernels, "native", raising(ImportError("bpr's compiled kernel is missing")))
    status, out, err = run("search", corpus.bundle, "--vectors", corpus.questions)
    assert (status, out, err) == (1, "", "bpr: bpr's compiled kernel is missing\n")


def test_other_errors_are_bugs_and_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(bundle, "verify", raising(ZeroDivisionError()))
    monkeypatch.setattr(sys, "argv", ["bpr", "verify", "w.bpr"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_traceback_is_for_those_who_ask(run, tmp_path, monkeypatch, value, shown):
    monkeypatch.setenv("BPR_DEBUG", value)
    status, _, err = run("info", tmp_path / "nothing")
    assert (status, "Traceback" in err) == (1, shown)
    assert err.splitlines()[-1].startswith("bpr: there is no bundle")


def test_a_stdout_that_refuses_is_given_up(run, corpus, monkeypatch):
    """Its buffer cannot be emptied; the interpreter must not try again at its end."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status, _, err = run("info", corpus.bundle, "--json")
        assert (status, err) == (1, "bpr: cannot write the output: No space left on device\n")


def test_stdout_may_be_no_file(run, monkeypatch):
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run("--version")[0] == 0
    assert stdout.getvalue() == f"bpr {bpr.__version__}\n"


def test_streams_that_were_closed_before_the_start_do_not_matter(monkeypatch, corpus):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "argv", ["bpr", "search", corpus.bundle, "--vectors", corpus.questions])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in (0, None)
    for stream in (sys.stdout, sys.stderr):
        stream.close()


def test_an_encoding_without_the_character_does_not_stop_it(corpus):
    process = start("info", corpus.bundle, env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, err) == (0, b"")
    assert out.isascii()


@pytest.mark.parametrize("arguments", ["--help", "--version", "info {bundle}", "info {bundle} --json"])
def test_a_full_disk_behind_stdout_is_said_in_one_line(corpus, arguments):
    with open("/dev/full", "w") as full:
        process = start(*arguments.format(**vars(corpus)).split(), stdout=full)
        err = process.communicate(timeout=HANGS)[1].decode()
    assert process.returncode == 1
    assert "No space left" in one_line(err)


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_closed_pipe_ends_it_quietly(corpus, tmp_path, options):
    many = save(tmp_path / "q.npy", np.load(corpus.vectors))  # far more output than a pipe holds
    process = start("search", corpus.bundle, "--vectors", many, "-k", "100", *options)
    assert b"question" in process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(HANGS) == 1


@pytest.mark.parametrize("before", [False, True])
def test_ctrl_c_leaves_no_half_bundle(corpus, tmp_path, before):
    """The passages come through a pipe that never ends, so the build is under way when the signal comes."""
    if before:
        shutil.copytree(corpus.bundle, tmp_path / "w.bpr")
    os.mkfifo(tmp_path / "p.jsonl")
    build = ("index", tmp_path / "p.jsonl", "--vectors", corpus.vectors, "-o", tmp_path / "w.bpr")
    process = start(*build, program=HEEDS_SIGINT)
    with (tmp_path / "p.jsonl").open("w") as passages:  # returns when the other side has opened it, too
        passages.write('{"id": "a", "text": "b"}\n')
        passages.flush()
        assert (tmp_path / "w.bpr" / ("gen-000002" if before else "gen-000001")).exists()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out, err) == (130, b"", b"bpr: interrupted\n")
    assert sorted(os.listdir(tmp_path)) == ["p.jsonl"] + ["w.bpr"] * before
    if before:
        assert all(each.problem is None for each in bundle.verify(tmp_path / "w.bpr"))
        assert sorted(os.listdir(tmp_path / "w.bpr")) == ["gen-000001", "lock", "manifest.json"]


def test_ctrl_c_leaves_no_half_file_of_passages(tmp_path):
    os.mkfifo(tmp_path / "d.jsonl")
    process = start("passages", tmp_path / "d.jsonl", "-o", tmp_path / "out.jsonl", program=HEEDS_SIGINT)
    with (tmp_path / "d.jsonl").open("w") as lines:
        lines.write(json.dumps({"id": "a", "text": "word " * 500}) + "\n")
        lines.flush()
        assert len(os.listdir(tmp_path)) == 2
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=HANGS)[1]
    assert (process.returncode, err) == (130, b"bpr: interrupted\n")
    assert os.listdir(tmp_path) == ["d.jsonl"]


# ── On a real terminal ───────────────────────────────────────────────────────────────────────────────────────────────

ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def test_a_terminal_of_40_columns(corpus, tmp_path):
    question = save(tmp_path / "q.npy", np.load(corpus.vectors)[0])
    status, shown = in_terminal("search", corpus.bundle, "--vectors", question, "-k", "3", columns=40)
    assert status == 0
    assert "\x1b[36m" in shown  # colours, ours
    harmless = ESCAPES.sub("", shown)
    assert "\x1b" not in harmless
    assert "\x07" not in harmless
    assert "\x1b[2J" not in shown
    assert all(cell_len(line) <= 40 for line in harmless.splitlines())
    status, shown = in_terminal("index", corpus.passages, "--vectors", corpus.vectors, "-o", tmp_path / "w", columns=40)
    assert status == 0
    assert "reading passages" in shown
    assert shown.endswith("32× smaller\n")


def test_errors_are_red_unless_no_color(corpus):
    status, shown = in_terminal("info", "/nothing")
    assert (status, shown.count("\n")) == (1, 1)
    assert shown.startswith("\x1b[31mbpr: there is no bundle at /nothing")
    status, shown = in_terminal("info", "/nothing", env={"NO_COLOR": "1"})
    assert (status, "\x1b" in shown) == (1, False)


# ── bench ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bench_shows_the_machine_and_every_peer(run, monkeypatch):
    monkeypatch.setattr("bpr.bench.SETTLE_SECONDS", 0)
    status, out, _ = run("bench", "--rows", "1000", "--bits", "64", "--rounds", "1", "--threads", "1")
    assert status == 0
    assert re.search(r"^questions +threads +ms each +faiss +usearch +read +authors'$", out, re.M)
    assert len(re.findall(r"^ +(?:1|8|64) +1 +[\d.]+ ", out, re.M)) == 6


def test_bench_gives_its_timings_as_json(run, monkeypatch):
    monkeypatch.setattr("bpr.bench.SETTLE_SECONDS", 0)
    status, out, _ = run("bench", "--rows", "1000", "--bits", "64", "--rounds", "1", "--threads", "2", "--json")
    result = json.loads(out)
    assert (status, result["machine"]["threads"] >= 1, {t["threads"] for t in result["timings"]}) == (0, True, {1, 2})


def test_bench_refuses_an_impossible_width(run):
    status, _, err = run("bench", "--bits", "65")
    assert status == 1
    assert "multiple of 8 bits" in err


def test_a_second_interrupt_changes_nothing(tmp_path):
    """Threads are in the kernel when the first one comes, and the process must wait for them."""
    command = [sys.executable, "-m", "bpr.cli", "demo", "-o", str(tmp_path / "demo.bpr")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    parts = tmp_path / "demo.bpr.parts"
    while process.poll() is None and not parts.exists() and not (tmp_path / "demo.bpr").exists():
        time.sleep(0.05)
    time.sleep(0.5)  # into the encoding
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error.splitlines()[-1]) == (130, "bpr: interrupted")
