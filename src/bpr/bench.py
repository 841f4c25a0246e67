"""This machine against its peers: the same codes, the same questions, in one run, turn by turn.

`bpr bench` and benchmarks/ call it. Times on a shared machine say little; ratios of runs that took turns say much, so
every figure here is measured beside the ones it is compared with, and beside the physical limit: reading the codes
once. Knows codes and the peers (peers.py); nothing of bundles, text or how a figure is shown.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .codes import LEVELS, Codes, Questions
from .index import ScanIndex
from .kernels import Limits
from .peers import FaissFlat, usearch_exact
from .stages import search

CANDIDATES, HITS = 1000, 100
RERANK_ALONE = "bpr, rerank alone"
QUESTIONS = (1, 8, 64)
# An OpenMP pool spins for up to 0.2 s after its work and would take a core from whoever runs next. After such a pause
# the cores sleep, and a virtual machine's take milliseconds to wake: what needs all of them for 2 ms took 4.
SETTLE_SECONDS, WAKE_SECONDS = 0.25, 0.1
QUIET = ("bpr", RERANK_ALONE, "read once")
SLOW_PEER = "usearch exact"
PEERS = ("faiss", SLOW_PEER, "authors' path", "read once")


@dataclass(frozen=True)
class Timing:
    """What one system took in one setting. `best` and `middle`: milliseconds a question, over `rounds` runs."""

    what: str
    system: str
    rows: int
    bits: int
    questions: int
    threads: int
    best: float
    middle: float
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """One comparison: so many rows, bits, questions and threads."""

    rows: int = 1_000_000
    bits: int = 768
    questions: int = 64
    threads: int = 1
    rounds: int = 5

    def take_turns(
        self, what: str, systems: Mapping[str, Callable[[], object]], before: Callable[[], object] = lambda: None
    ) -> list[Timing]:
        """Run every system once in each round, so that a slow moment of the machine meets all of them.

        before: called ahead of every run, and not timed.
        """
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(self.rounds):
            for name, run in systems.items():
                before()
                begin = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - begin) * 1000 / self.questions)
                if name not in QUIET:
                    settle(self.threads)
        return [
            Timing(what, name, self.rows, self.bits, self.questions, self.threads, min(took), median(took), self.rounds)
            for name, took in times.items()
        ]


def settle(threads: int) -> None:
    """Wait until the peers' threads have stopped to spin, and wake the cores that are needed next."""
    time.sleep(SETTLE_SECONDS)
    few, limits, end = np.zeros((1 << 14, 64), np.uint8), Limits(threads), time.perf_counter() + WAKE_SECONDS
    while True:
        kernels.read_all(few, limits)
        if time.perf_counter() >= end:
            return


