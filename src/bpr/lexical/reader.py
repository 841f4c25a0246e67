"""The words of an open bundle: which rows have a word, and how often. segments.py opens them, bm25.py asks them.

Opening reads lexical.json only. The rest stays on disk until a question needs it; it is verified then, and nothing in
it is used as a place before that place is known to exist.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptBundle
from .layout import COUNTS, FACTS, FILES, LENGTHS, ROWS, STARTS, WORDS

if TYPE_CHECKING:
    from .. import bundle


class Lexical:
    """The words of an open bundle, or of one segment of it. Threads may share one.

    tokens: the words of all its passages. stopwords: those that were left out.
    """

    def __init__(self, opened: bundle.Opened, prefix: str = "") -> None:
        """Map the files behind the prefix, and see that they belong together."""
        self._prefix = prefix
        try:
            facts = json.loads(opened.array(prefix + FACTS).tobytes())
            self._rows, self.tokens = _size(facts["rows"]), _size(facts["tokens"])
            self.stopwords = frozenset(map(str, facts["stopwords"]))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise self.corrupt(f"{FACTS} does not say what is stored ({error!r})") from error
        views = [opened.view(prefix + name) for name in FILES[1:]]
        self._words, self._starts, self._entries, self._counts, self._lengths = views
        words, postings = len(self._words.array), len(self._entries.array)
        shapes = (
            (WORDS, np.uint64, words),
            (STARTS, np.uint64, words + 1),
            (ROWS, np.uint32, postings),
            (COUNTS, np.uint8, postings),
            (LENGTHS, np.uint32, self._rows),
        )
        for view, (name, dtype, size) in zip(views, shapes, strict=True):
            if view.array.dtype != dtype or view.array.shape != (size,):
                raise self.corrupt(f"{name} and the other files of words do not belong together")

    def __len__(self) -> int:
        """How many rows; those of the bundle or segment must be as many."""
        return self._rows

    def lengths(self) -> NDArray[np.uint32]:
        """How many words each row has: uint32[rows]."""
        self._lengths.require_all()
        return self._lengths.array

    def find(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Where the postings of words begin and where they end, int64[2, m]; a word that no passage has has none."""
        self._words.require_all()
        words = self._words.array
        at = np.searchsorted(words, numbers)
        known = at < len(words)
        known[known] = words[at[known]] == numbers[known]
        rows = at[known].astype(np.int64)
        self._starts.require_rows(np.stack((rows, rows + 1)))
        places = np.zeros((2, len(numbers)), np.uint64)
        places[:, known] = self._starts.array[rows], self._starts.array[rows + 1]
        if (places[0] > places[1]).any() or (places[1] > len(self._entries.array)).any():
            raise self.corrupt(f"{STARTS} points outside {ROWS}")
        return places.astype(np.int64)

    def postings(self, start: int, stop: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """The rows of a word, and how often each has it."""
        for view in (self._entries, self._counts):
            head = view.entry.bytes - view.array.nbytes
            width = view.array.itemsize
            view.require_bytes(head + start * width, head + stop * width)
        rows = self._entries.array[start:stop]
        if len(rows) and int(rows[-1]) >= self._rows:  # the last is the largest, if they ascend; bm25.py sees to that
            raise self.corrupt(f"{ROWS} names rows that are not there")
        return rows, self._counts.array[start:stop]

    def corrupt(self, what: str) -> CorruptBundle:
        """What to raise."""
        return CorruptBundle(f"{self._prefix}{what}; restore or rebuild the bundle")


def _size(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 61:
        raise ValueError("not a size")
    return number
