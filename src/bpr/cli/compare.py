"""The verbs that measure bpr beside others: bench on this machine, compare on a corpus of yours (the paper's tables).

Each turns options into calls, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import Json, Quiet, Threads, train_extra, verb
from .evaluate import AsKind, Judgements, Prefix, Regex, Split

if TYPE_CHECKING:
    from ..records import Progress

HELD_OUT = 0.03  # of the groups of --examples: what the ablations are measured on

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Judged(str, Enum):
    """What makes a passage right."""

    gold = "gold"
    answer = "answer"


Pile = Annotated[Path, typer.Argument(metavar="PASSAGES", help="TSV, JSONL or BEIR, also as .gz, .xz or .zst.")]
Asked = Annotated[Path, typer.Argument(metavar="QA", help="Questions with answers or gold passages; see bpr evaluate.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where results, tables and drawings go.")
]
Floats = Annotated[
    Path | None, typer.Option("--float", metavar="MODEL", help="The float model, DPR: what the rivals are made of.")
]
Bits = Annotated[
    Path | None, typer.Option("--model", metavar="MODEL", help="The BPR model.  [default: the bundle's, or mini]")
]
OnePlane = Annotated[
    Path | None, typer.Option("--one-plane", metavar="MODEL", help="A BPR model of one plane, for rows of its own.")
]
Both = tuple[Path, Path]
FloatVectors = Annotated[
    Both | None, typer.Option("--float-vectors", metavar="P.npy Q.npy", help="Its vectors, if they are there already.")
]
BitsVectors = Annotated[
    Both | None, typer.Option("--model-vectors", metavar="P.npy Q.npy", help="The BPR model's vectors, likewise.")
]
OneVectors = Annotated[
    Both | None, typer.Option("--one-plane-vectors", metavar="P.npy Q.npy", help="The one-plane model's, likewise.")
]
OwnBundle = Annotated[
    Path | None, typer.Option("--bundle", metavar="NAME.bpr", help="PASSAGES, as --model has indexed them already.")
]
Judge = Annotated[
    Judged | None,
    typer.Option("--by", help="A passage is right if it is gold, or if it holds an answer.  [default: gold, if known]"),
]
Top = Annotated[
    list[int] | None, typer.Option("--top", "-k", min=1, help="Measure top k. Repeatable.  [default: 1, 20, 100]")
]
Candidates = Annotated[
    int | None, typer.Option("--candidates", min=1, help="l of all rows that rerank.  [default: the BPR model's own]")
]
Links = Annotated[int, typer.Option("--hnsw-links", min=2, help="Links of HNSW; the paper has 512.")]
Sample = Annotated[
    int | None,
    typer.Option("--sample", min=1, help="A quick look: so many questions, and passages beside their gold ones."),
]
Readers = Annotated[
    list[Path] | None,
    typer.Option("--reader", metavar="DIR", help="Answer from what each row found, for the column EM. Repeatable."),
]
ReadQuestions = Annotated[int, typer.Option("--read", min=1, help="With --reader: so many of the questions.")]
Ablations = Annotated[
    Path | None,
    typer.Option("--train-ablations", metavar="RECIPE", help="Also train the paper's ablations with this recipe."),
]
Examples = Annotated[
    Path | None, typer.Option("--examples", metavar="E", help="With --train-ablations: what to train on.")
]


BenchRows = Annotated[int, typer.Option("--rows", min=1000, help="Codes in the index.")]
BenchBits = Annotated[int, typer.Option("--bits", help="Bits of a code.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Runs of each system; the best one counts.")]


# ── The verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb("bench", "bench --rows 5000000 --bits 384 --json > bench.json")
def bench(
    rows: BenchRows = 1_000_000,
    bits: BenchBits = 768,
    rounds: Rounds = 5,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine: bpr beside Faiss, usearch and the paper's own code, on random codes, in turns."""
    from .. import bench as measuring
    from .. import terminal
    from ..codes import checked_bits
    from ..kernels import Limits

    thread_counts, timings = sorted({1, Limits(threads).thread_count()}), []
    with terminal.bars(not quiet) as say:
        for timing in measuring.run(rows, checked_bits(bits), thread_counts, measuring.QUESTIONS, rounds):
            timings.append(timing)
            say("measuring", len(timings), None)
    machine = measuring.machine()
    if as_json:
        terminal.print_json({"machine": machine, "timings": [timing.to_dict() for timing in timings]})
    else:
        terminal.print_bench(machine, measuring.compared(timings))


