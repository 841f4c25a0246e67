"""The command line: parse, call, print; nothing else.

`bpr` and `python -m bpr.cli` start it. Whatever is computed is computed elsewhere: a verb here turns options into one
call, and what comes back into lines. Results go to stdout; progress, messages and errors to stderr. Only typer is
imported at the start, so that `bpr --help` is quick; numpy and rich (terminal.py) come with the verb that needs them.

A new verb is a function below `@_verb(example, …)`: how it ends (errors, Ctrl-C, a closed pipe) is taken care of there.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer

from . import __version__
from .errors import BprError, InvalidInput

if TYPE_CHECKING:
    from .builder import Progress
    from .bundle import Opened
    from .codes import Floats
    from .records import Hit, Passage

QUESTIONS_AT_ONCE = 256  # bounds the memory for the texts of hits
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

EPILOG = """\b
Example:
  $ bpr passages docs/ -o passages.jsonl
  $ bpr index passages.jsonl --vectors vectors.npy -o docs.bpr
  $ bpr search docs.bpr --vectors questions.npy

Exit status: 0 success, 1 failure (one line on stderr says why), 2 wrong usage, 130 interrupted.

BPR_THREADS limits the threads, NO_COLOR turns colours off, BPR_DEBUG=1 shows where in the program an error arose."""

app = typer.Typer(
    help="Passage retrieval over millions of passages on one ordinary machine, with learned binary codes.",
    epilog=EPILOG,
    rich_markup_mode=None,  # typer's rich help takes longer to import than all else together
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The program."""
    for name in ("stdout", "stderr"):  # Python has None for one that was closed before the start
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that its encoding lacks is no reason to stop
        sys.stdout.reconfigure(errors="replace")
    with _ending():
        try:
            app(prog_name="bpr")
        finally:
            print(end="", flush=True)  # what stdout refuses, it refuses here, not when the interpreter shuts down


# ── How every verb ends ──────────────────────────────────────────────────────────────────────────────────────────────


