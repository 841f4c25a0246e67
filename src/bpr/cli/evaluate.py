"""The verb `bpr evaluate`: how often a bundle finds what answers a question, and how sure one can be of it.

It turns options into calls, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from .bundles import Candidates, NoRerank, SameModel, candidates_of, load_questions
from .common import Bundle, Json, Quiet, ReaderFolder, Threads, verb

if TYPE_CHECKING:
    from ..answering import Answered
    from ..questions import Question
    from ..records import Hit
    from ..retriever import Retriever
    from ..runs import Folder, Run, Watch

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Kind(str, Enum):
    """The layouts of questions.py."""

    dpr_tsv = "dpr-tsv"
    jsonl = "jsonl"
    nq_open = "nq-open"
    squad = "squad"
    beir = "beir"
    trec = "trec"


Asked = Annotated[
    Path, typer.Argument(metavar="QA", help="Questions with answers or judgements; a folder, where they are BEIR's.")
]
AsKind = Annotated[Kind | None, typer.Option("--kind", help="The layout of QA.  [default: recognised]")]
Regex = Annotated[bool, typer.Option("--regex", help="The answers are regular expressions, as CuratedTREC's are.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Goes before the gold passages' ids, as in bpr convert.")]
Split = Annotated[
    str | None,
    typer.Option("--split", help="With beir: whose judgements to take.  [default: test, dev or train]"),
]
Judgements = Annotated[
    Path | None, typer.Option("--qrels", metavar="FILE", help="With trec: the judgements, TREC's or BEIR's.")
]
Top = Annotated[
    list[int] | None, typer.Option("-k", min=1, help="Measure top k. Repeatable.  [default: 1, 5, 20, 100]")
]
QuestionVectors = Annotated[
    Path | None,
    typer.Option(
        "--vectors", metavar="Q.npy", help="Of your own encoder, one for each question: float[q, dimensions]."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Write results.json, DPR's results, a TREC run and a plot there."
    ),
]
Contexts = Annotated[
    int | None,
    typer.Option("--contexts", min=1, help="Passages of a question in DPR's results.  [default: all that were found]"),
]
Read = Annotated[
    list[int] | None,
    typer.Option("--read", min=1, help="With --reader: EM and F1 of so many passages. Repeatable.  [default: 1 … 100]"),
]
Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="RUN", help="Compare with another run's --output, question by question."),
]


# ── The verb ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb(
    "evaluate wiki.bpr nq-test.qa.csv",
    "evaluate squad.bpr dev-v1.1.json --prefix dev- -o runs/mini",
    "evaluate other.bpr dev-v1.1.json --prefix dev- -k 1 -k 100 --against runs/mini",
    "evaluate squad.bpr dev-v1.1.json --prefix dev- --reader mini --read 20 -o runs/read",
)
def evaluate(
    name: Bundle,
    questions: Asked,
    kind: AsKind = None,
    regex: Regex = False,
    prefix: Prefix = "",
    split: Split = None,
    qrels: Judgements = None,
    k: Top = None,
    model: SameModel = None,
    vectors: QuestionVectors = None,
    candidates: Candidates = None,
    no_rerank: NoRerank = False,
    output: Output = None,
    contexts: Contexts = None,
    against: Against = None,
    reader: ReaderFolder = None,
    read: Read = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how often a bundle finds what answers a question.

    A passage is right if an answer stands in it (top k, answer), or if it is a gold passage of the question (top k,
    gold; MRR@10, nDCG@10). With a reader: how often its answer is exactly right (EM), and F1. Each figure comes with
    its 95 % interval.
    """
    for used, needs, option, goes in ((contexts, output, "contexts", "output"), (read, reader, "read", "reader")):
        if used and needs is None:
            raise typer.BadParameter(f"it goes with --{goes}", param_hint=f"'--{option}'")
    wanted = candidates_of(candidates, no_rerank)
    from .. import retriever, runs, terminal
    from ..questions import read_questions

    asked = read_questions(questions, kind and kind.value, regex=regex, prefix=prefix, split=split, qrels=qrels)
    other = None if against is None else runs.load(against, asked, regex)
    given = None if vectors is None else load_questions(vectors)
    with retriever.open(name, model=model, reader=reader) as opened, terminal.bars(not quiet) as say:
        ks = sorted({*k}) if k else [each for each in runs.TOP if each <= len(opened)]
        answered = None if reader is None else _answered(opened, asked, read, threads)
        depth = runs.depth_for([*ks, *(answered.ks if answered else ())], len(opened), wanted)
        warnings = _warnings(asked, opened, output)
        how: dict[str, Any] = {"candidates": wanted, "rerank": not no_rerank, "threads": threads, "vectors": given}
        with run_folder(output, contexts) as folder:
            watches = [each.watch for each in (folder, answered) if each is not None]
            run = runs.evaluate(opened, asked, depth, regex=regex, watch=_all(watches), progress=say, **how)
            run = replace(run, read=answered.measures() if answered else {})
            facts = {"bundle": str(name), "questions": str(questions), "against": _name(against)}
            search = {"candidates": wanted or max(opened.candidates, depth), "rerank": not no_rerank}
            size = {"rows": len(opened), "model": opened.info["model"], "reader": _name(reader), "asked": len(asked)}
            report = {**facts, **size, **search, "measures": run.summary(asked, ks, other), "warnings": warnings}
            if folder is not None:
                folder.finish({**report, **runs.to_dict(run, asked, regex)}, drawings(run, other, asked, report))
    if as_json:
        terminal.print_json(report)
        return
    for each in () if quiet else warnings:
        terminal.message(f"warning: {each}", "yellow")
    terminal.print_evaluation(report)


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def _answered(
    opened: Retriever, asked: Sequence[Question], read: Sequence[int] | None, threads: int | None
) -> Answered:
    """What reads the passages that were found."""
    from .. import answering

    if not any(question.answers for question in asked):
        raise InvalidInput("none of the questions has answers, so a reader's cannot be judged: leave out --reader")
    ks = sorted({*read}) if read else [each for each in answering.TOP if each <= len(opened)]
    return answering.Answered(opened.reader, ks, threads)


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _all(watches: Sequence[Watch]) -> Watch | None:
    """All of them as one."""

    def watch(question: Question, hits: list[Hit], right: list[bool]) -> None:
        for each in watches:
            each(question, hits, right)

    return watch if watches else None


