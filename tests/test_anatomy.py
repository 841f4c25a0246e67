"""docs/anatomy.md tells of the package that is there, and the package keeps within its bars."""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bpr"
sys.path.append(str(ROOT / "tools"))

import anatomy  # noqa: E402

OWN = anatomy.anatomy(SOURCE, ROOT / "tests")
LONGEST: dict[str, int] = {}  # lines of a module that may have more than 400
UNTYPED = 4  # the pointers of training/shorttexts.py's kernel, which Triton types when it is called
DRIFT = 0.15  # of a figure on the page: it is written by `make docs`, not with every commit
FILES = {str(each.relative_to(SOURCE)): each.read_text(encoding="utf-8") for each in sorted(SOURCE.rglob("*.py"))}


def figures(row: str) -> list[float]:
    return [float(word.replace(",", "")) for word in row.split() if word[0].isdigit()]


def test_the_page_is_what_the_tool_prints() -> None:
    page = anatomy.PAGE.read_text(encoding="utf-8")
    counted = page.split(anatomy.BEGIN)[1].split(anatomy.END)[0].strip().splitlines()
    now = anatomy.table(OWN).splitlines()
    assert counted[:2] + counted[3:] == now[:2] + now[3:]
    assert figures(counted[2]) == pytest.approx(figures(now[2]), rel=DRIFT), "run `make docs`"


def test_modules_keep_within_their_bar() -> None:
    lines = {name: len(text.splitlines()) for name, text in FILES.items()}
    assert not {name: size for name, size in lines.items() if size > LONGEST.get(name, 400)}, "split it"
    assert all(lines[name] > 400 for name in LONGEST), "an exception that nobody needs any more"


def test_functions_keep_within_their_bars() -> None:
    assert statistics.median(OWN.functions) <= 10 and OWN.p90 <= 30 and max(OWN.functions) <= 60


def test_every_argument_is_annotated_and_every_public_name_documented() -> None:
    nodes = [node for text in FILES.values() for node in ast.walk(ast.parse(text))]
    arguments = [each for node in nodes if isinstance(node, anatomy.Function) for each in anatomy.arguments_of(node)]
    assert sum(each.annotation is None for each in arguments) == UNTYPED
    assert OWN.undocumented == []


def test_there_is_as_much_test_as_source() -> None:
    assert OWN.tests > 1


SMALL = '''
class A:
    """Of a class."""

    def one(self, x: int, *more, y=1):  # a comment
        return x  # another

    @property
    def two(self) -> int:
        """Documented."""
    @two.setter
    def two(self, x: int) -> None: ...

@overload
def three(): ...

def _four(): ...
'''


def test_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "t").mkdir()
    (tmp_path / "p" / "a.py").write_text(SMALL)
    (tmp_path / "t" / "test_a.py").write_text("x = 1\n" * 34)
    found = anatomy.anatomy(tmp_path / "p", tmp_path / "t")
    assert found.modules == [17] and sorted(found.functions) == [1, 1, 1, 2, 2]
    assert found.annotated == pytest.approx(2 / 4) and found.documented == pytest.approx(1 / 5)
    assert found.undocumented == ["a.py: A.one"]
    assert found.comments == pytest.approx(2 / 17) and found.tests == 2.0
    assert anatomy.page(f"a{anatomy.BEGIN}old{anatomy.END}z", found).startswith(f"a{anatomy.BEGIN}\n\n| package |")