@dataclass(frozen=True)
class Data:
    """Random codes and questions: the kernel's work does not depend on what the bits say, but for how many tie."""

    codes: Codes  # uint8[n, bits/8]
    vectors: NDArray[np.float32]  # float32[512, bits]

    @classmethod
    def random(cls, rows: int, bits: int, seed: int = 0) -> Data:
        """The same for the same seed."""
        generator = np.random.default_rng(seed)
        codes = np.frombuffer(generator.bytes(rows * bits // 8), np.uint8).reshape(rows, bits // 8)
        return cls(codes, generator.standard_normal((512, bits), np.float32))


def compare_candidates(data: Data, peer: FaissFlat | None, setting: Setting, *, slow_peers: bool) -> list[Timing]:
    """The first stage: ours, Faiss both ways, usearch where it is not too slow, and the limit."""
    asked, l, threads = Questions(data.vectors[: setting.questions]), min(CANDIDATES, setting.rows), setting.threads
    limits = Limits(threads)
    systems: dict[str, Callable[[], object]] = {
        "bpr": lambda: kernels.scan(data.codes, asked.codes, l, limits=limits),
        "read once": lambda: kernels.read_all(data.codes, limits),
    }
    if peer is not None:
        systems["faiss heap"] = lambda: peer.candidates(asked.codes, l, threads=threads, heap=True)
        systems["faiss counting"] = lambda: peer.candidates(asked.codes, l, threads=threads, heap=False)
    if slow_peers:
        systems[SLOW_PEER] = lambda: usearch_exact(data.codes, asked.codes, l, threads=threads)
    return setting.take_turns("candidates", systems)


def compare_two_stages(data: Data, peer: FaissFlat | None, setting: Setting) -> list[Timing]:
    """Both stages end to end, and our second stage alone."""
    vectors, threads = data.vectors[: setting.questions], setting.threads
    index = ScanIndex(data.codes)
    systems: dict[str, Callable[[], object]] = {
        "bpr": lambda: search(index, vectors, HITS, CANDIDATES, threads=threads),
    }
    if peer is not None:
        systems["authors' path, heap"] = lambda: peer.two_stages(vectors, CANDIDATES, HITS, threads=threads, heap=True)
        systems["authors' path, counting"] = lambda: peer.two_stages(
            vectors, CANDIDATES, HITS, threads=threads, heap=False
        )
    return setting.take_turns("two stages", systems) + rerank_alone("two stages", data, setting)


def rerank_alone(what: str, data: Data, setting: Setting, magnitudes: Codes | None = None) -> list[Timing]:
    """Our second stage as a search meets it: with cold caches.

    Each round takes the next questions of the data and scans all codes for them. That is not timed, and leaves no more
    in the caches than the codes it read last. Then what it found is reranked, with the clock on: rows that were in no
    rerank just before. One question's takes less than a tenth of a millisecond, so it gets ten times as many rounds,
    for a median that means something.
    """
    limits, levels = Limits(setting.threads), None if magnitudes is None else LEVELS
    firsts = itertools.cycle(range(0, len(data.vectors) - setting.questions + 1, setting.questions))
    asked, rows = Questions(data.vectors[:0]), np.empty((0, 0), np.int64)

    def scan() -> None:
        nonlocal asked, rows
        first = next(firsts)
        asked = Questions(data.vectors[first : first + setting.questions])
        rows, _ = kernels.scan(data.codes, asked.codes, min(CANDIDATES, setting.rows), limits=limits)

    def rerank() -> None:
        kernels.rerank(data.codes, magnitudes, levels, asked, rows, HITS, limits=limits)

    rounds = setting.rounds * (10 if setting.questions == 1 else 1)
    return replace(setting, rounds=rounds).take_turns(what, {RERANK_ALONE: rerank}, before=scan)


def run(
    rows: int, bits: int, thread_counts: Sequence[int], question_counts: Sequence[int], rounds: int
) -> Iterator[Timing]:
    """Everything `bpr bench` prints, as it is measured."""
    data = Data.random(rows, bits)
    peer = FaissFlat(data.codes)
    for threads in thread_counts:
        for questions in question_counts:
            setting = Setting(rows, bits, questions, threads, rounds)
            yield from compare_candidates(data, peer, setting, slow_peers=questions <= 64)
            yield from compare_two_stages(data, peer, setting)


def ratio(timings: Sequence[Timing], ours: str, theirs: str) -> float:
    """How many times faster `ours` is than the best system whose name begins with `theirs`, by the best runs."""
    own = next(t.best for t in timings if t.system == ours)
    return min(t.best for t in timings if t.system.startswith(theirs)) / own


@dataclass(frozen=True)
class Compared:
    """One setting: our time in milliseconds a question, and how many times as long each other system took."""

    what: str
    questions: int
    threads: int
    ours: float
    times: Mapping[str, float]


def compared(timings: Sequence[Timing]) -> list[Compared]:
    """One row for each setting, as they were measured; variants of a peer count as their best."""
    settings = dict.fromkeys((t.what, t.questions, t.threads) for t in timings)
    rows = []
    for what, questions, threads in settings:
        here = [t for t in timings if (t.what, t.questions, t.threads) == (what, questions, threads)]
        ours = next(t.best for t in here if t.system == "bpr")
        peers = [peer for peer in PEERS if any(t.system.startswith(peer) for t in here)]
        rows.append(Compared(what, questions, threads, ours, {peer: ratio(here, "bpr", peer) for peer in peers}))
    return rows


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "threads": Limits().thread_count(),
        "simd": kernels.simd_level(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("binary-passage-retriever", "numpy", "faiss-cpu", "usearch")},
    }


def _processor() -> str:
    """The processor's name, and its family and model where the name says nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
    except OSError:
        return platform.processor() or platform.machine()
    known = {key.strip(): value.strip() for key, value in facts.items()}
    return (
        f"{known.get('model name', platform.machine())} (family {known.get('cpu family')}, model {known.get('model')})"
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
