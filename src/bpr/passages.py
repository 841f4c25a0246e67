"""Passages: read from files or dicts, stored in a bundle, fetched by row or by id.

The builder calls `read` and `write`, the retriever `Passages`. Knows nothing of vectors, codes or scores: the row
number is all that it shares with the index.

In a bundle: `passages.jsonl`, one compact JSON object a line; `offsets.npy`, uint64[n + 1], where each line begins; and
`ids.npy`, the map from outside id to row (idmap.py). A lookup goes from the id's home slot towards the first empty slot
and compares the ids in passages.jsonl.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from json.encoder import encode_basestring as quote  # the C routine: half the time of a JSONEncoder
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import idmap
from .disk import OutputFile
from .errors import CorruptBundle, InvalidInput
from .records import Passage
from .textfiles import check_string, kind, read_records

if TYPE_CHECKING:
    from . import bundle

TEXTS, OFFSETS, IDS = "passages.jsonl", "offsets.npy", "ids.npy"
BATCH_BYTES = 1 << 20  # text goes to the bundle in pieces of about this size
ROWS_AT_ONCE = 1024


class DuplicateId(InvalidInput):
    """Two passages have the same id. `rows`: which, counted from 0."""

    def __init__(self, twin_id: str, first: int, second: int, where: str | None = None) -> None:
        """where: the two places in the words of the caller, if they are known."""
        self.twin_id, self.rows = twin_id, (first, second)
        places = where or f"passages {first + 1} and {second + 1} of the input"
        super().__init__(f"{places}: the id {twin_id!r} stands twice; give every passage an id of its own")

    def in_file(self, path: Path) -> DuplicateId:
        """The same, with the lines of the file that the passages were read from."""
        records = enumerate(read_records(path))
        first, second = (next(number for row, (number, _) in records if row == wanted) for wanted in self.rows)
        return DuplicateId(self.twin_id, *self.rows, f"{path}, lines {first} and {second}")


def read(source: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Passage]) -> Iterator[Passage]:
    """Passages one by one, in the order of the source and in flat memory.

    source: a DPR TSV with a header, a JSONL or a BEIR corpus.jsonl file (each also as .gz, .xz or .zst), or an iterable
    of dicts or Passage values. That ids are unique is checked by `write`: this function forgets what it has passed on.
    """
    records: Iterator[tuple[int, Mapping[str, Any]]]
    if isinstance(source, str | os.PathLike):
        name, where, records = os.fspath(source), f"{os.fspath(source)}, line", read_records(Path(source))
    else:
        name, where, records = "the iterable of passages", "item", _item_records(source)
    empty = True
    for number, record in records:
        try:
            passage = to_passage(record)
        except ValueError as flaw:
            raise InvalidInput(f"{where} {number}: {flaw}") from None
        empty = False
        yield passage
    if empty:
        raise InvalidInput(f"{name} holds no passages")


def _item_records(items: Iterable[Mapping[str, Any] | Passage]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The dicts of an iterable, each with its item number (from 0)."""
    if not isinstance(items, Iterable):
        raise InvalidInput(f"passages must be a path or an iterable of dicts or Passage values, not {kind(items)}")
    for number, item in enumerate(items):
        if isinstance(item, Passage):
            item = {"id": item.id, "title": item.title, "text": item.text, "meta": item.meta}
        elif not isinstance(item, Mapping):
            raise InvalidInput(f"item {number}: a passage must be a dict or a Passage, not {kind(item)}")
        yield number, item


# ── Records to passages and back ─────────────────────────────────────────────────────────────────────────────────────


def to_passage(record: Mapping[str, Any]) -> Passage:
    """The passage in a record: id (or _id) and text, maybe title and meta (or metadata); other keys go into meta.

    A ValueError says what is wrong with the record; the caller knows where it stood.
    """
    rest = dict(record)
    outside_id = rest.pop("id" if "id" in rest else "_id", None)
    if isinstance(outside_id, int | np.integer) and not isinstance(outside_id, bool):
        outside_id = str(outside_id)
    title = rest.pop("title", None)
    text = rest.pop("text", None)
    for key, value in (("id", outside_id), ("title", "" if title is None else title), ("text", text)):
        _check_field(key, value)
    if not outside_id.strip():
        raise ValueError('"id" is empty; every passage needs an id of its own')
    own = rest.pop("meta" if "meta" in rest else "metadata", None)
    return Passage(outside_id, title or "", text, _merge_meta({} if own is None else own, rest))


def _check_field(key: str, value: Any) -> None:
    """ValueError unless a passage can have this value there."""
    if value is None:
        raise ValueError(f'"{key}" is missing; a passage needs "id" and "text" (and may have "title" and "meta")')
    check_string(key, value)


