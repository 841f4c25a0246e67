"""What a search over shards costs, measured here with 1, 2 and 4 shard processes, and what that means for more of them.

    python benchmarks/cluster.py [--rows 2000000] [--node-hour 0.10] [--target 100]

Measured: the time of one shard by its rows, the merge by the number of shards, a bare Ray fan-out (what Ray adds to
shards in bare actors, asked the same), a fan-out through Ray Serve, and the whole search. The model adds them up:

    search(rows, nodes) = shard(rows / nodes) + Serve's fan-out(nodes) + bytes(nodes) / network + merge(nodes)

It is checked against the real runs, in which all shards share this machine's cores, and then gives nodes, memory, p50,
p99 and price for 21 million, 1 billion and 10 billion passages, on nodes like this one that search with one thread.
Price and memory of a node and the speed of the network are the caller's assumptions. Ray runs as three node processes
on this machine. Writes results/cluster.json.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bpr
from bpr import bundle, shards
from bpr.shards import Entry, Proposed, Shard, merged
from common import Figure, save

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

BITS, CANDIDATES, K = 768, 1000, 20
COUNTS = (1, 2, 4)
NODES = 3  # processes of Ray
RUNS = {1: 120, 64: 24}  # of a search, by the questions that it has
SIZES = {"21 million": 21_000_000, "1 billion": 1_000_000_000, "10 billion": 10_000_000_000}
MEMORY_SHARE = 0.7  # of a node's memory, for codes
TOLERANCE = 0.35  # the model may be off by so much of what was measured
FACTOR = 1.3  # what a search may cost: so many times the slowest shard, and a bare fan-out

Runs = NDArray[np.float64]  # seconds


@dataclass(frozen=True)
class Measured:
    """Milliseconds, p50, of a search with so many questions over so many shards.

    shard: the slowest one, inside its process; fan_out: what Ray adds when bare actors search; served: of Serve, with
    nothing to do; budget: what the search may cost.
    """

    shards: int
    questions: int
    shard: float
    fan_out: float
    served: float
    search: float
    search_p99: float
    budget: float
    modelled: float


@dataclass(frozen=True)
class Planned:
    """What so many passages need, in nodes like this one. p99 is of one question, all nodes up and no hedging."""

    passages: int
    nodes: int
    bytes_per_node: float
    p50: float
    p99: float
    hour: float


def in_turns(runs: int, *calls: Callable[[], Any]) -> list[Runs]:
    """Seconds of each run of each call, after one that does not count."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):
        for times, call in zip(found, calls, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [np.array(times[1:]) for times in found]


def timed(call: Callable[[], Any], runs: int) -> Runs:
    """Seconds of each run, after one that does not count."""
    return in_turns(runs, call)[0]


def line(points: dict[int, float]) -> tuple[float, float]:
    """The straight line through measurements, by least squares: what it costs at all, and for each."""
    slope, start = np.polyfit(list(points), list(points.values()), 1)
    return max(0.0, float(start)), max(0.0, float(slope))


class Bare:
    """A shard in a Ray actor, without Serve and without our layer."""

    def __init__(self, folder: str, entry: dict[str, Any]) -> None:
        os.environ["BPR_THREADS"] = "1"
        self._shard = Shard(folder, Entry(**entry))

    def propose(self, *arguments: Any) -> tuple[float, tuple[Any, ...]]:
        start = time.perf_counter()
        found: tuple[Any, ...] = self._shard.propose(*arguments)
        return time.perf_counter() - start, found


def made(room: Path, rows: int) -> Path:
    """A bundle of random codes."""
    codes = np.random.default_rng(0).integers(0, 256, (rows, BITS // 8), dtype=np.uint8)

    def passages() -> Iterator[dict[str, str]]:
        return ({"id": str(row), "title": "", "text": f"passage {row}"} for row in range(rows))

    bpr.build(passages(), room / "x.bpr", codes=codes)
    return room / "x.bpr"


def shard_times(path: Path, room: Path, asked: Any) -> dict[int, dict[int, float]]:
    """Seconds of one shard by its rows, alone on this machine with one thread: {questions: {rows: p50}}."""
    found: dict[int, dict[int, float]] = {questions: {} for questions in RUNS}
    for count in COUNTS:
        entries = shards.shard(path, room / f"s{count}", count)
        with Shard(room / f"s{count}", entries[0]) as one:
            for questions, runs in RUNS.items():
                call = lambda: one.propose(asked[:questions], K, CANDIDATES, True, threads=1)  # noqa: B023, E731
                found[questions][entries[0].rows] = float(np.median(timed(call, runs)))
    return found


def merge_times(counts: tuple[int, ...] = (1, 4, 16, 64)) -> dict[int, float]:
    """Seconds of the merge for one question, by the number of shards."""
    random = np.random.default_rng(1)
    found = {}
    for count in counts:
        parts = [
            Proposed(
                np.sort(random.integers(0, 10**6, (1, CANDIDATES))) + number * 10**6,
                random.standard_normal((1, CANDIDATES)).astype(np.float32),
                random.integers(300, 340, (1, CANDIDATES), dtype=np.int32),
            )
            for number in range(count)
        ]
        call = lambda: merged(parts, K, CANDIDATES)  # noqa: B023, E731
        found[count] = float(np.median(timed(call, 30)))
    return found


def real(folder: Path, asked: Any, cores: int, alone: dict[int, float], merging: tuple[float, float]) -> list[Any]:
    """The shards of one folder on Ray: bare, and as a search. Measured by the number of questions, and all runs."""
    import ray

    from bpr.cluster.fleet import RayFleet, Size
    from bpr.cluster.front import ClusterRetriever

    with bundle.open(folder) as parent:
        entries = shards.entries_of(parent)
    count = len(entries)
    actor = ray.remote(Bare).options(num_cpus=0.1, scheduling_strategy="SPREAD")
    actors: list[Any] = [actor.remote(str(folder), asdict(each)) for each in entries]
    with ClusterRetriever(bundle.open(folder), lambda opened: RayFleet(opened, Size(1, 1.0))) as opened:
        found = []
        for questions, runs in RUNS.items():
            some, slowest = asked[:questions], list[float]()

            def bare() -> None:
                replies = ray.get([each.propose.remote(some, K, CANDIDATES, True) for each in actors])  # noqa: B023
                slowest.append(max(seconds for seconds, _ in replies))  # noqa: B023

            # In turns, so that each finds the machine as the others do: a call after a pause costs more.
            times = in_turns(
                runs,
                bare,
                lambda: opened.passages.find_all(["0"]),
                lambda: opened.rank(some, k=K, candidates=CANDIDATES),  # noqa: B023
            )
            whole, served, searches = times
            slow = np.array(slowest[1:])
            # Shards that share cores wait for each other; with a node for each they do not.
            shared = alone[questions] * max(1.0, count / cores)
            modelled = shared + float(np.median(served)) + questions * (merging[0] + merging[1] * count)
            fan = float(np.median(whole - slow))
            p50, p99 = (float(each) for each in np.percentile(searches, [50, 99]))
            shard = float(np.median(slow))
            values = (shard, fan, float(np.median(served)), p50, p99, FACTOR * shard + fan, modelled)
            found.append((Measured(count, questions, *(1000 * each for each in values)), searches))
    for each in actors:
        ray.kill(each)
    return found


@dataclass(frozen=True)
class Model:
    """Seconds of one question: at all and for each row of a shard, for each shard of Serve, for each of the merge."""

    shard: tuple[float, float]
    fan_out: tuple[float, float]
    merge: tuple[float, float]
    reply: float  # of a shard, on the network

    @property
    def each(self) -> float:
        """What one more shard costs the front."""
        return self.fan_out[1] + self.reply + self.merge[1]

    def seconds(self, passages: int, nodes: int) -> float:
        return self.shard[0] + self.shard[1] * passages / nodes + self.fan_out[0] + self.merge[0] + nodes * self.each

    def turns(self, passages: int) -> int:
        """So many nodes, beyond which more of them make it slower."""
        return round(math.sqrt(self.shard[1] * passages / self.each))


def late(spread: Runs, nodes: int) -> float:
    """p99 of the slowest of so many shards, in multiples of what is usual."""
    return float(np.quantile(spread, 0.99 ** (1 / nodes)).item())


def planned(passages: int, model: Model, spread: Runs, how: argparse.Namespace) -> Planned:
    """The fewest nodes that hold the codes and answer in time; where more nodes do not help any more, those."""
    least = max(1, math.ceil(passages * BITS / 8 / (MEMORY_SHARE * how.memory * 2**30)))
    best = max(least, model.turns(passages))
    nodes = next((n for n in range(least, best + 1) if 1000 * model.seconds(passages, n) <= how.target), best)
    p50 = 1000 * model.seconds(passages, nodes)
    bytes_ = passages / nodes * BITS / 8
    return Planned(passages, nodes, bytes_, p50, p50 * late(spread, nodes), nodes * how.node_hour)


def model_of(found: dict[str, Any]) -> Model:
    """The model of the results file."""
    alone = {int(rows): each for rows, each in found["shard_seconds"]["1"].items()}
    merges = {int(number): each for number, each in found["merge_seconds"].items()}
    fan = found["fan_out"]["start"], found["fan_out"]["each"]
    return Model(line(alone), fan, line(merges), reply_seconds(found["assumed"]["network_gbit"]))


def reply_seconds(gigabits: float) -> float:
    """Of a shard's candidates on the network."""
    return CANDIDATES * 16 / (gigabits * 1e9 / 8)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--node-hour", type=float, default=0.10, help="price of a node like this one; an assumption")
    parser.add_argument("--network", type=float, default=10.0, help="gigabits a second; an assumption")
    parser.add_argument("--memory", type=float, default=16.0, help="GiB of a node; an assumption")
    parser.add_argument("--target", type=float, default=100.0, help="milliseconds that p50 should take")
    return parser.parse_args()


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    how, cores = options(), len(os.sched_getaffinity(0))
    room = Path(tempfile.mkdtemp(prefix="bpr", dir="/tmp"))  # Ray's sockets lie in it: short
    os.environ["RAY_TMPDIR"] = str(room)
    asked = np.random.default_rng(2).standard_normal((max(RUNS), BITS)).astype(np.float32)
    try:
        path = made(room, how.rows)
        alone, merges = shard_times(path, room, asked), merge_times()
        merging = line(merges)
        node: dict[str, Any] = {"num_cpus": max(COUNTS), "include_dashboard": False, "object_store_memory": 200_000_000}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        runs = []
        for count in COUNTS:
            rows = how.rows // count
            runs += real(room / f"s{count}", asked, cores, {q: each[rows] for q, each in alone.items()}, merging)
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
    finally:
        shutil.rmtree(room, ignore_errors=True)
    report(how, cores, alone, merges, runs)


def report(how: argparse.Namespace, cores: int, alone: Any, merges: dict[int, float], runs: list[Any]) -> None:
    """Figures, model and plans, into the results."""
    measured = [each for each, _ in runs]
    single = [each for each in measured if each.questions == 1]
    spread = np.concatenate([each / np.median(each) for found, each in runs if found.questions == 1])
    fan = line({each.shards: each.served / 1000 for each in single})
    model = Model(line(alone[1]), fan, line(merges), reply_seconds(how.network))
    plans = {name: planned(rows, model, spread, how) for name, rows in SIZES.items()}
    figures = []
    for each in measured:
        what = f"{each.shards} shards, {each.questions} questions"
        over = each.search / each.budget
        figures.append(Figure(f"search against {FACTOR} × the slowest shard + a bare fan-out: {what}", over, 1.0, True))
        off = abs(each.modelled - each.search) / each.search
        figures.append(Figure(f"how far the model is from the real run: {what}", off, TOLERANCE, True))
    for each in measured:
        print(
            f"{each.shards} shards {each.questions:>2} questions: shard {each.shard:7.2f} ms, bare fan-out "
            f"{each.fan_out:6.2f}, Serve's {each.served:6.2f}, search {each.search:7.2f} (p99 {each.search_p99:7.2f}), "
            f"budget {each.budget:7.2f}, model {each.modelled:7.2f}"
        )
    save(
        "cluster",
        [],
        figures,
        rows=how.rows,
        bits=BITS,
        cores=cores,
        assumed={
            "node_hour": how.node_hour,
            "network_gbit": how.network,
            "memory_gib": how.memory,
            "target": how.target,
        },
        shard_seconds={str(q): {str(rows): each for rows, each in found.items()} for q, found in alone.items()},
        merge_seconds={str(count): each for count, each in merges.items()},
        fan_out={"start": fan[0], "each": fan[1]},
        runs=[asdict(each) for each in measured],
        spread=[round(float(each), 4) for each in np.sort(spread)],
        plans={name: asdict(each) for name, each in plans.items()},
    )


if __name__ == "__main__":
    main()