@verb(
    "compare passages.jsonl dev.jsonl --float dpr --model bpr --sample 2000 -o look",
    "compare passages.jsonl dev.jsonl --float-vectors p.npy q.npy --bundle passages.bpr -o tables",
    "compare nq/passages.jsonl nq-dev.jsonl --float dpr --train-ablations small.toml --examples nq/train.jsonl -o nq",
)
def compare(
    passages: Pile,
    questions: Asked,
    output: Output,
    float_model: Floats = None,
    model: Bits = None,
    one_plane: OnePlane = None,
    float_vectors: FloatVectors = None,
    model_vectors: BitsVectors = None,
    one_plane_vectors: OneVectors = None,
    bundle: OwnBundle = None,
    kind: AsKind = None,
    regex: Regex = False,
    prefix: Prefix = "",
    split: Split = None,
    qrels: Judgements = None,
    by: Judge = None,
    top: Top = None,
    candidates: Candidates = None,
    hnsw_links: Links = 32,
    sample: Sample = None,
    reader: Readers = None,
    read: ReadQuestions = 2000,
    train_ablations: Ablations = None,
    examples: Examples = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the paper's tables for a corpus of yours: what bits cost against floats, and against other ways to save.

    What is done is kept in FOLDER: run again, it goes on where it was, and measures only what has changed.
    """
    _check(float_model, float_vectors, bundle, model_vectors, train_ablations, examples)
    from .. import compare as comparing
    from .. import terminal
    from ..questions import read_questions
    from ..reader import Reader

    asked = read_questions(questions, kind and kind.value, regex=regex, prefix=prefix, split=split, qrels=qrels)
    corpus = comparing.corpus(passages, asked, by=None if by is None else by.value, regex=regex, sample=sample)
    bits = comparing.Source(model or (None if bundle else "mini"), model_vectors, bundle)
    sources = {comparing.FLOAT: comparing.Source(float_model, float_vectors), comparing.BITS: bits}
    if one_plane is not None or one_plane_vectors is not None:
        sources[comparing.ONE] = comparing.Source(one_plane, one_plane_vectors)
    how: dict[str, Any] = {"top": top or (1, 20, 100), "candidates": candidates, "links": hnsw_links}
    how |= {"readers": [Reader.open(each) for each in reader or ()], "read": read}
    with terminal.bars(not quiet) as say:
        found = comparing.compare(corpus, sources, output, **how, threads=threads, say=say)
        if train_ablations is not None and examples is not None:
            found["ablations"] = _ablations(train_ablations, passages, examples, output, quiet, say)
        written = comparing.write(found, output)
    if as_json:
        terminal.print_json(found)
        return
    for table in comparing.tables(found):
        terminal.print_table(table.title, table.cells)
    for note in () if quiet else [*found["notes"], f"written: {', '.join(path.name for path in written)} in {output}"]:
        terminal.message(note)


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _check(
    float_model: Path | None,
    float_vectors: Both | None,
    bundle: Path | None,
    model_vectors: Both | None,
    train_ablations: Path | None,
    examples: Path | None,
) -> None:
    """Options that need or exclude each other."""
    if float_model is None and float_vectors is None:
        raise typer.BadParameter("name a float model, or give --float-vectors", param_hint="'--float'")
    if bundle is not None and model_vectors is not None:
        raise typer.BadParameter("it has the passages' codes: leave out --model-vectors", param_hint="'--bundle'")
    if (train_ablations is None) != (examples is None):
        raise typer.BadParameter("it goes with --train-ablations", param_hint="'--examples'")


def _ablations(
    recipe: Path, passages: Path, examples: Path, output: Path, quiet: bool, say: Progress
) -> dict[str, list[dict[str, Any]]]:
    from . import training

    with train_extra():
        from ..compare import ablations
        from ..training import recipe as recipes
    settings = recipes.load(recipe)
    own = training.tokenizer_of(settings.start)
    inputs: dict[str, Any] = {"passages": passages, "examples": examples, "reserved": [], "hold_out": HELD_OUT}
    home = output / "ablations"
    data = training.prepared_data(inputs, own, home, say, True)
    with redirect_stdout(sys.stderr):  # what libraries print is no result
        return ablations.train(settings, data, own, home, training.reporter(not quiet, say))
