"""Disks that are really full, and limits that the system really enforces."""

from __future__ import annotations

import errno
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import is_tidy, read, write

from bpr import bundle
from bpr.disk import Disk
from bpr.errors import StorageError


class SmallDisk(Disk):
    """Refuses what goes beyond its size, as a full disk does: for machines where none can be mounted."""

    def __init__(self, size: int) -> None:
        self.left = size

    def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
        if verb == "write":
            self.left -= len(arguments[1])
            if self.left < 0:
                raise OSError(errno.ENOSPC, "full")
        return function(*arguments)


@pytest.fixture(params=["mounted", "simulated"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Disk]]:
    """A folder with 256 KiB of space: once a real one (where we may mount it), once behind a simulated disk."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if request.param == "simulated" or subprocess.run(mount, capture_output=True).returncode:
        yield folder, SmallDisk(160_000)
        return
    yield folder, Disk()
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path, disk: Disk) -> None:
    with bundle.create(path, disk=disk) as new:
        with new.file("passages.jsonl") as out:
            for _ in range(100):
                out.write(bytes(1 << 15))
        new.publish({})


def test_a_full_disk_is_reported_and_the_old_bundle_stays(small_disk: tuple[Path, Disk]) -> None:
    folder, disk = small_disk
    path = folder / "x.bpr"
    write(path, 1, disk)
    message = r"cannot write .*gen-000002/passages\.jsonl: No space left on device; free some space"
    with pytest.raises(StorageError, match=message):
        fill(path, disk)
    assert read(path, verify="all") == 1
    assert is_tidy(path)


def test_a_first_bundle_that_does_not_fit_leaves_nothing(small_disk: tuple[Path, Disk]) -> None:
    folder, disk = small_disk
    with pytest.raises(StorageError, match="No space left on device"):
        fill(folder / "x.bpr", disk)
    assert list(folder.iterdir()) == []


def test_the_limit_on_file_sizes_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.bpr"
    write(path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    try:
        with pytest.raises(StorageError, match=r"passages\.jsonl: File too large; .*ulimit -f"):
            fill(path, Disk())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read(path, verify="all") == 1
    assert is_tidy(path)
