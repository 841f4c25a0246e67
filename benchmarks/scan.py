"""Ours, Faiss, usearch and the authors' two-stage path on the same codes in one run, beside the limit of memory.

python benchmarks/scan.py [--quick]      writes benchmarks/results/scan.json; report.py draws docs/benchmarks.md from it
"""

from __future__ import annotations

import sys

from bpr import kernels
from bpr.bench import (
    CANDIDATES,
    RERANK_ALONE,
    Data,
    Setting,
    Timing,
    compare_candidates,
    compare_two_stages,
    ratio,
    rerank_alone,
)
from bpr.codes import Questions
from bpr.kernels import Limits
from bpr.peers import FaissFlat
from common import Figure, count, save, say

ALL = Limits().thread_count()
THREADS = sorted({1, ALL})
MILLION = 1_000_000


def grid(rows: int, rounds: int) -> tuple[list[Timing], list[Figure]]:
    """Both stages at 768 bits, for one question to many, on one thread and on all."""
    data, timings, figures = Data.random(rows, 768), [], []
    peer = FaissFlat(data.codes)
    for threads in THREADS:
        for questions in (1, 8, 64, 512):
            setting = Setting(rows, 768, questions, threads, rounds if questions < 512 else 2)
            found = say(compare_candidates(data, peer, setting, slow_peers=questions < 512))
            if questions == 64:
                name = f"64 questions, {rows:,} rows, {count(threads, 'thread')}: times as fast as Faiss"
                figures.append(Figure(name, ratio(found, "bpr", "faiss"), 4))
            timings += found
            if questions == 512:
                continue
            found = say(compare_two_stages(data, peer, setting))
            if threads == ALL and questions != 8:
                name = f"two stages, {count(questions, 'question')}, {rows:,} rows: times as fast as the authors' path"
                figures.append(Figure(name, ratio(found, "bpr", "authors"), 5 if questions > 1 else 2))
                figures += rerank_figures(found[-1], count(questions, "question"))
            timings += found
    return timings, figures


def two_planes(rows: int, rounds: int) -> tuple[list[Timing], list[Figure]]:
    """The rerank of 384 dimensions in two planes: the same bytes as 768 bits in one."""
    data, large = Data.random(rows, 384), Data.random(rows, 384, seed=1).codes
    timings, figures = [], []
    for questions in (1, 64):
        timings += say(rerank_alone("two planes", data, Setting(rows, 384, questions, ALL, rounds), large))
        figures += rerank_figures(timings[-1], f"two planes, {count(questions, 'question')}")
    return timings, figures


def rerank_figures(timing: Timing, setting: str) -> list[Figure]:
    """The rerank with cold caches, right after a scan: its best run and, for one question, its median too.

    A batch is judged by its best run alone: its rounds are few, and what one question costs in it is no latency.
    """
    assert timing.system == RERANK_ALONE
    name = f"rerank of {CANDIDATES} alone, {setting}"
    figures = [Figure(name, timing.best, 0.15, True, " ms")]
    if timing.questions == 1:
        figures.append(Figure(f"{name}: median of {timing.rounds} runs", timing.middle, 0.15, True, " ms"))
    return figures


def one_question(rows: int, rounds: int) -> tuple[list[Timing], list[Figure]]:
    """One question over codes far larger than any cache: the speed of memory is the limit."""
    data, timings, figures = Data.random(rows, 768), [], []
    peer = FaissFlat(data.codes)
    for threads in THREADS:
        found = say(compare_candidates(data, peer, Setting(rows, 768, 1, threads, rounds), slow_peers=False))
        if threads == ALL:
            name = f"one question, {rows:,} rows, {count(threads, 'thread')}"
            figures.append(Figure(f"{name}: share of the read bandwidth", ratio(found, "bpr", "read once"), 0.9))
            figures.append(Figure(f"{name}: times as fast as Faiss", ratio(found, "bpr", "faiss"), 1.15))
        timings += found
    return timings, figures


def widths(rows: int, rounds: int) -> tuple[list[Timing], list[Figure]]:
    """384 bits against 768, in turns, over the same number of bytes."""
    wide, narrow = Data.random(rows, 768), Data.random(2 * rows, 384)
    timings, figures = [], []
    for questions in (1, 64):
        systems = {}
        for data in (wide, narrow):
            asked = Questions(data.vectors[:questions]).codes
            systems[f"{asked.shape[1] * 8} bits"] = lambda d=data, a=asked: kernels.scan(d.codes, a, CANDIDATES)
        found = Setting(rows, 768, questions, ALL, rounds).take_turns("equal bytes", systems)
        timings += say(found)
        name = f"384 bits against 768, {count(questions, 'question')}, {wide.codes.nbytes:,} bytes each: times as long"
        figures.append(Figure(name, found[1].best / found[0].best, 1.15, True))
    return timings, figures


def scaling(sizes: list[int]) -> list[Timing]:
    """From an index that fits the cache to all of Wikipedia."""
    timings = []
    for rows in sizes:
        data = Data.random(rows, 768)
        peer = FaissFlat(data.codes)
        for questions in (1, 64):
            setting = Setting(rows, 768, questions, ALL, 3 if rows * questions < 10**9 else 1)
            timings += say(compare_candidates(data, peer, setting, slow_peers=False))
    return timings


def main() -> None:
    """Everything; --quick for a look at smaller sizes, whose figures mean little."""
    quick = "--quick" in sys.argv
    small, large, rounds = (MILLION // 10, MILLION // 2, 3) if quick else (MILLION, 5 * MILLION, 9)
    parts = [grid(small, rounds), two_planes(small, rounds), one_question(large, 2 * rounds), widths(large, rounds)]
    sizes = [int(n * small) for n in (0.1, 0.3, 1, 3, 10, 20)]
    timings = [timing for part, _ in parts for timing in part] + scaling(sizes)
    save("scan", timings, [figure for _, found in parts for figure in found], scaling_rows=sizes)


if __name__ == "__main__":
    main()
