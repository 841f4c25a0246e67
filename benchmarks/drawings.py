"""The plots of docs/images that are made of results: each function draws one, as SVG. Nothing is measured here."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from blocks import Result, Results
from bpr import plots
from bpr.compare.rows import MAIN
from common import HOME, count
from speed_blocks import best_of_variants

IMAGES = HOME / "docs" / "images"
COLORS = {"bpr": plots.STRONG, "faiss": "#e8590c", "usearch exact": "#2b8a3e", "read once": plots.PALE}
PART = 2  # of the scan's time: what an index may take in the plot of bytes
Drawing = Callable[[Results], "bytes | None"]  # None: the results lack what it takes, and the picture stays as it is
DRAWINGS: dict[str, Drawing] = {}


def drawing(name: str) -> Callable[[Drawing], Drawing]:
    """Make a function the one that draws docs/images/NAME.svg."""

    def known(draw: Drawing) -> Drawing:
        DRAWINGS[name] = draw
        return draw

    return known


def draw_all(results: Results, folder: Path = IMAGES) -> None:
    """All of them; what cannot be drawn of these results stays as it is."""
    for name, draw in DRAWINGS.items():
        drawn = draw(results)
        if drawn is None:
            print(f"left as it is: {name}.svg, whose data the results do not have")
        else:
            (folder / f"{name}.svg").write_bytes(drawn)


def svg(figure: Any) -> bytes:
    """The same numbers give the same bytes."""
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bpr"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def panels(number: int, size: tuple[float, float], **options: Any) -> tuple[Any, list[Any]]:
    """A figure, and its axes side by side with a grid."""
    figure = Figure(figsize=size, layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, number, **options)))
    for axis in axes:
        axis.grid(alpha=0.3)
    return figure, axes


# ── The scan ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@drawing("scaling")
def scaling(results: Results) -> bytes:
    """Time against rows, for one question and for 64."""
    scan = results("scan")
    timings = best_of_variants(scan["timings"])
    threads = max(t["threads"] for t in timings)
    figure, axes = panels(2, (10, 4), sharex=True)
    for axis, questions in zip(axes, (1, 64), strict=True):
        for system in ("bpr", "faiss", "read once"):
            wanted = ("candidates", system, questions, threads, 768)
            here = [t for t in timings if (t["what"], t["system"], t["questions"], t["threads"], t["bits"]) == wanted]
            points = {t["rows"]: t["best"] for t in here}
            shown = [rows for rows in scan["scaling_rows"] if rows in points]
            axis.loglog(shown, [points[rows] for rows in shown], "o-", color=COLORS[system], label=system)
        axis.set(title=count(questions, "question"), xlabel="rows (768 bits)", ylabel="ms a question")
        axis.legend()
    return svg(figure)


@drawing("batches")
def batches(results: Results) -> bytes:
    """Time a question against the size of the batch."""
    scan = results("scan")
    timings, rows = best_of_variants(scan["timings"]), scan["scaling_rows"][2]
    threads = max(t["threads"] for t in timings)
    figure, (axis,) = panels(1, (6.5, 4))
    for system in ("bpr", "faiss", "usearch exact"):
        wanted = ("candidates", system, rows, 768, threads)
        here = [t for t in timings if (t["what"], t["system"], t["rows"], t["bits"], t["threads"]) == wanted]
        here.sort(key=lambda t: int(t["questions"]))
        axis.loglog([t["questions"] for t in here], [t["best"] for t in here], "o-", color=COLORS[system], label=system)
    title = f"{rows:,} rows, 768 bits, l = 1000, {threads} threads"
    axis.set(xlabel="questions in a batch", ylabel="ms a question", title=title)
    axis.legend()
    return svg(figure)


# ── Indexes that leave codes out ─────────────────────────────────────────────────────────────────────────────────────


def index_colors(found: Result) -> dict[str, str]:
    """A colour for each system, the same in every plot."""
    return {system: f"C{i}" for i, system in enumerate(dict.fromkeys(line["system"] for line in found["curves"]))}


def with_legend(figure: Any, axes: list[Any]) -> bytes:
    """One legend for all panels."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize="small")
    return svg(figure)


@drawing("indexes-time")
def index_times(results: Results) -> bytes:
    """Recall against time, a panel for each number of rows: only settings that no other setting beats in both."""
    found = results("indexes")
    sizes, colors = found["sizes"], index_colors(found)
    figure, axes = panels(len(sizes), (4.5 * len(sizes), 4.6), sharex=True)
    for axis, size in zip(axes, sizes, strict=True):
        for line in found["curves"]:
            if line["rows"] != size["rows"] or line["threads"] not in (1, found["threads"]):
                continue
            alone = line["threads"] == 1 and line["system"].startswith("bpr")
            label = f"{line['system']}{', 1 thread' if alone else ''}"
            recalls, times = zip(*line["curve"], strict=True)
            axis.plot(recalls, times, ".:" if alone else "o-", ms=4, color=colors[line["system"]], label=label)
        axis.set(yscale="log", xlim=(0.9, 1.003), title=f"{size['rows']:,} rows", xlabel="share of the scan's answers")
        axis.yaxis.set_major_formatter("{x:g}")
    axes[0].set(ylabel="ms, one question, with rerank")
    return with_legend(figure, axes)


