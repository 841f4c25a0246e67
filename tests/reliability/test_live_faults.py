"""Every operation of a change to a bundle fails, or is the last before the power goes: it is the old one or the new."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from samples import campaign, is_tidy
from simulated_disk import Fault, NoFileSync, NoFolderSync, PowerCut, SimulatedDisk, fingerprint, materialise

import bpr
from bpr import bundle, live
from bpr.disk import Disk
from bpr.errors import BprError, BundleLocked, EmptyBundle, StorageError
from bpr.kinds import Kind, Plan

BITS = 32
VECTORS = np.random.default_rng(1).standard_normal((2000, BITS)).astype(np.float32)
STEP = campaign(quick=4, full=1)  # of the operations of a change, every so many are tried

Change = Callable[[Path, Disk | None], object]


def passages(*rows: int) -> list[dict[str, str]]:
    return [{"id": f"p{row}", "title": "", "text": f"text of {row} " * 20} for row in rows]


def add(*rows: int, upsert: bool = False) -> Change:
    return lambda path, disk: live.add(path, passages(*rows), vectors=VECTORS[[*rows]], upsert=upsert, disk=disk)


def delete(*rows: int) -> Change:
    return lambda path, disk: live.delete(path, [f"p{row}" for row in rows], disk=disk)


def compact(path: Path, disk: Disk | None) -> None:
    live.compact(path, disk=disk)


def reindex(kind: Kind) -> Change:
    return lambda path, disk: live.reindex(path, Plan(kind), disk=disk)


def built(path: Path) -> None:
    bpr.build(passages(*range(40)), path, vectors=VECTORS[:40])


def changed(path: Path) -> None:
    """Three segments, two with deleted rows."""
    built(path)
    add(*range(40, 50))(path, None)
    add(*range(50, 53))(path, None)
    delete(3, 41)(path, None)
    assert [each["rows"] for each in bundle.open(path).info["segments"]] == [40, 10, 3]


def emptied(path: Path) -> None:
    changed(path)
    delete(*(row for row in range(53) if row not in (3, 41)))(path, None)


CHANGES: dict[str, tuple[Callable[[Path], None], Change]] = {
    "add": (built, add(100, 101)),
    "add to several": (changed, add(100)),
    "add and merge": (changed, add(100, 101, 102, 103)),
    "upsert": (changed, add(5, 45, 100, upsert=True)),
    "delete": (changed, delete(1, 2, 42, 51)),
    "delete a segment": (changed, delete(50, 51, 52)),
    "delete all": (built, delete(*range(40))),
    "fill again": (emptied, add(7, 8)),
    "compact": (changed, compact),
    "make cells": (built, reindex("cells")),
    "make tables of several": (changed, reindex("hash")),
}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else so few rows would always be one segment."""
    monkeypatch.setattr(live, "SMALL_ROWS", 1)


def state(path: Path) -> object:
    """All that a reader can see: ids, texts and what is found; or what is wrong."""
    try:
        with bpr.open(path, verify="all") as opened:
            return seen(opened)
    except EmptyBundle:
        return "empty"
    except BprError as error:
        return f"{type(error).__name__}: {error}"


def seen(opened: bpr.Retriever) -> object:
    found = opened.rank(VECTORS[:2], k=9, candidates=20)
    return tuple((each.id, each.text) for each in opened.passages), found.rows.tobytes(), found.scores.tobytes()


class Stage:
    """A folder to repeat one change of a bundle in, each time from the same start."""

    def __init__(self, room: Path, start: Callable[[Path], None], change: Change) -> None:
        self.room, self.change = room, change
        self.pristine = room / "pristine"
        self.pristine.mkdir()
        start(self.pristine / "x.bpr")
        self.before = state(self.pristine / "x.bpr")
        disk, outcome = self.run(None)
        assert outcome == "done"
        self.log, self.after = disk.log, state(disk.root / "x.bpr")

    def run(self, fault: Fault | None, kind: type[SimulatedDisk] = SimulatedDisk) -> tuple[SimulatedDisk, str]:
        folder = self.room / "work"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.pristine, folder)
        disk = kind(folder, fault)
        try:
            self.change(folder / "x.bpr", disk)
        except StorageError:
            return disk, "refused"
        except PowerCut:
            return disk, "cut"
        return disk, "done"

    def states(self, disk: SimulatedDisk, random: Random, known: dict[int, object]) -> set[object]:
        """What a power cut may leave."""
        found = set()
        for tree in disk.survivors(random, campaign(quick=6, full=60)):
            key = fingerprint(tree)
            if key not in known:
                materialise(tree, self.room / "survivor")
                known[key] = state(self.room / "survivor" / "x.bpr")
                shutil.rmtree(self.room / "survivor")
            found.add(known[key])
        return found


@pytest.fixture(params=CHANGES)
def stage(request: pytest.FixtureRequest, room: Path) -> Stage:
    return Stage(room, *CHANGES[request.param])


