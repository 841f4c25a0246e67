"""The map from the outside ids of passages to their rows: a hash table of row numbers only, 5 bytes a passage.

passages.py writes it and looks ids up in it; the ids themselves stand with the texts, and are compared there. Knows
digests and row numbers; nothing of texts or of what a row holds. A row's home is its digest over a width, so slots are
in the order of the digests, and a look-up that meets a greater one has looked in vain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from . import bundle

PARTITION_ROWS = 1 << 20  # the map is made for so many rows at a time, with about 100 MB of working memory
HASHES_AT_ONCE = 1 << 20

Refuse: TypeAlias = Callable[[NDArray[np.uint64], NDArray[np.int64]], None]


# ── What the writer and the reader must agree on ─────────────────────────────────────────────────────────────────────


def digest(outside_id: str) -> bytes:
    """8 bytes that stand for the id: the same on every machine and in every process."""
    return hashlib.blake2b(outside_id.encode(), digest_size=8).digest()


def digest_or_none(outside_id: str) -> bytes | None:
    """None for what is no text and so cannot be an id."""
    try:
        return digest(outside_id)
    except UnicodeEncodeError:
        return None


def homes_of(rows: int) -> int:
    """How many home slots there are for so many rows: a load of 0.8."""
    return rows + rows // 4 + 2


def home_width(rows: int) -> int:
    """How many neighbouring hashes share a home slot: home = hash // width, so homes are in the order of the hashes."""
    return -(-(1 << 64) // homes_of(rows))


def row_type(rows: int) -> np.dtype[Any]:
    """The smallest type that holds every row and one more value, for the empty slots."""
    return np.dtype(np.uint32 if rows < 2**32 - 1 else np.uint64)


def empty(dtype: np.dtype[Any]) -> int:
    """What stands in a slot that no row has."""
    return int(np.iinfo(dtype).max)


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(new: bundle.Writer, name: str, rows: int, scratch: Path, refuse: Refuse) -> None:
    """Write the table of row numbers, one range of hashes after the other. scratch: a file of the rows' digests.

    refuse: is called with the sorted hashes of each range and their rows, to raise where an id comes twice.

    In the order of the hashes, which is the order of the homes, each row takes its home or the first free slot behind
    it: slot_i = i + max over j <= i of (home_j - j). Nothing wraps around; the last slot is always empty.
    """
    dtype, homes, width = row_type(rows), homes_of(rows), np.uint64(home_width(rows))
    end = 0  # of the slots written so far
    with new.array(name, dtype, ()) as table:
        for hashes, part_rows in _partitions(scratch, rows):
            refuse(hashes, part_rows)
            order = np.arange(len(hashes))
            slots = np.maximum.accumulate(np.maximum((hashes // width).astype(np.int64) - order, end)) + order
            block = np.full(slots[-1] + 1 - end, empty(dtype), dtype)
            block[slots - end] = part_rows
            table.append(block)
            end = int(slots[-1]) + 1
        table.append(np.full(max(homes, end) + 1 - end, empty(dtype), dtype))


def _partitions(scratch: Path, rows: int) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Hashes and their rows, sorted, in ranges of hashes that hold about PARTITION_ROWS each."""
    parts = -(-rows // PARTITION_ROWS)
    for part in range(parts):
        low, high = (part << 64) // parts, ((part + 1 << 64) // parts) - 1
        found_hashes, found_rows = [], []
        for start in range(0, rows, HASHES_AT_ONCE):
            hashes = np.fromfile(scratch, ">u8", HASHES_AT_ONCE, offset=8 * start).astype(np.uint64)
            inside = np.flatnonzero((hashes >= low) & (hashes <= high))
            found_hashes.append(hashes[inside])
            found_rows.append(inside + start)
        hashes = np.concatenate(found_hashes)
        if len(hashes):
            order = np.argsort(hashes, kind="stable")
            yield hashes[order], np.concatenate(found_rows)[order]
