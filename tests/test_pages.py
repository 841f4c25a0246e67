"""Pages of docs/ that speak of the code: what they name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "bpr"


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


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_picture_of_the_readme_leads_to_the_command_that_made_it():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[!\[[^]]+\]\((docs/images/[\w.-]+)\)\]\((docs/[\w-]+\.md)#([\w-]+)\)", readme)
    assert len(linked) == readme.count("![") >= 3
    for image, page, anchor in linked:
        text = (ROOT / page).read_text(encoding="utf-8")
        sections = {slug(part.splitlines()[0]): part for part in re.split(r"^#+ ", text, flags=re.M)[1:]}
        command = r"python benchmarks/\w+\.py|bpr compare \S|BPR_SCREENSHOTS=\S+ pytest"
        assert (ROOT / image).exists() and re.search(command, sections[anchor]), f"{image}: {page}#{anchor}"
