"""Indexes: they propose candidate rows; stages.py ranks them.

`ScanIndex` looks at every code; `HashIndex` gives the same from hash tables where that is cheaper; `CellIndex` looks at
the codes of the cells that fit a question best; `SegmentedIndex` makes one of several. What an index must be able to do
is the protocol `Index`; baselines obey it as well. kinds.py opens them out of bundles; an index knows arrays alone.
"""

from __future__ import annotations

from .cells import CellIndex, Cells
from .hash import HashIndex, Lookup, Tables, duplicates
from .protocol import Index, Planes
from .scan import ScanIndex
from .segmented import SegmentedIndex

__all__ = [
    "CellIndex",
    "Cells",
    "HashIndex",
    "Index",
    "Lookup",
    "Planes",
    "ScanIndex",
    "SegmentedIndex",
    "Tables",
    "duplicates",
]
