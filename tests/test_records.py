"""The values that flow are frozen, printable and JSON-able."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bpr.records import Hit, Hits, Passage

PASSAGE = Passage("7", "Iliad", "Sing, goddess", {"page": 1, "tags": ["a"]})
HIT = Hit("7", "Iliad", "Sing, goddess", 12.5, 1, {"page": 1})


@pytest.mark.parametrize("value", [PASSAGE, HIT])
def test_a_record_goes_to_json_and_back(value: Passage | Hit) -> None:
    as_dict = value.to_dict()
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert type(value)(**as_dict) == value
    assert list(as_dict) == [each.name for each in dataclasses.fields(value)]


@pytest.mark.parametrize("value", [PASSAGE, HIT])
def test_a_record_cannot_be_changed(value: Passage | Hit) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.title = "Odyssey"  # type: ignore[misc]
    value.to_dict()["meta"]["page"] = 2
    assert value.meta["page"] == 1
    assert not hasattr(value, "__dict__")


def test_a_record_prints_what_it_holds() -> None:
    assert repr(HIT) == "Hit(id='7', title='Iliad', text='Sing, goddess', score=12.5, rank=1, meta={'page': 1})"
    assert Passage("1", "", "x").meta == {}
    assert Hit("1", "", "x", 0.0, 1).meta == {}


def test_hits_are_a_pair() -> None:
    rows, scores = Hits(np.zeros((1, 2), np.int64), np.ones((1, 2), np.float32))
    assert rows.shape == scores.shape
    assert Hits._fields == ("rows", "scores")
