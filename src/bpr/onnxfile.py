"""An ONNX file's metadata and constants, read without the onnx package, which serving does not need otherwise.

bert.py calls it. Knows protobuf's wire format and the few fields of ONNX that lead to a graph's constants; no network
and no operator. A file is not trusted: every length is checked, and what is wrong is an InvalidInput.

    ModelProto      7 graph, 14 metadata_props (1 key, 2 value)
    GraphProto      5 initializer
    TensorProto     1 dims, 2 data_type, 8 name, 9 raw_data
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

Span: TypeAlias = tuple[int, int]  # first byte, and the one behind the last

TYPES = {1: "<f4", 3: "<i1", 7: "<i8"}  # TensorProto.DataType, of what bpr's own graphs hold
_VARINT, _EIGHT_BYTES, _SPAN, _FOUR_BYTES = 0, 1, 2, 5
_MOST_DIMS = 8


class _Broken(Exception):
    """What does not follow the format; the message says where."""


@dataclass(frozen=True)
class OnnxFile:
    """The metadata of a file, and its constants by name."""

    path: Path
    metadata: dict[str, str]
    _data: memoryview
    _graph: Span

    @classmethod
    def open(cls, path: Path) -> OnnxFile:
        """Read a file. Its graph is looked into by `constants` alone: a foreign one may be anything."""
        try:
            data = memoryview(path.read_bytes())  # not mapped: a file that shrinks meanwhile would be a SIGBUS
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error}") from error
        metadata: dict[str, str] = {}
        graph: Span = (0, 0)
        try:
            for number, value in _fields(data, (0, len(data))):
                if number == 7:
                    graph = _span(value)
                elif number == 14:
                    entry = dict(_fields(data, _span(value)))
                    metadata[_text(data, entry.get(1, (0, 0)))] = _text(data, entry.get(2, (0, 0)))
        except _Broken as error:
            raise InvalidInput(f"{path} is not an ONNX file: {error}") from error
        return cls(path, metadata, data, graph)

    def constants(self) -> dict[str, NDArray[Any]]:
        """Views of the file's own bytes; constants that are not stored plainly, or of other types, are left out."""
        found: dict[str, NDArray[Any]] = {}
        try:
            for number, value in _fields(self._data, self._graph):
                if number == 5:
                    name, array = _tensor(self._data, _span(value))
                    if array is not None:
                        found[name] = array
        except _Broken as error:
            raise InvalidInput(f"{self.path} is a broken ONNX file: {error}") from error
        return found


def _tensor(data: memoryview, where: Span) -> tuple[str, NDArray[Any] | None]:
    dims: list[int] = []
    kind, name, raw = 0, "", None
    for number, value in _fields(data, where):
        if number == 1:  # one by one, or many packed into one field
            dims += [value] if isinstance(value, int) else _varints(data, value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = _text(data, value)
        elif number == 9:
            raw = _span(value)
    if raw is None or kind not in TYPES:
        return name, None
    dtype = np.dtype(TYPES[kind])
    if len(dims) > _MOST_DIMS or math.prod(dims) * dtype.itemsize != raw[1] - raw[0]:
        raise _Broken(
            f"the constant {name!r} has {raw[1] - raw[0]} bytes, which its shape {dims[:_MOST_DIMS]} does not fit"
        )
    return name, np.frombuffer(data[raw[0] : raw[1]], dtype).reshape(dims)


def _fields(data: memoryview, where: Span) -> Iterator[tuple[int, int | Span]]:
    """Field numbers with their values: a number, or where a text, a list or a message lies."""
    at, end = where
    while at < end:
        tag, at = _varint(data, at, end)
        kind = tag & 7
        value: int | Span
        if kind == _VARINT:
            value, at = _varint(data, at, end)
        elif kind == _SPAN:
            length, at = _varint(data, at, end)
            value, at = (at, at + length), at + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            width = 8 if kind == _EIGHT_BYTES else 4
            value, at = (at, at + width), at + width
        else:
            raise _Broken(f"there is no field of kind {kind} at byte {at}")
        if at > end:
            raise _Broken(f"a field ends at byte {at}, behind the end of what holds it ({end})")
        yield tag >> 3, value


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; at most ten bytes."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _Broken(f"a number does not end at byte {at}")


def _varints(data: memoryview, where: Span) -> list[int]:
    at, end = where
    found: list[int] = []
    while at < end and len(found) <= _MOST_DIMS:
        value, at = _varint(data, at, end)
        found.append(value)
    return found


def _span(value: int | Span) -> Span:
    if isinstance(value, int):
        raise _Broken("a number stands where a message or a text should")
    return value


def _text(data: memoryview, value: int | Span) -> str:
    first, end = _span(value)
    try:
        return str(data[first:end], "utf-8")
    except UnicodeDecodeError as error:
        raise _Broken(f"the text at byte {first} is not UTF-8") from error
