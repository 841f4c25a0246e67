"""What flows between the rooms: small frozen values, printable and JSON-able, that know of no room.

Everyone makes and takes them, users too: a field that is added or renamed here is a change of bpr's surface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Told what is being done, how much of it is done, and how much there is (None: not known).
Progress: TypeAlias = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of text: its outside id, the title of its document, its text, and whatever else came with it."""

    id: str
    title: str
    text: str
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found for a question. `rank` counts from 1; a higher `score` is better."""

    id: str
    title: str
    text: str
    score: float
    rank: int
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


def passages_of(hits: Iterable[Hit]) -> list[Passage]:
    """Hits as what a reader reads."""
    return [Passage(hit.id, hit.title, hit.text, hit.meta) for hit in hits]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader answers: passage.text[start:end] == text.

    confidence: the probability, from 0 to 1, that the text is exactly right.
    """

    text: str
    confidence: float
    passage: Passage
    start: int
    end: int

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


class Hits(NamedTuple):
    """Ranked rows for each question: score descending, then row ascending.

    rows: int64[questions, k], scores: float32[questions, k].
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
