r"""The language of filters on the metadata of passages: what a user writes, and what it means for one passage.

    condition = parse({"year": {">=": 2010}, "lang": "en", "not": {"tags": {"in": ["draft", "stub"]}}})
    matches(condition, passage.meta)

The retriever and the edges call `parse`; columns/ finds all rows of a condition at once, and must agree with
`matches`. It knows metadata as JSON values, and nothing of rows, files or bundles. docs/filters.md is for users.

A field is a key of the metadata, with dots for keys of objects inside: "author.name". A backslash before a character
takes it as it is: "a\\.b" is one key with a dot, "\\and" a field that is called "and". A field holds one value, or the
values of a list. A comparison is true if any of the field's values fulfils it, so never where the field is missing;
"!=" and "not in" are "==" and "in" negated, so they are true there. Values are null, true and false, numbers and
strings; values of different types are neither equal nor in any order (true is not 1; 1 is 1.0).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .errors import InvalidInput

MOST_TERMS, MOST_LISTED, MOST_DEPTH = 1000, 10_000, 32
MOST_KEYS = 16  # of a field: objects inside deeper ones cannot be filtered on

# What a value is. These also stand for what no comparison finds, but `exists` does: an object, and a list without any
# value in it. Values sort by (kind, value).
LIST, OBJECT, NULL, BOOL, NUMBER, STRING = range(6)
KINDS = ("lists without a value", "objects", "null", "true or false", "numbers", "strings")
Value: TypeAlias = tuple[int, Any]
Path: TypeAlias = tuple[str, ...]
Where: TypeAlias = Mapping[str, Any]  # what a user writes


# ── What a condition is ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value of the field is one of these; sorted, none twice."""

    field: Path
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A value of the field, of the same kind, is below (or above, or equal to) this one; sign: "<", "<=", ">", ">="."""

    field: Path
    sign: str
    value: Value


@dataclass(frozen=True, slots=True)
class Exists:
    """The passage has the field, whatever it holds."""

    field: Path


@dataclass(frozen=True, slots=True)
class All:
    """Every part is true; without parts: true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one part is true; without parts: false."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part is false."""

    part: Condition


# Hashable, and equal for filters that say the same in another order: what was found for one can be kept for the other.
Condition: TypeAlias = OneOf | Compare | Exists | All | Some | Not


def fields_of(condition: Condition) -> Iterable[OneOf | Compare | Exists]:
    """Every test of a field in the condition."""
    if isinstance(condition, All | Some):
        for part in condition.parts:
            yield from fields_of(part)
    elif isinstance(condition, Not):
        yield from fields_of(condition.part)
    else:
        yield condition


# ── What it means ────────────────────────────────────────────────────────────────────────────────────────────────────


def matches(condition: Condition, meta: Mapping[str, Any]) -> bool:
    """Whether a passage with this metadata fulfils the condition."""
    if isinstance(condition, All):
        return all(matches(part, meta) for part in condition.parts)
    if isinstance(condition, Some):
        return any(matches(part, meta) for part in condition.parts)
    if isinstance(condition, Not):
        return not matches(condition.part, meta)
    found: Any = meta
    for key in condition.field:
        if not isinstance(found, Mapping) or key not in found:
            return False
        found = found[key]
    if isinstance(condition, Exists):
        return True
    if isinstance(condition, OneOf):
        return any(value in condition.values for value in values_of(found))
    return any(_in_order(value, condition) for value in values_of(found))


