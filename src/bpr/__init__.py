"""bpr: passage retrieval over millions of passages on one ordinary machine, with learned binary codes.

    import bpr
    bpr.build("passages.tsv", "wiki.bpr")                            # text → a bundle of bits
    retriever = bpr.open("wiki.bpr")
    retriever.search("who wrote the Iliad?", k=20)                   # list[Hit(id, title, text, score, rank, meta)]
    bpr.add("wiki.bpr", "more.tsv"); bpr.delete("wiki.bpr", ["12"])  # and retriever.reload()
    retriever.answer("who wrote the Iliad?")                         # Answer(text, confidence, passage, start, end)

Importing bpr imports nothing heavy: a name is loaded when it is first used. Programs of yours need no
other name of bpr; nothing is computed here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .builder import build as build
    from .codes import Questions as Questions
    from .codes import pack as pack
    from .codes import pack_magnitudes as pack_magnitudes
    from .codes import unpack as unpack
    from .encoder import Encoder as Encoder
    from .index import CellIndex as CellIndex
    from .index import HashIndex as HashIndex
    from .index import ScanIndex as ScanIndex
    from .kernels import Cancel as Cancel
    from .live import add as add
    from .live import compact as compact
    from .live import delete as delete
    from .reader import Reader as Reader
    from .records import Answer as Answer
    from .records import Hit as Hit
    from .records import Hits as Hits
    from .records import Passage as Passage
    from .retriever import Retriever as Retriever
    from .retriever import open as open
    from .stages import search as search
    from .transform import Transform as Transform
    from .tuning import tune as tune

from .errors import (
    BprError,
    BundleLocked,
    Cancelled,
    CorruptBundle,
    DeadlineExceeded,
    EmptyBundle,
    InvalidInput,
    MissingBundle,
    ModelMismatch,
    Overloaded,
    StorageError,
    UnsupportedFormat,
)

__version__ = "0.1.0"

# Public name → the module it lives in.
_HOMES = {
    "Answer": "records",
    "Cancel": "kernels",
    "CellIndex": "index",
    "Encoder": "encoder",
    "HashIndex": "index",
    "Hit": "records",
    "Hits": "records",
    "Passage": "records",
    "Questions": "codes",
    "Reader": "reader",
    "Retriever": "retriever",
    "ScanIndex": "index",
    "Transform": "transform",
    "add": "live",
    "build": "builder",
    "compact": "live",
    "delete": "live",
    "open": "retriever",
    "pack": "codes",
    "pack_magnitudes": "codes",
    "search": "stages",
    "tune": "tuning",
    "unpack": "codes",
}

__all__ = [
    "Answer",
    "BprError",
    "BundleLocked",
    "Cancel",
    "Cancelled",
    "CellIndex",
    "CorruptBundle",
    "DeadlineExceeded",
    "EmptyBundle",
    "Encoder",
    "HashIndex",
    "Hit",
    "Hits",
    "InvalidInput",
    "MissingBundle",
    "ModelMismatch",
    "Overloaded",
    "Passage",
    "Questions",
    "Reader",
    "Retriever",
    "ScanIndex",
    "StorageError",
    "Transform",
    "UnsupportedFormat",
    "__version__",
    "add",
    "build",
    "compact",
    "delete",
    "open",
    "pack",
    "pack_magnitudes",
    "search",
    "tune",
    "unpack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bpr' has no attribute {name!r}")
    value = getattr(import_module(f"bpr.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
