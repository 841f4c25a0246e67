"""Our scan, cells and hash tables beside Faiss's and usearch's indexes of bits: recall against time and bytes.

python benchmarks/indexes.py CODES [--rows 5000000] [--cache build/indexes] [--graphs 1000000] [--only-build]
python benchmarks/indexes.py CODES --from BUNDLE QA        makes CODES (QA: questions with gold passages, as `bpr
                                                           evaluate` reads them; --prefix as there)

Writes benchmarks/results/indexes.json; report.py draws docs/benchmarks.md from it. CODES is a folder with the codes of
a bundle of two planes and questions: signs.npy and magnitudes.npy uint8[n, bits/8], questions.npy float32[q, bits] and
gold.npy int64[q], the row of each question's passage.

Recall is judged on these codes, with questions that the cells were not tuned on; speed is measured on them and on
millions that madecodes.py makes of them. One question is asked at a time; systems take turns in rounds. All of them
propose candidates, and our second stage ranks them, which the times include. Every pair of a system's knob and a number
of candidates is tried; at a wanted recall the quickest counts, interpolated between its neighbours.

Building takes many minutes of a processor, so what is built is kept in --cache; empty it after a change to how cells
are trained. --graphs: the most rows that HNSW graphs are built for. --only-build: measure nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bpr
import systems
from bpr.bench import Timing
from bpr.codes import LEVELS, Codes, Questions
from bpr.index import Planes
from bpr.kernels import Limits
from bpr.questions import read_questions
from common import Figure, write
from madecodes import multiply
from systems import ALL, LISTS, Rows, Shelf, System

MILLION = 1_000_000
K = 20
TUNED_ON, TUNING_SEED = 4000, 1  # questions that the cells' defaults were chosen with, and how those were drawn
JUDGED, JUDGED_ON_MADE, TIMED, ROUNDS = 2000, 1000, 20, 5
RECALLS = (0.98, 0.99, 0.995)
WANTED = 0.99  # the recall of the bars
BROKEN = 0.1  # recall at the most thorough setting
SLOWEST = 4  # scans: what takes longer is not tried
SETTLE_SECONDS = 0.3  # until the threads of OpenMP no longer spin
Judged = dict[tuple[float, int], tuple[float, float]]  # knob, l → answers, overlap
Way = tuple[System, float, int, int]  # with its knob, l, threads
CELLS, SCAN, IVF = "bpr cells", "bpr scan", "Faiss BinaryIVF"


@dataclass(frozen=True)
class Point:
    """One setting of one system: what it finds of what the scan with most candidates finds, and its milliseconds.

    answers: questions whose passage is in the top 20, as a share of the scan's. overlap: share of the scan's top 20.
    best: the mean over questions of each one's best round; middle: the median over rounds of the mean over questions.
    """

    rows: int
    system: str
    knob: float
    l: int
    threads: int
    answers: float
    overlap: float
    best: float
    middle: float


# ── What is searched ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Collection:
    """Codes, and the questions that are asked of them."""

    planes: Planes
    asked: Questions
    gold: Rows

    @property
    def rows(self) -> int:
        return len(self.planes.signs)

    def one(self, number: int) -> Questions:
        return Questions(self.asked.vectors[number : number + 1])


def collections(codes: Path, sizes: Iterable[int], cache: Path) -> Iterator[tuple[Collection, Shelf]]:
    """The real codes, then those made of them."""
    signs, magnitudes, vectors, gold = (
        np.load(codes / f"{name}.npy", allow_pickle=False) for name in ("signs", "magnitudes", "questions", "gold")
    )
    fresh = np.random.default_rng(TUNING_SEED).permutation(len(vectors))[TUNED_ON:]
    if not len(fresh):
        fresh = np.arange(len(vectors))  # a small set of questions of somebody else's
    for rows in (len(signs), *sizes):
        chosen = fresh[: JUDGED if rows == len(signs) else JUDGED_ON_MADE]
        one, two = (signs, magnitudes) if rows == len(signs) else _made(signs, magnitudes, rows, cache)
        shelf = Shelf.of(cache, one)
        yield Collection(Planes.of(one, two, LEVELS), Questions(vectors[chosen]), gold[chosen]), shelf


def _made(signs: Codes, magnitudes: Codes, rows: int, cache: Path) -> tuple[Codes, ...]:
    def build(folder: Path) -> None:
        for name, plane in zip(("signs", "magnitudes"), multiply(signs, magnitudes, rows), strict=True):
            np.save(folder / f"{name}.npy", plane)

    folder, _ = Shelf.of(cache, signs).kept(f"multiplied-{rows}", build)
    return tuple(np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("signs", "magnitudes"))


def make_codes(folder: Path, bundle: Path, questions: Path, prefix: str) -> None:
    """The folder CODES from a bundle and questions; those whose gold passage is not in the bundle are left out."""
    with bpr.open(bundle) as retriever:
        planes = retriever.index.planes
        if not isinstance(planes, Planes) or planes.magnitudes is None or planes.levels != LEVELS:
            raise SystemExit(
                f"{bundle} is not a bundle of one segment and two planes: bpr compact it, or build it anew"
            )
        known = [(q.text, next(iter(q.gold))) for q in read_questions(questions, prefix=prefix) if q.gold]
        places = retriever.passages.find_all([gold for _, gold in known])
        kept = [(text, row) for (text, _), row in zip(known, places, strict=True) if row is not None]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "signs.npy", planes.signs)
        np.save(folder / "magnitudes.npy", planes.magnitudes)
        np.save(folder / "questions.npy", retriever.encoder.questions([text for text, _ in kept]))
        np.save(folder / "gold.npy", np.array([row for _, row in kept], np.int64))
    print(f"{folder}: {len(planes.signs):,} codes, {len(kept):,} questions")


# ── Measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def ranked(system: System, asked: Questions, found: Rows, threads: int) -> Rows:
    """Our second stage, for whoever found the rows: int64[q, K], −1 where there were fewer."""
    limits = Limits(threads)
    if found.shape[1] >= K and found.min() >= 0:
        return system.planes.rerank(asked, found, K, limits).rows
    best = np.full((len(asked), K), -1, np.int64)
    for i, rows in enumerate(found):
        there = rows[rows >= 0]
        if len(there):
            one = Questions(asked.vectors[i : i + 1])
            own = system.planes.rerank(one, there[None], min(K, len(there)), limits).rows[0]
            best[i, : len(own)] = own
    return best


def quickly(system: System, knob: float, here: Collection) -> float:
    """Milliseconds that one question takes at this knob, at least."""
    way = system, knob, max(system.lists(knob)), 1
    return min(timed(way, here.one(number)) for number in range(5))


def judge(system: System, here: Collection, wanted: Rows, limit: float) -> dict[tuple[float, int], tuple[float, float]]:
    """For each knob and l: (answers, overlap), relative to the scan's `wanted`; up to a limit in milliseconds."""
    right = (wanted == here.gold[:, None]).any(axis=1).sum()
    judged: Judged = {}
    for knob in system.knobs:
        lists = system.lists(knob)
        if judged and quickly(system, knob, here) > limit:
            break
        most = system.find(here.asked, knob, max(lists), ALL)
        for l in lists:
            found = most[:, :l] if system.nested else system.find(here.asked, knob, l, ALL)
            best = ranked(system, here.asked, np.ascontiguousarray(found), ALL)
            overlap = np.mean([np.isin(one, other).mean() for one, other in zip(wanted, best, strict=True)])
            judged[knob, l] = float((best == here.gold[:, None]).any(axis=1).sum() / right), float(overlap)
    if max(answers for answers, _ in judged.values()) < BROKEN:
        raise SystemExit(f"{system.name} finds next to nothing: it is broken or used wrongly, and no rival")
    return judged


