"""A bundle as a store of documents: it may not be there yet, or be empty, and whoever writes to it is seen at once.

The stores of the frameworks call it. It knows bpr.build, add, delete and open; it must not know any framework.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..builder import build
from ..encoder import Encoder, Encodes
from ..errors import EmptyBundle, MissingBundle
from ..filters import Where
from ..live import add, delete
from ..records import Passage
from ..retriever import Retriever
from ..retriever import open as open_bundle


class Store:
    """Passages in the bundle at `path`, which the first write makes. Threads may share one."""

    def __init__(self, path: str | Path, *, model: str | Path | Encodes | None = None, **built: Any) -> None:
        """model: as for `bpr.open` (None: the bundle's own; for a new one "mini"). built: as for `bpr.build`."""
        self.path, self.model, self.built = Path(path), model, built
        self._encoder: Encodes | None = None  # of the bundle that was made here: loaded once
        self._retriever: Retriever | None = None
        self._opening, self._writing = threading.Lock(), threading.Lock()  # threads wait; other processes are refused

    def retriever(self) -> Retriever | None:
        """What searches the newest generation of the bundle; None where there are no passages."""
        with self._opening:
            try:
                if self._retriever is None:
                    self._retriever = open_bundle(self.path, model=self._encoder or self.model)
                else:
                    self._retriever.reload()
            except (MissingBundle, EmptyBundle):
                self._retriever = None
            return self._retriever

    def __len__(self) -> int:
        """How many passages."""
        now = self.retriever()
        return 0 if now is None else len(now)

    def add(self, passages: Sequence[Passage], *, upsert: bool = False) -> int:
        """Add passages, all or none; returns their number. upsert: those whose ids are there already are replaced."""
        if not passages:
            return 0
        with self._writing:
            now = self.retriever()
            model = (self._encoder or self.model) if now is None else now.encoder
            try:
                return add(self.path, passages, upsert=upsert, model=model)
            except MissingBundle:
                given = self.model or "mini"
                self._encoder = Encoder.open(given) if isinstance(given, str | Path) else given
                return build(passages, self.path, model=self._encoder, **self.built)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete those of these passages that there are; returns their number."""
        with self._writing:
            there = [each.id for each in self.get(ids)]
            return delete(self.path, there) if there else 0

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """The passages with these ids, in their order, without those that there are not."""
        now = self.retriever()
        if now is None:
            return []
        passages = now.passages
        return passages.get([row for row in passages.find_all(list(dict.fromkeys(ids))) if row is not None])

    def passages(self, where: Where | None = None) -> Iterator[Passage]:
        """All passages that fulfil the filter, in the order of the bundle."""
        now = self.retriever()
        return iter(()) if now is None else now.filtered(where)
