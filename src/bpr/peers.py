"""Other people's libraries as they are, without the protocol of an index: the only importer of faiss and usearch.

bench.py races them; baselines.py builds on Faiss. Knows codes as arrays; must not know bundles, text or models. Both
come with the extra `baselines`, and whoever asks for one that is not there is told so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import Codes
from .errors import InvalidInput
from .records import Hits

INSTALL = 'pip install "binary-passage-retriever[baselines]"'


def faiss() -> Any:
    """The module; a clear word where it is missing."""
    try:
        import faiss as module
    except ImportError as error:
        raise InvalidInput(f"Faiss is not installed: {INSTALL}") from error
    return module


class FaissFlat:
    """Faiss's exhaustive binary index. `heap`: its two ways to select, of which the better depends on the machine."""

    def __init__(self, codes: Codes) -> None:
        """codes: uint8[n, bits/8]; copied, as Faiss does."""
        self.codes = codes
        self._index = faiss().IndexBinaryFlat(codes.shape[1] * 8)
        self._index.add(codes)

    def candidates(
        self, questions: Codes, l: int, *, threads: int, heap: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The l nearest rows: int64[q, l], int32[q, l]; ties in no particular order."""
        faiss().omp_set_num_threads(threads)
        self._index.use_heap = heap
        distances, rows = self._index.search(questions, l)
        return rows, distances

    def two_stages(self, vectors: NDArray[np.float32], l: int, k: int, *, threads: int, heap: bool) -> Hits:
        """The paper's search as its authors' code does it: Faiss, then the candidates' bits as floats in numpy."""
        rows, _ = self.candidates(np.packbits(vectors > 0, axis=1), l, threads=threads, heap=heap)
        passages = np.unpackbits(self.codes[rows], axis=-1).astype(np.float32) * 2 - 1  # [q, l, bits]
        scores = np.einsum("qlb,qb->ql", passages, vectors)
        best = np.argsort(-scores, axis=1)[:, :k]
        return Hits(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))


def usearch_exact(
    codes: Codes, questions: Codes, l: int, *, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """usearch's exhaustive search over bits: int64[q, l], int32[q, l]."""
    try:
        from usearch.index import MetricKind, ScalarKind, search
    except ImportError as error:
        raise InvalidInput(f"usearch is not installed: {INSTALL}") from error
    found = search(codes, questions, l, MetricKind.Hamming, exact=True, threads=threads, dtype=ScalarKind.B1)
    return np.atleast_2d(found.keys).astype(np.int64), np.atleast_2d(found.distances).astype(np.int32)
