"""The verbs that change a bundle: add, delete, compact. Registered by being imported (cli/__init__.py).

Each is one call of live.py, which changes all or nothing; here stands only which passages and ids are meant.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidInput
from .bundles import SameModel, Source
from .checking import facts_of
from .common import Bundle, Quiet, Threads, verb

Upsert = Annotated[bool, typer.Option("--upsert", help="Put passages whose ids are there already in their place.")]
Vectors = Annotated[
    Path | None,
    typer.Option("--vectors", metavar="V.npy", help="For a bundle built from vectors: row i is passage i's."),
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of passages.")]
IdFile = Annotated[
    Path | None, typer.Option("--ids", metavar="FILE", help="A file with an id on each line; - for stdin.")
]


@verb("add wiki.bpr new.jsonl", "add wiki.bpr corrected/ --upsert", "add mine.bpr new.tsv --vectors new.npy")
def add(
    name: Bundle,
    source: Source,
    upsert: Upsert = False,
    vectors: Vectors = None,
    model: SameModel = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Add passages to a bundle, or with --upsert replace those of the same ids. All of them appear at once.

    Killed, it goes on where it was when it is run again: what is encoded already is in NAME.bpr.parts until the end.
    """
    if vectors is not None and model is not None:
        raise typer.BadParameter("vectors need no model: leave out --model", param_hint="'--vectors'")
    from .. import live, terminal

    start = time.monotonic()
    with terminal.bars(not quiet) as say:
        rows = live.add(name, source, upsert=upsert, model=model, vectors=vectors, threads=threads, progress=say)
    _say(name, f"{terminal.count(rows, 'passage')} added", start, quiet)


@verb("delete wiki.bpr 12 13", "delete wiki.bpr --ids gone.txt")
def delete(name: Bundle, ids: Ids = None, file: IdFile = None, quiet: Quiet = False) -> None:
    """Delete passages by their ids. All of them are there, or nothing is deleted."""
    if not ids and file is None:
        raise typer.BadParameter("name at least one id, or a file of them with --ids", param_hint="'ID'")
    from .. import live, terminal

    start = time.monotonic()
    rows = live.delete(name, [*(ids or []), *([] if file is None else _lines(file))])
    _say(name, f"{terminal.count(rows, 'passage')} deleted", start, quiet)


@verb("compact wiki.bpr")
def compact(name: Bundle, quiet: Quiet = False) -> None:
    """Make a bundle that was changed as if it were built at once: one segment, nothing deleted."""
    from .. import live, terminal

    start = time.monotonic()
    with terminal.bars(not quiet) as say:
        live.compact(name, progress=say)
    _say(name, "compacted", start, quiet)


def _lines(file: Path) -> list[str]:
    """The ids in a file; empty lines are none."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text: put an id on each line") from None
    ids = [line for line in text.split("\n") if line.strip()]
    if not ids:
        raise InvalidInput(f"{file} holds no ids: put one on each line")
    return [each.removesuffix("\r") for each in ids]


def _say(name: Path, what: str, start: float, quiet: bool) -> None:
    """What happened, and what the bundle holds now."""
    if quiet:
        return
    from .. import bundle, terminal

    with bundle.open(name, verify="size") as opened:
        facts: dict[str, Any] = facts_of(opened)
    parts = terminal.count(len(facts["segments"]), "segment")
    took = time.monotonic() - start
    terminal.message(f"{name}: {what} in {took:,.1f} s; {terminal.count(facts['rows'], 'passage')} in all, {parts}")
