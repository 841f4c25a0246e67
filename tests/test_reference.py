"""The pages that the program writes itself are what it would write now."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import bpr
from bpr import errors

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

reference = pytest.importorskip("reference", reason="tools/ needs torch, for the settings of training")
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name, write", reference.PAGES.items())
def test_a_generated_page_is_up_to_date(name, write):
    assert (DOCS / name).read_text(encoding="utf-8") == write(), f"docs/{name} is out of date: run `make docs`"


def test_every_verb_and_option_of_the_help_is_on_the_page():
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    verbs = list(reference.verbs())
    assert {"bpr index", "bpr serve", "bpr convert squad"} <= {" ".join(words) for words, _ in verbs}
    for words, command in verbs:
        section = page.split(f"\n{'#' * len(words)} {' '.join(words)}\n")[1].split("\n## ")[0]
        for param in command.params:
            if param.param_type_name == "option":
                assert all(option in section for option in param.opts), f"{words}: {param.opts}"


def test_every_public_name_and_every_error_is_on_its_page():
    python, raised = ((DOCS / name).read_text(encoding="utf-8") for name in ("python.md", "errors.md"))
    for name in set(bpr.__all__) - {"__version__"}:
        is_error = isinstance(getattr(bpr, name), type) and issubclass(getattr(bpr, name), errors.BprError)
        assert (f"\n## {name}\n" in raised) if is_error else (f"\n### bpr.{name}\n" in python), name


def test_the_settings_are_those_that_the_recipes_take():
    from bpr.training.readerrun import ReaderRecipe
    from bpr.training.recipe import Recipe, known

    rows = (
        reference.recipe_rows(Recipe, reference.EXPLAINED),
        reference.recipe_rows(ReaderRecipe, reference.READER_EXPLAINED),
    )
    assert [[row[0].strip("`") for row in some] for some in rows] == [known(Recipe), known(ReaderRecipe)]


@pytest.mark.parametrize(
    "source, name",
    [
        ('os.environ["X"]', "X"),
        ('os.environ.get("X", "0")', "X"),
        ('os.environ.setdefault("X", "1")', "X"),
        ('os.getenv("X")', "X"),
        ('"X" in os.environ', "X"),
        ("os.environ[name]", "name"),
    ],
)
def test_a_variable_is_found_however_it_is_read(source, name):
    assert reference.variables_of(ast.parse(source)) == {name}


def test_a_variable_that_the_page_does_not_name_is_an_error(monkeypatch):
    monkeypatch.delitem(reference.ENVIRONMENT, "BPR_SIMD")
    with pytest.raises(LookupError, match="BPR_SIMD"):
        reference.environment()


def test_a_variable_that_nothing_reads_is_an_error(monkeypatch):
    monkeypatch.setitem(reference.ENVIRONMENT, "BPR_NOTHING", "…")
    with pytest.raises(LookupError, match="BPR_NOTHING"):
        reference.environment()


def test_an_error_that_does_not_say_what_to_do_is_an_error(monkeypatch):
    monkeypatch.setattr(errors.Overloaded, "__doc__", "Too much.")
    with pytest.raises(LookupError, match="Overloaded"):
        reference.error_page()


def test_a_setting_that_nobody_explains_is_an_error(monkeypatch):
    from bpr.training.recipe import Recipe

    explained = {key: text for key, text in reference.EXPLAINED.items() if key != "objective.margin"}
    with pytest.raises(LookupError, match="margin"):
        list(reference.recipe_rows(Recipe, explained))


def test_text_of_the_program_is_neither_a_tag_nor_a_link():
    assert reference.escaped("float[n] <id> `a_b[0]` a_b") == "float\\[n\\] \\<id\\> `a_b[0]` a\\_b"
    assert reference.table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x&#124;y |"
    assert reference.without_bars("`--by a|b<c`, `d`") == "<code>--by a&#124;b&lt;c</code>, `d`"


def test_the_script_writes_only_what_has_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    for name in ("cli.md", "python.md", "settings.md"):
        (tmp_path / name).write_bytes((DOCS / name).read_bytes())
    reference.main()
    assert capsys.readouterr().out == "wrote docs/errors.md\n"
    assert (tmp_path / "errors.md").read_bytes() == (DOCS / "errors.md").read_bytes()
