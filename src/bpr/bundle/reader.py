"""Opening and verifying bundles: a manifest, and all files of its generation or none.

Everyone opens bundles through `bundle`; the writer opens the one that it is about to follow. It writes nothing, takes
no lock, and must not know what the files are for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..disk import NotPlainFile, open_folder, open_plain, storage_error
from ..errors import CorruptBundle, InvalidInput, MissingBundle
from .manifest import (
    CHECKSUMS,
    DIGEST_BYTES,
    HEAD_BYTES,
    MANIFEST,
    MANIFEST_LIMIT,
    NEXT_MANIFEST,
    FileEntry,
    Manifest,
    corrupt,
    decode,
    generation_number,
)
from .view import View, read_at, read_chunks, verify_views

VERIFY_LIMIT = 4_000_000_000  # bytes; a larger bundle is verified by blocks when they are first used

Verify = Literal["auto", "all", "size", "lazy"]
Result = TypeVar("Result")


class Checked(NamedTuple):
    """What a full check says of one file; `problem` is None where all is well."""

    file: str
    bytes: int
    problem: str | None


class Opened:
    """A bundle opened for reading: one generation, all of whose files are held open. A context manager."""

    def __init__(
        self, path: Path, manifest: Manifest, views: dict[str, View], verify: Verify = "auto", limit: int = VERIFY_LIMIT
    ) -> None:
        """Made by `open`."""
        self.path = path
        self.manifest = manifest
        self._views: dict[str, View] | None = views
        self._how: tuple[Verify, int] = verify, limit

    @property
    def info(self) -> dict[str, Any]:
        """What was given to `publish`."""
        return dict(self.manifest.info)

    @property
    def generation(self) -> str:
        """The name of the generation, gen-000001 or later."""
        return self.manifest.generation

    def view(self, name: str) -> View:
        """The file of that name; its blocks are not all verified yet if the bundle is large."""
        views = self._open_views()
        if name not in views:
            raise InvalidInput(f"{self.path} has no file {name!r}; it has {', '.join(views) or 'none'}")
        return views[name]

    def array(self, name: str) -> NDArray[Any]:
        """The whole file of that name as a verified array, read-only, without a copy."""
        view = self.view(name)
        view.require_all()
        return view.array

    def verify(self) -> list[Checked]:
        """Check every byte of every file again, block by block and as a whole; does not stop at a problem."""
        return [Checked(name, view.entry.bytes, view.problem()) for name, view in self._open_views().items()]

    def newest(self) -> Opened | None:
        """The generation that is published now, opened as this one was; None if it is this one.

        A file that both have is the same view: what was verified once is not read again.
        """
        known = self._open_views()
        if read_manifest(self.path).generation_id == self.manifest.generation_id:
            return None
        return _open(self.path, *self._how, known)

    def close(self) -> None:
        """Let go of the files. Arrays and views still in use stay valid; their files close with the last of them."""
        self._views = None

    def __enter__(self) -> Opened:
        """The bundle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _open_views(self) -> dict[str, View]:
        if self._views is None:
            raise InvalidInput(f"{self.path} is closed: open it again")
        return self._views


def open(path: str | os.PathLike[str], *, verify: Verify = "auto", verify_limit: int = VERIFY_LIMIT) -> Opened:
    """Open the bundle at `path` for reading.

    verify: "all" checks every byte now; "auto" does so up to `verify_limit` bytes, and above it checks the files that
    info["resident"] names now and of the others each block when it is first required; "lazy" checks every block when it
    is first required; "size" checks the manifest, sizes and heads, and never the data. Raises MissingBundle,
    CorruptBundle, UnsupportedFormat or StorageError.
    """
    if verify not in ("auto", "all", "size", "lazy"):
        raise InvalidInput(f"verify must be 'auto', 'all', 'lazy' or 'size', not {verify!r}")
    return _open(Path(path), verify, verify_limit, {})


