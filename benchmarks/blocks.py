"""What the pages' generated blocks are made with: results, tables, and the list of blocks.

A block stands in a page between `<!-- figures: NAME -->` and `<!-- end of figures -->`. A function of that name makes
its text of benchmarks/results/*.json; report.py puts it there. Nothing here measures, and nothing needs matplotlib.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import HOME, RESULTS, count

PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md")), HOME / "src/bpr/models/mini/README.md"]
END = "<!-- end of figures -->"
MARKED = re.compile(rf"<!-- figures: ([\w-]+) -->\n(.*?){re.escape(END)}", re.DOTALL)
WRAP = re.compile(r"(?<=[^|\n])\n(?=[^|\n#\- ])")  # between two lines of a paragraph, not of a table or a list
Result = dict[str, Any]


class Results:
    """The results files, each read once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._read: dict[str, Result] = {}

    def __call__(self, name: str) -> Result:
        if name not in self._read:
            self._read[name] = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        return self._read[name]

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def ledger(self, name: str) -> Result:
        """The last line of that name in the ledger of training runs."""
        lines = (self.folder / "training.jsonl").read_text(encoding="utf-8").splitlines()
        return next(run for run in map(json.loads, reversed(lines)) if run["name"] == name)


Block = Callable[[Results], str]
BLOCKS: dict[str, Block] = {}


def block(name: str) -> Callable[[Block], Block]:
    """Make a function the block of that name."""

    def known(make: Block) -> Block:
        assert name not in BLOCKS, name
        BLOCKS[name] = make
        return make

    return known


def filled(page: str, results: Results) -> str:
    """A page with the text of all its blocks made anew."""

    def made(found: re.Match[str]) -> str:
        if found[1] not in BLOCKS:
            raise SystemExit(f"there is no block {found[1]!r}: there are {', '.join(sorted(BLOCKS))}")
        return f"<!-- figures: {found[1]} -->\n\n{unwrapped(BLOCKS[found[1]](results).strip())}\n\n{END}"

    return MARKED.sub(made, page)


def unwrapped(text: str) -> str:
    """With one line a paragraph: where a template is wrapped says nothing about the page."""
    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else WRAP.sub(" ", part) for part in parts)


# ── Words and tables ─────────────────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def signed(value: float, digits: int = 1) -> str:
    """+0.8, −1.7: with a true minus."""
    shown = f"{value:+.{digits}f}"
    return (shown.replace("-", "−") if float(shown) else f"{0:.{digits}f}").replace("-", "−")


def interval(found: Mapping[str, Any], digits: int = 1) -> str:
    """61.6 [60.7, 62.5]; without brackets where none was noted."""
    if found.get("low") is None:
        return f"{found['mean']:.{digits}f}"
    return f"{found['mean']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def difference(by: Mapping[str, Any], digits: int = 1) -> str:
    """+4.5 [+4.1, +4.9]."""
    return f"{signed(by['mean'], digits)} [{signed(by['low'], digits)}, {signed(by['high'], digits)}]"


def slashed(values: Iterable[float], show: Callable[[float], str] = "{:.1f}".format) -> str:
    """61.6 / 92.3 / 96.9."""
    return " / ".join(map(show, values))


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def bar(figure: Mapping[str, Any]) -> str:
    """≥ 4, ≤ 0.15 ms."""
    return f"{'≤' if figure['most'] else '≥'} {figure['target']:.4g}{figure['unit']}"


def value(figure: Mapping[str, Any]) -> str:
    return f"{figure['value']:.3g}{figure['unit']}"


def verdict(holds: bool) -> str:
    return "yes" if holds else "**no**"


def bars(figures: Iterable[Mapping[str, Any]]) -> str:
    """Every figure with its bar."""
    rows = [[each["name"], value(each), bar(each), verdict(each["holds"])] for each in figures]
    return table(["figure", "measured", "bar", "holds"], rows)


def machine(result: Mapping[str, Any]) -> str:
    """2 threads of an AMD EPYC (family 25, model 17), avx512."""
    own = result.get("machine")
    if not own:
        return ""
    return (
        own["device"] if "device" in own else f"{count(own['threads'], 'thread')} of {own['processor']}, {own['simd']}"
    )


def source(result: Mapping[str, Any]) -> str:
    """`python benchmarks/live.py`, 2026-11-17, 1a2b3c4, 2 threads of …: what made the figures."""
    when = [f"commit {result['commit']}"] if result.get("commit") else []
    when += [result.get("date") or result.get("measured") or "", machine(result)]
    return ", ".join(each for each in (f"`{result['command']}`", *when) if each)
