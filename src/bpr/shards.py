"""A bundle of shards: the rows of a bundle cut into contiguous ranges, each a bundle of its own that one machine holds.

    FOLDER/manifest.json               the parent: what the whole is, and of each shard name, rows and checksum
    FOLDER/shard-000002-0000.bpr/      shard 0 of the parent's generation 2, and so on

`bpr shard` makes one. A shard finds and scores its own rows (`Shard`), and `merged` makes of what all shards found what
one machine would have: global row = the shard's first row + its own, so the total order is one order. cluster/ asks
shards on other machines; this room knows no machine but this one.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import bundle, columns, kernels, segments
from .codes import RowMask
from .disk import Disk
from .errors import BprError, CorruptBundle, EmptyBundle, InvalidInput, MissingBundle, ModelMismatch
from .filters import Where
from .index.rows import Numbers
from .kernels import Limits
from .kinds import Plan
from .passages import to_line
from .records import Hits, Progress
from .retriever import CHECKED_ROWS
from .segments import Contents
from .snapshot import Snapshot

MOST = 9999  # shards: their numbers have four digits
_NAME = re.compile(r"shard-([0-9]{6,9})-[0-9]{4}\.bpr")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the parent says of a shard, and all that whoever opens it must know.

    name: of its folder. number: its place. first: its first row in the whole. set: the id of all shards of one
    generation. model: the fingerprint of the model, None where there is none. seal: the SHA-256 of its manifest, which
    has the checksums of all its files.
    """

    name: str
    number: int
    first: int
    rows: int
    bytes: int
    set: str
    model: str | None
    seal: str

    def __str__(self) -> str:
        """As messages call it."""
        return f"shard {self.number} ({self.name})"


# ── Making ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shard(path: str | Path, folder: str | Path, count: int, *, progress: Progress | None = None) -> list[Entry]:
    """Cut the bundle at `path` into `count` shards of as many rows (one more or less) below `folder`.

    A bundle of shards that is there gets a new generation, in one step at the end; the shards of the one before stay
    until the next, for those who serve them. Words (BM25) are left out: their statistics are of the whole.
    """
    say, folder = progress or (lambda what, done, total: None), Path(folder)
    with bundle.open(path, verify="lazy") as opened, bundle.create(folder) as new:
        held = Contents(opened)
        rows = len(held.rows)
        if not rows:
            raise EmptyBundle(f"{path} holds no passages: there is nothing to shard")
        if not 1 <= count <= min(rows, MOST):
            raise InvalidInput(f"{rows:,} passages make 1 to {min(rows, MOST):,} shards, not {count}")
        number = int(new.generation_path.name.removeprefix("gen-"))
        published = _published(folder)
        _remove(folder, new.disk, keep=published)  # what a killed run left
        info = {**_described(opened, folder), "set": secrets.token_hex(16)}
        try:
            entries = _write_shards(held, folder, number, count, info, new.disk, say)
            _save_shared(opened, new, held)
            say("publishing", 0, None)
            new.publish({**info, "rows": rows, "shards": [asdict(each) for each in entries]}, [bundle.SHARDS])
        except BaseException:
            if not new.published:
                _remove(folder, new.disk, keep=published)
            raise
        _remove(folder, new.disk, keep=published | {number})
    return entries


def _described(opened: bundle.Opened, folder: Path) -> dict[str, Any]:
    """What parent and shards say alike; the model's folder is seen from where the bundle of shards stands."""
    dropped = ("segments", "resident", "rows", "kind", "index", "shard", "shards", "set")
    info = {name: value for name, value in opened.info.items() if name not in dropped}
    plan = replace(Plan.of(opened.info), words=False, cells=None)  # as many cells as suit a shard's rows
    if info["model"] and info["model"].get("folder"):
        where = Path(opened.path).resolve().parent / info["model"]["folder"]
        info["model"] = {**info["model"], "folder": os.path.relpath(where, os.path.realpath(folder.parent))}
    return {**info, **plan.to_info()}


