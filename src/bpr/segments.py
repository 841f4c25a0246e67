"""A bundle's passages and codes, which may lie in several segments: what its files are called, written and opened.

A bundle is built as one segment. What is added later is a segment of its own, until segments are merged; a deleted row
stays where it is, and its number goes into the segment's list of deleted ones. The builder and `live` write segments
here, the retriever opens them here; nothing else knows of segments, nor which files one consists of. Rows are numbered
over all segments, deleted ones left out, so that to everybody else a bundle is as if it had been built at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import bundle, columns, kinds, lexical, passages, vectors
from .codes import BLOCK_ROWS, Codes, Floats, Mask, RowMask
from .errors import InvalidInput, UnsupportedFormat
from .filters import KINDS as VALUE_KINDS
from .filters import Condition, matches
from .index import Cells, SegmentedIndex
from .index.rows import Numbers, Rows
from .kernels import Limits
from .kinds import KINDS, Plan, PlanesOut, SegmentIndex
from .passages import Passages
from .records import Hits, Passage, Progress
from .transform import Transform

# A segment's file, behind its prefix, that neither kinds.py nor passages.py nor columns/ knows.
DELETED = "deleted.npy"
# The files of the whole bundle: how vectors become codes.
MEAN, ROTATION, SCALES = "mean.npy", "rotation.npy", "scales.npy"
_SHARED = frozenset({MEAN, ROTATION, SCALES})
_PREFIX = re.compile(r"s[0-9]{6,9}-")


@dataclass(frozen=True, slots=True)
class Segment:
    """What a manifest says of one: how its files' names begin, how many rows it has, the deleted ones included."""

    prefix: str
    rows: int
    kind: str


def _mute(what: str, done: int, total: int | None) -> None:
    pass


def save_transform(new: bundle.Writer, transform: Transform) -> None:
    """How vectors become this bundle's codes, for its questions."""
    new.save(MEAN, transform.mean)
    new.save(SCALES, transform.scales)
    if transform.rotation is not None:
        new.save(ROTATION, transform.rotation)


def load_transform(opened: bundle.Opened) -> Transform:
    """The transform of questions that a bundle was built with."""
    rotation = opened.array(ROTATION) if opened.info["rotated"] else None
    return Transform(opened.array(MEAN), rotation, opened.array(SCALES))


class Block(NamedTuple):
    """Some passages and their codes, on their way into a segment; codes: for each plane uint8[passages, bits/8].

    vectors: float[passages, dimensions], where the bundle keeps them.
    """

    passages: list[Passage]
    codes: list[Codes]
    vectors: Floats | None = None


# ── What a manifest says ─────────────────────────────────────────────────────────────────────────────────────────────


def listed(opened: bundle.Opened) -> list[Segment]:
    """The segments of a bundle, in order. One that has never been changed does not list them: it is one segment."""
    info = opened.info
    if bundle.SHARDS in opened.manifest.features:
        raise InvalidInput(
            f"{opened.path} is a bundle of shards: serve it on a cluster (bpr serve {opened.path} --ray ADDRESS); what "
            "changes goes into the bundle that it was made of, which is then sharded again (bpr shard)"
        )
    try:
        described = info["segments"] if bundle.SEGMENTS in opened.manifest.features else [{"prefix": "", **info}]
        return [Segment(str(each["prefix"]), int(each["rows"]), str(each.get("kind"))) for each in described]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise bundle.corrupt(opened.path, f"does not say what its segments are ({error!r})") from error


def deleted(opened: bundle.Opened, segment: Segment) -> Numbers:
    """The deleted rows of a segment: int64, ascending."""
    name = segment.prefix + DELETED
    if name not in opened.manifest.files:
        return np.empty(0, np.int64)
    rows = opened.array(name)
    if rows.dtype != np.int64 or rows.ndim != 1 or not _ascending(rows, segment.rows):
        raise bundle.corrupt(opened.path, f"has a {name} that is no list of its rows")
    return rows


