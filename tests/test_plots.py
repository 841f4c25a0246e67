"""Drawings: real PNG and SVG with what was asked for in them, and the same bytes every time."""

from __future__ import annotations

import itertools
import sys

import numpy as np

from bpr import plots

CURVES = {"answer": np.linspace(40, 90, 100), "gold": np.linspace(30, 80, 100)}


def test_recall_is_drawn_as_png_and_svg_with_all_its_curves():
    drawn = plots.recall_at_k(CURVES, {"gold, other": np.linspace(20, 70, 20)}, "wiki.bpr")
    assert [*drawn] == [*plots.TYPES]
    assert drawn["png"].startswith(b"\x89PNG\r\n\x1a\n")
    svg = drawn["svg"].decode()
    assert svg.rstrip().endswith("</svg>")
    for text in ("answer", "gold, other", "wiki.bpr", "recall@k, %", "100"):
        assert f"<!-- {text} -->" in svg


def test_the_same_numbers_give_the_same_bytes():
    assert plots.recall_at_k(CURVES, {}) == plots.recall_at_k(CURVES, {})


def test_a_single_point_can_be_drawn():
    assert plots.recall_at_k({"gold": np.array([50.0])}, {})["png"]


def test_nothing_is_drawn_without_matplotlib(monkeypatch):
    assert plots.available()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.available()


PLACES = {"flat": (1536, 93.0), "graph": (1812, 92.5), "ours": (96, 92.3), "theirs": (98, 92.3), "late": (97, 92.25)}


def test_systems_are_named_beside_their_points():
    drawn = plots.points(PLACES, {"ours"}, "bytes", "found")
    svg = drawn["svg"].decode()
    for text in (*PLACES, "bytes", "found"):
        assert f"<!-- {text} -->" in svg
    assert drawn == plots.points(PLACES, {"ours"}, "bytes", "found")
    assert svg.count(plots.STRONG) > plots.points(PLACES, (), "bytes", "found")["svg"].decode().count(plots.STRONG) == 0


def test_no_name_stands_upon_another_or_crosses_to_the_other_half():
    put = plots._labels(PLACES)
    cheap, dear = ["ours", "theirs", "late"], ["flat", "graph"]
    for names in (cheap, dear):
        across, heights = zip(*(put[name] for name in names), strict=True)
        assert len(set(across)) == 1
        assert all(above - below > 0.03 for above, below in itertools.pairwise(heights))
    assert max(PLACES[name][0] for name in cheap) < put["ours"][0] < put["flat"][0] < 1536
    assert [put["flat"][1], put["ours"][1]] == [93.0, 92.3]  # who has room stands where the point is


def test_one_system_and_equal_ones_can_be_drawn():
    assert plots.points({"alone": (96, 92.3)}, (), "bytes", "found")["png"]
    twins = {"one": (96, 92.3), "two": (96, 92.3)}
    assert plots._labels(twins)["one"][1] > plots._labels(twins)["two"][1] + 0.1
    assert plots.points(twins, (), "bytes", "found")["png"]
