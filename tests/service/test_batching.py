"""Jobs that share work: everybody gets his own, in order and in time, whatever the others do."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.kernels import Cancel
from bpr.service.batching import YIELDING, Batcher
from calling import PATIENCE, eventually

LONG = 3600.0


class Work:
    """Gives back what it got; can be made to wait. An item that is an exception is raised."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []
        self.deadlines: list[float] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.cancels: list[Cancel] = []
        self.go.set()

    def __call__(self, key: Any, items: list[Any], deadline: float, cancel: Cancel) -> tuple[list[Any], Any]:
        self.batches.append((key, items))
        self.deadlines.append(deadline)
        self.cancels.append(cancel)
        self.entered.set()
        while not self.go.wait(0.002):
            if cancel.flag[0]:
                raise Cancelled("nobody waits")
        for item in items:
            if isinstance(item, BaseException):
                raise item
        return [(key, item) for item in items], f"batch {len(self.batches)}"

    def hold(self) -> None:
        self.go.clear()
        self.entered.clear()


@contextmanager
def batching(work: Any, most: int = 64) -> Iterator[Batcher]:
    batcher = Batcher(work, most, "test")
    try:
        yield batcher
    finally:
        if isinstance(work, Work):
            work.go.set()
        batcher.close()


def soon(seconds: float = LONG) -> float:
    return time.monotonic() + seconds


async def entered(work: Work) -> None:
    assert await asyncio.to_thread(work.entered.wait, PATIENCE)


async def waiting(batcher: Batcher, jobs: int) -> None:
    """Until so many wait."""
    await asyncio.to_thread(eventually, lambda: len(batcher) == jobs, f"{jobs} jobs wait")


def start(batcher: Batcher, key: Any, items: list[Any], seconds: float = LONG) -> asyncio.Task[Any]:
    return asyncio.create_task(batcher.do(key, items, soon(seconds)))


# ── whose is what ────────────────────────────────────────────────────────────────────────────────────────────────────

A_JOB = st.tuples(st.sampled_from("abc"), st.integers(1, 7), st.integers(0, 3), st.booleans())


@given(st.lists(A_JOB, max_size=20), st.integers(1, 6))
def test_everybody_gets_his_own_results_in_order_whatever_arrives_when(jobs: list[Any], most: int) -> None:
    work = Work()

    async def ask(batcher: Batcher) -> list[Any]:
        tasks = []
        for number, (key, size, pause, bad) in enumerate(jobs):
            items: list[Any] = [(number, place) for place in range(size)]
            if bad:
                items[-1] = InvalidInput(f"job {number}")
            tasks.append(start(batcher, key, items))
            for _ in range(pause):
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)

    with batching(work, most) as batcher:
        found = asyncio.run(ask(batcher))
    for number, ((key, size, _, bad), got) in enumerate(zip(jobs, found, strict=True)):
        if bad:
            assert isinstance(got, InvalidInput) and str(got) == f"job {number}"
        else:
            assert got.results == [(key, (number, place)) for place in range(size)]
            assert got.waited >= 0 and size <= got.batch <= max(most, size)
    sizes = {number: size for number, (_, size, _, _) in enumerate(jobs)}
    keys = {number: key for number, (key, *_) in enumerate(jobs)}
    for key, items in work.batches:
        owners = {item[0] for item in items if isinstance(item, tuple)}
        assert {keys[owner] for owner in owners} <= {key}
        assert len(items) <= most or [sizes[owner] for owner in owners] in ([len(items)], [len(items) - 1], [])


async def test_what_arrives_while_others_are_worked_on_is_the_next_batch() -> None:
    work = Work()
    with batching(work, most=4) as batcher:
        work.hold()
        first = start(batcher, "a", [0])
        await entered(work)
        others = [start(batcher, key, [number]) for number, key in enumerate("aabaaa", 1)]
        await waiting(batcher, 6)
        work.go.set()
        found = await asyncio.gather(first, *others)
    assert work.batches == [("a", [0]), ("a", [1, 2, 4, 5]), ("b", [3]), ("a", [6])]
    assert [each.results for each in found] == [[(key, number)] for number, key in enumerate("aaabaaa")]
    assert [each.batch for each in found] == [1, 4, 4, 1, 4, 4, 1]
    assert found[1].shared == found[4].shared == "batch 2"


async def test_a_job_that_does_not_fit_waits_and_smaller_ones_behind_it_fill_up() -> None:
    work = Work()
    with batching(work, most=4) as batcher:
        work.hold()
        first = start(batcher, "a", [0])
        await entered(work)
        others = [start(batcher, "a", list(range(size))) for size in (3, 2, 1)]
        await waiting(batcher, 3)
        work.go.set()
        found = await asyncio.gather(first, *others)
    assert [len(items) for _, items in work.batches] == [1, 4, 2]
    assert [each.batch for each in found] == [1, 4, 2, 4]


