"""Changing a bundle that is there: passages are added, replaced and deleted, and segments are merged.

The edges (bpr.add, bpr.delete, bpr.compact, the command line) call it. Each call publishes one new generation, or
changes nothing. What has not changed is not written again: a generation takes it over from the one before, so that
work is proportional to what is added or deleted (and a thousandth of the bundle: the sums of its blocks).

Segments are merged by size, as what is added comes: a row is copied O(log n) times in its life, and there are O(log n)
segments. Deleted rows are left out when their segment is merged. Which files a segment has, it must not know: segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from . import builder, bundle, given, passages, segments
from .builder import Source
from .bundlemodel import encoder_of
from .disk import Disk, OutputFile
from .encoder import Encodes
from .errors import InvalidInput
from .index import Cells
from .index.rows import Numbers
from .kinds import INDEX_FILES, Plan
from .parts import Parts
from .passages import DuplicateId
from .records import Passage, Progress
from .segments import DELETED, Block, Contents, Segment, load_transform

SMALL_ROWS = 4096  # a last segment of so few rows is merged with whatever is added
SMALLER = 2  # and one that is less than so many times as large as what is added
NAMED = 5  # ids in a message

# Passages and their number → the same with their codes.
Coder = Callable[[Iterable[Passage], int], Iterator[Block]]


def add(
    path: str | Path,
    source: Source,
    *,
    upsert: bool = False,
    model: str | Path | Encodes | None = None,
    vectors: ArrayLike | str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    disk: Disk | None = None,
) -> int:
    """Add passages to the bundle at `path`; returns their number. Readers see all of them at once, or none.

    source: as for `bpr.build`. upsert: a passage whose id is there already takes its place (at the end of the bundle);
    otherwise that is an error. Text is encoded with the bundle's own model, which is looked for as `bpr.open` does
    (model: where it is); a bundle that was built from vectors takes vectors: float[n, dimensions], an array or the path
    of an .npy file.

    After an error nothing has changed. Killed, the same call goes on where it was, as `bpr.build` does.
    """
    say = progress or (lambda what, done, total: None)
    parts = Parts(Path(path), disk)
    with bundle.update(path, disk=disk) as (old, new):
        held = Contents(old)
        if vectors is None:
            read, coder = builder.read, _text_coder(old, model, threads, parts, say)
        else:
            read, coder = passages.read, _vector_coder(old, (source, vectors), vectors, say)
        with closing(OutputFile(new.disk, new.scratch("added.tmp"))) as spool:
            count, gone = _spooled(read(source), spool, held, upsert, say)
            spool.finish()
        deleted = _deleted(held, gone)
        merged = _merged([each.rows - len(rows) for each, rows in zip(held.segments, deleted, strict=True)], count)
        try:
            added = _write(held, new, deleted, merged, coder(_unspooled(spool.path), count), say)
        except DuplicateId as error:
            carried = _live(held, deleted, merged)
            first, second = (row - carried for row in error.rows)
            raise builder.located(DuplicateId(error.twin_id, first, second), source) from None
        say("publishing", 0, None)
        _publish(held, new, deleted, merged, added)
    parts.remove()
    return count


def delete(path: str | Path, ids: str | Iterable[str | int], *, disk: Disk | None = None) -> int:
    """Delete the passages with these ids from the bundle at `path`; returns their number.

    An id that no passage has is an error, and then nothing has changed. The next `bpr.open`, or `reload` of a
    retriever, does not see them any more; their bytes are gone when their segment is merged (see `compact`).
    """
    wanted = {str(each): None for each in ([ids] if isinstance(ids, str | int) else ids)}
    with bundle.update(path, disk=disk) as (old, new):
        held = Contents(old)
        gone: list[list[int]] = [[] for _ in held.segments]
        unknown = []
        for each, place in zip(wanted, held.places(list(wanted)), strict=True):
            if place is None:
                unknown.append(each)
            else:
                gone[place[0]].append(place[1])
        if unknown:
            raise InvalidInput(
                f"{path} has no passage with the id {_named(unknown)}; nothing is deleted (ids are spelt as in the "
                "input)"
            )
        if wanted:
            _publish(held, new, _deleted(held, gone), 0, None)
    return len(wanted)


def compact(path: str | Path, *, progress: Progress | None = None, disk: Disk | None = None) -> int:
    """Make one segment of the bundle at `path`, without what is deleted; returns the number of its passages.

    It is then as if it had been built at once, to the byte. Where it is so already, nothing is written.
    """
    say = progress or (lambda what, done, total: None)
    with bundle.update(path, disk=disk) as (old, new):
        held = Contents(old)
        rows = len(held.rows)
        if rows and not (held.is_whole and held.segments[0].prefix == ""):
            merged = len(held.segments)
            segment = _write(held, new, held.deleted, merged, iter(()), say)
            say("publishing", 0, None)
            _publish(held, new, held.deleted, merged, segment)
    return rows


def reindex(
    path: str | Path,
    plan: Plan,
    *,
    candidates: int | None = None,
    layout: Cells | None = None,
    progress: Progress | None = None,
    disk: Disk | None = None,
) -> int:
    """Give the bundle at `path` another index, and make it one segment; returns the number of its passages.

    Where it is one segment already, only its codes are written again. candidates: how many are reranked from now on.
    layout: the cells of its rows, if they are known.
    """
    say = progress or (lambda what, done, total: None)
    with bundle.update(path, disk=disk) as (old, new):
        held = Contents(old)
        before = Plan.of(old.info)
        plan = replace(plan, words=before.words, vectors=before.vectors)
        info = {**{name: value for name, value in old.info.items() if name != "index"}, **plan.to_info()}
        if candidates is not None:
            info["candidates"] = candidates
        if held.is_whole:
            if layout is not None and len(layout.rows) != held.segments[0].rows:
                raise InvalidInput(f"{path} has changed meanwhile: tune it again")
            segment = segments.reindexed(old, new, held.segments[0], plan, say, layout)
            for name in old.manifest.files:
                if name.removeprefix(segment.prefix) not in INDEX_FILES:
                    new.keep(name)
        else:
            segment = _write(held, new, held.deleted, len(held.segments), iter(()), say, plan)
            for name in old.manifest.files:
                if segments.owner(name) is None:
                    new.keep(name)
        say("publishing", 0, None)
        segments.publish(new, info, [segment], 0)
    return segment.rows


# ── What is added ────────────────────────────────────────────────────────────────────────────────────────────────────


def _text_coder(
    old: bundle.Opened, model: str | Path | Encodes | None, threads: int | None, parts: Parts, say: Progress
) -> Coder:
    encoder, transform = encoder_of(old, model), load_transform(old)
    keep = Plan.of(old.info).vectors is not None
    planes = int(old.info["planes"])  # one, where codes of a model of two were given

    def coder(found: Iterable[Passage], count: int) -> Iterator[Block]:
        for block in builder.encoded(found, encoder, transform, keep, threads, parts, count, say):
            yield block._replace(codes=block.codes[:planes])

    return coder


def _vector_coder(
    old: bundle.Opened, origins: tuple[object, object], vectors: ArrayLike | str | Path, say: Progress
) -> Coder:
    known = old.info["model"]
    if known:
        raise InvalidInput(
            f"{old.path} was built with the model {known['name']!r} and encodes text itself: leave the vectors out"
        )
    floats, transform = given.load_vectors(vectors), load_transform(old)
    try:
        transform.passages(floats[:0])
    except InvalidInput as error:  # of another width
        raise InvalidInput(f"{old.path}: {error}") from None
    planes = int(old.info["planes"])
    return lambda found, count: given.with_vectors(found, floats, transform, planes, origins, say)


def _spooled(
    found: Iterable[Passage], out: OutputFile, held: Contents, upsert: bool, say: Progress
) -> tuple[int, list[list[int]]]:
    """Read all passages into a file, to be read again when it is known which of them replace others.

    Their number, and for each segment the rows that they replace. An id that is taken is an error, unless `upsert`.
    """
    gone: list[list[int]] = [[] for _ in held.segments]
    taken: list[str] = []
    count, rest = 0, iter(found)
    while some := list(islice(rest, builder.PART_ROWS)):
        say("reading passages", count, None)
        for passage, place in zip(some, held.places([each.id for each in some]), strict=True):
            if place is not None:
                taken.append(passage.id)
                gone[place[0]].append(place[1])
            out.write(passages.to_line(passage))
        count += len(some)
    if taken and not upsert:
        raise InvalidInput(
            f"{held.opened.path} has a passage with the id {_named(taken)} already; nothing is added (upsert=True, "
            "--upsert puts the new ones in their place)"
        )
    return count, gone


def _unspooled(path: Path) -> Iterator[Passage]:
    with path.open("rb") as lines:
        yield from map(passages.from_line, lines)


def _named(ids: Sequence[str]) -> str:
    """The first few of them, and how many there are."""
    shown = ", ".join(map(repr, ids[:NAMED]))
    return shown if len(ids) <= NAMED else f"{shown}, … ({len(ids):,} in all)"


# ── Segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _deleted(held: Contents, gone: Sequence[Sequence[int]]) -> list[Numbers]:
    """For each segment the rows that are deleted now: int64, ascending."""
    return [
        np.union1d(before, np.array(more, np.int64)) if more else before
        for before, more in zip(held.deleted, gone, strict=True)
    ]


def _merged(live: Sequence[int], added: int) -> int:
    """How many of the last segments, of so many rows that are left, are merged with what is added.

    Each one that stays is then SMALLER times as large as all that comes after it, and a row that is copied comes into a
    segment that is half as large again as its own was.
    """
    count, total = 0, added
    for rows in reversed(live):
        if rows > SMALL_ROWS and rows >= SMALLER * total:
            break
        count, total = count + 1, total + rows
    return count


def _live(held: Contents, deleted: Sequence[Numbers], last: int) -> int:
    """How many rows are left in the last segments."""
    both = list(zip(held.segments, deleted, strict=True))
    return sum(segment.rows - len(rows) for segment, rows in both[len(both) - last :])


def _write(
    held: Contents,
    new: bundle.Writer,
    deleted: Sequence[Numbers],
    merged: int,
    more: Iterator[Block],
    say: Progress,
    plan: Plan | None = None,
) -> Segment:
    """A new segment of what is left of the last `merged` ones and of what is added."""
    first, total = len(held.segments) - merged, _live(held, deleted, merged)

    def carried() -> Iterator[Block]:
        done = 0
        for segment, rows in zip(held.segments[first:], deleted[first:], strict=True):
            for block in segments.copied(held.opened, segment, rows):
                yield block
                done += len(block.passages)
                say("merging", done, total)

    is_first = not any(_stays(held, deleted, merged))
    prefix = segments.next_prefix(new.generation_path.name, is_first)
    info = held.opened.info
    # What is added later is scanned: the bundle's own index is made of the first segment, which is nearly all of it.
    known = plan or Plan.of(info)
    chosen = known if is_first else known.added()
    return segments.write(new, prefix, chosen, info["planes"], info["bits"] // 8, chain(carried(), more), say)


def _stays(held: Contents, deleted: Sequence[Numbers], merged: int) -> Iterator[tuple[Segment, Numbers]]:
    """The segments that are taken over as they are, but for their deleted rows; one with no others is dropped."""
    for segment, rows in list(zip(held.segments, deleted, strict=True))[: len(held.segments) - merged]:
        if len(rows) < segment.rows:
            yield segment, rows


def _publish(
    held: Contents, new: bundle.Writer, deleted: Sequence[Numbers], merged: int, added: Segment | None
) -> None:
    """Make the next generation of the segments that stay and the one that was written."""
    stays = list(_stays(held, deleted, merged))
    before = {segment.prefix: len(rows) for segment, rows in zip(held.segments, held.deleted, strict=True)}
    changed = {segment.prefix + DELETED: rows for segment, rows in stays if len(rows) > before[segment.prefix]}
    owners = {None, *(segment.prefix for segment, _ in stays)}
    for name in held.opened.manifest.files:
        if segments.owner(name) in owners and name not in changed:
            new.keep(name)
    for name, rows in changed.items():
        new.save(name, rows)
    listed = [segment for segment, _ in stays] + ([] if added is None else [added])
    segments.publish(new, held.opened.info, listed, sum(len(rows) for _, rows in stays))