def _write_shards(
    held: Contents, folder: Path, number: int, count: int, info: dict[str, Any], disk: Disk, say: Progress
) -> list[Entry]:
    bounds = [len(held.rows) * each // count for each in range(count + 1)]
    entries = []
    for place, (first, end) in enumerate(pairwise(bounds)):
        say("writing shards", place, count)
        path = folder / f"shard-{number:06d}-{place:04d}.bpr"
        with bundle.create(path, disk=disk) as new:
            blocks = segments.cut(held, first, end)
            written = segments.write(new, "", Plan.of(info), info["planes"], info["bits"] // 8, blocks)
            segments.save_transform(new, segments.load_transform(held.opened))
            own = {"number": place, "of": count, "first": first}
            segments.publish(new, {**info, "shard": own}, [written], 0)
        with bundle.open(path, verify="size") as opened:
            manifest = opened.manifest
        known = info["set"], info["model"] and info["model"]["fingerprint"]
        entries.append(Entry(path.name, place, first, end - first, manifest.bytes, *known, bundle.seal(manifest)))
    return entries


def _save_shared(opened: bundle.Opened, new: bundle.Writer, held: Contents) -> None:
    """What the parent keeps of the whole: how vectors become codes, and which fields filters may ask for."""
    segments.save_transform(new, segments.load_transform(opened))
    for number, segment in enumerate(held.segments):
        if columns.stored(opened, segment.prefix):
            with new.file(_fields_name(number)) as out:
                out.write(opened.array(segment.prefix + columns.FIELDS).tobytes())


def _fields_name(segment: int) -> str:
    return f"fields-{segment:04d}.json"


def _published(folder: Path) -> set[int]:
    """The number of the generation that is there, if there is one."""
    try:
        with bundle.open(folder, verify="size") as opened:
            return {int(opened.generation.removeprefix("gen-"))}
    except MissingBundle:
        return set()
    except BprError:  # damaged: what is left of it stays until there is a new one
        return {int(found[1]) for found in map(_NAME.fullmatch, os.listdir(folder)) if found}


def _remove(folder: Path, disk: Disk, keep: set[int]) -> None:
    """The shards of other generations than these."""
    for name in disk.names(folder):
        found = _NAME.fullmatch(name)
        if found and int(found[1]) not in keep:
            disk.remove_tree(folder / name)


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_sharded(opened: bundle.Opened) -> bool:
    """Whether a bundle's rows lie in other bundles."""
    return bundle.SHARDS in opened.manifest.features


def entries_of(parent: bundle.Opened) -> list[Entry]:
    """The shards of an opened parent, in the order of rows; CorruptBundle where they are no whole."""
    if not is_sharded(parent):
        raise InvalidInput(f"{parent.path} is no bundle of shards: make one of it (bpr shard {parent.path} …)")
    try:
        entries = [Entry(**each) for each in parent.info["shards"]]
        ends = np.cumsum([each.rows for each in entries]).tolist()
        if [each.first for each in entries] == [0, *ends[:-1]] and ends[-1] == parent.info["rows"]:
            return entries
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptBundle(f"{parent.path} does not say what its shards are ({error!r}); shard again") from error
    raise CorruptBundle(f"{parent.path} has shards that are not its rows; shard again (bpr shard)")


def layouts_of(parent: bundle.Opened) -> list[columns.Layout]:
    """The fields of the metadata, of each segment of the bundle that was cut into shards."""
    names = [name for name in parent.manifest.files if name.startswith("fields-")]
    return [columns.Layout.decode(parent.array(name).tobytes()) for name in names]


def open_shard(folder: str | Path, entry: Entry, verify: bundle.Verify = "auto") -> bundle.Opened:
    """A shard, opened; one that is missing, or not the one that was published, is refused by its name."""
    try:
        opened = bundle.open(Path(folder) / entry.name, verify=verify)
    except MissingBundle as error:
        raise MissingBundle(f"{entry} is missing in {folder}: copy it there, or shard again") from error
    try:
        _check(folder, opened, entry)
    except BaseException:
        opened.close()
        raise
    return opened


def check(parent: bundle.Opened) -> None:
    """Look at every shard: there, of this generation, of this model, in its place. Reads manifests and sizes only."""
    for entry in entries_of(parent):
        open_shard(parent.path, entry, verify="size").close()


def _check(folder: str | Path, opened: bundle.Opened, entry: Entry) -> None:
    """What went wrong comes in words before the checksum says that something did."""
    own, model = opened.info.get("shard"), opened.info.get("model")
    if not isinstance(own, dict):
        raise CorruptBundle(f"{entry} in {folder} is a bundle, but no shard: copy the right one there")
    if (model and model["fingerprint"]) != entry.model:
        raise ModelMismatch(f"{entry} in {folder} was made with another model than the rest: copy the right one there")
    if opened.info.get("set") != entry.set:
        raise CorruptBundle(f"{entry} in {folder} is of another generation than the rest: copy the right one there")
    if own.get("number") != entry.number:
        raise CorruptBundle(f"{entry} in {folder} holds shard {own.get('number')}: two were swapped; rename them back")
    if bundle.seal(opened.manifest) != entry.seal:
        raise CorruptBundle(f"{entry} in {folder} is not the one that was published: copy it again, or shard again")


# ── Searching ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Proposed(NamedTuple):
    """What one shard found: of each question rows of the whole, int64[q, m], and their scores, float32[q, m].

    distances: int32[q, m], where they decide which rows are ranked: in a search with candidates and a rerank.
    """

    rows: Numbers
    scores: NDArray[np.float32]
    distances: NDArray[np.int32] | None = None


class Shard:
    """One shard, opened and memory-mapped: what a machine of a cluster holds. A context manager."""

    def __init__(self, folder: str | Path, entry: Entry) -> None:
        """Open it below `folder`, and see that it is what the entry says and that the kernel computes on it."""
        self.entry = entry
        self._snapshot = Snapshot.of(open_shard(folder, entry))
        kernels.check(self._snapshot.index.planes.take(np.arange(min(CHECKED_ROWS, entry.rows))).signs)

    def __enter__(self) -> Shard:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self._snapshot.opened.close()

    def propose(
        self,
        vectors: NDArray[Any],
        depth: int,
        candidates: int | None,
        rerank: bool,
        mask: NDArray[np.bool_] | None = None,
        where: Where | None = None,
        probes: float | None = None,
        target_recall: float | None = None,
        seconds: float | None = None,
        threads: int | None = None,
    ) -> Proposed:
        """All that `merged` may need: as many candidates as the whole search has, each with its distance and score.

        The filter has been checked against the whole. mask: of this shard's rows. seconds: that are left.
        """
        limits = Limits(threads, None if seconds is None else time.monotonic() + seconds)
        asked = self._snapshot.transform.questions(vectors)
        left = self._snapshot.mask(where, None if mask is None else RowMask.of(mask), checked=True)
        planes, index = self._snapshot.index.planes, self._snapshot.index_for(probes, target_recall)
        if candidates is None:
            found = planes.score_all(asked, depth, left, limits)
            return Proposed(found.rows + self.entry.first, found.scores)
        how: dict[str, Any] = {"mask": left, "threads": limits.threads, "deadline": limits.deadline}
        rows, distances = index.candidates(asked, candidates, **how)
        if not rerank:
            near = (planes.bits - 2 * distances[:, :depth]).astype(np.float32)
            return Proposed(rows[:, :depth] + self.entry.first, near)
        best, scores = planes.rerank(asked, rows, max(1, rows.shape[1]), limits)
        far = np.empty_like(distances)  # in the order of scores, by way of the order of rows
        far_by_row = np.take_along_axis(distances, np.argsort(rows, axis=1), axis=1)
        np.put_along_axis(far, np.argsort(best, axis=1), far_by_row, axis=1)
        return Proposed(best + self.entry.first, scores, far)

    def refine(self, vectors: NDArray[Any], questions: Numbers, rows: Numbers) -> NDArray[np.float32]:
        """By the kept vectors: scores float32[m] of rows of the whole, int64[m], each for one question, int64[m]."""
        kept = self._snapshot.contents.vectors
        if kept is None:
            raise InvalidInput("the shards keep no vectors to refine with: build the bundle with them (--keep-vectors)")
        scores, own = np.empty(len(rows), np.float32), rows - self.entry.first
        for question in np.unique(questions).tolist():
            here = questions == question
            scores[here] = kept[0].score(own[here][None], vectors[question][None])[0]
        return scores

    def lines(self, rows: Numbers) -> list[bytes]:
        """The passages of rows of the whole, as lines of JSON."""
        return [to_line(each) for each in self._snapshot.passages.get(rows - self.entry.first)]

    def find(self, outside_ids: Sequence[str]) -> Numbers:
        """The rows of the whole of the passages with these ids: int64, −1 where it is not here."""
        found = self._snapshot.passages.find_all(outside_ids)
        return np.array([-1 if row is None else row + self.entry.first for row in found], np.int64)


def merged(proposed: Iterable[Proposed], depth: int, candidates: int | None) -> Hits:
    """What one machine would have found, of what each shard has: the `depth` best of the nearest `candidates`.

    A row of those nearest is among as many of its own shard, so the union has them all; (distance, row) picks them,
    (score descending, row) ranks them. Each shard must be here once, however often it was asked.
    """
    parts = list(proposed)
    rows, scores = (np.concatenate(each, axis=1) for each in zip(*(part[:2] for part in parts), strict=True))
    if candidates is not None and rows.shape[1] > candidates and parts[0].distances is not None:
        far = np.concatenate([part.distances for part in parts if part.distances is not None], axis=1)
        nearest = _nearest(far, rows, candidates)
        rows, scores = (np.take_along_axis(each, nearest, axis=1) for each in (rows, scores))
    if rows.shape[1] > depth:  # those that score as well as the last one that may stay: few are left to sort
        least = np.partition(scores, -depth, axis=1)[:, -depth, None]
        kept = int((scores >= least).sum(axis=1).max(initial=depth))
        some = np.argpartition(-scores, kept - 1, axis=1)[:, :kept]
        rows, scores = (np.take_along_axis(each, some, axis=1) for each in (rows, scores))
    best = np.lexsort((rows, -scores), axis=1)[:, :depth]
    return Hits(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))


def _nearest(far: NDArray[np.int32], rows: Numbers, count: int) -> NDArray[np.intp]:
    """Where the first `count` by (distance, row) stand, in no order: one number stands for both, and none is sorted."""
    keys = far.astype(np.int64) << 48 | rows  # a distance has 13 bits, a row at most 48
    return np.argpartition(keys, count - 1, axis=1)[:, :count]
