"""Several indexes as one: candidates and scores are those of a single index of all rows that are not deleted.

A bundle that passages were added to or deleted from is opened as one of these. It knows its parts by the protocol, so a
part may be of any kind; it must not know bundles or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, Mask, Questions, checked_codes
from ..errors import InvalidInput
from ..kernels import Cancel, Limits
from ..records import Hits
from .cells import CellIndex
from .protocol import Index, Planes
from .rows import Numbers, Rows


class SegmentedIndex:
    """Parts one after the other; rows are numbered over all of them, deleted ones left out (see `Rows`).

    parts: indexes of codes of one width, whose `planes` score. deleted: for each part int64, ascending.
    """

    scores_are_final = False

    def __init__(self, parts: Sequence[Index], deleted: Sequence[Numbers]) -> None:
        """Nothing is copied."""
        self.parts = tuple(parts)
        self.rows = Rows([len(part) for part in parts], deleted)
        self.planes = SegmentedPlanes([_planes(part) for part in parts], self.rows)

    def __len__(self) -> int:
        """How many passages are left."""
        return len(self.rows)

    def __repr__(self) -> str:
        """Rows and parts."""
        return f"SegmentedIndex({len(self):,} rows, {', '.join(map(repr, self.parts))})"

    def with_probes(self, probes: float) -> SegmentedIndex:
        """The same, its cells looking at another share of their codes; other parts stay what they are."""
        parts = [part.with_probes(probes) if isinstance(part, CellIndex) else part for part in self.parts]
        changed = copy(self)
        changed.parts = tuple(parts)
        return changed

    def candidates(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The l nearest rows of each question by (distance, row), over all parts. mask: bool[len(self)]."""
        asked = questions if isinstance(questions, Questions) else checked_codes(questions)
        how: dict[str, Any] = {"threads": threads, "deadline": deadline, "cancel": cancel}
        found = []
        for part, (index, own) in enumerate(zip(self.parts, self.rows.masks(mask), strict=True)):
            rows, distances = index.candidates(asked, l, mask=own, **how)
            found.append((self.rows.outside(part, rows), distances))
        return _first(found, l, lambda distances: distances)


class SegmentedPlanes(Planes):
    """The bits of all parts. `signs` and `magnitudes` are copies of them all, made when they are asked for."""

    def __init__(self, parts: Sequence[Planes], rows: Rows) -> None:
        """parts: all with the same bits and levels."""
        first = parts[0]
        if any((part.bits, part.levels) != (first.bits, first.levels) for part in parts):
            raise InvalidInput("the parts of an index must have the same bits and levels")
        set_once = object.__setattr__  # it is frozen, as Planes are
        set_once(self, "parts", tuple(parts))
        set_once(self, "rows", rows)
        set_once(self, "levels", first.levels)
        set_once(self, "touch", None)

    parts: tuple[Planes, ...]
    rows: Rows

    @property
    def signs(self) -> Codes:
        """All of them, copied."""
        return self._all().signs

    @property
    def magnitudes(self) -> Codes | None:
        """All of them, copied; None where there is one plane."""
        return None if self.levels is None else self._all().magnitudes

    @property
    def bits(self) -> int:
        """The width of a code."""
        return self.parts[0].bits

    @property
    def nbytes(self) -> int:
        """Bytes of all planes, those of deleted rows included."""
        return sum(part.nbytes for part in self.parts)

    def about_to_read(self, rows: NDArray[np.int64] | None) -> None:
        """Say which rows' magnitudes will be read next (None: all)."""
        if rows is None:
            for planes in self.parts:
                planes.about_to_read(None)
            return
        for part, _, inside in self.rows.by_part(rows.ravel()):
            self.parts[part].about_to_read(inside)

    def take(self, rows: NDArray[np.int64]) -> Planes:
        """These rows alone, copied in the order given: int64[m]."""
        width = self.bits // 8
        signs = np.empty((len(rows), width), np.uint8)
        magnitudes = None if self.levels is None else np.empty((len(rows), width), np.uint8)
        for part, places, inside in self.rows.by_part(rows):
            some = self.parts[part].take(inside)
            signs[places] = some.signs
            if magnitudes is not None and some.magnitudes is not None:
                magnitudes[places] = some.magnitudes
        return Planes(signs, magnitudes, self.levels)

    def rerank(self, questions: Questions, rows: NDArray[np.int64], k: int, limits: Limits) -> Hits:
        """The k best of each question's rows (int64[q, m]) by (⟨e_q, code⟩ descending, row)."""
        if len(self.parts) == 1:
            best, scores = self.parts[0].rerank(questions, self.rows.inside(0, rows), k, limits)
            return Hits(self.rows.outside(0, best), scores)
        # Gathered in ascending order, so that equal scores are ordered by row as everywhere.
        wanted, places = np.unique(rows, return_inverse=True)
        best, scores = self.take(wanted).rerank(questions, places.reshape(rows.shape), k, limits)
        return Hits(wanted[best], scores)

    def score_all(self, questions: Questions, k: int, mask: Mask | None, limits: Limits) -> Hits:
        """The k best of all rows that the mask lets through, by (⟨e_q, code⟩ descending, row)."""
        found = []
        for part, (planes, own) in enumerate(zip(self.parts, self.rows.masks(mask), strict=True)):
            rows, scores = planes.score_all(questions, k, own, limits)
            found.append((self.rows.outside(part, rows), scores))
        return Hits(*_first(found, k, lambda scores: -scores))

    def _all(self) -> Planes:
        return self.take(np.arange(len(self.rows), dtype=np.int64))


def _planes(part: Index) -> Planes:
    if part.planes is None or part.scores_are_final:
        raise InvalidInput(f"{part!r} has no codes, so it cannot be a part of an index")
    return part.planes


def _first(found: list[tuple[Numbers, NDArray[Any]]], count: int, key: Any) -> tuple[Numbers, NDArray[Any]]:
    """Of what the parts found, each in order, the first `count` columns in the order of (key, row)."""
    if len(found) == 1:
        return found[0]
    rows, values = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
    # Parts are in the order of their rows, so a stable sort leaves equal ones in the order of rows.
    order = np.argsort(key(values), axis=1, kind="stable")[:, :count]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(values, order, axis=1)
