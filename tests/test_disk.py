from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr import disk as disk_module
from bpr.disk import (
    BUFFER_BYTES,
    Disk,
    NotPlainFile,
    OutputFile,
    made_folder,
    make_folders,
    open_folder,
    open_plain,
    replacing,
    storage_error,
)
from bpr.errors import InvalidInput, StorageError


class Refusing(Disk):
    """Raises an OSError at every call with one of the verbs."""

    def __init__(self, number: int, *verbs: str) -> None:
        self.number, self.verbs = number, verbs

    def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
        if verb in self.verbs:
            raise OSError(self.number, os.strerror(self.number))
        return function(*arguments)


class Dribbling(Disk):
    """Writes a few bytes at a time."""

    def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
        if verb in ("write", "rewrite"):
            descriptor, data, *rest = arguments
            return function(descriptor, data[:3], *rest)
        return function(*arguments)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free some space or write to another disk"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "check it before you trust it again"),
        (errno.EACCES, "Permission denied; choose a folder that you may use"),
        (errno.EROFS, "Read-only file system; choose a folder on a disk that can be written"),
        (errno.EMFILE, "Too many open files; close what you do not need or raise the limit (ulimit -n)"),
        (errno.ENOENT, "create the folder above it first"),
        (errno.EBUSY, "check the disk and the path"),
    ],
)
def test_a_refusal_names_the_file_the_reason_and_what_to_do(number: int, advice: str) -> None:
    message = str(storage_error("write", Path("/data/x.npy"), OSError(number, "")))
    assert message.startswith("cannot write /data/x.npy: ")
    assert advice in message


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Permission denied; change its permissions, or ask somebody who may"),
        (errno.ENOENT, "No such file or directory; check the path"),
        (errno.EISDIR, "Is a directory; a folder is there, where a file is needed: check the path"),
        (errno.EIO, "check it before you trust it again"),
    ],
)
def test_whoever_reads_gets_a_readers_advice(number: int, advice: str) -> None:
    assert str(storage_error("read", "x.npy", OSError(number, ""))).startswith("cannot read x.npy: ")
    assert advice in str(storage_error("read", "x.npy", OSError(number, "")))


def test_a_folder_that_was_made_is_gone_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError), made_folder(tmp_path / "a" / "b" / "c"):
        assert (tmp_path / "a" / "b" / "c").is_dir()
        raise ValueError
    assert [each.name for each in tmp_path.rglob("*")] == ["a"]
    with pytest.raises(ValueError), made_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
        raise ValueError
    assert (tmp_path / "a" / "b" / "kept").exists()
    for name in ("b", "c"):
        with pytest.raises(ValueError), made_folder(tmp_path / "a" / name, whole=True):
            (tmp_path / "a" / name / "half").touch()
            raise ValueError
    assert not (tmp_path / "a" / "c").exists() and (tmp_path / "a" / "b" / "kept").exists()
    with pytest.raises(StorageError, match="something else has that name already"):
        make_folders(tmp_path / "a" / "b" / "kept")


def test_a_refusal_without_a_number_is_told_as_it_came() -> None:
    assert "cannot read x: odd; check" in str(storage_error("read", "x", OSError("odd")))


def refusals(folder: Path) -> list[tuple[str, Callable[[Disk], object]]]:
    file = folder / "file"
    return [
        ("create the folder", lambda disk: disk.make_folder(folder / "new")),
        ("create", lambda disk: disk.create_file(folder / "new")),
        ("flush the folder", lambda disk: disk.sync_folder(folder)),
        ("rename a file to", lambda disk: disk.replace(file, folder / "other")),
        ("remove", lambda disk: disk.remove_file(file)),
        ("remove", lambda disk: disk.remove_tree(file)),
        ("inspect", lambda disk: disk.remove_tree(file)),
        ("remove the folder", lambda disk: disk.remove_folder(folder / "empty")),
        ("list", lambda disk: disk.names(folder)),
        ("open", lambda disk: disk.lock(folder / "lock")),
        ("lock", lambda disk: disk.lock(folder / "lock")),
    ]


@pytest.mark.parametrize("case", range(11))
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO])
def test_every_operation_translates(tmp_path: Path, case: int, number: int) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "empty").mkdir()
    verb, operation = refusals(tmp_path)[case]
    with pytest.raises(StorageError, match=f"cannot {verb} {tmp_path}.*{os.strerror(number)}") as caught:
        operation(Refusing(number, verb))
    assert isinstance(caught.value.__cause__, OSError)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_folders_files_and_names(tmp_path: Path) -> None:
    disk = Disk()
    assert disk.make_folder(tmp_path / "b")
    assert not disk.make_folder(tmp_path / "b")
    os.close(disk.create_file(tmp_path / "a"))
    with pytest.raises(StorageError, match="File exists"):
        disk.create_file(tmp_path / "a")
    assert disk.names(tmp_path) == ["a", "b"]
    disk.replace(tmp_path / "a", tmp_path / "c")
    disk.sync_folder(tmp_path)
    assert disk.names(tmp_path) == ["b", "c"]


def test_a_tree_is_removed_and_what_its_links_point_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"kept")
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "file").write_bytes(b"")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    Disk().remove_tree(tmp_path / "tree")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]


