"""Faiss's files of binary indexes, read and written without Faiss: their codes and ids, not their graphs or cells.

codes.py calls it. It knows bytes; nothing of bundles or passages.

All numbers are little endian. An index is a name of four letters, a header (d int32, code_size int32, ntotal int64,
is_trained uint8, metric int32), and what its kind adds; a vector is its length (uint64) and its values:

    IBxF        IndexBinaryFlat         vector of bytes: the codes
    IBMp IBM2   IndexBinaryIDMap(2)     an index; vector of int64: the ids. Faiss 1.6 left code_size 0 in its header
    IBHf        IndexBinaryHNSW         the graph; an index: the codes
    IBwF        IndexBinaryIVF          the quantizer, an index; a direct map; the lists (ilar): codes and ids of each
    IBHh        IndexBinaryHash         the buckets: ids and codes of each
    IBHm        IndexBinaryMultiHash    an index: the codes; the tables

Every length is compared with the size of the file before anything is made of it, and whatever does not add up is
InvalidInput with the byte where it stands. Codes stay on disk until they are taken.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..codes import MAX_BITS, MIN_BITS, Codes
from ..disk import OutputFile, storage_error
from ..errors import InvalidInput, UnsupportedFormat

HEADER = struct.Struct("<iiqBi")
L2 = 1  # the metric that Faiss writes for every binary index
DEEPEST = 4  # an index in an index in an index: Faiss itself makes three of them at most
NAMES = {
    "IBxF": "IndexBinaryFlat",
    "IBMp": "IndexBinaryIDMap",
    "IBM2": "IndexBinaryIDMap2",
    "IBHf": "IndexBinaryHNSW",
    "IBwF": "IndexBinaryIVF",
    "IBHh": "IndexBinaryHash",
    "IBHm": "IndexBinaryMultiHash",
}
OTHERS = {"IBFf": "IndexBinaryFromFloat", "IBHc": "IndexBinaryHNSWCagra"}  # known by name, not read
_NO_MAP, _ARRAY_MAP, _TABLE_MAP = range(3)
_GRAPH = (("probabilities", 8), ("neighbours a level", 4), ("levels", 4), ("offsets", 8), ("neighbours", 4))


@dataclass(frozen=True)
class StoredCodes:
    """The codes of an index file, in their order there; they are read when they are taken.

    kind: Faiss's name of the index. ids: int64[n], as Faiss returns them; None where those are 0, 1, … in that order.
    """

    path: Path
    kind: str
    bits: int
    ids: NDArray[np.int64] | None
    _bytes: NDArray[np.uint8]  # of the whole file
    _starts: NDArray[np.int64] | int  # where each code begins, or where the first does and the others follow it
    _rows: int

    def __len__(self) -> int:
        """How many codes."""
        return self._rows

    def take(self, rows: NDArray[np.int64]) -> Codes:
        """The codes of these rows: uint8[m, bits/8]."""
        width = self.bits // 8
        starts = self._starts + rows * width if isinstance(self._starts, int) else self._starts[rows]
        codes: Codes = self._bytes[starts[:, None] + np.arange(width)]
        return codes


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: str | Path) -> StoredCodes:
    """The codes and ids of a file that faiss.write_index_binary wrote."""
    cursor = _Cursor(Path(path))
    found = _index(cursor, 1)
    if cursor.at != len(cursor.bytes):
        raise cursor.wrong(f"the index ends here, but the file has {len(cursor.bytes) - cursor.at:,} bytes more")
    return _in_order(found)


class _Cursor:
    """A place in a mapped file, from which things are taken one after the other."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        self.bytes = _mapped(path)

    def wrong(self, what: str, at: int | None = None) -> InvalidInput:
        where = self.at if at is None else at
        return InvalidInput(
            f"{self.path}, byte {where:,}: {what}; this is no binary index of Faiss (faiss.write_index_binary), or it "
            "is damaged: copy it again"
        )

    def skip(self, size: int, what: str) -> int:
        """Pass over so many bytes; where they begin."""
        left, start = len(self.bytes) - self.at, self.at
        if size > left:
            raise self.wrong(f"{what} should take {size:,} bytes, and the file has only {left:,} more")
        self.at += size
        return start

    def array(self, dtype: str, count: int, what: str) -> NDArray[Any]:
        """The next numbers, as a copy that can be of any alignment."""
        size = np.dtype(dtype).itemsize * count
        start = self.skip(size, what)
        return np.frombuffer(self.bytes[start : start + size].tobytes(), dtype)

    def unpack(self, form: struct.Struct, what: str) -> tuple[Any, ...]:
        start = self.skip(form.size, what)
        return form.unpack(self.bytes[start : start + form.size].tobytes())

    def number(self, form: str, what: str) -> int:
        return int(self.unpack(struct.Struct(form), what)[0])

    def word(self, what: str) -> str:
        """The next four letters."""
        start = self.skip(4, what)
        return self.bytes[start : start + 4].tobytes().decode("latin-1")

    def vector(self, item: int, what: str) -> tuple[int, int]:
        """Pass over a vector of items of so many bytes: where its values begin, and how many they are."""
        count = self.number("<Q", f"the length of the {what}")
        return self.skip(count * item, f"the {what}"), count


