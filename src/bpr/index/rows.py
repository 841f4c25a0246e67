"""Which row is which where passages lie in several parts and some of them are deleted.

Outside there are only the rows that are left, numbered 0 to n − 1 over all parts in order, as in an index made of them
at once. Inside a part a row keeps its number for ever. The segmented index and the passages of a bundle share this
arithmetic; it knows arrays only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Mask, RowMask
from ..errors import InvalidInput

Numbers = NDArray[np.int64]


class Rows:
    """Parts with so many rows each, of which some are deleted.

    sizes: rows of each part, the deleted ones included. deleted: for each part their numbers, int64, ascending.
    """

    def __init__(self, sizes: Sequence[int], deleted: Sequence[Numbers]) -> None:
        """The arrays are taken as they are."""
        self._sizes = tuple(sizes)
        self._deleted = tuple(deleted)
        left = [size - len(gone) for size, gone in zip(sizes, deleted, strict=True)]
        self.starts: Numbers = np.concatenate(([0], np.cumsum(left, dtype=np.int64))).astype(np.int64)
        self._offsets: Numbers = np.concatenate(([0], np.cumsum(self._sizes, dtype=np.int64)))[: len(self._sizes)]
        self._live = [_live(size, gone) for size, gone in zip(sizes, deleted, strict=True)]
        self._live_bits = [None if live is None else RowMask.of(live) for live in self._live]
        # Where each row that is left stands: 4 bytes a row, for a search that has just swept every cache clean with a
        # scan. Finding it among the deleted ones would take a dozen waits for memory, one after the other.
        self._places = [None if live is None else _numbers(live) for live in self._live]
        self._gone_before = [None if live is None else _Counts(~live) for live in self._live]

    def __len__(self) -> int:
        """How many rows are left."""
        return int(self.starts[-1])

    def outside(self, part: int, inside: Numbers) -> Numbers:
        """Outside numbers of rows of one part that are left; of any shape."""
        gone, rows = self._gone_before[part], inside + self.starts[part]
        return rows if gone is None else np.asarray(rows - gone.before(inside), np.int64)

    def inside(self, part: int, outside: Numbers) -> Numbers:
        """Numbers inside the part of outside rows that lie in it."""
        rows, places = outside - self.starts[part], self._places[part]
        return rows if places is None else np.asarray(places[rows], np.int64)

    def physical(self, outside: Numbers) -> Numbers:
        """Rows counted through all parts, the deleted ones included, of outside rows; of any shape."""
        found = np.empty(outside.size, np.int64)
        for part, places, inside in self.by_part(outside.ravel()):
            found[places] = inside + self._offsets[part]
        return found.reshape(outside.shape)

    def outside_of(self, physical: Numbers) -> Numbers:
        """Outside numbers of rows that are left, counted through all parts; of any shape."""
        found, flat = np.empty(physical.size, np.int64), physical.ravel()
        part_of = np.searchsorted(self._offsets, flat, side="right") - 1
        for part in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == part)
            found[places] = self.outside(part, flat[places] - self._offsets[part])
        return found.reshape(physical.shape)

    def counted_through(self, mask: Mask | None) -> RowMask | None:
        """What may be returned of all parts together, without deleted rows; None for all. mask: of outside rows."""
        if mask is None and all(live is None for live in self._live):
            return None
        parts = zip(self.masks(mask), self._sizes, strict=True)
        whole = [np.ones(size, np.bool_) if own is None else np.asarray(own) for own, size in parts]
        return RowMask.of(np.concatenate([*whole, np.empty(0, np.bool_)]))

    def is_deleted(self, part: int, inside: int) -> bool:
        """Whether a row of a part is deleted."""
        gone = self._deleted[part]
        at = int(np.searchsorted(gone, inside))
        return at < len(gone) and int(gone[at]) == inside

    def by_part(self, outside: Numbers) -> Iterator[tuple[int, NDArray[np.intp], Numbers]]:
        """Rows of any order, int64[n], sorted by where they lie: part, places in `outside`, numbers inside the part."""
        part_of = np.searchsorted(self.starts, outside, side="right") - 1
        for part in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == part)
            yield part, places, self.inside(part, outside[places])

    def masks(self, mask: Mask | None) -> list[Mask | None]:
        """What may be returned of each part, by the part's own rows; None for all. mask: of outside rows."""
        if mask is None:
            return list(self._live_bits)
        mask = np.asarray(mask)
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise InvalidInput(
                f"a mask must be bool[{len(self)}], one for each row, not {mask.dtype}{list(mask.shape)}"
            )
        found: list[Mask | None] = []
        for part, live in enumerate(self._live):
            own = mask[self.starts[part] : self.starts[part + 1]]
            if live is not None:
                spread = live.copy()
                spread[live] = own
                own = spread
            found.append(own)
        return found


class _Counts:
    """How many are set before any place of bool[n]: a byte each, and a number for each BLOCK of them.

    A search asks this of every candidate in no order, and a binary search for each would take as long as finding it.
    """

    BLOCK = 256

    def __init__(self, flags: NDArray[np.bool_]) -> None:
        padded = np.zeros(-(-len(flags) // self.BLOCK) * self.BLOCK, np.bool_)
        padded[: len(flags)] = flags
        blocks = padded.reshape(-1, self.BLOCK)
        inside = np.cumsum(blocks, axis=1, dtype=np.uint8)  # the last may be 256, which is 0: it counts for no place
        self._inside = (inside - blocks).ravel()
        totals = np.count_nonzero(blocks, axis=1)
        self._blocks: Numbers = (np.cumsum(totals) - totals).astype(np.int64)

    def before(self, places: Numbers) -> Numbers:
        return self._blocks[places // self.BLOCK] + self._inside[places]


def _numbers(flags: NDArray[np.bool_]) -> NDArray[Any]:
    """Which are set, in the smallest type that is large enough."""
    return np.flatnonzero(flags).astype(np.uint32 if len(flags) <= 1 << 32 else np.int64)


def _live(size: int, deleted: Numbers) -> NDArray[np.bool_] | None:
    if not len(deleted):
        return None
    live = np.ones(size, np.bool_)
    live[deleted] = False
    return live
