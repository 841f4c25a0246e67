"""Codes of other software into a bundle with their passages, and a bundle's codes into files for other software.

The command line (`bpr convert faiss`, `codes`, `bundle`) calls it. It composes: files of codes are faissfile's and
arrays' business, bundles are the builder's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import builder, bundle
from ..codes import Codes, blocks
from ..disk import OutputFile, replacing
from ..encoder import Encodes
from ..errors import EmptyBundle, InvalidInput
from ..passages import Passages
from ..records import Passage, Progress
from ..segments import Contents
from . import arrays, faissfile
from .arrays import ArrayCodes
from .faissfile import StoredCodes

FAISS_TYPES, ARRAY_TYPES = (".faiss", ".index", ".idx"), (".npy",)
IDS, MAGNITUDES = ".ids.txt", ".magnitudes.npy"


# ── Into a bundle ────────────────────────────────────────────────────────────────────────────────────────────────────


def into_bundle(
    stored: StoredCodes | ArrayCodes,
    source: builder.Source,
    path: str | Path,
    *,
    by_row: bool = False,
    model: str | Path | Encodes | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> int:
    """Write the bundle `path` from codes and the passages that they are of; returns their number.

    A code's id is its passage's id; where the file has none, or with by_row, it is the number of its passage in
    `source`, from 0. model: what made the codes, as you say. how: kind and words, as for `bpr.build`.
    """
    ready = PairedCodes(stored, by_row)
    return builder.build(source, path, codes=ready, model=model, progress=progress, **how)


class PairedCodes:
    """Codes that find their passages: what `bpr.build` takes as codes."""

    def __init__(self, stored: StoredCodes | ArrayCodes, by_row: bool = False) -> None:
        """by_row: their ids are numbers of passages. Refuses an id that two codes have."""
        self._stored, self._by_row, self._path = stored, by_row, stored.path
        self.bits = stored.bits
        self._find = _finder(stored)
        if by_row and isinstance(stored.ids, list):
            raise InvalidInput(f"the ids of {self._path} are no numbers, so they do not count passages")

    def __len__(self) -> int:
        """How many codes."""
        return len(self._stored)

    def codes_of(self, some: Sequence[Passage], first_row: int) -> Codes:
        """The codes of these passages."""
        if self._find is None:
            return self._stored.take(np.arange(first_row, first_row + len(some)))
        keys = [str(first_row + place) if self._by_row else each.id for place, each in enumerate(some)]
        rows = self._find(keys)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            what = "passage number" if self._by_row else "passage"
            raise InvalidInput(
                f"{self._path} has no code for the {what} {keys[missing[0]]!r}, but ids like "
                f"{str(self._stored.ids[0])!r}: are these its passages?"  # type: ignore[index]
                + ("" if self._by_row else " If its ids count the passages, from 0, say so (by_row=True, --rows)")
            )
        return self._stored.take(rows)


def _finder(stored: StoredCodes | ArrayCodes) -> Callable[[Sequence[str]], NDArray[np.int64]] | None:
    """From ids to rows, -1 where there is none; None where codes have no ids."""
    if stored.ids is None:
        return None
    if isinstance(stored.ids, list):
        return _by_name(stored.ids, stored.path)
    return _by_number(stored.ids, stored.path)


def _by_name(ids: list[str], path: Path) -> Callable[[Sequence[str]], NDArray[np.int64]]:
    row_of = {each: row for row, each in enumerate(ids)}
    if len(row_of) < len(ids):
        raise _twice(path, next(each for row, each in enumerate(ids) if row_of[each] != row))
    return lambda wanted: np.array([row_of.get(each, -1) for each in wanted], np.int64)


def _by_number(ids: NDArray[np.int64], path: Path) -> Callable[[Sequence[str]], NDArray[np.int64]]:
    """As _by_name, with 16 bytes an id instead of some hundred."""
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    twice = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(twice):
        raise _twice(path, int(ascending[twice[0]]))

    def find(wanted: Sequence[str]) -> NDArray[np.int64]:
        numbers = [arrays.whole_number(each) for each in wanted]
        keys = np.array([0 if each is None else each for each in numbers], np.int64)
        places = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
        known = np.array([each is not None for each in numbers]) & (ascending[places] == keys)
        return np.where(known, order[places], -1)

    return find


def _twice(path: Path, outside_id: object) -> InvalidInput:
    return InvalidInput(f"{path}: two codes have the id {str(outside_id)!r}; every passage has one code")


# ── Out of a bundle ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Written:
    """What was written: of how many passages, and into which files; what is not in them, as a sentence."""

    rows: int
    files: tuple[Path, ...]
    left_out: str | None = None


def out_of_bundle(path: str | Path, target: str | Path, *, id_map: bool = False) -> Written:
    """Write the codes of a bundle, row by row, into a file for other software; the suffix of `target` says which.

    .faiss (.index, .idx): an IndexBinaryFlat of the signs, whose ids are rows; with id_map an IndexBinaryIDMap2 with
    the ids of the passages, which must be whole numbers. .npy: the signs, uint8[n, bits/8], and beside them, where the
    bundle has two planes, NAME.magnitudes.npy. Where the file has no ids of the passages: NAME.ids.txt, one a line.
    """
    out = Path(target)
    if out.suffix not in (*FAISS_TYPES, *ARRAY_TYPES):
        known = ", ".join((*FAISS_TYPES, *ARRAY_TYPES))
        raise InvalidInput(f"{target}: the suffix says what to write, one of {known}")
    is_array = out.suffix in ARRAY_TYPES
    if is_array and id_map:
        raise InvalidInput(f"{target}: an array has no map of ids; they are in the file beside it")
    with bundle.open(path) as opened:
        if not opened.info["rows"]:
            raise EmptyBundle(f"{path} holds no passages, so it has no codes")
        return _write(Contents(opened), out, is_array, id_map)


def _write(held: Contents, out: Path, is_array: bool, id_map: bool) -> Written:
    planes, rows = held.index().planes, len(held.rows)
    files = [out]
    if is_array and planes.levels is not None:
        files.append(out.with_suffix(MAGNITUDES))
    if not id_map:
        files.append(out.with_suffix(IDS))
    with replacing(*files) as opened:
        codes = (planes.take(some).signs for some in _numbers(rows))
        if is_array:
            arrays.write(opened[0], rows, planes.bits // 8, codes)
        else:
            ids = _whole_numbers(held.passages) if id_map else None
            faissfile.write(opened[0], rows, planes.bits, codes, ids)
        if is_array and planes.levels is not None:
            large = (planes.take(some).magnitudes for some in _numbers(rows))
            arrays.write(opened[1], rows, planes.bits // 8, cast("Iterator[Codes]", large))
        if not id_map:
            _write_ids(opened[-1], held.passages)
    lost = planes.levels is not None and not is_array
    return Written(rows, tuple(files), "the magnitudes, which Faiss has no place for" if lost else None)


def _numbers(rows: int) -> Iterator[NDArray[np.int64]]:
    """All rows, some at a time."""
    return (np.arange(part.start, part.stop) for part in blocks(rows))


def _whole_numbers(texts: Passages) -> Iterator[NDArray[np.int64]]:
    """The ids of all passages as numbers, some at a time."""
    for some in _numbers(len(texts)):
        ids = [passage.id for passage in texts.fetch(some)]
        found = [arrays.whole_number(each) for each in ids]
        if None in found:
            raise InvalidInput(
                f"the passage {ids[found.index(None)]!r} has an id that is no whole number of 64 bits, and Faiss knows "
                "no others: leave out the map of ids (--id-map), and find ids by row in the file beside the codes"
            )
        yield np.array(found, np.int64)


def _write_ids(out: OutputFile, texts: Passages) -> None:
    for passage in texts:
        if "\n" in passage.id or "\r" in passage.id:
            raise InvalidInput(f"the id {passage.id!r} holds a line end, and {IDS[1:]} has one id a line")
        out.write(f"{passage.id}\n".encode())
