"""Indexes: they propose candidate rows; stages.py ranks them.

`ScanIndex` looks at every code. What an index must be able to do is the protocol `Index`; baselines obey it as well.
"""

from __future__ import annotations

from .protocol import Index, Planes
from .scan import ScanIndex

__all__ = ["Index", "Planes", "ScanIndex"]
