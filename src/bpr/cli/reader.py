"""The verbs around a reader: answer, prepare-reader, train-reader, calibrate.

Each turns options into one call, and what comes back into lines. Registered by being imported (cli/__init__.py). torch
is imported by the verb that needs it, and not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from .bundles import SameModel
from .common import (
    Bundle,
    Json,
    Quiet,
    ReaderFolder,
    Texts,
    Threads,
    WhereJson,
    drawing_into,
    train_extra,
    verb,
    where_of,
    write_drawings,
)
from .evaluate import Asked, AsKind, Prefix
from .training import (
    Changes,
    OwnTokenizer,
    PrintRecipe,
    RecipeFile,
    Reserve,
    Resume,
    pairs_of,
    print_outcome,
    reporter,
    required,
    tokenizer_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QUESTIONS_AT_ONCE = 16  # between two steps of the bar

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Lines = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Questions, one a line; or JSONL with a field question."),
]
Several = Annotated[int, typer.Option("-n", min=1, help="Different answers for each question.")]
Passages = Annotated[
    int | None, typer.Option("-k", min=1, help="Passages that are read.  [default: the reader's own, 20]")
]
Least = Annotated[
    float | None,
    typer.Option("--least", min=0, max=1, help="The confidence below which there is no answer.  [default: its own]"),
]

Pile = Annotated[Path, typer.Argument(metavar="PASSAGES", help="The passages: TSV, JSONL or BEIR.")]
Examples = Annotated[Path, typer.Argument(metavar="EXAMPLES", help="JSONL, as `bpr convert` writes it.")]
Retrieved = Annotated[
    Path,
    typer.Option(
        "--retrieved",
        metavar="R",
        help="What was found for each example: .npy of int[n, k] rows of PASSAGES, or a TREC run numbered from 1.",
    ),
]
DataFolder = Annotated[Path, typer.Option("--output", "-o", metavar="DATA", help="The folder to make.")]
HoldOut = Annotated[
    float,
    typer.Option("--hold-out", min=0, max=1, help="Share of the articles for validation; 1: a set to evaluate only."),
]
Negatives = Annotated[int, typer.Option("--negatives", min=0, help="Of a question that are kept.")]
Depth = Annotated[int, typer.Option("--depth", min=1, help="Retrieved passages of a question that count.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="DATA", help="A folder that `bpr prepare-reader` made.")]
NewReader = Annotated[Path | None, typer.Option("--output", "-o", metavar="READER", help="The folder to make.")]

RightFrom = Annotated[
    float,
    typer.Option(
        "--right-from",
        min=0.01,
        max=1,
        help="An answer is right from this F1 on; 1: if it is exact. Where each question has one answer, of several "
        "that people would give, take less.",
    ),
]
Absent = Annotated[
    bool,
    typer.Option(
        "--absent", help="Ask again with the articles of the gold passages left out, where no answer is right."
    ),
]
Write = Annotated[bool, typer.Option("--write", help="Store the calibration (and, with --absent, a threshold).")]
Drawings = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Draw the reliability there, as PNG and SVG.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=10, help="Take so many of the questions, at random.")]


# ── The verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb('answer wiki.bpr "who wrote the Iliad?"', "answer wiki.bpr --file questions.txt --json > answers.jsonl")
def answer(
    name: Bundle,
    questions: Texts = None,
    file: Lines = None,
    reader: ReaderFolder = None,
    model: SameModel = None,
    n: Several = 1,
    k: Passages = None,
    least: Least = None,
    where: WhereJson = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer each question from the passages of a bundle.

    An answer is a span of a passage, with the probability that it is exactly right.
    """
    if bool(questions) == (file is not None):
        raise typer.BadParameter("ask in words or with --file, one of the two", param_hint="'QUESTION'")
    how: dict[str, Any] = {"n": n, "k": k, "least": least, "where": where_of(where), "threads": threads}
    from .. import retriever, terminal

    asked = list(questions or ()) if file is None else questions_in(file)
    shown = not (quiet or sys.stdout.isatty())  # on a terminal the answers are progress enough
    with retriever.open(name, model=model, reader=reader) as opened, terminal.bars(shown) as say:
        for first in range(0, len(asked), QUESTIONS_AT_ONCE):
            some = asked[first : first + QUESTIONS_AT_ONCE]
            found = opened.answer(some, **how)
            for question, answers in zip(some, found, strict=True):
                if as_json:
                    terminal.print_json({"question": question, "answers": [each.to_dict() for each in answers]})
                else:
                    terminal.print_answers(question, answers)
            say("answering", first + len(some), len(asked))


