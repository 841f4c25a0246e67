"""Writing bundles: a new generation beside the old one, then one rename that makes it the bundle.

The order of its steps is what keeps a bundle whole through a crash, a full disk or a power cut; each step says why it
is there. Every file operation goes through `Disk`. The builder, `live` and `shards` write through `bundle`; it must not
know what the files are for.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..disk import Disk, NotPlainFile, OutputFile, open_plain, storage_error
from ..errors import BundleLocked, CorruptBundle, InvalidInput, MissingBundle, StorageError
from .manifest import (
    CHECKSUMS,
    DIGEST_BYTES,
    FEATURES,
    LOCK,
    MANIFEST,
    NEXT_MANIFEST,
    FileEntry,
    Manifest,
    array_head,
    checked_info,
    checked_name,
    corrupt,
    encode,
    generation_number,
)
from .reader import Opened, read_manifest
from .reader import open as open_bundle
from .view import View, digest

_MOST_ROWS = 1 << 61


class ArrayOut:
    """An array on its way to disk, block of rows after block of rows."""

    def __init__(self, out: OutputFile, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        """Made by `Writer.array`."""
        self.rows = 0
        self._out = out
        self._dtype = dtype
        self._row_shape = row_shape
        out.write(array_head(dtype.str, (_MOST_ROWS, *row_shape)))  # stands in for the head that `finish` writes

    def append(self, block: NDArray[Any]) -> None:
        """Write more rows; block: dtype[m, *row_shape]."""
        fits = isinstance(block, np.ndarray) and block.dtype == self._dtype and block.ndim == 1 + len(self._row_shape)
        if not fits or block.shape[1:] != self._row_shape:
            wanted = f"{self._dtype}{['m', *self._row_shape]}".replace("'", "")
            found = f"{block.dtype}{list(block.shape)}" if isinstance(block, np.ndarray) else type(block).__name__
            raise InvalidInput(f"{self._out.path.name} takes blocks {wanted}, not {found}")
        self._out.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
        self.rows += len(block)

    def finish(self) -> tuple[int, ...]:
        """Write the true head; the shape that the array has now."""
        shape = (self.rows, *self._row_shape)
        self._out.rewrite_start(array_head(self._dtype.str, shape))
        return shape


class Writer:
    """A new generation of a bundle, under the bundle's lock. Made by `create`; nothing counts before `publish`."""

    def __init__(self, folder: Path, disk: Disk, old: Opened | None = None) -> None:
        """Look at what is there; the lock must be held. old: the generation whose files may be kept."""
        self.published = False
        self.disk = disk
        self._folder = folder
        self._old = old
        self._before, self._keep = _survey(folder, disk)
        numbers = [generation_number(name) or 0 for name in {*_generations(folder, disk), *self._keep}]
        self._generation = f"gen-{max(numbers, default=0) + 1:06d}"
        self._written: dict[str, tuple[str | None, tuple[int, ...] | None]] = {}  # name: dtype and shape
        self._linked: dict[str, View] = {}
        self._next_manifest: OutputFile | None = None

    @property
    def generation_path(self) -> Path:
        """The folder of the new generation. A file in it may be read or mapped once its with block has ended."""
        return self._folder / self._generation

    @contextmanager
    def array(self, name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()) -> Iterator[ArrayOut]:
        """A new .npy file dtype[rows, *row_shape], to be appended to inside the with block."""
        dtype, row_shape = np.dtype(dtype), tuple(int(size) for size in row_shape)
        if any(size < 1 for size in row_shape):
            raise InvalidInput(f"the rows of {name} cannot have shape {row_shape}: every axis needs at least 1")
        array_head(dtype.str, (_MOST_ROWS, *row_shape))  # refuses what cannot be stored before a file is made
        with self._output(name) as out:
            array = ArrayOut(out, dtype, row_shape)
            yield array
            shape = array.finish()
            out.finish()
        self._written[name] = (dtype.str, shape)

    def save(self, name: str, array: NDArray[Any]) -> None:
        """A whole array as a new .npy file."""
        if array.ndim < 1:
            raise InvalidInput(f"{name} must be an array with at least one axis, not a single number")
        with self.array(name, array.dtype, array.shape[1:]) as out:
            out.append(array)

    @contextmanager
    def file(self, name: str) -> Iterator[OutputFile]:
        """A new file of any bytes, to be written inside the with block: out.write(bytes), out.tell()."""
        with self._output(name) as out:
            yield out
            out.finish()
        self._written[name] = (None, None)

    def keep(self, name: str) -> None:
        """Take a file of the published generation into the new one as it is, without reading it again.

        It gets a second name (a hard link); only where the file system has none for us, it is copied, and checked.
        """
        self._require_unwritten(name)
        if self._old is None:
            raise InvalidInput(f"{self._folder} is being written anew: there is no generation to keep {name} of")
        view = self._old.view(name)
        source, target = self._folder / self._old.generation / name, self.generation_path / name
        if self.disk.link(source, target):
            self._linked[name] = view
            self._check_linked(target, view)
            self._written[name] = (view.entry.dtype, view.entry.shape)
            return
        with self._output(name) as out:
            for chunk in view.chunks():
                out.write(chunk)
            out.finish()
        self._written[name] = (view.entry.dtype, view.entry.shape)
        if self._digest(name)[1] != view.entry.sha256:
            raise corrupt(source, "has changed since it was published")

    def _check_linked(self, path: Path, view: View) -> None:
        """The size at least; its bytes are verified by whoever reads them."""
        try:
            descriptor = open_plain(path)
        except (OSError, NotPlainFile) as error:
            raise corrupt(path, "is not the plain file that was published") from error
        try:
            if os.fstat(descriptor).st_size != view.entry.bytes:
                raise corrupt(path, f"has not the {view.entry.bytes} bytes that were published")
        finally:
            os.close(descriptor)

    def scratch(self, name: str) -> Path:
        """A path inside the new generation for a file of the caller's own, which is removed and never published."""
        return self.generation_path / checked_name(name)

    def publish(self, info: Mapping[str, Any], features: Collection[str] = ()) -> None:
        """Make the new generation the bundle, durably and in one step, and remove the old one.

        info: JSON-able values for the reader; info["resident"], if there, lists the files to verify at every open.
        features: what an older bpr must know to read it (manifest.FEATURES).
        """
        next_manifest = self._require_open()
        if unknown := set(features) - FEATURES:
            raise InvalidInput(f"a bundle cannot have the features {sorted(unknown)}: there are {sorted(FEATURES)}")
        info = checked_info(info, self._written)
        for name in set(self.disk.names(self.generation_path)) - set(self._written):
            self.disk.remove_tree(self.generation_path / name)  # scratch, and what was never finished
        raw = encode(self._seal(info, frozenset(features)))
        # Each file is on the device; now their names, so that the generation is whole before anything refers to it.
        self.disk.sync_folder(self.generation_path)
        next_manifest.write(raw)
        next_manifest.finish()
        self._commit()
        # Readers of the old generation keep it open. If it cannot be removed nothing is lost: the next writer will.
        with suppress(StorageError):
            _remove_generations(self._folder, self.disk, keep={self._generation})

    def begin(self) -> None:
        """Remove what crashed writers left, and make the folder of the new generation."""
        _remove_generations(self._folder, self.disk, self._keep)
        self._remove_mark()
        # The mark of an unfinished build is on the device before the generation is: a folder that has generations and
        # neither manifest nor mark has lost its manifest, and is reported as corrupt.
        self._next_manifest = OutputFile(self.disk, self._folder / NEXT_MANIFEST)
        self.disk.sync_folder(self._folder)
        self.disk.make_folder(self.generation_path)

    def discard(self) -> None:
        """Remove the new generation, as far as the disk lets us: the next writer removes the rest."""
        if self._next_manifest is not None:
            self._next_manifest.close()
        with suppress(StorageError):
            _remove_generations(self._folder, self.disk, self._keep)
            self._remove_mark()

    def _remove_mark(self) -> None:
        if NEXT_MANIFEST in self.disk.names(self._folder):
            self.disk.sync_folder(self._folder)  # never a generation without manifest or mark, see begin
            self.disk.remove_file(self._folder / NEXT_MANIFEST)

    def _require_open(self) -> OutputFile:
        if self._next_manifest is None or self.published:
            raise InvalidInput(f"{self._folder} is published already: create a new generation for more")
        return self._next_manifest

    def _require_unwritten(self, name: str) -> None:
        self._require_open()
        if checked_name(name) in self._written:
            raise InvalidInput(f"{name} is written already: a bundle's file is written once")

    @contextmanager
    def _output(self, name: str) -> Iterator[OutputFile]:
        self._require_unwritten(name)
        out = OutputFile(self.disk, self.generation_path / name)
        try:
            yield out
        finally:
            out.close()

    def _seal(self, info: Mapping[str, Any], features: frozenset[str]) -> Manifest:
        """Read every new file back once, write the digests of their blocks, and state it all in a manifest."""
        names = sorted(self._written)
        with ThreadPoolExecutor(2) as pool:
            digests = list(pool.map(self._digest, names))
        files: dict[str, FileEntry] = {}
        first_block = 0
        for name, (size, whole, _) in zip(names, digests, strict=True):
            files[name] = FileEntry(name, size, whole, *self._written[name], first_block)
            first_block += files[name].blocks
        blocks = np.frombuffer(b"".join(each[2] for each in digests), np.uint8)
        self._write_checksums(blocks.reshape(-1, DIGEST_BYTES))
        bundle_id = self._before.bundle_id if self._before else secrets.token_hex(16)
        checksums_sha256 = self._digest(CHECKSUMS)[1]
        return Manifest(self._generation, bundle_id, secrets.token_hex(16), info, files, checksums_sha256, features)

    def _write_checksums(self, blocks: NDArray[np.uint8]) -> None:
        out = OutputFile(self.disk, self.generation_path / CHECKSUMS)
        try:
            out.write(array_head("|u1", blocks.shape))
            out.write(blocks.reshape(-1).data)
            out.finish()
        finally:
            out.close()

    def _digest(self, name: str) -> tuple[int, str, bytes]:
        """Size, SHA-256 and digests of the blocks of a file already written; of a linked one they are known."""
        if name in self._linked:
            view = self._linked[name]
            return view.entry.bytes, view.entry.sha256, view.digests.tobytes()
        path = self.generation_path / name
        try:
            descriptor = open_plain(path)
        except OSError as error:
            raise storage_error("read", path, error) from error
        try:
            return os.fstat(descriptor).st_size, *digest(descriptor, path)
        finally:
            os.close(descriptor)

    def _commit(self) -> None:
        """The one step from old to new, once everything that the new manifest refers to is on the device."""
        self.disk.sync_folder(self._folder)
        # From here on nothing of the new generation may be removed, whatever the disk reports: the rename may be done.
        self.published = True
        self.disk.replace(self._folder / NEXT_MANIFEST, self._folder / MANIFEST)
        self.disk.sync_folder(self._folder)
        if self._before is None:
            self.disk.sync_folder(self._folder.parent)


