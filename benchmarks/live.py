"""What changes to a bundle cost, and what searching a changed one costs: docs/live.md's figures.

python benchmarks/live.py [--rows 1000000] [--bits 768]

Random codes of one plane with short texts. Bytes are counted where they are written; times are of one run each, and
searches take turns, so that ratios mean something on a noisy machine. Writes benchmarks/results/live.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bpr
from bpr import live
from bpr.disk import Bytes, Disk
from common import Figure, save

ROUNDS, ASKED, MOST = 15, 20, 1.15


class Counting(Disk):
    """How many bytes are written, and how many files are taken over."""

    def __init__(self) -> None:
        self.written = self.linked = 0

    def write(self, descriptor: int, path: Path, data: Bytes) -> int:
        count = super().write(descriptor, path, data)
        self.written += count
        return count

    def link(self, source: Path, target: Path) -> bool:
        self.linked += 1
        return super().link(source, target)


def passages(first: int, last: int) -> Iterator[dict[str, Any]]:
    return ({"id": f"p{row}", "text": f"This is the text of passage {row}. " * 12} for row in range(first, last))


def timed(what: str, change: Callable[[Disk], object]) -> dict[str, Any]:
    disk, begun = Counting(), time.perf_counter()
    change(disk)
    line: dict[str, Any] = {
        "what": what,
        "seconds": time.perf_counter() - begun,
        "bytes": disk.written,
        "links": disk.linked,
    }
    print(f"{what:24} {line['seconds'] * 1000:10,.1f} ms {line['bytes']:14,} bytes {line['links']:4} links", flush=True)
    return line


def milliseconds(retrievers: dict[str, bpr.Retriever], asked: Any) -> dict[str, float]:
    """Of one question, the best of some rounds in which all take turns."""
    best = dict.fromkeys(retrievers, float("inf"))
    for _ in range(ROUNDS):
        for name, retriever in retrievers.items():
            begun = time.perf_counter()
            for vector in asked:
                retriever.rank(vector[None], k=20)
            best[name] = min(best[name], 1000 * (time.perf_counter() - begun) / len(asked))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=768)
    given = parser.parse_args()
    dice = np.random.default_rng(0)
    vectors = dice.standard_normal((given.rows, given.bits), np.float32)
    more = vectors[:11_000]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.bpr"
        bpr.build(passages(0, given.rows), path, vectors=vectors)
        running = bpr.open(path)
        end = given.rows
        lines = [
            timed("add 1,000", lambda disk: live.add(path, passages(end, end + 1000), vectors=more[:1000], disk=disk)),
            timed("delete 1", lambda disk: live.delete(path, ["p5"], disk=disk)),
            timed("reload", lambda disk: running.reload()),
            timed(
                "add 10,000",
                lambda disk: live.add(path, passages(end + 1000, end + 11_000), vectors=more[1000:], disk=disk),
            ),
        ]
        bpr.compact(path)
        plain = bpr.open(path)  # the very codes that are searched below, in the same memory
        tenth = [f"p{row}" for row in dice.choice(np.arange(6, given.rows), given.rows // 10, replace=False)]
        lines.append(timed("delete a tenth", lambda disk: live.delete(path, tenth, disk=disk)))
        best = milliseconds({"plain": plain, "a tenth deleted": bpr.open(path)}, more[:ASKED])
    print("  ".join(f"{name} {value:.3f} ms" for name, value in best.items()))
    figure = Figure(
        "search with a tenth deleted: times as long", best["a tenth deleted"] / best["plain"], MOST, most=True
    )
    save("live", [], [figure], changes=lines, search=best, rows=given.rows, bits=given.bits)


if __name__ == "__main__":
    main()
