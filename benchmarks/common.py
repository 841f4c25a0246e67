"""What the benchmarks share: figures with their bars, where results go, and on which commit they were measured.

The scripts beside it import it; it knows no benchmark, and of bpr only what names the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a machine with a GPU has no compiled kernel
    from bpr.bench import Timing

HOME = Path(__file__).resolve().parent.parent
RESULTS = HOME / "benchmarks" / "results"
# What a figure may depend on: all but what measuring and reporting write themselves (were it counted, the second
# benchmark of a run would be dirty), what only reports, and what no benchmark runs.
WRITTEN = ("benchmarks/results", "docs", "*.md")
REPORTS = ("benchmarks/all.py", "benchmarks/common.py", "benchmarks/report.py", "benchmarks/*blocks.py")
DRAWS = ("benchmarks/drawings.py", "src/bpr/plots.py")  # what was measured is drawn afterwards
NOT_RUN = ("tests", "tools", "examples", ".ci", "Makefile", *DRAWS, "src/bpr/integrations")
CONVERTING = (  # nor these
    "cli/training.py",
    "training/averaging.py",
    "training/convert.py",
    "training/foreign.py",
    "training/sentences.py",
)
GPU_ALONE = ("src/bpr/training/bytebert.py",)  # and no step of all.py has one
CODE = (
    ".",
    *(f":!{each}" for each in (*WRITTEN, *REPORTS, *NOT_RUN, *GPU_ALONE)),
    *(f":!src/bpr/{each}" for each in CONVERTING),
)
# What only these benchmarks run: a change there leaves the figures of all others as they are.
ALONE = {
    "src/bpr/cluster": ("cluster",),
    "src/bpr/service": ("load",),
    "src/bpr/bench.py": ("scan", "filters", "memory"),  # the others take no more from it than a record, or a pause
    "benchmarks/cluster.py": ("cluster",),
    "benchmarks/load.py": ("load",),
    "benchmarks/scan.py": ("scan",),
    "benchmarks/answers.py": ("reader", "reader-time"),
    "benchmarks/indexes.py": ("indexes",),
}
# What encodes and reads text, and the benchmarks that work on vectors and codes, which never run it.
TEXT = ("src/bpr/pieces.py", "src/bpr/encoder.py", "src/bpr/bert.py", "src/bpr/reader.py")
WITHOUT_TEXT = ("sizing", "scan", "filters", "live", "lookup", "cluster", "indexes")


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


# ── When and on what ─────────────────────────────────────────────────────────────────────────────────────────────────


def git(*arguments: str) -> str | None:
    """What git prints; None where it fails, or is not there."""
    try:
        found = subprocess.run(["git", *arguments], cwd=HOME, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def commit() -> str | None:
    """The commit that is checked out, "-dirty" where more than results and pages differs from it; None without git."""
    name = git("describe", "--always", "--exclude", "*")
    return f"{name}-dirty" if name and git("diff", "--quiet", "HEAD", "--", *CODE) is None else name


def is_current(name: str, result: dict[str, Any]) -> bool:
    """Whether nothing that the benchmark NAME may depend on has changed since this, and each part, was measured."""
    parts = [part["commit"] for part in result.values() if isinstance(part, dict) and "commit" in part]
    measured = {str(each or "-dirty") for each in (result.get("commit"), *parts)}
    others = [f":!{path}" for path, names in ALONE.items() if name not in names]
    others += [f":!{path}" for path in TEXT if name in WITHOUT_TEXT]
    return all(
        not each.endswith("-dirty") and git("diff", "--quiet", each, "--", *CODE, *others) is not None
        for each in measured
    )


def stamp() -> dict[str, Any]:
    """What every results file says of itself beside its command and machine."""
    return {"commit": commit(), "date": datetime.now(timezone.utc).date().isoformat()}


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(
    name: str, command: str, found: dict[str, Any], machine: dict[str, Any] | None = None, indent: int | None = 1
) -> None:
    """Write results/NAME.json: what was found, with its command, commit, date and machine."""
    if machine is None:
        from bpr import bench

        machine = bench.machine()
    RESULTS.mkdir(exist_ok=True)
    path, head = RESULTS / f"{name}.json", {"command": command, **stamp(), "machine": machine}
    path.write_text(json.dumps({**head, **found}, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path}")


def write(
    name: str,
    timings: Iterable[Timing],
    figures: list[Figure],
    command: str = "",
    machine: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """The same for timings and figures with bars, which are printed."""
    found = {
        "timings": [timing.to_dict() for timing in timings],
        "figures": [{**asdict(figure), "holds": figure.holds} for figure in figures],
        **more,
    }
    put(name, command or f"python benchmarks/{name}.py", found, machine)
    print("\n".join(str(figure) for figure in figures))


def save(name: str, timings: Iterable[Timing], figures: list[Figure], **more: Any) -> None:
    """The same; exit 1 where one does not hold."""
    write(name, timings, figures, **more)
    sys.exit(not all(figure.holds for figure in figures))


def say(timings: list[Timing]) -> list[Timing]:
    """Print timings as they come."""
    for t in timings:
        setting = f"{t.rows:>11,} rows {t.bits} bits {t.questions:>3} questions {t.threads} threads"
        print(f"{t.what:<11} {setting}  {t.best:9.3f} ms  {t.system}", flush=True)
    return timings