async def test_a_job_larger_than_a_batch_is_done_alone() -> None:
    work = Work()
    with batching(work, most=2) as batcher:
        work.hold()
        tasks = [start(batcher, "a", items) for items in ([0], [1, 2, 3, 4, 5], [6])]
        await entered(work)
        work.go.set()
        found = await asyncio.gather(*tasks)
    assert ("a", [1, 2, 3, 4, 5]) in work.batches
    assert found[1].batch == 5 and found[0].batch <= 2 and found[2].batch <= 2


async def test_nobody_waits_for_company() -> None:
    work = Work()
    with batching(work) as batcher:
        for number in range(20):  # one after the other: each is a batch of its own, however many may share one
            done = await batcher.do("a", [number], soon())
            assert done.results == [("a", number)] and done.batch == 1
    assert len(work.batches) == 20


async def test_a_large_batch_is_handed_over_a_few_at_a_time_and_whole() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        tasks = [start(batcher, "a", [number]) for number in range(50)]
        await entered(work)
        work.go.set()
        found = await asyncio.gather(*tasks)
    assert [each.results for each in found] == [[("a", number)] for number in range(50)]


def test_event_loops_of_several_threads_share_a_batcher() -> None:
    found: dict[int, Any] = {}

    def ask(number: int, batcher: Batcher) -> None:
        found[number] = asyncio.run(batcher.do("a", [number], soon()))

    work = Work()
    with batching(work) as batcher:
        work.hold()
        threads = [threading.Thread(target=ask, args=(number, batcher)) for number in range(4)]
        for each in threads:
            each.start()
        work.entered.wait(PATIENCE)
        eventually(lambda: len(batcher) == 4 - len(work.batches[0][1]))
        work.go.set()
        for each in threads:
            each.join(PATIENCE)
    assert {number: each.results for number, each in found.items()} == {number: [("a", number)] for number in range(4)}


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [InvalidInput("no"), ValueError("no"), MemoryError()], ids=lambda each: repr(each))
async def test_one_bad_item_does_not_fail_the_others(error: Exception) -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        first = start(batcher, "a", ["first"])
        await entered(work)
        others = [start(batcher, "a", [item]) for item in ("good", error, "fine")]
        await waiting(batcher, 3)
        work.go.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
    assert found[2] is error
    assert [each.results for each in (found[0], found[1], found[3])] == [[("a", x)] for x in ("first", "good", "fine")]
    assert [len(items) for _, items in work.batches] == [1, 3, 1, 1, 1]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()], ids=repr)
async def test_the_worker_and_the_event_loop_survive_whatever_is_raised(error: BaseException) -> None:
    with batching(Work()) as batcher:
        with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
            await batcher.do("a", [error], soon())
        assert caught.value.__cause__ is error
        assert (await batcher.do("a", ["next"], soon())).results == [("a", "next")]


async def test_work_that_forgets_a_result_is_a_mistake_and_not_the_end() -> None:
    def forgetful(key: Any, items: list[Any], deadline: float, cancel: Cancel) -> tuple[list[Any], Any]:
        return items[1:] if key == "bad" else items, None

    with batching(forgetful) as batcher:
        with pytest.raises(AssertionError, match="1 results for 2 items"):
            await batcher.do("bad", [1, 2], soon())
        assert (await batcher.do("good", [3], soon())).results == [3]


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_expires_in_the_queue_is_never_worked_on() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        first = start(batcher, "a", ["first"])
        await entered(work)
        late = start(batcher, "a", ["late"], seconds=0.02)
        with pytest.raises(DeadlineExceeded):
            await late
        assert not first.done()
        gone = start(batcher, "a", ["gone"], seconds=-1)  # its time is over before it comes
        with pytest.raises(DeadlineExceeded):
            await gone
        work.go.set()
        await first
        await batcher.do("a", ["last"], soon())
    assert [items for _, items in work.batches] == [["first"], ["last"]]


async def test_a_job_whose_loop_has_not_noticed_yet_that_it_expired_is_not_worked_on_either() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        first = start(batcher, "a", ["first"])
        await entered(work)
        late = start(batcher, "a", ["late"], seconds=0.01)
        await asyncio.sleep(0)  # it is in the queue now
        end = soon(0.05)
        while time.monotonic() < end:
            pass  # the event loop is kept busy past the deadline, and then while the worker is let go
        work.go.set()
        eventually(lambda: len(batcher) == 0)
        with pytest.raises(DeadlineExceeded):
            await late
        await first
    assert [items for _, items in work.batches] == [["first"]]


async def test_what_expires_while_it_is_worked_on_ends_at_its_time_and_is_cancelled() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="not done in time"):
            await batcher.do("a", ["slow"], began + 0.05)
        assert time.monotonic() - began >= 0.05
        assert not work.go.is_set()  # the work had not ended
        await asyncio.to_thread(eventually, lambda: work.cancels[0].flag[0])
        work.go.set()
        assert (await batcher.do("a", ["next"], soon())).results == [("a", "next")]


