"""The seam between bpr and the operating system: every file operation of a writer is a method of `Disk`.

Whatever writes calls it: bundles, parts, converters, models. It knows paths, bytes and system calls, and nothing of
what the bytes mean. All of a writer's calls pass one gate, `Disk.system_call`, so that a test can put a simulated disk
there; every refusal of the system leaves as a StorageError that names the file, the reason and what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from .errors import InvalidInput, StorageError

Bytes = bytes | bytearray | memoryview

BUFFER_BYTES = 1 << 20  # small writes are gathered up to this size
WRITE_LIMIT = 1 << 26  # macOS refuses a single write of 2 GiB or more

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe that somebody put in place of a file must not make the reader wait for ever.
_PLAIN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REAL_FOLDER = _FOLDER | os.O_NOFOLLOW

# A file system without hard links, one that has no more for this file, or a system that allows none to this user.
_NO_LINK = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: a plain fsync stops at the drive's own cache

_ADVICE = {
    errno.ENOSPC: "free some space or write to another disk",
    errno.EDQUOT: "your quota is used up: free some space or write to another disk",
    errno.EFBIG: "this file system or your limits (ulimit -f) allow no file that large: write to another disk",
    errno.EIO: "the disk or its connection is failing: check it before you trust it again",
    errno.EACCES: "choose a folder that you may use, or change its permissions",
    errno.EPERM: "choose a folder that you may use, or change its permissions",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EMFILE: "close what you do not need or raise the limit (ulimit -n)",
    errno.ENFILE: "the whole system has too many files open: close some programs",
    errno.EEXIST: "something else has that name already: choose another",
    errno.ENOENT: "create the folder above it first",
    errno.ENOTDIR: "a part of this path is a file, not a folder: choose another path",
    errno.ENOMEM: "there is not enough memory: close some programs",
}


# The same refusals mean something else to whoever only wants to read.
_READING = {"read", "open", "list", "map"}
_READING_ADVICE = {
    errno.EACCES: "change its permissions, or ask somebody who may",
    errno.EPERM: "change its permissions, or ask somebody who may",
    errno.ENOENT: "check the path",
    errno.EISDIR: "a folder is there, where a file is needed: check the path",
    errno.ELOOP: "its link leads to itself: check the path",
}


class NotPlainFile(Exception):
    """Something else (a link, a pipe, a device) stands where a plain file or folder is expected."""


def storage_error(verb: str, path: str | Path, error: OSError) -> StorageError:
    """The error to raise when the system refused to `verb` the file at `path`."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    advices = {**_ADVICE, **_READING_ADVICE} if verb in _READING else _ADVICE
    advice = advices.get(error.errno or 0, "check the disk and the path")  # numpy gives no number for a full disk
    return StorageError(f"cannot {verb} {path}: {reason}; {advice}")


