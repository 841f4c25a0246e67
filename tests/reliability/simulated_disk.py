"""A disk that can refuse, write short, or lose power at any operation, and that knows what would survive.

It works on a real folder, and beside it keeps a model of what is on the device: the bytes of a file as of its last
sync, the names in a folder as of its last sync. What came after may survive, or not, or in part, each for itself: of a
name made and removed again, the making may have reached the device and the removal not. A rename is one change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Union

from bpr.disk import Bytes, Disk

Tree = dict[str, Union[bytes, "Tree"]]


class PowerCut(BaseException):
    """The machine is off. Not an Exception: nothing may catch it and go on."""


@dataclass(eq=False)
class SimulatedFile:
    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""

    def survivals(self) -> list[bytes]:
        """What the file may hold after a power cut."""
        if self.live == self.durable:
            return [self.durable]
        live = bytes(self.live)
        lost_tail = self.durable + live[len(self.durable) : (len(self.durable) + len(live)) // 2]
        return [live, self.durable, bytes(len(live)), lost_tail]


@dataclass(eq=False)
class SimulatedFolder:
    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)  # from durable to live, in order

    def change(self, change: Change) -> None:
        """What names stand for from now on (None: nothing): survives as a whole or not at all."""
        self.changes.append(change)
        self.live = _applied(self.live, [change])

    def sync(self) -> None:
        self.durable, self.changes = self.live, []

    def mixture(self, random: Random) -> dict[str, Node]:
        """The names if each change since the last sync survives or not by itself."""
        return _applied(self.durable, [change for change in self.changes if random.random() < 0.5])


Node = SimulatedFile | SimulatedFolder
Change = dict[str, Node | None]


def _applied(names: dict[str, Node], changes: list[Change]) -> dict[str, Node]:
    result: Change = dict(names)
    for change in changes:
        result.update(change)
    return {name: node for name, node in result.items() if node is not None}


@dataclass(frozen=True)
class Fault:
    """What goes wrong at operation `number`: an errno, or "short" (half a write), or "cut" (power)."""

    number: int
    kind: int | str
    lasting: bool = False  # an errno comes back at every later operation


class SimulatedDisk(Disk):
    """A Disk over the real folder `root` that carries out one `Fault`."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.root = root
        self.fault = fault
        self.log: list[tuple[str, str]] = []
        self.model = _scan(root)
        self._open: dict[int, SimulatedFile] = {}

    # What goes wrong -------------------------------------------------------------------------------------------------

    def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
        number = len(self.log)
        self.log.append((verb, str(path.relative_to(self.root))))
        fault = self.fault
        if fault is not None and number >= fault.number:
            if fault.kind == "cut":
                raise PowerCut
            if isinstance(fault.kind, int) and (number == fault.number or fault.lasting):
                raise OSError(fault.kind, os.strerror(fault.kind))
            if fault.kind == "short" and number == fault.number and verb in ("write", "rewrite"):
                descriptor, data, *rest = arguments
                return function(descriptor, data[: max(1, len(data) // 2)], *rest)
        return function(*arguments)

    # What is on the device -------------------------------------------------------------------------------------------

    def make_folder(self, path: Path) -> bool:
        made = super().make_folder(path)
        if made:
            self._folder(path.parent).change({path.name: SimulatedFolder()})
        return made

    def create_file(self, path: Path) -> int:
        descriptor = super().create_file(path)
        self._open[descriptor] = SimulatedFile()
        self._folder(path.parent).change({path.name: self._open[descriptor]})
        return descriptor

    def write(self, descriptor: int, path: Path, data: Bytes) -> int:
        written = super().write(descriptor, path, data)
        self._open[descriptor].live += bytes(data)[:written]
        return written

    def write_at(self, descriptor: int, path: Path, offset: int, data: Bytes) -> int:
        written = super().write_at(descriptor, path, offset, data)
        self._open[descriptor].live[offset : offset + written] = bytes(data)[:written]
        return written

    def sync_file(self, descriptor: int, path: Path) -> None:
        super().sync_file(descriptor, path)
        self._open[descriptor].durable = bytes(self._open[descriptor].live)

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._folder(path).sync()

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        assert source.parent == target.parent
        folder = self._folder(target.parent)
        folder.change({target.name: folder.live[source.name], source.name: None})

    def link(self, source: Path, target: Path) -> bool:
        linked = super().link(source, target)
        if linked:
            self._folder(target.parent).change({target.name: self._folder(source.parent).live[source.name]})
        return linked

    def remove_file(self, path: Path) -> None:
        super().remove_file(path)
        self._folder(path.parent).change({path.name: None})

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self._folder(path.parent).change({path.name: None})

    def lock(self, path: Path) -> int | None:
        descriptor = super().lock(path)
        if path.name not in self._folder(path.parent).live:
            self._folder(path.parent).change({path.name: SimulatedFile()})
        return descriptor

    def _folder(self, path: Path) -> SimulatedFolder:
        folder = self.model
        for name in path.relative_to(self.root).parts:
            child = folder.live[name]
            assert isinstance(child, SimulatedFolder)
            folder = child
        return folder

    # What would survive ----------------------------------------------------------------------------------------------

    def survivors(self, random: Random, samples: int) -> Iterator[Tree]:
        """States of the folder in which a power cut at this moment may leave it.

        All that was written, or only what was synced, for each folder by itself and for all files alike; then `samples`
        mixtures in which every name and every file survives or not by itself.
        """
        unsynced = [folder for folder in _folders(self.model) if folder.live != folder.durable]
        for choice in product((True, False), repeat=len(unsynced)):
            lost = {id(folder) for folder, keep in zip(unsynced, choice, strict=True) if not keep}
            for index in range(4):
                yield _tree(
                    self.model,
                    lambda folder, lost=lost: folder.durable if id(folder) in lost else folder.live,
                    lambda file, index=index: file.survivals()[min(index, len(file.survivals()) - 1)],
                )
        for _ in range(samples):
            yield _tree(self.model, lambda folder: folder.mixture(random), lambda file: random.choice(file.survivals()))


class NoFileSync(SimulatedDisk):
    """A disk that forgets to sync files, to prove that the simulation notices."""

    def sync_file(self, descriptor: int, path: Path) -> None:
        Disk.sync_file(self, descriptor, path)


class NoFolderSync(SimulatedDisk):
    """A disk that forgets to sync folders, to prove that the simulation notices."""

    def sync_folder(self, path: Path) -> None:
        Disk.sync_folder(self, path)


def materialise(tree: Tree, target: Path) -> None:
    """Make a real folder of it."""
    target.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (target / name).write_bytes(content)
        else:
            materialise(content, target / name)


def fingerprint(tree: Tree) -> int:
    """Equal trees have equal ones: most operations leave most states as they were."""
    return hash(tuple((name, c if isinstance(c, bytes) else fingerprint(c)) for name, c in sorted(tree.items())))


def _scan(path: Path) -> SimulatedFolder:
    folder = SimulatedFolder()
    for child in path.iterdir():
        content = b"" if child.is_dir() else child.read_bytes()
        folder.live[child.name] = _scan(child) if child.is_dir() else SimulatedFile(bytearray(content), content)
    folder.durable = dict(folder.live)
    return folder


def _folders(folder: SimulatedFolder) -> Iterator[SimulatedFolder]:
    yield folder
    children = {id(child): child for child in (*folder.live.values(), *folder.durable.values())}
    for child in children.values():
        if isinstance(child, SimulatedFolder):
            yield from _folders(child)


def _tree(
    folder: SimulatedFolder,
    entries: Callable[[SimulatedFolder], dict[str, Node]],
    content: Callable[[SimulatedFile], bytes],
) -> Tree:
    return {
        name: content(node) if isinstance(node, SimulatedFile) else _tree(node, entries, content)
        for name, node in entries(folder).items()
    }
