"""The blocks of operations.md: what sizes take, the service under load, a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blocks import Result, Results, bars, block, source, table

SIZES = {"1 million": 1_000_000, "21 million": 21_000_000, "1 billion": 1_000_000_000}
BITS, PLANES = 384, 2  # of the model that ships
UNITS: dict[str, list[tuple[float, str]]] = {
    "bytes": [(1e12, "TB"), (1e9, "GB"), (1e6, "MB")],
    "ms": [(1000, "s"), (1, "ms")],
    "s": [(86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "s"), (0.001, "ms")],
}


@dataclass(frozen=True)
class Cell:
    """A value; extrapolated: from a benchmark of another size."""

    value: float
    extrapolated: bool = False


@dataclass(frozen=True)
class Line:
    """One quantity at every size. unit: bytes, ms or s, of which larger ones are made for people."""

    what: str
    unit: str
    source: str
    cells: dict[str, Cell]


@block("sizing")
def sizing(results: Results) -> str:
    rows = [
        [line.what, *(shown(cell, line.unit) for cell in line.cells.values()), line.source]
        for line in size_lines(results)
    ]
    return table(["", *SIZES, "from"], rows)


def size_lines(results: Results) -> list[Line]:
    """Every quantity, from the results of the benchmarks."""
    scan, indexes, encode, memory = (results(name) for name in ("scan", "indexes", "encode", "memory"))
    cells = {e["rows"]: float(e["nbytes"]["bpr cells"] - e["nbytes"]["bpr scan"]) for e in indexes["sizes"]}
    speed = next(f["value"] for f in memory["figures"] if f["name"] == "verification at open") * 1e9  # bytes a second
    batch: dict[int, float] = {}
    for t in scan["timings"]:
        if (t["what"], t["system"], t["bits"], t["questions"], t["threads"]) == ("candidates", "bpr", 768, 64, 2):
            batch[t["rows"]] = min(t["best"], batch.get(t["rows"], t["best"]))
    question = next(f["value"] for f in encode["figures"] if f["unit"] == " ms")
    text, signs = results("sizing"), BITS // 8
    return [
        exact("codes, 384 bits in two planes", "bytes", "96 bytes a passage", signs * PLANES),
        exact("of these the signs, which every search reads", "bytes", "48 bytes a passage", signs),
        scaled("cells beside the codes", "bytes", "indexes.py", cells),
        scaled(
            "texts, with offsets, ids and digests, on disk",
            "bytes",
            "sizing.py: Wikipedia's paragraphs",
            {text["passages"]: text["bytes"]},
        ),
        exact("float32 vectors instead, 384 dimensions", "bytes", "1,536 bytes a passage", 4 * BITS),
        scaled("one question, scan", "ms", "indexes.py", at_recall(indexes, "bpr scan")),
        scaled("one question, cells", "ms", "indexes.py", at_recall(indexes, "bpr cells")),
        scaled("a question of 64, scan of 768 bits", "ms", "scan.py", batch),
        fixed("encoding a question of 16 tokens", "ms", "encode.py", question),
        scaled(
            f"encoding the passages, {encode['tokens']:.0f} tokens each",
            "s",
            "encode.py",
            {1: 1 / encode["passages_per_second"]["bpr"]},
        ),
        scaled("verifying the signs when opened", "s", "memory.py", {1: signs / speed}),
    ]


def exact(what: str, unit: str, source: str, each: float) -> Line:
    """Arithmetic: so much for every passage."""
    return Line(what, unit, source, {name: Cell(rows * each) for name, rows in SIZES.items()})


def fixed(what: str, unit: str, source: str, value: float) -> Line:
    """The same however many passages there are."""
    return Line(what, unit, source, {name: Cell(value) for name in SIZES})


def scaled(what: str, unit: str, source: str, measured: dict[int, float]) -> Line:
    """As measured at that size, or else in proportion to the largest that was."""
    largest = max(measured)
    cells = {}
    for name, rows in SIZES.items():
        near = rows if rows in measured else largest
        cells[name] = Cell(measured[near] * rows / near, near != rows)
    return Line(what, unit, source, cells)


def at_recall(indexes: Result, system: str, recall: float = 0.99) -> dict[int, float]:
    """ms by rows for that share of the scan's answers, with all threads; where it was reached."""
    wanted = (system, indexes["threads"], "answers", recall)
    found = indexes["equal_recall"]
    here = [e for e in found if (e["system"], e["threads"], e["measure"], e["recall"]) == wanted]
    return {each["rows"]: each["best"] for each in here if each["best"]}


def shown(cell: Cell, unit: str) -> str:
    """1.4 ms, 96 GB; with a star where it is extrapolated."""
    size, name = next((each for each in UNITS[unit] if cell.value >= each[0]), UNITS[unit][-1])
    value = cell.value / size
    return f"{value:,.0f} {name}" * (value >= 100) + f"{value:.3g} {name}" * (value < 100) + " *" * cell.extrapolated


@block("load")
def load(results: Results) -> str:
    found = results("load")
    over, soak, many = found["overload"], found["soak"], found["batching"]
    rounds = over["rounds"]
    when = f", measured on commit {soak['commit']}," if soak["commit"] != found["commit"] else ""

    def mean(name: str) -> float:
        return float(sum(each[name] for each in rounds) / len(rounds))

    return f"""{source(found)}. With shared searches 64 clients get {many["batch 64"]["per_second"]:,.0f} answers a
second, with single
ones {many["batch 1"]["per_second"]:,.0f}. The peak is {mean("peak_per_second"):,.0f} answers a second; asked five
times that, it gives
{mean("goodput_per_second"):,.0f}. The soak{when} is {soak["seconds"] / 60:.0f} minutes at {soak["rate"]:,.0f}
requests a second: {soak["replies"]:,} answers.

{bars(found["figures"])}"""


@block("cluster")
def cluster(results: Results) -> str:
    found = results("cluster")
    price = found["assumed"]["node_hour"]
    lines = [
        [
            name,
            f"{each['nodes']:,}",
            f"{each['bytes_per_node'] / 1e9:.2f} GB",
            f"{each['p50']:,.0f} ms",
            f"{each['p99']:,.0f} ms",
            f"{each['hour']:,.2f} an hour",
        ]
        for name, each in found["plans"].items()
    ]
    head = ["passages", "nodes", "codes on each", "p50", "p99", f"price at {price:g} a node and hour"]
    return f"{table(head, lines)}\n\n{source(found)}."


@block("cluster-runs")
def cluster_runs(results: Results) -> str:
    """What was measured on one machine, beside the model and the bars."""
    found = results("cluster")
    heads = {"shard": "slowest shard", "fan_out": "Ray's fan-out", "served": "Serve's", "search": "search"}
    heads |= {"search_p99": "p99", "budget": "may take", "modelled": "as modelled"}

    def cells(run: dict[str, Any]) -> list[str]:
        return [str(run["shards"]), str(run["questions"]), *(f"{run[name]:,.1f}" for name in heads)]

    lines = [cells(run) for run in found["runs"]]
    return f"""{found["rows"]:,} rows in all, on {found["cores"]} cores; milliseconds, p50:

{table(["shards", "questions", *heads.values()], lines)}

{bars(found["figures"])}"""