async def test_a_result_that_came_before_its_time_was_up_stays_a_result() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        end = soon(1.0)
        task = asyncio.create_task(batcher.do("a", ["just in time"], end))
        await entered(work)
        work.go.set()
        while time.monotonic() < end or batcher._running:
            pass  # both the result and the alarm are there when the event loop looks again
        assert (await task).results == [("a", "just in time")]


async def two_running(batcher: Batcher, work: Work) -> list[asyncio.Task[Any]]:
    """Two jobs in one batch that has begun and waits."""
    block = threading.Event()

    def blocking(key: Any, items: list[Any], deadline: float, cancel: Cancel) -> tuple[list[Any], Any]:
        if key == "block":
            work.entered.set()
            block.wait(PATIENCE)
            return items, None
        return work(key, items, deadline, cancel)

    batcher._work = blocking
    first = start(batcher, "block", [0])
    await entered(work)
    work.hold()
    tasks = [start(batcher, "a", [each], (each + 1) * LONG) for each in range(2)]
    await waiting(batcher, 2)
    block.set()
    await first
    await entered(work)
    return tasks


async def test_one_of_two_that_goes_away_leaves_the_other_its_work() -> None:
    work = Work()
    with batching(work) as batcher:
        gone, other = await two_running(batcher, work)
        assert work.deadlines[0] > soon(1.5 * LONG)  # the later one
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not work.cancels[0].flag[0]
        work.go.set()
        assert (await other).results == [("a", 1)]
    assert work.batches == [("a", [0, 1])]


async def test_a_batch_that_nobody_waits_for_is_cancelled_and_not_tried_again_one_by_one() -> None:
    work = Work()
    with batching(work) as batcher:
        tasks = await two_running(batcher, work)
        for task in tasks:
            assert not work.cancels[0].flag[0]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert work.cancels[0].flag[0]
        work.go.set()
        assert (await batcher.do("a", ["next"], soon())).results == [("a", "next")]
    assert work.batches == [("a", [0, 1]), ("a", ["next"])]


async def test_a_waiter_that_goes_away_while_it_queues_is_never_worked_on() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        first = start(batcher, "a", ["first"])
        await entered(work)
        gone = start(batcher, "a", ["gone"])
        await waiting(batcher, 1)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not work.cancels[0].flag[0]
        work.go.set()
        await first
        await batcher.do("b", ["last"], soon())
    assert [items for _, items in work.batches] == [["first"], ["last"]]


async def test_a_deadline_that_the_work_itself_notices_is_told_to_all_and_not_tried_again() -> None:
    work = Work()
    with batching(work) as batcher:
        work.hold()
        first = start(batcher, "b", ["first"])
        await entered(work)
        others = [start(batcher, "a", [each]) for each in ("good", DeadlineExceeded("the kernel noticed"))]
        await waiting(batcher, 2)
        work.go.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(each) for each in found[1:]] == [DeadlineExceeded] * 2 and len(work.batches) == 2


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_closing_finishes_what_waits_and_takes_nothing_more() -> None:
    work = Work()
    batcher = Batcher(work, 1, "test")
    work.hold()
    tasks = [start(batcher, "a", [number]) for number in range(3)]
    await waiting(batcher, 2)
    closing = asyncio.create_task(asyncio.to_thread(batcher.close))
    await asyncio.to_thread(eventually, lambda: batcher._closed)
    with pytest.raises(DeadlineExceeded, match="stopping"):
        await batcher.do("a", ["late"], soon())
    work.go.set()
    found = await asyncio.gather(*tasks)
    await closing
    assert [each.results for each in found] == [[("a", number)] for number in range(3)]
    assert not batcher._thread.is_alive()


def test_an_event_loop_that_is_gone_by_the_end_of_the_work_is_no_harm() -> None:
    work = Work()

    async def leave(batcher: Batcher) -> None:
        asyncio.get_running_loop().create_task(batcher.do("a", ["left"], soon()))
        await entered(work)

    with batching(work) as batcher:
        work.hold()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave(batcher))
        pending = asyncio.all_tasks(loop)
        loop.close()
        work.go.set()
        assert asyncio.run(batcher.do("a", ["next"], soon())).results == [("a", "next")]
        for task in pending:  # nobody can wait for it any more; say so, or asyncio complains
            task._log_destroy_pending = False
            task.get_coro().close()
    assert len(work.batches) == 2


@pytest.mark.parametrize("can", [True, False])
def test_a_worker_gives_way_to_the_thread_that_answers_the_network(can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can:  # a system that knows no priorities of threads
        monkeypatch.delattr(os, "setpriority")
    seen = []

    def work(key: Any, items: list[Any], deadline: float, cancel: Cancel) -> tuple[list[Any], Any]:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return items, None

    async def ask() -> None:
        await batcher.do("key", [1], time.monotonic() + LONG)

    batcher = Batcher(work, 4, "nice")
    asyncio.run(ask())
    batcher.close()
    assert seen == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + YIELDING * can)]  # whatever it was started with
