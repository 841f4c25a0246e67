"""Which index a bundle should have for a wanted recall: measured on its own passages, on this machine, and stored.

The edges (bpr.tune, `bpr tune`) call it. Recall is the share of the k best passages, had every passage been scored,
that a search finds. Half of what may be missed is left to the number of candidates, the other half to the cells. It
asks as any user could, and writes through `live` alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import live
from .codes import Questions, unpack
from .encoder import Encodes
from .errors import InvalidInput
from .index import CellIndex, ScanIndex
from .kernels import Limits
from .kinds import Kind, Plan, made_layout
from .records import Progress
from .retriever import Retriever, open
from .stages import search

K = 20
QUESTIONS, TIMED = 500, 40
CANDIDATES = (50, 100, 200, 500, 1000, 2000, 4000, 8000)
PROBES = tuple(2 ** (-step / 2) for step in range(18, 0, -1))  # from 0.2 % of the codes on
TARGETS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # recalls whose share of the codes is remembered
CELLS_FROM = 50_000  # rows: the scan of fewer takes less than the cells' own work
WORTH = 0.7  # of the scan's time: above that, an exact index is the better choice
AT_ONCE = 64
_SENTENCE = re.compile(r"[^.!?]+[.!?]?")


@dataclass(frozen=True)
class Point:
    """What one setting finds, and what it takes: milliseconds for one question, rerank included."""

    kind: Kind
    candidates: int
    probes: float | None
    recall: float
    milliseconds: float


@dataclass(frozen=True)
class Tuned:
    """What `tune` chose, and the measurements it was chosen by. asked: what stood for questions."""

    target_recall: float
    chosen: Point
    cells: int | None
    asked: str
    questions: int
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


def tune(
    path: str | Path,
    target_recall: float = 0.99,
    *,
    questions: Sequence[str] | None = None,
    vectors: ArrayLike | None = None,
    model: str | Path | Encodes | None = None,
    threads: int | None = None,
    seed: int = 0,
    write: bool = True,
    progress: Progress | None = None,
) -> Tuned:
    """Find the fastest index of the bundle at `path` that reaches the recall, and (with `write`) give it that index.

    questions: texts like those that will be asked, or vectors: float[q, dimensions]. Without either, sentences of its
    own passages stand for questions, or where there is no model its codes: easier to find than real questions, so ask
    for a little more. A bundle of several segments is made one first. Its codes are held in memory twice.
    """
    if not 0.5 <= target_recall < 1:
        raise InvalidInput(f"target_recall must be from 0.5 to less than 1, not {target_recall}")
    say = progress or (lambda what, done, total: None)
    live.compact(path, progress=progress)
    with open(path, model=model) as opened:
        asked, source = _questions(opened, questions, vectors, seed)
        planes = opened.index.planes.take(np.arange(len(opened)))
    scan = ScanIndex(planes.signs, planes.magnitudes, planes.levels)
    measure = _Measure(scan, asked, Limits(threads), say)
    points = measure.candidates(1 - (1 - target_recall) / 2)
    chosen, layout, table = points[-1], None, {}
    if len(scan) >= CELLS_FROM:
        layout = made_layout(planes.signs, Plan("cells"), say)
        large = None if planes.magnitudes is None else planes.magnitudes[layout.rows]
        cells = CellIndex(layout, planes.signs[layout.rows], large, planes.levels)
        found = measure.cells(cells, points[-1].candidates, target_recall)
        table = _table(found)
        points += found
        if found[-1].recall >= target_recall and found[-1].milliseconds < WORTH * chosen.milliseconds:
            chosen = found[-1]
    count = len(layout) if layout is not None and chosen.kind == "cells" else None
    plan = Plan(chosen.kind, cells=count, probes=chosen.probes, recall=table if count else {})
    if write:
        live.reindex(path, plan, candidates=chosen.candidates, layout=layout if count else None, progress=progress)
    return Tuned(target_recall, chosen, count, source, len(asked.vectors), tuple(points))


class _Measure:
    """Settings are compared with the ranking of every passage."""

    def __init__(self, scan: ScanIndex, asked: Questions, limits: Limits, say: Progress) -> None:
        self.scan, self.asked, self.limits, self.say = scan, asked, limits, say
        self.k = min(K, len(scan))
        self.exact = self._each(lambda some: scan.planes.score_all(some, self.k, None, limits).rows, "scoring all")

    def candidates(self, wanted: float) -> list[Point]:
        """The scan with more and more candidates, until the recall is reached."""
        points: list[Point] = []
        for l in sorted({min(max(each, self.k), len(self.scan)) for each in CANDIDATES}):
            points.append(self._point(self.scan, "scan", l, None))
            if points[-1].recall >= wanted:
                break
        return points

    def cells(self, index: CellIndex, l: int, wanted: float) -> list[Point]:
        """Cells with more and more of the codes, until the recall is reached."""
        points: list[Point] = []
        for probes in PROBES:
            points.append(self._point(index.with_probes(probes), "cells", l, probes))
            if points[-1].recall >= wanted:
                break
        return points

    def _point(self, index: ScanIndex | CellIndex, kind: Kind, l: int, probes: float | None) -> Point:
        how: dict[str, Any] = {"threads": self.limits.threads}
        found = self._each(lambda some: search(index, some, self.k, l, **how).rows, f"measuring {kind}")
        recall = float(np.mean([np.isin(a, b).mean() for a, b in zip(self.exact, found, strict=True)]))
        times = []
        for row in range(min(TIMED, len(self.asked.vectors))):
            begun = time.perf_counter()
            search(index, _some(self.asked, row, row + 1), self.k, l, **how)
            times.append(1000 * (time.perf_counter() - begun))
        return Point(kind, l, probes, recall, float(np.median(times)))

    def _each(self, rows: Callable[[Questions], NDArray[np.int64]], what: str) -> NDArray[np.int64]:
        total, found = len(self.asked.vectors), []
        for first in range(0, total, AT_ONCE):
            found.append(rows(_some(self.asked, first, first + AT_ONCE)))
            self.say(what, min(first + AT_ONCE, total), total)
        return np.concatenate(found)


def _some(asked: Questions, first: int, last: int) -> Questions:
    return Questions(asked.vectors[first:last], asked.codes[first:last])


def _table(points: Sequence[Point]) -> dict[str, float]:
    """For usual recalls the least share of the codes that reached them: what `target_recall` of a search looks up."""
    reached = {wanted: next((p.probes for p in points if p.recall >= wanted), None) for wanted in TARGETS}
    return {str(wanted): probes for wanted, probes in reached.items() if probes is not None}


# ── What stands for questions ────────────────────────────────────────────────────────────────────────────────────────


def _questions(
    opened: Retriever, texts: Sequence[str] | None, vectors: ArrayLike | None, seed: int
) -> tuple[Questions, str]:
    if texts is not None and vectors is not None:
        raise InvalidInput("give questions as texts or as vectors, not both")
    dice = np.random.default_rng(seed)
    if vectors is not None:
        given = opened.questions(vectors)
        if not len(given.vectors):
            raise InvalidInput("there are no questions to measure with")
        return given, "given vectors"
    if texts is not None:
        if not texts:
            raise InvalidInput("there are no questions to measure with")
        return opened.questions(opened.encoder.questions(list(texts))), "given questions"
    rows = np.sort(dice.choice(len(opened), min(QUESTIONS, len(opened)), replace=False))
    if opened.info["model"]:
        sentences = [_sentence(passage.text, dice) for passage in opened.passages.get(rows)]
        return opened.questions(opened.encoder.questions(sentences)), "sentences of its passages"
    taken = opened.index.planes.take(rows)
    values = unpack(taken.signs)  # ±1
    if taken.magnitudes is not None and taken.levels is not None:
        low, high = taken.levels
        values = values * np.where(unpack(taken.magnitudes) > 0, np.float32(high), np.float32(low))
    return Questions(values.astype(np.float32)), "its own codes"


def _sentence(text: str, dice: np.random.Generator) -> str:
    """One of some words; or the beginning of the text where there is none."""
    found = [each.strip() for each in _SENTENCE.findall(text) if 4 <= len(each.split()) <= 40]
    return found[int(dice.integers(len(found)))] if found else " ".join(text.split()[:20]) or "?"