def make_folders(path: Path) -> None:
    """Make the folder and those above it; one that is there will do."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("make the folder", path, error) from error


@contextmanager
def made_folder(path: Path, whole: bool = False) -> Iterator[None]:
    """As `make_folders`; after a failure those that were not there before are gone again.

    whole: with all that the block has put there; otherwise only if they are empty.
    """
    new = [each for each in (path, *path.parents) if not each.exists()]
    try:
        make_folders(path)
        yield
    except BaseException:
        if whole and path in new:
            shutil.rmtree(path, ignore_errors=True)
        for each in new:
            with suppress(OSError):
                each.rmdir()
        raise


def open_plain(path: str | Path, folder: int | None = None) -> int:
    """A descriptor to read the plain file at `path` (inside the folder with descriptor `folder`, if given).

    A link is not followed and anything else than a plain file is refused: NotPlainFile. Other refusals stay OSError.
    """
    try:
        descriptor = os.open(path, _PLAIN_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotPlainFile(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(path)
    return descriptor


def open_folder(path: Path) -> int:
    """A descriptor of the folder at `path`; a link or a file in its place is NotPlainFile."""
    try:
        return os.open(path, _REAL_FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotPlainFile(path) from error
        raise


def _to_the_device(descriptor: int) -> None:
    """Push what was written to the descriptor down to the device itself."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError:  # this file system has only the plain one
            pass
    os.fsync(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, _FOLDER)
    try:
        _to_the_device(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder at all
            raise
    finally:
        os.close(descriptor)


class Disk:
    """The real disk. Paths are absolute or relative to the working folder; descriptors are plain integers."""

    def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
        """The one gate to the operating system: `verb` and `path` say what happens, for messages and simulations."""
        return function(*arguments)

    def _call(
        self,
        verb: str,
        path: Path,
        function: Callable[..., Any],
        *arguments: Any,
        expected: tuple[type[OSError], ...] = (),
    ) -> Any:
        try:
            return self.system_call(verb, path, function, *arguments)
        except expected:
            raise
        except OSError as error:
            raise storage_error(verb, path, error) from error

    def make_folder(self, path: Path) -> bool:
        """Make the folder; False if something stands there already."""
        try:
            self._call("create the folder", path, os.mkdir, path, expected=(FileExistsError,))
        except FileExistsError:
            return False
        return True

    def create_file(self, path: Path) -> int:
        """Create a new file, open for writing; one that is there already is an error."""
        return int(self._call("create", path, os.open, path, _NEW_FILE, 0o666))

    def write(self, descriptor: int, path: Path, data: Bytes) -> int:
        """Write at the descriptor's position; how many bytes were written may be less than there were."""
        return int(self._call("write", path, os.write, descriptor, data))

    def write_at(self, descriptor: int, path: Path, offset: int, data: Bytes) -> int:
        """As `write`, at a place of its own."""
        return int(self._call("rewrite", path, os.pwrite, descriptor, data, offset))

    def sync_file(self, descriptor: int, path: Path) -> None:
        """Return only when all that was written is on the device."""
        self._call("flush", path, _to_the_device, descriptor)

    def sync_folder(self, path: Path) -> None:
        """Return only when the folder's list of names is on the device."""
        self._call("flush the folder", path, _sync_folder, path)

    def replace(self, source: Path, target: Path) -> None:
        """Give `source` the name of `target` in one step: others see the old file or the new one, never neither."""
        self._call("rename a file to", target, os.replace, source, target)

    def link(self, source: Path, target: Path) -> bool:
        """Give the file a second name, without a copy; False where the file system or its limits do not allow it."""
        verb = "link a file to"
        try:
            self._call(verb, target, partial(os.link, follow_symlinks=False), source, target, expected=(OSError,))
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise storage_error(verb, target, error) from error
        return True

    def remove_file(self, path: Path) -> None:
        """Remove a file or a link."""
        self._call("remove", path, os.unlink, path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        self._call("remove the folder", path, os.rmdir, path)

    def remove_tree(self, path: Path) -> None:
        """Remove a file, a link (not what it points to), or a folder and all that is in it."""
        if not stat.S_ISDIR(self._call("inspect", path, os.lstat, path).st_mode):
            return self.remove_file(path)
        for name in self.names(path):
            self.remove_tree(path / name)
        self.remove_folder(path)

    def names(self, path: Path) -> list[str]:
        """What is in the folder, sorted."""
        return sorted(self._call("list", path, os.listdir, path))

    def lock(self, path: Path) -> int | None:
        """Take the lock file for this descriptor alone, or None if another one has it, in whatever process."""
        try:
            descriptor = int(self._call("open", path, os.open, path, _LOCK_FILE, 0o666, expected=(FileNotFoundError,)))
        except FileNotFoundError:  # its holder is just removing the folder
            return None
        try:
            alone = fcntl.LOCK_EX | fcntl.LOCK_NB
            self._call("lock", path, fcntl.flock, descriptor, alone, expected=(BlockingIOError,))
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except StorageError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # held by another, or what we have locked is no longer the file of that name
        return None

    def unlock(self, descriptor: int) -> None:
        """Give the lock back, also on behalf of forked children that inherited the descriptor."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


class OutputFile:
    """A new file, written from front to back through a buffer; `finish` returns when it is on the device."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Create the file."""
        self.path = path
        self._disk = disk
        self._buffer = bytearray()
        self._written = 0
        self._descriptor: int | None = disk.create_file(path)

    def write(self, data: Bytes) -> None:
        """Append bytes."""
        descriptor = self._open_descriptor()
        if len(data) < BUFFER_BYTES:
            self._buffer += data
        if len(self._buffer) >= BUFFER_BYTES or len(data) >= BUFFER_BYTES:
            self._flush(descriptor)
        if len(data) >= BUFFER_BYTES:  # large ones need no copy
            self._put(descriptor, data)

    def tell(self) -> int:
        """How many bytes were written so far."""
        return self._written + len(self._buffer)

    def rewrite_start(self, data: Bytes) -> None:
        """Put other bytes at the front, for a head that states what came after it."""
        descriptor = self._open_descriptor()
        self._flush(descriptor)
        done, rest = 0, memoryview(data)
        while done < len(rest):
            done += self._disk.write_at(descriptor, self.path, done, rest[done:])

    def finish(self) -> None:
        """Flush and sync everything, then close."""
        descriptor = self._open_descriptor()
        self._flush(descriptor)
        self._disk.sync_file(descriptor, self.path)
        self.close()

    def close(self) -> None:
        """Close; what is still in the buffer is dropped, only `finish` keeps it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _flush(self, descriptor: int) -> None:
        gathered, self._buffer = self._buffer, bytearray()
        self._put(descriptor, gathered)

    def _put(self, descriptor: int, data: Bytes) -> None:
        done, rest = 0, memoryview(data)
        while done < len(rest):
            done += self._disk.write(descriptor, self.path, rest[done : done + WRITE_LIMIT])
        self._written += done

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise InvalidInput(f"{self.path} is closed already: write inside its with block")
        return self._descriptor


@contextmanager
def replacing(*paths: str | os.PathLike[str]) -> Iterator[list[OutputFile]]:
    """Files that take the place of `paths` when the block ends well; otherwise whatever was there stays.

    A link is followed. Between the first and the last of several a crash can leave some old and some new ones.
    """
    targets = [_replaceable(path) for path in paths]
    if len({*targets}) < len(targets):
        raise InvalidInput(f"{targets[0]} cannot take both: give two names")
    disk = Disk()
    out: list[OutputFile] = []
    try:
        for target in targets:
            out.append(OutputFile(disk, target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")))
        yield out
        for file in out:
            file.finish()
        for file, target in zip(out, targets, strict=True):
            disk.replace(file.path, target)
    except BaseException:
        for file in out:
            file.close()
            if file.path.exists():
                disk.remove_file(file.path)
        raise
    for folder in {target.parent for target in targets}:
        disk.sync_folder(folder)


def _replaceable(path: str | os.PathLike[str]) -> Path:
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InvalidInput(f"{path} is not a plain file, so it cannot be replaced; choose another name")
    return target