def _merge_meta(own: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as JSON will give it back, so that what is read is what will be stored."""
    if not own and not rest:
        return {}
    if not isinstance(own, Mapping):
        raise ValueError(f'"meta" must be a JSON object, not {kind(own)}')
    twice = sorted(map(str, own.keys() & rest.keys()))
    if twice:
        raise ValueError(f'{", ".join(map(repr, twice))} stands both beside "meta" and in it')
    return cast("dict[str, Any]", json.loads(_meta_json({**own, **rest})))


def _meta_json(meta: Mapping[str, Any]) -> str:
    """Metadata as compact JSON; a ValueError says why it cannot be."""
    try:
        odd = next((key for key in meta if not isinstance(key, str)), None)
        if odd is not None:
            raise ValueError(f"the key {odd!r} is not a string")
        encoded = json.dumps(dict(meta), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        encoded.isascii() or encoded.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f'"meta" cannot be stored as JSON: {error}') from None
    return encoded


def to_line(passage: Passage) -> bytes:
    """The passage as one line of JSON. A ValueError or TypeError says why it cannot be."""
    meta = f',"meta":{_meta_json(passage.meta)}' if passage.meta else ""
    line = f'{{"id":{quote(passage.id)},"title":{quote(passage.title)},"text":{quote(passage.text)}{meta}}}\n'
    return line.encode()


def from_line(line: bytes) -> Passage:
    """The passage that to_line wrote."""
    record = json.loads(line)
    return Passage(record["id"], record["title"], record["text"], record.get("meta", {}))


# ── Into a bundle ────────────────────────────────────────────────────────────────────────────────────────────────────


def write(passages: Iterable[Passage], new: bundle.Writer, prefix: str = "") -> int:
    """Store the passages in a bundle that is being written; the number of rows. prefix: of the names of the files.

    Memory does not grow with the text, nor with the number of passages: see idmap.py.
    """
    scratch = new.scratch("hashes.tmp")
    rows = _write_lines(passages, new, prefix, scratch)
    idmap.write(new, prefix + IDS, rows, scratch, partial(_refuse_twins, new.generation_path, prefix))
    return rows


def _write_lines(passages: Iterable[Passage], new: bundle.Writer, prefix: str, scratch: Path) -> int:
    """Write texts and offsets, and to the scratch file the hash of each id; the number of rows."""
    rows, end = 0, 0
    with (
        new.file(prefix + TEXTS) as texts,
        new.array(prefix + OFFSETS, np.dtype(np.uint64), ()) as offsets,
        closing(OutputFile(new.disk, scratch)) as hashes,
    ):
        offsets.append(np.zeros(1, np.uint64))
        for lines, ids in _batches(passages):
            texts.write(b"".join(lines))
            lengths = np.fromiter(map(len, lines), np.uint64, len(lines))
            offsets.append(np.cumsum(lengths, dtype=np.uint64) + np.uint64(end))
            hashes.write(b"".join(map(idmap.digest, ids)))
            rows, end = rows + len(lines), end + int(lengths.sum())
        hashes.finish()
    return rows


def _batches(passages: Iterable[Passage]) -> Iterator[tuple[list[bytes], list[str]]]:
    """Lines and ids in pieces of about BATCH_BYTES."""
    lines: list[bytes] = []
    ids: list[str] = []
    size = 0
    for row, passage in enumerate(passages):
        try:
            line = to_line(passage)
        except (TypeError, ValueError) as flaw:
            raise InvalidInput(f"the passage for row {row} cannot be stored: {flaw}") from None
        lines.append(line)
        ids.append(passage.id)
        size += len(line)
        if size >= BATCH_BYTES:
            yield lines, ids
            lines, ids, size = [], [], 0
    if lines:
        yield lines, ids


def _refuse_twins(folder: Path, prefix: str, hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
    """InvalidInput if two of these rows, sorted by hash, have the same id. Equal hashes alone are no crime."""
    seen: dict[str, int] = {}
    for second in np.flatnonzero(hashes[1:] == hashes[:-1]) + 1:
        for row in (int(rows[second - 1]), int(rows[second])):
            twin_id = _stored_id(folder, prefix, row)
            first_row = seen.setdefault(twin_id, row)
            if first_row != row:
                raise DuplicateId(twin_id, first_row, row)


def _stored_id(folder: Path, prefix: str, row: int) -> str:
    """The id of a line just written, from files that are not published yet."""
    offsets = np.load(folder / f"{prefix}{OFFSETS}", mmap_mode="r", allow_pickle=False)
    with (folder / f"{prefix}{TEXTS}").open("rb") as texts:
        texts.seek(offsets[row])
        return from_line(texts.readline()).id


# ── Out of a bundle ──────────────────────────────────────────────────────────────────────────────────────────────────


class Passages:
    """The passages of an open bundle, by row or by id. Opening reads nothing; texts stay on disk until asked for."""

    def __init__(self, opened: bundle.Opened, prefix: str = "") -> None:
        """Map the three files of the bundle, or of that part of it whose names begin so."""
        self._texts, self._offsets, self._ids = (opened.view(prefix + name) for name in (TEXTS, OFFSETS, IDS))
        self._rows = len(self._offsets.array) - 1
        if (
            self._rows < 0
            or self._offsets.array.dtype != np.uint64
            or self._ids.array.dtype != idmap.row_type(self._rows)
            or len(self._ids.array) <= idmap.homes_of(self._rows)
        ):
            raise CorruptBundle(f"{OFFSETS} and {IDS} do not belong together; restore or rebuild the bundle")

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Passage]:
        for start in range(0, self._rows, ROWS_AT_ONCE):
            yield from self.fetch(np.arange(start, min(start + ROWS_AT_ONCE, self._rows)))

    def __contains__(self, outside_id: object) -> bool:
        return isinstance(outside_id, str) and self.find(outside_id) is not None

    def __getitem__(self, row: int) -> Passage:
        return self.get([row])[0]

    def get(self, rows: ArrayLike) -> list[Passage]:
        """The passages of these rows, in the order given."""
        wanted = np.asarray(rows)
        if wanted.size == 0:
            return []
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise InvalidInput(f"rows must be whole numbers in one dimension, not {wanted.dtype} in {wanted.ndim}")
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= self._rows:
            raise InvalidInput(f"there is no row {low if low < 0 else high}: the rows are 0 to {self._rows - 1}")
        return self.fetch(wanted.astype(np.int64))

    def row(self, outside_id: str) -> int:
        """The row of the passage with this id."""
        row = self.find(outside_id) if isinstance(outside_id, str) else None
        if row is None:
            raise InvalidInput(f"no passage has the id {outside_id!r}; ids are strings, spelt as in the input")
        return row

    def find(self, outside_id: str) -> int | None:
        """The row of the passage with this id, or None."""
        return self.find_all([outside_id])[0]

    def find_all(self, outside_ids: Sequence[str]) -> list[int | None]:
        """The row of the passage with each of these ids, or None; all at once costs a tenth of one by one."""
        digests = [idmap.digest_or_none(each) for each in outside_ids]
        width = idmap.home_width(self._rows)
        found: list[int | None] = [None] * len(digests)
        # Which are looked for, and in which slot: from the home of each on, until it must have come.
        wanted = [(at, int.from_bytes(each, "big") // width) for at, each in enumerate(digests) if each is not None]
        while wanted:
            rows = self._slots([slot for _, slot in wanted], [outside_ids[at] for at, _ in wanted])
            taken = [(at, slot, row) for (at, slot), row in zip(wanted, rows, strict=True) if row is not None]
            wanted = []
            ids = [passage.id for passage in self.fetch(np.array([row for _, _, row in taken], np.int64))]
            for (at, slot, row), there in zip(taken, ids, strict=True):
                if there == outside_ids[at]:
                    found[at] = row
                elif idmap.digest(there) <= cast("bytes", digests[at]):  # slots are in their order: ours may yet come
                    wanted.append((at, slot + 1))
        return found

    def _slots(self, slots: list[int], looked_for: Sequence[str]) -> list[int | None]:
        """The rows that these slots of the id map hold; None for an empty one."""
        table = self._ids.array
        inside = np.minimum(np.array(slots, np.int64), len(table) - 1)
        self._ids.require_rows(inside)
        rows: list[int | None] = table[inside].tolist()
        for at, (slot, row) in enumerate(zip(slots, rows, strict=True)):
            if row == idmap.empty(table.dtype):
                rows[at] = None
            elif slot >= len(table) or cast("int", row) >= self._rows:
                raise CorruptBundle(f"{IDS} leads nowhere for {looked_for[at]!r}; restore or rebuild the bundle")
        return rows

    def fetch(self, rows: NDArray[np.int64]) -> list[Passage]:
        """The passages of rows that are there. Bytes are asked to be verified before they are read."""
        self._offsets.require_rows(rows)
        self._offsets.require_rows(rows + 1)
        starts, ends = self._offsets.array[rows], self._offsets.array[rows + 1]
        if not np.all((starts < ends) & (ends <= len(self._texts.array))):
            raise CorruptBundle(f"{OFFSETS} points outside {TEXTS}; restore or rebuild the bundle")
        self._texts.require_spans(starts.astype(np.int64), ends.astype(np.int64))
        return [self._parse(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _parse(self, start: int, end: int) -> Passage:
        try:
            return from_line(self._texts.array[start:end].tobytes())
        except (ValueError, KeyError, TypeError):
            raise CorruptBundle(f"{TEXTS} holds no passage at byte {start}; restore or rebuild the bundle") from None