def _verb(*examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the verb of its name; the examples stand at the end of its --help."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(**options: Any) -> None:
            with _ending():
                function(**options)

        lines = "\n".join(f"  $ bpr {example}" for example in examples)
        app.command(epilog=f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}")(guarded)
        return function

    return register


@contextmanager
def _ending() -> Iterator[None]:
    """Every end but success is an exit status and one line on stderr; never a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        _give_up_stdout()
        sys.exit(1)
    except OSError as error:  # files speak as StorageError: this is stdout
        _give_up_stdout()
        _fail(f"cannot write the output: {error.strerror or error}")
    except MemoryError:
        _fail("there is not enough memory: close some programs, or give it less at a time")
    except (BprError, ImportError) as error:  # ImportError: the compiled kernel is missing, which it says clearly
        _fail(str(error))


def _fail(message: str, status: int = 1) -> NoReturn:
    """One red line, then the end. The traceback of the error at hand only for those who asked for it."""
    if os.environ.get("BPR_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    from . import terminal

    terminal.message(f"bpr: {message}", "red")
    sys.exit(status)


def _give_up_stdout() -> None:
    """What is left in its buffer goes nowhere, so that the interpreter does not fail on it at its end."""
    with suppress(OSError):  # it may be no file at all
        descriptor = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class By(str, Enum):
    """Where passages may end."""

    words = "words"
    sentence = "sentence"


Bundle = Annotated[Path, typer.Argument(metavar="NAME.bpr", help="A bundle that `bpr index` wrote.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no messages: only results and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

Documents = Annotated[list[Path], typer.Argument(metavar="DOCS...", help="Files and folders of .txt, .md and .jsonl.")]
Lines = Annotated[str, typer.Option("--output", "-o", metavar="P.jsonl", help="The file to write; - for stdout.")]
Words = Annotated[int, typer.Option("--words", min=1, help="Words of a passage, at most.")]
CutBy = Annotated[By, typer.Option("--by", help="End a passage at any word, as in the paper, or with a sentence.")]
Overlap = Annotated[int, typer.Option("--overlap", min=0, help="Words that a passage shares with the next one.")]

Source = Annotated[Path, typer.Argument(metavar="PASSAGES", help="TSV, JSONL or BEIR; also as .gz, .xz or .zst.")]
NewBundle = Annotated[Path, typer.Option("--output", "-o", metavar="NAME.bpr", help="The bundle to make or replace.")]
Vectors = Annotated[
    Path | None, typer.Option("--vectors", metavar="V.npy", help="float[n, dimensions]: row i is passage i's.")
]
Planes = Annotated[int, typer.Option("--planes", min=1, max=2, help="2: also magnitudes; better, twice as large.")]
Center = Annotated[bool, typer.Option("--center", help="Subtract the mean: helps vectors not trained for bits.")]
Rotate = Annotated[bool, typer.Option("--rotate", help="Rotate at random: helps vectors not trained for bits.")]
Bits = Annotated[int | None, typer.Option("--bits", help="Bits of a code, with --rotate.  [default: dimensions]")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the random rotation.")]

Questions = Annotated[
    Path, typer.Option("--vectors", metavar="Q.npy", help="float[q, dimensions] or float[dimensions].")
]
K = Annotated[int, typer.Option("-k", min=1, help="Passages for each question.")]
Candidates = Annotated[
    str | None,
    typer.Option(
        "--candidates",
        metavar="N|all",
        help="Passages to rerank; all: every one.  [default: 1000; with two planes 2000]",
    ),
]
NoRerank = Annotated[bool, typer.Option("--no-rerank", help="Keep the order of Hamming distances.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the search.  [default: all cores]")]


BenchRows = Annotated[int, typer.Option("--rows", min=1000, help="Codes in the index.")]
BenchBits = Annotated[int, typer.Option("--bits", help="Bits of a code.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Runs of each system; the best one counts.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"bpr {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _program(version: Version = False) -> None:
    pass


# ── The verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@_verb("passages docs/ notes.md -o passages.jsonl", "passages book.txt --by sentence -o - | head")
def passages(
    docs: Documents,
    output: Lines,
    words: Words = 100,
    by: CutBy = By.words,
    overlap: Overlap = 0,
    quiet: Quiet = False,
) -> None:
    """Cut documents into passages of 100 words or so."""
    from . import documents, terminal

    report = documents.Report()
    with terminal.bars(not quiet) as say:
        cut = _counted(documents.cut(docs, words=words, by=by.value, overlap=overlap, report=report), say)
        if output == "-":
            _write_stdout(cut)
        else:
            documents.write_jsonl(cut, output)
    if not quiet:
        terminal.message(str(report))


@_verb(
    "index passages.jsonl --vectors vectors.npy -o wiki.bpr",
    "index wiki.tsv.gz --vectors v.npy --center --rotate --planes 2 -o wiki.bpr",
)
def index(
    source: Source,
    output: NewBundle,
    vectors: Vectors = None,
    planes: Planes = 1,
    center: Center = False,
    rotate: Rotate = False,
    bits: Bits = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Build a bundle from passages and their vectors. An existing one is replaced whole, at the end."""
    if vectors is None:
        raise InvalidInput("text alone cannot be indexed yet: encode it with a model of yours and add --vectors V.npy")
    from . import builder, bundle, terminal

    start = time.monotonic()
    how: dict[str, Any] = {"planes": planes, "center": center, "rotate": rotate, "bits": bits, "seed": seed}
    with terminal.bars(not quiet) as say:
        builder.build(source, output, vectors=vectors, progress=say, **how)
    with bundle.open(output, verify="size") as opened:
        facts = _facts(opened)
    if not quiet:
        rows, took = terminal.count(facts["rows"], "passage"), time.monotonic() - start
        terminal.message(f"{output}: {rows}, {terminal.shape(facts)}, built in {took:,.1f} s")
        terminal.message(terminal.saving(facts))


@_verb("search wiki.bpr --vectors questions.npy -k 5", "search wiki.bpr --vectors q.npy --json > hits.jsonl")
def search(
    name: Bundle,
    vectors: Questions,
    k: K = 20,
    candidates: Candidates = None,
    no_rerank: NoRerank = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the best passages for each question vector."""
    wanted = _candidates(candidates, no_rerank)
    from . import retriever, terminal

    shown = not (quiet or sys.stdout.isatty())  # on a terminal the results are progress enough
    with retriever.open(name) as opened, terminal.bars(shown) as say:
        questions = _load_questions(vectors)
        for first in range(0, len(questions), QUESTIONS_AT_ONCE):
            some = questions[first : first + QUESTIONS_AT_ONCE]
            found = opened.search(vectors=some, k=k, candidates=wanted, rerank=not no_rerank, threads=threads)
            for question, hits in enumerate(cast("list[list[Hit]]", found), first):
                if as_json:
                    terminal.print_json({"question": question, "hits": [hit.to_dict() for hit in hits]})
                else:
                    terminal.print_hits(question, hits)
            say("searching", first + len(some), len(questions))


@_verb("verify wiki.bpr")
def verify(name: Bundle, as_json: Json = False, quiet: Quiet = False) -> None:
    """Check every byte of a bundle against its checksums."""
    from . import bundle, terminal

    found = bundle.verify(name)
    damaged = [each for each in found if each.problem]
    if as_json:
        terminal.print_json({"bundle": str(name), "ok": not damaged, "files": [each._asdict() for each in found]})
    else:
        for each in damaged if quiet else found:
            state = f"damaged  {each.problem}" if each.problem else f"ok  {terminal.size(each.bytes):>10}  {each.file}"
            print(terminal.plain(state))
    if damaged:
        files = terminal.count(len(found), "file")
        _fail(f"{name} is damaged in {len(damaged)} of {files}: restore it from a copy or build it again")


@_verb("info wiki.bpr", "info wiki.bpr --json")
def info(name: Bundle, as_json: Json = False, quiet: Quiet = False) -> None:
    """Show what a bundle holds and how healthy its codes are."""
    from . import builder, bundle, health, terminal

    with bundle.open(name) as opened:
        facts = _facts(opened)
        report = health.measure(opened.array(builder.SIGNS)) if facts["rows"] else None
    if as_json:
        terminal.print_json({**facts, "health": report and report.to_dict()})
        return
    terminal.print_facts(facts)
    if report is not None:
        terminal.print_health(report)


@_verb("bench", "bench --rows 5000000 --bits 384 --json > bench.json")
def bench(
    rows: BenchRows = 1_000_000,
    bits: BenchBits = 768,
    rounds: Rounds = 5,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine: bpr beside Faiss, usearch and the paper's own code, on random codes, in turns."""
    from . import bench as measuring
    from . import terminal
    from .codes import checked_bits
    from .kernels import Limits

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


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _candidates(text: str | None, no_rerank: bool) -> int | Literal["all"] | None:
    if text is None:
        return None
    if text == "all":
        if no_rerank:
            raise typer.BadParameter(
                "all is a rerank of every passage: not with --no-rerank", param_hint="'--candidates'"
            )
        return "all"
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither a whole number from 1 on nor 'all'", param_hint="'--candidates'")
    return int(text)


def _counted(passages: Iterable[Passage], say: Progress) -> Iterator[Passage]:
    for number, passage in enumerate(passages):
        if number % 1000 == 0:
            say("cutting documents", number, None)
        yield passage


def _write_stdout(passages: Iterable[Passage]) -> None:
    from .passages import to_line

    for passage in passages:
        sys.stdout.buffer.write(to_line(passage))
    sys.stdout.buffer.flush()


def _load_questions(path: Path) -> Floats:
    """float[q, dimensions]; an array of one axis is one question."""
    import numpy as np

    from .builder import load_vectors

    shape: tuple[int, ...] = ()
    with suppress(Exception), np.errstate(over="ignore"):  # whatever is wrong, load_vectors says it
        shape = np.lib.format.open_memmap(path, mode="r").shape
    if len(shape) == 1:
        return load_vectors(np.lib.format.open_memmap(path, mode="r")[None])
    return load_vectors(path)


def _facts(opened: Opened) -> dict[str, Any]:
    """What `info` says of a bundle, JSON-able."""
    known, files = opened.info, opened.manifest.files
    rows, dimensions = int(known["rows"]), int(known["dimensions"])
    total = opened.manifest.bytes + opened.manifest.checksums.bytes
    return {
        "bundle": str(opened.path),
        "generation": opened.generation,
        "rows": rows,
        "bits": known["bits"],
        "planes": known["planes"],
        "levels": known["levels"],
        "dimensions": dimensions,
        "centered": known["centered"],
        "rotated": known["rotated"],
        "model": known["model"],
        "files": {entry.name: entry.bytes for entry in (*files.values(), opened.manifest.checksums)},
        "bytes": total,
        "bytes_per_passage": total / rows if rows else None,
        "code_bytes": rows * known["bits"] // 8 * known["planes"],
        "float32_bytes": rows * dimensions * 4,
    }


if __name__ == "__main__":
    main()