@drawing("indexes-bytes")
def index_bytes(results: Results) -> bytes:
    """Recall against bytes, for as much time as half a scan takes."""
    found = results("indexes")
    sizes, colors = found["sizes"], index_colors(found)
    figure, axes = panels(len(sizes), (4.5 * len(sizes), 4.4), sharey=True)
    for axis, size in zip(axes, sizes, strict=True):
        here = [line for line in found["curves"] if line["rows"] == size["rows"]]
        most = {line["system"]: line["curve"] for line in here if line["threads"] in (1, found["threads"])}
        budget = most["bpr scan"][-1][1] / PART
        for system, curve in most.items():
            reached = max((recall for recall, ms in curve if ms <= budget), default=None)
            if reached is not None:
                weight = (size["nbytes"][system] + size["plane"]) / size["rows"]
                axis.plot([weight], [reached], "o", color=colors[system], label=system)
        flat = (size["nbytes"]["bpr scan"] + size["plane"]) / size["rows"]
        axis.axvline(flat, color="grey", linestyle="--", linewidth=1, label="the codes alone")
        axis.set(
            title=f"{size['rows']:,} rows, {budget:.2g} ms", xlabel="bytes a row", xlim=(0, 400), ylim=(0.85, 1.005)
        )
    axes[0].set(ylabel="share of the scan's answers")
    return with_legend(figure, axes)


@drawing("lookup")
def lookup(results: Results) -> bytes:
    """How many times as long the scan takes, by bits changed, for each size."""
    rows = [each for each in results("lookup")["compared"] if each["what"].startswith("passages,")]
    rows = [each for each in rows if (each["l"], each["batch"]) == (1, 1)]
    figure, (axis,) = panels(1, (6.5, 4))
    for size in dict.fromkeys((row["rows"], row["tables"]) for row in rows):
        here = [row for row in rows if (row["rows"], row["tables"]) == size]
        label = f"{size[0]:,} rows, {count(size[1], 'table')}"
        axis.plot([row["noise"] for row in here], [row["times"] for row in here], "o-", label=label)
    axis.axhline(1, color="grey", linestyle="--", linewidth=1)
    axis.set(yscale="log", xlabel="bits of 384 in which the question differs from a passage", ylabel="scan / look-up")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.legend()
    return svg(figure)


# ── What is found ────────────────────────────────────────────────────────────────────────────────────────────────────


@drawing("compare-bytes")
def compare_bytes(results: Results) -> bytes:
    """What is found by bytes a passage, as `bpr compare` draws it."""
    found = results("compare-squad")
    rows = [row for row in found["rows"] if row["table"] == MAIN and "problem" not in row]
    ours = {row["name"] for row in rows if row["settings"]["side"] != "float"}
    k = found["top"][len(found["top"]) // 2]
    places = {row["name"]: (row["bytes_a_passage"], row["top"][str(k)]["mean"]) for row in rows}
    return plots.points(places, ours, "bytes a passage", f"top {k}, %")["svg"]


@drawing("reliability")
def reliability(results: Results) -> bytes | None:
    """How right answers are by how sure, on the held-out articles, as `bpr calibrate` draws it."""
    held = results("reader")["held"]
    if "reliability" not in held:
        return None
    return plots.reliability(held["reliability"], held["coverage"], f"ECE {held['ece']:.3f}")["svg"]


# ── A cluster ────────────────────────────────────────────────────────────────────────────────────────────────────────


@drawing("cluster")
def cluster(results: Results) -> bytes | None:
    """p50 and p99 by the number of nodes, and how near the model is to real runs."""
    found = results("cluster")
    if "spread" not in found:
        return None
    figure, (left, right) = panels(2, (10, 4))
    _modelled(left, found)
    _measured(right, found["runs"])
    for axis in (left, right):
        axis.legend(fontsize="small")
    return svg(figure)


def _modelled(axis: Any, found: Result) -> None:
    from cluster import late, model_of

    model, spread = model_of(found), np.array(found["spread"])
    for number, (name, plan) in enumerate(found["plans"].items()):
        nodes = np.unique(np.geomspace(1, 4 * max(plan["nodes"], 4), 60).astype(int)).tolist()
        times = [1000 * model.seconds(plan["passages"], each) for each in nodes]
        axis.plot(nodes, times, color=f"C{number}", label=f"{name}, p50")
        axis.plot(nodes, [t * late(spread, n) for t, n in zip(times, nodes, strict=True)], ":", color=f"C{number}")
        axis.plot([plan["nodes"]], [plan["p50"]], "o", color=f"C{number}")
    axis.plot([], [], ":", color="gray", label="p99")
    axis.set(xscale="log", yscale="log", xlabel="nodes, one shard each", ylabel="one question, ms", title="model")


def _measured(axis: Any, runs: list[dict[str, Any]]) -> None:
    for number, questions in enumerate(sorted({run["questions"] for run in runs})):
        some = [run for run in runs if run["questions"] == questions]
        shards = [run["shards"] for run in some]
        axis.plot(shards, [r["search"] for r in some], "o", color=f"C{number}", label=count(questions, "question"))
        axis.plot(shards, [run["modelled"] for run in some], "--", color=f"C{number}")
    axis.plot([], [], "--", color="gray", label="as modelled")
    shards = sorted({run["shards"] for run in runs})
    axis.set(yscale="log", xticks=shards, xlabel="shards on this machine", ylabel="ms", title="measured")
