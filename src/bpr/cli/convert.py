"""The verbs of `bpr convert`: other people's data to passages and examples, other people's checkpoints to models.

Those for other software's codes and results stand in interchange.py.

Each turns options into one call, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import Json, NewModel, Quiet, Verbs, app, train_extra, verb

if TYPE_CHECKING:
    from ..model import Model
    from ..training.data import Item

PASSAGES, EXAMPLES = "passages.jsonl", "examples.jsonl"
SKIPS_SHOWN = 10  # items that are named; the rest is only counted

convert = typer.Typer(
    cls=Verbs,
    help="Convert other people's data, models and results.",
    epilog="\b\nExample:\n  $ bpr convert squad train-v1.1.json.xz -o squad",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(convert, name="convert")

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Folder = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FOLDER", help=f"Where {PASSAGES} and {EXAMPLES} go; made if need be."),
]
Prefix = Annotated[str, typer.Option("--prefix", help="Goes before every id, so that data sets can be joined.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Pass broken items over and count them; else they are errors.")
]
Layout = Annotated[Path, typer.Argument(metavar="SOURCE", help="A file in this layout, also as .gz, .xz or .zst.")]
BeirFolder = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="A folder with corpus.jsonl, queries.jsonl, qrels/.")
]
Split = Annotated[str, typer.Option("--split", help="Whose judgements to take: qrels/SPLIT.tsv.")]


class Family(str, Enum):
    """How two encoders were trained: their weights do not tell."""

    bpr = "bpr"
    dpr = "dpr"


Checkpoints = Annotated[
    list[Path],
    typer.Argument(metavar="SOURCE", help="One .ckpt; or two folders, the question encoder's and the passage's."),
]
BaseTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="FILE", help="The base model's tokenizer.json or vocab.txt; a .ckpt does not have it."
    ),
]
BaseConfig = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="With a .ckpt whose heads are not 64 wide: the base's config.json."),
]
Trained = Annotated[
    Family | None,
    typer.Option("--family", help="Of two folders: bpr (castorini/bpr-nq-*) or dpr (facebook/dpr-*)."),
]
OneFolder = Annotated[Path, typer.Argument(metavar="SOURCE", help="The folder of a BERT, its tokenizer in it.")]


class Pooling(str, Enum):
    """How a text's tokens become one vector."""

    cls = "cls"
    mean = "mean"


Pools = Annotated[
    Pooling | None, typer.Option("--pooling", help="How tokens become one vector.  [default: what the folder says]")
]
Normalizes = Annotated[
    bool | None,
    typer.Option("--normalize/--no-normalize", help="Bring vectors to length 1.  [default: what the folder says]"),
]
Length = Annotated[
    int | None, typer.Option("--length", min=8, help="Tokens that are read.  [default: what the folder says, or 256]")
]
Name = Annotated[str | None, typer.Option("--name", help="The model's name.  [default: that of the file or folder]")]


