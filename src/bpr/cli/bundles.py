"""The verbs that make a bundle and ask it: passages, index, search.

Each turns options into one call, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from ..errors import InvalidInput
from .checking import facts_of
from .common import Bundle, Json, Quiet, Texts, Threads, WhereJson, verb, where_of
from .onray import RayAddress, Workers, on_ray

if TYPE_CHECKING:
    from ..codes import Floats
    from ..encoder import Encodes
    from ..records import Hit, Passage, Progress

QUESTIONS_AT_ONCE = 256  # bounds the memory for the texts of hits

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class By(str, Enum):
    """Where passages may end."""

    words = "words"
    sentence = "sentence"


Documents = Annotated[list[Path], typer.Argument(metavar="DOCS", help="Files and folders of .txt, .md and .jsonl.")]
Lines = Annotated[str, typer.Option("--output", "-o", metavar="P.jsonl", help="The file to write; - for stdout.")]
Words = Annotated[int, typer.Option("--words", min=1, help="Words of a passage, at most.")]
CutBy = Annotated[By, typer.Option("--by", help="End a passage at any word, as in the paper, or with a sentence.")]
Overlap = Annotated[int, typer.Option("--overlap", min=0, help="Words that a passage shares with the next one.")]


class Device(str, Enum):
    """What encodes."""

    cpu = "cpu"
    cuda = "cuda"


class Kinds(str, Enum):
    """What an index is."""

    scan = "scan"
    cells = "cells"
    hash = "hash"


Source = Annotated[
    Path,
    typer.Argument(
        metavar="PASSAGES|DOCS",
        help="TSV, JSONL or BEIR, also as .gz, .xz or .zst; or a folder or file of documents, which are cut.",
    ),
]
NewBundle = Annotated[Path, typer.Option("--output", "-o", metavar="NAME.bpr", help="The bundle to make or replace.")]
ModelFolder = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="A model folder.  [default: mini, which comes with bpr]"),
]
SameModel = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="Where the bundle's model is, if it was moved.")
]
On = Annotated[Device, typer.Option("--device", help="cuda: encode on a GPU, with torch.")]
Vectors = Annotated[
    Path | None,
    typer.Option("--vectors", metavar="V.npy", help="Instead of a model: float[n, dimensions], row i is passage i's."),
]
Planes = Annotated[
    int | None,
    typer.Option("--planes", min=1, max=2, help="With --vectors, 2: also magnitudes; better, twice as large."),
]
Center = Annotated[bool, typer.Option("--center", help="Subtract the mean: helps vectors not trained for bits.")]
Rotate = Annotated[bool, typer.Option("--rotate", help="Rotate at random: helps vectors not trained for bits.")]
Bits = Annotated[int | None, typer.Option("--bits", help="Bits of a code, with --rotate.  [default: dimensions]")]
KindOf = Annotated[
    Kinds,
    typer.Option(
        "--kind",
        help="scan: every code is compared; cells: a few per cent of them, for millions of passages (then `bpr tune`); "
        "hash: as scan, faster for near duplicates alone.",
    ),
]
Probes = Annotated[
    float | None,
    typer.Option("--probes", metavar="SHARE", help="Of the codes that cells look at.  [default: the bundle's own]"),
]
WithWords = Annotated[bool, typer.Option("--words", help="Keep the words too, for `bpr search --hybrid`.")]


class Kept(str, Enum):
    """How vectors are kept."""

    int8 = "int8"
    float16 = "float16"


KeepVectors = Annotated[
    Kept | None,
    typer.Option("--keep-vectors", help="Keep vectors on disk, to score the last 100 passages of a search with them."),
]


class Fusion(str, Enum):
    """How two rankings are joined."""

    weighted = "weighted"
    reciprocal = "reciprocal"


Hybrid = Annotated[
    Fusion | None,
    typer.Option("--hybrid", help="Also find by words (BM25), and join both by their scores or by their ranks."),
]
Refine = Annotated[
    int | None,
    typer.Option("--refine", min=0, metavar="N", help="Score so many by kept vectors.  [default: 100, if there are]"),
]
Neighbours = Annotated[
    int | None,
    typer.Option("--documents", min=0, metavar="N", help="Group hits by document, with N passages around the best."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the random rotation.")]
Questions = Annotated[
    Path | None,
    typer.Option("--vectors", metavar="Q.npy", help="Instead of text: float[q, dimensions] or float[dimensions]."),
]
K = Annotated[int, typer.Option("-k", min=1, help="Passages for each question.")]
Candidates = Annotated[
    str | None,
    typer.Option(
        "--candidates",
        metavar="N|all",
        help="Passages to rerank; all: every one.  [default: the bundle's own, 1000 or 2000]",
    ),
]
NoRerank = Annotated[bool, typer.Option("--no-rerank", help="Keep the order of Hamming distances.")]


# ── The verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb("passages docs/ notes.md -o passages.jsonl", "passages book.txt --by sentence -o - | head")
def passages(
    docs: Documents,
    output: Lines,
    words: Words = 100,
    by: CutBy = By.words,
    overlap: Overlap = 0,
    quiet: Quiet = False,
) -> None:
    """Cut documents into passages of 100 words or so."""
    from .. import documents, terminal

    report = documents.Report()
    with terminal.bars(not quiet) as say:
        cut = _counted(documents.cut(docs, words=words, by=by.value, overlap=overlap, report=report), say)
        if output == "-":
            _write_stdout(cut)
        else:
            documents.write_jsonl(cut, output)
    if not quiet:
        terminal.message(str(report))


@verb(
    "index passages.jsonl -o wiki.bpr",
    "index docs/ --model models/mine -o docs.bpr",
    "index wiki.tsv.gz --vectors v.npy --center --rotate --planes 2 -o wiki.bpr",
    "index wiki.tsv.gz -o wiki.bpr --ray 10.0.0.1:6379",
)
def index(
    source: Source,
    output: NewBundle,
    model: ModelFolder = None,
    device: On = Device.cpu,
    kind: KindOf = Kinds.scan,
    words: WithWords = False,
    keep_vectors: KeepVectors = None,
    vectors: Vectors = None,
    planes: Planes = None,
    center: Center = False,
    rotate: Rotate = False,
    bits: Bits = None,
    seed: Seed = 0,
    threads: Threads = None,
    ray: RayAddress = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Build a bundle from text, or from vectors of yours. An existing one is replaced whole, at the end.

    Killed, it goes on where it was when it is run again: what is encoded already is in NAME.bpr.parts until the end.
    With --ray the machines of a Ray cluster encode (docs/cluster.md).
    """
    if vectors is not None and (model is not None or device is not Device.cpu or ray is not None):
        raise typer.BadParameter(
            "vectors need no model: leave out --model, --device and --ray", param_hint="'--vectors'"
        )
    if workers is not None and ray is None:
        raise typer.BadParameter("workers are a cluster's: give its address with --ray", param_hint="'--workers'")
    from .. import builder, bundle, terminal

    start = time.monotonic()
    how: dict[str, Any] = {"kind": kind.value, "words": words, "keep_vectors": keep_vectors and keep_vectors.value}
    how |= {"planes": planes, "center": center, "rotate": rotate, "bits": bits, "seed": seed}
    with ExitStack() as stack:
        if ray is not None:
            pool = how["model"] = stack.enter_context(on_ray(ray, model or "mini", device.value, workers, threads))
        elif vectors is None:
            how["model"] = _encoder(model or "mini", device)
        say = stack.enter_context(terminal.bars(not quiet))
        builder.build(source, output, vectors=vectors, threads=threads, progress=say, **how)
    with bundle.open(output, verify="size") as opened:
        facts = facts_of(opened)
    if not quiet:
        rows, took = terminal.count(facts["rows"], "passage"), time.monotonic() - start
        terminal.message(f"{output}: {rows}, {terminal.shape(facts)}, built in {took:,.1f} s")
        terminal.message(terminal.saving(facts))
        if ray is not None:
            terminal.message(pool.report())