def timed(way: Way, question: Questions) -> float:
    """Milliseconds."""
    system, knob, l, threads = way
    begin = time.perf_counter()
    ranked(system, question, system.find(question, knob, l, threads), threads)
    return (time.perf_counter() - begin) * 1000


def take_turns(ways: Sequence[Way], here: Collection, rounds: int = ROUNDS) -> list[tuple[float, float]]:
    """The best and middle milliseconds a question of each."""
    asked = [here.one(number) for number in range(min(TIMED, len(here.asked)))]
    took = np.empty((rounds, len(ways), len(asked)))
    time.sleep(SETTLE_SECONDS)
    for r in range(rounds):
        for w, way in enumerate(ways):
            took[r, w] = [timed(way, question) for question in asked]
    return [(float(own.min(axis=0).mean()), float(np.median(own.mean(axis=1)))) for own in took.swapaxes(0, 1)]


def more_threads(system: System, here: Collection) -> float:
    """How many times as long one question takes a peer when it may use all threads."""
    knob, l = system.knobs[:2][-1], LISTS[0]
    one, all_threads = take_turns([(system, knob, l, 1), (system, knob, l, ALL)], here)
    return all_threads[0] / one[0]


def measure(here: Collection, all_systems: Sequence[System], rounds: int) -> list[Point]:
    """Every setting of every system on one collection. The first system is the scan."""
    exact = all_systems[0]
    wanted = ranked(exact, here.asked, exact.find(here.asked, 0.0, max(LISTS), ALL), ALL)
    right = (wanted == here.gold[:, None]).any(axis=1).mean()
    print(f"{here.rows:,} rows, {len(wanted):,} questions: the scan has {right:.2%} of the passages in its top {K}")
    limit = SLOWEST * quickly(exact, 0.0, here)
    judged = {system.name: judge(system, here, wanted, limit) for system in all_systems}
    ways = [(s, *setting, threads) for s in all_systems for setting in judged[s.name] for threads in s.threads]
    points = []
    for (system, knob, l, threads), times in zip(ways, take_turns(ways, here, rounds), strict=True):
        found = judged[system.name][knob, l]
        point = Point(here.rows, system.name, knob, l, threads, *found, *times)
        points.append(point)
        shown = f"{system.name:<24} {system.knob:>14} {knob:<7g} l {l:<5} {threads} thr"
        print(
            f"{shown}  answers {found[0]:.4f}  overlap {found[1]:.4f}  {times[0]:8.3f} ms ({times[1]:.3f})", flush=True
        )
    return points


