"""Search over shards on Ray Serve: what one machine finds, whatever replica is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray_processes import processes

import bpr
from bpr import bundle, shards
from bpr.cluster.fleet import RayFleet, Size
from bpr.cluster.front import ClusterRetriever
from bpr.errors import DeadlineExceeded, InvalidInput

DIM, ROWS = 64, 2000
RANDOM = np.random.default_rng(3)
VECTORS = RANDOM.standard_normal((ROWS, DIM)).astype(np.float32)
ASKED = RANDOM.standard_normal((8, DIM)).astype(np.float32)
HALF = 0.4  # CPUs of a replica: few enough for all of them


def passages(count: int) -> list[dict[str, Any]]:
    return [{"id": f"p{row}", "title": f"T{row}", "text": f"text {row}", "page": row} for row in range(count)]


def make(folder: Path, count: int, **how: Any) -> Path:
    bpr.build(passages(ROWS), folder / "x.bpr", vectors=VECTORS, **how)
    shards.shard(folder / "x.bpr", folder / "s.bpr", count)
    return folder / "s.bpr"


def served(folder: Path, replicas: int, partial: bool = False) -> ClusterRetriever:
    return ClusterRetriever(bundle.open(folder), lambda opened: RayFleet(opened, Size(replicas, HALF)), partial)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("two"), 2, planes=2, center=True, rotate=True, keep_vectors="int8")


@pytest.fixture(scope="module")
def twice(cluster: Any, folder: Path) -> Iterator[ClusterRetriever]:
    """Two shards with two replicas each."""
    with served(folder, 2) as opened:
        yield opened


@pytest.mark.parametrize(
    "how",
    [{}, {"k": 7, "candidates": 50}, {"candidates": "all"}, {"rerank": False}, {"where": {"page": {"<": 900}}}],
    ids=str,
)
def test_a_search_on_ray_is_the_search_on_one_machine(twice: ClusterRetriever, folder: Path, how: dict) -> None:
    with bpr.open(folder.parent / "x.bpr") as alone:
        assert twice.search(vectors=ASKED, **how) == alone.search(vectors=ASKED, **how)
        one, other = (each.rank(ASKED, **how) for each in (alone, twice))
    assert one.rows.tobytes() == other.rows.tobytes() and one.scores.tobytes() == other.scores.tobytes()


def test_passages_are_found_by_their_ids(twice: ClusterRetriever) -> None:
    assert twice.passages.find_all(["p3", "nobody", "p1999"]) == [3, None, 1999]
    assert twice.passages[1500].text == "text 1500"


def test_what_a_shard_refuses_comes_back_as_our_error(twice: ClusterRetriever) -> None:
    fleet = twice._snapshot.fleet
    with pytest.raises(InvalidInput, match="dimensions"):
        fleet.ask("propose", {0: (ASKED[:, :8], 5, 5, True)}, None)
    with pytest.raises(DeadlineExceeded, match=r"shard 1 \(shard-000001-0001.bpr\)"):
        fleet.ask("propose", {1: (ASKED, 5, 5, True)}, time.monotonic() - 1)


class Load:
    """Threads that search without a pause, and what came of it."""

    def __init__(self, opened: ClusterRetriever, wanted: Any, seconds: float, threads: int = 2) -> None:
        self.good = 0
        self.failed: list[BaseException] = []
        self.shares: list[tuple[float, float]] = []
        self._opened, self._wanted, self._seconds = opened, wanted, seconds
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._search) for _ in range(threads)]

    def _search(self) -> None:
        while not self._stopped.is_set():
            try:
                deadline = time.monotonic() + self._seconds
                found, _, coverage = self._opened.search_covered(vectors=ASKED, k=10, deadline=deadline)
                self.shares.append((time.monotonic(), coverage))
                assert coverage < 1 or found == self._wanted
                self.good += 1
            except BaseException as error:
                self.failed.append(error)

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join()


def replicas(opened: ClusterRetriever, shard: int) -> list[Any]:
    """The processes that hold a shard for this retriever."""
    return processes(f"ray::ServeReplica:{opened._snapshot.fleet._names[shard]}")


def wait_for(condition: Callable[[], bool], seconds: float) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds
        time.sleep(0.1)
    return time.monotonic() - started


def test_with_two_replicas_a_kill_under_load_fails_no_request(twice: ClusterRetriever) -> None:
    wanted = twice.search(vectors=ASKED, k=10)
    before = {each.pid for each in replicas(twice, 0)}
    assert len(before) == 2
    with Load(twice, wanted, 10.0) as load:
        wait_for(lambda: load.good > 20, 20)
        os.kill(min(before), signal.SIGKILL)
        wait_for(lambda: len({each.pid for each in replicas(twice, 0)} - before) == 1, 15)
        last = load.good
        wait_for(lambda: load.good > last + 20, 20)
    assert not load.failed


def test_a_replica_that_hangs_is_not_waited_for(twice: ClusterRetriever) -> None:
    wanted = twice.search(vectors=ASKED, k=10)
    hanging = replicas(twice, 1)[0]
    hanging.suspend()
    try:
        for _ in range(6):
            started = time.monotonic()
            found, _ = twice.search_timed(vectors=ASKED, k=10, deadline=started + 5)
            assert found == wanted
            assert time.monotonic() - started < 3
    finally:
        hanging.resume()


def test_of_three_replicas_two_may_hang(cluster: Any, tmp_path: Path) -> None:
    """A second call may go to the other one that hangs, and so may a third."""
    folder = make(tmp_path, 1)
    with served(folder, 3) as opened:
        wanted = opened.search(vectors=ASKED, k=10)
        hanging = replicas(opened, 0)[:2]
        for each in hanging:
            each.suspend()
        try:
            for _ in range(6):
                found, _ = opened.search_timed(vectors=ASKED, k=10, deadline=time.monotonic() + 10)
                assert found == wanted
        finally:
            for each in hanging:
                each.resume()


def test_with_one_replica_its_loss_is_a_clear_error_and_a_kill_soon_over(cluster: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, 2)
    with served(folder, 1) as opened:
        wanted = opened.search(vectors=ASKED, k=10)
        [mine] = replicas(opened, 1)
        mine.suspend()  # one that is killed may be back before anyone misses it
        with pytest.raises(DeadlineExceeded, match=r"shard 1 \(shard-000001-0001.bpr\)"):
            opened.search_timed(vectors=ASKED, k=10, deadline=time.monotonic() + 0.3)
        mine.kill()
        started = time.monotonic()
        found, _ = opened.search_timed(vectors=ASKED, k=10, deadline=time.monotonic() + 15)
        assert found == wanted
        assert time.monotonic() - started < 15


def test_without_require_all_results_state_what_they_cover_until_all_are_back(cluster: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, 2)
    with served(folder, 1, partial=True) as opened:
        wanted = opened.search(vectors=ASKED, k=10)
        with Load(opened, wanted, 3.0, threads=1) as load:
            wait_for(lambda: load.good > 5, 10)
            [mine] = replicas(opened, 0)
            mine.suspend()  # one that is killed may be back before anyone misses it
            wait_for(lambda: any(share == 0.5 for _, share in load.shares), 10)
            mine.kill()
            killed = time.monotonic()
            wait_for(lambda: load.shares[-1][1] == 1.0 and load.shares[-1][0] > killed, 15)
        assert {share for _, share in load.shares} == {0.5, 1.0}
        # One that is lost between its rows and their texts cannot be left out any more: that is an error that names it.
        assert all(isinstance(each, DeadlineExceeded) and "shard 0" in str(each) for each in load.failed), load.failed
        assert len(load.failed) <= 1


def test_a_new_generation_is_taken_over_without_a_failed_request(cluster: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    with served(folder, 1) as opened:
        wanted = opened.search(vectors=ASKED, k=10)
        bpr.delete(tmp_path / "x.bpr", "p0")  # nobody's best
        assert all(hit.id != "p0" for hits in wanted for hit in hits)
        shards.shard(tmp_path / "x.bpr", folder, 1)
        with Load(opened, wanted, 10.0, threads=1) as load:
            wait_for(lambda: load.good > 5, 10)
            assert opened.reload() is True
            last = load.good
            wait_for(lambda: load.good > last + 5, 10)
        assert not load.failed
        assert len(opened) == ROWS - 1
        assert opened.passages.find("p0") is None


def test_shards_that_have_no_room_are_refused_in_time(cluster: Any, folder: Path) -> None:
    with bundle.open(folder) as opened, pytest.raises(InvalidInput, match=r"need 200 CPUs, and the cluster has 6"):
        RayFleet(opened, Size(1, 100.0), start=2.0)


# What was registered first at exit comes last, as Ray's own end does: by then nothing may run in the loop any more.
POLLS_FOR_EVER = """
import atexit, time
polls = []
def at_the_end():
    before = len(polls)
    time.sleep(0.2)
    print(before > 0, len(polls) - before)
atexit.register(at_the_end)
from bpr.cluster import fleet
loop = fleet._loop()
def poll():
    polls.append(loop.call_later(0.001, poll))
loop.call_soon_threadsafe(poll)
time.sleep(0.1)
"""


def test_nothing_polls_when_the_process_leaves_ray() -> None:
    done = subprocess.run([sys.executable, "-c", POLLS_FOR_EVER], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 0\n", "")


def test_a_cluster_is_joined_only_where_it_is_asked_for() -> None:
    """Ray joins, or starts, one by itself wherever it is used: after the end of one, too."""
    used = "from bpr.cluster import rays; import ray; print(ray.is_initialized()); ray.put(1)"
    done = subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "False\n"
    assert ray.exceptions.RaySystemError.__name__ in done.stderr
