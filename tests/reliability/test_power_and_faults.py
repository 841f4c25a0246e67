"""Every operation of a writer fails, writes short, or is the last one before the power goes: the bundle stays whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from samples import campaign, is_tidy, read, write
from simulated_disk import Fault, NoFileSync, NoFolderSync, PowerCut, SimulatedDisk, fingerprint, materialise

from bpr import bundle
from bpr.errors import BprError, CorruptBundle, MissingBundle, StorageError

OLD, NEW = 1, 2
NOTHING = 0  # the sample number of no bundle at all


def rewrite(path: Path, disk: SimulatedDisk) -> None:
    write(path, NEW, disk)


def give_up(path: Path, disk: SimulatedDisk) -> None:
    write(path, NEW, disk, finish=False)


def nothing(path: Path) -> None:
    pass


def old(path: Path) -> None:
    write(path, OLD)


def half_a_first_build(path: Path) -> None:
    """As a writer leaves it that was killed."""
    with pytest.raises(PowerCut):
        write(path, 4, SimulatedDisk(path.parent, Fault(30, "cut")))
    assert set(os.listdir(path)) == {"lock", "manifest.json.new", "gen-000001"}


class Stage:
    """A folder to repeat one change of a bundle in, each time from the same start."""

    def __init__(
        self, room: Path, start: Callable[[Path], None], change: Callable[[Path, SimulatedDisk], None]
    ) -> None:
        self.room, self.change = room, change
        self.pristine = room / "pristine"
        self.pristine.mkdir()
        start(self.pristine / "x.bpr")
        self.before = state(self.pristine / "x.bpr")

    def run(self, fault: Fault | None, kind: type[SimulatedDisk] = SimulatedDisk) -> tuple[SimulatedDisk, str]:
        """Carry out the change on a fresh copy; what came of it: done, refused or cut."""
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

    def operations(self) -> int:
        return len(self.run(None)[0].log)


def state(path: Path) -> int | str:
    """Which sample the bundle is, NOTHING if there is none, or what is wrong with it."""
    try:
        return read(path, verify="all")
    except MissingBundle:
        return NOTHING
    except (CorruptBundle, BprError) as error:
        return str(error)


class Inspector:
    """Looks at surviving states, each of them once."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.random = Random(7)
        self.known: dict[int, int | str] = {}

    def states(self, disk: SimulatedDisk, rewritable: bool = True) -> set[int | str]:
        found = set()
        for tree in disk.survivors(self.random, campaign(quick=12, full=60)):
            key = fingerprint(tree)
            if key not in self.known:
                self.known[key] = self._look(tree, rewritable)
            found.add(self.known[key])
        return found

    def _look(self, tree: dict[str, object], rewritable: bool) -> int | str:
        folder = self.room / "survivor"
        materialise(tree, folder)  # type: ignore[arg-type]
        try:
            found = state(folder / "x.bpr")
            if rewritable and len(self.known) % 8 == 0:  # the next writer copes with what it finds, and tidies up
                write(folder / "x.bpr", 3)
                assert read(folder / "x.bpr") == 3
                assert is_tidy(folder / "x.bpr")
            return found
        finally:
            shutil.rmtree(folder)


ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EDQUOT)
REFUSALS = [*((number, lasting) for number in ERRORS for lasting in (False, True))][:: campaign(quick=12, full=1)]

CHANGES = {
    "rewrite": (old, rewrite, NEW),
    "first": (nothing, rewrite, NEW),
    "first after a crash": (half_a_first_build, rewrite, NEW),
    "abandoned": (old, give_up, OLD),
    "abandoned first": (nothing, give_up, NOTHING),
    "abandoned after a crash": (half_a_first_build, give_up, NOTHING),
}


@pytest.fixture(params=CHANGES)
def stage(request: pytest.FixtureRequest, room: Path) -> tuple[Stage, int]:
    start, change, after = CHANGES[request.param]
    return Stage(room, start, change), after


@pytest.mark.parametrize(("number", "lasting"), REFUSALS)
def test_any_operation_refused(stage: tuple[Stage, int], room: Path, number: int, lasting: bool) -> None:
    stage_, after = stage
    inspector = Inspector(room)
    refused = 0
    for at in range(stage_.operations()):
        disk, outcome = stage_.run(Fault(at, number, lasting))
        refused += outcome == "refused"
        path = disk.root / "x.bpr"
        assert state(path) in (stage_.before, after), (at, disk.log[at])
        assert inspector.states(disk, rewritable=False) <= {stage_.before, after}, (at, disk.log[at])
        write(path, 3)
        assert read(path) == 3
        assert is_tidy(path)
    assert refused > stage_.operations() // 3