@contextmanager
def create(path: str | os.PathLike[str], *, disk: Disk | None = None) -> Iterator[Writer]:
    """Write a new bundle at `path`, or a new generation of the one that is there.

    Nothing changes for readers before `publish`; leaving the with block without it leaves everything as it was. Raises
    BundleLocked while another writer is at work, InvalidInput if something else than a bundle stands at `path`.
    """
    folder, disk = Path(path), disk or Disk()
    _refuse_foreign(folder)
    is_new = disk.make_folder(folder)
    with _locked(folder, disk):
        writer = Writer(folder, disk)
        try:
            writer.begin()
            yield writer
        finally:
            if not writer.published:
                writer.discard()
                if is_new:
                    _remove_bundle(folder, disk)


@contextmanager
def update(path: str | os.PathLike[str], *, disk: Disk | None = None) -> Iterator[tuple[Opened, Writer]]:
    """A new generation of the bundle at `path`, which may keep files of the one that is there (`Writer.keep`).

    That one is opened with verify="lazy". For the rest as `create`, but without a bundle it is MissingBundle.
    """
    folder, disk = Path(path), disk or Disk()
    read_manifest(folder)  # says what is wrong before anything is locked
    with _locked(folder, disk), open_bundle(folder, verify="lazy") as old:
        writer = Writer(folder, disk, old)
        try:
            writer.begin()
            yield old, writer
        finally:
            if not writer.published:
                writer.discard()


