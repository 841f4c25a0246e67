"""From results to tables, in the terminal and as Markdown, JSON and drawings. Computes intervals; measures nothing.

A column is a head and what it shows of a result; one that no result has anything for is left out, so that a new measure
is one more line in COLUMNS. compare/__init__.py calls it; it must not know how a figure came about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import bench, plots
from ..disk import replacing
from ..evaluation import interval, paired, recall_curve, top_k
from ..kernels import Limits
from .inputs import FLOAT, Corpus, Side
from .measure import BATCH, How
from .rows import MAIN, WITHOUT, L

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """Cells as they are shown, the head first."""

    title: str
    cells: list[tuple[str, ...]]


def summary(
    results: Sequence[Mapping[str, Any]],
    corpus: Corpus,
    sides: Mapping[str, Side],
    how: How,
    top: Sequence[int],
    main: str,
    notes: Sequence[str] = (),
    answers: Mapping[str, Mapping[str, Sequence[bool]]] | None = None,
) -> dict[str, Any]:
    """All figures, JSON-able: each row's top-k with intervals, and how much better the row `main` is.

    answers: by reader and row, whether the answers are exactly right; the first reader's are the column EM.
    """
    read = answers or {}
    ours = next(np.array(each["ranks"]) for each in results if each["name"] == main)
    problems = [f"{each['name']}: {each['problem']}" for each in results if "problem" in each]
    return {
        "passages": len(corpus.passages),
        "questions": len(corpus.questions),
        "right": {"gold": "a gold passage", "answer": "a passage in which an answer stands"}[corpus.by],
        "models": {name: side.label for name, side in sides.items()},
        "main": main,
        "top": list(top),
        "depth": how.depth,
        "threads": Limits(how.threads).thread_count(),
        "notes": [*corpus.notes, *notes, *problems],
        "machine": bench.machine(),
        "rows": [
            {**_figures(each, ours, len(corpus.passages), top, how.depth), **_answered(each, read, main)}
            for each in results
        ],
        "readers": {name: interval(np.array(right[main])).to_dict() for name, right in read.items()},
    }


def _answered(result: Mapping[str, Any], read: Mapping[str, Mapping[str, Sequence[bool]]], main: str) -> dict[str, Any]:
    """A row's EM with the first reader, and how much more the row `main` has."""
    right = next(iter(read.values()), {})
    if result["name"] not in right:
        return {}
    mine, ours = (np.array(right[name], np.float64) for name in (result["name"], main))
    return {"em": interval(mine).to_dict(), "bpr_em_is_better_by": paired(ours, mine).to_dict()}


def _figures(result: Mapping[str, Any], ours: Any, passages: int, top: Sequence[int], depth: int) -> dict[str, Any]:
    kept = {name: value for name, value in result.items() if name not in ("ranks", "best", "key")}
    if "ranks" not in result:
        return kept
    ranks = np.array(result["ranks"])
    hits = {k: top_k(ranks, k) for k in top}
    return {
        **kept,
        "bytes_a_passage": result["bytes"] / passages,
        "top": {str(k): interval(each).to_dict() for k, each in hits.items()},
        "bpr_is_better_by": {str(k): paired(top_k(ours, k), each).to_dict() for k, each in hits.items()},
        "recall": [round(float(each), 3) for each in recall_curve(ranks, depth)],
    }


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The paper's tables, and BPR against each row of the first one."""
    rows, main = found["rows"], found["main"]
    of = {name: [row for row in rows if row["table"] == name] for name in (MAIN, WITHOUT, L)}
    plain = [row for row in of[MAIN] if row["name"] in {each["name"].rpartition(", ")[0] for each in of[WITHOUT]}]
    tried = [row for row in of[MAIN] if row["name"] != main]
    made = [
        Table("Table 1: what is found, %, and what it costs", _grid(of[MAIN], [*_found(found), *COSTS])),
        Table(f"{main}, against each row: percentage points, 95 % interval, p", _grid(tried, _against(found))),
        Table("Table 2: without rerank, without candidates", _grid([*plain, *of[WITHOUT]], [*_found(found), *TIMES])),
        Table("l: candidates that are reranked", _grid(of[L], [*_found(found), *TIMES])),
    ]
    if found.get("readers"):
        sizes = found["parameters"]
        cells = [(name, f"{sizes[name] / 1e6:,.1f} M", str(_figure(em))) for name, em in found["readers"].items()]
        made.append(Table(f"Table 3: readers of what {main} found", [("", "parameters", "EM"), *cells]))
    return [table for table in made if len(table.cells) > 1] + _ablations(found)


Column = tuple[str, Callable[[Mapping[str, Any]], str | None]]


