"""Every measured figure on the pages comes from benchmarks/results, by benchmarks/report.py, and is up to date."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import all as everything  # noqa: E402  # benchmarks/ is no package
import blocks  # noqa: E402
import common  # noqa: E402
import report  # noqa: E402
import scale_blocks as scale  # noqa: E402


@pytest.fixture(scope="module")
def results() -> blocks.Results:
    return blocks.Results()


# ── The pages are what the results give ──────────────────────────────────────────────────────────────────────────────


def test_the_pages_are_what_the_results_give(results):
    stale = [str(page) for page, text in report.written(results).items() if text != page.read_text(encoding="utf-8")]
    assert not stale, "run `python benchmarks/report.py`"


def test_check_writes_nothing_and_says_which_page_is_stale(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: one -->\nold\n<!-- end of figures -->\nafter", encoding="utf-8")
    monkeypatch.setattr(report, "PAGES", [page])
    monkeypatch.setattr(report, "HOME", tmp_path)
    monkeypatch.setattr(blocks, "BLOCKS", {"one": lambda results: "new"})
    monkeypatch.setattr(report, "BLOCKS", {"one": lambda results: "new"})
    with pytest.raises(SystemExit) as ended:
        report.main(["--check"])
    assert ended.value.code == 1 and "page.md" in capsys.readouterr().out and "old" in page.read_text()
    assert report.written(blocks.Results())[page] == (
        "before\n<!-- figures: one -->\n\nnew\n\n<!-- end of figures -->\nafter"
    )


def test_a_block_that_nobody_knows_or_shows_is_an_error(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: two -->\n<!-- end of figures -->", encoding="utf-8")
    monkeypatch.setattr(report, "PAGES", [page])
    with pytest.raises(SystemExit, match="two"):
        report.written(blocks.Results())
    with pytest.raises(SystemExit, match="no block 'two'"):
        blocks.filled(page.read_text(), blocks.Results())


def test_marks_come_in_pairs():
    for page in blocks.PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall("<!-- figures:", text)) == text.count(blocks.END) == len(blocks.MARKED.findall(text)), (
            page
        )


def test_paragraphs_become_lines_and_tables_stay():
    text = "one\ntwo\n\n| a |\n| - |\n\n- x\n- y\n\n```\nc\nd\n```\nend"
    assert blocks.unwrapped(text) == "one two\n\n| a |\n| - |\n\n- x\n- y\n\n```\nc\nd\n```\nend"


def test_what_the_results_have_only_after_the_next_run_is_drawn(results, tmp_path):
    pytest.importorskip("matplotlib")
    import drawings

    cluster = {**results("cluster"), "spread": [0.9, 1.0, 1.1, 2.0]}
    held = {**results("reader")["held"], "coverage": {"50%": 90.0, "100%": 60.0}}
    held["reliability"] = [
        {"confidence": 0.2, "right": 0.1, "answers": 5},
        {"confidence": 0.9, "right": 1.0, "answers": 5},
    ]
    for name, found in (("cluster", cluster), ("reader", {**results("reader"), "held": held})):
        (tmp_path / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    for name in ("cluster", "reliability"):
        drawn = drawings.DRAWINGS[name](blocks.Results(tmp_path))
        assert drawn is not None and b"<svg" in drawn
    assert all((drawings.IMAGES / f"{name}.svg").exists() for name in drawings.DRAWINGS)


# ── Nothing is hidden ────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_bar_that_does_not_hold_is_shown(results):
    shown = report.missed(results)
    for name in results.names():
        for figure in results(name).get("figures", ()):
            assert (f"| {figure['name']} |" in shown) == (not figure["holds"])
            value, target = figure["value"], figure["target"]
            assert figure["holds"] == (value <= target if figure["most"] else value >= target)


def test_every_results_file_is_listed_and_reported(results):
    listed = report.files(results)
    assert all(f"| {name}.json |" in listed for name in results.names())
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    assert all(f'"{name}"' in source for name in results.names())


def test_a_rival_that_a_file_lacks_is_left_out(results, tmp_path):
    for file in results.folder.glob("*.json"):
        (tmp_path / file.name).symlink_to(file)
    fewer = json.loads((results.folder / "compare-squad.json").read_text(encoding="utf-8"))
    fewer["rows"] = [row for row in fewer["rows"] if "one plane" not in row["name"] and "PQ" not in row["name"]]
    (tmp_path / "compare-squad.json").unlink()
    (tmp_path / "compare-squad.json").write_text(json.dumps({**fewer, "command": "bpr compare"}), encoding="utf-8")
    some = blocks.Results(tmp_path)
    assert "quantisation" not in report.overview(some) and "quantisation" in report.overview(results)
    assert "DPR + PQ" not in blocks.BLOCKS["compare"](some) and "one plane" in blocks.BLOCKS["compare-bf16"](some)


@pytest.mark.parametrize("mean, high, said", [(0.2, 0.4, "yes"), (-0.1, 0.1, "not decided"), (-0.3, -0.1, "**no**")])
def test_a_difference_is_judged_with_its_interval(mean, high, said):
    assert report.decided([{"mean": mean, "low": -1.0, "high": high}], [0.0]) == said


# ── No figure is written by hand ─────────────────────────────────────────────────────────────────────────────────────

GENERATED = {"anatomy.md", "cli.md", "settings.md", "python.md", "errors.md", "licences.md"}  # by tools/
MEASURED = re.compile(
    r"\d+\.\d+ ?(?:ms|µs|s|×|%|MB|GB|GiB|points|times|minutes|seconds|hours)(?!\w)"  # a decimal with a unit
    r"|\d+ (?:ms|passages/s|steps/s)(?!\w)|\b\d+\.\d / \d+\.\d\b"
)
# Pages, and headings within them, whose figures are no measurement of this repository's code as it is.
ALLOWED = {
    ("reproduction.md", "What was measured on the way"): "the history of training, from the ledger training.jsonl",
    ("reproduction.md", "How far these figures can be trusted"): "the same",
    ("reproduction.md", "Hash lookup: where it wins, where it cannot"): "the paper's own row, and arithmetic on it",
    ("operations.md", "Running the service"): "settings: how long a stop waits",
    ("operations.md", "From one machine to many"): "the target of the plan, and the bar",
    ("architecture.md", "Bundles"): "the format: digests of blocks",
    ("live.md", "What it costs"): "the same",
}


def prose() -> list[tuple[str, str, str]]:
    """(page, heading, text) of all that is written by hand, without code."""
    found = []
    for page in blocks.PAGES:
        if page.name in GENERATED:
            continue
        text = blocks.MARKED.sub("", page.read_text(encoding="utf-8"))
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        text = re.sub(r"`[^`\n]*`|^    .*$", "", text, flags=re.MULTILINE)
        heading = ""
        for part in re.split(r"^(#+ .*)$", text, flags=re.MULTILINE):
            if part.startswith("#"):
                heading = part.lstrip("# ")
            found.append((page.name, heading, part))
    return found


def test_no_measured_figure_stands_outside_the_blocks():
    odd = [
        f"{page}, {heading}: …{text[max(0, hit.start() - 60) : hit.end() + 20]}…"
        for page, heading, text in prose()
        if (page, heading) not in ALLOWED
        for hit in MEASURED.finditer(text)
    ]
    assert not odd, "\n".join(odd)


def test_what_is_allowed_is_there():
    places = {(page, heading) for page, heading, text in prose() if MEASURED.search(text)}
    assert {*ALLOWED} <= places, {*ALLOWED} - places


# ── Sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_no_benchmark_has_run_at_a_size_is_marked():
    line = scale.scaled("search", "ms", "x.py", {1000: 2.0, 1_000_000: 5.0})
    assert line.cells["1 million"] == scale.Cell(5.0) and line.cells["21 million"] == scale.Cell(105.0, True)
    assert scale.shown(line.cells["1 million"], "ms") == "5 ms"
    assert scale.shown(line.cells["1 billion"], "ms") == "5 s *"
    assert scale.shown(scale.Cell(96e9), "bytes") == "96 GB"


def test_a_recall_that_was_never_reached_gives_no_time():
    one = {"system": "cells", "threads": 2, "measure": "answers", "recall": 0.99}
    found = [{**one, "rows": 10, "best": 1.5}, {**one, "rows": 20, "best": None}, {**one, "rows": 30, "threads": 1}]
    assert scale.at_recall({"threads": 2, "equal_recall": found}, "cells") == {10: 1.5}


# ── Measuring everything ─────────────────────────────────────────────────────────────────────────────────────────────


def test_every_step_has_its_script_and_every_results_file_its_step(results, tmp_path):
    (tmp_path / "minilm-float32").mkdir()
    steps = [*everything.without_data(), *everything.with_data(tmp_path, tmp_path)]
    for step in steps:
        assert step.command[1] == "-m" or Path(step.command[1]).exists(), step
    elsewhere = {"noted", "gpu", "compare-squad-bf16"}  # by hand, on a GPU, of weights that are not here
    assert {step.name for step in steps} == {*results.names()} - elsewhere


def test_what_was_measured_on_this_commit_is_passed_over(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(everything, "RESULTS", tmp_path)
    monkeypatch.setattr(everything, "is_current", lambda name, result: result["commit"] == "now")
    for name, when in (("live", "now"), ("memory", "before")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"commit": when}))
    everything.main(["--list", "--only", "live", "memory", "scan"])
    out = capsys.readouterr().out
    assert " live" not in out and out.index("memory") < out.index("scan")
    everything.main(["--list", "--again", "--only", "live"])
    assert " live" in capsys.readouterr().out


def test_results_say_when_and_on_which_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(common, "commit", lambda: "1a2b3c4")
    common.put("x", "python benchmarks/x.py", {"figures": []}, {"device": "none"})
    found = json.loads((tmp_path / "results" / "x.json").read_text())
    assert found["commit"] == "1a2b3c4" and re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert blocks.source(found) == f"`python benchmarks/x.py`, commit 1a2b3c4, {found['date']}, none"


@pytest.mark.parametrize("noted", [None, "1a2b3c4-dirty", "no such commit"])
def test_what_has_no_clean_commit_is_not_current(noted):
    assert not common.is_current("scan", {"commit": noted})


def test_no_benchmark_runs_what_is_anothers_alone():
    alone = {Path(path).stem for path in common.ALONE if path.startswith("benchmarks/")}
    for file in (common.HOME / "benchmarks").glob("*.py"):
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", file.read_text(), re.MULTILINE))
        assert file.stem == "drawings" or not imported & alone, file  # what draws measures nothing
        assert file.stem == "load" or '"serve"' not in file.read_text(), file
        turns = re.search(r"^from bpr.bench import (?!Timing$)", file.read_text(), re.MULTILINE)
        assert not turns or file.stem in common.ALONE["src/bpr/bench.py"], file


@pytest.mark.parametrize(
    ("changed", "current"),
    [
        ("docs/page.md", {"scan", "cluster", "encode"}),
        ("benchmarks/results/scan.json", {"scan", "cluster", "encode"}),
        ("tests/test_x.py", {"scan", "cluster", "encode"}),
        ("benchmarks/speed_blocks.py", {"scan", "cluster", "encode"}),
        ("src/bpr/training/convert.py", {"scan", "cluster", "encode"}),
        ("src/bpr/cluster/fleet.py", {"scan", "encode"}),
        ("src/bpr/service/guard.py", {"scan", "cluster", "encode"}),
        ("src/bpr/encoder.py", {"scan", "cluster"}),
        ("benchmarks/answers.py", {"scan", "cluster", "encode"}),
        ("src/bpr/codes.py", set()),
        ("native/scan.cpp", set()),
        ("src/bpr/bench.py", {"cluster", "encode"}),
        ("benchmarks/scan.py", {"cluster", "encode"}),
        ("benchmarks/live.py", set()),
    ],
)
def test_a_figure_is_current_until_what_it_may_depend_on_changes(monkeypatch, tmp_path, changed, current):
    monkeypatch.setattr(common, "HOME", tmp_path)
    file = tmp_path / changed
    file.parent.mkdir(parents=True)
    file.write_text("before")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
        assert common.git(*arguments) is not None
    measured = {"commit": common.commit()}
    names = ("scan", "cluster", "encode")
    assert all(common.is_current(name, measured) for name in names)
    assert not common.is_current("scan", {**measured, "part": {"commit": "of another day"}})
    file.write_text("after")
    assert {name for name in names if common.is_current(name, measured)} == current


def test_what_figures_are_said_not_to_depend_on_is_there():
    named = [*common.NOT_RUN, *common.ALONE, *common.TEXT, *(f"src/bpr/{each}" for each in common.CONVERTING)]
    assert not [path for path in named if not (common.HOME / path).exists()]


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert common.commit() is None and common.stamp()["commit"] is None
