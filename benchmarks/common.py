"""What the benchmarks share: figures with their targets, and where results go.

The scripts beside it import it; it knows no benchmark, and of bpr only what names the machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bpr import bench

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """A measured number and the bar it is held to: at least (or, with `most`, at most) `target`."""

    name: str
    value: float
    target: float
    most: bool = False
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.target if self.most else self.value >= self.target

    def __str__(self) -> str:
        bar = f"{'≤' if self.most else '≥'} {self.target:g}{self.unit}"
        return f"{'holds ' if self.holds else 'FAILS '} {self.value:8.3g}{self.unit:5} ({bar:>10})  {self.name}"


def count(number: int, what: str) -> str:
    """1 question, 64 questions."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def write(name: str, timings: Iterable[bench.Timing], figures: list[Figure], **more: Any) -> None:
    """Write results/NAME.json and print the figures."""
    RESULTS.mkdir(exist_ok=True)
    result = {
        "command": f"python benchmarks/{name}.py",
        "machine": bench.machine(),
        "timings": [timing.to_dict() for timing in timings],
        "figures": [{**asdict(figure), "holds": figure.holds} for figure in figures],
        **more,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(str(figure) for figure in figures))


def save(name: str, timings: Iterable[bench.Timing], figures: list[Figure], **more: Any) -> None:
    """The same; exit 1 where one does not hold."""
    write(name, timings, figures, **more)
    sys.exit(not all(figure.holds for figure in figures))


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Write a text of ours into a page, between two lines of it."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def say(timings: list[bench.Timing]) -> list[bench.Timing]:
    """Print timings as they come."""
    for t in timings:
        setting = f"{t.rows:>11,} rows {t.bits} bits {t.questions:>3} questions {t.threads} threads"
        print(f"{t.what:<11} {setting}  {t.best:9.3f} ms  {t.system}", flush=True)
    return timings