def _mapped(path: Path) -> NDArray[np.uint8]:
    """The bytes of a plain file; NONBLOCK, so that a pipe in its place is refused and not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise InvalidInput(f"{path} is not a plain file, where a file of Faiss is needed")
            if not state.st_size:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(descriptor, state.st_size, access=mmap.ACCESS_READ), np.uint8)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except OSError as error:
        raise storage_error("read", path, error) from error
    except ValueError as error:  # a NUL in the name
        raise InvalidInput(f"{str(path)!r} cannot be the name of a file: {error}") from None


def _index(cursor: _Cursor, depth: int) -> StoredCodes:
    """The index that begins here."""
    start = cursor.at
    if depth > DEEPEST:
        raise cursor.wrong("indexes stand in each other deeper than Faiss makes them")
    name = cursor.word("the name of an index")
    if name not in NAMES:
        raise _unknown(cursor, name, start)
    bits, width, rows, _, _ = cursor.unpack(HEADER, "the header of an index")
    if bits % 8 or not MIN_BITS <= bits <= MAX_BITS:
        raise cursor.wrong(f"codes of {bits} bits; bpr's have a multiple of 8 from {MIN_BITS} to {MAX_BITS}", start)
    is_map = name in ("IBMp", "IBM2")
    if rows < 0 or (width != bits // 8 and not (is_map and width == 0)):
        raise cursor.wrong(f"a header that cannot be: {rows} codes of {width} bytes for {bits} bits", start)
    found = _parse(cursor, name, bits, rows, depth)
    if (len(found), found.bits) != (rows, bits):
        raise cursor.wrong(
            f"{NAMES[name]} says {rows:,} codes of {bits} bits and has {len(found):,} of {found.bits}", start
        )
    return replace(found, kind=NAMES[name] if found.kind == "" else f"{NAMES[name]} of {found.kind}")


def _parse(cursor: _Cursor, name: str, bits: int, rows: int, depth: int) -> StoredCodes:
    """What comes behind the header."""
    if name == "IBxF":
        start, size = cursor.vector(1, "codes")
        if size != rows * (bits // 8):
            raise cursor.wrong(f"{size:,} bytes are not {rows:,} codes of {bits} bits", start)
        return StoredCodes(cursor.path, "", bits, None, cursor.bytes, start, rows)
    if name in ("IBMp", "IBM2"):
        inner = _in_order(_index(cursor, depth + 1))
        if inner.ids is not None:
            raise cursor.wrong(f"{inner.kind} should number its codes 0, 1, … inside a map of ids")
        count = cursor.number("<Q", "the number of ids")
        ids = cursor.array("<i8", count, "the ids")
        if count != len(inner):
            raise cursor.wrong(f"{count:,} ids for {len(inner):,} codes")
        return replace(inner, ids=ids)
    if name == "IBHf":
        for what, item in _GRAPH:
            cursor.vector(item, what)
        cursor.skip(5 * 4, "the settings of the graph")
        return _index(cursor, depth + 1)
    if name == "IBHm":
        stored = _index(cursor, depth + 1)
        _, tables, _ = cursor.unpack(struct.Struct("<iii"), "the settings of the tables")
        for _ in range(tables):
            cursor.skip(4 + 8, "a table")
            cursor.vector(1, "hashes of a table")
        return stored
    return _of_lists(cursor, bits, _cells(cursor, bits, depth) if name == "IBwF" else _buckets(cursor, bits))


def _unknown(cursor: _Cursor, name: str, start: int) -> InvalidInput | UnsupportedFormat:
    if name in OTHERS:
        return UnsupportedFormat(
            f"{cursor.path} holds an {OTHERS[name]} ({name}), whose codes bpr does not read; in Faiss, copy them: flat "
            "= faiss.IndexBinaryFlat(index.d); flat.add(index.reconstruct_n(0, index.ntotal)); "
            "faiss.write_index_binary(flat, …)"
        )
    if name[:1] == "I" and name.isascii() and name.isprintable():
        return UnsupportedFormat(
            f"{cursor.path} begins with {name!r}, which is no binary index that bpr knows. If it is an index of floats "
            "(faiss.write_index), take its vectors: numpy.save(…, index.reconstruct_n(0, index.ntotal)), bpr index "
            "--vectors"
        )
    return cursor.wrong(f"no name of an index stands here, but {name!r}", start)


# ── Lists of codes and ids ───────────────────────────────────────────────────────────────────────────────────────────

_Lists = list[tuple[int, NDArray[np.int64]]]  # where the codes of a list begin, and its ids


def _cells(cursor: _Cursor, bits: int, depth: int) -> _Lists:
    """The inverted lists of an IVF."""
    cells, _ = cursor.unpack(struct.Struct("<QQ"), "the number of cells")
    _index(cursor, depth + 1)  # the quantizer
    kind = cursor.number("<B", "the direct map")
    if kind not in (_NO_MAP, _ARRAY_MAP, _TABLE_MAP):
        raise cursor.wrong(f"a direct map of the unknown kind {kind}", cursor.at - 1)
    cursor.vector(8, "direct map")
    if kind == _TABLE_MAP:
        cursor.vector(16, "direct map")
    start = cursor.at
    name = cursor.word("the inverted lists")
    if name != "ilar":
        raise UnsupportedFormat(
            f"{cursor.path} keeps its inverted lists as {name!r}, which bpr does not read; in Faiss, copy the codes "
            "into an IndexBinaryFlat (index.reconstruct_n(0, index.ntotal)) and write that"
        )
    lists, width = cursor.unpack(struct.Struct("<QQ"), "the inverted lists")
    if (lists, width) != (cells, bits // 8):
        raise cursor.wrong(f"{lists:,} lists of {width} bytes a code, for {cells:,} cells of {bits} bits", start)
    sizes = _sizes(cursor, cells)
    return [
        (cursor.skip(size * width, "the codes of a list"), cursor.array("<i8", size, "the ids of a list"))
        for size in sizes
    ]


def _sizes(cursor: _Cursor, cells: int) -> list[int]:
    """How many codes each list has; those that have none may be left out."""
    start, how = cursor.at, cursor.word("the sizes of the lists")
    count = cursor.number("<Q", "the number of sizes")
    numbers = cursor.array("<u8", count, "the sizes of the lists").tolist()
    if how == "full" and count == cells:
        return [int(size) for size in numbers]
    which = numbers[::2]
    if how != "sprs" or count % 2 or any(cell >= cells for cell in which) or which != sorted(set(which)):
        raise cursor.wrong(f"sizes {how!r} of {cells:,} lists that are {count:,} numbers", start)
    return [int(size) for size in numbers[1::2]]


def _buckets(cursor: _Cursor, bits: int) -> _Lists:
    """The buckets of a hash."""
    cursor.skip(8, "the settings of the hash")
    count = cursor.number("<Q", "the number of buckets")
    cursor.skip(4, "the settings of the buckets")
    cursor.vector(1, "hashes of the buckets")
    found: _Lists = []
    for _ in range(count):
        ids = cursor.array("<i8", cursor.number("<Q", "the number of ids"), "the ids of a bucket")
        start, size = cursor.vector(1, "codes of a bucket")
        if size != len(ids) * (bits // 8):
            raise cursor.wrong(f"{size:,} bytes are not {len(ids):,} codes of {bits} bits", start)
        found.append((start, ids))
    return found


def _of_lists(cursor: _Cursor, bits: int, lists: _Lists) -> StoredCodes:
    width, none = bits // 8, np.empty(0, np.int64)
    starts = np.concatenate([none, *(start + width * np.arange(len(ids)) for start, ids in lists)])
    ids = np.concatenate([none, *(ids for _, ids in lists)])
    return StoredCodes(cursor.path, "", bits, ids, cursor.bytes, starts, len(ids))


def _in_order(found: StoredCodes) -> StoredCodes:
    """Where the ids are the numbers 0, 1, … of the codes as they were added, the codes in that order, without ids."""
    if found.ids is None or isinstance(found._starts, int):
        return found
    order = np.argsort(found.ids, kind="stable")
    if not np.array_equal(found.ids[order], np.arange(len(order))):
        return found
    return replace(found, ids=None, _starts=found._starts[order])


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(
    out: OutputFile,
    rows: int,
    bits: int,
    codes: Iterable[Codes],
    ids: Iterable[NDArray[np.int64]] | None = None,
    id_map: Literal["IBMp", "IBM2"] = "IBM2",
) -> None:
    """An IndexBinaryFlat of `rows` codes, which come in blocks (uint8[m, bits/8]).

    With ids, which come after the codes, in an IndexBinaryIDMap2, which can give a code back by its id; IBMp: in an
    IndexBinaryIDMap, which cannot.
    """
    header = HEADER.pack(bits, bits // 8, rows, 1, L2)
    if ids is not None:
        out.write(id_map.encode() + header)
    out.write(b"IBxF" + header + struct.pack("<Q", rows * (bits // 8)))
    for block in codes:
        out.write(np.ascontiguousarray(block).reshape(-1).data)
    if ids is not None:
        out.write(struct.pack("<Q", rows))
        for some in ids:
            out.write(np.ascontiguousarray(some, "<i8").tobytes())
