"""Rankings into one, and hits by document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpr.errors import InvalidInput
from bpr.fusion import document_of, grouped, neighbours_of, reciprocal, weighted
from bpr.records import Hit, Passage


def test_reciprocal_ranks() -> None:
    rows, scores = reciprocal([[7, 3, 5], [3, 9]], k=60)
    assert rows.tolist() == [3, 7, 9, 5] and rows.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_allclose(scores, [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63], rtol=1e-6)


def test_weighted_scores() -> None:
    rows, scores = weighted([([7, 3, 5], [10.0, 6.0, 2.0]), ([3, 9], [0.9, 0.5])], [1, 2])
    assert rows.tolist() == [3, 7, 5, 9]
    spread = np.sqrt(32 / 3)
    np.testing.assert_allclose(scores, [4 / spread + 2 * 2, 8 / spread, 0, 0], rtol=1e-6)
    assert scores.dtype == np.float32


def test_ties_stand_in_the_order_of_rows() -> None:
    assert reciprocal([[9, 1], [4, 2]])[0].tolist() == [4, 9, 1, 2]
    assert weighted([([9, 8, 1], [1.0, 1.0, 1.0])])[0].tolist() == [1, 8, 9]


def test_one_list_alone_is_itself() -> None:
    rows, scores = [5, 2, 8], [3.0, 2.5, -1.0]
    for some in (
        reciprocal([rows]),
        reciprocal([rows, []]),
        weighted([(rows, scores)]),
        weighted([(rows, scores), ([], [])]),
    ):
        assert some[0].tolist() == rows
    assert reciprocal([rows, [1, 2, 3]], weights=[1, 0])[0].tolist() == rows
    assert weighted([(rows, scores), ([1], [1.0])], weights=[1, 0])[0].tolist() == rows


def test_nothing_at_all() -> None:
    for rows, scores in (reciprocal([]), weighted([]), reciprocal([[]]), weighted([([], [])], [0.0])):
        assert rows.tolist() == scores.tolist() == [] and rows.dtype == np.int64


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: reciprocal([[1]], k=-1), "k must be 0 or more"),
        (lambda: reciprocal([[1]], k=float("nan")), "k must be 0 or more"),
        (lambda: reciprocal([[1, 1]]), "a row twice"),
        (lambda: reciprocal([[0.5]]), "a ranking is row numbers"),
        (lambda: reciprocal([[[1]]]), "a ranking is row numbers"),
        (lambda: reciprocal([[1]], weights=[1, 1]), "1 rankings need 1 weights"),
        (lambda: reciprocal([[1]], weights=[-1]), "weights of 0 or more"),
        (lambda: reciprocal([[1]], weights=[float("inf")]), "weights of 0 or more"),
        (lambda: weighted([([1, 2], [1.0])]), "a ranking of 2 rows needs as many finite scores"),
        (lambda: weighted([([1], [float("nan")])]), "finite scores"),
    ],
)
def test_what_is_no_ranking(call: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call()


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def hit(id: str, score: float = 1.0, rank: int = 1, title: str = "", **meta: Any) -> Hit:
    return Hit(id, title, f"text of {id}", score, rank, meta)


@pytest.mark.parametrize(
    ("id", "meta", "document"),
    [
        ("iliad.txt#12", {}, "iliad.txt"),
        ("a-b-7", {}, "a-b"),
        ("a#1-2", {}, "a#1"),
        ("iliad", {}, "iliad"),
        ("iliad#", {}, "iliad#"),
        ("iliad#x", {}, "iliad#x"),
        ("iliad#007", {}, "iliad#007"),
        ("iliad#²", {}, "iliad#²"),
        ("iliad#12345678901234567", {}, "iliad#12345678901234567"),
        ("#3", {}, "#3"),
        ("17", {}, "17"),
        ("x#1", {"document": "y"}, "y"),
        ("x#1", {"document": 5}, "x"),
        ("x#1", {"document": ""}, "x"),
    ],
)
def test_the_document_of_a_passage(id: str, meta: dict[str, Any], document: str) -> None:
    assert document_of(hit(id, **meta)) == document
    assert document_of(Passage(id, "", "", meta)) == document


def test_neighbours() -> None:
    assert neighbours_of("a.txt#3", 2) == ["a.txt#1", "a.txt#2", "a.txt#3", "a.txt#4", "a.txt#5"]
    assert neighbours_of("a-0", 1) == ["a-0", "a-1"]
    assert neighbours_of("a", 5) == ["a"]
    assert neighbours_of("a#3", 0) == ["a#3"]


def test_groups() -> None:
    hits = [hit("a#4", 9, 1), hit("b#0", 8, 2), hit("a#1", 7, 3), hit("lone", 6, 4), hit("b#2", 5, 5)]
    groups = grouped(hits)
    assert [(group.document, group.rank, group.score) for group in groups] == [("a", 1, 9), ("b", 2, 8), ("lone", 3, 6)]
    assert [[each.id for each in group.hits] for group in groups] == [["a#4", "a#1"], ["b#0", "b#2"], ["lone"]]
    assert [[each.id for each in group.passages] for group in groups] == [["a#4"], ["b#0"], ["lone"]]
    assert groups[0].to_dict()["score"] == 9 and groups[0].to_dict()["hits"][1]["id"] == "a#1"
    assert grouped([]) == []


def test_groups_with_neighbours() -> None:
    known = {f"a#{number}": Passage(f"a#{number}", "", f"part {number}") for number in range(6)}
    known["b#1"] = Passage("b#1", "", "of another document", {"document": "c"})
    groups = grouped([hit("a#5", 9, 1), hit("b#0", 8, 2)], neighbours=2, find=known.get)
    assert [each.id for each in groups[0].passages] == ["a#3", "a#4", "a#5"]
    assert groups[0].passages[2].text == "text of a#5"
    assert [each.id for each in groups[1].passages] == ["b#0"]


def test_groups_by_what_the_caller_says() -> None:
    hits = [hit("1", title="Iliad"), hit("2", title="Odyssey"), hit("3", title="Iliad")]
    assert [[each.id for each in group.hits] for group in grouped(hits, lambda one: one.title)] == [["1", "3"], ["2"]]


@pytest.mark.parametrize("how", [{"neighbours": -1}, {"neighbours": 1}])
def test_neighbours_need_a_way_to_fetch_them(how: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="neighbours must be 0 or more, and need `find`"):
        grouped([hit("a#1")], **how)
