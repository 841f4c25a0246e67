"""Lines on a terminal: text that cannot take it over, sizes, messages, progress bars, tables.

found.py and reports.py print with it, and so does the command line. It must not know what it prints.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .. import records

# What could move the cursor, colour the screen, break the line or turn its direction: the control characters of ASCII
# and Latin-1, Unicode's line ends and bidirectional overrides, and halves of surrogate pairs, which no stream takes.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def plain(text: str) -> str:
    """Text from files or names as it may go to a terminal: one line, without control characters."""
    return _CONTROLS.sub(" ", text)


def count(number: int, what: str) -> str:
    """1 passage, 2,000 passages."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes for people, in powers of ten: 4.8 MB."""
    if number < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 999.95:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:,.1f} TB"


# ── Messages and progress, on stderr ─────────────────────────────────────────────────────────────────────────────────


def message(text: str, style: str = "") -> None:
    """One line on stderr."""
    console_of(stderr=True).print(Text(plain(text), style), soft_wrap=True)


def log_to_stderr(name: str, quiet: bool) -> None:
    """Let a part of bpr write its log, a line an event; quiet: only what went wrong."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def bars(shown: bool) -> Iterator[records.Progress]:
    """What long work calls as it goes on: draws a bar for each part of it, if that is wanted and a person looks on."""
    if not (shown and sys.stderr.isatty()):
        yield lambda what, done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn(compact=True)
    tasks: dict[str, TaskID] = {}
    console = console_of(stderr=True)
    with Progress(*columns, console=console, transient=True, expand=True, redirect_stdout=False) as progress:

        def say(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield say


def console_of(stderr: bool = False) -> Console:
    """Without colours of its own finding, and without marks in what it is given."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


# ── Results, on stdout ───────────────────────────────────────────────────────────────────────────────────────────────


def print_json(value: Any) -> None:
    """One line. In ASCII: every encoding can store it, and no control character reaches a terminal."""
    print(json.dumps(value, ensure_ascii=True))


def print_table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Lines below a head. What is too wide for the terminal goes on below, with the first column again."""
    console = console_of()
    wide = [max(cell_len(row[number]) for row in rows) + 2 for number in range(len(rows[0]))]
    console.print(Text(plain(title), "bold"), soft_wrap=True)
    first = 1
    while first < len(wide):
        last = first + 1
        while last < len(wide) and wide[0] + sum(wide[first : last + 1]) <= console.width:
            last += 1
        print_grid([(plain(row[0]), *row[first:last]) for row in rows], justify="right")
        first = last


def print_grid(rows: Iterable[tuple[str, ...]], justify: Literal["left", "right"] = "left") -> None:
    """Aligned columns; values that are too long for the terminal go on below. An empty line follows."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*(Text(cell, justify="left" if number == 0 else justify) for number, cell in enumerate(row)))
    console = console_of()
    console.print(grid)
    console.print()


def print_lines(console: Console, lines: Sequence[Text]) -> None:
    """Lines, each cut to the width of the terminal."""
    for line in lines:
        line.rstrip()
        line.truncate(console.width, overflow="ellipsis")
    console.print(Text("\n").join(lines), soft_wrap=True)