@contextmanager
def _locked(folder: Path, disk: Disk) -> Iterator[None]:
    descriptor = disk.lock(folder / LOCK)
    if descriptor is None:
        raise BundleLocked(f"{folder} is being written by another process: wait until it has finished, then try again")
    try:
        yield
    finally:
        disk.unlock(descriptor)


def _refuse_foreign(folder: Path) -> None:
    """Never touch a file or folder that is not a bundle of ours."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if folder.is_symlink():
            raise InvalidInput(f"{folder} is a link to nothing: remove it or choose another path") from None
        return
    except NotADirectoryError:
        raise InvalidInput(f"{folder} is a file, not a bundle (a folder): choose another path") from None
    except OSError as error:
        raise storage_error("list", folder, error) from error
    if any(generation_number(name) is not None for name in names):
        return
    strangers = sorted(set(names) - {LOCK, NEXT_MANIFEST, MANIFEST})
    try:
        read_manifest(folder)
    except MissingBundle:
        if strangers:
            raise InvalidInput(f"{folder} holds {strangers[0]} and no bundle: choose another path") from None
    except CorruptBundle:
        raise InvalidInput(f"{folder / MANIFEST} is not the manifest of a bundle: choose another path") from None


def _survey(folder: Path, disk: Disk) -> tuple[Manifest | None, set[str]]:
    """The bundle that is there, if any, and the generations that must outlive a failure to write the new one."""
    try:
        manifest = read_manifest(folder)
        return manifest, {manifest.generation}
    except MissingBundle:
        return None, set()
    except CorruptBundle:  # it may be rebuilt, but what is left of it stays until that has succeeded
        return None, set(_generations(folder, disk))


def _generations(folder: Path, disk: Disk) -> list[str]:
    return [name for name in disk.names(folder) if generation_number(name) is not None]


def _remove_generations(folder: Path, disk: Disk, keep: set[str]) -> None:
    for name in _generations(folder, disk):
        if name not in keep:
            disk.remove_tree(folder / name)


def _remove_bundle(folder: Path, disk: Disk) -> None:
    with suppress(StorageError):
        disk.remove_file(folder / LOCK)
        disk.remove_folder(folder)