@verb("prepare-reader squad/passages.jsonl squad/examples.jsonl --retrieved runs/train/run.trec -o reader.data")
def prepare_reader(
    passages: Pile,
    examples: Examples,
    retrieved: Retrieved,
    output: DataFolder,
    tokenizer: OwnTokenizer = None,
    reserve: Reserve = None,
    hold_out: HoldOut = 0.03,
    negatives: Negatives = 30,
    depth: Depth = 50,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Prepare what a reader is trained on.

    Questions and what was retrieved for them are cut into tokens, and the answers found in them.
    """
    from .. import model as models
    from .. import terminal
    from ..disk import made_folder

    with train_extra():
        from ..training.data import read_examples
        from ..training.readerdata import FACTS, prepare, trec_rows
    if output.exists() and not (output / FACTS).exists() and (not output.is_dir() or any(output.iterdir())):
        raise InvalidInput(f"{output} holds something else: choose another folder")
    ranked = _rows(retrieved) if retrieved.suffix == ".npy" else trec_rows(retrieved)
    with terminal.bars(not quiet) as say:
        data = prepare(
            passages,
            read_examples(examples),
            ranked,
            tokenizer or models.MINI / models.TOKENIZER,
            reserved=[example for path in reserve or () for example in read_examples(path)],
            held_share=hold_out,
            negatives=negatives,
            depth=depth,
            progress=say,
        )
        with made_folder(output, whole=True):
            data.save(output)
    if as_json:
        terminal.print_json({"data": str(output), **data.facts})
    elif not quiet:
        facts = data.facts
        what = f"{facts['train']:,} questions to train on ({facts['without']:,} of them without a passage that answers)"
        terminal.message(
            f"{output}: {what}, {facts['held']:,} held out, {terminal.count(facts['passages'], 'passage')}"
        )


@verb("train-reader --print-recipe > reader.toml", "train-reader reader.toml --data reader.data -o reader")
def train_reader(
    recipe: RecipeFile = None,
    data: Data = None,
    output: NewReader = None,
    changes: Changes = None,
    tokenizer: OwnTokenizer = None,
    resume: Resume = False,
    print_recipe: PrintRecipe = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a reader on what `bpr prepare-reader` made. READER/ledger.jsonl says what was done.

    On several GPUs: torchrun --nproc-per-node 8 -m bpr.cli train-reader ...
    """
    with train_extra():
        from ..training import readerrun
        from ..training import recipe as recipes
        from ..training.readerdata import ReaderData
    if print_recipe:
        from .settings import READER_EXPLAINED, READER_HEAD, as_toml

        print(as_toml(readerrun.ReaderRecipe().to_dict(), READER_HEAD, READER_EXPLAINED), end="")
        return
    recipe, output = required(recipe, "RECIPE.toml"), required(output, "--output' / '-o")
    ready = ReaderData.load(required(data, "--data"))
    from .. import terminal

    settings = recipes.load_as(readerrun.ReaderRecipe, recipe, pairs_of(changes, "--set"))
    first = os.environ.get("RANK", "0") == "0"
    with terminal.bars(first and not quiet) as say, redirect_stdout(sys.stderr):  # what libraries print is no result
        own = tokenizer or tokenizer_of(settings.start)
        report = reporter(first and not quiet, say)
        line = readerrun.train(settings, ready, own, output, resume=resume, report=report)
    if first:
        print_outcome([line], line, as_json, quiet)


@verb(
    "calibrate squad.bpr held.json --reader reader -o runs/reader",
    "calibrate squad.bpr held.json --reader reader --absent --write",
)
def calibrate(
    name: Bundle,
    questions: Asked,
    reader: ReaderFolder = None,
    model: SameModel = None,
    kind: AsKind = None,
    prefix: Prefix = "",
    k: Passages = None,
    limit: Limit = None,
    right_from: RightFrom = 1.0,
    absent: Absent = False,
    write: Write = False,
    output: Drawings = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure and fit a reader's confidence.

    It should say how likely an answer is exactly right. Take questions about articles that neither the reader nor the
    retrieval model was trained on.
    """
    from .. import answering, retriever, terminal
    from ..questions import read_questions

    asked = read_questions(questions, kind and kind.value, prefix=prefix)
    if limit is not None and limit < len(asked):
        import numpy as np

        asked = [asked[i] for i in sorted(np.random.default_rng(0).permutation(len(asked))[:limit])]
    with drawing_into(output):
        with retriever.open(name, model=model, reader=reader) as opened, terminal.bars(not quiet) as say:
            reads, count = opened.reader, k or opened.reader.model.passages
            sure = answering.ask(opened, asked, count, right_from=right_from, threads=threads, progress=say)
            if absent:
                sure += answering.ask(opened, asked, count, absent=True, threads=threads, progress=say)
        found: dict[str, Any] = {"reader": str(reads.folder), "passages": count}
        found |= answering.report(sure, reads.model.calibration, reads.model.threshold)
        fit = sure.fit()
        found["calibration"] = {each: getattr(fit, each) for each in ("bias", "share", "score", "span")}
        if output is not None:
            _draw(found, output)
    if write:
        from ..reader import load_model, save_model

        threshold = found.get("threshold", reads.model.threshold)
        kept = replace(reads.model, calibration=fit, passages=count, threshold=threshold)
        save_model(reads.folder, kept, load_model(reads.folder)[1])
    if as_json:
        terminal.print_json(found)
    else:
        terminal.print_calibration(found)


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def holds_reader_alone(folder: Path) -> bool:
    """Whether `bpr export` is asked for a reader: a folder with one, and without a retrieval model's float weights."""
    from .. import model as models
    from .. import reader as readers

    home = models.resolve(folder)
    return (home / readers.CONFIG).is_file() and not (home / models.CONFIG).is_file()


def export_reader_of(
    folder: Path,
    output: Path | None,
    float32: bool,
    pile: Sequence[tuple[str, str]] | None,
    asked: Sequence[str] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """`bpr export` for a reader's folder. pile, asked: passages and questions to round by, paired as they come."""
    from .. import terminal

    with train_extra():
        from ..training.readerexport import export_reader, triples
    with terminal.bars(not quiet) as say:
        say("exporting", 0, None)
        texts = None if pile is None else triples(pile, asked)
        made = export_reader(folder, output, int8=not float32, texts=texts, progress=say)
    if as_json:
        terminal.print_json({"reader": str(made.folder), "bytes": made.bytes, "agreement": made.agreement})
    else:
        row = ("reader.onnx", terminal.size(made.bytes), f"r = {made.agreement:.4f}")
        terminal.print_table("Reader", [("file", "size", "logits as in float32"), row])


def questions_in(path: Path) -> list[str]:
    """One a line, or the field question of JSON objects."""
    from ..layouts import string_of
    from ..textfiles import parse_objects, read_lines

    if ".jsonl" in path.suffixes:
        asked = [string_of(record, "question") for _, record in parse_objects(path, read_lines(path))]
    else:
        asked = [line.strip() for _, line in read_lines(path)]
    asked = [each for each in asked if each.strip()]
    if not asked:
        raise InvalidInput(f"{path} holds no questions")
    return asked


def _rows(path: Path) -> NDArray[np.integer[Any]]:
    import numpy as np

    try:
        rows: NDArray[np.integer[Any]] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"{path} is no array of row numbers: {error}") from error
    return rows


def _draw(found: dict[str, Any], folder: Path) -> None:
    from .. import plots

    drawn = plots.reliability(found["reliability"], found["coverage"], f"ECE {found['ece']:.3f}")
    write_drawings(folder, "reliability", drawn)
