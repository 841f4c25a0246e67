"""The verbs of exchange with other software: `bpr convert faiss`, `codes`, `bundle`, `results`, and `bpr score`.

Each turns options into one call, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bundles import KindOf, Kinds, NewBundle, WithWords
from .common import Bundle, Json, Quiet, verb
from .convert import convert
from .evaluate import (
    Against,
    AsKind,
    Judgements,
    Output,
    Prefix,
    Regex,
    Split,
    Top,
    drawings,
    left_out,
    run_folder,
)
from .evaluate import Kind as QuestionKind

if TYPE_CHECKING:
    from ..interchange.arrays import ArrayCodes
    from ..interchange.faissfile import StoredCodes
    from ..interchange.results import Result
    from ..passages import Passages
    from ..questions import Question

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ResultKind(str, Enum):
    """The layouts of interchange/results.py."""

    dpr = "dpr"
    pyserini = "pyserini"
    fid = "fid"
    trec = "trec"


FaissFile = Annotated[
    Path, typer.Argument(metavar="INDEX.faiss", help="A binary index, as faiss.write_index_binary writes it.")
]
ArrayFile = Annotated[
    Path,
    typer.Argument(
        metavar="CODES.npy", help="uint8[n, bits/8] (sentence-transformers' ubinary), or int8 (its binary)."
    ),
]
Texts = Annotated[
    Path,
    typer.Option("--passages", metavar="P.tsv", help="The passages that the codes are of: TSV, JSONL or BEIR."),
]
IdsFile = Annotated[
    Path | None,
    typer.Option("--ids", metavar="IDS.txt", help="Of each code, one a line.  [default: code i is of passage i]"),
]
ByRow = Annotated[
    bool, typer.Option("--rows", help="The index's ids count the passages, from 0; they are not their ids.")
]
MadeBy = Annotated[
    Path | None,
    typer.Option(
        "--model", metavar="DIR", help="The model that made the codes, as you say.  [default: search by vectors only]"
    ),
]
Target = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FILE", help="NAME.faiss (also .index, .idx) or NAME.npy: that says which."),
]
IdMap = Annotated[
    bool, typer.Option("--id-map", help="For Faiss: with the passages' ids, which must be whole numbers.")
]
ResultsFile = Annotated[
    Path, typer.Argument(metavar="RESULTS", help="Of DPR, Pyserini or FiD, or a TREC run; also as .gz, .xz or .zst.")
]
NewResults = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")]
To = Annotated[ResultKind, typer.Option("--to", help="What to write.")]
From = Annotated[ResultKind | None, typer.Option("--from", help="What RESULTS is.  [default: recognised]")]
QuestionsFile = Annotated[
    Path | None,
    typer.Option("--questions", metavar="QA", help="Questions with answers or judgements, as for bpr evaluate."),
]
TextsOf = Annotated[
    Path | None, typer.Option("--bundle", metavar="NAME.bpr", help="Where texts are that RESULTS does not have.")
]


# ── Codes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb(
    "convert faiss index.faiss --passages psgs_w100.tsv --model bpr-nq -o wiki.bpr",
    group=convert,
)
def faiss(
    source: FaissFile,
    passages: Texts,
    output: NewBundle,
    rows: ByRow = False,
    model: MadeBy = None,
    kind: KindOf = Kinds.scan,
    words: WithWords = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A binary index of Faiss, and its passages, to a bundle.

    Flat, IDMap, IDMap2, IVF, HNSW, Hash and MultiHash are read, also the files of the BPR authors' code. A code finds
    its passage by its id, or by its row where the index has no ids.
    """
    from ..interchange import faissfile

    _build(faissfile.read(source), passages, output, rows, model, kind, words, as_json, quiet)


