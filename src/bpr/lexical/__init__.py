"""BM25 over the words of passages, beside their codes in a bundle.

    out = LexicalOut(new, prefix)                       # the builder, while passages stream; new: a bundle.Writer
    out.add(row, passage.title, passage.text)
    out.write()

    segment = Lexical(opened, prefix)                   # the retriever; if stored(opened, prefix)
    search([segment, …], questions, n, mask=alive)      # of each question: rows and scores, the best first

It knows bundles, texts and rows; it must not know codes or vectors. What is stored are counts, not scores: how rare a
word is and how long passages are is summed over all segments when a question comes, so a bundle scores the same however
many segments it has. Deleted rows count in these sums until their segment is written anew; a mask keeps them from being
found.

layout.py says what is stored, and the limits.
"""

from __future__ import annotations

from .bm25 import K1, B, Ranked, search
from .layout import FILES, stored
from .reader import Lexical
from .words import ENGLISH, words_of
from .writer import LexicalOut

__all__ = ["ENGLISH", "FILES", "K1", "B", "Lexical", "LexicalOut", "Ranked", "search", "stored", "words_of"]
