"""A retriever whose rows lie in shards on other machines: scatter, gather, and the same total order as on one machine.

`bpr serve --ray` puts the HTTP service in front of it. It knows shards and how to merge what they found; whom it asks
is a `Fleet`, by its protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import bundle, columns, shards
from ..codes import Mask
from ..errors import DeadlineExceeded, InvalidInput
from ..filters import KINDS, Where, parse
from ..index.rows import Numbers
from ..kernels import Cancel, Limits
from ..lexical import Ranked
from ..passages import Passages, from_line
from ..records import Hits, Passage
from ..retriever import Retriever, Timings
from ..segments import load_transform
from ..shards import Proposed
from ..snapshot import candidates_of
from ..stages import check

FIRST_SHARE = 0.7  # of the time, after which shards that have not answered may be left out: texts take time, too
# The deadline of the search that is running in this thread: texts are fetched without being told of one.
_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
DRAIN = 15.0  # seconds that the shards of an older generation stay for searches that began on it


class Fleet(Protocol):
    """The shards of one generation, wherever they are."""

    def ask(
        self, method: str, calls: Mapping[int, tuple[Any, ...]], deadline: float | None, missing: bool = False
    ) -> dict[int, Any]:
        """Call this method of `shards.Shard` on some shards, by their numbers, and give each one's reply.

        deadline: of time.monotonic(), None for the fleet's own; DeadlineExceeded behind it, naming the shards that did
        not answer. missing: they are left out instead. An error of bpr on a shard is raised here.
        """
        ...

    def close(self) -> None:
        """Give the machines back."""
        ...


class ShardedSnapshot:
    """One generation of a bundle of shards."""

    def __init__(self, opened: bundle.Opened, fleet: Fleet) -> None:
        """opened: the parent, whose shards the fleet has."""
        self.opened, self.info, self.fleet = opened, opened.info, fleet
        self.entries = shards.entries_of(opened)
        self.candidates = candidates_of(self.info)
        self.passages = ShardedPassages(self.entries, fleet)
        self._layouts = shards.layouts_of(opened)
        self._transform = load_transform(opened)

    @property
    def keeps_vectors(self) -> bool:
        """Whether there is a third stage."""
        return bool(self.info.get("index", {}).get("vectors"))

    @property
    def index(self) -> NoReturn:
        """Not here."""
        raise InvalidInput("the codes of a bundle of shards lie on other machines: search, or open one of its shards")

    def fields(self) -> dict[str, set[str]]:
        """Every field of the metadata, as a filter spells it, and the kinds of its values."""
        found: dict[str, set[str]] = {}
        for each in (field for layout in self._layouts for field in layout.fields):
            found.setdefault(each.name, set()).update(KINDS[kind] for kind, count in enumerate(each.kinds) if count)
        return found

    def mask(self, where: Where | None, mask: Mask | None) -> NoReturn:
        """Not here."""
        raise InvalidInput("a bundle of shards does not list passages by a filter: ask the bundle that it was made of")

    def by_words(
        self, texts: Sequence[str], n: int, where: Where | None, mask: Mask | None, limits: Limits
    ) -> list[Ranked]:
        """Not there: BM25 needs the statistics of all passages."""
        raise InvalidInput("hybrid search is not there on a cluster yet: BM25 needs the words of all shards at once")

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
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        lap: Callable[[str], None] | None = None,
        covered: Callable[[float], None] | None = None,
    ) -> Hits:
        """As on one machine. covered: is told which share of the rows was searched; without it, all must be.

        threads are the shards' own, and cancel is for one machine: shards have the deadline.
        """
        check(k)
        check(depth, candidates, rerank)
        if where is not None:
            columns.check(parse(where), self._layouts)
        asked = np.asarray(vectors)
        self._transform.questions(asked)  # refuses what the shards would refuse
        shared = (where, probes, target_recall, _seconds(deadline))
        masks = self._masks(mask)
        calls = {each.number: (asked, depth, candidates, rerank, masks[each.number], *shared) for each in self.entries}
        first_deadline = deadline if covered is None else _share(deadline)
        found = self.fleet.ask("propose", calls, first_deadline, missing=covered is not None)
        if not found:
            raise DeadlineExceeded("no shard answered in time")
        if covered is not None:
            covered(sum(self.entries[number].rows for number in found) / self.info["rows"])
        hits = shards.merged((Proposed(*each) for each in found.values()), depth, candidates)
        if lap is not None:
            lap("candidates")
        return self._refined(hits, asked, k, deadline) if refined else hits

    def _refined(self, hits: Hits, vectors: NDArray[Any], k: int, deadline: float | None) -> Hits:
        """The k best of them by kept vectors, which the shards score."""
        if not self.keeps_vectors:
            raise InvalidInput("the shards keep no vectors to refine with: build the bundle with them (--keep-vectors)")
        rows, scores = hits.rows.ravel(), np.empty(hits.rows.size, np.float32)
        questions = np.repeat(np.arange(len(vectors)), hits.rows.shape[1])
        places = _by_shard(self.entries, rows)
        calls = {number: (vectors, questions[at], rows[at]) for number, at in places.items()}
        for number, found in self.fleet.ask("refine", calls, deadline).items():
            scores[places[number]] = found
        grid = scores.reshape(hits.rows.shape)
        order = np.lexsort((hits.rows, -grid), axis=1)[:, :k]
        return Hits(np.take_along_axis(hits.rows, order, axis=1), np.take_along_axis(grid, order, axis=1))

    def _masks(self, mask: Mask | None) -> list[NDArray[np.bool_] | None]:
        if mask is None:
            return [None] * len(self.entries)
        whole = np.asarray(mask)
        if whole.shape != (self.info["rows"],) or whole.dtype != np.bool_:
            raise InvalidInput(f"a mask must be bool[{self.info['rows']}], one for each row, not {whole.shape}")
        return [whole[each.first : each.first + each.rows] for each in self.entries]


class ShardedPassages(Passages):
    """The passages of all shards, fetched when they are asked for."""

    def __init__(self, entries: Sequence[shards.Entry], fleet: Fleet) -> None:
        """Reads nothing."""
        self._entries, self._fleet = entries, fleet
        self._rows = entries[-1].first + entries[-1].rows

    def find_all(self, outside_ids: Sequence[str]) -> list[int | None]:
        """The row of the passage with each of these ids, or None."""
        calls = {each.number: (list(outside_ids),) for each in self._entries}
        rows = np.max(list(self._fleet.ask("find", calls, _DEADLINE.get()).values()), axis=0)
        return [None if row < 0 else int(row) for row in rows]

    def fetch(self, rows: Numbers) -> list[Passage]:
        """The passages of rows that are there."""
        found: list[Any] = [None] * len(rows)
        places = _by_shard(self._entries, rows)
        calls = {number: (rows[at],) for number, at in places.items()}
        for number, lines in self._fleet.ask("lines", calls, _DEADLINE.get()).items():
            for at, line in zip(places[number].tolist(), lines, strict=True):
                found[at] = from_line(line)
        return found


class ClusterRetriever(Retriever):
    """A retriever over a bundle of shards. Everything but the search itself is a retriever's.

    Only `search_covered` may leave out shards that do not answer, because it says so, and only with partial=True; every
    other call needs them all.
    """

    def __init__(
        self, opened: bundle.Opened, fleet_of: Callable[[bundle.Opened], Fleet], partial: bool = False
    ) -> None:
        """fleet_of: makes the fleet of a generation, and returns when all its shards can be asked."""
        self._fleet_of, self._partial = fleet_of, partial
        self._old: list[threading.Timer] = []
        super().__init__(opened)

    def _seen(self, opened: bundle.Opened) -> ShardedSnapshot:
        shards.check(opened)
        return ShardedSnapshot(opened, self._fleet_of(opened))

    def _search(self, question: Any, vectors: Any, lap: Callable[[str], None], how: dict[str, Any]) -> Any:
        before = _DEADLINE.set(how.get("deadline"))
        try:
            return super()._search(question, vectors, lap, how)
        finally:
            _DEADLINE.reset(before)

    def search_covered(self, question: Any = None, *, vectors: Any = None, **how: Any) -> tuple[Any, Timings, float]:
        """As `search_timed`, and the share of the passages that was searched."""
        shares: list[float] = []
        if self._partial:
            how["covered"] = shares.append
        return *self.search_timed(question, vectors=vectors, **how), min(shares, default=1.0)

    def reload(self) -> bool:
        """Go over to the newest generation when its shards are up; the old ones stay a while for what is running."""
        before = self._snapshot
        changed = super().reload()
        if changed and isinstance(before, ShardedSnapshot):
            leaving = threading.Timer(DRAIN, before.fleet.close)
            leaving.daemon = True
            leaving.start()
            self._old.append(leaving)
        return changed

    def check_kernel(self) -> None:
        """Each shard has done so when it was opened, on its own machine."""

    def close(self) -> None:
        """Give the machines back, and let go of the bundle."""
        for leaving in self._old:
            leaving.cancel()
            leaving.function()
        if isinstance(self._snapshot, ShardedSnapshot):
            self._snapshot.fleet.close()
        super().close()


def _by_shard(entries: Sequence[shards.Entry], rows: Numbers) -> dict[int, NDArray[np.intp]]:
    """Which of these rows, by their places, lie in which shard."""
    home = np.searchsorted([each.first for each in entries], rows, side="right") - 1
    return {number: np.flatnonzero(home == number) for number in np.unique(home).tolist()}


def _seconds(deadline: float | None) -> float | None:
    """A clock is a machine's own: what travels is the time that is left."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _share(deadline: float | None) -> float | None:
    return None if deadline is None else time.monotonic() + FIRST_SHARE * max(0.0, deadline - time.monotonic())
