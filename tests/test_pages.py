"""Pages of docs/ that speak of the code or of measurements: what they name exists, what they say was measured was."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "bpr"
sys.path.append(str(ROOT / "benchmarks"))

import sizing  # noqa: E402  # benchmarks/ is no package


def names_of(module: Path) -> set[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def code_cells() -> list[str]:
    """What the last column of the table of how-it-works.md has between backticks."""
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    rows = page.split("## The paper, section by section")[1].split("\n## ")[0].splitlines()
    cells = [row.split(" | ")[-1] for row in rows if row.startswith("| ") and " | in the code" not in row]
    return [name for cell in cells for name in re.findall(r"`([\w/.]+)`", cell) if not name.startswith("objective")]


@pytest.mark.parametrize("name", sorted(set(code_cells())))
def test_what_stands_beside_a_section_of_the_paper_is_in_the_code(name):
    path, _, member = name.partition(".")
    module = SOURCE / f"{path}.py"
    assert module.exists(), f"{name}: there is no {module}"
    assert not member or member in names_of(module), f"{module} has no {member}"


def test_every_equation_of_the_paper_has_its_row():
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    assert set(re.findall(r"equation (\d)", page)) == set("1234567")
    assert len(code_cells()) > 20


def test_files_of_native_that_are_named_exist():
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    named = re.findall(r"native/\w+\.cpp", page)
    assert named and all((ROOT / name).exists() for name in named)


# ── Sizing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def lines() -> list[sizing.Line]:
    return sizing.lines(sizing.result)


def test_the_table_of_sizes_is_what_the_results_give(lines):
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert sizing.with_table(page, lines) == page, "run `python benchmarks/sizing.py`"


def test_the_file_of_sizes_is_what_the_results_give(lines):
    stored = json.loads((sizing.RESULTS / "sizing.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(sizing.report(lines))), "run `python benchmarks/sizing.py`"


def test_what_no_benchmark_has_run_at_a_size_is_marked():
    line = sizing.scaled("search", "ms", "x.py", {1000: 2.0, 1_000_000: 5.0})
    assert line.cells["1 million"] == sizing.Cell(5.0, 1_000_000, False)
    assert line.cells["21 million"] == sizing.Cell(105.0, 1_000_000, True)
    assert sizing.shown(line.cells["1 million"], "ms") == "5 ms"
    assert sizing.shown(line.cells["1 billion"], "ms") == "5 s *"
    assert sizing.shown(sizing.Cell(96e9, None, False), "bytes") == "96 GB"


def test_a_recall_that_was_never_reached_gives_no_time():
    one = {"system": "cells", "threads": 2, "measure": "answers", "recall": 0.99}
    found = [{**one, "rows": 10, "best": 1.5}, {**one, "rows": 20, "best": None}, {**one, "rows": 30, "threads": 1}]
    assert sizing.at_recall({"threads": 2, "equal_recall": found}, "cells") == {10: 1.5}


def test_the_page_keeps_what_stands_around_its_table(lines):
    made = sizing.with_table(f"before {sizing.BEGIN} old {sizing.END} after", lines)
    assert made.startswith("before ") and made.endswith(" after") and " old " not in made
    assert made.count("| 1 million |") == 1