@verb(
    "convert codes codes.npy --ids codes.ids.txt --passages passages.jsonl -o wiki.bpr",
    group=convert,
)
def codes(
    source: ArrayFile,
    passages: Texts,
    output: NewBundle,
    ids: IdsFile = None,
    model: MadeBy = None,
    kind: KindOf = Kinds.scan,
    words: WithWords = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Codes in an array of numpy, and their passages, to a bundle."""
    from ..interchange import arrays

    _build(arrays.read(source, ids), passages, output, False, model, kind, words, as_json, quiet)


@verb(
    "convert bundle wiki.bpr -o codes.faiss",
    "convert bundle wiki.bpr --id-map -o codes.faiss",
    "convert bundle wiki.bpr -o codes.npy",
    group=convert,
)
def bundle(name: Bundle, output: Target, id_map: IdMap = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """A bundle's codes to a file for Faiss or numpy.

    NAME.faiss is an IndexBinaryFlat whose ids are rows, with --id-map an IndexBinaryIDMap2. NAME.npy is uint8[n,
    bits/8]; a second plane goes to NAME.magnitudes.npy. The passages' ids, row by row, go to NAME.ids.txt.
    """
    from .. import terminal
    from ..interchange import codes as exchange

    done = exchange.out_of_bundle(name, output, id_map=id_map)
    if as_json:
        files = [str(each) for each in done.files]
        terminal.print_json({"bundle": str(name), "rows": done.rows, "files": files, "left_out": done.left_out})
    elif not quiet:
        terminal.message(f"{', '.join(map(str, done.files))}: codes of {terminal.count(done.rows, 'passage')}")
        if done.left_out:
            terminal.message(f"left out: {done.left_out}", "yellow")


# ── Results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb(
    "convert results retrieved.json --to pyserini -o run.json",
    "convert results run.trec --to dpr --questions nq-test.qa.csv --bundle wiki.bpr -o retrieved.json",
    group=convert,
)
def results(
    source: ResultsFile,
    output: NewResults,
    to: To,
    layout: From = None,
    questions: QuestionsFile = None,
    kind: AsKind = None,
    split: Split = None,
    qrels: Judgements = None,
    regex: Regex = False,
    texts: TextsOf = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Results of DPR, Pyserini, FiD or TREC's tools to each other.

    What a layout needs and RESULTS does not have comes from --questions (texts and answers) and --bundle (passages).
    """
    from .. import terminal
    from ..interchange import results as exchange
    from ..interchange.writing import write

    asked = _asked(questions, kind, regex=regex, split=split, qrels=qrels)
    chosen = layout.value if layout else exchange.recognised(source)
    with _texts(texts) as known:
        found: Iterable[Result] = _counted(exchange.read(source, chosen), known, not quiet)
        if asked is not None:
            found = (result for _, result in exchange.Matched(asked).pairs(found))
        done = write(found, output, to.value, regex=regex)
    if as_json:
        facts = {"from": chosen, "to": to.value, "questions": done.questions, "passages": done.passages}
        terminal.print_json({"results": str(output), **facts})
    elif not quiet:
        counts = f"{terminal.count(done.questions, 'question')}, {terminal.count(done.passages, 'passage')}"
        terminal.message(f"{output}: {counts}, from {chosen} to {to.value}")


@verb(
    "score retrieved.json",
    "score run.trec --questions topics.tsv --qrels qrels.txt",
    "score pyserini.json --questions nq-test.qa.csv --against runs/mini",
)
def score(
    source: ResultsFile,
    layout: From = None,
    questions: QuestionsFile = None,
    kind: AsKind = None,
    regex: Regex = False,
    prefix: Prefix = "",
    split: Split = None,
    qrels: Judgements = None,
    texts: TextsOf = None,
    k: Top = None,
    output: Output = None,
    against: Against = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what other software has found.

    The figures are those of bpr evaluate. Right is a passage with an answer in its text, or a gold passage. Where
    RESULTS has no texts, and no --bundle has them, its own has_answer counts. Questions and answers are those of
    RESULTS, unless --questions has them.
    """
    from .. import runs, terminal
    from ..interchange import results as exchange
    from ..interchange import scores

    asked = _asked(questions, kind, regex=regex, prefix=prefix, split=split, qrels=qrels)
    with _texts(texts) as known, run_folder(output, None) as folder:
        found = _counted(exchange.read(source, layout and layout.value), known, not quiet)
        done = scores.score(found, asked, regex=regex, watch=None if folder is None else folder.watch)
        run, judged = done.run, done.questions
        other = None if against is None else runs.load(against, judged, regex)
        ks = sorted({*k}) if k else [each for each in runs.TOP if each <= run.depth]
        warnings = [*done.warnings, *left_out(judged, output)]
        named = {"questions": questions, "bundle": texts, "against": against}
        facts: dict[str, Any] = {name: path and str(path) for name, path in named.items()}
        facts |= {"results": str(source), "depth": run.depth, "asked": len(judged)}
        report = {**facts, "measures": run.summary(judged, ks, other), "warnings": warnings}
        if folder is not None:
            drawn = drawings(run, other, judged, {**report, "bundle": str(source)})
            folder.finish({**report, **runs.to_dict(run, judged, regex)}, drawn)
    if as_json:
        terminal.print_json(report)
        return
    for each in () if quiet else warnings:
        terminal.message(f"warning: {each}", "yellow")
    terminal.print_evaluation(report)


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _build(
    stored: StoredCodes | ArrayCodes,
    passages: Path,
    output: Path,
    by_row: bool,
    model: Path | None,
    kind: Kinds,
    words: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """A bundle of codes and passages, and what it is, in a line."""
    from .. import terminal
    from ..interchange import codes as exchange

    how: dict[str, Any] = {"kind": kind.value, "words": words, "model": model}
    with terminal.bars(not quiet) as say:
        rows = exchange.into_bundle(stored, passages, output, by_row=by_row, progress=say, **how)
    if as_json:
        facts = {"bundle": str(output), "rows": rows, "bits": stored.bits, "codes": stored.kind}
        terminal.print_json({**facts, "model": model and str(model)})
    elif not quiet:
        asked = "text and vectors" if model else "vectors; --model DIR would let it read text"
        shape = f"{terminal.count(rows, 'passage')}, {stored.bits} bits of {stored.kind}"
        terminal.message(f"{output}: {shape}; to be asked with {asked}")


def _asked(
    questions: Path | None, kind: QuestionKind | None, *, qrels: Path | None, split: str | None, **how: Any
) -> list[Question] | None:
    """The questions of a file, if one is named."""
    from ..questions import read_questions

    if questions is None:
        for given, option in ((kind, "kind"), (split, "split"), (qrels, "qrels"), (how.get("prefix"), "prefix")):
            if given:
                raise typer.BadParameter("it goes with --questions", param_hint=f"'--{option}'")
        return None
    return read_questions(questions, kind and kind.value, split=split, qrels=qrels, **how)


@contextmanager
def _texts(name: Path | None) -> Iterator[Passages | None]:
    """The passages of a bundle, if one is named."""
    from .. import bundle as bundles
    from .. import segments

    if name is None:
        yield None
        return
    with bundles.open(name) as opened:
        yield segments.Contents(opened).passages


def _counted(found: Iterable[Result], texts: Passages | None, shown: bool) -> Iterator[Result]:
    """The results, with texts of a bundle, and with a bar that goes on."""
    from .. import terminal
    from ..interchange.results import with_texts

    with terminal.bars(shown) as say:
        for number, result in enumerate(found if texts is None else with_texts(found, texts), 1):
            yield result
            say("reading results", number, None)