def _grid(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Head and cells; columns without anything in them are left out."""
    cells = [[show(row) if "problem" not in row else None for _, show in columns] for row in rows]
    used = [number for number in range(len(columns)) if any(line[number] is not None for line in cells)]
    lines = [(row["name"], *(line[n] or NOTHING for n in used)) for row, line in zip(rows, cells, strict=True)]
    return [("", *(columns[n][0] for n in used)), *lines]


def _found(found: Mapping[str, Any]) -> list[Column]:
    def column(k: int) -> Column:
        def show(row: Mapping[str, Any]) -> str:
            return str(_figure(row["top"][str(k)]))

        return f"top {k}", show

    return [*map(column, found["top"]), ("EM", lambda row: _figure(row.get("em")))]


def _against(found: Mapping[str, Any]) -> list[Column]:
    def column(k: int) -> Column:
        def show(row: Mapping[str, Any]) -> str:
            return str(_better(row["bpr_is_better_by"][str(k)]))

        return f"top {k}", show

    return [*map(column, found["top"]), ("EM", lambda row: _better(row.get("bpr_em_is_better_by")))]


def _figure(found: Mapping[str, float] | None) -> str | None:
    return None if found is None else f"{found['mean']:.1f} [{found['low']:.1f}, {found['high']:.1f}]"


def _better(by: Mapping[str, float] | None) -> str | None:
    return None if by is None else f"{by['mean']:+.1f} [{by['low']:+.1f}, {by['high']:+.1f}], {by['p']:.4f}"


def _shown(value: Any, how: str) -> str | None:
    return None if value is None else how.format(value)


def _megabytes(value: float | None) -> str | None:
    return None if value is None else f"{value / 1e6:,.1f}"


TIMES: list[Column] = [
    ("ms", lambda row: _shown(row.get("ms_alone"), "{:.2f}")),
    ("× BPR", lambda row: _shown(row.get("times_bpr_alone"), "{:.2f}")),
    (f"ms in {BATCH}", lambda row: _shown(row.get("ms_batch"), "{:.3f}")),
    ("× BPR", lambda row: _shown(row.get("times_bpr_batch"), "{:.2f}")),
]
COSTS: list[Column] = [
    ("bytes a passage", lambda row: _shown(row.get("bytes_a_passage"), "{:,.1f}")),
    ("MB on disk", lambda row: _megabytes(row.get("disk"))),
    ("MB in memory", lambda row: _megabytes(row.get("resident"))),
    *TIMES,
    ("built in s", lambda row: _shown(row.get("build_seconds"), "{:,.1f}")),
]


def _ablations(found: Mapping[str, Any]) -> list[Table]:
    """What ablations.py trained: no intervals, since the ledger has none."""
    made = []
    for title, lines in found.get("ablations", {}).items():
        names = list(dict.fromkeys(name for line in lines for name in line["metrics"] if name.startswith("eval_")))
        head = ("", *(name.removeprefix("eval_").replace("_", " ") for name in names))
        cells = [
            (line["name"], *(_shown(line["metrics"].get(each), "{:.2f}") or NOTHING for each in names))
            for line in lines
        ]
        made.append(Table(title, [head, *cells]))
    return made


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """compare.json, compare.md and, with matplotlib, three drawings as PNG and SVG; their paths."""
    contents = {"compare.json": json.dumps(found, indent=1).encode()} | _drawings(found)
    contents["compare.md"] = markdown(found, [name for name in contents if name.endswith(".svg")]).encode()
    paths = [folder / name for name in contents]
    with replacing(*paths) as out:
        for file, content in zip(out, contents.values(), strict=True):
            file.write(content)
    return paths


def markdown(found: Mapping[str, Any], drawings: Sequence[str] = ()) -> str:
    """All tables with what one must know to read them."""
    lines = ["# Comparison", "", *(f"- {each}" for each in _head(found)), ""]
    for table in tables(found):
        head, *cells = table.cells
        lines += [f"## {table.title}", "", _line(head), _line(["---"] * len(head)), *map(_line, cells), ""]
    return "\n".join([*lines, *(f"![{name}]({name})" for name in drawings), ""])


def _head(found: Mapping[str, Any]) -> list[str]:
    models = ", ".join(f"{name}: {label}" for name, label in found["models"].items())
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items() if value is not None)
    return [
        f"{found['questions']:,} questions, {found['passages']:,} passages; right is {found['right']}.",
        f"Models: {models}.",
        "In brackets: 95 % intervals, a bootstrap over the questions. Times: medians, from question vectors to "
        f"passages, {found['threads']} threads; × BPR: how many times as long as {found['main']}, taking turns.",
        "Memory: by how much a process grows that opens the index and searches. Bytes a passage: all that a search "
        "needs, rotations and centroids included.",
        *found["notes"],
        f"Machine: {machine}.",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _drawings(found: Mapping[str, Any]) -> dict[str, bytes]:
    if not plots.available():
        return {}
    rows = [row for row in found["rows"] if row["table"] == MAIN and "problem" not in row]
    bpr = {row["name"] for row in rows if row["settings"]["side"] != FLOAT}
    k = found["top"][len(found["top"]) // 2]
    curves = {row["name"]: np.array(row["recall"]) for row in rows}
    ours = {name: curve for name, curve in curves.items() if name in bpr}
    others = {name: curve for name, curve in curves.items() if name not in bpr}
    drawn = {"recall": plots.recall_at_k(ours, others)}
    for file, what, label in (
        ("recall-bytes", "bytes_a_passage", "bytes a passage"),
        ("recall-time", "ms_alone", "ms for one question"),
    ):
        points = {row["name"]: (row[what], row["top"][str(k)]["mean"]) for row in rows}
        drawn[file] = plots.points(points, bpr, label, f"top {k}, %")
    return {f"{name}.{kind}": content for name, files in drawn.items() for kind, content in files.items()}