@contextmanager
def run_folder(output: Path | None, contexts: int | None) -> Iterator[Folder | None]:
    """Where the files of the run go, if anywhere."""
    from .. import plots, runs

    if output is None:
        yield None
        return
    drawings = [f"recall.{each}" for each in plots.TYPES] if plots.available() else []
    with runs.writing(output, drawings, contexts) as folder:
        yield folder


def _warnings(asked: Sequence[Question], opened: Retriever, output: Path | None) -> list[str]:
    """What the figures cannot tell, in sentences."""
    from .. import runs

    missing = runs.missing_gold(asked, opened)
    return [*([missing] if missing else []), *left_out(asked, output)]


def left_out(asked: Sequence[Question], output: Path | None) -> list[str]:
    """What is not measured or drawn because something is not installed, in sentences."""
    from .. import evaluation, plots

    advice, found = "pip install 'binary-passage-retriever[eval]'", []
    if any(question.gold for question in asked) and not evaluation.has_ndcg():
        found.append(f"nDCG is left out: it needs ir-measures, {advice}")
    if output is not None and not plots.available():
        found.append(f"nothing is drawn: that needs matplotlib, {advice}")
    return found


def drawings(run: Run, other: Run | None, asked: Sequence[Question], report: Mapping[str, Any]) -> dict[str, bytes]:
    """recall@k as files, by their names."""
    from .. import plots

    if not plots.available():
        return {}
    theirs = {} if other is None else other.curves(asked)
    dashed = {f"{name}, {report['against']}": curve for name, curve in theirs.items()}
    drawn = plots.recall_at_k(run.curves(asked), dashed, f"{Path(report['bundle']).name}, {len(asked):,} questions")
    return {f"recall.{kind}": content for kind, content in drawn.items()}