def test_any_write_short(stage: tuple[Stage, int], room: Path) -> None:
    stage_, after = stage
    for at in range(stage_.operations()):
        disk, outcome = stage_.run(Fault(at, "short"))
        assert outcome == "done", (at, disk.log[at])
        assert state(disk.root / "x.bpr") == after, (at, disk.log[at])


def test_power_cut_at_any_operation(stage: tuple[Stage, int], room: Path) -> None:
    stage_, after = stage
    inspector = Inspector(room)
    seen: set[int | str] = set()
    for at in range(stage_.operations()):
        disk, outcome = stage_.run(Fault(at, "cut"))
        assert outcome == "cut"
        found = inspector.states(disk)
        assert found <= {stage_.before, after}, (at, disk.log[at], found)
        seen |= found
    assert seen == {stage_.before, after}


def test_what_was_acknowledged_survives_a_power_cut(stage: tuple[Stage, int], room: Path) -> None:
    stage_, after = stage
    disk, outcome = stage_.run(None)
    assert outcome == "done"
    assert Inspector(room).states(disk) == {after}


@pytest.mark.parametrize("kind", [NoFileSync, NoFolderSync])
@pytest.mark.parametrize("start", [old, nothing])
def test_the_simulation_notices_a_missing_sync(
    room: Path, kind: type[SimulatedDisk], start: Callable[[Path], None]
) -> None:
    stage = Stage(room, start, rewrite)
    inspector = Inspector(room)
    cuts = (stage.run(Fault(at, "cut"), kind)[0] for at in range(stage.operations()))
    assert any(not inspector.states(disk, rewritable=False) <= {stage.before, NEW} for disk in cuts)


def test_no_single_sync_can_be_left_out(room: Path) -> None:
    """Each sync of a first build is there for a reason: without it some power cut breaks or loses the bundle."""
    stage = Stage(room, nothing, rewrite)
    log = stage.run(None)[0].log
    empty = "x.bpr/gen-000001/nothing"  # has nothing to lose
    syncs = [at for at, (verb, path) in enumerate(log) if verb.startswith("flush") and path != empty]
    assert len(syncs) == 10
    for omitted in syncs:

        class Forgetful(SimulatedDisk):
            def sync_file(self, descriptor: int, path: Path) -> None:
                self._forget_or(super().sync_file, descriptor, path)

            def sync_folder(self, path: Path) -> None:
                self._forget_or(super().sync_folder, path)

            def _forget_or(self, sync: Callable[..., None], *arguments: object) -> None:
                if len(self.log) == omitted:  # noqa: B023 (used up within the same turn of the loop)
                    self.log.append(("forget", ""))
                else:
                    sync(*arguments)

        assert _breaks(stage, Inspector(room), Forgetful), log[omitted]


def _breaks(stage: Stage, inspector: Inspector, kind: type[SimulatedDisk]) -> bool:
    if inspector.states(stage.run(None, kind)[0], rewritable=False) != {NEW}:
        return True
    cuts = (stage.run(Fault(at, "cut"), kind)[0] for at in range(stage.operations()))
    return any(not inspector.states(disk, rewritable=False) <= {NOTHING, NEW} for disk in cuts)


def test_a_failed_write_names_file_and_reason(room: Path) -> None:
    stage = Stage(room, old, rewrite)
    log = stage.run(None)[0].log
    at = next(i for i, (verb, path) in enumerate(log) if verb == "write" and path.endswith("signs.npy"))
    disk = SimulatedDisk(stage.room / "work", Fault(at, errno.ENOSPC))
    shutil.rmtree(disk.root)
    shutil.copytree(stage.pristine, disk.root)
    with pytest.raises(StorageError, match=r"cannot write .*signs\.npy: No space left on device; free some space"):
        write(disk.root / "x.bpr", NEW, disk)
    assert is_tidy(disk.root / "x.bpr")


def test_publishing_succeeds_even_if_the_old_generation_cannot_be_removed(room: Path) -> None:
    stage = Stage(room, old, rewrite)
    log = stage.run(None)[0].log
    at = next(i for i, (verb, path) in enumerate(log) if verb == "remove" and "gen-000001" in path)
    disk, outcome = stage.run(Fault(at, errno.EIO, lasting=True))
    assert outcome == "done"
    assert read(disk.root / "x.bpr") == NEW
    with bundle.create(disk.root / "x.bpr"):
        pass
    assert is_tidy(disk.root / "x.bpr")
