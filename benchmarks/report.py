"""Draws docs/benchmarks.md and its plots from benchmarks/results/*.json. Nothing is measured here.

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


def _save(figure: Any, name: str) -> None:
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


def page(scan: dict[str, Any], memory: dict[str, Any]) -> str:
    """The whole of docs/benchmarks.md."""
    timings, rows = best_of_variants(scan["timings"]), scan["scaling_rows"][2]
    machine = ", ".join(f"{key} {value}" for key, value in scan["machine"].items())
    plane = table(
        ["second plane", "ms a question"], [[name, f"{took:.3g}"] for name, took in memory["second_plane"].items()]
    )
    return f"""# Benchmarks

Made by `make bench` (`benchmarks/scan.py` and `memory.py`, drawn by `report.py`); do not edit by hand.
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
"""


def main() -> None:
    """Read the results, draw, write."""
    matplotlib.rcParams["svg.hashsalt"] = "bpr"  # the same drawing has the same bytes
    scan, memory = (json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("scan", "memory"))
    timings = best_of_variants(scan["timings"])
    plot_scaling(timings, scan["scaling_rows"])
    plot_batches(timings, scan["scaling_rows"][2])
    (DOCS / "benchmarks.md").write_text(page(scan, memory), encoding="utf-8")
    print(f"wrote {DOCS / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
