"""The words of passages into a bundle, while passages stream. segments.py calls it through `lexical`."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..disk import Disk, OutputFile, storage_error
from ..errors import InvalidInput, StorageError
from .layout import COUNTS, FACTS, LENGTHS, MOST_COUNT, MOST_ROWS, ROWS, STARTS, WORDS
from .words import ENGLISH, Numbers, words_of

if TYPE_CHECKING:
    from .. import bundle

SORTED_AT_ONCE = 1 << 22  # postings: bounds the memory of building
_POSTING = np.dtype([("word", "<u8"), ("row", "<u4"), ("count", "u1")])
_PARTS = 1024  # of the digests, by their first bits


class LexicalOut:
    """Gathers the words of passages row by row, and writes for each word its rows.

    Memory does not grow with the text: SORTED_AT_ONCE postings (about 0.3 GB) and 4 bytes a row. The rest waits in
    files of the writer's that are never published, 13 bytes for each different word of each passage.
    """

    def __init__(self, new: bundle.Writer, prefix: str = "", *, stopwords: Iterable[str] = ENGLISH) -> None:
        """stopwords: words that are left out, in passages and in questions; all segments of a bundle need the same."""
        self._new, self._prefix = new, prefix
        self._stopwords = frozenset(word for given in stopwords for word in words_of(given))
        self._numbers = Numbers()
        self._lengths = array("I")
        self._words, self._rows, self._counts = array("Q"), array("I"), array("B")
        self._runs: list[NDArray[np.int64]] = []  # of each scratch file, where each of _PARTS begins; and its end

    def add(self, row: int, title: str, text: str) -> None:
        """The words of a passage. Rows ascend."""
        if not len(self._lengths) <= row < MOST_ROWS:
            raise InvalidInput(
                f"rows must ascend and lie below {MOST_ROWS:,}: row {row} came behind row {len(self._lengths) - 1}"
            )
        counted = Counter(words_of(title))
        counted.update(words_of(text))
        for word in self._stopwords & counted.keys():
            del counted[word]
        self._lengths.extend([0] * (row - len(self._lengths)))
        self._lengths.append(min(counted.total(), (1 << 32) - 1))
        self._words.extend(map(self._numbers.__getitem__, counted))
        self._rows.extend([row] * len(counted))
        try:
            self._counts.extend(counted.values())
        except OverflowError:
            del self._counts[len(self._rows) - len(counted) :]  # those that came before the one that is too large
            self._counts.extend(min(count, MOST_COUNT) for count in counted.values())
        if len(self._words) >= SORTED_AT_ONCE:
            self._spill()

    def write(self, rows: int | None = None) -> None:
        """Write the files; rows: how many the bundle (or segment) has, if the last ones were not added."""
        added = len(self._lengths)
        rows = added if rows is None else rows
        if rows < added:
            raise InvalidInput(f"row {added - 1} has words, but there are only {rows} rows")
        self._lengths.extend([0] * (rows - added))
        self._spill()
        new, prefix = self._new, self._prefix
        with (
            new.array(prefix + WORDS, np.dtype(np.uint64)) as words,
            new.array(prefix + STARTS, np.dtype(np.uint64)) as starts,
            new.array(prefix + ROWS, np.dtype(np.uint32)) as entries,
            new.array(prefix + COUNTS, np.dtype(np.uint8)) as counts,
        ):
            for postings in self._merged():
                word = np.ascontiguousarray(postings["word"])
                first = np.flatnonzero(np.append(True, word[1:] != word[:-1]))
                words.append(word[first])
                starts.append((first + entries.rows).astype(np.uint64))
                entries.append(np.ascontiguousarray(postings["row"]))
                counts.append(np.ascontiguousarray(postings["count"]))
            starts.append(np.array([entries.rows], np.uint64))
        lengths = np.array(self._lengths, np.uint32)
        new.save(prefix + LENGTHS, lengths)
        facts = {"rows": rows, "tokens": int(lengths.sum(dtype=np.uint64)), "stopwords": sorted(self._stopwords)}
        with new.file(prefix + FACTS) as out:
            out.write(json.dumps(facts, ensure_ascii=False).encode() + b"\n")

    def _spill(self) -> None:
        """Write what was gathered, sorted by (word, row), into a scratch file."""
        words = np.frombuffer(self._words, np.uint64) if self._words else np.empty(0, np.uint64)
        order = np.argsort(words, kind="stable")
        run = np.empty(len(words), _POSTING)
        run["word"] = words[order]
        run["row"] = np.array(self._rows, np.uint32)[order]
        run["count"] = np.array(self._counts, np.uint8)[order]
        bounds = np.arange(_PARTS, dtype=np.uint64) << np.uint64(64 - _PARTS.bit_length() + 1)
        with closing(OutputFile(Disk(), self._new.scratch(f"{self._prefix}lexical-{len(self._runs)}.tmp"))) as out:
            out.write(run.view(np.uint8).data)
            out.finish()
        self._runs.append(np.append(np.searchsorted(words[order], bounds), len(words)))
        self._words, self._rows, self._counts = array("Q"), array("I"), array("B")

    def _merged(self) -> Iterator[NDArray[Any]]:
        """All postings by (word, row), in pieces of whole words of about SORTED_AT_ONCE; words of one digest are one.

        Digests are even over their range, so a piece is as large as it should be, and a word that is in many passages.
        """
        sizes = np.sum([np.diff(run) for run in self._runs], axis=0)
        first = 0
        while first < _PARTS:
            last = max(first + 1, int(np.searchsorted(np.cumsum(sizes[first:]), SORTED_AT_ONCE, "right")) + first)
            pieces = [self._piece(number, run[first], run[last]) for number, run in enumerate(self._runs)]
            postings = np.concatenate(pieces)
            if len(postings):
                yield postings if len(pieces) == 1 else postings[np.argsort(postings["word"], kind="stable")]
            first = last

    def _piece(self, number: int, start: int, stop: int) -> NDArray[Any]:
        path = self._new.scratch(f"{self._prefix}lexical-{number}.tmp")
        try:
            found = np.fromfile(path, _POSTING, int(stop - start), offset=int(start) * _POSTING.itemsize)
        except OSError as error:
            raise storage_error("read", path, error) from error
        if len(found) != stop - start:
            raise StorageError(f"{path} was cut short while it was in use; check the disk, then build again")
        return found
