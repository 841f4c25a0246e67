"""The verb demo: a first look at bpr on passages that come with it. Registered by being imported (cli/__init__.py).

It takes the steps of demo/ one by one, and prints what each gives. Nothing is measured here.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import serve as serving
from .bundles import ModelFolder
from .common import Quiet, Threads, verb
from .serve import Port

if TYPE_CHECKING:
    from ..retriever import Retriever

HITS = 3  # passages that are shown for a question

Kept = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="NAME.bpr", help="Keep the bundle here.  [default: it is removed again]"),
]


Serve = Annotated[bool, typer.Option("--serve", help="Then serve it: a page to ask questions on, until Ctrl-C.")]


@verb("demo", "demo --serve", "demo -o squad.bpr")
def demo(
    model: ModelFolder = None,
    output: Kept = None,
    serve: Serve = False,
    port: Port = 8080,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Index a sample of real passages that comes with bpr, and ask it. Takes a minute or two, and no network."""
    from .. import demo as sample
    from .. import retriever, terminal
    from ..encoder import Encoder

    def step(text: str) -> None:
        if not quiet:
            terminal.message(text, "bold")

    encoder, questions = Encoder.open(model or "mini"), sample.questions()
    with sample.place(output) as path:

        def index() -> float:
            step(f"1. Index paragraphs of Wikipedia, with the model {encoder.model.name}, here and offline")
            with terminal.bars(not quiet) as say:
                return sample.index(path, encoder, say, threads)

        def opens() -> Retriever:
            index()
            step("2. Serve them: open the page below in a browser, and ask; Ctrl-C ends it")
            return retriever.open(path, model=encoder)

        if serve:  # it indexes when it knows that it can serve: fastapi is there, and the port is free
            serving.run(path, "127.0.0.1", port, None, opens, True, {"threads": threads})
            return
        seconds = index()
        with retriever.open(path, model=encoder) as opened:
            terminal.print_indexed(sample.facts(opened), seconds)
            step("2. Ask, one question at a time (✓ the passage holds the answer)")
            for answered in sample.answer(opened, sample.shown(questions), HITS, threads):
                terminal.print_answered(answered)
            step(f"3. Ask {len(questions):,} questions: how often is the right paragraph among the best?")
            with terminal.bars(not quiet) as say:
                recall = sample.recall(opened, questions, say, threads)
            terminal.print_recall(recall)
    if not quiet:
        _say_what_next(output)


def _say_what_next(output: Path | None) -> None:
    from .. import terminal

    terminal.message("Next", "bold")
    terminal.message(
        f"  {shlex.quote(sys.argv[0])} demo --serve    # a page to ask these passages on: http://localhost:8080/"
    )
    if output is not None:
        terminal.message(f'  bpr search {shlex.quote(str(output))} "a question of yours"')
    terminal.message("  bpr index docs/ -o docs.bpr    # .txt and .md, or passages as TSV or JSONL")
    terminal.message('  bpr search docs.bpr "a question of yours"')
    terminal.message("The sample is from SQuAD v1.1, CC BY-SA 4.0: see ATTRIBUTION.md in bpr/demo.")
