"""Metadata into columns, while passages stream. segments.py calls it through `columns`; it knows no texts.

A column takes 4 bytes a row that has it (8 where rows lack it, or have several values), and its different values.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..filters import KINDS, MOST_KEYS, NULL, OBJECT, Path, Value, values_of
from .layout import (
    FIELDS,
    MARKS,
    MOST_FIELDS,
    MOST_VALUE_BYTES,
    MOST_VALUES,
    ROWS,
    STARTS,
    VALUES,
    Field,
    Layout,
    mark_bytes,
    row_type,
)

if TYPE_CHECKING:
    from .. import bundle

LEAST_STEP, MARKS_A_COLUMN = 1 << 16, 16  # marks of a column in which every row has one value
SORTED_AT_ONCE = 1 << 22  # entries: bounds the working memory of sorting
_json = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make an encoder for each value


class ColumnsOut:
    """Gathers metadata row by row, and writes it by column."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._columns: dict[Path, _Column] = {}
        self._next_row = 0
        self._more = False  # there were more fields than are kept

    def __len__(self) -> int:
        """How many fields there are so far."""
        return len(self._columns)

    def add(self, row: int, meta: Mapping[str, Any]) -> None:
        """The metadata of a passage, as JSON gives it. Rows ascend."""
        if row < self._next_row:
            raise InvalidInput(f"rows must ascend: row {row} came behind row {self._next_row - 1}")
        self._next_row = row + 1
        self._add_keys(row, meta, ())

    def _add_keys(self, row: int, found: Mapping[str, Any], above: Path) -> None:
        for key, value in found.items():
            keys = (*above, key)
            column = self._columns.get(keys)
            if column is None:
                if len(self._columns) >= MOST_FIELDS:
                    self._more = True
                    continue
                column = self._columns[keys] = _Column()
            if column.kept:
                column.add(row, values_of(value))
            if isinstance(value, Mapping) and len(keys) < MOST_KEYS:
                self._add_keys(row, value, keys)

    def write(self, new: bundle.Writer, prefix: str = "", rows: int | None = None) -> None:
        """Write the files; rows: how many the bundle (or segment) has, if the last ones were not added."""
        rows = self._next_row if rows is None else rows
        if rows < self._next_row:
            raise InvalidInput(f"row {self._next_row - 1} has metadata, but there are only {rows} rows")
        step = max(LEAST_STEP, -(-rows // MARKS_A_COLUMN))
        fields = []
        with (
            new.file(prefix + VALUES) as texts,
            new.array(prefix + STARTS, np.dtype(np.uint64), (2,)) as starts,
            new.array(prefix + ROWS, row_type(rows)) as entries,
            new.array(prefix + MARKS, np.dtype(np.uint8), (mark_bytes(rows),)) as marks,
        ):
            for keys, column in sorted(self._columns.items()):
                fields.append(column.field(keys))
                lines, counts, places = column.sorted_values()
                begins = [texts.tell() + _begins(list(map(len, lines))), entries.rows + _begins(counts)]
                starts.append(np.stack(begins, axis=1).astype(np.uint64))
                texts.write(b"".join(lines))
                blocks = column.sorted_rows(counts, places)
                if len(places) >= step:
                    blocks = _marked(blocks, rows, step, marks)
                for block in blocks:
                    entries.append(block.astype(row_type(rows)))
            starts.append(np.array([[texts.tell(), entries.rows]], np.uint64))
        with new.file(prefix + FIELDS) as out:
            out.write(Layout(rows, step, self._more, tuple(fields)).encode())


class _Column:
    """One field: of each entry its value, as a number in the order of first sight, and its row."""

    def __init__(self) -> None:
        self.kept = True
        self._several = False
        self._text = 0  # characters of all values
        self._numbers: dict[Value, int] = {}
        self._entries = array("I")
        self._rows: array[int] | None = None  # None: entry i is row i's

    def add(self, row: int, values: list[Value]) -> None:
        if len(values) > 1:
            values = list(dict.fromkeys(values))
            self._several |= len(values) > 1
        for value in values:
            number = self._numbers.get(value)
            if number is None:
                number = self._numbers[value] = len(self._numbers)
                self._text += len(value[1]) if isinstance(value[1], str) else 8
            if self._rows is None and len(self._entries) != row:
                self._rows = array("I", range(len(self._entries)))
            if self._rows is not None:
                if row >= 1 << 32 and self._rows.typecode == "I":
                    self._rows = array("Q", self._rows)
                self._rows.append(row)
            self._entries.append(number)
        if len(self._numbers) > MOST_VALUES or self._text > MOST_VALUE_BYTES:
            self.kept, self._numbers, self._entries, self._rows = False, {}, array("I"), None

    def field(self, keys: Path) -> Field:
        kinds = np.bincount([kind for kind, _ in self._numbers], minlength=len(KINDS)) if self._numbers else None
        counts = tuple(kinds.tolist()) if kinds is not None else (0,) * len(KINDS)
        return Field(keys, counts, len(self._entries), self._several, self.kept)

    def sorted_values(self) -> tuple[list[bytes], NDArray[np.int64], NDArray[np.uint32]]:
        """The values as lines, how many entries each has, and of each entry the place of its value among them."""
        ordered = sorted(self._numbers)
        place_of = np.empty(len(ordered), np.uint32)
        place_of[[self._numbers[value] for value in ordered]] = np.arange(len(ordered))
        places = place_of[np.frombuffer(self._entries, np.uint32)] if ordered else place_of
        return [_line(value) for value in ordered], np.bincount(places, minlength=len(ordered)), places

    def sorted_rows(self, counts: NDArray[np.int64], places: NDArray[np.uint32]) -> Iterator[NDArray[Any]]:
        """The rows by (value, row), in pieces of whole values of about SORTED_AT_ONCE entries."""
        ends = np.cumsum(counts)
        first = 0
        while first < len(counts):
            before = int(ends[first] - counts[first])
            last = max(first + 1, int(np.searchsorted(ends, before + SORTED_AT_ONCE, "right")))
            chosen = np.flatnonzero((places >= first) & (places < last))
            chosen = chosen[np.argsort(places[chosen], kind="stable")]
            yield chosen if self._rows is None else np.asarray(self._rows)[chosen]
            first = last


def _begins(sizes: NDArray[np.int64] | list[int]) -> NDArray[np.int64]:
    """Where each of consecutive pieces begins."""
    return np.cumsum(sizes, dtype=np.int64) - np.asarray(sizes, np.int64)


def _line(value: Value) -> bytes:
    kind, found = value
    plain = found if kind >= NULL else {} if kind == OBJECT else []
    return _json(plain).encode() + b"\n"


def _marked(blocks: Iterable[NDArray[Any]], rows: int, step: int, marks: bundle.ArrayOut) -> Iterator[NDArray[Any]]:
    """Pass the blocks on, and write a mark at every `step` entries."""
    odd = np.zeros(rows, np.bool_)
    at = 0
    for block in blocks:
        yield block
        while len(block):
            here = block[: step - at % step]
            np.logical_xor.at(odd, here, True)
            at, block = at + len(here), block[len(here) :]
            if at % step == 0:
                marks.append(np.packbits(odd, bitorder="little")[None])
