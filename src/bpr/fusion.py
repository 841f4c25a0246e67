"""Several rankings of one question into one, and hits by document. Pure functions on rows, scores and records.

The retriever calls it, when BM25 searches beside the codes. It must not know what made a ranking, nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidInput
from .records import Hit, Passage

# What was best for codes and BM25 on questions that may be looked at (docs/hybrid.md).
LISTED = 1000  # rows of each list
WEIGHTS = (1.0, 0.5)  # of their scores
K = 5  # of reciprocal ranks: the less, the more the first ranks count
Ranked: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]  # rows and scores, the best first

# ── Rankings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def reciprocal(lists: Sequence[ArrayLike], k: float = K, weights: Sequence[float] | None = None) -> Ranked:
    """Rows by the sum of weight / (k + rank) over the lists that have them, then by row. Needs no scores.

    lists: rows of one question, the best first, each row once. weights: of each list; all alike by default.
    """
    if not k >= 0:
        raise InvalidInput(f"k must be 0 or more, not {k}")
    ranked = [(rows, 1 / (k + np.arange(1, len(rows) + 1))) for rows in map(_rows, lists)]
    return _summed(ranked, _weights(weights, len(lists)))


def weighted(lists: Sequence[tuple[ArrayLike, ArrayLike]], weights: Sequence[float] | None = None) -> Ranked:
    """Rows by the weighted sum of their scores, then by row; scores are in units of their list's own spread.

    lists: rows and scores of one question, each row once. A row's score is how many standard deviations it stands above
    the last of its list, so that last one has 0, as have rows that a list lacks; where all scores are alike, all have
    1. weights: of each list; all alike by default.
    """
    return _summed([_spread(*each) for each in lists], _weights(weights, len(lists)))


def _rows(rows: ArrayLike) -> NDArray[np.int64]:
    found = np.asarray(rows)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InvalidInput(f"a ranking is row numbers of one question, not {found.dtype}{list(found.shape)}")
    if len(np.unique(found)) < len(found):
        raise InvalidInput("a ranking has a row twice")
    return found.astype(np.int64)


def _spread(rows: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    known, points = _rows(rows), np.asarray(scores, np.float64)
    if points.shape != known.shape or not np.isfinite(points).all():
        raise InvalidInput(f"a ranking of {len(known)} rows needs as many finite scores, not {list(points.shape)}")
    above = points - points.min(initial=np.inf)
    spread = float(above.std()) if len(above) else 0.0
    return known, above / spread if spread > 0 else np.ones(len(points))


def _weights(weights: Sequence[float] | None, lists: int) -> list[float]:
    given = [1.0] * lists if weights is None else [float(weight) for weight in weights]
    if len(given) != lists or not all(0 <= weight < float("inf") for weight in given):
        raise InvalidInput(f"{lists} rankings need {lists} weights of 0 or more, not {weights}")
    return given


def _summed(lists: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]], weights: list[float]) -> Ranked:
    used = [(rows, weight * points) for (rows, points), weight in zip(lists, weights, strict=True) if weight]
    if not used:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    rows, places = np.unique(np.concatenate([rows for rows, _ in used]), return_inverse=True)
    sums = np.bincount(places, np.concatenate([points for _, points in used]), len(rows)).astype(np.float32)
    order = np.lexsort((rows, -sums))
    return rows[order], sums[order]


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Group:
    """What was found of one document. `rank` counts from 1, by the document's best hit.

    hits: the best first. passages: the best hit's and its neighbours in the document, in their order there.
    """

    document: str
    rank: int
    hits: tuple[Hit, ...]
    passages: tuple[Passage, ...]

    @property
    def score(self) -> float:
        """Of the best hit."""
        return self.hits[0].score

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return {**asdict(self), "score": self.score}


def document_of(passage: Passage | Hit) -> str:
    """The document that a passage was cut from: meta "document", as `bpr passages` writes it; else the id's stem.

    "iliad.txt#12" and "iliad-12" are of "iliad.txt" and "iliad". Anything else is a document of its own.
    """
    named = passage.meta.get("document") if isinstance(passage.meta, Mapping) else None
    if isinstance(named, str) and named:
        return named
    split = _split(passage.id)
    return split[0] if split else passage.id


def neighbours_of(passage_id: str, count: int) -> list[str]:
    """The ids that the passages around this one would have, it among them: up to `count` before and as many behind.

    Of an id that does not end in a number behind "#" or "-", it alone.
    """
    split = _split(passage_id)
    if split is None:
        return [passage_id]
    stem, sign, number = split
    return [f"{stem}{sign}{each}" for each in range(max(0, number - count), number + count + 1)]


def grouped(
    hits: Sequence[Hit],
    document_of: Callable[[Hit], str] = document_of,
    *,
    neighbours: int = 0,
    find: Callable[[str], Passage | None] | None = None,
) -> list[Group]:
    """The hits of one question by document, each where its best hit stood.

    document_of: what to group by; by title, it is `lambda hit: hit.title`. neighbours: so many passages on each side of
    a document's best hit come with it. They are known by their ids (see neighbours_of) and fetched with `find`, which
    gives None for an id that is not there; one of another document is left out.
    """
    if neighbours < 0 or (neighbours and find is None):
        raise InvalidInput(f"neighbours must be 0 or more, and need `find` to be fetched with; got {neighbours}")
    found: dict[str, list[Hit]] = {}
    for hit in hits:
        found.setdefault(document_of(hit), []).append(hit)
    groups = []
    for rank, (document, own) in enumerate(found.items(), 1):
        best = own[0]
        around = []
        for passage_id in neighbours_of(best.id, neighbours):
            if passage_id == best.id:
                around.append(Passage(best.id, best.title, best.text, best.meta))
            elif find is not None and (passage := find(passage_id)) is not None:
                as_hit = Hit(passage.id, passage.title, passage.text, 0.0, 0, passage.meta)
                around += [passage] if document_of(as_hit) == document else []
        groups.append(Group(document, rank, tuple(own), tuple(around)))
    return groups


def _split(passage_id: str) -> tuple[str, str, int] | None:
    """Stem, sign and number of "stem#12" or "stem-12"."""
    at = max(passage_id.rfind("#"), passage_id.rfind("-"))
    stem, number = passage_id[:at], passage_id[at + 1 :]
    plain = number.isascii() and number.isdecimal() and len(number) < 16 and str(int(number)) == number
    return (stem, passage_id[at], int(number)) if at > 0 and plain else None
