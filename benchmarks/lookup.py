"""Hash look-up against the scan on real codes: where it wins, where it cannot, what its tables and duplicates cost.

python benchmarks/lookup.py SIGNS.npy QUESTIONS.npy [--quick]      writes benchmarks/results/lookup.json

SIGNS: uint8[n, bits/8], the sign plane of a bundle; QUESTIONS: float[q, bits], real questions from the same model.
Larger collections are the same codes again, each copy with a fifth of its bits flipped: neighbours stay strangers.
Scan and look-up take turns, question by question, on one thread; a figure is how many times as long the scan took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bpr.bench import Timing
from bpr.codes import Codes, pack
from bpr.index import HashIndex, ScanIndex, duplicates
from bpr.index.hash import NEVER_SCAN
from bpr.kernels import Limits
from common import Figure, save

MILLION = 1_000_000
NOISE = (0, 4, 8, 16, 24, 32, 40)
WANTED = (1, 10, 100, 1000)
STRANGE = 0.2  # share of flipped bits that makes a copy a stranger
CHANGED, REAL = "passages,", "real questions"
RADII = (0, 2, 4, 8, 16)
RANDOM = np.random.default_rng(20210604)


@dataclass(frozen=True)
class Compared:
    """One kind of questions: milliseconds each (medians), how the look-up went, and how often it fell back."""

    what: str
    rows: int
    tables: int
    noise: int | None
    l: int
    batch: int
    scan: float
    lookup: float
    fell_back: float
    probes: float
    visited: float

    @property
    def times(self) -> float:
        """How many times as long the scan took."""
        return self.scan / self.lookup


def flipped(codes: Codes, count: int) -> Codes:
    """The same with exactly so many bits of each changed."""
    bits = np.unpackbits(codes, axis=1)
    chosen = RANDOM.random(bits.shape).argsort(axis=1)[:, :count]
    np.put_along_axis(bits, chosen, 1 - np.take_along_axis(bits, chosen, axis=1), axis=1)
    return np.packbits(bits, axis=1)


def multiplied(codes: Codes, rows: int) -> Codes:
    """So many codes: these, and copies that are strangers to them."""
    grown = np.resize(codes, (rows, codes.shape[1]))
    for first in range(len(codes), rows, 50_000):
        part = grown[first : min(first + 50_000, rows)]
        part ^= np.packbits(RANDOM.random((len(part), codes.shape[1] * 8), np.float32) < STRANGE, axis=1)
    return grown


def timed(run: Callable[[], Any]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1000


def compare(
    what: str, index: HashIndex, asked: Codes, l: int, noise: int | None, batch: int = 1, rounds: int = 3
) -> Compared:
    """Scan and look-up in turns, `batch` questions at a time: the best of some rounds, the median over questions."""
    scan, calls = ScanIndex(index.planes.signs), []
    rounds = rounds if batch == 1 else 5 * rounds  # one call, not many whose median can be taken
    for first in range(0, len(asked), batch):
        part = asked[first : first + batch]
        ways = (partial(scan.candidates, part, l, threads=1), partial(index.candidates, part, l, threads=1))
        took = [[timed(way) for way in ways] for _ in range(rounds)]
        found = index.lookup(part, l, threads=1)
        slow, quick = (min(each) / len(part) for each in zip(*took, strict=True))
        calls.append((slow, quick, found.fell_back.mean(), np.median(found.probes), np.median(found.visited)))
    slow, quick, fell, probes, visited = zip(*calls, strict=True)
    row = Compared(
        *(what, len(index), len(index.tables.bits), noise, l, batch, median(slow), median(quick)),
        *(float(np.mean(fell)), float(median(probes)), float(median(visited))),
    )
    print(
        f"{row.what:<32} {row.rows:>9,} rows {row.tables:>2} tables  l {l:<4} batch {batch:<3} scan {row.scan:8.3f} ms "
        f"look-up {row.lookup:8.3f} ms  {row.times:7.1f} times  fell back {row.fell_back:4.0%}  "
        f"{row.probes:,.0f} probes {row.visited:,.0f} rows",
        flush=True,
    )
    return row


def passages_as_questions(index: HashIndex, count: int) -> list[Compared]:
    """Passages with some bits changed: near duplicates, from none to a tenth of the bits."""
    chosen = index.planes.signs[RANDOM.integers(0, len(index), count)]
    rows = [compare(f"{CHANGED} {noise} bits changed", index, flipped(chosen, noise), 1, noise) for noise in NOISE]
    rows += [compare(f"{CHANGED} 8 bits changed", index, flipped(chosen, 8), l, 8) for l in WANTED[1:]]
    return [*rows, compare(f"{CHANGED} 8 bits changed", index, flipped(chosen, 8), 1, 8, batch=len(chosen))]


def real_questions(index: HashIndex, asked: Codes) -> list[Compared]:
    """What people ask: their passages are far."""
    rows = [compare(REAL, index, asked, l, None) for l in WANTED]
    return [*rows, *(compare(REAL, index, asked, l, None, batch=len(asked)) for l in (1, 1000))]


def never_given_up(index: HashIndex, asked: Codes) -> list[Compared]:
    """The same without the cost model: what looking up until all is known would cost."""
    stubborn = HashIndex(index.planes.signs, tables=index.tables, costs=NEVER_SCAN)
    return [compare("real questions, never given up", stubborn, asked, l, None) for l in (1, 10, 1000)]


def copies(codes: Codes, rows: int, count: int) -> list[Compared]:
    """A collection in which every text stands twenty times, each time a little otherwise: then even l = 10 is near."""
    originals = codes[: rows // 20]
    grown = np.concatenate([flipped(originals, many % 7) for many in range(20)])
    asked = flipped(originals[RANDOM.integers(0, len(originals), count)], 3)
    index = HashIndex(grown)
    return [compare("every passage 20 times", index, asked, l, 3) for l in WANTED[:3]]


def near_duplicates(codes: Codes) -> list[dict[str, float]]:
    """Seconds that it takes to find all groups, and how many there are."""
    found = []
    for radius in RADII:
        begin = time.perf_counter()
        groups = duplicates(codes, radius, limits=Limits(1))
        seconds = time.perf_counter() - begin
        found.append({"rows": len(codes), "radius": radius, "seconds": seconds, "groups": len(groups)})
        print(f"duplicates within {radius:>2} bits of {len(codes):>9,} rows: {len(groups):>6,} groups, {seconds:.2f} s")
    return found


def distances(codes: Codes, asked: Codes) -> dict[str, Any]:
    """Bits between a question and its l-th nearest passage, and between a passage and its nearest neighbour: means."""
    scan = ScanIndex(codes)
    far = scan.candidates(asked, max(WANTED))[1]
    near = scan.candidates(np.ascontiguousarray(codes[:: max(1, len(codes) // 1000)]), 2)[1][:, 1]
    nearest = {str(l): float(far[:, l - 1].mean()) for l in WANTED}
    return {"questions": len(asked), "nearest": nearest, "passage": float(near.mean())}


def figures(rows: list[Compared], groups: list[dict[str, float]], smallest: int) -> list[Figure]:
    """What must hold: near duplicates win by far, and what cannot win costs little more than a scan."""
    chosen = next(row.tables for row in rows if row.rows == smallest)
    plain = [row for row in rows if row.rows == smallest and row.tables == chosen]
    near = next(row for row in plain if row.noise == 8 and (row.l, row.batch) == (1, 1))
    found = [Figure(f"a passage with 8 bits changed, {smallest:,} rows: times as fast as a scan", near.times, 10)]
    for row in plain:
        if row.what == REAL:
            name = f"real questions, l = {row.l}, {row.batch} at a time: times as long as a scan"
            found.append(Figure(name, 1 / row.times, 1.15, True))
    last = groups[-1]
    name = f"duplicates within {last['radius']} bits of {last['rows']:,} rows"
    return [*found, Figure(name, last["seconds"], 30, True, " s")]


def main() -> None:
    """Everything; --quick for a look at smaller sizes."""
    quick = "--quick" in sys.argv
    signs, questions = (np.load(path, allow_pickle=False, mmap_mode="r") for path in sys.argv[1:3])
    codes, asked = np.ascontiguousarray(signs), pack(questions[:: len(questions) // 64][:64])
    count = 16 if quick else 64
    rows: list[Compared] = []
    built, groups = [], near_duplicates(codes)
    for size in (len(codes), *(() if quick else (MILLION, 5 * MILLION))):
        grown = codes if size == len(codes) else multiplied(codes, size)
        for wish in (None, 1, 24) if size == len(codes) else (None,):
            begin = time.perf_counter()
            index = HashIndex(grown, tables=wish)
            seconds = time.perf_counter() - begin
            tables = index.tables
            shape = {"rows": size, "tables": len(tables.bits), "width": tables.bits.shape[1]}
            built.append({**shape, "bytes_a_row": tables.nbytes / size, "seconds": seconds})
            print(f"{tables} for {size:,} codes, {tables.nbytes / size:.1f} bytes a row, {seconds:.2f} s")
            rows += passages_as_questions(index, count)
            if wish is None:
                rows += real_questions(index, asked[:count])
            if wish != 1 and size == len(codes):
                rows += never_given_up(index, asked[:16])
        if size == MILLION:
            groups += near_duplicates(grown)
    rows += copies(codes, len(codes) if quick else MILLION, count)
    kept = [asdict(row) | {"times": row.times} for row in rows]
    none: list[Timing] = []
    more = {"compared": kept, "tables": built, "duplicates": groups, "distances": distances(codes, asked)}
    command = "python benchmarks/lookup.py CODES/signs.npy CODES/questions.npy"
    save("lookup", none, figures(rows, groups, len(codes)), command=command, **more)


if __name__ == "__main__":
    main()
