"""The baselines of the paper's tables, each behind the protocol of an index (extra `baselines`).

compare/ and the tests call it; Faiss itself is behind peers.py. Two kinds of them:

    FloatIndex      a Faiss index over float vectors (flat, HNSW, PQ, RaBitQ): the scores it finds are final
    CodeIndex       bits made of float vectors afterwards (LSH, signs, two bits), or a trained model's own: our scan,
                    and our rerank unless the caller wants none; FaissCodeIndex has its candidates from Faiss

Each knows how questions come to it, how many bytes a search needs, and how it lies on disk. Random numbers come from a
seed. Ties at the end of a list fall as Faiss lets them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .codes import (
    LARGE,
    LEVELS,
    Floats,
    Mask,
    Questions,
    blocks,
    checked_codes,
    checked_vectors,
    finite,
    pack,
    pack_largest,
)
from .disk import storage_error
from .errors import Cancelled, DeadlineExceeded, InvalidInput, StorageError
from .index import Planes, ScanIndex
from .index.protocol import Index
from .kernels import Cancel, Limits
from .peers import FaissFlat, faiss
from .transform import Transform

QUESTIONS_AT_ONCE = 256  # that Faiss is asked between two looks at the deadline
# The paper's HNSW, as its authors' code has it. So many links are more than a small corpus can use (compare/rows.py).
PAPER_LINKS, PAPER_EF_CONSTRUCTION, PAPER_EF_SEARCH = 512, 200, 128
CENTROIDS = 256  # of a sub-vector of PQ: one byte
QUESTION_BITS = 8  # of RaBitQ: on 20,000 rows 0 (floats) found the same and took 15 to 110 times as long
SETTINGS, FAISS_FILE = "settings.json", "index.faiss"
TRANSFORM = ("mean", "rotation", "scales")


class TooFew(InvalidInput):
    """There are not enough passages to make this index of."""


class Baseline(Index, Protocol):
    """An index of a comparison."""

    @property
    def nbytes(self) -> int:
        """All that a search needs: codes or vectors, links, centroids, rotations."""
        ...

    def questions(self, vectors: ArrayLike) -> Questions:
        """Question vectors as the index takes them: float[q, dimensions] → Questions."""
        ...

    def save(self, folder: Path) -> None:
        """Write it into an empty folder; `load` reads it."""
        ...


# ── Floats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class FloatIndex:
    """A Faiss index over float vectors. norm: the longest passage's, where it measures L2 in one more dimension."""

    scores_are_final = True
    planes = None

    def __init__(self, index: Any, norm: float | None = None) -> None:
        """The index holds its vectors already."""
        self._index = index
        self._norm = norm

    def __len__(self) -> int:
        """How many passages."""
        return int(self._index.ntotal)

    @property
    def nbytes(self) -> int:
        """As many as Faiss writes to disk."""
        sizes: list[int] = []
        faiss().write_index(self._index, faiss().PyCallbackIOWriter(lambda some: sizes.append(len(some))))
        return sum(sizes)

    def questions(self, vectors: ArrayLike) -> Questions:
        """As they are."""
        return Questions(checked_vectors(vectors))

    def candidates(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The l best rows with their inner products (or what the index thinks they are): int64[q, l], float32[q, l]."""
        asked = questions if isinstance(questions, Questions) else self.questions(questions)
        dimensions = self._index.d - (self._norm is not None)
        if asked.vectors.shape[1] != dimensions:
            raise InvalidInput(f"the questions have {asked.vectors.shape[1]} dimensions, the index has {dimensions}")
        _refuse_mask(mask)
        limits, found = Limits(threads, deadline, cancel), []
        faiss().omp_set_num_threads(limits.thread_count())
        for first in range(0, max(len(asked), 1), QUESTIONS_AT_ONCE):
            _check(limits)
            found.append(self._best(asked.vectors[first : first + QUESTIONS_AT_ONCE], min(l, len(self))))
        rows, scores = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def _best(self, vectors: NDArray[np.float32], l: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if self._norm is None:
            scores, rows = self._index.search(vectors, l)
            return rows, scores
        asked = np.hstack([vectors, np.zeros((len(vectors), 1), np.float32)])
        far, rows = self._index.search(asked, l)
        lost = np.flatnonzero((rows < 0).any(axis=1))  # the graph led to fewer than l: look at all passages instead
        if len(lost):
            far[lost], rows[lost] = self._index.storage.search(asked[lost], l)
        # ‖(q, 0) − (p, √(norm² − ‖p‖²))‖² = ‖q‖² + norm² − 2⟨q, p⟩
        return rows, ((vectors**2).sum(axis=1, keepdims=True) + self._norm**2 - far) / 2

    def save(self, folder: Path) -> None:
        """Faiss's own file, and the norm."""
        with _writing(folder):
            faiss().write_index(self._index, str(folder / FAISS_FILE))
            (folder / SETTINGS).write_text(json.dumps({"kind": "float", "norm": self._norm}))


def flat(vectors: ArrayLike) -> FloatIndex:
    """DPR: every inner product of float[n, dimensions], exactly."""
    floats = _passages(vectors)
    index = faiss().IndexFlatIP(floats.shape[1])
    index.add(floats)
    return FloatIndex(index)


def hnsw(
    vectors: ArrayLike,
    links: int = PAPER_LINKS,
    ef_construction: int = PAPER_EF_CONSTRUCTION,
    ef_search: int = PAPER_EF_SEARCH,
) -> FloatIndex:
    """DPR + HNSW. It walks by L2 distance, whose order is that of inner products where all passages have one length.

    So a dimension is added that completes them to it (`completed`).
    """
    whole, norm = completed(_passages(vectors))
    index = faiss().IndexHNSWFlat(whole.shape[1], links, faiss().METRIC_L2)
    index.hnsw.efConstruction, index.hnsw.efSearch = ef_construction, ef_search
    index.add(whole)
    return FloatIndex(index, norm)


def pq(vectors: ArrayLike, size: int) -> FloatIndex:
    """DPR + product quantisation: `size` sub-vectors of one byte each, or as many as divide the dimensions."""
    floats = _passages(vectors)
    if len(floats) < CENTROIDS:
        raise TooFew(f"PQ learns {CENTROIDS} centroids, and there are only {len(floats)} passages")
    dimensions = floats.shape[1]
    parts = next(each for each in range(min(size, dimensions), 0, -1) if dimensions % each == 0)
    index = faiss().IndexPQ(dimensions, parts, 8, faiss().METRIC_INNER_PRODUCT)
    index.pq.cp.min_points_per_centroid = 1  # a small corpus is no reason for lines on stderr
    index.train(floats)
    index.add(floats)
    return FloatIndex(index)


def rabitq(vectors: ArrayLike, bits: int, width: int | None = None, seed: int = 0) -> FloatIndex:
    """RaBitQ as Faiss has it: a random rotation, `bits` a dimension, and a few floats for each passage beside them.

    width: dimensions after the rotation (default: as many as before); more of them make longer codes.
    """
    floats = _passages(vectors)
    dimensions = floats.shape[1]
    turn = faiss().RandomRotationMatrix(dimensions, width or dimensions)
    turn.init(seed)
    inner = faiss().IndexRaBitQ(width or dimensions, faiss().METRIC_INNER_PRODUCT, bits)
    inner.qb = QUESTION_BITS
    index = faiss().IndexPreTransform(turn, inner)
    index.train(floats)
    index.add(floats)
    return FloatIndex(index)


def completed(vectors: Floats) -> tuple[NDArray[np.float32], float]:
    """Passages in one more dimension, in which all are as long as the longest, and that length.

    p → (p, √(norm² − ‖p‖²)), q → (q, 0): ⟨q, p⟩ stays what it was, and so angle, L2 distance and inner product rank
    alike (Neyshabur & Srebro's simple LSH; they also divide by the norm, which no sign and no order sees).
    """
    squares = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    longest = float(squares.max(initial=0.0))
    rest = np.sqrt(np.maximum(longest - squares, 0))
    return np.hstack([vectors, rest[:, None]]).astype(np.float32), float(np.sqrt(longest))


# ── Bits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class CodeIndex(ScanIndex):
    """Codes and how questions come to them: `transform`, after the extra dimension where passages were `completed`."""

    def __init__(self, planes: Planes, transform: Transform | None = None, completes: bool = False) -> None:
        """planes: bits of all passages. transform: None for a model that was trained for bits."""
        super().__init__(planes.signs, planes.magnitudes, planes.levels, planes.touch)
        self.transform = Transform.identity(planes.bits) if transform is None else transform
        self.completes = completes

    @property
    def nbytes(self) -> int:
        """The planes, and the transform if there is one."""
        return self.planes.nbytes + sum(each.nbytes for each in self._transform_arrays().values())

    def questions(self, vectors: ArrayLike) -> Questions:
        """Centred, rotated and scaled as the passages were."""
        floats = checked_vectors(vectors)
        if self.completes:
            floats = np.hstack([floats, np.zeros((len(floats), 1), floats.dtype)])
        return self.transform.questions(floats)

    def save(self, folder: Path) -> None:
        """Each array as a file."""
        planes = {"signs": self.planes.signs, "magnitudes": self.planes.magnitudes}
        arrays = {name: each for name, each in planes.items() if each is not None} | self._transform_arrays()
        levels = None if self.planes.levels is None else list(self.planes.levels)
        facts = {"kind": type(self).__name__, "levels": levels, "completes": self.completes}
        with _writing(folder):
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
            (folder / SETTINGS).write_text(json.dumps(facts))

    def _transform_arrays(self) -> dict[str, NDArray[np.float32]]:
        if self.transform.is_identity:
            return {}
        return {name: getattr(self.transform, name) for name in TRANSFORM}


class FaissCodeIndex(CodeIndex):
    """The same codes with candidates from Faiss's exhaustive binary index, which keeps a copy of the signs."""

    @cached_property
    def _faiss(self) -> FaissFlat:
        return FaissFlat(self.planes.signs)

    @property
    def nbytes(self) -> int:
        """With Faiss's copy: the rerank reads ours."""
        return super().nbytes + self.planes.signs.nbytes

    def candidates(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The l nearest rows, by (distance, row)."""
        codes = questions.codes if isinstance(questions, Questions) else checked_codes(questions)
        if codes.shape[1] * 8 != self.planes.bits:
            raise InvalidInput(f"the questions have {codes.shape[1] * 8} bits, the index has {self.planes.bits}")
        _refuse_mask(mask)
        limits = Limits(threads, deadline, cancel)
        _check(limits)
        rows, far = self._faiss.candidates(codes, min(l, len(self)), threads=limits.thread_count(), heap=True)
        order = np.lexsort((rows, far), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(far, order, axis=1)


def lsh(vectors: ArrayLike, size: int, seed: int = 0) -> CodeIndex:
    """DPR + simple LSH (Neyshabur & Srebro's): signs of 8·`size` random projections of the completed vectors."""
    whole, _ = completed(_passages(vectors))
    dimensions, bits = whole.shape[1], 8 * size
    random = np.random.default_rng(seed).standard_normal((dimensions, bits), np.float32)
    projection = Transform(np.zeros(dimensions, np.float32), random, np.ones(bits, np.float32))
    return CodeIndex(_planes(whole, projection), projection, completes=True)


def signs(vectors: ArrayLike, size: int, seed: int = 0) -> CodeIndex:
    """Rotate and sign: 8·`size` bits of the centred and rotated vectors; the question that scores stays a float."""
    floats = _passages(vectors)
    turned = Transform.fit(floats, center=True, rotate=True, bits=8 * size, seed=seed)
    return CodeIndex(_planes(floats, turned), turned)


def two_bits(vectors: ArrayLike, size: int, seed: int = 0) -> CodeIndex:
    """The same with two planes of 4·`size` bits: the best that bpr makes of vectors that were not trained for bits."""
    floats = _passages(vectors)
    turned = Transform.fit(floats, center=True, rotate=True, bits=4 * size, seed=seed)
    return CodeIndex(_planes(floats, turned, round(4 * size * LARGE)), turned)


def trained(planes: Planes) -> CodeIndex:
    """BPR: the codes of a model that was trained for them."""
    return CodeIndex(planes)


def signs_only(planes: Planes) -> CodeIndex:
    """The first plane of a model that was trained for two."""
    return CodeIndex(Planes(planes.signs))


def faiss_binary(planes: Planes) -> FaissCodeIndex:
    """BPR with Faiss's binary index in the place of our scan."""
    return FaissCodeIndex(planes)


def _planes(vectors: Floats, transform: Transform, large: int | None = None) -> Planes:
    """Codes of the transformed vectors, block by block; large: how many of a code's values are on the upper level."""
    floats = (transform.passages(vectors[rows]) for rows in blocks(len(vectors)))
    if large is None:
        return Planes(np.concatenate([pack(some) for some in floats]))
    made = [(pack(some), pack_largest(some, large)) for some in floats]
    plain, magnitudes = (np.concatenate(plane) for plane in zip(*made, strict=True))
    return Planes(plain, magnitudes, LEVELS)


# ── From and to disk ─────────────────────────────────────────────────────────────────────────────────────────────────


def load(folder: Path) -> Baseline:
    """What `save` wrote; codes stay on disk until they are read, as in a bundle."""
    try:
        facts = json.loads((folder / SETTINGS).read_text())
        if facts["kind"] == "float":
            return FloatIndex(faiss().read_index(str(folder / FAISS_FILE)), facts["norm"])
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in folder.glob("*.npy")}
    except OSError as error:
        raise storage_error("read", folder, error) from error
    levels = facts["levels"] and (float(facts["levels"][0]), float(facts["levels"][1]))
    planes = Planes.of(arrays["signs"], arrays.get("magnitudes"), levels)
    transform = Transform(*(np.array(arrays[name]) for name in TRANSFORM)) if "mean" in arrays else None
    kind = FaissCodeIndex if facts["kind"] == FaissCodeIndex.__name__ else CodeIndex
    return kind(planes, transform, facts["completes"])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Around writes into a folder: what the system refuses is a StorageError; Faiss says it in its own words."""
    try:
        yield
    except OSError as error:
        raise storage_error("write", folder, error) from error
    except RuntimeError as error:
        raise StorageError(f"Faiss cannot write into {folder}: {error}") from error


# ── Checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _passages(vectors: ArrayLike) -> NDArray[np.float32]:
    """float32[n, dimensions], n > 0, as Faiss takes them."""
    floats = checked_vectors(vectors)
    if not len(floats):
        raise TooFew("there are no passages to make an index of")
    found: NDArray[np.float32] = finite(np.ascontiguousarray(floats, np.float32))
    return found


def _refuse_mask(mask: Mask | None) -> None:
    if mask is not None:
        raise InvalidInput("a baseline of Faiss looks at all of its passages: it takes no mask")


def _check(limits: Limits) -> None:
    if limits.cancel is not None and limits.cancel.flag[0]:
        raise Cancelled("the search was cancelled")
    if limits.deadline is not None and time.monotonic() >= limits.deadline:
        raise DeadlineExceeded("the search did not end before its deadline")
