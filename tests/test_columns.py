"""Columns in a bundle: which rows they give, what is not kept, and that damage is never believed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpr import bundle
from bpr.columns import FILES, Columns, ColumnsOut, check, layout, reader, stored, writer
from bpr.errors import CorruptBundle, InvalidInput
from bpr.filters import matches, parse

METAS: list[dict[str, Any]] = [
    {"year": 2015, "lang": "en", "tags": ["a", "b"], "author": {"name": "Homer"}},
    {"year": 2016.5, "lang": "de", "tags": ["b", "b", 3]},
    {},
    {"year": 2015.0, "lang": None, "tags": []},
    {"year": 2**70, "lang": "en", "draft": True, "author": "anonymous"},
    {"year": -1, "lang": "é😀", "draft": False, "tags": "b", "and": 1, "x.y": 2},
    {"author": {"name": "Virgil", "born": {"year": -70}}, "lang": ["en", "la"]},
]
WHERES: list[dict[str, Any]] = [
    {},
    {"or": []},
    {"year": 2015},
    {"year": {">": 2015}},
    {"year": {">=": 2015}},
    {"year": {"<": 2015}},
    {"year": {"<=": 2015, ">": -1}},
    {"year": {">": 2**70 - 1}},
    {"year": {"!=": 2015}},
    {"year": {"exists": True}},
    {"lang": "en"},
    {"lang": None},
    {"lang": {"<": "la"}},
    {"lang": {">": "la"}},
    {"lang": {"in": ["la", "de", "xx", None]}},
    {"lang": {"not in": ["la", "de"]}},
    {"lang": {"exists": False}},
    {"tags": "b"},
    {"tags": {"in": ["a", "b"]}},
    {"tags": {"<=": "b"}},
    {"tags": 3},
    {"tags": {"exists": True}},
    {"draft": False},
    {"draft": {"in": [True, False]}},
    {"author": "anonymous"},
    {"author": {"exists": True}},
    {"author.name": {">=": "Homer"}},
    {"author.born.year": {"<": 0}},
    {"\\and": 1},
    {"x\\.y": {"exists": True}},
    {"lang": "en", "year": {">": 0}},
    {"year": {">=": 0, "<": 2016}},
    {"year": {">": 2015, "<": 2015}},
    {"and": [{"year": {">=": 0}}, {"lang": {"<": "la"}}, {"year": {"<=": 2015}}]},
    {"tags": {">": "a", "<": "b"}},
    {"tags": {">=": "a", "<": 5}},
    {"or": [{"draft": True}, {"tags": "a"}, {"not": {"year": {"exists": True}}}]},
    {"not": {"and": [{"lang": "en"}, {"year": 2015}]}},
]


def write(path: Path, metas: Iterable[Mapping[str, Any]], prefix: str = "") -> Path:
    out = ColumnsOut()
    for row, meta in enumerate(metas):
        out.add(row, meta)
    with bundle.create(path) as new:
        out.write(new, prefix)
        new.publish({})
    return path


def columns_of(path: Path, metas: Iterable[Mapping[str, Any]], prefix: str = "") -> Columns:
    with bundle.open(write(path, metas, prefix)) as opened:
        return Columns(opened, prefix)


def rows_of(columns: Columns, where: dict[str, Any]) -> list[int]:
    mask = columns.rows(parse(where))
    assert len(mask) == len(columns)
    return list(np.flatnonzero(mask))


@pytest.mark.parametrize("step", [1, 2, 3, 1 << 16])
@pytest.mark.parametrize("at_once", [1, 3, 1 << 22])
def test_rows_are_those_that_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, at_once: int) -> None:
    monkeypatch.setattr(writer, "LEAST_STEP", step)
    monkeypatch.setattr(writer, "SORTED_AT_ONCE", at_once)
    monkeypatch.setattr(reader, "REMEMBERED", step)
    monkeypatch.setattr(reader, "MOST_REMEMBERED", step)
    columns = columns_of(tmp_path / "b", METAS, "s3-")
    assert len(columns) == len(METAS)
    for where in WHERES:
        check(parse(where), [columns])
        assert rows_of(columns, where) == [row for row, meta in enumerate(METAS) if matches(parse(where), meta)], where


def test_marks_over_many_rows(tmp_path: Path) -> None:
    """Enough rows for marks with the true step; slices of every length, from either end."""
    random = np.random.default_rng(1)
    rows = 300_000
    years, tags = random.integers(0, 50, rows), random.integers(0, 4, (rows, 2))
    late = random.integers(0, 1000, rows)
    metas = (
        {"year": year, "tags": pair, "late": minute} if row > 1000 else {"year": year, "tags": pair}
        for row, (year, pair, minute) in enumerate(zip(years.tolist(), tags.tolist(), late.tolist(), strict=True))
    )
    columns = columns_of(tmp_path / "b", metas)
    with bundle.open(tmp_path / "b") as opened:
        assert len(opened.array(layout.MARKS)) == sum(each.entries // (1 << 16) for each in columns.fields) > 10
    has_late = np.arange(rows) > 1000
    for bound in (0, 1, 7, 25, 44, 49, 50):
        np.testing.assert_array_equal(columns.rows(parse({"year": {"<": bound}})), years < bound)
        np.testing.assert_array_equal(columns.rows(parse({"year": {">=": bound}})), years >= bound)
        np.testing.assert_array_equal(columns.rows(parse({"late": {">": bound * 20}})), (late > bound * 20) & has_late)
        between = parse({"year": {">=": bound, "<=": 44, "<": 40}})
        np.testing.assert_array_equal(columns.rows(between), (years >= bound) & (years < 40))
    for tag in range(4):
        np.testing.assert_array_equal(columns.rows(parse({"tags": tag})), (tags == tag).any(axis=1))
        np.testing.assert_array_equal(columns.rows(parse({"tags": {"<=": tag}})), (tags <= tag).any(axis=1))
    np.testing.assert_array_equal(columns.rows(parse({"late": {"exists": True}})), has_late)
    for second in (0, 7, 999, 1000):  # one of many values is searched for, several are read with all others
        np.testing.assert_array_equal(columns.rows(parse({"late": second})), (late == second) & has_late)
    several = {"in": list(range(3, 50, 2))}
    np.testing.assert_array_equal(columns.rows(parse({"year": several})), (years % 2 == 1) & (years > 1))


def test_rows_without_metadata_at_either_end(tmp_path: Path) -> None:
    out = ColumnsOut()
    out.add(3, {"a": 1})
    out.add(5, {"a": 2})
    with bundle.create(tmp_path / "b") as new:
        out.write(new, "seg1-", rows=9)
        ColumnsOut().write(new, "seg2-", rows=0)
        ColumnsOut().write(new, "seg3-", rows=5)
        new.publish({})
    with bundle.open(tmp_path / "b") as opened:
        one, two, three = (Columns(opened, f"seg{i}-") for i in (1, 2, 3))
        assert [stored(opened, prefix) for prefix in ("seg1-", "seg3-", "", "seg4-")] == [True, True, False, False]
    assert rows_of(one, {"a": {">": 0}}) == [3, 5]
    assert rows_of(one, {"a": {"!=": 1}}) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert rows_of(two, {"not": {"a": 1}}) == rows_of(two, {"a": 1}) == rows_of(two, {}) == []
    assert rows_of(three, {"a": 1}) == []
    assert rows_of(three, {}) == [0, 1, 2, 3, 4]


def test_rows_must_ascend_and_fit(tmp_path: Path) -> None:
    out = ColumnsOut()
    out.add(3, {})
    with pytest.raises(InvalidInput, match="rows must ascend: row 3 came behind row 3"):
        out.add(3, {})
    with bundle.create(tmp_path / "b") as new, pytest.raises(InvalidInput, match=r"row 3 has metadata.* only 3 rows"):
        out.write(new, rows=3)


def test_more_rows_than_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ColumnsOut()
    for row in (0, 1, 2**32 - 1, 2**32, 2**32 + 7):
        out.add(row, {"a": row})
    with bundle.create(tmp_path / "b") as new:
        out.write(new)
        new.publish({})
    with bundle.open(tmp_path / "b") as opened:
        found = opened.array(layout.ROWS)
        assert found.dtype == np.uint64
        assert found.tolist() == [0, 1, 2**32 - 1, 2**32, 2**32 + 7]
        assert len(Columns(opened)) == 2**32 + 8


def test_a_bundle_of_any_kind_of_metadata_has_few_files(tmp_path: Path) -> None:
    path = write(tmp_path / "b", [{f"field {i}": i} for i in range(200)], "x-")
    with bundle.open(path) as opened:
        assert sorted(opened.manifest.files) == sorted("x-" + name for name in FILES)
        columns = Columns(opened, "x-")
    assert len(columns.fields) == 200
    assert columns.fields[0].name == "field 0" and columns.fields[0].values == 1


# ── what a user is told ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"yaer": 1}, r"there is no field 'yaer'; the fields are '\\\\and', 'author', 'author.born', .*'tags'.*'year'"),
        ({"or": [{"year": 1}, {"not": {"x.y": 1}}]}, r"there is no field 'x.y'; .*'x\\\\.y'"),
        ({"year": "2015"}, "'year' holds numbers: it cannot be compared with \"2015\", which is one of strings"),
        ({"year": {">": "2015"}}, "'year' holds numbers"),
        (
            {"year": {"!=": True}},
            "'year' holds numbers: it cannot be compared with true, which is one of true or false",
        ),
        ({"draft": 1}, "'draft' holds true or false: it cannot be compared with 1"),
        ({"lang": {"in": ["en", 3]}}, "'lang' holds strings and null: it cannot be compared with 3"),
        ({"author.born": "x"}, "'author.born' holds objects: .*filter on the fields inside the objects"),
        ({"author": 1}, "'author' holds strings and objects"),
    ],
)
def test_unknown_fields_and_wrong_types(tmp_path: Path, where: dict[str, Any], says: str) -> None:
    columns = columns_of(tmp_path / "b", METAS)
    with pytest.raises(InvalidInput, match=says):
        check(parse(where), [columns])


def test_what_may_always_be_asked(tmp_path: Path) -> None:
    columns = columns_of(tmp_path / "b", [{"a": None, "b": [], "c": 1}])
    for where in ({"a": 1}, {"b": "x"}, {"c": None}, {"c": {"!=": None}}, {"a": {"exists": True}}, {"b": {"<": 3}}, {}):
        check(parse(where), [columns])
        expected = [0] if matches(parse(where), {"a": None, "b": [], "c": 1}) else []
        assert rows_of(columns, where) == expected


def test_fields_are_those_of_all_segments(tmp_path: Path) -> None:
    one = columns_of(tmp_path / "one", [{"a": 1}])
    two = columns_of(tmp_path / "two", [{"a": "x", "b": 1}])
    check(parse({"a": "x", "b": 1}), [one, two])
    assert rows_of(one, {"a": "x"}) == rows_of(one, {"b": 1}) == []
    assert rows_of(one, {"b": {"!=": 1}}) == rows_of(two, {"a": "x"}) == [0]
    with pytest.raises(InvalidInput, match="holds strings and numbers"):
        check(parse({"a": True}), [one, two])
    with pytest.raises(InvalidInput, match=r"there is no field 'c'; the fields are 'a', 'b'$"):
        check(parse({"c": True}), [one, two])
    with pytest.raises(InvalidInput, match="the passages have no metadata"):
        check(parse({"c": True}), [])


# ── what is not kept ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("limit", "value"), [("MOST_VALUES", 10), ("MOST_VALUE_BYTES", 50)])
def test_too_many_different_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(writer, limit, value)
    metas = [{"url": f"https://{i}.org", "n": i % 3} for i in range(20)]
    columns = columns_of(tmp_path / "b", metas)
    assert [(each.name, each.kept) for each in columns.fields] == [("n", True), ("url", False)]
    with pytest.raises(InvalidInput, match=r"'url' has too many different values to filter on .*coarser field"):
        check(parse({"url": "https://1.org"}), [columns])
    check(parse({"n": 1}), [columns])
    assert rows_of(columns, {"n": 1}) == list(range(1, 20, 3))
    assert rows_of(columns, {"url": {"exists": True}}) == []  # `check` has refused it before


def test_too_many_fields(tmp_path: Path) -> None:
    columns = columns_of(tmp_path / "b", [{f"f{i}": i for i in range(1001)}])
    assert len(columns.fields) == 1000 and columns.more
    assert rows_of(columns, {"f999": 999}) == [0]
    with pytest.raises(InvalidInput, match=r"no field 'f1000'; .* and 970 more .only the first 1,000 fields"):
        check(parse({"f1000": 1000}), [columns])


def test_objects_deeper_than_a_field_may_be(tmp_path: Path) -> None:
    meta: dict[str, Any] = {"k": 1}
    for _ in range(500):
        meta = {"k": meta}
    columns = columns_of(tmp_path / "b", [meta])
    assert len(columns.fields) == 16
    assert rows_of(columns, {".".join("k" * 16): {"exists": True}}) == [0]


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged(tmp_path: Path, name: str, change: Callable[[np.ndarray], Any]) -> Columns:
    """The columns of a bundle one file of which was never right, whatever its checksum says."""
    metas = [{"a": i % 7, "b": [i % 3, i % 5]} for i in range(43)]
    with bundle.open(write(tmp_path / "good", metas)) as opened:
        arrays = {each: opened.array(each).copy() for each in FILES}
    changed = change(arrays[name])
    arrays[name] = arrays[name] if changed is None else changed
    with bundle.create(tmp_path / "bad") as new:
        for each, content in arrays.items():
            if each.endswith(".npy"):
                new.save(each, content)
            else:
                with new.file(each) as out:
                    out.write(content.tobytes())
        new.publish({})
    with bundle.open(tmp_path / "bad") as opened:
        return Columns(opened)


def fields_with(**changes: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(raw: np.ndarray) -> np.ndarray:
        document = json.loads(raw.tobytes())
        for key, value in changes.items():
            target = document if key in document else document["fields"][0]
            target[key] = value
        return np.frombuffer(json.dumps(document).encode(), np.uint8)

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (layout.FIELDS, lambda raw: raw[:-5]),
        (layout.FIELDS, lambda raw: np.frombuffer(b"[" * 100_000, np.uint8)),
        (layout.FIELDS, lambda raw: np.frombuffer(b"[]", np.uint8)),
        (layout.FIELDS, lambda raw: np.frombuffer(b"{}", np.uint8)),
        (layout.FIELDS, fields_with(rows=-1)),
        (layout.FIELDS, fields_with(rows=44.5)),
        (layout.FIELDS, fields_with(rows=10**30)),
        (layout.FIELDS, fields_with(rows=100)),
        (layout.FIELDS, fields_with(step=0)),
        (layout.FIELDS, fields_with(step=1)),
        (layout.FIELDS, fields_with(fields=[7])),
        (layout.FIELDS, fields_with(fields=[])),
        (layout.FIELDS, fields_with(keys=[])),
        (layout.FIELDS, fields_with(keys=[1])),
        (layout.FIELDS, fields_with(kinds=[1, 2])),
        (layout.FIELDS, fields_with(kinds=[0, 0, 0, 0, 8, 0])),
        (layout.FIELDS, fields_with(kinds=[0, 0, 0, 0, -7, 14])),
        (layout.FIELDS, fields_with(entries=1)),
        (layout.FIELDS, fields_with(entries="many")),
        (layout.STARTS, lambda starts: starts[1:]),
        (layout.STARTS, lambda starts: starts.astype(np.int64)),
        (layout.ROWS, lambda rows: rows[1:]),
        (layout.ROWS, lambda rows: rows.astype(np.uint64)),
        (layout.MARKS, lambda marks: np.zeros((1, 6), np.uint8)),
        (layout.MARKS, lambda marks: np.zeros((0, 5), np.uint8)),
    ],
)
def test_files_that_do_not_belong_together(tmp_path: Path, name: str, change: Callable[[np.ndarray], Any]) -> None:
    with pytest.raises(CorruptBundle, match="restore or rebuild"):
        damaged(tmp_path, name, change)


def put(place: Any, value: int) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[place] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        (layout.STARTS, put((slice(None), 0), 2**63), "points outside meta-values"),
        (layout.STARTS, put((slice(None), 0), 0), r"does not hold \d+ values at byte 0"),
        (layout.STARTS, lambda starts: starts[::-1].copy(), "points outside meta-values"),
        (layout.STARTS, put((slice(None), 1), 2**64 - 1), "points outside the rows of 'a'"),
        (layout.STARTS, put((4, 1), 100), "points outside the rows of 'a'"),
        (layout.ROWS, put(slice(None), 43), "names a row that is not there"),
        (layout.ROWS, put(slice(None), 2**32 - 1), "names a row that is not there"),
        (layout.VALUES, put(slice(None), 255), r"does not hold \d+ values at byte"),
        (layout.VALUES, put(slice(None), ord("[")), r"does not hold \d+ values at byte"),
    ],
)
def test_values_that_lead_outside(tmp_path: Path, name: str, change: Callable[[np.ndarray], None], says: str) -> None:
    columns = damaged(tmp_path, name, change)
    with pytest.raises(CorruptBundle, match=says):
        columns.rows(parse({"a": {"in": [3, 4]}}))
    with pytest.raises(CorruptBundle, match="restore or rebuild"):
        columns.rows(parse({"and": [{"b": 1}, {"a": {">": 3}}, {"b": {"exists": True}}]}))


def test_marks_with_rows_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LEAST_STEP", 5)
    columns = damaged(tmp_path, layout.MARKS, put((slice(None), -1), 255))
    with pytest.raises(CorruptBundle, match="holds rows that are not there"):
        columns.rows(parse({"a": {"<": 5}}))


def test_blocks_are_verified_before_they_are_used(tmp_path: Path) -> None:
    path = write(tmp_path / "b", [{"a": i % 7} for i in range(40_000)])
    file = path / "gen-000001" / layout.ROWS
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with bundle.open(path, verify_limit=0) as opened:
        columns = Columns(opened)
    assert columns.rows(parse({"a": 0})).count() == 5715
    with pytest.raises(CorruptBundle, match="has changed since it was published"):
        columns.rows(parse({"a": 6}))
