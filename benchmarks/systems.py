"""The indexes that indexes.py compares: built once, kept in a folder, and all asked with the same call.

Bits in, rows out: what ranks the rows afterwards, and what is measured, is the business of indexes.py. Every system has
its search knob and its number of candidates swept. How the peers are built is not: Faiss's lists are as many as our
cells and trained on 39 codes each (our cells see all codes), and graphs have their libraries' efConstruction. Faiss
selects by counting, which was quicker than its heap at 221 thousand rows, the one size where both were tried.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index, MetricKind, ScalarKind

from bpr import peers
from bpr.codes import LEVELS, Codes, Questions
from bpr.index import CellIndex, HashIndex, Planes, ScanIndex, Tables
from bpr.index.cells import default_cells, lay_out, train
from bpr.kernels import Limits

faiss: Any = peers.faiss()
ALL = Limits().thread_count()
LISTS = (100, 200, 500, 2000)  # candidates
PROBES = (0.005, 0.01, 0.02, 0.04, 0.05, 0.06, 0.08, 0.16, 0.32)  # of our cells, and of Faiss's lists
EXPANSIONS = (100, 200, 350, 500, 700, 1000, 2000)  # of graphs
FLIPS = (2.0, 4.0, 6.0, 8.0)  # bits of a key that Faiss's hash table also looks up
KEY = 16  # bits of that key
TRAINED_ON = 39  # codes a list that Faiss trains on: the fewest it does without a warning
SEED = 0

Rows = NDArray[np.int64]
Find = Callable[[Questions, float, int, int], Rows]  # questions, knob, l, threads → int64[q, l], −1: found no more


@dataclass(frozen=True)
class System:
    """An index and its knob. nbytes: the index with the signs, without the magnitudes."""

    name: str
    find: Find
    planes: Planes
    nbytes: int
    knob: str = ""
    knobs: tuple[float, ...] = (0.0,)
    threads: tuple[int, ...] = (1,)  # that one question can use
    nested: bool = True  # fewer candidates are the beginning of more
    seconds: float = 0.0  # of a processor, that it took to build

    def lists(self, knob: float) -> tuple[int, ...]:
        """The numbers of candidates to try: a graph finds no more than it expands."""
        return tuple(l for l in LISTS if self.knob != EXPANSION or l <= knob)


EXPANSION = "efSearch"


@dataclass(frozen=True)
class Shelf:
    """Where what was built for some codes is kept: a folder for each, whose name says which codes."""

    home: Path

    @classmethod
    def of(cls, cache: Path, signs: Codes) -> Shelf:
        return cls(cache / f"{len(signs)}-{crc32(signs.data):08x}")

    def kept(self, name: str, build: Callable[[Path], None]) -> tuple[Path, float]:
        """The folder that `build` filled, now or before, and the seconds of a processor it took."""
        folder, work = self.home / name, self.home / f"{name}.{os.getpid()}.part"
        if not folder.exists():
            print(f"building {name} for {self.home.name} …", flush=True)
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            begin = time.process_time()
            build(work)
            seconds = time.process_time() - begin
            (work / "built.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
            if folder.exists():  # somebody else was quicker
                shutil.rmtree(work)
            else:
                work.rename(folder)
        return folder, float(json.loads((folder / "built.json").read_text(encoding="utf-8"))["seconds"])


# ── Ours ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def scan(planes: Planes, shelf: Shelf) -> System:
    index = ScanIndex(planes.signs)

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        return index.candidates(asked, l, threads=threads)[0]

    return System("bpr scan", find, planes, planes.signs.nbytes, threads=tuple(sorted({1, ALL})))


def hashed(planes: Planes, shelf: Shelf) -> System:
    begin = time.process_time()
    tables = Tables.build(planes.signs)
    seconds = time.process_time() - begin
    index = HashIndex(planes.signs, tables=tables)

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        return index.candidates(asked, l, threads=threads)[0]

    own, nbytes = tuple(sorted({1, ALL})), planes.signs.nbytes + tables.nbytes
    return System("bpr hash", find, planes, nbytes, threads=own, seconds=seconds)


def cells(planes: Planes, shelf: Shelf) -> System:
    def build(folder: Path) -> None:
        centroids, nearest = train(planes.signs, seed=SEED)
        np.save(folder / "centroids.npy", centroids)
        np.save(folder / "nearest.npy", nearest)

    folder, seconds = shelf.kept("cells", build)
    layout = lay_out(*(np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("centroids", "nearest")))
    assert planes.magnitudes is not None
    index = CellIndex(layout, planes.signs[layout.rows], planes.magnitudes[layout.rows], LEVELS)
    by_share = {share: index.with_probes(share) for share in PROBES}

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        return by_share[knob].candidates(asked, l, threads=threads)[0]

    own, nbytes = tuple(sorted({1, ALL})), planes.signs.nbytes + layout.nbytes
    return System("bpr cells", find, index.planes, nbytes, "probes", PROBES, own, nested=False, seconds=seconds)


# ── The peers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def faiss_flat(planes: Planes, shelf: Shelf) -> System:
    index = faiss.IndexBinaryFlat(planes.bits)
    index.add(planes.signs)
    index.use_heap = False

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        return np.asarray(index.search(asked.codes, l)[1])

    return System("Faiss BinaryFlat", find, planes, planes.signs.nbytes)


def faiss_ivf(planes: Planes, shelf: Shelf) -> System:
    """As many lists as we have cells, trained as Faiss trains: k-means on floats, whose means become bits."""
    lists = default_cells(len(planes.signs))

    def build(folder: Path) -> None:
        quantizer = faiss.IndexBinaryFlat(planes.bits)
        index = faiss.IndexBinaryIVF(quantizer, planes.bits, lists)
        index.cp.max_points_per_centroid = TRAINED_ON
        index.train(planes.signs)
        index.add(planes.signs)
        faiss.write_index_binary(index, str(folder / "index.faiss"))

    index, nbytes, seconds = _read_faiss(shelf, "faiss-ivf", build)
    index.use_heap = False
    index.max_codes = index.ntotal  # 0 means no limit, but to counting in Faiss 1.15 that nothing may be looked at

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        index.nprobe = max(1, round(knob * lists))
        return np.asarray(index.search(asked.codes, l)[1])

    return System("Faiss BinaryIVF", find, planes, nbytes, "nprobe / nlist", PROBES, seconds=seconds)


def faiss_hash(planes: Planes, shelf: Shelf) -> System:
    begin = time.process_time()
    index = faiss.IndexBinaryHash(planes.bits, KEY)
    index.add(planes.signs)
    seconds = time.process_time() - begin

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        index.nflip = int(knob)
        return np.asarray(index.search(asked.codes, l)[1])

    sizes: list[int] = []
    faiss.write_index_binary(index, faiss.PyCallbackIOWriter(lambda some: sizes.append(len(some))))
    return System("Faiss BinaryHash", find, planes, sum(sizes), "nflip", FLIPS, seconds=seconds)


def faiss_hnsw(links: int) -> Callable[[Planes, Shelf], System]:
    def made(planes: Planes, shelf: Shelf) -> System:
        def build(folder: Path) -> None:
            index = faiss.IndexBinaryHNSW(planes.bits, links)
            index.add(planes.signs)
            faiss.write_index_binary(index, str(folder / "index.faiss"))

        index, nbytes, seconds = _read_faiss(shelf, f"faiss-hnsw{links}", build)

        def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
            faiss.omp_set_num_threads(threads)
            index.hnsw.efSearch = int(knob)
            return np.asarray(index.search(asked.codes, l)[1])

        name = f"Faiss BinaryHNSW, M = {links}"
        return System(name, find, planes, nbytes, EXPANSION, EXPANSIONS, seconds=seconds)

    return made


def usearch_hnsw(planes: Planes, shelf: Shelf) -> System:
    def build(folder: Path) -> None:
        index = Index(ndim=planes.bits, metric=MetricKind.Hamming, dtype=ScalarKind.B1)
        index.add(np.arange(len(planes.signs)), planes.signs)
        index.save(str(folder / "index.usearch"))

    folder, seconds = shelf.kept("usearch", build)
    file = folder / "index.usearch"
    index = Index.restore(str(file))

    def find(asked: Questions, knob: float, l: int, threads: int) -> Rows:
        index.expansion_search = int(knob)
        if len(asked) == 1:
            return np.asarray(index.search(asked.codes[0], l, threads=threads).keys).astype(np.int64)[None]
        matches = index.search(asked.codes, l, threads=threads)
        found = np.asarray(matches.keys).astype(np.int64)
        found[np.arange(found.shape[1]) >= np.asarray(matches.counts)[:, None]] = -1
        return found

    name = f"usearch HNSW, M = {index.connectivity}"
    return System(name, find, planes, file.stat().st_size, EXPANSION, EXPANSIONS, seconds=seconds)


def _read_faiss(shelf: Shelf, name: str, build: Callable[[Path], None]) -> tuple[Any, int, float]:
    """The index, its bytes and the seconds it took to build."""
    folder, seconds = shelf.kept(name, build)
    file = folder / "index.faiss"
    return faiss.read_index_binary(str(file)), file.stat().st_size, seconds


Made = Callable[[Planes, Shelf], System]
EXACT: tuple[Made, ...] = (scan, faiss_flat)
LISTED: tuple[Made, ...] = (cells, faiss_ivf)
TABLES: tuple[Made, ...] = (hashed, faiss_hash)
GRAPHS: tuple[Made, ...] = (faiss_hnsw(16), faiss_hnsw(32), usearch_hnsw)
