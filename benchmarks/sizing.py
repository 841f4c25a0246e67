"""Bytes and time for 1 million, 21 million and a billion passages, from what was measured; the table of operations.md.

    python benchmarks/sizing.py

Times nothing itself: milliseconds come from the results of scan.py, indexes.py, encode.py and memory.py, and bytes
beside the codes from a bundle that is built of the sample of `bpr demo` here and now. What no benchmark has run at
that size is scaled in proportion from the largest one that was, and marked.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bpr
from bpr import bundle, demo
from bpr.textfiles import read_records
from common import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
BEGIN, END = "<!-- sizing.py writes from here -->", "<!-- to here -->"
SIZES = {"1 million": 1_000_000, "21 million": 21_000_000, "1 billion": 1_000_000_000}
BITS, PLANES = 384, 2  # of the model that ships
TEXT_FILES = ("passages.jsonl", "offsets.npy", "ids.npy", "checksums.npy")


@dataclass(frozen=True)
class Cell:
    """A value, and how many passages the benchmark had that it comes from; None: it is arithmetic."""

    value: float
    measured_at: int | None
    extrapolated: bool


@dataclass(frozen=True)
class Line:
    """One quantity at every size. unit: bytes, ms or s, of which larger ones are made for people."""

    what: str
    unit: str
    source: str
    cells: dict[str, Cell]


def lines(results: Callable[[str], dict[str, Any]]) -> list[Line]:
    """Every quantity, from the results of the other benchmarks."""
    scan, indexes, encode, memory = (results(name) for name in ("scan", "indexes", "encode", "memory"))
    cells = {e["rows"]: float(e["nbytes"]["bpr cells"] - e["nbytes"]["bpr scan"]) for e in indexes["sizes"]}
    speed = next(f["value"] for f in memory["figures"] if f["name"] == "verification at open") * 1e9  # bytes a second
    batch: dict[int, float] = {}
    for t in scan["timings"]:
        if (t["what"], t["system"], t["bits"], t["questions"], t["threads"]) == ("candidates", "bpr", 768, 64, 2):
            batch[t["rows"]] = min(t["best"], batch.get(t["rows"], t["best"]))
    question = next(f["value"] for f in encode["figures"] if f["unit"] == " ms")
    signs = BITS // 8
    return [
        exact("codes, 384 bits in two planes", "bytes", "96 bytes a passage", signs * PLANES),
        exact("of these the signs, which every search reads", "bytes", "48 bytes a passage", signs),
        scaled("cells beside the codes", "bytes", "indexes.py", cells),
        scaled("texts, with offsets, ids and digests, on disk", "bytes", "sizing.py: Wikipedia's paragraphs", texts()),
        exact("float32 vectors instead, 384 dimensions", "bytes", "1,536 bytes a passage", 4 * BITS),
        scaled("one question, scan", "ms", "indexes.py", at_recall(indexes, "bpr scan")),
        scaled("one question, cells", "ms", "indexes.py", at_recall(indexes, "bpr cells")),
        scaled("a question of 64, scan of 768 bits", "ms", "scan.py", batch),
        fixed("encoding a question of 16 tokens", "ms", "encode.py", question),
        scaled("encoding the passages", "s", "encode.py", {1: 1 / encode["passages_per_second"]["bpr"]}),
        scaled("verifying the signs when opened", "s", "memory.py", {1: signs / speed}),
    ]


def exact(what: str, unit: str, source: str, each: float) -> Line:
    """Arithmetic: so much for every passage."""
    return Line(what, unit, source, {name: Cell(rows * each, None, False) for name, rows in SIZES.items()})


def fixed(what: str, unit: str, source: str, value: float) -> Line:
    """The same however many passages there are."""
    return Line(what, unit, source, {name: Cell(value, None, False) for name in SIZES})


def scaled(what: str, unit: str, source: str, measured: dict[int, float]) -> Line:
    """As measured at that size, or else in proportion to the largest that was."""
    largest = max(measured)
    cells = {}
    for name, rows in SIZES.items():
        near = rows if rows in measured else largest
        cells[name] = Cell(measured[near] * rows / near, near, near != rows)
    return Line(what, unit, source, cells)


def at_recall(indexes: dict[str, Any], system: str, recall: float = 0.99) -> dict[int, float]:
    """ms by rows for that share of the scan's answers, with all threads; where it was reached."""
    wanted = (system, indexes["threads"], "answers", recall)
    found = indexes["equal_recall"]
    here = [e for e in found if (e["system"], e["threads"], e["measure"], e["recall"]) == wanted]
    return {each["rows"]: each["best"] for each in here if each["best"]}


def texts() -> dict[int, float]:
    """What the sample's passages occupy in a bundle beside their codes."""
    passages = list(read_records(demo.PASSAGES))
    vectors = np.random.default_rng(0).standard_normal((len(passages), BITS), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        bpr.build((fields for _, fields in passages), Path(folder) / "sample.bpr", vectors=vectors)
        with bundle.open(Path(folder) / "sample.bpr") as opened:
            entries = [*opened.manifest.files.values(), opened.manifest.checksums]
            return {len(passages): float(sum(each.bytes for each in entries if each.name in TEXT_FILES))}


# ── For people ───────────────────────────────────────────────────────────────────────────────────────────────────────

UNITS: dict[str, list[tuple[float, str]]] = {
    "bytes": [(1e12, "TB"), (1e9, "GB"), (1e6, "MB")],
    "ms": [(1000, "s"), (1, "ms")],
    "s": [(86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "s"), (0.001, "ms")],
}


def shown(cell: Cell, unit: str) -> str:
    """1.4 ms, 96 GB; with a star where it is extrapolated."""
    size, name = next((each for each in UNITS[unit] if cell.value >= each[0]), UNITS[unit][-1])
    value = cell.value / size
    return f"{value:,.0f} {name}" * (value >= 100) + f"{value:.3g} {name}" * (value < 100) + " *" * cell.extrapolated


def table(found: Iterable[Line]) -> str:
    """The table of operations.md."""
    rows = [["", *SIZES, "from"], ["---"] * (len(SIZES) + 2)]
    rows += [[line.what, *(shown(cell, line.unit) for cell in line.cells.values()), line.source] for line in found]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def with_table(page: str, found: Iterable[Line]) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}"


def result(name: str) -> dict[str, Any]:
    """What a benchmark has written."""
    known: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return known


def report(found: list[Line]) -> dict[str, Any]:
    """What goes into results/sizing.json."""
    machines = {name: result(name)["machine"] for name in ("scan", "indexes", "encode", "memory")}
    return {"command": "python benchmarks/sizing.py", "machines": machines, "lines": [asdict(each) for each in found]}


def main() -> None:
    found = lines(result)
    text = json.dumps(report(found), indent=1, ensure_ascii=False) + "\n"
    (RESULTS / "sizing.json").write_text(text, encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
