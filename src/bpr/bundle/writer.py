"""Writing bundles: a new generation beside the old one, then one rename that makes it the bundle.

The order of its steps is what keeps a bundle whole through a crash, a full disk or a power cut; each step says why it
is there. Every file operation goes through `Disk`. It must not know what the files are for.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..disk import Disk, OutputFile, open_plain, storage_error
from ..errors import BundleLocked, CorruptBundle, InvalidInput, MissingBundle, StorageError
from .manifest import (
    CHECKSUMS,
    DIGEST_BYTES,
    LOCK,
    MANIFEST,
    NEXT_MANIFEST,
    FileEntry,
    Manifest,
    array_head,
    checked_info,
    checked_name,
    encode,
    generation_number,
)
from .reader import read_manifest
from .view import digest

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

    def __init__(self, folder: Path, disk: Disk) -> None:
        """Look at what is there; the lock must be held."""
        self.published = False
        self._folder = folder
        self._disk = disk
        self._before, self._keep = _survey(folder, disk)
        numbers = [generation_number(name) or 0 for name in {*_generations(folder, disk), *self._keep}]
        self._generation = f"gen-{max(numbers, default=0) + 1:06d}"
        self._written: dict[str, tuple[str | None, tuple[int, ...] | None]] = {}  # name: dtype and shape
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

    def scratch(self, name: str) -> Path:
        """A path inside the new generation for a file of the caller's own, which is removed and never published."""
        return self.generation_path / checked_name(name)

    def publish(self, info: Mapping[str, Any]) -> None:
        """Make the new generation the bundle, durably and in one step, and remove the old one.

        info: JSON-able values for the reader; info["resident"], if there, lists the files to verify at every open.
        """
        next_manifest = self._require_open()
        info = checked_info(info, self._written)
        for name in set(self._disk.names(self.generation_path)) - set(self._written):
            self._disk.remove_tree(self.generation_path / name)  # scratch, and what was never finished
        raw = encode(self._seal(info))
        # Each file is on the device; now their names, so that the generation is whole before anything refers to it.
        self._disk.sync_folder(self.generation_path)
        next_manifest.write(raw)
        next_manifest.finish()
        self._commit()
        # Readers of the old generation keep it open. If it cannot be removed nothing is lost: the next writer will.
        with suppress(StorageError):
            _remove_generations(self._folder, self._disk, keep={self._generation})

    def begin(self) -> None:
        """Remove what crashed writers left, and make the folder of the new generation."""
        _remove_generations(self._folder, self._disk, self._keep)
        self._remove_mark()
        # The mark of an unfinished build is on the device before the generation is: a folder that has generations and
        # neither manifest nor mark has lost its manifest, and is reported as corrupt.
        self._next_manifest = OutputFile(self._disk, self._folder / NEXT_MANIFEST)
        self._disk.sync_folder(self._folder)
        self._disk.make_folder(self.generation_path)

    def discard(self) -> None:
        """Remove the new generation, as far as the disk lets us: the next writer removes the rest."""
        if self._next_manifest is not None:
            self._next_manifest.close()
        with suppress(StorageError):
            _remove_generations(self._folder, self._disk, self._keep)
            self._remove_mark()

    def _remove_mark(self) -> None:
        if NEXT_MANIFEST in self._disk.names(self._folder):
            self._disk.sync_folder(self._folder)  # never a generation without manifest or mark, see begin
            self._disk.remove_file(self._folder / NEXT_MANIFEST)

    def _require_open(self) -> OutputFile:
        if self._next_manifest is None or self.published:
            raise InvalidInput(f"{self._folder} is published already: create a new generation for more")
        return self._next_manifest

    @contextmanager
    def _output(self, name: str) -> Iterator[OutputFile]:
        self._require_open()
        if checked_name(name) in self._written:
            raise InvalidInput(f"{name} is written already: a bundle's file is written once")
        out = OutputFile(self._disk, self.generation_path / name)
        try:
            yield out
        finally:
            out.close()

    def _seal(self, info: Mapping[str, Any]) -> Manifest:
        """Read every file back once, write the digests of their blocks, and state it all in a manifest."""
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
        return Manifest(self._generation, bundle_id, secrets.token_hex(16), info, files, checksums_sha256)

    def _write_checksums(self, blocks: NDArray[np.uint8]) -> None:
        out = OutputFile(self._disk, self.generation_path / CHECKSUMS)
        try:
            out.write(array_head("|u1", blocks.shape))
            out.write(blocks.reshape(-1).data)
            out.finish()
        finally:
            out.close()

    def _digest(self, name: str) -> tuple[int, str, bytes]:
        """Size, SHA-256 and digests of the blocks of a file already written."""
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
        self._disk.sync_folder(self._folder)
        # From here on nothing of the new generation may be removed, whatever the disk reports: the rename may be done.
        self.published = True
        self._disk.replace(self._folder / NEXT_MANIFEST, self._folder / MANIFEST)
        self._disk.sync_folder(self._folder)
        if self._before is None:
            self._disk.sync_folder(self._folder.parent)


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
