"""What a bundle costs: memory of a search, time to import, open and verify, and a second plane that lies on disk.

python benchmarks/memory.py [--quick]      writes benchmarks/results/memory.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bpr import bundle, kernels, passages
from bpr.bench import Data
from bpr.codes import LEVELS, Questions
from bpr.kinds import MAGNITUDES, SIGNS
from bpr.records import Passage
from bpr.segments import MEAN, SCALES
from common import Figure, save

MB = 1_000_000
SEARCH = """
import json, sys, numpy as np, bpr
retriever = bpr.open(sys.argv[1], verify=sys.argv[2])
vectors = np.random.default_rng(1).standard_normal((64, retriever.info["dimensions"]), np.float32)
retriever.rank(vectors, k=100)
retriever.search(vectors=vectors[0], k=20)
mapped = {}
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        name = line.split()[-1].rsplit("/", 1)[-1]
    elif line.startswith("Rss:"):
        mapped[name] = mapped.get(name, 0) + int(line.split()[1]) * 1024
files = ("magnitudes.npy", "passages.jsonl", "offsets.npy", "ids.npy")
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak": peak, "touched": sum(mapped.get(file, 0) for file in files)}))
"""


def write_bundle(path: Path, rows: int, bits: int, planes: int) -> None:
    """A bundle of random codes: what builder.build would write, without making float vectors first."""
    with bundle.create(path) as new:
        passages.write((Passage(str(i), "title", f"the text of passage {i}") for i in range(rows)), new)
        for plane, name in enumerate((SIGNS, MAGNITUDES)[:planes]):
            new.save(name, Data.random(rows, bits, seed=plane).codes)
        new.save(MEAN, np.zeros(bits, np.float32))
        new.save(SCALES, np.ones(bits, np.float32))
        info = {"kind": "scan", "rows": rows, "bits": bits, "dimensions": bits, "planes": planes, "model": None}
        levels = list(LEVELS) if planes == 2 else None
        new.publish({**info, "levels": levels, "centered": False, "rotated": False, "resident": [SIGNS]})


def seconds(run: Any, rounds: int = 5) -> float:
    """The best of some runs."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def import_time() -> Figure:
    """`import bpr` in a fresh interpreter, less the interpreter."""
    bare = seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 9)
    full = seconds(lambda: subprocess.run([sys.executable, "-c", "import bpr"], check=True), 9)
    return Figure("import bpr", (full - bare) * 1000, 150, True, " ms")


def resident(path: Path) -> list[Figure]:
    """Peak memory of a process that opens and searches the bundle, beyond its signs and what it touched of the rest."""
    figures, signs = [], (path / _generation(path) / SIGNS).stat().st_size
    for verify in ("size", "auto"):
        out = subprocess.run(
            [sys.executable, "-c", SEARCH, str(path), verify], check=True, capture_output=True, text=True
        )
        used = json.loads(out.stdout)
        beyond = (used["peak"] - used["touched"] - signs) / MB
        figures.append(
            Figure(
                f"{path.stem}: peak memory beyond signs and touched blocks, verify={verify}",
                beyond,
                64 * 1.048576,
                True,
                " MB",
            )
        )
    return figures


def opening(path: Path) -> list[Figure]:
    """Open without verification, and the speed of verification."""
    total = sum(file.stat().st_size for file in (path / _generation(path)).iterdir())
    quick = seconds(lambda: bundle.open(path, verify="size").close())
    full = seconds(lambda: bundle.open(path, verify="all").close())
    return [
        Figure("open without verification, 1 M rows", quick * 1000, 50, True, " ms"),
        Figure("verification at open", total / full / 1e9, 1, False, " GB/s"),
    ]


def second_plane(path: Path, rows: int, bits: int) -> dict[str, float]:
    """Rerank of 1,000 scattered candidates when the second plane is in memory, and when it must come from disk."""
    generator = np.random.default_rng(2)
    vectors = generator.standard_normal((1, bits), np.float32)
    times: dict[str, float] = {}
    for name, one_by_one in (("cold, page by page", True), ("cold, as bpr does it", False), ("warm", False)):
        took = []
        for _ in range(5):
            candidates = np.sort(generator.choice(rows, (1, 1000), replace=False), axis=1)
            if name == "warm":
                (path / _generation(path) / MAGNITUDES).read_bytes()
            else:
                _drop_from_cache(path)
            with bundle.open(path, verify="size") as opened:
                took.append(_rerank_ms(opened, vectors, candidates, one_by_one))
        times[name] = min(took)
    return times


def _rerank_ms(opened: bundle.Opened, vectors: Any, candidates: Any, one_by_one: bool) -> float:
    view, signs = opened.view(MAGNITUDES), opened.array(SIGNS)
    view.advise_random()
    kernels.read_all(signs)
    asked = Questions(vectors)
    begin = time.perf_counter()
    if one_by_one:
        view.array[candidates[0]]  # numpy meets the pages in order, each when it needs it
    kernels.rerank(signs, view.array, LEVELS, asked, candidates, 100)
    return (time.perf_counter() - begin) * 1000


def _drop_from_cache(path: Path) -> None:
    descriptor = os.open(path / _generation(path) / MAGNITUDES, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _generation(path: Path) -> str:
    return str(json.loads((path / "manifest.json").read_text())["generation"])


def main() -> None:
    """Everything; --quick on a tenth of the rows."""
    rows = 100_000 if "--quick" in sys.argv else 1_000_000
    figures = [import_time()]
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(Path(folder) / "one plane.bpr", rows, 768, 1)
        figures += resident(Path(folder) / "one plane.bpr") + opening(Path(folder) / "one plane.bpr")
        write_bundle(Path(folder) / "two planes.bpr", 2 * rows, 384, 2)
        figures += resident(Path(folder) / "two planes.bpr")
        plane = second_plane(Path(folder) / "two planes.bpr", 2 * rows, 384)
    for name, took in plane.items():
        print(f"rerank of 1,000 candidates, second plane {name}: {took:.2f} ms")
    save("memory", [], figures, second_plane=plane, rows=rows)


if __name__ == "__main__":
    main()
