"""Questions of several requests in one search: the kernel does 64 questions for the price of a dozen.

Nobody waits for company. A worker thread takes what is there; what arrives while it works is the next batch. So a lone
client pays a hand-over between threads and no more, and batches grow by themselves as load does. The engine calls it;
it must not know what the work is.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..errors import Cancelled, DeadlineExceeded
from ..kernels import Cancel

AT_ONCE = 4  # replies between two looks at the network
YIELDING = 5  # how much nicer a worker is (nice(2))

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class Done(Generic[Result]):
    """What a job gets: a result for each of its items, and what it shared with others."""

    results: list[Result]
    shared: Any  # what the work said of the whole batch
    batch: int  # items that it was done with
    waited: float  # seconds before it began


@dataclass(eq=False, slots=True)
class _Job(Generic[Item]):
    """Some items of one request that are worked on together."""

    key: Hashable
    items: Sequence[Item]
    deadline: float
    done: asyncio.Future[Done[Any]]
    arrived: float = field(default_factory=time.monotonic)


# work(key, items, deadline, cancel) → a result for each item, and what is to be said of the batch
Work = Callable[[Any, list[Any], float, Cancel], tuple[list[Any], Any]]


class Batcher:
    """One worker thread, and the jobs that wait for it. Jobs of equal key share a batch of at most `most` items."""

    def __init__(self, work: Work, most: int, name: str) -> None:
        """Starts the thread; `close` ends it."""
        self._work, self._most = work, most
        self._waiting: deque[_Job[Any]] = deque()
        self._running: tuple[list[_Job[Any]], Cancel] | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def do(self, key: Hashable, items: Sequence[Any], deadline: float) -> Done[Any]:
        """The work on some items; DeadlineExceeded at the deadline (of time.monotonic()), however far it is."""
        loop = asyncio.get_running_loop()
        job: _Job[Any] = _Job(key, items, deadline, loop.create_future())
        with self._changed:
            if self._closed:
                raise DeadlineExceeded("the service is stopping")
            self._waiting.append(job)
            self._changed.notify()
        timer = loop.call_later(max(0.0, deadline - time.monotonic()), self._expire, job)
        try:
            return await job.done
        except asyncio.CancelledError:
            self._cancel_if_abandoned()
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def _expire(self, job: _Job[Any]) -> None:
        if not job.done.done():
            job.done.set_exception(DeadlineExceeded("it was not done in time: ask for less, or later"))
            self._cancel_if_abandoned()

    def _cancel_if_abandoned(self) -> None:
        running = self._running
        if running and all(job.done.done() for job in running[0]):
            running[1].set()

    # ── The worker ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        _step_back()
        while True:
            jobs = self._next()
            if jobs is None:
                return
            now = time.monotonic()
            wanted = [job for job in jobs if not job.done.done() and job.deadline > now]
            if wanted:
                self._deliver(self._run(wanted))
            del jobs, wanted  # or the last batch stays in memory until the next one comes

    def _next(self) -> list[_Job[Any]] | None:
        """The first job and those behind it of the same key, as far as they fit; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            jobs, size, others = [first], len(first.items), deque[_Job[Any]]()
            while self._waiting and size < self._most:
                job = self._waiting.popleft()
                if job.key == first.key and size + len(job.items) <= self._most:
                    jobs.append(job)
                    size += len(job.items)
                else:
                    others.append(job)
            self._waiting.extendleft(reversed(others))
            return jobs

    def _run(self, jobs: list[_Job[Any]]) -> list[tuple[_Job[Any], Done[Any] | BaseException]]:
        items, started = [item for job in jobs for item in job.items], time.monotonic()
        cancel = Cancel()
        self._running = jobs, cancel
        try:
            results, shared = self._work(jobs[0].key, items, max(job.deadline for job in jobs), cancel)
            if len(results) != len(items):
                raise AssertionError(f"{len(results)} results for {len(items)} items")
        except BaseException as error:  # the thread must live on, and whoever asked be told
            if len(jobs) == 1 or isinstance(error, DeadlineExceeded | Cancelled):
                return [(job, _as_exception(error)) for job in jobs]
            return [outcome for job in jobs for outcome in self._run([job])]  # one may be wrong: the others are not
        finally:
            self._running = None
        given: list[tuple[_Job[Any], Done[Any] | BaseException]] = []
        found = iter(results)
        for job in jobs:
            own = [next(found) for _ in job.items]
            given.append((job, Done(own, shared, len(items), started - job.arrived)))
        return given

    def _deliver(self, outcomes: list[tuple[_Job[Any], Any]]) -> None:
        """Wake each event loop once for the whole batch."""
        loops = {job.done.get_loop() for job, _ in outcomes}
        for loop in loops:
            mine = [each for each in outcomes if each[0].done.get_loop() is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_hand_over, mine)


def _step_back() -> None:
    """Let this thread give way to the one that answers the network, where both want the same core.

    Otherwise, at five times the load that can be borne, refusals wait for searches, and a third of the goodput is lost.
    """
    if hasattr(os, "setpriority"):  # a thread's own, on Linux
        mine = threading.get_native_id()  # `nice bpr serve` is nicer already: less nice is for root alone
        os.setpriority(os.PRIO_PROCESS, mine, min(19, os.getpriority(os.PRIO_PROCESS, mine) + YIELDING))


def _as_exception(error: BaseException) -> Exception:
    """What a future can hold, and an event loop can raise without ending."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"the work ended with {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _hand_over(outcomes: list[tuple[_Job[Any], Any]]) -> None:
    """A few at a time: writing a reply takes long enough that whoever comes meanwhile should not wait for all."""
    for job, outcome in outcomes[:AT_ONCE]:
        if job.done.done():
            continue
        if isinstance(outcome, BaseException):
            job.done.set_exception(outcome)
        else:
            job.done.set_result(outcome)
    if len(outcomes) > AT_ONCE:
        asyncio.get_running_loop().call_soon(_hand_over, outcomes[AT_ONCE:])
