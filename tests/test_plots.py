"""Drawings: real PNG and SVG with what was asked for in them, and the same bytes every time."""

from __future__ import annotations

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
