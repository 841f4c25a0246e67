"""Indexes: they propose candidate rows; stages.py ranks them.

`ScanIndex` looks at every code; `HashIndex` gives the same from hash tables where that is cheaper; `SegmentedIndex`
makes one of several. What an index must be able to do is the protocol `Index`; baselines obey it as well.
"""

from __future__ import annotations

from .hash import HashIndex, Lookup, Tables, duplicates
from .protocol import Index, Planes
from .scan import ScanIndex
from .segmented import SegmentedIndex

__all__ = ["HashIndex", "Index", "Lookup", "Planes", "ScanIndex", "SegmentedIndex", "Tables", "duplicates"]