def test_power_cut_at_any_operation(stage: Stage) -> None:
    random, known = Random(7), {}
    assert stage.states(stage.run(None)[0], random, known) == {stage.after}  # what was acknowledged survives
    for at in range(len(stage.log) % STEP, len(stage.log), STEP):
        disk, outcome = stage.run(Fault(at, "cut"))
        assert outcome == "cut"
        assert stage.states(disk, random, known) <= {stage.before, stage.after}, (at, disk.log[at])


def test_any_operation_refused(stage: Stage) -> None:
    refused = 0
    for at in range(len(stage.log) // 2 % STEP, len(stage.log), STEP):
        disk, outcome = stage.run(Fault(at, errno.ENOSPC, lasting=at % 2 == 0))
        refused += outcome == "refused"
        path = disk.root / "x.bpr"
        assert state(path) in (stage.before, stage.after), (at, disk.log[at])
        live.add(path, passages(1999), vectors=VECTORS[1999:])  # the next writer copes with what it finds
        assert "p1999" in bpr.open(path).passages
        assert is_tidy(path)
    assert refused > len(stage.log) // STEP // 3


def test_short_writes_are_finished(stage: Stage) -> None:
    for at in range(0, len(stage.log), STEP):
        disk, outcome = stage.run(Fault(at, "short"))
        assert (outcome, state(disk.root / "x.bpr")) == ("done", stage.after), (at, disk.log[at])


@pytest.mark.parametrize("kind", [NoFileSync, NoFolderSync])
def test_the_simulation_notices_a_missing_sync(room: Path, kind: type[SimulatedDisk]) -> None:
    stage = Stage(room, *CHANGES["add and merge"])
    cuts = (stage.run(Fault(at, "cut"), kind)[0] for at in range(len(stage.log) - 1, 0, -1))
    known: dict[int, object] = {}
    assert any(not stage.states(disk, Random(1), known) <= {stage.before, stage.after} for disk in cuts)


class WithoutLinks(Disk):
    """A file system that has no hard links."""

    def system_call(self, verb: str, path: Path, function: Callable[..., object], *arguments: object) -> object:
        if verb.startswith("link"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return super().system_call(verb, path, function, *arguments)


@pytest.mark.parametrize("what", CHANGES)
def test_without_links_files_are_copied(room: Path, what: str) -> None:
    start, change = CHANGES[what]
    states = []
    for name, disk in (("linked", Disk()), ("copied", WithoutLinks())):
        path = room / name
        start(path)
        change(path, disk)
        states.append((state(path), [each.problem for each in bundle.verify(path)]))
        assert is_tidy(path)
    assert states[0] == states[1]


class Counting(Disk):
    """How many bytes are written."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, descriptor: int, path: Path, data: bytes | bytearray | memoryview) -> int:
        count = super().write(descriptor, path, data)
        self.written += count
        return count


def test_work_is_proportional_to_what_is_added_or_deleted(room: Path) -> None:
    """Counted in bytes: for twice the bundle only the sums of its blocks cost more, one part in a thousand."""
    changes = add(*range(1990, 2000)), add(7, upsert=True), delete(5), delete(6, 1995)
    costs: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for rows in (8_000, 16_000):
        path = room / f"{rows}.bpr"
        found = passages(*range(1990), *range(2000, rows + 10))
        bpr.build(found, path, vectors=np.resize(VECTORS, (rows, BITS)))
        with bundle.open(path) as opened:
            sizes[rows] = opened.manifest.bytes
        disks = [Counting() for _ in changes]
        for change, disk in zip(changes, disks, strict=True):
            change(path, disk)
        costs[rows] = [disk.written for disk in disks]
    for small, large in zip(*costs.values(), strict=True):
        assert large - small < (sizes[16_000] - sizes[8_000]) / 1000 + 200
        assert large < sizes[16_000] / 100


def test_a_second_writer_gets_a_clear_error_and_nothing_is_lost(room: Path) -> None:
    path = room / "x.bpr"
    changed(path)
    before = state(path)
    with bundle.update(path) as (_, new):
        for change in (add(100), add(1, upsert=True), delete(1), compact):
            with pytest.raises(BundleLocked, match="being written by another process"):
                change(path, None)
        command = [sys.executable, "-m", "bpr.cli", "delete", str(path), "p1"]
        other = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
        assert (other.returncode, "being written by another process" in other.stderr) == (1, True)
        assert not new.published
    assert state(path) == before
    delete(1)(path, None)
    assert is_tidy(path)


def test_a_reader_keeps_its_snapshot(room: Path) -> None:
    path = room / "x.bpr"
    changed(path)
    with bpr.open(path) as reader:
        before = state(path)
        for change in (add(100, 101), delete(2, 100), add(5, upsert=True), compact, add(102)):
            change(path, None)
            assert seen(reader) == before
        assert reader.reload()
        assert not reader.reload()
        assert seen(reader) == state(path) != before
