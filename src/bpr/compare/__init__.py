"""The paper's tables on a corpus of yours: every baseline and every switch of BPR, measured in one run.

    passages, questions, models ─ inputs ─▶ Corpus, Sides ─ rows ─▶ [Row] ─ measure ─▶ results ─ report ─▶ tables, files

`bpr compare` calls it. A row is a name, a function that makes an index of one side, and how that index is searched: a
new kind of index is one more row. What a row gave is kept in FOLDER/rows and taken from there as long as nothing that
it depends on has changed. ablations.py trains, and is the only file here that knows training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import plots
from ..baselines import PAPER_LINKS
from ..peers import faiss
from ..reader import Reader
from ..records import Progress
from .inputs import BITS, FLOAT, ONE, Corpus, Side, Source, corpus, side
from .measure import How, check_depth, run
from .reading import SAMPLE, exact
from .report import summary, tables, write
from .rows import LINKS, Row, all_rows, main_row

__all__ = [
    "BITS",
    "FLOAT",
    "LINKS",
    "ONE",
    "Corpus",
    "How",
    "Row",
    "Side",
    "Source",
    "all_rows",
    "compare",
    "corpus",
    "main_row",
    "run",
    "side",
    "summary",
    "tables",
    "write",
]


def compare(
    found: Corpus,
    sources: Mapping[str, Source],
    folder: Path,
    *,
    top: Sequence[int] = (1, 20, 100),
    candidates: int | None = None,
    links: int = LINKS,
    threads: int | None = None,
    readers: Sequence[Reader] = (),
    read: int = SAMPLE,
    say: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """All rows, measured, as a report that `tables` and `write` show. sources: of FLOAT and BITS, and perhaps ONE.

    What is encoded and measured is kept in the folder; the rest is as for `all_rows`. readers: what answers so many of
    the questions from what each row found.
    """
    how = How(max(top), threads)
    check_depth(how.depth, found)  # before anything is encoded
    faiss()
    sides = {name: side(source, found, folder, name, threads=threads, say=say) for name, source in sources.items()}
    rows = all_rows(sides, how.depth, candidates=candidates, links=links)
    results = run(rows, sides, found, folder, how, say)
    named = _named(readers)
    answers = {
        name: exact(results, found, each, folder, sample=read, threads=threads, say=say) for name, each in named.items()
    }
    notes = _notes(sides, links)
    if readers:
        count = min(len(each) for each in next(iter(answers.values())).values())
        notes.append(f"EM: {count:,} questions, {readers[0].model.passages} passages read for each, in int8")
    told = summary(results, found, sides, how, sorted({*top}), main_row(sides), notes, answers)
    return {**told, "parameters": {name: each.parameters for name, each in named.items()}}


def _named(readers: Sequence[Reader]) -> dict[str, Reader]:
    """By their names; of two with one name, the second gets a number."""
    named: dict[str, Reader] = {}
    for number, each in enumerate(readers, 1):
        name = each.model.name
        named[f"{name} ({number})" if name in named else name] = each
    return named


def _notes(sides: Mapping[str, Side], links: int) -> list[str]:
    """What the tables do not say themselves."""
    notes = []
    if ONE not in sides and sides[BITS].planes.magnitudes is not None:
        notes.append("signs only: the first plane of the two-plane model; no one-plane model was given (--one-plane)")
    if links != PAPER_LINKS:
        notes.append(f"HNSW has {links} links; the paper has {PAPER_LINKS} (--hnsw-links {PAPER_LINKS})")
    if not plots.available():
        notes.append("nothing is drawn: that needs matplotlib, pip install 'binary-passage-retriever[eval]'")
    return notes