# ── At equal recall ──────────────────────────────────────────────────────────────────────────────────────────────────


def frontier(points: Iterable[Point], measure: str = "answers", clock: str = "best") -> list[tuple[float, float]]:
    """(recall, milliseconds) of the settings that no other is both quicker and better than, the quickest first."""
    kept: list[tuple[float, float]] = []
    for ms, recall in sorted((getattr(p, clock), getattr(p, measure)) for p in points):
        if not kept or recall > kept[-1][0]:
            kept.append((recall, ms))
    return kept


def at_recall(points: Iterable[Point], recall: float, measure: str = "answers", clock: str = "best") -> float | None:
    """Milliseconds at a recall, between the settings next to it (a straight line in log ms); None: never reached."""
    before = None
    for found, ms in frontier(points, measure, clock):
        if found >= recall:
            if before is None:
                return ms
            share = (recall - before[0]) / (found - before[0])
            return float(before[1] * (ms / before[1]) ** share)
        before = found, ms
    return None


def chosen(points: Sequence[Point], rows: int, system: str, threads: int) -> list[Point]:
    return [p for p in points if (p.rows, p.system, p.threads) == (rows, system, threads)]


def equal_recall(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The table: milliseconds of every system at the wanted recalls, by both measures and both clocks."""
    table = []
    for rows, system, threads in dict.fromkeys((p.rows, p.system, p.threads) for p in points):
        own = chosen(points, rows, system, threads)
        for measure in ("answers", "overlap"):
            for recall in RECALLS:
                times = {clock: at_recall(own, recall, measure, clock) for clock in ("best", "middle")}
                line = {"rows": rows, "system": system, "threads": threads, "measure": measure, "recall": recall}
                table.append(line | times)
    return table


@dataclass(frozen=True)
class Size:
    """What the systems of one collection weigh. plane: bytes of the magnitudes, which all of them need beside it."""

    rows: int
    plane: int
    nbytes: dict[str, int]
    seconds: dict[str, float]  # of a processor, to build
    threads: dict[str, float]  # how many times as long one question takes a peer with all threads as with one


def curves(points: Sequence[Point]) -> list[dict[str, Any]]:
    """What report.py draws: the frontier of every system."""
    found = []
    for rows, system, threads in dict.fromkeys((p.rows, p.system, p.threads) for p in points):
        own = frontier(chosen(points, rows, system, threads))
        found.append({"rows": rows, "system": system, "threads": threads, "curve": own})
    return found


def figures(points: Sequence[Point], sizes: Sequence[Size]) -> list[Figure]:
    """The bars, at 99 % of the scan's answers."""
    return [*against_scan(points, sizes[0].rows, sizes[-1].rows), *(f for size in sizes for f in against(points, size))]


def against_scan(points: Sequence[Point], real: int, largest: int) -> Iterator[Figure]:
    """Settings of the cells that are good enough on the real codes, then those that are on the most rows.

    Where cells never are, they are 0 times as fast.
    """
    scan, mine = at_recall(chosen(points, largest, SCAN, ALL), WANTED), chosen(points, largest, CELLS, ALL)
    good = {(p.knob, p.l) for p in chosen(points, real, CELLS, ALL) if p.answers >= WANTED}
    name = f"{largest:,} rows: cells times as fast as the scan (aim 12)"
    real_choice = min((p for p in mine if (p.knob, p.l) in good), key=lambda p: p.best, default=None)
    on_real = real_choice.best if real_choice else None
    there = f"the real codes ({real_choice.answers:.1%} on these rows)" if real_choice else "the real codes"
    for took, where in ((on_real, there), (at_recall(mine, WANTED), "these rows")):
        yield Figure(f"{name}, {WANTED:.0%} of its answers on {where}", scan / took if scan and took else 0.0, 8)


def against(points: Sequence[Point], size: Size) -> Iterator[Figure]:
    """Cells with all threads, peers with the one that they can use for one question.

    A peer that has not the wanted recall in this sweep is taken at the most it has: it would need longer still.
    """
    ours = at_recall(chosen(points, size.rows, CELLS, ALL), WANTED)
    for peer in size.nbytes:
        if peer != IVF and "HNSW" not in peer:
            continue
        best = frontier(chosen(points, size.rows, peer, 1))[-1]
        short = f", at the {best[0]:.1%} that it has in this sweep" if best[0] < WANTED else ""
        theirs = at_recall(chosen(points, size.rows, peer, 1), WANTED) or best[1]
        name, target = f"{size.rows:,} rows: cells times as fast as {peer}{short}", 1 if peer == IVF else 0.5
        yield Figure(name, theirs / ours if ours else 0.0, target)
        if peer == IVF:
            continue
        for what, plane in (("signs only", 0), ("both planes", size.plane)):
            share = (size.nbytes[CELLS] + plane) / (size.nbytes[peer] + plane)
            yield Figure(f"{size.rows:,} rows: bytes of cells beside {peer}, {what}", share, 1 / 3, True)


# ── All of it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def run(given: argparse.Namespace) -> None:
    points: list[Point] = []
    sizes: list[Size] = []
    left_out: list[str] = []
    for here, shelf in collections(given.codes, sorted({min(MILLION, given.rows), given.rows}), given.cache):
        kinds = [*systems.EXACT, *systems.LISTED]
        if here.rows <= MILLION:
            kinds += systems.TABLES
        if here.rows <= given.graphs:
            kinds += systems.GRAPHS
        else:
            left_out.append(f"HNSW graphs of {here.rows:,} rows")
        found = [kind(here.planes, shelf) for kind in kinds]
        if given.only_build:
            continue
        points += measure(here, found, given.rounds)
        peers = {s.name: more_threads(s, here) for s in found if s.threads == (1,)}
        nbytes, seconds = {s.name: s.nbytes for s in found}, {s.name: s.seconds for s in found}
        assert here.planes.magnitudes is not None
        sizes.append(Size(here.rows, here.planes.magnitudes.nbytes, nbytes, seconds, peers))
    if given.only_build:
        return
    table, none = equal_recall(points), list[Timing]()
    print_table(table, sizes)
    facts: dict[str, Any] = {"sizes": [asdict(size) for size in sizes], "points": [asdict(point) for point in points]}
    counts = {"judged": JUDGED, "judged_on_made": JUDGED_ON_MADE, "timed": TIMED, "rounds": given.rounds, "k": K}
    bars = figures(points, sizes)
    facts |= {"equal_recall": table, "curves": curves(points)}
    write(
        "indexes",
        none,
        bars,
        "python benchmarks/indexes.py CODES",
        counts=counts,
        recalls=RECALLS,
        left_out=left_out,
        threads=ALL,
        **facts,
    )


def print_table(table: Sequence[dict[str, Any]], sizes: Sequence[Size]) -> None:
    """Milliseconds at equal recall, best (middle), with the bytes a row of the index and both planes."""
    weights = {(size.rows, name): (own + size.plane) / size.rows for size in sizes for name, own in size.nbytes.items()}
    for rows, measure in dict.fromkeys((line["rows"], line["measure"]) for line in table):
        print(f"\n{rows:,} rows, ms at {', '.join(f'{r:.1%}' for r in RECALLS)} of the scan's {measure}; bytes a row")
        here = [line for line in table if (line["rows"], line["measure"]) == (rows, measure)]
        for system, threads in dict.fromkeys((line["system"], line["threads"]) for line in here):
            own = [line for line in here if (line["system"], line["threads"]) == (system, threads)]
            cells = [f"{o['best']:8.3f} ({o['middle']:.3f})" if o["best"] and o["middle"] else "  never" for o in own]
            print(f"{system:<24} {threads} thr {''.join(f'{c:>20}' for c in cells)} {weights[rows, system]:8.1f}")
    print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codes", type=Path, metavar="CODES")
    parser.add_argument("--rows", type=int, default=5 * MILLION, help="The most codes that are made.")
    parser.add_argument("--cache", type=Path, default=Path("build") / "indexes")
    parser.add_argument("--graphs", type=int, default=MILLION, help="The most rows with HNSW graphs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only-build", action="store_true")
    parser.add_argument("--from", nargs=2, type=Path, metavar=("BUNDLE", "QA"), dest="source")
    parser.add_argument("--prefix", default="", help="Of the ids of passages, with --from.")
    given = parser.parse_args(arguments)
    if given.source:
        make_codes(given.codes, given.source[0], given.source[1], given.prefix)
    else:
        run(given)


if __name__ == "__main__":
    main()
