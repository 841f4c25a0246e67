"""Draws docs/benchmarks.md and its plots from benchmarks/results/*.json. Nothing is measured here.

`make bench` ends with it. It knows what the other scripts write, and must not know how they came by it.

python benchmarks/report.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

from common import RESULTS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
COLORS = {
    "bpr": "#4c6ef5",
    "faiss": "#e8590c",
    "usearch exact": "#2b8a3e",
    "read once": "#868e96",
    "authors' path": "#ae3ec9",
}
Rows = list[dict[str, Any]]


def best_of_variants(timings: Rows) -> Rows:
    """Faiss at its better of heap and counting, likewise the authors' path on top of it."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for timing in timings:
        system = "faiss" if timing["system"].startswith("faiss") else timing["system"]
        system = "authors' path" if system.startswith("authors") else system
        key = (timing["what"], system, timing["rows"], timing["bits"], timing["questions"], timing["threads"])
        if key not in best or timing["best"] < best[key]["best"]:
            best[key] = {**timing, "system": system}
    return list(best.values())


def table(head: list[str], lines: Iterable[list[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def grid_table(timings: Rows, what: str, rows: int) -> str:
    """Milliseconds a question by number of questions, and how many times as long as bpr."""
    here = [t for t in timings if t["what"] == what and t["rows"] == rows and t["bits"] == 768]
    settings = sorted({(t["threads"], t["questions"]) for t in here})
    lines = []
    for system in dict.fromkeys(t["system"] for t in here):
        cells = [system]
        for threads, questions in settings:
            found = {t["system"]: t["best"] for t in here if (t["threads"], t["questions"]) == (threads, questions)}
            own = found["bpr"]
            cells.append(f"{found[system]:.3g} ({found[system] / own:.2g}×)" if system in found else "")
        lines.append(cells)
    return table(["ms a question (× bpr)", *[f"{q} q, {t} thr" for t, q in settings]], lines)


def plot_scaling(timings: Rows, sizes: list[int]) -> None:
    """Time against rows, for one question and for 64."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharex=True)
    threads = max(t["threads"] for t in timings)
    for axis, questions in zip(axes, (1, 64), strict=True):
        for system in ("bpr", "faiss", "read once"):
            points = {
                t["rows"]: t["best"]
                for t in timings
                if (t["what"], t["system"], t["questions"], t["threads"], t["bits"])
                == ("candidates", system, questions, threads, 768)
            }
            shown = [rows for rows in sizes if rows in points]
            axis.loglog(shown, [points[rows] for rows in shown], "o-", color=COLORS[system], label=system)
        axis.set(
            title=f"{questions} question{'s' if questions > 1 else ''}",
            xlabel="rows (768 bits)",
            ylabel="ms a question",
        )
        axis.grid(alpha=0.3)
        axis.legend()
    _save(figure, "scaling")


def plot_batches(timings: Rows, rows: int) -> None:
    """Time a question against the size of the batch."""
    figure, axis = plt.subplots(figsize=(6.5, 4))
    threads = max(t["threads"] for t in timings)
    for system in ("bpr", "faiss", "usearch exact"):
        here = [
            t
            for t in timings
            if (t["what"], t["system"], t["rows"], t["bits"], t["threads"])
            == ("candidates", system, rows, 768, threads)
        ]
        here.sort(key=lambda t: t["questions"])
        axis.loglog([t["questions"] for t in here], [t["best"] for t in here], "o-", color=COLORS[system], label=system)
    axis.set(
        xlabel="questions in a batch",
        ylabel="ms a question",
        title=f"{rows:,} rows, 768 bits, l = 1000, {threads} threads",
    )
    axis.grid(alpha=0.3)
    axis.legend()
    _save(figure, "batches")


# ── Indexes that leave codes out ─────────────────────────────────────────────────────────────────────────────────────

NEAT: dict[str, Any] = {"layout": "constrained"}
PART = 2  # of the scan's time: what an index may take in the plot of bytes


def plot_index_times(result: dict[str, Any]) -> None:
    """Recall against time, a panel for each number of rows: only settings that no other setting beats in both."""
    figure, axes = plt.subplots(1, len(result["sizes"]), figsize=(4.5 * len(result["sizes"]), 4.6), sharex=True, **NEAT)
    systems = index_colors(result)
    for axis, size in zip(axes, result["sizes"], strict=True):
        for line in result["curves"]:
            if line["rows"] != size["rows"] or line["threads"] not in (1, result["threads"]):
                continue
            alone = line["threads"] == 1 and line["system"].startswith("bpr")
            label = f"{line['system']}{', 1 thread' if alone else ''}"
            recalls, times = zip(*line["curve"], strict=True)
            axis.plot(recalls, times, ".:" if alone else "o-", ms=4, color=systems[line["system"]], label=label)
        axis.set(yscale="log", xlim=(0.9, 1.003), title=f"{size['rows']:,} rows", xlabel="share of the scan's answers")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="ms, one question, with rerank")
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize="small")
    _save(figure, "indexes-time")


def plot_index_bytes(result: dict[str, Any]) -> None:
    """Recall against bytes, for as much time as half a scan takes."""
    figure, axes = plt.subplots(1, len(result["sizes"]), figsize=(4.5 * len(result["sizes"]), 4.4), sharey=True, **NEAT)
    systems = index_colors(result)
    for axis, size in zip(axes, result["sizes"], strict=True):
        here = [line for line in result["curves"] if line["rows"] == size["rows"]]
        most = {line["system"]: line["curve"] for line in here if line["threads"] in (1, result["threads"])}
        budget = most["bpr scan"][-1][1] / PART
        for system, curve in most.items():
            reached = max((recall for recall, ms in curve if ms <= budget), default=None)
            if reached is not None:
                weight = (size["nbytes"][system] + size["plane"]) / size["rows"]
                axis.plot([weight], [reached], "o", color=systems[system], label=system)
        flat = (size["nbytes"]["bpr scan"] + size["plane"]) / size["rows"]
        axis.axvline(flat, color="grey", linestyle="--", linewidth=1, label="the codes alone")
        axis.set(
            title=f"{size['rows']:,} rows, {budget:.2g} ms", xlabel="bytes a row", xlim=(0, 400), ylim=(0.85, 1.005)
        )
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="share of the scan's answers")
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize="small")
    _save(figure, "indexes-bytes")


def index_colors(result: dict[str, Any]) -> dict[str, str]:
    """A colour for each system, the same in every plot."""
    return {system: f"C{i}" for i, system in enumerate(dict.fromkeys(line["system"] for line in result["curves"]))}


def equal_recall_table(result: dict[str, Any], size: dict[str, Any], measure: str) -> str:
    """Milliseconds at the wanted recalls, best (middle), the bytes, and what it took to build."""
    here = [e for e in result["equal_recall"] if (e["rows"], e["measure"]) == (size["rows"], measure)]
    flat, lines = size["nbytes"]["bpr scan"] + size["plane"], []
    for system, threads in dict.fromkeys((each["system"], each["threads"]) for each in here):
        own = [each for each in here if (each["system"], each["threads"]) == (system, threads)]
        times = [f"{e['best']:.3g} ({e['middle']:.3g})" if e["best"] and e["middle"] else "never" for e in own]
        weight, seconds = size["nbytes"][system] + size["plane"], size["seconds"][system]
        ratio = f"{weight / size['rows']:.1f} ({weight / flat:.2f}×)"
        lines.append([system, str(threads), *times, ratio, f"{seconds:.0f} s" if seconds else ""])
    heads = [f"{recall:.1%}" for recall in result["recalls"]]
    return table(["ms, best (median), at", "threads", *heads, "bytes a row (× codes)", "to build"], lines)


def index_section(result: dict[str, Any]) -> str:
    """The indexes that leave codes out, beside their peers."""
    counts, sizes, parts = result["counts"], result["sizes"], []
    for size in sizes:
        parts.append(f"### {size['rows']:,} rows\n\nAt equal shares of the scan's answers:\n")
        parts.append(equal_recall_table(result, size, "answers") + "\n\nAt equal shares of the scan's top 20:\n")
        parts.append(equal_recall_table(result, size, "overlap") + "\n")
    slower = ", ".join(f"{name} {times:.2f}" for name, times in sizes[-2]["threads"].items())
    absent = "".join(f"Not built: {what}, for the time it takes (--graphs). " for what in result["left_out"])
    built = ", ".join(f"{name} {took:.0f} s" for name, took in sizes[-2]["seconds"].items() if "HNSW" in name)
    tables_ms = "\n".join(parts)
    return f"""## Indexes that leave codes out

`{result["command"]} CODES` — cells, hash tables and the scan beside Faiss's BinaryFlat, BinaryIVF, BinaryHash and
BinaryHNSW and usearch's HNSW on the same 384 sign bits. The first size is real: the codes of the shipped model and
{counts["judged"]:,} real questions on which nothing was tuned. The larger ones are noisy copies of these codes
(`benchmarks/madecodes.py`), judged with {counts["judged_on_made"]:,} of the questions. Answers: questions whose passage
is in the top {counts["k"]}, as a share of those of the full scan with l = 2000; the second table of each size has the
share of the scan's top {counts["k"]} that was found. Whoever finds the candidates, our second stage ranks them, and
the times include it.

One question at a time: {counts["timed"]} questions, {counts["rounds"]} rounds in which all settings take turns; the
mean over questions of each one's best round, and in brackets the median round. Every number of candidates (100 to
2000) is tried with every setting of an index's own knob, and the quickest counts, interpolated between neighbours.
"Never": no setting of this sweep reaches it; the sweep ends at a third of the cells or lists, at efSearch 2000, and
where a question takes four times as long as a scan. More would be found beyond. Only search knobs are swept: Faiss's
lists are as many as our cells and trained on 39 codes each, while our cells see all codes, and graphs are built with
their libraries' efConstruction. Other builds of the peers may do better.

Peers are timed with one thread. Allowed {result["threads"]}, one question took them this many times as long at
{sizes[-2]["rows"]:,} rows: {slower}. So the fair comparison of
the work itself is with the lines of one thread.

Bytes: what an index occupies, as it is written to disk, with the signs; the magnitudes, which the second stage needs,
are counted for all alike. What Faiss's lists and the graphs would need to find a row's signs again for the second stage
is not counted against them. To build: seconds of one processor. {absent}At {sizes[-2]["rows"]:,} rows
graphs took: {built}.

The bars, at 99 % of the scan's answers, cells with {result["threads"]} threads:

{figures_table(result)}

![Recall against time](images/indexes-time.svg)

What is found in half of the scan's time (which is given above each panel), against bytes:

![Recall against bytes](images/indexes-bytes.svg)

{tables_ms}"""


def _save(figure: Any, name: str) -> None:
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(DOCS / "images" / f"{name}.svg", metadata={"Date": None})
    figure.savefig(DOCS / "images" / f"{name}.png", dpi=120)
    plt.close(figure)


def figures_table(result: dict[str, Any]) -> str:
    """Every figure with its bar and the command that prints it."""
    lines = []
    for figure in result["figures"]:
        bar = f"{'≤' if figure['most'] else '≥'} {figure['target']:.4g}{figure['unit']}"
        mark = "yes" if figure["holds"] else "**no**"
        lines.append([figure["name"], f"{figure['value']:.3g}{figure['unit']}", bar, mark])
    return table(["figure", "measured", "bar", "holds"], lines)


def page(scan: dict[str, Any], memory: dict[str, Any], indexes: dict[str, Any]) -> str:
    """The whole of docs/benchmarks.md."""
    timings, rows = best_of_variants(scan["timings"]), scan["scaling_rows"][2]
    machine = ", ".join(f"{key} {value}" for key, value in scan["machine"].items())
    plane = table(
        ["second plane", "ms a question"], [[name, f"{took:.3g}"] for name, took in memory["second_plane"].items()]
    )
    return f"""# Benchmarks

Made by `make bench` (`benchmarks/scan.py` and `memory.py`, drawn by `report.py`) and `benchmarks/indexes.py`; do not
edit by hand.
Systems that are compared take turns in one run, and the best run of each counts: the machine is shared and
noisy, so ratios say more than milliseconds. Faiss is taken at its better of heap and counting. "Read once" reads
the same codes with the same threads and does nothing else: the physical limit for one question (for a batch it is
divided by the number of questions).

Machine: {machine}.

## The bars

`{scan["command"]}`

{figures_table(scan)}

`{memory["command"]}`

{figures_table(memory)}

## First stage: l = 1000 candidates, {rows:,} rows of 768 bits

{grid_table(timings, "candidates", rows)}

![Time a question against the size of the batch](images/batches.svg)

## Both stages: l = 1000, k = 100, {rows:,} rows of 768 bits

The authors' path is Faiss's binary index, then the candidates' bits unpacked to floats and multiplied in numpy.

{grid_table(timings, "two stages", rows)}

## From 0.1 to 20 million rows

![Time against rows](images/scaling.svg)

## A second plane on disk

Rerank of 1,000 scattered candidates of {2 * memory["rows"]:,} rows of 384 bits in two planes. Cold: the second plane
was dropped from the page cache before. Warm: it was not, but it is newly mapped, so its pages are still mapped one by
one. Page by page is what a plain memory map does; bpr sees after a few candidates that they come from disk and
asks for the rest at once.

{plane}

{index_section(indexes)}"""


def main() -> None:
    """Read the results, draw, write."""
    matplotlib.rcParams["svg.hashsalt"] = "bpr"  # the same drawing has the same bytes
    scan, memory, indexes = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("scan", "memory", "indexes")
    )
    timings = best_of_variants(scan["timings"])
    plot_scaling(timings, scan["scaling_rows"])
    plot_batches(timings, scan["scaling_rows"][2])
    plot_index_times(indexes)
    plot_index_bytes(indexes)
    (DOCS / "benchmarks.md").write_text(page(scan, memory, indexes), encoding="utf-8")
    print(f"wrote {DOCS / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
