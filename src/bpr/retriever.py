"""An opened bundle that finds passages: index + passages + the transform of questions. Composes; computes nothing.

The edges (bpr.open, the command line, the service) call it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import bundle
from .builder import MAGNITUDES, SIGNS, load_transform
from .codes import Mask, Questions, as_array
from .errors import EmptyBundle, InvalidInput, UnsupportedFormat
from .index import ScanIndex
from .kernels import Cancel
from .passages import Passages
from .records import Hit, Hits
from .stages import CANDIDATES, search

TWO_PLANE_CANDIDATES = 2000  # the sign plane has half of the bits, so the best passages lie somewhat deeper


def open(path: str | Path, *, verify: Literal["auto", "all", "size"] = "auto") -> Retriever:
    """Open a bundle for searching; its files are memory-mapped.

    verify: "auto" checks every byte of a bundle up to 4 GB now, and of a larger one the signs now and the rest when it
    is first read; "all" checks every byte now; "size" checks sizes only.
    """
    return Retriever(bundle.open(path, verify=verify))


class Retriever:
    """Finds passages. Threads may share one; it stays on its snapshot when the bundle is rewritten.

    index: the codes; passages: the texts; candidates: how many are reranked unless a search says otherwise.
    """

    def __init__(self, opened: bundle.Opened) -> None:
        """Made by `bpr.open`."""
        if opened.info.get("kind") != "scan":
            raise UnsupportedFormat(f"{opened.path} is of kind {opened.info.get('kind')!r}: a newer bpr may know it")
        if not opened.info["rows"]:
            raise EmptyBundle(f"{opened.path} holds no passages: build it again from a file that has some")
        self.bundle = opened
        self.info = opened.info
        self.passages = Passages(opened)
        self.index = _index(opened)
        self.candidates = CANDIDATES if self.info["planes"] == 1 else TWO_PLANE_CANDIDATES
        self._transform = load_transform(opened)

    def __enter__(self) -> Retriever:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Let go of the bundle. Its mapped files are given back with the last thing that refers to them."""
        self.bundle.close()

    def __len__(self) -> int:
        """How many passages."""
        return int(self.info["rows"])

    @overload
    def search(self, question: str | None = None, *, vectors: ArrayLike, **how: Any) -> list[Hit] | list[list[Hit]]: ...
    @overload
    def search(self, question: str, **how: Any) -> list[Hit]: ...

    def search(self, question: Any = None, *, vectors: Any = None, **how: Any) -> Any:
        """The best passages as Hits with their texts: list[Hit] for one question, a list of lists for several.

        vectors: float[dimensions] or float[q, dimensions], of the same model as the passages' vectors.
        The rest is as for `rank`.
        """
        if question is not None or vectors is None:
            raise InvalidInput(
                "this bundle was built from vectors of yours and cannot read text: pass vectors=… of your own encoder"
            )
        asked = as_array(vectors)
        ranked = self.rank(asked[None] if asked.ndim == 1 else asked, **how)
        hits = [self._hits(rows, scores) for rows, scores in zip(*ranked, strict=True)]
        return hits[0] if asked.ndim == 1 else hits

    def rank(
        self,
        vectors: ArrayLike,
        *,
        k: int = 20,
        candidates: int | Literal["all"] | None = None,
        rerank: bool = True,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Hits:
        """The best rows without their texts: Hits(rows int64[q, k], scores float32[q, k]).

        vectors: float[q, dimensions]. candidates: how many are reranked (default: this bundle's; at least k), "all":
        every passage is scored. The rest is as for `bpr.search`.
        """
        l = self.candidates if candidates is None else candidates
        return search(
            self.index,
            self.questions(vectors),
            k,
            None if l == "all" else max(l, k) if candidates is None else l,
            rerank,
            mask=mask,
            threads=threads,
            deadline=deadline,
            cancel=cancel,
        )

    def questions(self, vectors: ArrayLike) -> Questions:
        """Question vectors as this bundle's index needs them: centred, rotated and scaled as its passages were."""
        return self._transform.questions(vectors)

    def _hits(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[Hit]:
        found = zip(self.passages.get(rows), scores, strict=True)
        return [Hit(p.id, p.title, p.text, float(score), rank, p.meta) for rank, (p, score) in enumerate(found, 1)]


def _index(opened: bundle.Opened) -> ScanIndex:
    signs = opened.array(SIGNS)
    if opened.info["planes"] == 1:
        return ScanIndex(signs)
    view = opened.view(MAGNITUDES)
    view.advise_random()  # candidates are scattered: reading ahead would fetch what nobody asked for

    def touch(rows: NDArray[np.int64] | None) -> None:
        if rows is None:
            view.require_all()
        else:
            view.require_rows(rows)

    low, high = opened.info["levels"]
    return ScanIndex(signs, view.array, (low, high), touch)
