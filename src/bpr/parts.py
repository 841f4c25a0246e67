"""Work that is done already, kept beside a bundle that is still being built, so that a killed build goes on.

Only the builder calls it, under the bundle's lock. A part is some bytes under a number and a key; the key says what the
bytes were made from, so a part of other texts or of another model is not found. It knows nothing of either.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import closing, suppress
from pathlib import Path

from .disk import Disk, NotPlainFile, OutputFile, open_plain
from .errors import InvalidInput, StorageError

MAGIC = b"bpr part 1\n"
KEY_BYTES = 32
_NAME = re.compile(r"part-\d{8,}(\.new)?")


class Parts:
    """NAME.bpr.parts/: numbered files, each with its key and the sum of its bytes."""

    def __init__(self, bundle: Path, disk: Disk | None = None) -> None:
        """Nothing is made before the first `put`."""
        self.folder = bundle.with_name(bundle.name + ".parts")
        self._disk = disk or Disk()

    def get(self, number: int, key: bytes, size: int) -> bytes | None:
        """What was put there under this key; None if there is nothing, or not all of it (a power cut, a bad disk)."""
        try:
            descriptor = open_plain(self._path(number))
        except (OSError, NotPlainFile):
            return None
        with open(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size != len(MAGIC) + 2 * KEY_BYTES + size:
                return None
            try:
                raw = file.read()
            except OSError:
                return None
        head, data = raw[: len(MAGIC) + 2 * KEY_BYTES], raw[len(MAGIC) + 2 * KEY_BYTES :]
        return data if head == MAGIC + key + hashlib.sha256(data).digest() else None

    def put(self, number: int, key: bytes, data: bytes) -> None:
        """Keep the bytes; a kill at any moment leaves the part whole or not there."""
        if self._disk.make_folder(self.folder):
            self._disk.sync_folder(self.folder.parent)
        elif not self.folder.is_dir():
            raise InvalidInput(
                f"{self.folder} is in the way: unfinished work is kept in a folder of that name; move it"
            )
        path = self._path(number)
        partial = path.with_name(path.name + ".new")
        if partial.exists() or partial.is_symlink():  # of a run that was killed
            self._disk.remove_file(partial)
        try:
            with closing(OutputFile(self._disk, partial)) as out:
                out.write(MAGIC + key + hashlib.sha256(data).digest())
                out.write(data)
                out.finish()
            self._disk.replace(partial, path)
        except BaseException:
            self._forget(partial)
            raise

    def remove(self) -> None:
        """Remove the parts, and the folder if nothing else is in it. A disk that refuses costs space, not the build."""
        with suppress(StorageError):
            if not self.folder.is_dir() or self.folder.is_symlink():
                return
            for name in self._disk.names(self.folder):
                if _NAME.fullmatch(name):
                    self._disk.remove_file(self.folder / name)
            self._disk.remove_folder(self.folder)

    def _forget(self, partial: Path) -> None:
        """Half a part is of no use to the next run, and on a full disk in its way."""
        with suppress(StorageError):
            if partial.exists():
                self._disk.remove_file(partial)
            if not self._disk.names(self.folder):
                self._disk.remove_folder(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:08d}"
