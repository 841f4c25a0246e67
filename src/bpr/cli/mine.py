"""The verb `bpr mine`: hard negatives by BM25, or by searching with a trained model.

It turns options into calls, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from .common import Json, Quiet, Threads, verb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..records import Passage, Progress
    from ..retriever import Retriever
    from ..training.data import Example

QUESTIONS_AT_ONCE = 2048

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Pile = Annotated[Path, typer.Argument(metavar="PASSAGES", help="Where negatives come from: TSV, JSONL or BEIR.")]
Asked = Annotated[Path, typer.Argument(metavar="EXAMPLES", help="JSONL, as `bpr convert` writes it.")]
Mined = Annotated[
    Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="The examples with their negatives, best first.")
]
Depth = Annotated[int, typer.Option("--depth", min=1, help="Negatives for each question, at most.")]
Pool = Annotated[int, typer.Option("--pool", min=1, help="Passages that are looked at for them, best first.")]
FromBundle = Annotated[
    Path | None,
    typer.Option("--bundle", metavar="NAME.bpr", help="Mine by searching this bundle of PASSAGES, not by BM25."),
]
ByModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Mine with this model: PASSAGES are encoded first. With --bundle: where its model is, if it was moved.",
    ),
]
Exclude = Annotated[
    list[Path] | None,
    typer.Option("--exclude", metavar="EXAMPLES", help="Never use the positives of these, a test set's. Repeatable."),
]
KeepBm25 = Annotated[
    int,
    typer.Option(
        "--keep-bm25", min=0, help="With a model: after its negatives keep so many that EXAMPLES had already."
    ),
]


# ── The verb ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb(
    "mine squad/passages.jsonl squad/examples.jsonl -o squad/bm25.jsonl",
    "mine squad/passages.jsonl squad/bm25.jsonl --bundle squad.bpr --depth 20 --keep-bm25 10 -o squad/mined.jsonl",
)
def mine(
    passages: Pile,
    examples: Asked,
    output: Mined,
    depth: Depth = 30,
    pool: Pool = 100,
    bundle: FromBundle = None,
    model: ByModel = None,
    exclude: Exclude = None,
    keep_bm25: KeepBm25 = 0,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find hard negatives, by BM25 or with a trained model.

    They are passages near a question that do not answer it: one in which an answer stands is never taken. The examples
    come out in their order, each with its new negatives.
    """
    by_bm25 = bundle is None and model is None
    if keep_bm25 and by_bm25:
        raise typer.BadParameter("it goes with --bundle or --model", param_hint="'--keep-bm25'")
    from .. import terminal
    from ..passages import read
    from ..training import data, negatives

    asked, pile = list(data.read_examples(examples)), list(read(passages))
    hidden = _hidden(exclude or (), pile, quiet)
    counts: dict[str, Any] = {"output": str(output), "examples": 0, "negatives": 0, "without": 0}
    with terminal.bars(not quiet) as say:
        if by_bm25:
            allowed = [each for each in pile if each.id not in hidden]
            limits: dict[str, Any] = {"threads": threads, "progress": say}
            mined = negatives.mine_bm25(allowed, asked, depth=depth, pool=pool, **limits)
        else:
            with _opened(passages, output, bundle, model, threads, say) as opened:
                _check_same(pile, opened, passages)
                rows = _ranked(opened, pile, asked, hidden, pool, threads, say)
            found = negatives.mine_ranked(asked, rows, pile, depth=depth)
            mined = _keeping(found, asked, hidden, keep_bm25)
        data.write_examples(output, _counted(mined, counts))
    if as_json:
        terminal.print_json(counts)
    elif not quiet:
        each = f"{counts['negatives'] / counts['examples']:,.1f} negatives each"
        terminal.message(f"{output}: {terminal.count(len(asked), 'example')}, {each}; {counts['without']:,} have none")


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _hidden(files: Iterable[Path], pile: Sequence[Passage], quiet: bool) -> set[str]:
    """The ids that must not be seen in training; who hides nothing is told so."""
    from .. import terminal
    from ..training.data import read_examples

    known, hidden = {passage.id for passage in pile}, set()
    for path in files:
        some = {each for example in read_examples(path) for each in example.positives}
        hidden |= some
        if not quiet and not some & known:
            terminal.message(f"warning: no positive of {path} is among the passages, so it excludes nothing", "yellow")
    return hidden


@contextmanager
def _opened(
    passages: Path, output: Path, bundle: Path | None, model: Path | None, threads: int | None, say: Progress
) -> Iterator[Retriever]:
    """The bundle, or one that is built for this once."""
    from .. import builder, retriever

    if bundle is not None:
        with retriever.open(bundle, model=model) as opened:
            yield opened
        return
    assert model is not None
    from ..disk import storage_error
    from ..encoder import Encoder

    encoder = Encoder.open(model)
    try:
        scratch = tempfile.TemporaryDirectory(dir=output.parent, prefix=".mining-")
    except OSError as error:
        raise storage_error("write beside", output, error) from error
    with scratch as folder:
        builder.build(passages, Path(folder) / "passages.bpr", model=encoder, threads=threads, progress=say)
        with retriever.open(Path(folder) / "passages.bpr", model=encoder) as opened:
            yield opened


def _check_same(pile: Sequence[Passage], opened: Retriever, passages: Path) -> None:
    """Row i of a ranking must be the i-th passage."""
    bundle = opened.bundle.path
    advice = f"mine with a bundle of these very passages: bpr index {passages} -o NAME.bpr"
    if len(pile) != len(opened):
        raise InvalidInput(f"{passages} holds {len(pile):,} passages and {bundle} {len(opened):,}; {advice}")
    for number, (ours, theirs) in enumerate(zip(pile, opened.passages, strict=True), 1):
        if ours.id != theirs.id:
            raise InvalidInput(f"passage {number:,} is {ours.id!r} in {passages}, {theirs.id!r} in {bundle}; {advice}")


def _ranked(
    opened: Retriever,
    pile: Sequence[Passage],
    asked: Sequence[Example],
    hidden: set[str],
    pool: int,
    threads: int | None,
    say: Progress,
) -> NDArray[np.int64]:
    """int64[questions, pool]: what the model finds for each question among the passages that are not hidden."""
    import numpy as np

    seen = np.array([passage.id not in hidden for passage in pile])
    found = []
    for first in range(0, len(asked), QUESTIONS_AT_ONCE):
        some = [example.question for example in asked[first : first + QUESTIONS_AT_ONCE]]
        vectors = opened.encoder.questions(some, threads=threads)
        found.append(opened.rank(vectors, k=pool, mask=seen, threads=threads).rows)
        say("searching", first + len(some), len(asked))
    return np.concatenate(found)


def _keeping(mined: Iterable[Example], before: Iterable[Example], hidden: set[str], count: int) -> Iterator[Example]:
    """The examples with some of the negatives that they had, behind the new ones."""
    for new, old in zip(mined, before, strict=True):
        taken = {*new.negatives, *hidden}
        kept = [each for each in old.negatives if each not in taken][:count]
        yield replace(new, negatives=(*new.negatives, *kept))


def _counted(examples: Iterable[Example], counts: dict[str, Any]) -> Iterator[Example]:
    for example in examples:
        counts["examples"] += 1
        counts["negatives"] += len(example.negatives)
        counts["without"] += not example.negatives
        yield example