def _in_order(value: Value, test: Compare) -> bool:
    if value[0] != test.value[0]:
        return False
    one, other = value[1], test.value[1]
    return bool({"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[test.sign])


def values_of(found: Any) -> list[Value]:
    """The values that a field holds: of a list those in it, but not those of lists and objects inside it."""
    if isinstance(found, list | tuple):
        return [value for value in map(value_of, found) if value[0] >= NULL] or [(LIST, None)]
    return [value_of(found)]


def value_of(found: Any) -> Value:
    """A JSON value with its kind; what JSON has not is taken for a list without a value: nothing finds it."""
    if isinstance(found, str):
        return STRING, found
    if isinstance(found, bool):
        return BOOL, found
    if isinstance(found, int) or (isinstance(found, float) and math.isfinite(found)):
        return NUMBER, found
    if found is None:
        return NULL, None
    return (OBJECT if isinstance(found, Mapping) else LIST), None


# ── Names of fields ──────────────────────────────────────────────────────────────────────────────────────────────────

_PLAIN = re.compile(r"[^\\.]*")


def spelt(field: Path) -> str:
    """How the field is written in a filter: what `path` takes apart."""
    name = ".".join(re.sub(r"([\\.])", r"\\\1", key) for key in field)
    return "\\" + name if name in ("and", "or", "not") or name.startswith("$") else name


def path(name: str) -> Path:
    """The keys that lead to a field."""
    keys: list[str] = []
    key, at = "", 0
    while at < len(name):
        if name[at] == "\\":
            if at + 1 == len(name):
                raise InvalidInput(f"filter: {name!r} ends in a backslash; a backslash in a key is written twice")
            key, at = key + name[at + 1], at + 2
        elif name[at] == ".":
            keys.append(key)
            key, at = "", at + 1
        else:
            plain = _PLAIN.match(name, at)
            assert plain is not None
            key, at = key + plain[0], plain.end()
    keys.append(key)
    if len(keys) > MOST_KEYS:
        raise InvalidInput(f"filter: a field has at most {MOST_KEYS} keys with dots between, not {len(keys)}")
    return tuple(keys)


# ── From what a user writes ──────────────────────────────────────────────────────────────────────────────────────────

_JOINS: dict[str, type[All] | type[Some]] = {"and": All, "or": Some}
_SIGNS = ("<", "<=", ">", ">=")
OPERATORS = ("==", "!=", *_SIGNS, "in", "not in", "exists")
# What people who come from elsewhere write.
_FOREIGN = {
    "$eq": "==", "$ne": "!=", "$lt": "<", "$lte": "<=", "$gt": ">", "$gte": ">=", "$in": "in", "$nin": "not in",
    "$exists": "exists", "$and": "and", "$or": "or", "$not": "not", "=": "==", "eq": "==", "ne": "!=", "lt": "<",
    "lte": "<=", "gt": ">", "gte": ">=", "nin": "not in", "contains": "in",
}  # fmt: skip


def parse(where: Where) -> Condition:
    """The condition that a filter says; InvalidInput tells what is wrong with it and where.

    where: {field: value}, {field: {operator: value, …}}, {"and": [filters]}, {"or": [filters]}, {"not": filter};
    several keys, and several operators of a field, must all be true. At most 1,000 tests, 10,000 values in the lists
    of "in" and "not in" together, and 32 filters inside each other.
    """
    return _Parser().filter(where, "filter", 1)


def joined(join: type[All] | type[Some], parts: Iterable[Condition]) -> Condition:
    """The parts under one "and" (All) or "or" (Some), in one form for all ways to write it."""
    flat: dict[Condition, None] = {}
    for part in parts:
        flat |= dict.fromkeys(part.parts if isinstance(part, join) else [part])
    return next(iter(flat)) if len(flat) == 1 else join(tuple(sorted(flat, key=repr)))


def negated(part: Condition) -> Condition:
    """Not the part; the part of a Not is the thing itself."""
    return part.part if isinstance(part, Not) else Not(part)


class _Parser:
    """Counts what a filter asks for while it is read."""

    def __init__(self) -> None:
        self._terms = self._listed = 0

    def filter(self, where: Any, at: str, depth: int) -> Condition:
        if depth > MOST_DEPTH:
            raise InvalidInput(f"the filter is nested too deeply: at most {MOST_DEPTH} filters inside each other")
        if not isinstance(where, Mapping):
            raise InvalidInput(f'{at}: a filter is a dict like {{"year": {{">=": 2010}}}}, not {_shown(where)}')
        self._count(not where)
        return joined(All, [self._entry(key, value, at, depth) for key, value in where.items()])

    def _entry(self, key: Any, value: Any, at: str, depth: int) -> Condition:
        if not isinstance(key, str):
            raise InvalidInput(f"{at}: a field's name is a string, not {_shown(key)}")
        at = f"{at}: {key}"
        if key in _JOINS:
            if not isinstance(value, list | tuple):
                raise InvalidInput(f'{at}: "{key}" takes a list of filters, not {_shown(value)}')
            self._count(not value)
            return joined(_JOINS[key], [self.filter(part, f"{at}[{i}]", depth + 1) for i, part in enumerate(value)])
        if key == "not":
            return negated(self.filter(value, at, depth + 1))
        if key.startswith("$"):
            hint = f'write "{_FOREIGN[key]}"' if key in _FOREIGN else 'fields are joined by "and", "or" and "not"'
            raise InvalidInput(f'{at}: {hint}; a field of the name {key!r} is written "\\{key}"')
        field = path(key)
        if not isinstance(value, Mapping):
            if isinstance(value, list | tuple):
                raise InvalidInput(f'{at}: a field is compared with one value; for any of several: {{"in": […]}}')
            return self._test(field, "==", value, at)
        if not value:
            raise InvalidInput(f"{at}: an operator is missing; the operators are {', '.join(OPERATORS)}")
        return joined(All, [self._test(field, operator, other, at) for operator, other in value.items()])

    def _test(self, field: Path, operator: Any, value: Any, at: str) -> Condition:
        self._count()
        if operator in ("==", "!="):
            found: Condition = OneOf(field, (self._value(value, at, operator),))
            return found if operator == "==" else negated(found)
        if operator in ("in", "not in"):
            found = OneOf(field, self._values(value, at, operator))
            return found if operator == "in" else negated(found)
        if operator in _SIGNS:
            bound = self._value(value, at, operator)
            if bound[0] not in (NUMBER, STRING):
                raise InvalidInput(f'{at}: "{operator}" compares numbers or strings, not {_shown(value)}')
            return Compare(field, operator, bound)
        if operator == "exists":
            if not isinstance(value, bool):
                raise InvalidInput(f'{at}: "exists" is true or false, not {_shown(value)}')
            return Exists(field) if value else negated(Exists(field))
        hint = f' (write "{_FOREIGN[operator]}")' if isinstance(operator, str) and operator in _FOREIGN else ""
        operators = ", ".join(OPERATORS)
        raise InvalidInput(f"{at}: there is no operator {_shown(operator)}{hint}; the operators are {operators}")

    def _values(self, values: Any, at: str, operator: str) -> tuple[Value, ...]:
        if not isinstance(values, list | tuple):
            raise InvalidInput(f'{at}: "{operator}" takes a list of values, not {_shown(values)}')
        self._listed += len(values)
        if self._listed > MOST_LISTED:
            raise InvalidInput(f'{at}: the lists of "in" and "not in" may have {MOST_LISTED:,} values together')
        return tuple(sorted({self._value(value, at, operator) for value in values}))

    def _value(self, value: Any, at: str, operator: str) -> Value:
        found = value_of(value.item() if isinstance(value, np.generic) else value)
        if found[0] < NULL:
            kinds = "a string, a finite number, true, false or null"
            raise InvalidInput(f'{at}: "{operator}" compares with {kinds}, not {_shown(value)} (dates as ISO strings)')
        if isinstance(found[1], float) and found[1].is_integer():
            return NUMBER, int(found[1])  # one form for 1 and 1.0
        if found[0] == STRING:
            _check_text(found[1], at)
        return found

    def _count(self, terms: int = 1) -> None:
        self._terms += terms
        if self._terms > MOST_TERMS:
            raise InvalidInput(f"the filter has more than {MOST_TERMS:,} tests")


def _check_text(text: str, at: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{at}: {_shown(text)} is not valid text (it holds half a character)") from None


def _shown(value: Any) -> str:
    """A value as the user wrote it, cut short."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    text = text if len(text) <= 60 else text[:57] + "…"
    return repr(text) if isinstance(value, str) else text
