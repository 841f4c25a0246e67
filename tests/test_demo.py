"""The sample that comes with bpr, and what `bpr demo` does and says with it."""

from __future__ import annotations

import io
import json
import re
import socket
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import bpr
from bpr import cli, demo, model, terminal
from bpr.passages import read
from bpr.records import Hit
from bpr.retriever import Timings

SHIPPED = Path(bpr.__file__).parent / "models" / "mini"
FLOOR = 0.95  # top-20 recall; the model that the demo was made with has 0.976, and a sample of 1,000 varies by 0.01


def call(*arguments: object, columns: int | None = None) -> tuple[int, str, str]:
    """Run `bpr` in this process, not on a terminal: exit status, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in ("BPR_DEBUG", "COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        if columns:
            patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["bpr", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    return end.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory) -> SimpleNamespace:
    """The whole demo with the tiny model, which finds little and takes seconds. Not to be changed."""
    path = tmp_path_factory.mktemp("demo") / "kept.bpr"
    status, out, err = call("demo", "--model", tiny_model, "-o", path)
    return SimpleNamespace(path=path, status=status, out=out, err=err)


@pytest.fixture
def small(monkeypatch, tmp_path) -> None:
    """A sample of few passages and few questions in place of the real one, and an empty folder for temporary files."""
    texts, asked = list(read(demo.PASSAGES)), demo.shown(demo.questions())
    kept = [*(texts[each.row] for each in asked), *texts[:20]]
    lines = [json.dumps({"id": f"{row}", "title": p.title, "text": p.text}) for row, p in enumerate(kept)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({**each._asdict(), "passage": row}) for row, each in enumerate(asked)]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(demo, "PASSAGES", tmp_path / "p.jsonl")
    monkeypatch.setattr(demo, "QUESTIONS", tmp_path / "q.jsonl")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def left_behind(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {"p.jsonl", "q.jsonl", "temporary"}


# ── The sample ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_passages_are_all_paragraphs_of_the_dev_set():
    passages = list(read(demo.PASSAGES))
    assert len(passages) == 2067
    assert len({passage.id for passage in passages}) == len({passage.text for passage in passages}) == 2067
    titles = Counter(passage.title for passage in passages)
    assert len(titles) == 48 and titles["Super Bowl 50"] == 54
    assert not any("_" in title for title in titles)
    assert passages[0].text.startswith("Super Bowl 50 was an American football game to determine the champion")


def test_every_question_has_a_paragraph_and_answers_that_stand_in_it():
    passages, questions = list(read(demo.PASSAGES)), demo.questions()
    assert len(questions) == len({each.question for each in questions}) == 1000
    for each in questions:
        assert each.answers and each.question == each.question.strip()
        assert all(answer in passages[each.row].text for answer in each.answers), each
    assert len({passages[each.row].title for each in questions}) == 48


def test_the_questions_that_are_shown_are_of_the_sample():
    assert [each.question for each in demo.shown(demo.questions())] == list(demo.SHOWN)
    assert len(set(demo.SHOWN)) == 5


def test_the_sample_is_small_and_says_whose_it_is():
    assert sum(path.stat().st_size for path in (demo.PASSAGES, demo.QUESTIONS)) < 600_000
    text = (demo.HOME / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for word in ("SQuAD v1.1", "Rajpurkar", "CC BY-SA 4.0", "https://rajpurkar.github.io/SQuAD-explorer/", "Wikipedia"):
        assert word in text


# ── The whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_demo_says_what_it_built_and_how_small_it_is(whole):
    assert whole.status == 0
    assert re.search(r"^passages  2,067 in \d+\.\d s, [\d,]+ a second *$", whole.out, re.M)
    assert re.search(r"^codes     64 bits, 2 planes: 16 bytes a passage; float32 256 *$", whole.out, re.M)
    assert re.search(
        r"^size      33.1 kB of codes; float32 vectors would need 529.2 kB: 16× smaller *$", whole.out, re.M
    )
    total = sum(path.stat().st_size for path in whole.path.glob("gen-*/*"))
    assert f"bundle    {terminal.size(total)} in all" in whole.out


def test_the_demo_shows_questions_with_passages_and_the_times_of_the_stages(whole):
    for question in demo.SHOWN:
        after = whole.out.partition(f"{question}\n")[2].splitlines()
        assert re.fullmatch(r"encode \d+\.\d ms, candidates \d+\.\d\d ms, rerank \d+\.\d\d ms", after[0])
        ranks = [re.match(r"  [ ✓] (\d)  \S", line) for line in after[1:10]]
        assert [found[1] for found in ranks if found] == ["1", "2", "3"]
    with bpr.open(whole.path) as retriever:
        best = retriever.search(demo.SHOWN[0], k=1)[0]
    assert f" 1  {best.title}\n" in whole.out


def test_the_recall_that_is_printed_is_what_searches_find(whole):
    ids, questions = [passage.id for passage in read(demo.PASSAGES)], demo.questions()
    with bpr.open(whole.path) as retriever:
        found = retriever.search([each.question for each in questions], k=100)
    ranks = [
        next((hit.rank for hit in hits if hit.id == ids[each.row]), 101)
        for each, hits in zip(questions, found, strict=True)
    ]
    printed = dict(re.findall(r"^top +(\d+)  \S* ?(\d+\.\d)%$", whole.out, re.M))
    assert printed == {f"{k}": f"{100 * np.mean(np.array(ranks) <= k):.1f}" for k in (1, 20, 100)}
    assert 0 < float(printed["20"]) < float(printed["100"]) < 100  # or else this test would see little
    assert re.search(r"^1,000 questions: encoded in \d+\.\d s, searched in \d+\.\d\d s$", whole.out, re.M)


def test_the_bundle_that_is_kept_is_found_by_search_and_the_way_on_is_shown(whole):
    status, out, err = call("search", whole.path, "who wrote the iliad?", "-k", 2)
    assert (status, err) == (0, "") and out.startswith("who wrote the iliad?\n")
    assert f'bpr search {whole.path} "a question of yours"\n' in whole.err
    assert "bpr index " in whole.err and "CC BY-SA 4.0" in whole.err
    assert [path.name for path in whole.path.parent.iterdir()] == ["kept.bpr"]


def test_what_is_no_terminal_gets_plain_lines_of_80_columns(whole):
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", whole.out + whole.err)
    steps = whole.err.replace(str(whole.path), "kept.bpr")
    assert max(map(len, (whole.out + steps).splitlines())) <= 80
    assert [line[:2] for line in whole.err.splitlines()[:3]] == ["1.", "2.", "3."]


# ── How it ends ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_output_nothing_is_left(small, tiny_model, tmp_path):
    status, out, err = call("demo", "--model", tiny_model, "--threads", 1)
    assert status == 0 and "top 100" in out
    assert err.count("bpr search") == 1
    assert left_behind(tmp_path) == set()


def test_quiet_is_results_only(small, tiny_model):
    status, out, err = call("demo", "--model", tiny_model, "--quiet")
    assert (status, err) == (0, "")
    assert all(question in out for question in demo.SHOWN)


@pytest.mark.parametrize("columns", [1, 20, 40, 200])
def test_any_width_will_do(small, tiny_model, columns):
    status, out, _ = call("demo", "--model", tiny_model, "-q", columns=columns)
    assert status == 0
    if columns >= 20:
        assert max(map(len, out.splitlines())) <= columns


def test_a_bpr_without_its_model_says_so_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(model, "MINI", tmp_path / "mini")
    monkeypatch.chdir(tmp_path)
    status, out, err = call("demo")
    assert (status, out) == (1, "")
    assert err == "bpr: this bpr was built without its model 'mini': name a model folder\n"


def test_serving_is_refused_before_the_minute_of_indexing(monkeypatch, tiny_model, tmp_path):
    monkeypatch.setattr(demo, "index", lambda *arguments: pytest.fail("it was indexed"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, err = call("demo", "--serve", "--model", tiny_model, "--port", taken.getsockname()[1])
    assert status == 1 and "--port takes another" in err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [each for each in sys.modules if each.startswith("bpr.service")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("bpr.service", raising=False)
    status, _, err = call("demo", "--serve", "--model", tiny_model, "--quiet")
    assert (status, err) == (
        1,
        "bpr: this needs uvicorn, which is not installed: pip install 'binary-passage-retriever[serve]'\n",
    )


@pytest.mark.parametrize("moment", ["encoding passages", "publishing", "encoding questions"])
@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupt_leaves_nothing_but_a_whole_bundle(small, tiny_model, tmp_path, monkeypatch, moment, kept):
    def say(what: str, done: int, total: int | None) -> None:
        if what == moment and (done or total is None):
            raise KeyboardInterrupt

    class Bars:
        def __init__(self, shown: bool) -> None: ...
        def __enter__(self):
            return say

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(terminal, "bars", Bars)
    status, _, err = call("demo", "--model", tiny_model, *(["-o", tmp_path / "kept.bpr"] if kept else []))
    assert status == 130 and err.endswith("bpr: interrupted\n")
    found = {name.split("/")[0] for name in left_behind(tmp_path)}
    assert found == ({"kept.bpr"} if kept and moment == "encoding questions" else set())


def test_no_room_for_temporary_files(small, tiny_model, monkeypatch):
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    status, out, err = call("demo", "--model", tiny_model, "-q")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"bpr: cannot make a temporary folder: No space left on device; [^\n]+\n", err)


def test_the_verb_explains_itself():
    status, out, _ = call("demo", "--help")
    assert status == 0 and "$ bpr demo\n" in out
    for parameter in typer.main.get_command(cli.app).commands["demo"].params:
        assert parameter.help and all(name in out for name in parameter.opts)


# ── What is shown of a passage ───────────────────────────────────────────────────────────────────────────────────────


def shown(text: str, *answers: str, question: str = "what is it?", capsys: pytest.CaptureFixture[str]) -> list[str]:
    hit = Hit("a", "Title", text, 1.0, 1)
    asked = demo.Question(question, answers, 0)
    terminal.print_answered(demo.Answered(asked, [hit], [True], Timings(1, 0, 0, 0)))
    out = capsys.readouterr().out.splitlines()
    assert out[2] == "  ✓ 1  Title"
    return [line.strip() for line in out[3:] if line]


def test_an_excerpt_shows_the_answer_wherever_it_stands(capsys):
    words = [f"word{number}" for number in range(300)]
    for place in (0, 1, 7, 150, 298, 299):
        text = " ".join([*words[:place], "the ANSWER", *words[place + 1 :]])
        lines = shown(text, "nowhere", "answer", capsys=capsys)
        assert len(lines) == 2
        assert "the ANSWER" in " ".join(lines)
        assert lines[0].startswith("…") == (place > 7)
        assert lines[-1].endswith("…") or place >= 298


def test_an_excerpt_prefers_the_place_that_speaks_of_the_question(capsys):
    text = "Eight men came. " + "They stayed for years. " * 20 + "He spoke eight languages. " + "And so on. " * 20
    assert "spoke eight languages" in " ".join(shown(text, "eight", question="How many languages?", capsys=capsys))


def test_an_excerpt_without_the_answer_is_the_beginning(capsys):
    assert shown("Short text.", "answer", capsys=capsys) == ["Short text."]
    assert shown("It weighs a ton.", "to", capsys=capsys) == ["It weighs a ton."]  # part of a word is no answer
    lines = shown("x" * 5000, capsys=capsys)
    assert len(lines) == 2 and set("".join(lines)) <= {"x", "…"}
    assert "\x1b" not in shown("a \x1b[2J b", "\x1b", capsys=capsys)[0]


# ── The model that ships ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_model_that_ships_finds_the_paragraphs_of_the_sample(tmp_path):
    encoder = bpr.Encoder.open(SHIPPED)
    demo.index(tmp_path / "a.bpr", encoder, lambda what, done, total: None)
    with bpr.open(tmp_path / "a.bpr", model=encoder) as retriever:
        found = demo.recall(retriever, demo.questions(), lambda what, done, total: None)
    assert found.shares[20] >= FLOOR


# ── With a reader ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_with_a_reader_answers(small, tiny_model, tiny_reader, tmp_path_factory):
    import shutil

    from bpr.training.readerexport import export_reader

    both = tmp_path_factory.mktemp("both") / "model"
    shutil.copytree(tiny_model, both)
    export_reader(tiny_reader, both)
    status, out, _ = call("demo", "--model", both, "-q", columns=300)
    assert status == 0
    assert len(re.findall(r"^  → .+  \d+%  .+ ms with the search$", out, re.M)) == len(demo.SHOWN)
    assert "→" not in call("demo", "--model", tiny_model, "-q")[1]