@verb(
    'search docs.bpr "how is it installed?" --hybrid weighted --documents 1',
    'search wiki.bpr "who wrote the Iliad?" -k 5 --where \'{"lang": "en"}\'',
    "search wiki.bpr --vectors questions.npy --json > hits.jsonl",
)
def search(
    name: Bundle,
    questions: Texts = None,
    vectors: Questions = None,
    model: SameModel = None,
    k: K = 20,
    candidates: Candidates = None,
    no_rerank: NoRerank = False,
    where: WhereJson = None,
    probes: Probes = None,
    hybrid: Hybrid = None,
    refine: Refine = None,
    documents: Neighbours = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the best passages for each question."""
    if bool(questions) == (vectors is not None):
        raise typer.BadParameter("ask in words or with --vectors Q.npy, one of the two", param_hint="'QUESTION'")
    wanted = candidates_of(candidates, no_rerank)
    how: dict[str, Any] = {"k": k, "rerank": not no_rerank, "where": where_of(where), "threads": threads}
    how |= {"probes": probes, "hybrid": hybrid and hybrid.value, "refine": refine}
    from .. import retriever, terminal

    shown = not (quiet or sys.stdout.isatty())  # on a terminal the results are progress enough
    with retriever.open(name, model=model) as opened, terminal.bars(shown) as say:
        asked: Any = questions if vectors is None else load_questions(vectors)
        for first in range(0, len(asked), QUESTIONS_AT_ONCE):
            some = asked[first : first + QUESTIONS_AT_ONCE]
            given = {"question": some} if vectors is None else {"vectors": some}
            found = opened.search(**given, candidates=wanted, **how)
            for number, hits in enumerate(cast("list[list[Hit]]", found), first):
                question = number if vectors is not None else asked[number]
                if documents is not None:
                    groups = opened.grouped(hits, documents)
                    shown_groups = {"question": question, "documents": [group.to_dict() for group in groups]}
                    terminal.print_json(shown_groups) if as_json else terminal.print_groups(question, groups)
                elif as_json:
                    terminal.print_json({"question": question, "hits": [hit.to_dict() for hit in hits]})
                else:
                    terminal.print_hits(question, hits)
            say("searching", first + len(some), len(asked))


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _encoder(model: Path | str, device: Device) -> Encodes:
    """Of a model folder, on a device."""
    if device is Device.cpu:
        from ..encoder import Encoder

        return Encoder.open(model)
    try:
        from ..training.encode import TorchEncoder
    except ImportError as error:
        raise InvalidInput(
            f'--device {device.value} needs torch: pip install "binary-passage-retriever[train]" ({error})'
        ) from error
    return TorchEncoder.open(model, device.value)


def candidates_of(text: str | None, no_rerank: bool) -> int | Literal["all"] | None:
    """What --candidates says."""
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
    from ..passages import to_line

    for passage in passages:
        sys.stdout.buffer.write(to_line(passage))
    sys.stdout.buffer.flush()


def load_questions(path: Path) -> Floats:
    """float[q, dimensions]; an array of one axis is one question."""
    import numpy as np

    from ..given import load_vectors

    shape: tuple[int, ...] = ()
    with suppress(Exception), np.errstate(over="ignore"):  # whatever is wrong, load_vectors says it
        shape = np.lib.format.open_memmap(path, mode="r").shape
    if len(shape) == 1:
        return load_vectors(np.lib.format.open_memmap(path, mode="r")[None])
    return load_vectors(path)
