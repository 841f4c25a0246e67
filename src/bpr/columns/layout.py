"""What is stored of the metadata, and what the writer and the reader of columns must agree on.

Files, each behind the caller's prefix, for all columns one after the other:

    meta-fields.json   rows, step, and of each field: its keys, how many different values of each kind, entries, …
    meta-values.jsonl  the different values of each column, sorted by (kind, value), one JSON text a line
    meta-starts.npy    uint64[values + 1, 2]: where the line and the entries of each value begin
    meta-rows.npy      uint32[entries] (uint64 from 2^32 rows on): the rows of each value, ascending
    meta-marks.npy     uint8[marks, rows / 8]: at every `step` entries of a column, the rows that stood an odd number
                       of times among its entries before: bits, least significant first

Every comparison is a slice of the entries. A long slice is the difference (xor) of two marks, but for the entries
between them and its ends, so none costs more than `step` entries, a sixteenth of the rows: for 6 bytes a row and column
on disk. Where rows have several values that holds for one value; a range over several reads all of its entries.

Limits: 1,000 fields (keys of the metadata, those of objects inside included), 16 keys deep. A field with more than
2^20 different values, or 64 MiB of them, is not kept (URLs, ids, texts), nor is one beyond the 1,000; a filter on it
says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..filters import KINDS, Path, spelt

if TYPE_CHECKING:
    from .. import bundle

FIELDS, VALUES, STARTS = "meta-fields.json", "meta-values.jsonl", "meta-starts.npy"
ROWS, MARKS = "meta-rows.npy", "meta-marks.npy"
FILES = (FIELDS, VALUES, STARTS, ROWS, MARKS)

MOST_FIELDS, MOST_VALUES, MOST_VALUE_BYTES = 1000, 1 << 20, 64 << 20


@dataclass(frozen=True)
class Field:
    """What a bundle knows of a field."""

    keys: Path
    kinds: tuple[int, ...]  # how many different values of each of filters.KINDS
    entries: int  # rows that have it; more where rows have several values
    several: bool  # a row has several values
    kept: bool  # False: it has too many different values

    @property
    def name(self) -> str:
        """As a filter spells it."""
        return spelt(self.keys)

    @property
    def values(self) -> int:
        """How many different values it has."""
        return sum(self.kinds)


@dataclass(frozen=True)
class Layout:
    """The content of meta-fields.json. more: there were more fields than are kept."""

    rows: int
    step: int
    more: bool
    fields: tuple[Field, ...]

    def encode(self) -> bytes:
        """As JSON, one line."""
        fields = [
            {
                "keys": each.keys,
                "kinds": each.kinds,
                "entries": each.entries,
                "several": each.several,
                "kept": each.kept,
            }
            for each in self.fields
        ]
        document = {"rows": self.rows, "step": self.step, "more": self.more, "fields": fields}
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes) -> Layout:
        """The layout of these bytes; a ValueError, LookupError, TypeError or RecursionError where they hold none."""
        document = json.loads(raw)
        fields = tuple(_field(each) for each in document["fields"])
        return cls(_size(document["rows"]), _size(document["step"], 1), document["more"] is True, fields)


def _field(document: Any) -> Field:
    keys, kinds = tuple(document["keys"]), tuple(map(_size, document["kinds"]))
    if not (keys and all(type(key) is str for key in keys) and len(kinds) == len(KINDS)):
        raise ValueError("not a field")
    return Field(keys, kinds, _size(document["entries"]), document["several"] is True, document["kept"] is True)


def _size(number: Any, least: int = 0) -> int:
    if type(number) is not int or not least <= number < 1 << 61:
        raise ValueError("not a size")
    return number


def row_type(rows: int) -> np.dtype[Any]:
    """The type of a row number."""
    return np.dtype(np.uint32 if rows <= 1 << 32 else np.uint64)


def mark_bytes(rows: int) -> int:
    """The width of a mark; an array in a bundle has at least 1."""
    return max(1, -(-rows // 8))


def stored(opened: bundle.Opened, prefix: str = "") -> bool:
    """Whether the bundle has columns at all: those of an older bpr have none."""
    return prefix + FIELDS in opened.manifest.files
