"""The shards of one generation on Ray Serve: one deployment for each, with as many replicas as are wanted.

front.py asks it. Serve starts replicas, watches them and routes to them; here is only what it leaves to its callers: a
call whose replica is lost is made again, a late one is made once more (hedged), and of all replies of a shard one is
taken.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar

# Read when Serve is imported: its router runs in our loop, not in a thread of its own, and a call goes straight to its
# replica (gRPC), not through Ray's object store. Together that halves what a call costs this process.
os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from .. import __version__, bundle, errors, shards
from ..errors import BprError, DeadlineExceeded, InvalidInput
from . import rays

PATIENCE = 5.0  # seconds for a call that has no deadline of its own
START = 120.0  # seconds until all replicas must be up
PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds before a call is made again; twice as long each time
# A call is late after so many seconds, and so many times the usual time; one more is late after twice as long, and so
# on: Serve may send the second where the first hangs, and shards that are all slow must not be asked ever more.
HEDGE_LEAST, HEDGE_TIMES = 0.05, 4.0
USUAL = 0.9  # how much of the usual time a new reply leaves as it was
QUEUE = 32  # calls that one replica takes at once; they are worked on one after the other

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Size:
    """What each shard gets: replicas, and of each CPUs that Ray reserves (threads: as many, at least 1)."""

    replicas: int = 1
    cpus: float = 1.0

    @property
    def threads(self) -> int:
        """Of a search."""
        return max(1, int(self.cpus))


class Replica:
    """In a process of its own, on some machine: a shard, memory-mapped. Errors of ours travel as name and message.

    Its methods are coroutines that wait for nothing: calls are worked on one after the other, and none is handed from
    thread to thread, which costs as much as a small search.
    """

    def __init__(self, folder: str, entry: Mapping[str, Any], threads: int) -> None:
        """Opens and verifies the shard."""
        os.environ["BPR_THREADS"] = str(threads)
        self._shard = shards.Shard(folder, shards.Entry(**entry))

    async def about(self) -> str:
        """The version of bpr."""
        return __version__

    async def ask(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """ "ok" and the result of a method of `shards.Shard`; or the name of an error, and what it says."""
        try:
            found = getattr(self._shard, method)(*arguments)
            return "ok", tuple(found) if method == "propose" else found
        except BprError as error:
            return type(error).__name__, str(error)


class RayFleet:
    """A `front.Fleet`. Ray is connected."""

    def __init__(self, parent: bundle.Opened, size: Size, start: float = START) -> None:
        """Returns when every replica of every shard is up; start: seconds that this may take."""
        self._entries, self._size = shards.entries_of(parent), size
        token = secrets.token_hex(4)  # a second front of the same bundle has shards of its own
        self._names = [f"bpr-{each.set[:8]}-{token}-{each.number:04d}" for each in self._entries]
        self._usual: dict[str, float] = {}  # seconds of a reply, by method
        self._closing, self._closed = threading.Lock(), False
        try:
            self._deploy(str(os.path.abspath(parent.path)))
            self._wait(start)
            self._handles = _run(_handles(self._names))
            versions = self._ask_all("about", {number: () for number in range(len(self._names))})
            for number, version in versions.items():
                rays.same_version(version, str(self._entries[number]))
        except BaseException:
            self.close()
            raise

    def ask(
        self, method: str, calls: Mapping[int, tuple[Any, ...]], deadline: float | None, missing: bool = False
    ) -> dict[int, Any]:
        """See `front.Fleet`."""
        until = time.monotonic() + PATIENCE if deadline is None else deadline
        return _run(self._gathered("ask", {n: (method, args) for n, args in calls.items()}, until, missing))

    def close(self) -> None:
        """Take the shards down; twice is once."""
        with self._closing:
            if not self._closed:
                self._closed = True
                for name in self._names:
                    serve.delete(name, _blocking=False)

    # ── Starting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _deploy(self, folder: str) -> None:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        quiet = {"log_level": "WARNING", "enable_access_log": False}
        serve.start(proxy_location="Disabled", logging_config=quiet)  # the HTTP front is ours
        made = serve.deployment(
            num_replicas=self._size.replicas,
            max_ongoing_requests=QUEUE,
            health_check_period_s=1,
            health_check_timeout_s=10,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=10,
            ray_actor_options={"num_cpus": self._size.cpus},
            logging_config=quiet,
        )(Replica)
        targets = []
        for entry, name in zip(self._entries, self._names, strict=True):
            bound = made.options(name=f"shard-{entry.number}").bind(folder, asdict(entry), self._size.threads)
            targets.append(serve.RunTarget(bound, name=name, route_prefix=None))
        serve.run_many(targets, wait_for_applications_running=False)

    def _wait(self, seconds: float) -> None:
        """Until all are up; a shard that cannot be opened where its replica runs is named."""
        until = time.monotonic() + seconds
        while True:
            known = serve.status().applications
            states = {name: known[name] for name in self._names if name in known}
            for name, entry in zip(self._names, self._entries, strict=True):
                if name in states and states[name].status.value in ("DEPLOY_FAILED", "UNHEALTHY"):
                    said = [each.message for each in states[name].deployments.values()] or [states[name].message]
                    raise InvalidInput(f"{entry} cannot be served: {_last_line(said[0])}")
            waiting = [name for name in self._names if name not in states or states[name].status.value != "RUNNING"]
            if not waiting:
                return
            if time.monotonic() > until:
                wanted = self._size.replicas * self._size.cpus * len(self._entries)
                raise InvalidInput(
                    f"{len(waiting)} of {len(self._names)} shards are not up after {seconds:.0f} s: they need "
                    f"{wanted:g} CPUs, and the cluster has {sum(rays.room('CPU')):g} for all that runs on it"
                )
            time.sleep(0.1)

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask_all(self, method: str, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        return _run(self._gathered(method, calls, time.monotonic() + PATIENCE, False))

    async def _gathered(
        self, method: str, calls: Mapping[int, tuple[Any, ...]], until: float, missing: bool
    ) -> dict[int, Any]:
        """The replies by shard: one for each, whichever of its calls gave it."""
        numbers = list(calls)
        given = await asyncio.gather(
            *(self._asked(number, method, calls[number], until) for number in numbers), return_exceptions=True
        )
        replies, late = {}, []
        for number, reply in zip(numbers, given, strict=True):
            if isinstance(reply, DeadlineExceeded):
                late.append(f"{self._entries[number]}{_why(reply)}")
            elif isinstance(reply, BaseException):
                raise reply
            else:
                replies[number] = reply
        if late and not missing:
            raise DeadlineExceeded(f"no answer in time from {', '.join(late)}")
        return replies

    async def _asked(self, number: int, method: str, arguments: tuple[Any, ...], until: float) -> Any:
        """One shard's reply: called again when a replica is lost, and once more each time it is late."""
        kind, handle = str((method, *arguments[:1]) if method == "ask" else method), self._handles[number]
        running: dict[asyncio.Future[Any], float] = {}  # calls, and when each was made
        pause, lost, usual = PAUSE, "", self._usual.get(kind, HEDGE_LEAST)
        patience = max(HEDGE_LEAST, HEDGE_TIMES * usual) if self._size.replicas > 1 else float("inf")
        try:
            while (left := until - time.monotonic()) > 0:
                if not running:
                    running[_called(handle, method, arguments)] = time.monotonic()
                done, _ = await asyncio.wait(running, timeout=min(left, patience), return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    took = time.monotonic() - running.pop(each)
                    try:
                        reply = each.result()
                    except (RayError, RayServeException, TimeoutError) as error:
                        lost = type(error).__name__
                        continue
                    self._usual[kind] = USUAL * self._usual.get(kind, 0.0) + (1 - USUAL) * took
                    return _opened(reply) if method == "ask" else reply
                if not done and patience < left:
                    patience *= 2
                    running[_called(handle, method, arguments)] = time.monotonic()
                elif not running:
                    await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
                    pause = min(2 * pause, LONGEST_PAUSE)
            raise DeadlineExceeded(lost)
        finally:
            for each in running:
                each.cancel()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all fleets of this process, and as long as it lives: Serve's routers stay bound to it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="bpr-fleet", daemon=True).start()
    atexit.register(_park, loop)  # after Ray's own, so it comes before it
    return loop


def _park(loop: asyncio.AbstractEventLoop) -> None:
    """Let nothing more run in the loop. Serve's routers poll from it for ever, and cannot be told to stop: what polls
    when the process has left Ray joins it anew, and then the end of the process is a crash.
    """
    parked = threading.Event()

    def stay() -> None:
        parked.set()
        threading.Event().wait()

    loop.call_soon_threadsafe(stay)
    parked.wait(PATIENCE)  # a loop that waits for a cluster that is gone is as good as parked


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


async def _handles(names: Sequence[str]) -> list[Any]:
    return [serve.get_app_handle(name) for name in names]


def _called(handle: Any, method: str, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
    async def reply() -> Any:
        response = getattr(handle, method).remote(*arguments)
        try:
            return await response
        except asyncio.CancelledError:  # nobody waits any more: it need not be done
            response.cancel()
            raise

    return asyncio.ensure_future(reply())


def _opened(reply: tuple[str, Any]) -> Any:
    """What a replica gave, or the error that it told of."""
    name, value = reply
    if name == "ok":
        return value
    raise getattr(errors, name, BprError)(value)


def _why(error: BaseException) -> str:
    return f" ({error})" if str(error) else ""


def _last_line(text: str) -> str:
    lines: Iterable[str] = (line.strip() for line in reversed(text.strip().splitlines()))
    return next((line for line in lines if line), "it does not start")
