"""The service under load, over loopback: docs/operations.md's figures.

python benchmarks/load.py [--rows 5000000] [--seconds 60] [--soak 1200] [--only batching overload idle stop soak]

The server has one core and the load another (as far as the machine has two), so that one does not steal from the
other; `batching` gives the server all cores. batching: questions as vectors over random codes. The rest: questions as
text over the passages of `bpr demo`, which is the hardest case for refusals, since an answer is so cheap. Latencies
count from when a request was due, not from when the client got round to it. Writes benchmarks/results/load.json.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

import bpr
from bpr import bench, demo
from common import RESULTS, Figure, stamp, write

BITS, CLIENTS, CONNECTIONS, OVERLOAD, ROUNDS, IDLE, IDLE_ROUNDS = 768, 64, 512, 5, 20, 1000, 9
CORES = sorted(os.sched_getaffinity(0))  # before the load is bound to some of them
PARTS = ("batching", "overload", "idle", "stop", "soak")


# ── A client that costs little ───────────────────────────────────────────────────────────────────────────────────────


class Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time; of a reply only its status is told."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.tell: Callable[[int], None] = lambda status: None
        self.buffer, self.closing, self.lost = b"", False, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.index(b"content-length:") + 15
        size = int(head[at:].split(b"\r\n", 1)[0])
        if len(self.buffer) < end + 4 + size:
            return
        self.closing = b"connection: close" in head
        status, self.buffer = int(head[9:12]), b""
        self.tell(status)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.tell(0)  # the connection ended without a reply

    def ask(self, request: bytes, tell: Callable[[int], None]) -> None:
        self.tell = tell
        self.transport.write(request)


@dataclass
class Seen:
    """What became of requests: (when it was due, seconds until its reply, status)."""

    replies: list[tuple[float, float, int]] = field(default_factory=list)

    def of(self, *statuses: int) -> list[float]:
        return sorted(seconds for _, seconds, status in self.replies if status in statuses)

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for _, _, status in self.replies:
            found[status] = found.get(status, 0) + 1
        return found


def quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


class Load:
    """Requests to one server."""

    def __init__(self, port: int, bodies: list[bytes], route: str = "/v1/search") -> None:
        self.port, self.free, self.count = port, deque[Connection](), 0
        self.connecting = set[asyncio.Task[None]]()
        self.seen, self.dice = Seen(), random.Random(0)
        head = f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        self.requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]

    def rested(self) -> Connection | None:
        while self.free:
            known = self.free.popleft()  # the one that has rested longest, so that none is closed for its silence
            if not known.lost:
                return known
        return None

    def begin(self, due: float, told: Callable[[int], None] = lambda status: None) -> None:
        """One request, on a connection of its own; told: of its status."""
        self.count += 1
        connection = self.rested()
        if connection is not None:
            self._ask(connection, due, told)
        else:
            connecting = asyncio.get_running_loop().create_task(self._connect(due, told))
            self.connecting.add(connecting)
            connecting.add_done_callback(self.connecting.discard)

    async def _connect(self, due: float, told: Callable[[int], None]) -> None:
        try:
            _, made = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.port)
        except OSError:
            self._end(None, due, told, -1)  # no connection
        else:
            self._ask(made, due, told)

    def _ask(self, connection: Connection, due: float, told: Callable[[int], None]) -> None:
        connection.ask(self.dice.choice(self.requests), lambda status: self._end(connection, due, told, status))

    def _end(self, connection: Connection | None, due: float, told: Callable[[int], None], status: int) -> None:
        self.count -= 1
        self.seen.replies.append((due, time.perf_counter() - due, status))
        if connection is not None:
            connection.tell = lambda status: None
            if connection.closing or connection.lost:
                connection.transport.close()
            else:
                self.free.append(connection)
        told(status)

    async def one(self, due: float) -> int:
        answered = asyncio.get_running_loop().create_future()
        self.begin(due, answered.set_result)
        return int(await answered)

    async def closed(self, clients: int, seconds: float) -> float:
        """So many clients that each ask again when they are answered; replies a second."""
        self.seen = Seen()
        end = time.perf_counter() + seconds

        async def client() -> None:
            while (now := time.perf_counter()) < end:
                if await self.one(now) < 0:
                    return  # nobody is there any more

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return len(self.seen.of(200)) / (time.perf_counter() - begun)

    async def open(self, rate: float, seconds: float, sockets: int = CONNECTIONS) -> float:
        """Requests at random times, whatever becomes of those before; good replies a second.

        A client has so many sockets and no more: where all of them wait, a request is not made.
        """
        self.seen = Seen()
        begun = due = time.perf_counter()
        while due < begun + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            while due <= time.perf_counter():
                if self.count < sockets:
                    self.begin(due)
                due += self.dice.expovariate(rate)
        while self.count:
            await asyncio.sleep(0.001)
        return len(self.seen.of(200)) / (time.perf_counter() - begun)

    def close(self) -> None:
        for each in self.free:
            each.transport.close()
        self.free.clear()


# ── A server ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cores() -> tuple[set[int], set[int]]:
    """For the server and for the load."""
    return ({CORES[0]}, {*CORES[1:]}) if len(CORES) > 1 else ({*CORES}, {*CORES})


@contextmanager
def serving(path: Path, *options: str, on: set[int] | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server, and its port."""
    command = [sys.executable, "-m", "bpr.cli", "serve", str(path), "--port", "0", "--quiet", *options]
    where = {} if on is None else {"preexec_fn": lambda: os.sched_setaffinity(0, on)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **where)  # type: ignore[call-overload]
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: exit {process.wait()}")
        yield process, int(line.rsplit(":", 1)[1].strip("/\n"))
    finally:
        process.terminate()
        process.wait(30)


