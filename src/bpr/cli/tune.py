"""The verbs about a bundle's index: tune, duplicates. Registered by being imported (cli/__init__.py).

tuning.py measures and chooses, index/hash.py finds what is nearly the same; here both become tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bundles import SameModel, load_questions
from .common import Bundle, Json, Quiet, Threads, drawing_into, verb, write_drawings
from .reader import questions_in

if TYPE_CHECKING:
    from ..tuning import Point, Tuned

Target = Annotated[
    float,
    typer.Option("--target-recall", min=0.5, max=0.9999, help="Share of the best 20 passages that shall be found."),
]
QuestionFile = Annotated[
    Path | None,
    typer.Option("--questions", metavar="F", help='One a line, or JSONL with a "question", such as will be asked.'),
]
QuestionVectors = Annotated[
    Path | None,
    typer.Option("--vectors", metavar="Q.npy", help="Instead of text: float[q, dimensions]."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Measure and print, and leave the bundle as it is.")]
Drawing = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Draw recall against time there, PNG and SVG.")
]
Radius = Annotated[int, typer.Option("--radius", min=0, help="Bits in which two codes may differ.")]


@verb("tune wiki.bpr", "tune wiki.bpr --target-recall 0.995 --questions asked.txt -o plots")
def tune(
    name: Bundle,
    target_recall: Target = 0.99,
    file: QuestionFile = None,
    vectors: QuestionVectors = None,
    model: SameModel = None,
    output: Drawing = None,
    dry_run: DryRun = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure which index finds that share of the best passages in the least time, and give it to the bundle.

    Questions like those that will be asked tell most; without any, sentences of its own passages stand for them.
    """
    if file is not None and vectors is not None:
        raise typer.BadParameter("give --questions or --vectors, not both", param_hint="'--questions'")
    from .. import terminal, tuning

    how: dict[str, Any] = {
        "questions": None if file is None else questions_in(file),
        "model": model,
        "threads": threads,
    }
    how["vectors"] = None if vectors is None else load_questions(vectors)
    with drawing_into(output):
        with terminal.bars(not quiet) as say:
            found = tuning.tune(name, target_recall, write=not dry_run, progress=say, **how)
        if output is not None:
            _draw(found, output)
    if as_json:
        terminal.print_json(found.to_dict())
    else:
        _print(found, written=not dry_run)


def _print(found: Tuned, written: bool) -> None:
    from .. import terminal

    rows = [("index", "candidates", "of the codes", "recall", "ms")]
    for point in found.points:
        share = "all" if point.probes is None else f"{point.probes:.2%}"
        mark = " ←" if point is found.chosen else ""
        rows.append(
            (point.kind, f"{point.candidates:,}", share, f"{point.recall:.4f}", f"{point.milliseconds:.3f}{mark}")
        )
    terminal.print_table(f"Recall of the best 20, {found.questions:,} questions ({found.asked})", rows)
    chosen = found.chosen
    reached = "" if chosen.recall >= found.target_recall else f", which is below {found.target_recall}: rerank more"
    verdict = "now has" if written else "would get"
    cells = "" if found.cells is None else f" of {found.cells:,} cells"
    terminal.message(
        f"the bundle {verdict} the index {chosen.kind}{cells}, {chosen.candidates:,} candidates: recall "
        f"{chosen.recall:.4f}{reached}"
    )


def _draw(found: Tuned, folder: Path) -> None:
    from .. import plots

    curves: dict[str, list[tuple[float, float]]] = {}
    for point in found.points:
        curves.setdefault(point.kind, []).append(_place(point))
    drawn = plots.recall_against_time(curves, _place(found.chosen), found.target_recall)
    write_drawings(folder, "tune", drawn)


def _place(point: Point) -> tuple[float, float]:
    return point.milliseconds, point.recall


@verb("duplicates wiki.bpr", "duplicates wiki.bpr --radius 16 --json > groups.jsonl")
def duplicates(
    name: Bundle, radius: Radius = 8, threads: Threads = None, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Find groups of passages whose codes differ in few bits: near duplicates."""
    import numpy as np

    from .. import retriever, terminal
    from ..index import duplicates as groups_of
    from ..kernels import Limits

    with retriever.open(name) as opened:
        codes = opened.index.planes.take(np.arange(len(opened))).signs
        groups = groups_of(codes, radius, limits=Limits(threads))
        for rows in groups:
            found = opened.passages.get(rows)
            if as_json:
                terminal.print_json({"ids": [each.id for each in found]})
            else:
                print("\t".join(terminal.plain(each.id) for each in found))
    if not quiet:
        many = sum(len(rows) - 1 for rows in groups)
        terminal.message(f"{terminal.count(len(groups), 'group')}, {terminal.count(many, 'passage')} more than needed")
