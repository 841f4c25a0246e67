"""From a condition to the rows that fulfil it. segments.py calls it through `columns`; it knows no texts and no codes.

Opening reads meta-fields.json only. The rest stays on disk until a filter needs it; it is verified then, and nothing in
it is used as a place before that place is known to exist.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import and_, or_
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..codes import RowMask
from ..errors import CorruptBundle, InvalidInput
from ..filters import (
    KINDS,
    LIST,
    NULL,
    OBJECT,
    All,
    Compare,
    Condition,
    Exists,
    Not,
    OneOf,
    Path,
    Some,
    Value,
    fields_of,
    spelt,
    value_of,
)
from .layout import (
    FIELDS,
    MARKS,
    MOST_FIELDS,
    MOST_VALUE_BYTES,
    MOST_VALUES,
    ROWS,
    STARTS,
    VALUES,
    Field,
    Layout,
    mark_bytes,
    row_type,
)

if TYPE_CHECKING:
    from .. import bundle

NAMES_SHOWN = 30
READ_AT_ONCE = 10  # values that are read in one piece in the time that one takes alone
REMEMBERED = 4096  # values that halving has met: its first steps are the same for every condition
MOST_REMEMBERED = 256  # characters of one of them


# ── What a user should know before ───────────────────────────────────────────────────────────────────────────────────


def check(condition: Condition, segments: Sequence[Columns | Layout]) -> None:
    """InvalidInput where the condition asks for a field that no segment has, or compares it with what it never holds.

    A field is what all segments of a bundle together know of it; one that lacks it only has no rows to give.
    """
    known: dict[Path, list[Field]] = {}
    for segment in segments:
        for each in segment.fields:
            known.setdefault(each.keys, []).append(each)
    for test in fields_of(condition):
        if test.field not in known:
            raise InvalidInput(_unknown(test.field, known, any(segment.more for segment in segments)))
        if not all(each.kept for each in known[test.field]):
            raise InvalidInput(
                f"filter: {spelt(test.field)!r} has too many different values to filter on (more than {MOST_VALUES:,}, "
                f"or {MOST_VALUE_BYTES >> 20} MiB of them); give the passages a coarser field, as a site for a URL"
            )
        _check_kinds(test, {kind for each in known[test.field] for kind, count in enumerate(each.kinds) if count})


def _check_kinds(test: OneOf | Compare | Exists, kinds: set[int]) -> None:
    """Null can be asked for anywhere; where a field holds nothing but null and empty lists, so can everything."""
    asked = test.values if isinstance(test, OneOf) else (test.value,) if isinstance(test, Compare) else ()
    for kind, value in asked:
        if kind != NULL and kind not in kinds and kinds - {LIST, NULL}:
            holds = " and ".join(KINDS[each] for each in sorted(kinds, reverse=True))
            inside = "; filter on the fields inside the objects" if OBJECT in kinds else ""
            raise InvalidInput(
                f"filter: {spelt(test.field)!r} holds {holds}: it cannot be compared with "
                f"{json.dumps(value, ensure_ascii=False)}, which is one of {KINDS[kind]}{inside}"
            )


def _unknown(asked: Path, known: Mapping[Path, Any], more: bool) -> str:
    names = [repr(spelt(keys)) for keys in sorted(known)]
    others = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    there = f"the fields are {', '.join(names[:NAMES_SHOWN])}{others}" if names else "the passages have no metadata"
    limit = f" (only the first {MOST_FIELDS:,} fields of the passages are kept)" if more else ""
    return f"filter: there is no field {spelt(asked)!r}; {there}{limit}"


# ── The rows of a condition ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Column:
    """A field, and where its values, entries and marks stand among those of all."""

    field: Field
    values: range
    entries: range
    marks: range

    def of_kind(self, kind: int) -> range:
        """Its values of one kind."""
        before = sum(self.field.kinds[:kind])
        return self.values[before : before + self.field.kinds[kind]]


class Columns:
    """The columns of an open bundle, or of one segment of it. Threads may share one.

    fields: what can be filtered on, and what cannot (`kept`). more: there were more than are kept.
    """

    def __init__(self, opened: bundle.Opened, prefix: str = "") -> None:
        """Map the files behind the prefix, and see that they belong together."""
        self._prefix = prefix
        self._remembered: dict[int, Value] = {}
        self._values, self._starts = opened.view(prefix + VALUES), opened.view(prefix + STARTS)
        self._entries, self._marks = opened.view(prefix + ROWS), opened.view(prefix + MARKS)
        try:
            layout = Layout.decode(opened.array(prefix + FIELDS).tobytes())
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise self._corrupt(f"{FIELDS} does not say what is stored ({error!r})") from error
        self._rows, self._step, self.fields, self.more = layout.rows, layout.step, layout.fields, layout.more
        sizes = [(each.values, each.entries, each.entries // self._step) for each in self.fields]
        ends = [list(accumulate(some, initial=0)) for some in zip(*sizes, strict=True)] or [[0]] * 3
        self._check_shapes(*(each[-1] for each in ends))
        self._columns = {
            each.keys: _Column(each, *(range(some[i], some[i + 1]) for some in ends))
            for i, each in enumerate(self.fields)
        }

    def __len__(self) -> int:
        """How many rows; those of the bundle or segment must be as many."""
        return self._rows

    def rows(self, condition: Condition) -> RowMask:
        """The rows whose passages fulfil the condition: exactly those for which filters.matches says so.

        A field that is not here is one that no passage has; ask `check` first for what a user should know.
        """
        if isinstance(condition, All):
            return reduce(and_, self._parts(condition)) if condition.parts else ~RowMask.none(self._rows)
        if isinstance(condition, Some):
            return reduce(or_, map(self.rows, condition.parts)) if condition.parts else RowMask.none(self._rows)
        if isinstance(condition, Not):
            return ~self.rows(condition.part)
        column = self._columns.get(condition.field)
        return RowMask.none(self._rows) if column is None else self._with(column, self._ranges(column, condition))

    def _parts(self, condition: All) -> Iterator[RowMask]:
        """The rows of each part; all comparisons of a field whose rows have one value each are one range of values."""
        within: dict[Path, range] = {}
        for part in condition.parts:
            column = self._columns.get(part.field) if isinstance(part, Compare) else None
            if not isinstance(part, Compare) or column is None or column.field.several:
                yield self.rows(part)
                continue
            for values in self._ranges(column, part):
                known = within.get(part.field, values)
                within[part.field] = range(max(known.start, values.start), min(known.stop, values.stop))
        for field, values in within.items():
            yield self._with(self._columns[field], [values])

    def _with(self, column: _Column, some: Iterable[range]) -> RowMask:
        """The rows with a value of one of these ranges."""
        mask = RowMask.none(self._rows)
        for values in some:
            self._put(mask, column, values)
        return mask

    def _ranges(self, column: _Column, test: OneOf | Compare | Exists) -> Iterator[range]:
        """The values that fulfil the test: ranges of neighbours, because values are sorted by (kind, value)."""
        if isinstance(test, Exists):
            yield column.values
        elif isinstance(test, Compare):
            values = column.of_kind(test.value[0])
            search = bisect_left if test.sign in ("<", ">=") else bisect_right
            at = search(values, test.value, key=self._value)
            yield values[:at] if test.sign in ("<", "<=") else values[at:]
        else:
            for kind in sorted({kind for kind, _ in test.values}):
                yield from self._found(column.of_kind(kind), [value for value in test.values if value[0] == kind])

    def _found(self, values: range, wanted: list[Value]) -> Iterator[range]:
        """Those of the wanted values that are among these, each as a range of one."""
        if len(wanted) * len(values).bit_length() * READ_AT_ONCE > len(values):
            numbers = dict(zip(self._all_values(values), values, strict=True))
            for value in wanted:
                if value in numbers:
                    yield range(numbers[value], numbers[value] + 1)
        else:
            for value in wanted:
                at = bisect_left(values, value, key=self._value)
                if at < len(values) and self._value(values[at]) == value:
                    yield values[at : at + 1]

    def _value(self, number: int) -> Value:
        """One of the different values. Some are remembered: to read one takes a hundred times as long."""
        value = self._remembered.get(number)
        if value is None:
            value = self._all_values(range(number, number + 1))[0]
            if isinstance(value, str) and len(value) > MOST_REMEMBERED:
                return value
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[number] = value
        return value

    def _all_values(self, numbers: range) -> list[Value]:
        """Neighbouring values, read from their lines. JSON has no line end inside a value: many lines make a list."""
        start, stop = self._ends(numbers, 0)
        if not start <= stop <= len(self._values.array):
            raise self._corrupt(f"{STARTS} points outside {VALUES}")
        lines = self._part(self._values, start, stop).tobytes()
        try:
            values = list(map(value_of, json.loads(f"[{lines[:-1].decode().replace(chr(10), ',')}]")))
        except (ValueError, RecursionError):
            values = []
        if len(values) != len(numbers):
            raise self._corrupt(f"{VALUES} does not hold {len(numbers)} values at byte {start}")
        return values

    def _ends(self, numbers: range, of: int) -> list[int]:
        """Where neighbouring values (one at least) begin and end: of 0, their lines; of 1, their entries."""
        ends: list[int] = self._part(self._starts, numbers.start, numbers.stop + 1)[:: len(numbers), of].tolist()
        return ends

    def _put(self, mask: RowMask, column: _Column, values: range) -> None:
        """Put the rows of neighbouring values into the mask; none is in it already, unless rows have several values."""
        if not values:
            return
        start, stop = self._ends(values, 1)
        if not column.entries.start <= start <= stop <= column.entries.stop:
            raise self._corrupt(f"{STARTS} points outside the rows of {column.field.name!r}")
        if not column.field.several:
            self._toggle(mask, column, start, stop)
        elif len(values) == 1:  # a row has this value once, but may have come with another one before
            alone = RowMask.none(self._rows)
            self._toggle(alone, column, start, stop)
            mask.bits |= alone.bits
        else:
            self._mark(mask, start, stop, toggle=False)

    def _toggle(self, mask: RowMask, column: _Column, start: int, stop: int) -> None:
        """Turn the bits of the entries [start, stop) over: one by one, or from the nearest marks where that is less."""
        ends = [(at, *self._nearest_mark(column, at)) for at in (start, stop)]
        if sum(abs(at - entry) for at, _, entry in ends) + self._rows // 64 >= stop - start:
            return self._mark(mask, start, stop, toggle=True)
        for at, number, entry in ends:
            if number > 0:  # before the first mark nothing has stood yet
                first = column.marks.start + number - 1
                mask.bits ^= self._part(self._marks, first, first + 1)[0]
            self._mark(mask, min(at, entry), max(at, entry), toggle=True)
        if self._rows % 8 and mask.bits[-1] >> self._rows % 8:
            raise self._corrupt(f"{MARKS} holds rows that are not there")
        return None

    def _nearest_mark(self, column: _Column, entry: int) -> tuple[int, int]:
        """Its number in the column, from 1 (0: the beginning), and the entry before which it was made."""
        number = min((entry - column.entries.start + self._step // 2) // self._step, len(column.marks))
        return number, column.entries.start + number * self._step

    def _mark(self, mask: RowMask, start: int, stop: int, *, toggle: bool) -> None:
        try:
            kernels.mark_rows(mask, self._part(self._entries, start, stop), toggle=toggle)
        except InvalidInput:
            raise self._corrupt(f"{ROWS} names a row that is not there") from None

    @staticmethod
    def _part(view: bundle.View, start: int, stop: int) -> NDArray[Any]:
        """Verified rows [start, stop) of a file's array; they are there."""
        width = view.array.nbytes // max(1, len(view.array))
        head = view.entry.bytes - view.array.nbytes
        view.require_bytes(head + start * width, head + stop * width)
        return view.array[start:stop]

    def _check_shapes(self, values: int, entries: int, marks: int) -> None:
        for name, view, dtype, shape in (
            (STARTS, self._starts, np.uint64, (values + 1, 2)),
            (ROWS, self._entries, row_type(self._rows), (entries,)),
            (MARKS, self._marks, np.uint8, (marks, mark_bytes(self._rows))),
        ):
            if view.array.dtype != dtype or view.array.shape != shape:
                raise self._corrupt(f"{name} and {FIELDS} do not belong together")

    def _corrupt(self, what: str) -> CorruptBundle:
        return CorruptBundle(f"{self._prefix}{what}; restore or rebuild the bundle")