def questions() -> list[bytes]:
    return [json.dumps({"question": each.question, "k": 20}).encode() for each in demo.questions()]


def vector_questions() -> list[bytes]:
    vectors = np.random.default_rng(1).standard_normal((256, BITS)).round(4)
    return [json.dumps({"vectors": [each.tolist()], "k": 20}).encode() for each in vectors]


# ── What is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


async def batching(path: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Throughput of 64 clients with and without shared searches, and what one client alone pays for sharing."""
    found: dict[str, dict[str, float]] = {}
    for round_ in range(3):
        for name, options in (("batch 64", ()), ("batch 1", ("--batch", "1"))):
            with serving(path, "--deadline", "30", *options) as (_, port):
                load = Load(port, vector_questions())
                await load.closed(2, 1)
                alone = []
                for _ in range(100):
                    begun = time.perf_counter()
                    await load.one(begun)
                    alone.append(time.perf_counter() - begun)
                many = await load.closed(CLIENTS, 6)
                load.close()
            best = found.setdefault(name, {"alone_ms": float("inf"), "per_second": 0.0})
            best["alone_ms"] = min(best["alone_ms"], 1000 * float(np.median(alone)))
            best["per_second"] = max(best["per_second"], many)
            print(f"batching, round {round_}: {name} {many:.0f}/s, alone {1000 * np.median(alone):.2f} ms", flush=True)
    on, off = found["batch 64"], found["batch 1"]
    return [
        Figure(
            "64 clients, shared searches against single ones: times the throughput",
            on["per_second"] / off["per_second"],
            3,
        ),
        Figure("one client alone: sharing costs", on["alone_ms"] - off["alone_ms"], 1, most=True, unit=" ms"),
    ], found


async def overload(path: Path, seconds: float) -> tuple[list[Figure], dict[str, Any]]:
    """Five times of what it can do, and how it comes back; in rounds, each beside a peak of its own.

    The machine's own speed drifts by a tenth in a minute: one peak before and one long overload would compare minutes.
    """
    on, _ = cores()
    rounds: list[dict[str, float]] = []
    counts: dict[int, int] = {}
    with serving(path, on=on) as (_, port):
        load = Load(port, questions())
        await load.closed(8, 2)
        for number in range(ROUNDS):
            peak = await load.closed(CLIENTS, seconds / ROUNDS)
            calm = quantile(load.seen.of(200), 0.99)
            good = await load.open(OVERLOAD * peak, seconds / ROUNDS)
            seen = load.seen
            rounds.append(
                {
                    "peak_per_second": peak,
                    "goodput_per_second": good,
                    "p99_at_peak_ms": 1000 * calm,
                    "p99_accepted_ms": 1000 * quantile(seen.of(200), 0.99),
                    "p99_refused_ms": 1000 * quantile(seen.of(429), 0.99),
                    "median_refused_ms": 1000 * quantile(seen.of(429), 0.5),
                    "recovery_s": await recovery(load, calm),
                }
            )
            for status, count in seen.counts().items():
                counts[status] = counts.get(status, 0) + count
            print(f"overload, round {number}: {peak:.0f}/s, overloaded {good:.0f}/s", flush=True)
        load.close()
    of = {name: np.array([each[name] for each in rounds]) for name in rounds[0]}
    others = sum(count for status, count in counts.items() if status not in (200, 429))
    later = of["p99_accepted_ms"] / of["p99_at_peak_ms"]
    share = float(of["goodput_per_second"].sum() / of["peak_per_second"].sum())
    return [
        Figure("goodput at five times the capacity, of the peak", share, 0.9),
        Figure("p99 of accepted requests, times that at capacity", float(np.median(later)), 2, most=True),
        Figure("p99 of refusals", float(np.median(of["p99_refused_ms"])), 20, most=True, unit=" ms"),
        Figure("recovery", float(of["recovery_s"].max()), 2, most=True, unit=" s"),
        Figure("replies that are neither an answer nor a refusal", others, 0, most=True),
    ], {"rounds": rounds, "replies": counts}


async def recovery(load: Load, calm: float) -> float:
    """Seconds until an answer is as quick as at capacity."""
    ended = time.perf_counter()
    while True:
        begun = time.perf_counter()
        if await load.one(begun) == 200 and time.perf_counter() - begun <= calm:
            return time.perf_counter() - ended


async def idle(path: Path) -> tuple[list[Figure], dict[str, Any]]:
    """A thousand sockets that say nothing, or half a request; each round beside one of its own without them.

    Three rounds were too few: on one quiet machine the same code gave 0.98 to 1.24.
    """
    on, _ = cores()
    with serving(path, on=on) as (_, port):
        load = Load(port, questions())
        await load.closed(8, 2)
        p99 = []
        for round_ in range(IDLE_ROUNDS):
            await load.closed(8, 4)
            p99.append(1000 * quantile(load.seen.of(200), 0.99))
            sockets = [await asyncio.open_connection("127.0.0.1", port) for _ in range(IDLE)]
            for number, (_, writer) in enumerate(sockets):
                if number % 2:
                    writer.write(b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\n")
            await load.closed(8, 4)
            p99.append(1000 * quantile(load.seen.of(200), 0.99))
            for _, writer in sockets:
                writer.close()
            print(
                f"idle, round {round_}: p99 {p99[-2]:.1f} ms alone, {p99[-1]:.1f} ms beside {IDLE} sockets", flush=True
            )
        load.close()
    ratio = float(np.median(np.array(p99[1::2]) / p99[::2]))
    return [Figure(f"p99 beside {IDLE:,} idle sockets, times that without", ratio, 1.2, most=True)], {"p99_ms": p99}


async def stop(path: Path) -> tuple[list[Figure], dict[str, Any]]:
    """SIGTERM under load: what was accepted is answered; kill −9, and it serves again."""
    counts: dict[int, int] = {}
    lost = 0
    on, _ = cores()
    for _ in range(5):
        with serving(path, on=on) as (process, port):
            load = Load(port, questions())
            await load.closed(8, 1)
            work = asyncio.create_task(load.closed(CLIENTS, 3))
            await asyncio.sleep(1)
            told = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            await work
            lost += sum(due < told and status == 0 for due, _, status in load.seen.replies)
            if process.wait(15) != 0:
                raise SystemExit(f"the server ended with {process.returncode}")
            load.close()
            for status, count in load.seen.counts().items():
                counts[status] = counts.get(status, 0) + count
    with serving(path, on=on) as (process, port):
        process.kill()
        process.wait()
    begun = time.perf_counter()
    with serving(path, on=on) as (process, port):
        load = Load(port, questions())
        again = await load.one(time.perf_counter())
        back = time.perf_counter() - begun
        load.close()
    print(f"stop: {counts}, after kill -9 {again} in {back:.1f} s", flush=True)
    return [
        Figure("accepted requests that SIGTERM lost", lost, 0, most=True),
        Figure("served again after kill -9 (1: yes)", float(again == 200), 1),
    ], {"replies": counts, "restart_s": back}


async def soak(path: Path, seconds: float) -> tuple[list[Figure], dict[str, Any]]:
    """Four fifths of capacity for long: no error, no growth.

    Its sockets are four fifths of what may be in flight: a machine that stands still for a moment has not failed, and a
    crowd that waits for its answers is what there is then.
    """
    on, _ = cores()
    with serving(path, on=on) as (process, port):
        load = Load(port, questions())
        watched = psutil.Process(process.pid)
        rate, sockets = 0.8 * await load.closed(CLIENTS, 10), CLIENTS * 4 // 5
        await load.open(rate, min(60.0, seconds / 5), sockets)  # warm
        samples, errors, replies = [], 0, 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await load.open(rate, 10, sockets)
            counts = load.seen.counts()
            replies += counts.get(200, 0)
            errors += sum(count for status, count in counts.items() if status != 200)
            files = watched.num_fds() - len(
                [each for each in watched.net_connections() if each.status == "ESTABLISHED"]
            )
            samples.append((watched.memory_info().rss, files, watched.num_threads()))
        load.close()
    memory, files, threads = (np.array(each) for each in zip(*samples, strict=True))
    tenth = max(1, len(memory) // 10)
    growth = float(memory[-tenth:].mean() / memory[:tenth].mean() - 1)
    found = {
        "seconds": seconds,
        "rate": rate,
        "sockets": sockets,
        "replies": replies,
        "replies_per_second": replies / seconds,
        "rss_mb": [float(memory[0] / 1e6), float(memory[-1] / 1e6)],
    }
    print(f"soak: {found}, growth {growth:.3%}, errors {errors}", flush=True)
    return [
        Figure("soak: errors", errors, 0, most=True),
        Figure("soak: growth of memory", 100 * growth, 1, most=True, unit=" %"),
        Figure("soak: open files, most minus least", float(np.ptp(files)), 4, most=True),
        Figure("soak: threads, most minus least", float(np.ptp(threads)), 4, most=True),
    ], found


# ── All of it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def made_bundle(path: Path, rows: int) -> None:
    """Random codes with short texts."""
    texts = ({"id": f"p{row}", "text": f"This is the text of passage {row}. " * 12} for row in range(rows))
    vectors = path.with_suffix(".npy")
    out = np.lib.format.open_memmap(vectors, "w+", np.float16, (rows, BITS))
    dice = np.random.default_rng(0)
    for first in range(0, rows, 1 << 16):
        part = out[first : first + (1 << 16)]
        part[:] = dice.integers(-128, 128, part.shape, np.int8)
    out.flush()
    bpr.build(texts, path, vectors=vectors)
    vectors.unlink()


async def measure(
    given: argparse.Namespace, folder: Path, before: dict[str, Any]
) -> tuple[list[Figure], dict[str, Any]]:
    """The parts that are wanted; of the others what was measured before."""
    os.sched_setaffinity(0, cores()[1])
    demo_bundle = folder / "demo.bpr"
    calls: dict[str, Callable[[], Awaitable[tuple[list[Figure], dict[str, Any]]]]] = {
        "batching": lambda: batching(given.bundle or folder / "made.bpr"),
        "overload": lambda: overload(demo_bundle, given.seconds),
        "idle": lambda: idle(demo_bundle),
        "stop": lambda: stop(demo_bundle),
        "soak": lambda: soak(demo_bundle, given.soak),
    }
    figures: list[Figure] = []
    more: dict[str, Any] = {}
    for name in PARTS:
        if name in given.only:
            own, measured = await calls[name]()
            more[name] = {**stamp(), "figures": [asdict(each) for each in own], **measured}
        else:
            more[name] = before.get(name, {"figures": []})
        figures += [Figure(**each) for each in more[name]["figures"]]
    return figures, more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--bundle", type=Path, help=f"random codes of {BITS} bits from before, instead of new ones")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--soak", type=float, default=1200)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    given, machine = parser.parse_args(), bench.machine()  # before the load is bound to a core
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "batching" in given.only and given.bundle is None:
            made_bundle(folder / "made.bpr", given.rows)
        demo.index(folder / "demo.bpr", bpr.Encoder.open("mini"), lambda what, done, total: None, None)
        uvloop.install()
        gc.disable()  # a pause of the client's would be counted as the server's
        file = RESULTS / "load.json"
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        figures, more = asyncio.run(measure(given, folder, before))
    write("load", [], figures, machine=machine, **more)
    sys.exit(not all(figure.holds for figure in figures))


if __name__ == "__main__":
    main()
