"""Indexes: they propose candidate rows; stages.py ranks them.

`ScanIndex` looks at every code; `SegmentedIndex` makes one of several. What an index must be able to do is the
protocol `Index`; baselines obey it as well.
"""

from __future__ import annotations

from .protocol import Index, Planes
from .scan import ScanIndex
from .segmented import SegmentedIndex

__all__ = ["Index", "Planes", "ScanIndex", "SegmentedIndex"]