# ── The verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb("convert squad train-v1.1.json.xz -o squad", group=convert)
def squad(
    source: Layout,
    output: Folder,
    prefix: Prefix = "",
    skip_bad: SkipBad = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """SQuAD: a paragraph is a passage, an article a group."""
    from ..training import formats

    _write(formats.squad, source, output, skip_bad, as_json, quiet, prefix=prefix)


@verb("convert beir scifact/ --split test -o scifact-test", group=convert)
def beir(
    source: BeirFolder,
    output: Folder,
    prefix: Prefix = "",
    split: Split = "train",
    skip_bad: SkipBad = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """BEIR: documents judged 1 or more answer a question."""
    from ..training import formats

    _write(formats.beir, source, output, skip_bad, as_json, quiet, prefix=prefix, split=split)


@verb("convert dpr biencoder-nq-train.json.gz -o nq", group=convert)
def dpr(
    source: Layout,
    output: Folder,
    prefix: Prefix = "",
    skip_bad: SkipBad = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """DPR's training files, with their hard negatives."""
    from ..training import formats

    _write(formats.dpr, source, output, skip_bad, as_json, quiet, prefix=prefix)


@verb(
    "convert checkpoint bpr_nq.ckpt --tokenizer bert-base-uncased/ -o bpr-nq",
    "convert checkpoint bpr-nq-question-encoder/ bpr-nq-ctx-encoder/ --family bpr -o bpr-nq",
    group=convert,
)
def checkpoint(
    sources: Checkpoints,
    output: NewModel,
    tokenizer: BaseTokenizer = None,
    config: BaseConfig = None,
    family: Trained = None,
    name: Name = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a model of somebody's BPR or DPR weights.

    They come as a .ckpt of the BPR authors' code, or as two Hugging Face folders of DPR's layout. Only weights are
    read, by a list of known names. What comes out is for `bpr export`, and for `bpr train` to go on from.
    """
    _check_sources(sources, tokenizer, config, family)
    from .. import terminal

    with train_extra():
        from ..training import convert as converting
    with terminal.bars(not quiet) as say:
        if len(sources) == 1:
            assert tokenizer is not None
            model = converting.checkpoint(
                sources[0], output, tokenizer=tokenizer, config=config, name=name, progress=say
            )
        else:
            assert family is not None
            question, passage = sources
            model = converting.folders(
                question, passage, output, family=family.value, tokenizer=tokenizer, name=name, progress=say
            )
    _tell(model, output, as_json, quiet)


@verb("convert encoder all-MiniLM-L6-v2/ -o minilm", group=convert)
def encoder(
    source: OneFolder,
    output: NewModel,
    pooling: Pools = None,
    normalize: Normalizes = None,
    length: Length = None,
    name: Name = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a model of a BERT for sentences.

    A folder of sentence-transformers says how it pools; of another one, say it yourself. Only weights are read, by a
    list of known names. What comes out is a float model, for `bpr export`, and for `bpr train` to start from.
    """
    from .. import terminal

    with train_extra():
        from ..training import sentences
    with terminal.bars(not quiet) as say:
        model = sentences.encoder(
            source,
            output,
            pooling=None if pooling is None else pooling.value,
            normalize=normalize,
            length=length,
            name=name,
            progress=say,
        )
    _tell(model, output, as_json, quiet)


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _tell(model: Model, output: Path, as_json: bool, quiet: bool) -> None:
    from .. import terminal

    if as_json:
        facts = {"model": str(output), "name": model.name, "bits": model.bits, "fingerprint": model.fingerprint}
        terminal.print_json(facts)
    elif not quiet:
        terminal.message(f"{output}: {terminal.count(model.bits, 'bit')}; `bpr export {output}` makes its ONNX")


def _check_sources(sources: Sequence[Path], tokenizer: Path | None, config: Path | None, family: Family | None) -> None:
    if len(sources) > 2 or (len(sources) == 1 and sources[0].is_dir()):
        raise typer.BadParameter(
            "name one .ckpt, or two folders: the question encoder's, then the passage encoder's",
            param_hint="'SOURCE'",
        )
    if len(sources) == 1 and (tokenizer is None or family is not None):
        wrong = "a .ckpt needs --tokenizer" if tokenizer is None else "a .ckpt is always of the family bpr"
        raise typer.BadParameter(wrong, param_hint="'--tokenizer'" if tokenizer is None else "'--family'")
    if len(sources) == 2 and (family is None or config is not None):
        wrong = "folders do not say how they were trained: bpr or dpr" if family is None else "folders have their own"
        raise typer.BadParameter(wrong, param_hint="'--family'" if family is None else "'--config'")


def _write(
    read: Callable[..., Iterator[Item]],
    source: Path,
    folder: Path,
    skip_bad: bool,
    as_json: bool,
    quiet: bool,
    **how: str,
) -> None:
    """Write what a converter yields, and say how much it was."""
    from .. import terminal
    from ..disk import made_folder
    from ..training.data import write_converted

    skipped = 0

    def skip(message: str) -> None:
        nonlocal skipped
        skipped += 1
        if not quiet and skipped <= SKIPS_SHOWN:
            terminal.message(f"skipped: {message}", "yellow")

    items = read(source, skip_bad=skip_bad, on_skip=skip, **how)
    with terminal.bars(not quiet) as say, made_folder(folder):
        counts = write_converted(items, folder / PASSAGES, folder / EXAMPLES, say)
    if as_json:
        terminal.print_json({"folder": str(folder), **counts._asdict(), "skipped": skipped})
    elif not quiet:
        left_out = f", {terminal.count(skipped, 'item')} skipped" if skip_bad else ""
        passages, examples = terminal.count(counts.passages, "passage"), terminal.count(counts.examples, "example")
        terminal.message(f"{folder}: {passages}, {examples}{left_out}")
