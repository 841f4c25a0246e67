"""Drawings of measurements, as PNG and SVG. The only importer of matplotlib (extra `eval`).

The command line calls it with numbers; it must not know how they came about. Figures are made without pyplot, so
nothing outside is changed, and the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TYPES = ("png", "svg")
TICKS = [digit * 10**power for power in range(5) for digit in (1, 2, 5)]
STRONG, PALE = "#4c6ef5", "#868e96"  # what is ours; what stands beside it


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


Curves: TypeAlias = Mapping[str, NDArray[np.float64]]


def recall_at_k(curves: Curves, dashed: Curves, title: str = "") -> dict[str, bytes]:
    """recall@k over k, by file type. curves: float[depth] in percent, by name; dashed: what they are compared with."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for style, group in (("-", curves), ("--", dashed)):
        for name, values in group.items():
            axes.plot(np.arange(1, len(values) + 1), values, style, label=name)
    axes.set(xscale="log", xlabel="k", ylabel="recall@k, %", title=title, ylim=(None, 101))
    depth = max(map(len, curves.values()))
    axes.set_xticks([k for k in TICKS if k <= depth], labels=[f"{k:,}" for k in TICKS if k <= depth])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return _files(figure)


def _files(figure: Figure) -> dict[str, bytes]:
    """The same numbers give the same bytes."""
    from matplotlib import rc_context

    drawn = {}
    with rc_context({"svg.hashsalt": "bpr"}):
        for kind in TYPES:
            file = io.BytesIO()
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
            drawn[kind] = file.getvalue()
    return drawn


def reliability(
    bins: Sequence[Mapping[str, float]], coverage: Mapping[str, float], title: str = ""
) -> dict[str, bytes]:
    """How right answers are by how confident, and how right the most confident ones are, by file type.

    bins: "confidence", "right" and "answers" of each; coverage: percent right among the so many percent most confident.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], "--", color="grey", linewidth=1)
    left.plot([each["confidence"] for each in bins], [each["right"] for each in bins], "o-")
    left.set(xlabel="confidence", ylabel="share exactly right", xlim=(0, 1), ylim=(0, 1), title=title)
    right.plot([float(share.rstrip("%")) for share in coverage], list(coverage.values()), "o-")
    right.set(
        xlabel="questions answered, the most confident first, %", ylabel="exactly right of them, %", ylim=(0, 101)
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return _files(figure)


def points(places: Mapping[str, tuple[float, float]], bold: Collection[str], across: str, up: str) -> dict[str, bytes]:
    """Systems by what they cost (a logarithmic axis) and what they find, by file type. bold: those that stand out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, place in _labels(places).items():
        ours, aside = name in bold, place[0] > places[name][0]
        shape, size, color = ("o", 9, STRONG) if ours else ("s", 6, PALE)
        axes.plot(*places[name], shape, color=color, markersize=size, zorder=3 + ours)
        line = {"arrowstyle": "-", "color": PALE, "linewidth": 0.7, "relpos": (float(not aside), 0.5), "shrinkB": 4}
        text = axes.annotate(name, places[name], place, arrowprops=line, va="center", fontsize="small")
        text.set(
            ha="left" if aside else "right", weight="bold" if ours else "normal", color=STRONG if ours else "black"
        )
    axes.set(xscale="log", xlabel=across, ylabel=up)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.1)
    axes.grid(alpha=0.3)
    return _files(figure)


def _labels(places: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Where each name stands: in a column right of the cheap half, or left of the dear one, and none upon another."""
    costs, heights = zip(*places.values(), strict=True)
    middle, aside = math.sqrt(min(costs) * max(costs)), (max(costs) / min(costs)) ** 0.05
    gap = 0.055 * ((max(heights) - min(heights)) or 0.1 * max(heights))  # equal ones: a tenth is what is shown then
    put: dict[str, tuple[float, float]] = {}
    for dear in (False, True):
        half = {name: place for name, place in places.items() if (place[0] > middle) == dear}
        names = sorted(half, key=lambda name: -half[name][1])
        column = [half[name][0] for name in names]
        across = min(column, default=0) / aside if dear else max(column, default=0) * aside
        height = math.inf
        for name in names:
            height = min(half[name][1], height - gap)
            put[name] = across, height
    return put


def recall_against_time(
    curves: Mapping[str, Sequence[tuple[float, float]]], chosen: tuple[float, float], target: float
) -> dict[str, bytes]:
    """What settings of an index find over what they take, by file type. curves: (milliseconds, recall) by name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), "o-", label=name)
    axes.plot(*chosen, "o", markersize=14, fillstyle="none", color="black", label="chosen")
    axes.axhline(target, linestyle=":", color="gray")
    axes.set(xscale="log", xlabel="one question, ms", ylabel="recall of the best 20")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return _files(figure)
