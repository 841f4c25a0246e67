"""Filtered searches against the unfiltered scan of the same codes, in one run and in turns.

python benchmarks/filters.py [--quick]      writes benchmarks/results/filters.json and prints a table

Five million codes of 384 bits, and metadata of several kinds: a field of few values, one of many, one that is sparse,
lists. A filtered search is timed from the parsed condition on: its rows are found anew every time, for values that no
search before it asked for where the field has many, then scanned. The metadata of the rows is random, so the rows that
a filter keeps are scattered: its worst case.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bpr import bundle, kernels
from bpr.bench import CANDIDATES, Data, Setting, Timing
from bpr.codes import Questions, RowMask
from bpr.columns import FILES, Columns, ColumnsOut
from bpr.filters import parse
from bpr.kernels import Limits
from common import Figure, count, save, say

THREADS = 2
DRAWS = 64  # more than there are rounds, twice: with its rows found alone, each condition is asked once


def filters(draw: Callable[[int], int]) -> dict[str, dict[str, Any]]:
    """The kinds of filters, by the share of rows that each keeps, with values of their own for every search.

    "permille" is even from 0 to 999, "second" from 0 to 999,999, "half" is 0 or 1. draw(n): one of range(n).
    """
    second = draw(900_000)
    return {
        "0.1 %, one value": {"permille": draw(1000)},
        "1 %, a range": {"permille": {"<": 10}},
        "1 %, a range of many values": {"second": {">=": second, "<": second + 10_000}},
        "1 %, half of 2 %": {"half": draw(2), "permille": {"<": 20}},
        "1 %, half of a tenth of a fifth": {
            "half": draw(2),
            "second": {"<": 100_000 + draw(1000)},
            "permille": {">=": 800},
        },
        "1 %, ten values": {"permille": {"in": list(range(draw(100), 1000, 100))}},
        "1 %, either of two": {"or": [{"permille": {"<": 5}}, {"second": {">": 995_000 - draw(100)}}]},
        "1 %, of a list": {"tags": f"tag {draw(200)}"},
        "10 %, a range": {"permille": {"<": 100}},
        "50 %, a range": {"second": {"<": 500_000 - draw(1000)}},
        "90 %, a range": {"permille": {"<": 900}},
    }


def metadata(rows: int, folder: Path) -> tuple[Columns, float, int]:
    """The columns of random metadata, the seconds that building them took, and their bytes."""
    random = np.random.default_rng(3)
    permille, second, half = (random.integers(0, high, rows).tolist() for high in (1000, 1_000_000, 2))
    tags = random.integers(0, 200, (rows, 2)).tolist()
    out = ColumnsOut()
    begin = time.perf_counter()
    for row in range(rows):
        named = [f"tag {tag}" for tag in tags[row]]
        out.add(row, {"permille": permille[row], "second": second[row], "half": half[row], "tags": named})
    with bundle.create(folder / "meta.bpr") as new:
        out.write(new)
        new.publish({})
    seconds = time.perf_counter() - begin
    with bundle.open(folder / "meta.bpr") as opened:
        return Columns(opened), seconds, sum(opened.manifest.files[name].bytes for name in FILES)


def searches(data: Data, columns: Columns, questions: int) -> dict[str, Callable[[], object]]:
    """Everything that takes turns."""
    asked, limits = Questions(data.vectors[:questions]).codes, Limits(THREADS)
    alive = RowMask.of(np.random.default_rng(4).random(len(data.codes)) < 0.9)
    systems: dict[str, Callable[[], object]] = {
        "no filter": lambda: kernels.scan(data.codes, asked, CANDIDATES, limits=limits),
        "10 % tombstones": lambda: kernels.scan(data.codes, asked, CANDIDATES, mask=alive, limits=limits),
    }
    random = np.random.default_rng(5)
    draws = [filters(lambda high: int(random.integers(high))) for _ in range(DRAWS)]
    for name in draws[0]:
        some = cycle([parse(each[name]) for each in draws])
        systems[name] = lambda some=some: kernels.scan(  # type: ignore[misc]
            data.codes, asked, CANDIDATES, mask=columns.rows(next(some)), limits=limits
        )
        if questions == 1:
            systems[f"{name}: evaluation alone"] = lambda some=some: columns.rows(next(some))  # type: ignore[misc]
    return systems


def figures(found: list[Timing]) -> list[Figure]:
    """What the targets are about, by the best runs; the table has medians, too."""
    by_name = {timing.system: timing for timing in found}
    plain, some = by_name["no filter"], []
    for name, timing in by_name.items():
        if name.startswith("1 %") and "evaluation" not in name:
            some.append(Figure(f"{name}: times as fast as no filter", plain.best / timing.best, 5))
    dead = by_name["10 % tombstones"]
    some.append(Figure("10 % tombstones: times as long as no filter", dead.best / plain.best, 1.15, True))
    return some


def main() -> None:
    """One question and a batch; --quick for fewer rows, whose figures mean little."""
    rows, rounds = (500_000, 5) if "--quick" in sys.argv else (5_000_000, 21)
    data = Data.random(rows, 384)
    with tempfile.TemporaryDirectory() as folder:
        columns, seconds, size = metadata(rows, Path(folder))
        print(f"{rows:,} rows, 4 fields: {seconds:.0f} s to build, {size / rows:.1f} bytes a row")
        timings: list[Timing] = []
        for questions in (1, 64):
            setting = Setting(rows, 384, questions, THREADS, rounds if questions == 1 else 3)
            found = turns(setting, searches(data, columns, questions))
            plain = found[0]
            for timing in say(found):
                faster = f"{plain.best / timing.best:6.2f} (medians {plain.middle / timing.middle:.2f})"
                print(f"{count(questions, 'question'):>13}  {faster:>24} times as fast as no filter: {timing.system}")
            timings += found
    save(
        "filters",
        timings,
        figures([each for each in timings if each.questions == 1]),
        build_seconds=seconds,
        bytes_a_row=size / rows,
    )


def turns(setting: Setting, systems: dict[str, Callable[[], object]]) -> list[Timing]:
    """As Setting.take_turns, but without its pauses: nothing here leaves threads behind."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(setting.rounds):
        for name, run in systems.items():
            begin = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begin) * 1000 / setting.questions)
    size = setting.rows, setting.bits, setting.questions, setting.threads
    return [
        Timing("filter", name, *size, min(took), float(np.median(took)), setting.rounds) for name, took in times.items()
    ]


if __name__ == "__main__":
    main()