def _open(folder: Path, verify: Verify, limit: int, known: Mapping[str, View]) -> Opened:
    def attempt(manifest: Manifest) -> Opened:
        opened = Opened(folder, manifest, _open_views(folder, manifest, known), verify, limit)
        _verify_at_open(opened, verify, limit)
        return opened

    return _with_manifest(folder, attempt)


def verify(path: str | os.PathLike[str]) -> list[Checked]:
    """Check every byte of the bundle at `path` and say what is wrong with which file, all of them.

    A bundle that is missing, too new or unreadable is an error as in `open`; damage is in the list.
    """
    folder = Path(path)

    def attempt(manifest: Manifest) -> list[Checked]:
        found = _check_files(folder, manifest)
        if any(each.problem for each in found):
            raise _Damaged(found)
        return found

    try:
        return _with_manifest(folder, attempt)
    except _Damaged as damage:
        return damage.found
    except CorruptBundle as error:
        return [Checked(MANIFEST, 0, str(error))]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the bundle in this folder; MissingBundle, CorruptBundle or UnsupportedFormat if none is good."""
    return decode(_manifest_bytes(folder), folder / MANIFEST)


class _Damaged(CorruptBundle):
    def __init__(self, found: list[Checked]) -> None:
        self.found = found


def _with_manifest(folder: Path, attempt: Callable[[Manifest], Result]) -> Result:
    """Try with the current manifest; if a writer has replaced it (and pruned its files) meanwhile, with the next."""
    raw = _manifest_bytes(folder)
    while True:
        manifest = decode(raw, folder / MANIFEST)
        try:
            return attempt(manifest)
        except CorruptBundle:
            now = _manifest_bytes(folder)
            if now == raw:
                raise
            raw = now


def _manifest_bytes(folder: Path) -> bytes:
    path = folder / MANIFEST
    try:
        descriptor = open_plain(path)
    except NotPlainFile:
        raise corrupt(path, "is not a plain file") from None
    except (FileNotFoundError, NotADirectoryError):
        return _no_manifest(folder)
    except OSError as error:
        raise storage_error("open", path, error) from error
    try:
        raw = read_at(descriptor, path, 0, MANIFEST_LIMIT + 1)
    finally:
        os.close(descriptor)
    if len(raw) > MANIFEST_LIMIT:
        raise corrupt(path, f"has more than {MANIFEST_LIMIT} bytes")
    return raw


def _no_manifest(folder: Path) -> bytes:
    """Say why there is none; or read it after all, if it was published at this very moment."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        raise MissingBundle(f"there is no bundle at {folder}: build one, or check the path") from None
    except NotADirectoryError:
        raise MissingBundle(f"{folder} is a file, not a bundle (a folder): check the path") from None
    except OSError as error:
        raise storage_error("list", folder, error) from error
    if MANIFEST in names:
        return _manifest_bytes(folder)
    if NEXT_MANIFEST in names:
        raise MissingBundle(f"there is no bundle at {folder} yet: its first build did not finish; wait, or build again")
    if any(generation_number(name) is not None for name in names):
        raise corrupt(folder, f"has lost its {MANIFEST}")
    raise MissingBundle(f"{folder} is a folder, but holds no bundle: build one, or check the path")


def _open_views(folder: Path, manifest: Manifest, known: Mapping[str, View]) -> dict[str, View]:
    """Every file of the generation, opened at once, so that a writer who prunes it later takes nothing away.

    known: views of another generation; one of the same file is taken as it is.
    """
    home = folder / manifest.generation
    descriptor = _open_generation(home)
    try:
        digests = _read_digests(descriptor, home, manifest)
        views = {
            name: known[name]
            if name in known and _is_same(known[name].entry, entry)
            else _open_view(descriptor, home, entry, digests)
            for name, entry in manifest.files.items()
        }
        for name in _strangers(descriptor, home, manifest):
            raise corrupt(home / name, "was not published with the bundle")
        return views
    finally:
        os.close(descriptor)


def _is_same(one: FileEntry, other: FileEntry) -> bool:
    """Whether two generations have the same file, wherever its digests stand."""
    return replace(one, first_block=0) == replace(other, first_block=0)