def publish(new: bundle.Writer, info: Mapping[str, Any], segments: Sequence[Segment], deleted_rows: int) -> None:
    """Make the new generation the bundle. info: all but what is said of segments here."""
    rest = {key: value for key, value in info.items() if key != "segments"}
    rows = sum(segment.rows for segment in segments) - deleted_rows
    # Read anywhere by every search; the rest only where candidates stand.
    resident = [name for segment in segments for name in kinds.resident(segment.kind, segment.prefix)]
    facts = {**rest, "rows": rows, "resident": resident}
    if [segment.prefix for segment in segments] == [""] and not deleted_rows:
        new.publish(facts)  # as it was built; every bpr can read it
        return
    described = [{"prefix": each.prefix, "rows": each.rows, "kind": each.kind} for each in segments]
    new.publish({**facts, "segments": described}, [bundle.SEGMENTS])


def owner(name: str) -> str | None:
    """The prefix of the segment that a file belongs to; None if it is the whole bundle's."""
    if name in _SHARED:
        return None
    found = _PREFIX.match(name)
    return found[0] if found else ""


def next_prefix(generation: str, is_first: bool) -> str:
    """How the names of a new segment's files begin: those of the first one plainly, of others with their generation."""
    return "" if is_first else f"s{generation.removeprefix('gen-')}-"


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(
    new: bundle.Writer, prefix: str, plan: Plan, planes: int, width: int, blocks: Iterable[Block], say: Progress = _mute
) -> Segment:
    """Write a segment from its passages and codes, block by block.

    THE place where a segment's files are written: whatever more a segment is to have comes from the same blocks.
    """
    fields = columns.ColumnsOut()
    words = lexical.LexicalOut(new, prefix) if plan.words else None
    with ExitStack() as files:
        codes = files.enter_context(PlanesOut(new, prefix, plan, planes, width, say))
        kept: vectors.VectorsOut | None = None

        def written() -> Iterator[Passage]:
            nonlocal kept
            row = 0
            for block in blocks:
                codes.append(block.codes)
                if plan.vectors is not None and block.vectors is not None:
                    size = block.vectors.shape[1]
                    kept = kept or files.enter_context(vectors.writing(new, size, plan.vectors, prefix))
                    kept.add(block.vectors)
                for passage in block.passages:
                    if passage.meta:
                        fields.add(row, passage.meta)
                    if words is not None:
                        words.add(row, passage.title, passage.text)
                    row += 1
                    yield passage

        rows = passages.write(written(), new, prefix)
    if fields:
        fields.write(new, prefix, rows)
    if words is not None:
        words.write(rows)
    return Segment(prefix, rows, plan.kind)


def copied(opened: bundle.Opened, segment: Segment, without: Numbers) -> Iterator[Block]:
    """The passages and codes of a segment, but for the rows `without` (int64, ascending), to be written into another.

    Bytes are verified as they are read.
    """
    texts = Passages(opened, segment.prefix)
    kept = vectors.Vectors(opened, segment.prefix) if vectors.stored(opened, segment.prefix) else None
    for rows, codes in _codes(opened, segment, without):
        yield Block(texts.fetch(rows), codes, None if kept is None else kept.wide(rows))


def cut(held: Contents, first: int, end: int) -> Iterator[Block]:
    """The passages and codes of the rows first … end − 1 of a bundle, to be written into another."""
    parts = [kinds.open_index(held.opened, each.prefix, each.kind, each.rows).planes for each in held.segments]
    for start in range(first, end, BLOCK_ROWS):
        outside = np.arange(start, min(start + BLOCK_ROWS, end), dtype=np.int64)
        for part, _, rows in held.rows.by_part(outside):  # ascending, so parts come in the order of rows
            taken = parts[part].take(rows)
            codes = [taken.signs] if taken.magnitudes is None else [taken.signs, taken.magnitudes]
            kept = None if held.vectors is None else held.vectors[part].wide(rows)
            yield Block(held.texts[part].fetch(rows), codes, kept)


