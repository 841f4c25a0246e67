from __future__ import annotations

import ast
import errno
import gc
import hashlib
import io
import json
import math
import mmap
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr import bundle
from bpr.bundle import manifest as manifest_module
from bpr.bundle import reader, view, writer
from bpr.disk import Disk
from bpr.errors import BundleLocked, CorruptBundle, InvalidInput, MissingBundle, StorageError, UnsupportedFormat

SIGNS = np.random.default_rng(5).integers(0, 256, (1500, 96), dtype=np.uint8)  # 144,128 bytes on disk: 9 blocks
TEXT = b"".join(b"line %05d\n" % row for row in range(4000))  # 44,000 bytes: 3 blocks
LAZY = {"verify_limit": 0}


def write(path: Path, info: dict[str, Any] | None = None, signs: np.ndarray[Any, Any] = SIGNS) -> Path:
    with bundle.create(path) as new:
        new.save("signs.npy", signs)
        new.save("mean.npy", np.arange(4, dtype=np.float32))
        with new.file("text.jsonl") as out:
            out.write(TEXT)
        new.publish({"rows": len(signs)} if info is None else info)
    return path / "gen-000001"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.bpr"


def damage(file: Path, at: int, value: bytes = b"\xa5") -> None:
    with open(file, "r+b") as out:
        out.seek(at)
        before = out.read(len(value))
        out.seek(at)
        out.write(value if before != value else bytes(byte ^ 1 for byte in value))


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and seal it anew, as one who knows the format can."""
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    document.pop("checksum", None)
    document["checksum"] = manifest_module._checksum(document)
    (path / "manifest.json").write_bytes(manifest_module._canonical(document))


# Writing and reading back ---------------------------------------------------------------------------------------------


def test_what_is_written_is_read(path: Path) -> None:
    write(path, {"rows": 1500, "levels": [0.4528, 1.5104], "model": None, "title": "Ω"})
    with bundle.open(path) as opened:
        assert opened.path == path
        assert opened.generation == "gen-000001"
        assert opened.info == {"rows": 1500, "levels": [0.4528, 1.5104], "model": None, "title": "Ω"}
        signs = opened.array("signs.npy")
        assert signs.dtype == np.uint8
        assert np.array_equal(signs, SIGNS)
        assert np.array_equal(opened.array("mean.npy"), np.arange(4, dtype=np.float32))
        assert opened.array("text.jsonl").tobytes() == TEXT
        assert opened.manifest.files["signs.npy"].shape == (1500, 96)
        assert opened.manifest.files["text.jsonl"].dtype is None
    assert sorted(os.listdir(path)) == ["gen-000001", "lock", "manifest.json"]


def test_arrays_are_plain_npy_files_and_begin_on_a_cache_line(path: Path) -> None:
    home = write(path)
    assert np.array_equal(np.load(home / "signs.npy", allow_pickle=False), SIGNS)
    assert np.load(home / "checksums.npy", allow_pickle=False).shape == (13, 16)
    with bundle.open(path) as opened:
        assert opened.array("signs.npy").ctypes.data % 64 == 0


def test_the_manifest_is_what_the_format_says(path: Path) -> None:
    home = write(path)
    document = json.loads((path / "manifest.json").read_text())
    assert (document["format"], document["version"], document["features"]) == ("bpr bundle", 1, [])
    entry = document["files"]["text.jsonl"]
    assert entry["sha256"] == hashlib.sha256(TEXT).hexdigest()
    assert (entry["bytes"], entry["first_block"], entry["blocks"]) == (44_000, 10, 3)
    digests = np.load(home / "checksums.npy")
    assert digests[10].tobytes() == hashlib.sha256(TEXT[:16384]).digest()[:16]
    assert digests[12].tobytes() == hashlib.sha256(TEXT[32768:]).digest()[:16]


def test_rows_arrive_in_blocks_of_any_size(path: Path) -> None:
    with bundle.create(path) as new:
        with new.array("signs.npy", np.dtype(np.uint8), (96,)) as out:
            for start, stop in ((0, 0), (0, 1), (1, 700), (700, 1500)):
                out.append(SIGNS[start:stop])
            assert out.rows == 1500
        with new.array("every-second.npy", np.dtype(np.uint8), (np.int64(48),)) as out:
            out.append(SIGNS[:, ::2])
        with new.array("none.npy", np.dtype(np.int64)) as out:
            pass
        assert np.array_equal(np.load(new.generation_path / "signs.npy", mmap_mode="r"), SIGNS)
        new.publish({})
    with bundle.open(path, verify="all") as opened:
        assert np.array_equal(opened.array("signs.npy"), SIGNS)
        assert np.array_equal(opened.array("every-second.npy"), SIGNS[:, ::2])
        assert opened.array("none.npy").shape == (0,)


@given(
    dtype=st.sampled_from([np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]),
    rows=st.integers(0, 300),
    row_shape=st.lists(st.integers(1, 40), max_size=3).map(tuple),
    text=st.binary(max_size=40_000),
    limit=st.sampled_from([0, 1 << 40]),
)
@settings(max_examples=40, deadline=None)
def test_any_array_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: Any,
    rows: int,
    row_shape: tuple[int, ...],
    text: bytes,
    limit: int,
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.bpr"
    size = min(rows, 100_000 // (math.prod(row_shape) * np.dtype(dtype).itemsize))
    array = np.arange(size * math.prod(row_shape)).reshape(size, *row_shape).astype(dtype)
    with bundle.create(path) as new:
        new.save("array.npy", array)
        with new.file("text") as out:
            out.write(text)
        new.publish({})
    with bundle.open(path, verify_limit=limit) as opened:
        opened.view("array.npy").require_rows(np.arange(size))
        found = opened.view("array.npy").array
        assert found.dtype == dtype
        assert np.array_equal(found, array)
        opened.view("text").require_bytes(0, len(text))
        assert opened.view("text").array.tobytes() == text


def test_a_bundle_without_files_is_one_too(path: Path) -> None:
    with bundle.create(path) as new:
        new.publish({"rows": 0})
    with bundle.open(path, verify="all") as opened:
        assert opened.info == {"rows": 0}
        with pytest.raises(InvalidInput, match=r"has no file 'signs\.npy'; it has none"):
            opened.view("signs.npy")


def test_generations_follow_each_other(path: Path) -> None:
    write(path)
    with bundle.open(path) as first:
        write(path, signs=SIGNS[::-1].copy())
        with bundle.open(path) as second:
            assert (first.generation, second.generation) == ("gen-000001", "gen-000002")
            assert first.manifest.bundle_id == second.manifest.bundle_id
            assert first.manifest.generation_id != second.manifest.generation_id
            assert np.array_equal(first.array("signs.npy"), SIGNS)
            assert np.array_equal(second.array("signs.npy"), SIGNS[::-1])
    assert sorted(os.listdir(path)) == ["gen-000002", "lock", "manifest.json"]


def test_scratch_files_are_never_published(path: Path) -> None:
    with bundle.create(path) as new:
        scratch = new.scratch("hashes.tmp")
        scratch.write_bytes(b"for a while")
        new.scratch("runs").mkdir()
        (new.scratch("runs") / "0").write_bytes(b"")
        assert scratch.parent == new.generation_path
        new.publish({})
    assert sorted(os.listdir(path / "gen-000001")) == ["checksums.npy"]


def test_an_unfinished_file_is_not_published(path: Path) -> None:
    with bundle.create(path) as new:
        with pytest.raises(ZeroDivisionError), new.file("text") as out:
            out.write(b"half")
            raise ZeroDivisionError
        new.publish({})
    with bundle.open(path) as opened:
        assert dict(opened.manifest.files) == {}


# Leaving without publishing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_error", [True, False])
def test_a_new_bundle_not_published_leaves_nothing(path: Path, by_error: bool) -> None:
    def build() -> None:
        with bundle.create(path) as new:
            new.save("mean.npy", np.zeros(3))
            if by_error:
                raise KeyboardInterrupt

    if by_error:
        with pytest.raises(KeyboardInterrupt):
            build()
    else:
        build()
    assert list(path.parent.iterdir()) == []


def test_a_generation_not_published_leaves_the_old_one(path: Path) -> None:
    write(path)
    with pytest.raises(ZeroDivisionError), bundle.create(path) as new:
        new.save("mean.npy", np.zeros(3))
        raise ZeroDivisionError
    assert sorted(os.listdir(path)) == ["gen-000001", "lock", "manifest.json"]
    with bundle.open(path) as opened:
        assert np.array_equal(opened.array("signs.npy"), SIGNS)


def test_an_error_after_publishing_changes_nothing(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), bundle.create(path) as new:
        new.publish({"rows": 0})
        raise ZeroDivisionError
    with bundle.open(path) as opened:
        assert opened.info == {"rows": 0}


def test_a_build_that_cannot_begin_leaves_nothing(path: Path) -> None:
    class ReadOnly(Disk):
        def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
            if verb == "create":
                raise OSError(errno.EROFS, "no")
            return function(*arguments)

    with pytest.raises(StorageError, match="Read-only file system"), bundle.create(path, disk=ReadOnly()):
        pytest.fail("began")
    assert not path.exists()


def test_a_folder_that_was_there_stays(path: Path) -> None:
    path.mkdir()
    with bundle.create(path):
        pass
    assert os.listdir(path) == ["lock"]


# What the writer refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "Upper.npy", "ä", "a b", "checksums.npy", "x" * 101, "a\n"]
)
def test_names_that_a_file_cannot_have(path: Path, name: str) -> None:
    with bundle.create(path) as new:
        for use in (lambda: new.scratch(name), lambda: new.save(name, SIGNS), lambda: new.file(name).__enter__()):
            with pytest.raises(InvalidInput, match="cannot be called"):
                use()


@pytest.mark.parametrize("name", ["signs.npy", "a-b_c.0", "0", "_", "x" * 100])
def test_names_that_a_file_can_have(path: Path, name: str) -> None:
    with bundle.create(path) as new:
        new.save(name, SIGNS)
        new.publish({})
    with bundle.open(path) as opened:
        np.testing.assert_array_equal(opened.array(name), SIGNS)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (SIGNS.astype(np.int8), "int8[1500, 96]"),
        (SIGNS[:, :5], "uint8[1500, 5]"),
        (SIGNS[0], "uint8[96]"),
        (SIGNS[None], "uint8[1, 1500, 96]"),
        ([[1, 2]], "list"),
    ],
)
def test_blocks_that_do_not_fit(path: Path, block: Any, found: str) -> None:
    with bundle.create(path) as new:
        with new.array("signs.npy", np.dtype(np.uint8), (96,)) as out:
            with pytest.raises(InvalidInput) as caught:
                out.append(block)
            out.append(SIGNS)
        assert str(caught.value) == f"signs.npy takes blocks uint8[m, 96], not {found}"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(3.0), "at least one axis"),
        (np.zeros((2, 0)), "every axis needs at least 1"),
        (np.array(["text"]), "plain arrays of numbers, not dtype '<U4'"),
        (np.array([None]), "not dtype '|O'"),
        (np.zeros(2, ">f4"), "not dtype '>f4'"),
        (np.zeros(2, [("a", "u1")]), "not dtype '|V1'"),
        (np.zeros((1,) * 32, np.uint8), "too long for the head"),
    ],
)
def test_arrays_that_cannot_be_stored(path: Path, array: np.ndarray[Any, Any], message: str) -> None:
    with bundle.create(path) as new:
        with pytest.raises(InvalidInput) as caught:
            new.save("array.npy", array)
        assert message in str(caught.value)
        assert os.listdir(new.generation_path) == []


def test_heads_have_one_length_and_numpy_reads_them() -> None:
    accepted = set()
    for shape in [(0,), (5, 96), (1,) * 20, (1,) * 23, *((10**18, 10**17, 10**18, 10**k) for k in range(19))]:
        needed = len(repr({"descr": "<f4", "fortran_order": False, "shape": shape}))
        try:
            head = manifest_module.array_head("<f4", shape)
        except InvalidInput as error:
            assert "too long for the head" in str(error)
            assert needed > 117
            continue
        accepted.add(needed)
        assert len(head) == 128
        source = io.BytesIO(head)
        np.lib.format.read_magic(source)
        assert np.lib.format.read_array_header_1_0(source) == (shape, False, np.dtype("<f4"))
    assert max(accepted) == 117


def test_a_failing_disk_leaks_no_descriptor(path: Path) -> None:
    class Failing(Disk):
        def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
            if verb == "write" and path.name == failing:
                raise OSError(errno.ENOSPC, "no")
            return function(*arguments)

    before = len(os.listdir("/dev/fd"))
    for failing in ("mean.npy", "checksums.npy", "manifest.json.new"):
        with pytest.raises(StorageError, match=failing), bundle.create(path, disk=Failing()) as new:
            new.save("mean.npy", np.zeros(3))
            new.publish({})
        assert len(os.listdir("/dev/fd")) == before
        assert not path.exists()


def test_a_file_is_written_once(path: Path) -> None:
    with bundle.create(path) as new:
        new.save("mean.npy", np.zeros(2))
        with pytest.raises(InvalidInput, match="is written already"):
            new.save("mean.npy", np.zeros(2))


def test_nothing_follows_publishing(path: Path) -> None:
    with bundle.create(path) as new:
        new.publish({})
        for late in (lambda: new.publish({}), lambda: new.save("mean.npy", np.zeros(2))):
            with pytest.raises(InvalidInput, match="is published already"):
                late()


def circle() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["self"] = info
    return info


def tower() -> dict[str, Any]:
    info: dict[str, Any] = {}
    for _ in range(100_000):
        info = {"": info}
    return info


@pytest.mark.parametrize(
    "info", [{"a": np.float32(1)}, {"a": float("nan")}, {"a": {1, 2}}, {"a": 1, 2: 3}, circle(), tower()]
)
def test_info_must_be_json(path: Path, info: dict[str, Any]) -> None:
    with bundle.create(path) as new:
        with pytest.raises(InvalidInput, match="info must be plain JSON"):
            new.publish(info)
        new.publish({"a": 1})  # and it is not too late for a better one


@pytest.mark.parametrize("resident", ["signs.npy", ["none.npy"], [3], None])
def test_resident_files_must_be_files_of_the_bundle(path: Path, resident: Any) -> None:
    with bundle.create(path) as new:
        new.save("signs.npy", SIGNS)
        with pytest.raises(InvalidInput, match=r"info\['resident'\] must list files of this bundle"):
            new.publish({"resident": resident})


def test_info_cannot_be_larger_than_a_manifest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MANIFEST_LIMIT", 2000)
    with pytest.raises(InvalidInput, match="of at most 2000: make info smaller"), bundle.create(path) as new:
        new.publish({"a": "b" * 2000})
    assert not path.exists()


def test_a_file_taken_away_before_publishing_is_noticed(path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*mean\.npy: No such file"), bundle.create(path) as new:
        new.save("mean.npy", np.zeros(2))
        (new.generation_path / "mean.npy").unlink()
        new.publish({})


# Where a bundle may be created ----------------------------------------------------------------------------------------


def test_a_file_in_the_way_is_not_touched(path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(InvalidInput, match="is a file, not a bundle"), bundle.create(path):
        pytest.fail("created")
    assert path.read_bytes() == b"precious"


def test_a_link_to_nothing_is_not_followed(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")
    with pytest.raises(InvalidInput, match="is a link to nothing"), bundle.create(path):
        pytest.fail("created")
    assert os.listdir(path.parent) == ["x.bpr"]


@pytest.mark.parametrize("name", ["thesis.tex", "manifest.json"])
def test_a_foreign_folder_is_not_touched(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).write_bytes(b"precious")
    with pytest.raises(InvalidInput, match="choose another path"), bundle.create(path):
        pytest.fail("created")
    assert os.listdir(path) == [name]
    assert (path / name).read_bytes() == b"precious"


def test_a_folder_that_cannot_be_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "listdir", refuse)
    for use in (lambda: bundle.create(path).__enter__(), lambda: bundle.open(path)):
        with pytest.raises(StorageError, match=r"cannot list .*Permission denied"):
            use()


def test_a_missing_parent_is_named(path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot create the folder .*create the folder above it first"):
        write(path / "deeper" / "y.bpr")


def test_a_bundle_from_the_future_is_not_overwritten(path: Path) -> None:
    write(path)
    forge(path, lambda document: document.update(version=2))
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(UnsupportedFormat, match="upgrade bpr"), bundle.create(path):
        pytest.fail("created")
    assert (path / "manifest.json").read_bytes() == before
    assert (path / "gen-000001" / "signs.npy").exists()


@pytest.mark.parametrize("deleted", [True, False])
def test_a_corrupt_bundle_can_be_rebuilt_and_is_kept_until_then(path: Path, deleted: bool) -> None:
    write(path)
    damage(path / "manifest.json", 40)
    if deleted:
        (path / "manifest.json").unlink()
    with bundle.create(path):
        pass
    assert (path / "gen-000001" / "signs.npy").exists()
    with pytest.raises(CorruptBundle):
        bundle.open(path)
    write(path)
    assert sorted(os.listdir(path)) == ["gen-000002", "lock", "manifest.json"]
    bundle.open(path, verify="all").close()


@pytest.mark.parametrize("published", [True, False])
def test_leftovers_of_crashed_writers_are_removed(path: Path, published: bool) -> None:
    if published:
        write(path)
    else:
        path.mkdir()
    (path / "gen-000007").mkdir()
    (path / "gen-000007" / "signs.npy").write_bytes(b"half")
    (path / "manifest.json.new").write_bytes(b"{")
    (path / "README").write_text("a note of the owner")
    with bundle.create(path) as new:
        kept = {"gen-000001", "manifest.json"} if published else set()
        assert set(os.listdir(path)) == {"README", "gen-000008", "lock", "manifest.json.new"} | kept
        assert (path / "manifest.json.new").read_bytes() == b""
        new.publish({})
    assert sorted(os.listdir(path)) == ["README", "gen-000008", "lock", "manifest.json"]


def test_two_writers_in_one_process(path: Path) -> None:
    write(path)
    refused = pytest.raises(BundleLocked, match="being written by another process: wait")
    with bundle.create(path), refused, bundle.create(path):
        pytest.fail("two writers")
    write(path)


def test_relative_paths(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    write(Path("x.bpr"))
    with bundle.open("x.bpr") as opened:
        assert opened.verify() != []


# What is not there ----------------------------------------------------------------------------------------------------


def test_missing_is_not_corrupt(path: Path) -> None:
    with pytest.raises(MissingBundle, match=r"there is no bundle at .*: build one, or check the path"):
        bundle.open(path)
    path.mkdir()
    with pytest.raises(MissingBundle, match="is a folder, but holds no bundle"):
        bundle.open(path)
    (path / "notes.txt").write_text("")
    with pytest.raises(MissingBundle, match="is a folder, but holds no bundle"):
        bundle.open(path)
    with pytest.raises(MissingBundle, match="is a file, not a bundle"):
        bundle.open(path / "notes.txt")


def test_an_unfinished_first_build_is_missing(path: Path) -> None:
    with bundle.create(path) as new:
        new.save("mean.npy", np.zeros(2))
        with pytest.raises(MissingBundle, match="its first build did not finish"):
            bundle.open(path)


def test_a_lost_manifest_is_corrupt(path: Path) -> None:
    write(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CorruptBundle, match=r"x\.bpr has lost its manifest\.json; restore the bundle"):
        bundle.open(path)


def test_a_manifest_published_at_this_very_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write(path)
    (path / "manifest.json").rename(path / "aside")
    listdir = os.listdir

    def publish_meanwhile(folder: Any) -> list[str]:
        if (path / "aside").exists():
            (path / "aside").rename(path / "manifest.json")
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", publish_meanwhile)
    with bundle.open(path) as opened:
        assert opened.generation == home.name


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not the JSON that was published"),
        (b"\xff\xfe{\x00}\x00", "is not the JSON that was published"),
        (b"[" * 100_000, "is not the JSON that was published"),
        (b'{"format": "bpr bundle", "version": 1, "info": 1e999}', "has changed since it was published"),
        (b'{"format": "bpr bundle", "version": 1, "info": NaN}', "has changed since it was published"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not the JSON that was published"),
        (b"[1]", "is not a JSON object"),
        (b'{"format": "crx"}', "does not call itself a 'bpr bundle'"),
        (b'{"format": "bpr bundle"}', "has no format version that ever was"),
        (b'{"format": "bpr bundle", "version": true}', "has no format version that ever was"),
        (b'{"format": "bpr bundle", "version": 0}', "has no format version that ever was"),
        (b'{"format": "bpr bundle", "version": 1}', "has changed since it was published"),
    ],
)
def test_manifests_that_are_none(path: Path, raw: bytes, message: str) -> None:
    write(path)
    (path / "manifest.json").write_bytes(raw)
    with pytest.raises(
        CorruptBundle, match=rf"manifest\.json {message}.*restore the bundle from a copy or build it again"
    ):
        bundle.open(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw + b"\n",
        lambda raw: raw + b"\0",
        lambda raw: raw.replace(b'"rows": 1500', b'"rows": 1501'),
        lambda raw: raw.replace(b'"rows": 1500', b'"rows": 1500, "rows": 1500'),
        lambda raw: raw.replace(b'"rows": 1500', b'"rows":  1500'),
        lambda raw: raw.replace(b'"rows": 1500', b'"rows": 1500.0'),
        lambda raw: raw.replace(b'"rows"', b'"\\u0072ows"'),
    ],
)
def test_every_edit_of_a_manifest_shows(path: Path, edit: Callable[[bytes], bytes]) -> None:
    write(path)
    raw = (path / "manifest.json").read_bytes()
    assert edit(raw) != raw
    (path / "manifest.json").write_bytes(edit(raw))
    with pytest.raises(CorruptBundle, match=r"has changed since it was published|is not the JSON"):
        bundle.open(path)


def entry(name: str = "signs.npy", **values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"][name].update(values)


def rename(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"].update({name: document["files"].pop("signs.npy")})


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no generation": lambda document: document.pop("generation"),
    "generation elsewhere": lambda document: document.update(generation="../gen-000001"),
    "generation of another type": lambda document: document.update(generation=1),
    "no features": lambda document: document.pop("features"),
    "another kind of id": lambda document: document.update(bundle_id="x"),
    "features of another type": lambda document: document.update(features=3),
    "files as a list": lambda document: document.update(files=[1]),
    "files as a number": lambda document: document.update(files=5),
    "entry as a list": lambda document: document["files"].update({"signs.npy": []}),
    "info as a list": lambda document: document.update(info=[]),
    "resident unknown": lambda document: document.update(info={"resident": ["other.npy"]}),
    "resident a number": lambda document: document.update(info={"resident": 7}),
    "path in a name": rename("../../etc/passwd"),
    "absolute name": rename("/etc/passwd"),
    "dots as a name": rename(".."),
    "checksums as a name": rename("checksums.npy"),
    "no sha256": lambda document: document["files"]["signs.npy"].pop("sha256"),
    "bad sha256": entry(sha256="x" * 64),
    "bad checksums_sha256": lambda document: document.update(checksums_sha256="0"),
    "sha256 a number": entry(sha256=0),
    "negative size": entry(bytes=-1),
    "size a float": entry(bytes=144128.0),
    "size a bool": entry(bytes=True),
    "size as text": entry(bytes="144128"),
    "immense size": entry(bytes=1 << 62, blocks=1 << 48),
    "another size": entry(bytes=144129),
    "more blocks": entry(blocks=10),
    "other first block": entry(first_block=2),
    "an unknown field": entry(more=1),
    "object dtype": entry(dtype="|O"),
    "dtype a number": entry(dtype=1),
    "no dtype": entry(dtype=None),
    "negative shape": entry(shape=[-1500, -96]),
    "empty shape": entry(shape=[]),
    "shape a number": entry(shape=144000),
    "shape of other size": entry(shape=[1501, 96]),
    "shape with a float": entry(shape=[1500.0, 96]),
    "immense shape": entry(shape=[1 << 61, 1 << 61]),
    "long shape": entry(shape=[1500, 96] + [1] * 60),
    "dtype without shape": entry("text.jsonl", dtype="|u1"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest_is_refused_before_anything_is_read(path: Path, forgery: str) -> None:
    write(path)
    forge(path, FORGERIES[forgery])
    with pytest.raises(CorruptBundle, match=r"manifest\.json is not well formed"):
        bundle.open(path)


# Each by its own check: a forgery that only stumbles over a later one would pass as soon as it is made with more care.
REASONS = {
    "path in a name": "file name '../../etc/passwd'",
    "absolute name": "file name '/etc/passwd'",
    "dots as a name": "file name '..'",
    "checksums as a name": "file name 'checksums.npy'",
    "bad sha256": "sha256 of signs.npy",
    "negative size": "size of signs.npy",
    "size a float": "size of signs.npy",
    "another size": "size of signs.npy",
    "more blocks": "blocks of signs.npy",
    "other first block": "blocks of signs.npy",
    "negative shape": "shape of signs.npy",
    "empty shape": "shape of signs.npy",
    "dtype without shape": "dtype of text.jsonl",
}


@pytest.mark.parametrize("forgery", REASONS)
def test_what_is_said_of_a_forged_manifest(path: Path, forgery: str) -> None:
    write(path)
    forge(path, FORGERIES[forgery])
    with pytest.raises(CorruptBundle, match=re.escape(f"not well formed (ValueError({REASONS[forgery]!r}))")):
        bundle.open(path)


def test_a_forged_manifest_that_agrees_with_itself_is_held_against_the_files(path: Path) -> None:
    write(path)
    forge(path, entry(shape=[96, 1500]))
    with pytest.raises(CorruptBundle, match=r"signs\.npy does not begin with the head of the array"):
        bundle.open(path, verify="size")
    forge(path, entry(shape=[1 << 40, 96], bytes=128 + (96 << 40), blocks=-(-(128 + (96 << 40)) // 16384)))
    with pytest.raises(CorruptBundle):
        bundle.open(path)


def test_the_future_is_not_corrupt(path: Path) -> None:
    write(path)
    forge(path, lambda document: document.update(version=2))
    with pytest.raises(UnsupportedFormat, match="has format version 2, this bpr knows up to 1: upgrade bpr to open it"):
        bundle.open(path)
    forge(path, lambda document: document.update(version=1, features=["zstd"]))
    with pytest.raises(UnsupportedFormat, match=r"needs \['zstd'\], unknown to this bpr: upgrade bpr to open it"):
        bundle.open(path)


def test_a_manifest_too_large_to_be_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path)
    monkeypatch.setattr(reader, "MANIFEST_LIMIT", 100)
    with pytest.raises(CorruptBundle, match="has more than 100 bytes"):
        bundle.open(path)


def replace_by_link(file: Path) -> None:
    file.rename(file.parent.parent / "moved")
    file.symlink_to(file.parent.parent / "moved")


@pytest.mark.parametrize("name", ["signs.npy", "text.jsonl", "checksums.npy"])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda file: file.unlink(), "is missing"),
        (replace_by_link, "is not a plain file"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), "bytes instead of"),
        (lambda file: os.truncate(file, file.stat().st_size + 1), "bytes instead of"),
        (lambda file: damage(file, file.stat().st_size - 1), "has changed since it was published"),
    ],
)
@pytest.mark.parametrize("options", [{}, LAZY, {"verify": "all"}])
def test_harm_to_a_file(
    path: Path, name: str, harm: Callable[[Path], object], message: str, options: dict[str, Any]
) -> None:
    home = write(path)
    harm(home / name)
    with pytest.raises(CorruptBundle, match=rf"{name} .*{message}.*restore the bundle"):
        bundle.open(path, **options).array(name)
    found = {each.file: each.problem for each in bundle.verify(path)}
    assert message in str(found.pop(name))
    assert set(found.values()) == {None}


def test_the_first_changed_block_is_named(path: Path) -> None:
    home = write(path)
    damage(home / "signs.npy", 5 * 16384 + 77)
    damage(home / "signs.npy", 7 * 16384)
    with pytest.raises(CorruptBundle, match="first in the block at byte 81920"):
        bundle.open(path)


def test_files_that_were_not_published(path: Path) -> None:
    home = write(path)
    (home / "more.npy").write_bytes(b"")
    with pytest.raises(CorruptBundle, match=r"more\.npy was not published with the bundle"):
        bundle.open(path, verify="size")
    (found,) = [each for each in bundle.verify(path) if each.problem]
    assert (found.file, found.bytes) == ("more.npy", 0)
    assert found.problem is not None
    assert found.problem.startswith(f"{home / 'more.npy'} was not published with the bundle")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, "gen-000001 is missing"),
        (replace_by_link, "gen-000001 is not a folder"),
    ],
)
def test_harm_to_the_generation(path: Path, harm: Callable[[Path], object], message: str) -> None:
    harm(write(path))
    with pytest.raises(CorruptBundle, match=message):
        bundle.open(path)
    (found,) = bundle.verify(path)
    assert (found.file, found.bytes) == ("gen-000001", 0)
    assert message in str(found.problem)


def test_a_manifest_that_is_a_link(path: Path) -> None:
    write(path)
    (path / "manifest.json").rename(path / "real.json")
    (path / "manifest.json").symlink_to("real.json")
    with pytest.raises(CorruptBundle, match=r"manifest\.json is not a plain file"):
        bundle.open(path)
    assert [(each.file, each.problem is None) for each in bundle.verify(path)] == [("manifest.json", False)]


def test_a_bundle_may_be_reached_through_a_link(path: Path) -> None:
    write(path)
    (path.parent / "link.bpr").symlink_to(path)
    with bundle.open(path.parent / "link.bpr") as opened:
        assert np.array_equal(opened.array("signs.npy"), SIGNS)


def test_digests_that_disagree_with_a_good_file_are_found(path: Path) -> None:
    """As a writer with a bug would leave it: the digests are sealed, but of other bytes."""
    home = write(path)
    damage(home / "checksums.npy", 128 + 16 * 12)
    digest = hashlib.sha256((home / "checksums.npy").read_bytes()).hexdigest()
    forge(path, lambda document: document.update(checksums_sha256=digest))
    assert [each.file for each in bundle.verify(path) if each.problem] == ["text.jsonl"]
    with pytest.raises(CorruptBundle, match=r"text\.jsonl"):
        bundle.open(path)


def test_verify_finds_every_problem(path: Path) -> None:
    home = write(path)
    assert [(each.file, each.bytes, each.problem) for each in bundle.verify(path)] == [
        ("checksums.npy", 128 + 13 * 16, None),
        ("mean.npy", 144, None),
        ("signs.npy", 144_128, None),
        ("text.jsonl", 44_000, None),
    ]
    with bundle.open(path) as opened:
        damage(home / "signs.npy", 100_000)
        damage(home / "checksums.npy", 200)
        (home / "text.jsonl").unlink()
        assert [each.file for each in opened.verify() if each.problem] == ["signs.npy"]
    problems = {each.file: each.problem for each in bundle.verify(path)}
    assert problems["mean.npy"] is None
    assert all(str(home / name) in str(problems[name]) for name in ("signs.npy", "text.jsonl", "checksums.npy"))


def test_verify_of_what_cannot_be_verified(path: Path) -> None:
    with pytest.raises(MissingBundle):
        bundle.verify(path)
    write(path)
    forge(path, lambda document: document.update(version=9))
    with pytest.raises(UnsupportedFormat):
        bundle.verify(path)


# Readers beside writers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [bundle.open, bundle.verify])
def test_a_reader_whose_generation_is_pruned_takes_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], Any]
) -> None:
    write(path)
    open_generation = reader._open_generation
    raced = []

    def prune_first(home: Path) -> int:
        if not raced:
            raced.append(home)
            write(path, {"rows": 2})
        return open_generation(home)

    monkeypatch.setattr(reader, "_open_generation", prune_first)
    result = use(path)
    assert raced == [path / "gen-000001"]
    if isinstance(result, bundle.Opened):
        assert result.generation == "gen-000002"
    else:
        assert {each.problem for each in result} == {None}


@pytest.mark.parametrize("function", ["open_folder", "open_plain", "listdir", "pread", "mmap"])
def test_what_the_system_refuses_to_read_is_not_called_corrupt(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    write(path)
    homes = {"open_folder": reader, "open_plain": reader, "listdir": os, "pread": os, "mmap": mmap}

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EMFILE, "no")

    monkeypatch.setattr(homes[function], function, refuse)
    with pytest.raises(StorageError, match="Too many open files"):
        bundle.open(path)


def test_a_file_that_may_not_be_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path)
    open_plain = reader.open_plain

    def refuse(name: str | Path, folder: int | None = None) -> int:
        if name == "signs.npy":
            raise PermissionError(errno.EACCES, "no")
        return open_plain(name, folder)

    monkeypatch.setattr(reader, "open_plain", refuse)
    with pytest.raises(StorageError, match=r"cannot open .*signs\.npy: Permission denied"):
        bundle.open(path)


# Views ----------------------------------------------------------------------------------------------------------------


def test_a_large_bundle_is_verified_where_it_is_touched(path: Path) -> None:
    home = write(path, {"resident": ["text.jsonl"]})
    damage(home / "signs.npy", 3 * 16384 + 5)
    with bundle.open(path, **LAZY) as opened:
        view = opened.view("signs.npy")
        view.require_rows(np.arange(300))
        assert np.array_equal(view.array[:300], SIGNS[:300])
        view.require_rows(np.array([[1499, 1000]]))
        view.require_rows(np.array([], dtype=np.int64))
        row = (3 * 16384 + 5 - 128) // 96
        for _ in range(2):  # and again: it does not forget
            with pytest.raises(CorruptBundle, match=r"signs\.npy has changed .*at byte 49152"):
                view.require_rows(np.array([0, row]))
        with pytest.raises(CorruptBundle):
            opened.array("signs.npy")


def test_what_every_search_reads_is_verified_at_open_however_large_the_bundle_is(path: Path) -> None:
    home = write(path, {"resident": ["signs.npy"]})
    damage(home / "signs.npy", 8 * 16384 + 5)  # its last block
    with pytest.raises(CorruptBundle, match=r"signs\.npy has changed .*at byte 131072"):
        bundle.open(path, **LAZY)
    with bundle.open(path, verify="lazy") as opened:  # one who asked for less gets less: the block, when it is touched
        opened.view("signs.npy").require_rows(np.array([0]))
        with pytest.raises(CorruptBundle):
            opened.view("signs.npy").require_rows(np.array([1499]))


def test_a_bundle_as_large_as_the_limit_is_verified_whole(path: Path) -> None:
    home = write(path)
    damage(home / "signs.npy", 100_000)
    with bundle.open(path, **LAZY) as opened:
        size = opened.manifest.bytes
    with pytest.raises(CorruptBundle):
        bundle.open(path, verify_limit=size)
    bundle.open(path, verify_limit=size - 1).close()


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_spans_need_all_their_blocks_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("spans") / "x.bpr"
    home = write(path, {})
    edges = st.integers(1, 144_128) | st.sampled_from([n * 16384 + d for n in range(1, 8) for d in (-1, 0, 1)])
    spans = data.draw(st.lists(st.tuples(edges, edges).filter(lambda span: span[0] < span[1]), max_size=5))
    block = data.draw(st.integers(1, 8))
    with bundle.open(path, **LAZY) as opened:  # the first block is verified at open
        damage(home / "signs.npy", block * 16384 + 7)
        starts, stops = (np.array(ends, dtype=np.int64) for ends in zip(*spans, strict=True)) if spans else ([], [])
        touched = any(start // 16384 <= block <= (stop - 1) // 16384 for start, stop in spans)
        with pytest.raises(CorruptBundle) if touched else nullcontext():
            opened.view("signs.npy").require_spans(starts, stops)


@pytest.mark.parametrize(("start", "stop"), [(0, 10 * 16384), (9 * 16384 - 1, 9 * 16384 + 1), (-1, 5)])
def test_spans_that_are_not_there(path: Path, start: int, stop: int) -> None:
    write(path)
    with bundle.open(path, **LAZY) as opened, pytest.raises(InvalidInput, match=r"144128 bytes, and more was asked"):
        opened.view("signs.npy").require_spans(np.array([5, start]), np.array([6, stop]))


def test_a_file_of_many_pieces_is_read_to_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "CHUNK_BLOCKS", 2)  # 144,128 bytes in five pieces
    home = write(path)
    assert [each.problem for each in bundle.verify(path)] == [None] * 4
    with bundle.open(path, verify="all") as opened:
        assert b"".join(opened.view("signs.npy").chunks()) == (home / "signs.npy").read_bytes()
    damage(home / "signs.npy", 8 * 16384 + 5)
    assert [each.file for each in bundle.verify(path) if each.problem] == ["signs.npy"]


def test_a_row_over_the_edge_needs_both_blocks(path: Path) -> None:
    home = write(path)
    row = (16384 - 128) // 96
    assert 128 + row * 96 < 16384 < 128 + (row + 1) * 96
    damage(home / "signs.npy", 16384 + 20)
    with bundle.open(path, **LAZY) as opened:
        opened.view("signs.npy").require_rows(np.array([row - 1]))
        with pytest.raises(CorruptBundle):
            opened.view("signs.npy").require_rows(np.array([row]))


def test_a_row_with_one_byte_over_the_edge_needs_both_blocks(path: Path) -> None:
    home = write(path, signs=np.ones((4, 5419), np.uint8))
    assert 128 + 3 * 5419 == 16384 + 1
    damage(home / "signs.npy", 20_000)
    with bundle.open(path, **LAZY) as opened:
        opened.view("signs.npy").require_rows(np.array([0, 1]))
        with pytest.raises(CorruptBundle):
            opened.view("signs.npy").require_rows(np.array([2]))


@given(blocks=st.sets(st.integers(0, 60) | st.integers(0, 2000)))
def test_ranges_cover_the_blocks_and_no_others(blocks: set[int]) -> None:
    ranges = list(view._ranges(np.array(sorted(blocks), dtype=np.int64)))
    assert [block for first, last in ranges for block in range(first, last)] == sorted(blocks)
    assert all(last - first <= view.CHUNK_BLOCKS for first, last in ranges)


@pytest.mark.parametrize("block", range(13))
def test_rows_wider_than_blocks(path: Path, block: int) -> None:
    wide = np.random.default_rng(1).integers(0, 256, (4, 50_000), dtype=np.uint8)
    home = write(path, signs=wide)
    at = min(block * 16384 + 200, wide.nbytes)
    with bundle.open(path, **LAZY) as opened:
        damage(home / "signs.npy", at)
        for row in range(4):
            start, stop = 128 + row * 50_000, 128 + (row + 1) * 50_000
            touched = start // 16384 <= at // 16384 <= (stop - 1) // 16384
            if touched and at >= 16384:  # the first block was verified at open
                with pytest.raises(CorruptBundle):
                    opened.view("signs.npy").require_rows(np.array([row]))
            else:
                opened.view("signs.npy").require_rows(np.array([row]))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_required_rows_and_bytes_are_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lazy") / "x.bpr"
    home = write(path, {})
    at = data.draw(st.integers(0, SIGNS.nbytes + 127))
    damage(home / "signs.npy", at)
    rows = np.array(data.draw(st.lists(st.integers(0, 1499), max_size=30)), dtype=np.int64)
    start = data.draw(st.integers(0, SIGNS.nbytes + 128))
    stop = data.draw(st.integers(start, SIGNS.nbytes + 128))
    expected = manifest_module.array_head("|u1", SIGNS.shape) + SIGNS.tobytes()
    try:
        opened = bundle.open(path, **LAZY)
    except CorruptBundle:
        assert at < 16384  # the head's block
        return
    view = opened.view("signs.npy")
    block = at // 16384
    try:
        view.require_rows(rows)
        assert np.array_equal(view.array[rows], SIGNS[rows])
    except CorruptBundle:
        assert np.any(((128 + rows * 96) // 16384 <= block) & ((128 + rows * 96 + 95) // 16384 >= block))
    try:
        view.require_bytes(start, stop)
        assert (home / "signs.npy").read_bytes()[start:stop] == expected[start:stop]
    except CorruptBundle:
        assert start // 16384 <= block <= stop // 16384


def test_rows_and_bytes_that_are_not_there(path: Path) -> None:
    write(path)
    for options in ({}, LAZY):
        with bundle.open(path, **options) as opened:
            view = opened.view("signs.npy")
            for stray in (1500, -1, 1 << 62, -(1 << 63)):
                with pytest.raises(InvalidInput, match=r"signs\.npy has 1500 rows; asked for"):
                    view.require_rows(np.array([0, stray]))
            for start, stop in ((-1, 5), (5, 4), (0, 144_129)):
                with pytest.raises(InvalidInput, match=r"signs\.npy has 144128 bytes, and \["):
                    view.require_bytes(start, stop)
            view.require_bytes(144_128, 144_128)


def test_size_is_an_explicit_way_out(path: Path) -> None:
    home = write(path)
    damage(home / "signs.npy", 100_000)
    with bundle.open(path, verify="size") as opened:
        assert not np.array_equal(opened.array("signs.npy"), SIGNS)
    with pytest.raises(CorruptBundle):
        bundle.open(path, verify="all", verify_limit=0)
    with pytest.raises(InvalidInput, match="verify must be 'auto', 'all', 'lazy' or 'size', not 'never'"):
        bundle.open(path, verify="never")  # type: ignore[arg-type]


def test_what_is_verified_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path)
    opened = bundle.open(path, **LAZY)
    view = opened.view("signs.npy")
    view.require_rows(np.arange(1500))
    view.require_bytes(0, 144_128)
    assert view.unchecked() == []

    def refuse(*arguments: object) -> bytes:
        raise AssertionError("read again")

    monkeypatch.setattr(os, "pread", refuse)
    view.require_rows(np.arange(1500))
    view.require_bytes(0, 144_128)
    opened.array("signs.npy")


def test_blocks_checked_one_by_one_leave_nothing_to_check(path: Path) -> None:
    write(path)
    with bundle.open(path, **LAZY) as opened:
        view = opened.view("signs.npy")
        assert view.unchecked() == [(1, 9)]  # the head's block was checked at open
        for block in range(1, 9):
            view.check(block, block + 1)
        assert view.unchecked() == []


def test_a_file_cut_short_under_a_reader_is_an_error_not_a_signal(path: Path) -> None:
    home = write(path)
    with bundle.open(path, **LAZY) as opened:
        os.truncate(home / "signs.npy", 20_000)
        with pytest.raises(CorruptBundle):
            opened.view("signs.npy").require_rows(np.array([1400]))


def test_arrays_cannot_be_written(path: Path) -> None:
    write(path)
    with bundle.open(path) as opened:
        for name in ("signs.npy", "text.jsonl"):
            with pytest.raises(ValueError, match="read-only"):
                opened.array(name)[0] = 0
            with pytest.raises(ValueError, match="WRITEABLE"):
                opened.array(name).flags.writeable = True


def test_arrays_and_views_outlive_the_bundle(path: Path) -> None:
    write(path)
    opened = bundle.open(path, **LAZY)
    view, text = opened.view("signs.npy"), opened.array("text.jsonl")
    opened.close()
    with pytest.raises(InvalidInput, match="is closed: open it again"):
        opened.view("signs.npy")
    del opened
    shutil.rmtree(path)
    gc.collect()
    assert text.tobytes() == TEXT
    view.require_all()
    assert np.array_equal(view.array, SIGNS)


@pytest.mark.parametrize("missing", [[], [(mmap, "MADV_RANDOM"), (os, "posix_fadvise")]])
def test_advice_is_given_where_it_can_be(
    path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[tuple[Any, str]]
) -> None:
    with bundle.create(path) as new:
        new.save("signs.npy", SIGNS)
        with new.file("nothing"):
            pass
        new.publish({})
    for home, name in missing:
        monkeypatch.delattr(home, name, raising=False)
    with bundle.open(path, **LAZY) as opened:
        for name in ("signs.npy", "nothing"):
            opened.view(name).advise_random()
        opened.view("signs.npy").require_rows(np.array([1200, 3]))
        assert np.array_equal(opened.array("signs.npy"), SIGNS)


def test_threads_may_share_a_view(path: Path) -> None:
    write(path)
    with bundle.open(path, **LAZY) as opened:
        view = opened.view("signs.npy")
        failures: list[BaseException] = []

        def read(seed: int) -> None:
            generator = np.random.default_rng(seed)
            try:
                for _ in range(50):
                    rows = generator.integers(0, 1500, 40)
                    view.require_rows(rows)
                    assert np.array_equal(view.array[rows], SIGNS[rows])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.parametrize("threads", ["1", "2", "0", "many", None])
def test_verifying_in_threads_finds_the_same(path: Path, monkeypatch: pytest.MonkeyPatch, threads: str | None) -> None:
    home = write(path)
    monkeypatch.setattr(view, "CHUNK_BLOCKS", 2)
    monkeypatch.delenv("BPR_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("BPR_THREADS", threads)
    bundle.open(path).close()
    damage(home / "text.jsonl", 43_999)
    with pytest.raises(CorruptBundle, match=r"text\.jsonl has changed .*at byte 32768"):
        bundle.open(path)


# The room itself ------------------------------------------------------------------------------------------------------


def test_bundle_knows_only_errors_and_disk() -> None:
    known = set()
    for file in Path(bundle.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 2:
                known.add(node.module)
            assert not (isinstance(node, ast.Import) and any(alias.name.startswith("bpr") for alias in node.names))
            assert not (isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).startswith("bpr"))
    assert known == {"errors", "disk"}


def test_the_writer_touches_the_disk_only_through_the_seam(path: Path) -> None:
    """What the simulated disk does not see it cannot test."""
    source = Path(writer.__file__).read_text()
    called = set(re.findall(r"\b(?:os|shutil|io)\.(\w+)\(", source))
    assert called == {"listdir", "fstat", "close"}  # they look, and change nothing
    verbs = []

    class Watching(Disk):
        def system_call(self, verb: str, path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
            verbs.append(verb)
            return function(*arguments)

    with bundle.create(path, disk=Watching()) as new:
        new.save("mean.npy", np.zeros(2))
        new.publish({})
    assert verbs[-11:] == [
        *("create", "write", "flush"),  # the digests
        "flush the folder",  # the generation is whole
        *("write", "flush"),  # the manifest
        "flush the folder",  # both are in the bundle's list of names
        "rename a file to",  # the one step from old to new
        "flush the folder",
        "flush the folder",  # the parent: the bundle is new in it
        "list",  # is there an old generation to remove?
    ]