def _open_generation(home: Path) -> int:
    try:
        return open_folder(home)
    except FileNotFoundError:
        raise corrupt(home, "is missing") from None
    except NotPlainFile:
        raise corrupt(home, "is not a folder") from None
    except OSError as error:
        raise storage_error("open", home, error) from error


def _open_file(folder: int, path: Path) -> int:
    try:
        return open_plain(path.name, folder)
    except FileNotFoundError:
        raise corrupt(path, "is missing") from None
    except NotPlainFile:
        raise corrupt(path, "is not a plain file") from None
    except OSError as error:
        raise storage_error("open", path, error) from error


def _open_view(folder: int, home: Path, entry: FileEntry, digests: NDArray[np.uint8]) -> View:
    path = home / entry.name
    own = digests[entry.first_block : entry.first_block + entry.blocks].copy()  # it may outlive the others
    return View(_open_file(folder, path), path, entry, own)


def _read_digests(folder: int, home: Path, manifest: Manifest) -> NDArray[np.uint8]:
    """uint8[blocks, 16]: the digests of all blocks, themselves verified."""
    path, entry = home / CHECKSUMS, manifest.checksums
    descriptor = _open_file(folder, path)
    try:
        size = os.fstat(descriptor).st_size
        if size != entry.bytes:
            raise corrupt(path, f"has {size} bytes instead of {entry.bytes}")
        raw = b"".join(read_chunks(descriptor, path))
    finally:
        os.close(descriptor)
    if hashlib.sha256(raw).hexdigest() != entry.sha256:
        raise corrupt(path, "has changed since it was published")
    return np.frombuffer(raw, np.uint8, offset=HEAD_BYTES).reshape(-1, DIGEST_BYTES)


def _strangers(folder: int, home: Path, manifest: Manifest) -> list[str]:
    try:
        return sorted(set(os.listdir(folder)) - set(manifest.files) - {CHECKSUMS})
    except OSError as error:
        raise storage_error("list", home, error) from error


def _verify_at_open(opened: Opened, verify: Verify, limit: int) -> None:
    views = [opened.view(name) for name in opened.manifest.files]
    if verify == "size":
        for view in views:
            view.trust()
    elif verify == "all" or (verify == "auto" and opened.manifest.bytes <= limit):
        verify_views(views)
    else:
        if verify == "auto":
            verify_views(opened.view(name) for name in opened.manifest.info.get("resident", []))
        for view in views:
            view.require_bytes(0, min(1, view.entry.bytes))  # the head, at least


def _check_files(folder: Path, manifest: Manifest) -> list[Checked]:
    """The full check of `verify`: each file by itself, so that one problem does not hide another."""
    home = folder / manifest.generation
    try:
        descriptor = _open_generation(home)
    except CorruptBundle as error:
        return [Checked(manifest.generation, 0, str(error))]
    try:
        digests, problem = _digests_or_problem(descriptor, home, manifest)
        found = [Checked(CHECKSUMS, manifest.checksums.bytes, problem)]
        for name, entry in manifest.files.items():
            found.append(Checked(name, entry.bytes, _file_problem(descriptor, home, entry, digests)))
        for name in _strangers(descriptor, home, manifest):
            found.append(Checked(name, 0, str(corrupt(home / name, "was not published with the bundle"))))
        return found
    finally:
        os.close(descriptor)


def _digests_or_problem(folder: int, home: Path, manifest: Manifest) -> tuple[NDArray[np.uint8] | None, str | None]:
    try:
        return _read_digests(folder, home, manifest), None
    except CorruptBundle as error:
        return None, str(error)


def _file_problem(folder: int, home: Path, entry: FileEntry, digests: NDArray[np.uint8] | None) -> str | None:
    """What is wrong with one file; without digests, by its SHA-256 alone."""
    blocks = np.empty((0, DIGEST_BYTES), np.uint8) if digests is None else digests
    try:
        return _open_view(folder, home, entry, blocks).problem(by_blocks=digests is not None)
    except CorruptBundle as error:
        return str(error)
