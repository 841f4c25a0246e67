"""One published file, mapped into memory, and its blocks checked before they are used.

Only the rest of bundle makes views; everyone may use one. It knows its file, its entry in the manifest and the digests
of its blocks, and nothing of generations or of what the file is for.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..disk import storage_error
from ..errors import InvalidInput
from .manifest import BLOCK_BYTES, DIGEST_BYTES, HEAD_BYTES, FileEntry, array_head, block_digests, corrupt

CHUNK_BLOCKS = 256  # read 4 MiB at a time: with less, two threads spend their time waiting for each other
_BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1
_MOST_THREADS = 8  # more only fight over the interpreter


class View:
    """A file of an opened bundle.

    `array` lies over the mapped file without a copy and cannot be written: the array that was saved, or uint8[bytes] of
    a file that is none. Of a bundle that was not verified as a whole, ask `require_…` for what you are about to read:
    it checks each block the first time it is asked for, and costs about 10 µs when there is nothing left to check.
    Views and arrays stay valid after the bundle is closed, as long as something refers to them. Threads may share one.
    """

    def __init__(self, descriptor: int, path: Path, entry: FileEntry, digests: NDArray[np.uint8]) -> None:
        """Take over the descriptor of a plain file; digests: uint8[blocks, 16]."""
        weakref.finalize(self, os.close, descriptor)
        self.path = path
        self.entry = entry
        self._descriptor = descriptor
        self._digests = digests
        self._verified = np.zeros(entry.blocks, np.bool_)
        self._complete = entry.blocks == 0
        self._check_size_and_head()
        self._mapping = self._map()
        self.array: NDArray[Any] = np.ndarray(
            (entry.bytes,) if entry.shape is None else entry.shape,
            np.uint8 if entry.dtype is None else np.dtype(entry.dtype),
            buffer=self._mapping,
            offset=0 if entry.shape is None else HEAD_BYTES,
        )

    @property
    def digests(self) -> NDArray[np.uint8]:
        """Of its blocks, as they were published: uint8[blocks, 16]."""
        return self._digests

    def require_rows(self, rows: NDArray[np.int64]) -> None:
        """Check the blocks that these rows of the array lie in; rows: int64, of any shape and order."""
        rows, shape = np.asarray(rows, np.int64).ravel(), self.array.shape
        # Seen as unsigned, a negative row is a very large one: one comparison finds both kinds of stray.
        if rows.size and int(rows.view(np.uint64).max()) >= shape[0]:
            raise InvalidInput(f"{self.path.name} has {shape[0]} rows; asked for {rows.min()} to {rows.max()}")
        if self._complete:
            return
        width = self.array.nbytes // max(shape[0], 1)
        start = rows * width + (self.entry.bytes - self.array.nbytes)
        first, last = start >> _BLOCK_SHIFT, (start + (width - 1)) >> _BLOCK_SHIFT
        if width > BLOCK_BYTES:  # else a row lies in two blocks at most
            between = first[:, None] + np.arange(1, width // BLOCK_BYTES + 1)
            first = np.append(first, np.minimum(between, last[:, None]))
        self._require_blocks(np.concatenate((first, last)))

    def require_bytes(self, start: int, stop: int) -> None:
        """Check the blocks of the bytes [start, stop) of the file."""
        if not 0 <= start <= stop <= self.entry.bytes:
            raise InvalidInput(f"{self.path.name} has {self.entry.bytes} bytes, and [{start}, {stop}) was asked for")
        if not self._complete and start < stop:
            self._require_blocks(np.arange(start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES + 1))

    def require_spans(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Check the blocks of many stretches of bytes [start, stop), none of them empty: int64[n] each."""
        if self._complete or not len(starts):
            return
        first, last = starts >> _BLOCK_SHIFT, (stops - 1) >> _BLOCK_SHIFT
        if int(last.max()) >= self.entry.blocks or int(first.min()) < 0:
            raise InvalidInput(f"{self.path.name} has {self.entry.bytes} bytes, and more was asked for")
        longest = int((last - first).max())
        between = np.minimum(first[:, None] + np.arange(longest + 1), last[:, None]) if longest > 1 else first
        self._require_blocks(np.concatenate((between.ravel(), last)))

    def require_all(self) -> None:
        """Check every block that was not checked yet."""
        verify_views([self])

    def advise_random(self) -> None:
        """Tell the system that reads will be scattered, so that it does not read ahead; where it can be told."""
        if hasattr(mmap, "MADV_RANDOM") and isinstance(self._mapping, mmap.mmap):
            self._mapping.madvise(mmap.MADV_RANDOM)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def trust(self) -> None:
        """Take the file as it is, without ever checking it: for those who asked for verify="size"."""
        self._complete = True

    def unchecked(self) -> list[tuple[int, int]]:
        """The blocks that are still to check, as ranges [first, last) of at most CHUNK_BLOCKS."""
        return [] if self._complete else list(_ranges(np.flatnonzero(~self._verified)))

    def check(self, first: int, last: int) -> None:
        """Read the blocks [first, last) and compare them with their digests: CorruptBundle if one has changed."""
        found = block_digests(self._read(first * BLOCK_BYTES, (last - first) * BLOCK_BYTES))
        expected = self._digests[first:last].tobytes()
        if found != expected:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False)))
            start = (first + same // DIGEST_BYTES) * BLOCK_BYTES
            raise corrupt(self.path, f"has changed since it was published (first in the block at byte {start})")
        self._verified[first:last] = True

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes, read anew and not checked."""
        return read_chunks(self._descriptor, self.path)

    def problem(self, by_blocks: bool = True) -> str | None:
        """Read the whole file anew and say what is wrong with it, by its SHA-256 and by the digests of its blocks."""
        whole, blocks = digest(self._descriptor, self.path)
        if whole != self.entry.sha256 or (by_blocks and blocks != self._digests.tobytes()):
            return str(corrupt(self.path, "has changed since it was published"))
        return None

    def _require_blocks(self, blocks: NDArray[np.int64]) -> None:
        known = self._verified.take(blocks)
        if known.all():
            return
        ranges = list(_ranges(np.unique(blocks[~known])))
        if hasattr(os, "posix_fadvise"):  # let the system fetch them all at once, not one after the other
            for first, last in ranges:
                span = (last - first) * BLOCK_BYTES
                os.posix_fadvise(self._descriptor, first * BLOCK_BYTES, span, os.POSIX_FADV_WILLNEED)
        for first, last in ranges:
            self.check(first, last)
        self._complete = bool(self._verified.all())

    def _check_size_and_head(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size != self.entry.bytes:
            raise corrupt(self.path, f"has {size} bytes instead of {self.entry.bytes}")
        if self.entry.shape is not None:
            expected = array_head(str(self.entry.dtype), self.entry.shape)
            if self._read(0, HEAD_BYTES) != expected:
                raise corrupt(self.path, "does not begin with the head of the array that was published")

    def _map(self) -> mmap.mmap | bytes:
        if self.entry.bytes == 0:
            return b""  # an empty file cannot be mapped
        try:
            return mmap.mmap(self._descriptor, self.entry.bytes, access=mmap.ACCESS_READ)
        except OSError as error:
            raise storage_error("map", self.path, error) from error

    def _read(self, offset: int, size: int) -> bytes:
        # Not through the mapping: there a failing disk or a file cut short would kill the process (SIGBUS).
        return read_at(self._descriptor, self.path, offset, size)


def read_at(descriptor: int, path: Path, offset: int, size: int) -> bytes:
    """Up to `size` bytes from `offset` on; fewer where the file ends."""
    try:
        return os.pread(descriptor, size, offset)
    except OSError as error:
        raise storage_error("read", path, error) from error


def read_chunks(descriptor: int, path: Path) -> Iterator[bytes]:
    """The whole file in pieces of CHUNK_BLOCKS."""
    offset = 0
    while chunk := read_at(descriptor, path, offset, CHUNK_BLOCKS * BLOCK_BYTES):
        yield chunk
        offset += len(chunk)


def digest(descriptor: int, path: Path) -> tuple[str, bytes]:
    """The SHA-256 of a whole file and the digests of its blocks, from one reading."""
    whole, blocks = hashlib.sha256(), []
    for chunk in read_chunks(descriptor, path):
        whole.update(chunk)
        blocks.append(block_digests(chunk))
    return whole.hexdigest(), b"".join(blocks)


def verify_views(views: Iterable[View]) -> None:
    """Check every block of these views that was not checked yet, on all cores; the first damage found is raised."""
    views = list(views)
    work = [(view, first, last) for view in views for first, last in view.unchecked()]
    workers = max(1, min(_threads(), sum(last - first for _, first, last in work) // CHUNK_BLOCKS))

    def share(worker: int) -> None:
        for view, first, last in work[worker::workers]:
            view.check(first, last)

    if workers == 1:
        share(0)
    else:
        with ThreadPoolExecutor(workers) as pool:  # reading and hashing let other threads run
            list(pool.map(share, range(workers)))
    for view in views:
        view.trust()


def _threads() -> int:
    """BPR_THREADS if that is a number, else one for each core."""
    wanted = os.environ.get("BPR_THREADS", "")
    return min(_MOST_THREADS, int(wanted) if wanted.isdecimal() and int(wanted) else os.cpu_count() or 1)


def _ranges(blocks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ascending block numbers as ranges [first, last) of neighbours, each of at most CHUNK_BLOCKS."""
    gaps = np.flatnonzero(np.diff(blocks) != 1) + 1
    for run in np.split(blocks, gaps):
        if run.size:
            stop = int(run[-1]) + 1
            for first in range(int(run[0]), stop, CHUNK_BLOCKS):
                yield first, min(first + CHUNK_BLOCKS, stop)
