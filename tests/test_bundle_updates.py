"""A new generation that keeps files of the one before, and readers that go over to it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from bpr import bundle
from bpr.bundle import manifest as manifest_module
from bpr.disk import Disk
from bpr.errors import BundleLocked, CorruptBundle, InvalidInput, MissingBundle, StorageError, UnsupportedFormat

SIGNS = np.random.default_rng(5).integers(0, 256, (1500, 96), dtype=np.uint8)  # nine blocks
TEXT = b"".join(b"line %05d\n" % row for row in range(4000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.bpr"
    with bundle.create(path) as new:
        new.save("signs.npy", SIGNS)
        with new.file("text") as out:
            out.write(TEXT)
        new.save("mean.npy", np.arange(4, dtype=np.float32))
        new.publish({"rows": 1500, "resident": ["signs.npy"]})
    return path


class WithoutLinks(Disk):
    """A file system that has no hard links, in the words of `number`."""

    def __init__(self, number: int) -> None:
        self.number = number

    def system_call(self, verb, path, function, *arguments):
        if verb.startswith("link"):
            raise OSError(self.number, os.strerror(self.number))
        return super().system_call(verb, path, function, *arguments)


NO_LINKS = [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP]


@pytest.mark.parametrize("disk", [None, *map(WithoutLinks, NO_LINKS)])
def test_files_are_kept(path: Path, disk: Disk | None) -> None:
    inode = (path / "gen-000001" / "signs.npy").stat().st_ino
    with bundle.update(path, disk=disk) as (old, new):
        before = old.manifest
        new.keep("signs.npy")
        new.save("a.npy", np.arange(3))
        new.keep("text")
        new.publish({"rows": 7, "resident": ["signs.npy"]})
    with bundle.open(path, verify="all") as opened:
        assert np.array_equal(opened.array("signs.npy"), SIGNS)
        assert bytes(opened.array("text")) == TEXT
        assert set(opened.manifest.files) == {"a.npy", "signs.npy", "text"}
        assert opened.manifest.files["text"].sha256 == before.files["text"].sha256
        assert opened.manifest.bundle_id == before.bundle_id
        assert [each.problem for each in opened.verify()] == [None] * 3
    assert {each.problem for each in bundle.verify(path)} == {None}
    assert ((path / "gen-000002" / "signs.npy").stat().st_ino == inode) == (disk is None)
    assert sorted(os.listdir(path)) == ["gen-000002", "lock", "manifest.json"]


def test_a_link_that_the_disk_refuses_is_a_storage_error(path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"cannot link a file to .*signs\.npy: No space left"),
        bundle.update(path, disk=WithoutLinks(errno.ENOSPC)) as (_, new),
    ):
        new.keep("signs.npy")
    assert sorted(os.listdir(path)) == ["gen-000001", "lock", "manifest.json"]


def test_what_cannot_be_kept(path: Path, tmp_path: Path) -> None:
    with bundle.update(path) as (_, new):
        with pytest.raises(InvalidInput, match="has no file 'other'"):
            new.keep("other")
        new.keep("text")
        with pytest.raises(InvalidInput, match="text is written already"):
            new.keep("text")
        with pytest.raises(InvalidInput, match="text is written already"), new.file("text"):
            pass
    with (
        bundle.create(tmp_path / "new.bpr") as new,
        pytest.raises(InvalidInput, match="there is no generation to keep"),
    ):
        new.keep("text")


def test_a_damaged_file_is_not_copied(path: Path) -> None:
    with open(path / "gen-000001" / "text", "r+b") as out:
        out.seek(-5, os.SEEK_END)
        out.write(b"L")
    with (
        pytest.raises(CorruptBundle, match="text has changed since it was published"),
        bundle.update(path, disk=WithoutLinks(errno.EXDEV)) as (_, new),
    ):
        new.keep("text")


@pytest.mark.parametrize("swap", ["link", "longer"])
def test_a_file_that_was_swapped_meanwhile_is_not_kept(path: Path, swap: str) -> None:
    with pytest.raises(CorruptBundle), bundle.update(path) as (_, new):
        file = path / "gen-000001" / "text"
        content = file.read_bytes()
        file.unlink()
        if swap == "link":
            file.symlink_to("signs.npy")
        else:
            file.write_bytes(content + b"more")
        new.keep("text")


def test_an_update_needs_a_bundle_and_the_lock(path: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingBundle), bundle.update(tmp_path / "other.bpr"):
        pass
    assert os.listdir(tmp_path) == ["x.bpr"]
    with bundle.update(path), pytest.raises(BundleLocked), bundle.update(path):
        pass


def test_lazy_checks_each_block_when_it_is_used(path: Path) -> None:
    with open(path / "gen-000001" / "signs.npy", "r+b") as out:
        out.seek(-1, os.SEEK_END)
        out.write(b"\x00" if SIGNS[-1, -1] else b"\x01")
    with bundle.open(path, verify="lazy") as opened:
        opened.view("signs.npy").require_rows(np.array([0]))
        with pytest.raises(CorruptBundle):
            opened.view("signs.npy").require_rows(np.array([1499]))
        with pytest.raises(CorruptBundle):
            opened.array("signs.npy")


def test_spans_of_bytes_are_checked(path: Path) -> None:
    with open(path / "gen-000001" / "signs.npy", "r+b") as out:
        out.seek(50_000)  # in the fourth block
        out.write(bytes(255 - each for each in SIGNS.tobytes()[50_000 - 128 : 50_001 - 128]))
    with bundle.open(path, verify="lazy") as opened:
        view = opened.view("signs.npy")
        view.require_spans(np.array([0, 100_000]), np.array([49_000, 144_128]))
        view.require_spans(np.empty(0, np.int64), np.empty(0, np.int64))
        with pytest.raises(CorruptBundle, match="block at byte 49152"):
            view.require_spans(np.array([0]), np.array([100_000]))
        with pytest.raises(InvalidInput, match="more was asked for"):
            view.require_spans(np.array([0]), np.array([1 << 20]))


def test_the_newest_generation_shares_what_has_not_changed(path: Path) -> None:
    with bundle.open(path, verify_limit=0) as opened:
        assert opened.newest() is None
        with bundle.update(path) as (old, new):
            new.keep("signs.npy")
            new.save("aa.npy", np.arange(5000))
            new.save("mean.npy", np.ones(4, np.float32))
            new.publish(old.info)
        newest = opened.newest()
        assert newest is not None
        assert newest.generation == "gen-000002"
        assert newest.view("signs.npy") is opened.view("signs.npy")
        assert newest.view("mean.npy") is not opened.view("mean.npy")
        opened.close()
        assert np.array_equal(newest.array("signs.npy"), SIGNS)
        assert [each.problem for each in newest.verify()] == [None] * 3
        assert newest.newest() is None
    with pytest.raises(InvalidInput, match="is closed"):
        opened.newest()


def test_features_are_named_where_they_are_used(path: Path) -> None:
    with bundle.update(path) as (old, new):
        new.keep("signs.npy")
        with pytest.raises(InvalidInput, match=r"cannot have the features \['wings'\]"):
            new.publish(old.info, ["wings"])
        new.publish(old.info, [bundle.SEGMENTS])
    document = json.loads((path / "manifest.json").read_text())
    assert document["features"] == ["segments"]
    with bundle.open(path) as opened:
        assert opened.manifest.features == {"segments"}
    document.pop("checksum")
    document["features"] = ["segments", "wings"]
    document["checksum"] = manifest_module._checksum(document)
    (path / "manifest.json").write_bytes(manifest_module._canonical(document))
    with pytest.raises(UnsupportedFormat, match=r"needs \['wings'\]"):
        bundle.open(path)
