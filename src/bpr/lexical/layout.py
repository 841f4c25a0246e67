"""What is stored of the words of passages, and what the writer and the reader of words must agree on.

Files, each behind the caller's prefix:

    lexical.json           rows, tokens (words of all passages), and the words that are left out
    lexical-words.npy      uint64[words]: a digest of each different word, ascending; the word itself is not kept
    lexical-starts.npy     uint64[words + 1]: where the postings of each word begin
    lexical-rows.npy       uint32[postings]: the rows that have the word, ascending
    lexical-counts.npy     uint8[postings]: how often, at most 255
    lexical-lengths.npy    uint32[rows]: how many words each passage has

Limits: 2^32 rows a segment; a word counts at most 255 times in a passage. Two words of one digest would be one word: of
a hundred million different ones that is a chance of 3 in 10,000 for a single pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import bundle

FACTS, WORDS, STARTS = "lexical.json", "lexical-words.npy", "lexical-starts.npy"
ROWS, COUNTS, LENGTHS = "lexical-rows.npy", "lexical-counts.npy", "lexical-lengths.npy"
FILES = (FACTS, WORDS, STARTS, ROWS, COUNTS, LENGTHS)

MOST_ROWS, MOST_COUNT = 1 << 32, 255


def stored(opened: bundle.Opened, prefix: str = "") -> bool:
    """Whether the bundle has words at all."""
    return prefix + FACTS in opened.manifest.files
