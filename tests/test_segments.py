"""What a manifest says of segments is believed only if the files agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import bundle, live, segments
from bpr.errors import CorruptBundle, UnsupportedFormat

VECTORS = np.random.default_rng(1).standard_normal((20, 16)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten rows and two, one of each deleted."""
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    path = tmp_path / "x.bpr"
    bpr.build([{"id": str(row), "text": "x"} for row in range(10)], path, vectors=VECTORS[:10])
    bpr.add(path, [{"id": str(row), "text": "x"} for row in range(10, 12)], vectors=VECTORS[10:12])
    bpr.delete(path, ["3", "11"])
    return path


def republished(path: Path, change: Callable[[dict[str, Any]], object], **files: np.ndarray) -> None:
    """A bundle whose bytes are sound, and whose meaning is not."""
    with bundle.update(path) as (old, new):
        info = old.info
        change(info)
        for name in old.manifest.files:
            if name in files:
                new.save(name, files[name])
            else:
                new.keep(name)
        new.publish(info, old.manifest.features)


def test_what_is_listed(path: Path) -> None:
    with bundle.open(path) as opened:
        found = segments.listed(opened)
        assert found == [segments.Segment("", 10, "scan"), segments.Segment("s000002-", 2, "scan")]
        assert [segments.deleted(opened, each).tolist() for each in found] == [[3], [1]]
        assert opened.manifest.features == {"segments"}
        assert opened.info["resident"] == ["signs.npy", "s000002-signs.npy"]
        assert segments.Contents(opened).places(["11", "10", "3", "0"]) == [None, (1, 0), None, (0, 0)]


@pytest.mark.parametrize(
    ("name", "owner"),
    [("signs.npy", ""), ("mean.npy", None), ("s000012-signs.npy", "s000012-"), ("deleted.npy", ""), ("signs-2", "")],
)
def test_whose_a_file_is(name: str, owner: str | None) -> None:
    assert segments.owner(name) == owner


@pytest.mark.parametrize(
    "change",
    [
        lambda info: info.pop("segments"),
        lambda info: info.update(segments=7),
        lambda info: info.update(segments=[7]),
        lambda info: info["segments"][0].pop("prefix"),
        lambda info: info["segments"][0].update(rows="many"),
        lambda info: info["segments"][0].update(rows=9),
        lambda info: info["segments"].pop(),
        lambda info: info.update(rows=11),
    ],
)
def test_a_manifest_that_contradicts_the_files(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    republished(path, change)
    with pytest.raises(CorruptBundle, match="restore the bundle"):
        bpr.open(path)


@pytest.mark.parametrize(
    "rows", [np.array([10]), np.array([-1]), np.array([3, 3]), np.array([3], np.int32), np.array([[3]])]
)
def test_deleted_rows_that_cannot_be(path: Path, rows: np.ndarray) -> None:
    republished(path, lambda info: None, **{"deleted.npy": rows})
    with pytest.raises(CorruptBundle, match=r"deleted\.npy that is no list of its rows"):
        bpr.open(path)


def test_codes_for_other_rows(path: Path) -> None:
    republished(path, lambda info: None, **{"signs.npy": np.zeros((9, 2), np.uint8)})
    with pytest.raises(CorruptBundle, match="has 9 codes for 10 passages"):
        bpr.open(path)


def test_a_segment_of_an_unknown_kind(path: Path) -> None:
    republished(path, lambda info: info["segments"][1].update(kind="garden"))
    with pytest.raises(UnsupportedFormat, match="kind 'garden'"):
        bpr.open(path)


def test_filters_over_segments_with_and_without_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    path, whole = tmp_path / "x.bpr", tmp_path / "whole.bpr"
    first = [{"id": str(row), "text": "x"} for row in range(10)]
    second = [{"id": str(row), "text": "x", "year": 2000 + row, "tags": ["a"] * (row % 2)} for row in range(10, 14)]
    bpr.build(first, path, vectors=VECTORS[:10])
    bpr.add(path, second, vectors=VECTORS[10:14])
    bpr.delete(path, ["3", "12"])
    left = [row for row in range(14) if row not in (3, 12)]
    bpr.build([(first + second)[row] for row in left], whole, vectors=VECTORS[left])
    with bpr.open(path) as live_one, bpr.open(whole) as built:
        assert len(live_one.bundle.info["segments"]) == 2
        for where in ({"year": {">": 2010}}, {"not": {"year": 2011}}, {"tags": "a"}, {"year": {"exists": False}}):
            found, expected = (each.rank(VECTORS[:3], k=14, where=where) for each in (live_one, built))
            np.testing.assert_array_equal(found.rows, expected.rows)
            np.testing.assert_array_equal(found.scores, expected.scores)
        assert live_one.rank(VECTORS[:1], k=14, where={"year": 2011}).rows.tolist() == [[10]]


def test_metadata_of_other_rows(path: Path) -> None:
    from bpr import columns

    with bundle.update(path) as (old, new):
        for name in old.manifest.files:
            new.keep(name)
        fields = columns.ColumnsOut()
        fields.add(0, {"year": 1})
        fields.write(new, "", 3)
        new.publish(old.info, old.manifest.features)
    with pytest.raises(CorruptBundle, match="metadata of 3 rows for 10 passages"):
        bpr.open(path)
