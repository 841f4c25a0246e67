"""The language of filters: what it means for one passage, what is refused and in which words."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from bpr import filters
from bpr.errors import InvalidInput
from bpr.filters import MOST_DEPTH, MOST_KEYS, MOST_LISTED, MOST_TERMS, matches, parse, path, spelt

META = {
    "year": 2015,
    "lang": "en",
    "score": 0.5,
    "draft": False,
    "source": None,
    "tags": ["history", "war", 7],
    "author": {"name": "Homer", "born": {"place": "Chios"}},
    "empty": [],
    "rooms": [{"name": "hall"}, ["x"]],
    "day": "2015-03-01",
    "a.b": 1,
    "and": 2,
    "$eq": 3,
    "back\\slash": 4,
}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, True),
        ({"year": 2015}, True),
        ({"year": 2015.0}, True),
        ({"year": 2014}, False),
        ({"year": "2015"}, False),
        ({"year": {">=": 2015, "<": 2016}}, True),
        ({"year": {">": 2015}}, False),
        ({"year": {"<=": 2014.5}}, False),
        ({"year": {"<": 10**400}}, True),
        ({"year": {">=": 2010}, "lang": "en"}, True),
        ({"year": {">=": 2010}, "lang": "de"}, False),
        ({"year": {"!=": 2014}}, True),
        ({"year": {"!=": 2015}}, False),
        ({"year": {"in": [2014, 2015]}}, True),
        ({"year": {"in": []}}, False),
        ({"year": {"not in": []}}, True),
        ({"year": {"not in": [2014, 2015]}}, False),
        ({"score": {"==": 0.5}}, True),
        ({"draft": False}, True),
        ({"draft": 0}, False),  # JSON's false is no number
        ({"draft": {"in": [0, 1]}}, False),
        ({"year": {"<": "a"}}, False),  # no order between types
        ({"day": {">=": "2015", "<": "2015-04"}}, True),
        ({"source": None}, True),
        ({"source": {"!=": None}}, False),
        ({"lang": {"!=": None}}, True),
        ({"source": {"exists": True}}, True),  # null is there
        # missing: no comparison, but every negation
        ({"missing": None}, False),
        ({"missing": {"<": 1}}, False),
        ({"missing": {"!=": 1}}, True),
        ({"missing": {"not in": [1]}}, True),
        ({"missing": {"exists": False}}, True),
        ({"missing": {"exists": True}}, False),
        ({"year": {"exists": False}}, False),
        # lists: any item
        ({"tags": "war"}, True),
        ({"tags": 7}, True),
        ({"tags": "peace"}, False),
        ({"tags": {"!=": "war"}}, False),
        ({"tags": {"!=": "peace"}}, True),
        ({"tags": {">": "u", "<": "i"}}, True),  # "war" and "history": each comparison finds its own
        ({"tags": {"<": 8}}, True),
        ({"empty": {"exists": True}}, True),
        ({"empty": "x"}, False),
        ({"rooms": "x"}, False),
        ({"rooms": {"exists": True}}, True),
        ({"rooms.name": {"exists": True}}, False),  # objects in lists are not entered
        # objects
        ({"author.name": "Homer"}, True),
        ({"author.born.place": {"in": ["Chios", "Smyrna"]}}, True),
        ({"author.died": {"exists": True}}, False),
        ({"author": {"exists": True}}, True),
        ({"lang.name": "Homer"}, False),
        # odd names
        ({"a\\.b": 1}, True),
        ({"a.b": 1}, False),
        ({"\\and": 2}, True),
        ({"\\$eq": 3}, True),
        ({"back\\\\slash": 4}, True),
        # and, or, not
        ({"and": [{"year": 2015}, {"lang": "en"}]}, True),
        ({"and": [{"year": 2015}, {"lang": "de"}]}, False),
        ({"and": []}, True),
        ({"or": [{"year": 1}, {"lang": "en"}]}, True),
        ({"or": [{"year": 1}, {"lang": "de"}]}, False),
        ({"or": []}, False),
        ({"not": {"year": 1}}, True),
        ({"not": {"year": {">": 2000, "<": 2020}}}, False),
        ({"not": {"not": {"year": 2015}}}, True),
        ({"lang": "en", "or": [{"year": 1}, {"tags": "war"}], "not": {"draft": True}}, True),
    ],
)
def test_what_a_filter_means(where: dict[str, Any], expected: bool) -> None:
    assert matches(parse(where), META) is expected


def test_numbers_are_compared_exactly() -> None:
    big = 2**53 + 1  # no float64 is this number
    assert matches(parse({"n": big}), {"n": big})
    assert not matches(parse({"n": float(2**53)}), {"n": big})
    assert matches(parse({"n": {">": float(2**53)}}), {"n": big})


def test_numpy_values_are_as_good() -> None:
    assert parse({"year": np.int64(2015), "x": {"in": [np.float32(0.5), np.bool_(True), np.str_("a")]}}) == parse(
        {"year": 2015, "x": {"in": [0.5, True, "a"]}}
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": {"==": 1.0}}),
        ({"a": 1}, {"a": {"in": [1]}}),
        ({"a": {"in": [3, 1, 2, 1]}}, {"a": {"in": [1, 2, 3]}}),
        ({"a": {">": 1, "<": 5}}, {"and": [{"a": {"<": 5}}, {"a": {">": 1}}]}),
        ({"a": {"!=": 1}}, {"not": {"a": 1}}),
        ({"a": {"exists": False}}, {"not": {"a": {"exists": True}}}),
        ({"or": [{"a": 1}, {"or": [{"b": 1}, {"a": 1}]}]}, {"or": [{"b": 1}, {"a": 1}]}),
        ({"not": {"not": {"a": 1}}}, {"and": [{"a": 1}]}),
        ({}, {"and": []}),
    ],
)
def test_filters_that_say_the_same_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse(one) == parse(other)
    assert hash(parse(one)) == hash(parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"a": True}), ({"a": 0}, {"a": False}), ({"a": None}, {"a": "null"}), ({}, {"or": []})],
)
def test_filters_that_differ_in_type_only_are_not_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse(one) != parse(other)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (None, r"a filter is a dict like .*, not null"),
        ([], "a filter is a dict"),
        ("year", "a filter is a dict like .*, not 'year'"),
        ({1: 2}, "filter: a field's name is a string, not 1"),
        ({"and": {"a": 1}}, 'filter: and: "and" takes a list of filters, not {"a": 1}'),
        ({"or": 1}, 'filter: or: "or" takes a list of filters, not 1'),
        ({"or": [{"a": 1}, 2]}, r"filter: or\[1\]: a filter is a dict"),
        ({"not": [{"a": 1}]}, "filter: not: a filter is a dict"),
        ({"year": [1, 2]}, r'filter: year: .*one value; for any of several: {"in": \[…\]}'),
        ({"year": {}}, "filter: year: an operator is missing; the operators are ==, !=, <, .*exists"),
        ({"year": {"~": 1}}, "filter: year: there is no operator '~'; the operators are ==, !=, <, "),
        ({"year": {7: 1}}, "there is no operator 7"),
        ({"year": {"$gte": 1}}, r"there is no operator '\$gte' \(write \">=\"\)"),
        ({"year": {"eq": 1}}, r"there is no operator 'eq' \(write \"==\"\)"),
        ({"$and": []}, r'filter: \$and: write "and"; a field of the name .* is written "\\\\\$and"|\$and'),
        ({"$text": 1}, r'filter: \$text: fields are joined by "and", "or" and "not"'),
        ({"year": {"in": 1}}, 'filter: year: "in" takes a list of values, not 1'),
        ({"year": {"not in": "abc"}}, '"not in" takes a list of values'),
        ({"year": {"in": [[1]]}}, r'"in" compares with a string, a finite number, .* not \[1\]'),
        ({"year": {"==": {"a": 1}}}, '"==" compares with a string'),
        ({"year": {"==": float("nan")}}, "finite number"),
        ({"year": {"<": float("inf")}}, "finite number"),
        ({"day": datetime.date(2020, 1, 1)}, "dates as ISO strings"),
        ({"year": {"<": None}}, '"<" compares numbers or strings, not null'),
        ({"year": {">=": True}}, '">=" compares numbers or strings, not true'),
        ({"year": {"exists": 1}}, '"exists" is true or false, not 1'),
        ({"name": "\ud800"}, "half a character"),
        ({"a\\": 1}, "ends in a backslash"),
        ({".".join("a" * (MOST_KEYS + 1)): 1}, "at most 16 keys"),
        ({"year": {"in": ["x" * 1000, []]}}, r"not \[\]"),
        ({"x" * 100: {"<": {"y": "z" * 100}}}, "…"),
    ],
)
def test_what_is_refused(where: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse(where)


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput, match="not list"):
        parse({"a": {"==": loop}})


def nested(depth: int) -> dict[str, Any]:
    where: dict[str, Any] = {"a": 1}
    for _ in range(depth - 1):
        where = {"not": where}
    return where


def test_limits() -> None:
    parse(nested(MOST_DEPTH))
    with pytest.raises(InvalidInput, match="nested too deeply: at most 32"):
        parse(nested(MOST_DEPTH + 1))
    loop: dict[str, Any] = {}
    loop["not"] = loop
    with pytest.raises(InvalidInput, match="nested too deeply"):
        parse(loop)
    parse({"or": [{"a": i} for i in range(MOST_TERMS)]})
    for one in ({"a": 1}, {}, {"or": []}):
        with pytest.raises(InvalidInput, match="more than 1,000 tests"):
            parse({"or": [one] * (MOST_TERMS + 1)})
    parse({"a": {"in": list(range(MOST_LISTED))}})
    half = {"in": list(range(MOST_LISTED // 2 + 1))}
    with pytest.raises(InvalidInput, match="10,000 values together"):
        parse({"a": half, "b": half})


@pytest.mark.parametrize(
    "keys",
    [
        ("a",),
        ("a", "b"),
        ("a.b",),
        ("and",),
        ("or", "x"),
        ("not",),
        ("$x", "$y"),
        ("",),
        ("", ""),
        ("\\", "."),
        ("a\\.",),
    ],
)
def test_names_of_fields_and_back(keys: tuple[str, ...]) -> None:
    assert path(spelt(keys)) == keys
    condition = parse({spelt(keys): 1})
    assert isinstance(condition, filters.OneOf) and condition.field == keys


def test_every_test_of_a_condition() -> None:
    condition = parse({"a": 1, "or": [{"b": {">": 2}}, {"not": {"c": {"exists": True}}}]})
    assert {test.field for test in filters.fields_of(condition)} == {("a",), ("b",), ("c",)}
