"""docs/anatomy.md: how bpr is built in numbers, beside the packages that it learns from.

`make docs` runs it; tests/test_anatomy.py holds the page to what it prints, and bpr to its bars. Everything is counted
with ast over src/bpr; it imports nothing of bpr, and must not know what any module is for.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "anatomy.md"
BEGIN, END = "<!-- counted -->", "<!-- /counted -->"
HEADS = (
    "package", "modules", "lines", "median / longest module", "function median / p90", "arguments annotated",
    "functions with docstring", "comment lines", "test / source lines",
)  # fmt: skip
# Counted the same way over the packages' own sources, their tests left out.
ANCHORS = (
    ("httpx", "23", "8,827", "248 / 2,019", "9 / 34", "100 %", "35 %", "4.0 %", "1.01"),
    ("starlette", "33", "6,711", "145 / 876", "5 / 26", "100 %", "8 %", "2.5 %", "1.62"),
    ("nanoGPT", "15", "1,220", "37 / 336", "10 / 25", "0 %", "12 %", "17.9 %", "0"),
    ("minGPT", "4", "841", "209 / 319", "11 / 42", "7 %", "39 %", "15.8 %", "0.07"),
    ("bm25s", "18", "5,336", "151 / 1,411", "16 / 76", "32 %", "47 %", "5.2 %", "0.58"),
    ("pylate", "45", "8,077", "132 / 1,384", "25 / 84", "95 %", "67 %", "3.6 %", "0.29"),
    ("usearch (python)", "7", "2,873", "138 / 1,710", "7 / 39", "91 %", "43 %", "2.1 %", "0.77"),
    ("datasette", "73", "29,179", "174 / 3,314", "9 / 49", "21 %", "22 %", "3.1 %", "1.36"),
    ("DPR", "24", "7,926", "301 / 790", "8 / 39", "76 %", "11 %", "4.0 %", "0"),
    ("BPR (authors)", "14", "1,908", "58 / 469", "9 / 34", "96 %", "0 %", "0.4 %", "0"),
)


@dataclass(frozen=True)
class Anatomy:
    """What is counted of a package; shares are of 1, lengths in lines."""

    modules: list[int]
    functions: list[int]
    annotated: float
    documented: float
    undocumented: list[str]  # public names without a docstring
    comments: float
    tests: float

    def row(self) -> tuple[str, ...]:
        """As the table shows it."""
        return (
            "**bpr**",
            f"{len(self.modules)}",
            f"{sum(self.modules):,}",
            f"{statistics.median(self.modules):.0f} / {max(self.modules)}",
            f"{statistics.median(self.functions):.0f} / {self.p90}",
            f"{self.annotated:.0%}".replace("%", " %"),
            f"{self.documented:.0%}".replace("%", " %"),
            f"{self.comments:.1%}".replace("%", " %"),
            f"{self.tests:.2f}",
        )

    @property
    def p90(self) -> int:
        """What nine of ten functions are no longer than."""
        return sorted(self.functions)[int(0.9 * (len(self.functions) - 1))]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def anatomy(package: Path, tests: Path) -> Anatomy:
    """Count a package and its tests."""
    sources = {file: file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}
    trees = {file: ast.parse(text) for file, text in sources.items()}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, Function)]
    arguments = [each for function in functions for each in arguments_of(function)]
    lines = [len(text.splitlines()) for text in sources.values()]
    own = [f"{file.relative_to(package)}: {name}" for file, tree in trees.items() for name in undocumented(tree)]
    tested = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in tests.rglob("*.py"))
    return Anatomy(
        modules=lines,
        functions=[(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions],
        annotated=share(each.annotation is not None for each in arguments),
        documented=share(ast.get_docstring(node) is not None for node in functions),
        undocumented=own,
        comments=sum(map(comment_lines, sources.values())) / sum(lines),
        tests=tested / sum(lines),
    )


def arguments_of(function: Function) -> Iterator[ast.arg]:
    """Every argument that needs a type: not `self` and `cls`."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return (each for each in every if each.arg not in ("self", "cls"))


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public functions, classes and methods without a docstring; overloads and setters leave it to what they are of."""

    def look(node: ast.Module | ast.ClassDef, before: str) -> Iterator[str]:
        for each in node.body:
            if isinstance(each, Function | ast.ClassDef) and not each.name.startswith("_"):
                by = [ast.unparse(decorator) for decorator in each.decorator_list]
                if ast.get_docstring(each) is None and "overload" not in by and f"{each.name}.setter" not in by:
                    yield before + each.name
                if isinstance(each, ast.ClassDef):
                    yield from look(each, f"{before}{each.name}.")

    return look(tree, "")


def comment_lines(text: str) -> int:
    """Lines with a comment on them."""
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in found if token.type == tokenize.COMMENT})


def share(flags: Iterable[bool]) -> float:
    """Of the flags, how many are set."""
    known = list(flags)
    return sum(known) / len(known)


def table(own: Anatomy) -> str:
    """The page's table: bpr, then its anchors."""
    rows = [HEADS, ("---",) * len(HEADS), own.row(), *ANCHORS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(text: str, own: Anatomy) -> str:
    """A page with its table counted anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(own)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Print the table, and write it into the page."""
    own = anatomy(ROOT / "src" / "bpr", ROOT / "tests")
    print(table(own))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), own), encoding="utf-8")


if __name__ == "__main__":
    main()
