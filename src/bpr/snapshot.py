"""All that belongs to one generation of an opened bundle: its rows, codes and texts, and the search over them.

The retriever asks it, and swaps it as a whole when a newer generation is published. It knows arrays, not questions in
words (but for BM25's): encoder and reader stay with the retriever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import ArrayLike

from . import bundle
from .codes import Mask, RowMask
from .errors import EmptyBundle, InvalidInput
from .filters import Condition, Where, parse
from .index import CellIndex, SegmentedIndex
from .kernels import Limits
from .kinds import Plan, SegmentIndex
from .lexical import Ranked
from .passages import Passages
from .records import Hits
from .segments import Contents, load_transform
from .stages import CANDIDATES, search
from .transform import Transform

FILTERS_KEPT = 32  # an evaluated filter is a bit a passage
TWO_PLANE_CANDIDATES = 2000  # the sign plane has half of the bits, so the best passages lie somewhat deeper


def candidates_of(info: dict[str, Any]) -> int:
    """How many passages are reranked, by what a bundle says of itself."""
    return info.get("candidates") or (CANDIDATES if info["planes"] == 1 else TWO_PLANE_CANDIDATES)


class Seen(Protocol):
    """What the retriever asks of a generation: a `Snapshot`, or one whose rows lie on several machines (cluster/)."""

    @property
    def opened(self) -> bundle.Opened:
        """The bundle itself."""
        ...

    @property
    def info(self) -> dict[str, Any]:
        """What was published with it."""
        ...

    @property
    def passages(self) -> Passages:
        """The texts."""
        ...

    @property
    def index(self) -> SegmentIndex | SegmentedIndex:
        """The codes, where they are here."""
        ...

    @property
    def candidates(self) -> int:
        """How many are reranked."""
        ...

    @property
    def keeps_vectors(self) -> bool:
        """Whether there is a third stage."""
        ...

    @property
    def ranked(self) -> Callable[..., Hits]:
        """The k best rows; with `refined` the k best by kept vectors of the `depth` best (see Snapshot.ranked)."""
        ...

    def by_words(
        self, texts: Sequence[str], n: int, where: Where | None, mask: Mask | None, limits: Limits
    ) -> list[Ranked]:
        """Of each question up to n rows by BM25, and their scores."""
        ...

    def mask(self, where: Where | None, mask: Mask | None) -> Mask | None:
        """The rows that a filter and a mask both let through."""
        ...

    def fields(self) -> dict[str, set[str]]:
        """Every field of the metadata, as a filter spells it, and the kinds of its values."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """All that belongs to one generation of a bundle."""

    opened: bundle.Opened
    info: dict[str, Any]
    contents: Contents
    passages: Passages
    index: SegmentIndex | SegmentedIndex
    transform: Transform
    candidates: int
    found: dict[Condition, RowMask] = field(default_factory=dict)  # what filters keep, of the last few

    @classmethod
    def of(cls, opened: bundle.Opened) -> Snapshot:
        """Of an opened bundle that has passages."""
        info = opened.info
        if not info["rows"]:
            raise EmptyBundle(f"{opened.path} holds no passages: add some (bpr add), or build it again")
        found = Contents(opened)
        wanted = candidates_of(info)
        return cls(opened, info, found, found.passages, found.index(), load_transform(opened), wanted)

    def index_for(self, probes: float | None, target_recall: float | None) -> SegmentIndex | SegmentedIndex:
        """The index, looking at more or fewer of the codes than the bundle says; an exact one stays what it is."""
        if probes is None and target_recall is None:
            return self.index
        if probes is not None and target_recall is not None:
            raise InvalidInput("probes and target_recall say the same in two ways: give one of them")
        share = probes if probes is not None else Plan.of(self.info).probes_for(target_recall or 0.0)
        return self.index.with_probes(share) if isinstance(self.index, CellIndex | SegmentedIndex) else self.index

    def by_words(
        self, texts: Sequence[str], n: int, where: Where | None, mask: Mask | None, limits: Limits
    ) -> list[Ranked]:
        """Of each question up to n rows by BM25, and their scores."""
        return self.contents.by_words(texts, n, self.mask(where, mask), limits)

    def fields(self) -> dict[str, set[str]]:
        """Every field of the metadata, as a filter spells it, and the kinds of its values."""
        return self.contents.fields()

    @property
    def keeps_vectors(self) -> bool:
        """Whether there is a third stage."""
        return self.contents.vectors is not None

    def ranked(
        self,
        vectors: ArrayLike,
        k: int,
        depth: int,
        candidates: int | None,
        rerank: bool,
        *,
        refined: bool,
        where: Where | None = None,
        mask: Mask | None = None,
        probes: float | None = None,
        target_recall: float | None = None,
        **how: Any,
    ) -> Hits:
        """The k best rows; with `refined` the k best by kept vectors of the `depth` best."""
        asked, left = self.transform.questions(vectors), self.mask(where, mask)
        found = search(self.index_for(probes, target_recall), asked, depth, candidates, rerank, mask=left, **how)
        return self.contents.refined(found.rows, vectors, k) if refined else found

    def mask(self, where: Where | None, mask: Mask | None, checked: bool = False) -> Mask | None:
        """The rows that a filter (checked: that fits this bundle, as is known) and a mask both let through."""
        if where is None:
            return mask
        condition = parse(where)
        kept = self.found.get(condition)
        if kept is None:
            kept = self.contents.fulfilling(condition, checked)
            while len(self.found) >= FILTERS_KEPT:
                self.found.pop(next(iter(self.found)), None)
            self.found[condition] = kept
        return kept if mask is None else kept & (mask if isinstance(mask, RowMask) else RowMask.of(mask))