def reindexed(
    opened: bundle.Opened, new: bundle.Writer, segment: Segment, plan: Plan, say: Progress, layout: Cells | None
) -> Segment:
    """Keep a segment's passages, and write its codes again as another index."""
    info = opened.info
    with PlanesOut(new, segment.prefix, plan, info["planes"], info["bits"] // 8, say, layout) as out:
        for _, codes in _codes(opened, segment, np.empty(0, np.int64)):
            out.append(codes)
    return Segment(segment.prefix, segment.rows, plan.kind)


def _codes(opened: bundle.Opened, segment: Segment, without: Numbers) -> Iterator[tuple[Numbers, list[Codes]]]:
    """The rows of a segment that are left, and their codes, block by block."""
    index = kinds.open_index(opened, segment.prefix, segment.kind, segment.rows)
    left = np.delete(np.arange(segment.rows), without)
    return kinds.by_row(index, left, BLOCK_ROWS)


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Contents:
    """The segments of an opened bundle: `segments`, `deleted` (of each, int64), `rows`, and their passages."""

    def __init__(self, opened: bundle.Opened) -> None:
        """Codes are not touched."""
        self.opened = opened
        self.segments = listed(opened)
        for each in self.segments:
            if each.kind not in KINDS:
                raise UnsupportedFormat(f"{opened.path} is of kind {each.kind!r}: a newer bpr may know it")
        self.deleted = [deleted(opened, segment) for segment in self.segments]
        self.rows = Rows([segment.rows for segment in self.segments], self.deleted)
        self.texts = [Passages(opened, segment.prefix) for segment in self.segments]
        self.columns = [_columns(opened, segment) for segment in self.segments]
        self.words = _of_all(opened, self.segments, lexical.stored, lexical.Lexical)
        self.vectors = _of_all(opened, self.segments, vectors.stored, vectors.Vectors)
        sizes = [segment.rows for segment in self.segments]
        if len(self.rows) != opened.info["rows"] or [len(texts) for texts in self.texts] != sizes:
            raise bundle.corrupt(opened.path, "has segments of other sizes than its manifest says")

    @property
    def is_whole(self) -> bool:
        """Whether it is one segment from which nothing is deleted."""
        return len(self.segments) == 1 and not len(self.deleted[0])

    @property
    def passages(self) -> Passages:
        """The texts of all rows that are left."""
        return self.texts[0] if self.is_whole else SegmentedPassages(self.texts, self.rows)

    def places(self, outside_ids: Sequence[str]) -> list[tuple[int, int] | None]:
        """Where the passages with these ids lie: number of the segment and row in it. None where there is none."""
        return _places(self.texts, self.rows, outside_ids)

    def index(self) -> SegmentIndex | SegmentedIndex:
        """What finds and scores the rows that are left: one index, or one made of the segments' own."""
        parts = [kinds.open_index(self.opened, each.prefix, each.kind, each.rows) for each in self.segments]
        return parts[0] if self.is_whole else SegmentedIndex(parts, self.deleted)

    def fulfilling(self, condition: Condition, checked: bool = False) -> RowMask:
        """The rows whose metadata fulfil the condition; InvalidInput where it asks for what no passage has.

        checked: it has been looked at already, as where this is one part of a larger whole.
        """
        if not checked:
            columns.check(condition, [each for each in self.columns if each is not None])
        found = [
            _everywhere(segment.rows, matches(condition, {})) if fields is None else fields.rows(condition)
            for segment, fields in zip(self.segments, self.columns, strict=True)
        ]
        if self.is_whole:
            return found[0]
        left = [np.delete(np.asarray(mask), gone) for mask, gone in zip(found, self.deleted, strict=True)]
        return RowMask.of(np.concatenate(left))

    def fields(self) -> dict[str, set[str]]:
        """Every field of the metadata, as a filter spells it, and the kinds of its values."""
        found: dict[str, set[str]] = {}
        for each in (field for held in self.columns if held is not None for field in held.fields):
            kinds = {VALUE_KINDS[kind] for kind, values in enumerate(each.kinds) if values}
            found[each.name] = found.get(each.name, set()) | kinds
        return found

    def by_words(self, questions: Sequence[str], n: int, mask: Mask | None, limits: Limits) -> list[lexical.Ranked]:
        """Of each question up to n rows by BM25, and their scores; InvalidInput where the bundle keeps no words."""
        if self.words is None:
            raise InvalidInput(f"{self.opened.path} keeps no words for BM25: build it with them (words=True, --words)")
        found = lexical.search(self.words, questions, n, mask=self.rows.counted_through(mask), limits=limits)
        return [(self.rows.outside_of(rows), scores) for rows, scores in found]

    def refined(self, rows: Numbers, questions: ArrayLike, k: int) -> Hits:
        """The k best of each question's rows (int64[q, m]) by the vectors that were kept: the third stage."""
        if self.vectors is None:
            raise InvalidInput(
                f"{self.opened.path} keeps no vectors to refine with: build it with them (keep_vectors, --keep-vectors)"
            )
        # In the order of rows, so that equal scores are ordered by row as everywhere.
        found = vectors.rerank(self.vectors, self.rows.physical(np.sort(rows, axis=1)), questions, k)
        return Hits(self.rows.outside_of(found.rows), found.scores)


class SegmentedPassages(Passages):
    """The passages of several segments as one."""

    def __init__(self, parts: Sequence[Passages], rows: Rows) -> None:
        """Reads nothing."""
        self._parts = tuple(parts)
        self._numbers = rows
        self._rows = len(rows)

    def find_all(self, outside_ids: Sequence[str]) -> list[int | None]:
        """The row of the passage with each of these ids, or None."""
        places = _places(self._parts, self._numbers, outside_ids)
        return [None if each is None else int(self._numbers.outside(each[0], np.array(each[1]))) for each in places]

    def fetch(self, rows: NDArray[np.int64]) -> list[Passage]:
        """The passages of rows that are there."""
        found: list[Any] = [None] * len(rows)
        for part, places, inside in self._numbers.by_part(rows):
            for place, passage in zip(places.tolist(), self._parts[part].fetch(inside), strict=True):
                found[place] = passage
        return found


def _places(texts: Sequence[Passages], rows: Rows, outside_ids: Sequence[str]) -> list[tuple[int, int] | None]:
    places: list[tuple[int, int] | None] = [None] * len(outside_ids)
    wanted = list(range(len(outside_ids)))
    for part in reversed(range(len(texts))):  # the newest first; what is deleted there may live in an older one
        found = texts[part].find_all([outside_ids[at] for at in wanted])
        for at, row in zip(wanted, found, strict=True):
            if row is not None and not rows.is_deleted(part, row):
                places[at] = part, row
        wanted = [at for at in wanted if places[at] is None]
    return places


Part = TypeVar("Part", lexical.Lexical, vectors.Vectors)


def _of_all(
    opened: bundle.Opened,
    parts: Sequence[Segment],
    stored: Callable[[bundle.Opened, str], bool],
    made: Callable[[bundle.Opened, str], Part],
) -> list[Part] | None:
    """What every segment keeps, or None where the bundle does not; one that lacks it is not what was published."""
    there = [stored(opened, each.prefix) for each in parts]
    if not any(there):
        return None
    found = [made(opened, each.prefix) for each, has in zip(parts, there, strict=True) if has]
    if [len(each) for each in found] != [each.rows for each in parts]:
        raise bundle.corrupt(opened.path, "has words or vectors of other rows than its passages")
    return found


def _columns(opened: bundle.Opened, segment: Segment) -> columns.Columns | None:
    """The metadata of a segment's passages; None where none has any, or the bundle is of a time before filters."""
    if not columns.stored(opened, segment.prefix):
        return None
    found = columns.Columns(opened, segment.prefix)
    if len(found) != segment.rows:
        raise bundle.corrupt(opened.path, f"has metadata of {len(found)} rows for {segment.rows} passages")
    return found


def _everywhere(rows: int, value: bool) -> RowMask:
    return ~RowMask.none(rows) if value else RowMask.none(rows)


def _ascending(rows: Numbers, size: int) -> bool:
    inside = not len(rows) or (int(rows[0]) >= 0 and int(rows[-1]) < size)
    return inside and bool((np.diff(rows) > 0).all())