def test_one_descriptor_has_the_lock(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "lock"
    first = disk.lock(path)
    assert first is not None
    descriptors = len(os.listdir("/dev/fd"))
    assert disk.lock(path) is None
    assert len(os.listdir("/dev/fd")) == descriptors
    inherited = os.dup(first)  # as by a forked child that is still alive
    disk.unlock(first)
    second = disk.lock(path)
    assert second is not None
    disk.unlock(second)
    os.close(inherited)


def test_no_lock_where_the_folder_has_gone(tmp_path: Path) -> None:
    assert Disk().lock(tmp_path / "gone" / "lock") is None


@pytest.mark.parametrize("replaced", [True, False])
def test_no_lock_on_a_file_that_was_removed_meanwhile(tmp_path: Path, replaced: bool) -> None:
    class Racing(Disk):
        def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
            if verb == "lock":
                path.unlink()
                if replaced:
                    path.write_bytes(b"")
            return function(*arguments)

    assert Racing().lock(tmp_path / "lock") is None


def test_a_refused_lock_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(StorageError, match="cannot lock"):
        Refusing(errno.ENOLCK, "lock").lock(tmp_path / "lock")
    assert len(os.listdir("/dev/fd")) == before


@given(
    pieces=st.lists(st.binary(max_size=40) | st.integers(BUFFER_BYTES - 2, BUFFER_BYTES + 2).map(bytes), max_size=6),
    dribble=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_an_output_file_holds_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], dribble: bool
) -> None:
    path = tmp_path_factory.mktemp("out") / "file"
    small = dribble and sum(map(len, pieces)) < 1000
    out = OutputFile(Dribbling() if small else Disk(), path)
    size = 0
    for piece in pieces:
        out.write(piece)
        size += len(piece)
        assert out.tell() == size
    out.finish()
    assert path.read_bytes() == b"".join(pieces)


def test_many_small_writes_are_gathered(tmp_path: Path) -> None:
    verbs: list[str] = []

    class Counting(Disk):
        def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
            verbs.append(verb)
            return function(*arguments)

    out = OutputFile(Counting(), tmp_path / "file")
    for _ in range(3 * BUFFER_BYTES // 1024):
        out.write(bytes(1024))
    out.finish()
    assert verbs == ["create", "write", "write", "write", "flush"]


@pytest.mark.parametrize("disk", [Disk(), Dribbling()])
def test_the_start_can_be_rewritten(tmp_path: Path, disk: Disk) -> None:
    out = OutputFile(disk, tmp_path / "file")
    out.write(b"........body")
    out.rewrite_start(b"the head")
    out.write(b" and more")
    out.finish()
    assert (tmp_path / "file").read_bytes() == b"the headbody and more"


@pytest.mark.parametrize("verb", ["write", "rewrite", "flush"])
def test_a_refused_write_names_the_file(tmp_path: Path, verb: str) -> None:
    out = OutputFile(Refusing(errno.ENOSPC, verb), tmp_path / "signs.npy")
    out.write(b"x")
    with pytest.raises(StorageError, match=rf"cannot {verb} .*signs\.npy: No space left on device"):
        out.rewrite_start(b"y")
        out.finish()
    out.close()
    out.close()


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    out = OutputFile(Disk(), tmp_path / "file")
    out.finish()
    for late in (lambda: out.write(b"x"), lambda: out.rewrite_start(b"x"), out.finish):
        with pytest.raises(InvalidInput, match="closed already: write inside its with block"):
            late()


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.close(open_plain(tmp_path / "file"))
    for name in ("link", "folder", "pipe"):
        with pytest.raises(NotPlainFile):
            open_plain(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "none")
    folder = open_folder(tmp_path)
    os.close(open_plain("file", folder))
    os.close(folder)


def test_a_socket_is_not_a_plain_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(NotPlainFile):
            open_plain(tmp_path / "socket")


def test_only_real_folders_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(NotPlainFile):
            open_folder(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "none")


@pytest.mark.parametrize("works", [True, False])
def test_macos_is_asked_for_the_full_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    asked: list[object] = []

    def control(descriptor: int, command: int) -> None:
        asked.append(command)
        if not works:
            raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(disk_module, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append("fsync"))
    out = OutputFile(Disk(), tmp_path / "file")
    out.finish()
    assert asked == ([51] if works else [51, "fsync"])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked = []

    def refuse(descriptor: int) -> None:
        asked.append(descriptor)
        raise OSError(number, "no")

    monkeypatch.setattr(disk_module, "_to_the_device", refuse)
    Disk().sync_folder(tmp_path)
    assert len(asked) == 1


def test_a_folder_that_fails_to_sync_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(disk_module, "_to_the_device", refuse)
    with pytest.raises(StorageError, match="cannot flush the folder"):
        Disk().sync_folder(tmp_path)


def test_files_take_their_places_together_or_not_at_all(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    with pytest.raises(RuntimeError, match="stop"), replacing(old, new) as files:
        files[0].write(b"half")
        raise RuntimeError("stop")
    assert (old.read_text(), [path.name for path in tmp_path.iterdir()]) == ("before", ["old"])
    with replacing(old, new) as files:
        for file in files:
            file.write(b"after")
        assert old.read_text() == "before"
    assert (old.read_text(), new.read_text(), len([*tmp_path.iterdir()])) == ("after", "after", 2)


def test_a_link_is_followed_and_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing(tmp_path / "link") as [out]:
        out.write(b"after")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "after"
    with pytest.raises(InvalidInput, match="cannot take both"), replacing(tmp_path / "link", tmp_path / "real"):
        pass
    with pytest.raises(InvalidInput, match="is not a plain file"), replacing(tmp_path):
        pass
    with pytest.raises(StorageError, match="create the folder above it first"), replacing(tmp_path / "no" / "file"):
        pass
