"""Hard negatives: passages that look like an answer and are none, found by BM25 or by a trained model.

`bpr mine` calls it. The only importer of bm25s. Knows passages and examples; nothing of encoders, so torch is not
needed here: a model's rankings come in as row numbers from any search of bpr.

Never a negative: a positive of the question, and a passage in whose text one of its answers stands (answers.py). Where
an example has no answers only its positives are left out, so a passage that answers it unbeknown may slip in.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..answers import Answers, Text
from ..errors import InvalidInput
from ..kernels import Limits
from ..records import Passage
from .data import Example

if TYPE_CHECKING:
    from ..records import Progress

DEPTH, POOL = 30, 100
QUESTIONS_AT_ONCE = 2048  # between two calls of `progress`
LONGEST_WORD = 64  # what is longer is no word, and each would be one more of the vocabulary

_WORD = re.compile(r"\w\w+")
# Those of Lucene. Their weight in BM25 is next to nothing, and their lists of passages are the longest by far.
_STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)


def mine_bm25(
    passages: Iterable[Passage],
    examples: Iterable[Example],
    *,
    depth: int = DEPTH,
    pool: int = POOL,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Example]:
    """The examples, in their order, each with up to `depth` negatives: the best of the first `pool` of BM25.

    passages: where negatives may come from; leave out what must not be seen in training. threads: as in kernels.Limits.
    Memory: about 5 KB a passage. Ties stand in the order of the passages, so the result does not depend on threads.
    """
    _check(depth, pool)
    say = progress or (lambda what, done, total: None)
    pile, asked = list(passages), list(examples)
    if not pile:
        raise InvalidInput("there are no passages to take negatives from")
    ranked = _Bm25(pile, threads, say)
    picker = _Picker(pile, depth)
    for start in range(0, len(asked), QUESTIONS_AT_ONCE):
        batch = asked[start : start + QUESTIONS_AT_ONCE]
        for example, rows in zip(batch, ranked.rows([each.question for each in batch], pool), strict=True):
            yield picker.pick(example, rows)
        say("mining", start + len(batch), len(asked))


def mine_ranked(
    examples: Iterable[Example],
    ranked: NDArray[np.integer[Any]],
    passages: Iterable[Passage],
    *,
    depth: int = DEPTH,
) -> Iterator[Example]:
    """The examples, each with up to `depth` negatives: the first of what a model ranked for it.

    ranked: int[examples, pool], row numbers of `passages`, best first, as any search of bpr gives them.
    """
    _check(depth, 1)
    pile, asked = list(passages), list(examples)
    if ranked.ndim != 2 or ranked.dtype.kind not in "iu" or len(ranked) != len(asked):
        raise InvalidInput(f"ranked must be rows of whole numbers for {len(asked)} examples, not {_shape(ranked)}")
    if ranked.size and not 0 <= int(ranked.min()) <= int(ranked.max()) < len(pile):
        raise InvalidInput(
            f"ranked holds rows {ranked.min()} to {ranked.max()}, but the passages are 0 to {len(pile) - 1}"
        )
    picker = _Picker(pile, depth)
    for example, rows in zip(asked, ranked, strict=True):
        yield picker.pick(example, rows.tolist())


def _check(depth: int, pool: int) -> None:
    if depth < 1 or pool < 1:
        raise InvalidInput(f"depth and pool must be at least 1; got {depth} and {pool}")


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


class _Picker:
    """Takes negatives from ranked rows. Each passage's text is taken apart once, when the first question asks."""

    def __init__(self, passages: Sequence[Passage], depth: int) -> None:
        self._ids = [passage.id for passage in passages]
        self._texts = [Text(passage.text) for passage in passages]
        self._depth = depth

    def pick(self, example: Example, rows: Iterable[int]) -> Example:
        """The example with its negatives, best first."""
        answers, positives = Answers(example.answers), {*example.positives}
        negatives: dict[str, None] = {}
        for row in rows:
            if self._ids[row] not in positives and not answers.found_in(self._texts[row]):
                negatives[self._ids[row]] = None
                if len(negatives) == self._depth:
                    break
        return replace(example, negatives=tuple(negatives))


class _Bm25:
    """BM25 over titles and texts: words of two letters or more in lower case, without stopwords.

    Not stemmed: a stemmer would be one more compiled package, for one language, and what is wanted here are passages
    that share many words with the question, not all that may be relevant.
    """

    def __init__(self, passages: Sequence[Passage], threads: int | None, say: Progress) -> None:
        try:
            import numba  # first: bm25s remembers for good whether numba was there when it was imported
            import bm25s  # isort: skip; both here, because they take seconds
        except ImportError as error:
            raise InvalidInput(
                f'BM25 needs {error.name}: pip install "binary-passage-retriever[train]", or mine with a model'
            ) from None
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG
        self._threads = min(Limits(threads).thread_count(), numba.get_num_threads())  # numba refuses more
        self._vocabulary: dict[str, int] = {}
        rows = []
        for row, passage in enumerate(passages):
            rows.append([self._number(word) for word in _words(f"{passage.title} {passage.text}")])
            if row % 4096 == 0:
                say("reading words", row, len(passages))
        if not any(rows):
            raise InvalidInput("the passages hold no words, so BM25 has nothing to look for")
        say("indexing", 0, None)
        self._size = len(passages)
        self._index = bm25s.BM25(backend="numba")
        self._number("")  # stands for a question without known words; bm25s knows no empty one
        self._index.index((rows, self._vocabulary), show_progress=False)

    def rows(self, questions: Sequence[str], pool: int) -> Iterator[list[int]]:
        """For each question the rows of up to `pool` passages that share a word with it, best first."""
        words = [[self._vocabulary[word] for word in _words(each) if word in self._vocabulary] for each in questions]
        found, scores = self._index.retrieve(
            [each or [self._vocabulary[""]] for each in words],
            k=min(pool, self._size),
            n_threads=self._threads,
            show_progress=False,
        )
        for rows, points in zip(found, scores, strict=True):
            order = np.lexsort((rows, -points))
            yield rows[order][points[order] > 0].tolist()

    def _number(self, word: str) -> int:
        return self._vocabulary.setdefault(word, len(self._vocabulary))


def _words(text: str) -> list[str]:
    found = _WORD.findall(text.lower())
    return [word for word in found if word not in _STOPWORDS and len(word) <= LONGEST_WORD]
