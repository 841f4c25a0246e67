"""The format of a bundle in bytes: its manifest, the heads of its arrays, the digests of its blocks.

Only the rest of bundle calls it. It opens no file: bytes and values in, values and bytes out, and CorruptBundle or
UnsupportedFormat where they do not fit together.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..disk import Bytes
from ..errors import CorruptBundle, InvalidInput, UnsupportedFormat

FORMAT = "bpr bundle"
VERSION = 1
SEGMENTS = "segments"  # rows in several files of a kind, or rows that are deleted
SHARDS = "shards"  # its rows lie in other bundles, which it names (shards.py)
# What was added without a new version; a bundle names those it uses, and an older bpr refuses one that is new to it.
FEATURES = frozenset({SEGMENTS, SHARDS})

MANIFEST = "manifest.json"
NEXT_MANIFEST = "manifest.json.new"  # stands in the folder from the beginning of a build until it is published
LOCK = "lock"
CHECKSUMS = "checksums.npy"  # uint8[blocks of all files, 16], the files in the order of their names

BLOCK_BYTES = 16 * 1024
DIGEST_BYTES = 16  # of each block's SHA-256
HEAD_BYTES = 128  # of every .npy file; a multiple of 64, so that rows begin on a cache line
MANIFEST_LIMIT = 16 << 20

_FILE_NAME = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,99}")
_GENERATION = re.compile(r"gen-([0-9]{6,9})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")
_DTYPES = frozenset({"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"})


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What the manifest says of one file. `dtype` and `shape` are None where it is not an array."""

    name: str
    bytes: int
    sha256: str
    dtype: str | None
    shape: tuple[int, ...] | None
    first_block: int

    @property
    def blocks(self) -> int:
        """How many blocks the file has; the last one may be shorter."""
        return -(-self.bytes // BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is known of a published generation before its files are touched."""

    generation: str
    bundle_id: str
    generation_id: str
    info: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    checksums_sha256: str
    features: frozenset[str] = frozenset()

    @property
    def bytes(self) -> int:
        """The size of all files together, without their checksums."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def checksums(self) -> FileEntry:
        """The file of block digests, as an entry like the others."""
        blocks = sum(entry.blocks for entry in self.files.values())
        size = HEAD_BYTES + blocks * DIGEST_BYTES
        return FileEntry(CHECKSUMS, size, self.checksums_sha256, "|u1", (blocks, DIGEST_BYTES), 0)


def corrupt(where: str | Path, what: str) -> CorruptBundle:
    """The error for bytes that are not the published ones."""
    return CorruptBundle(f"{where} {what}; restore the bundle from a copy or build it again")


def generation_number(name: str) -> int | None:
    """7 for gen-000007, None for every other kind of name."""
    match = _GENERATION.fullmatch(name)
    return int(match[1]) if match else None


def checked_name(name: str) -> str:
    """The name itself if a file of a bundle may have it, else InvalidInput."""
    if not _FILE_NAME.fullmatch(name) or name == CHECKSUMS:
        raise InvalidInput(f"a bundle's file cannot be called {name!r}: use a-z, 0-9, '_', '.', '-' (not {CHECKSUMS})")
    return name


def block_digests(data: Bytes) -> bytes:
    """The digests of consecutive blocks, one after the other: 16 bytes for each BLOCK_BYTES of data begun."""
    view = memoryview(data)
    starts = range(0, len(view), BLOCK_BYTES)
    return b"".join(hashlib.sha256(view[at : at + BLOCK_BYTES]).digest()[:DIGEST_BYTES] for at in starts)


def array_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The first HEAD_BYTES of a .npy file (format 1.0, C order): of one length, so that it can be rewritten."""
    if dtype not in _DTYPES:
        raise InvalidInput(f"a bundle holds plain arrays of numbers, not dtype {dtype!r}")
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape})
    length = HEAD_BYTES - 10
    if len(text) >= length:
        raise InvalidInput(f"the shape {shape} is too long for the head of an array")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1).encode("ascii") + b"\n"


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON with its own checksum: one text for one manifest, so that every changed byte shows."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "features": sorted(manifest.features),
        "generation": manifest.generation,
        "bundle_id": manifest.bundle_id,
        "generation_id": manifest.generation_id,
        "info": manifest.info,
        "files": {entry.name: _entry_document(entry) for entry in manifest.files.values()},
        "checksums_sha256": manifest.checksums_sha256,
    }
    raw = _canonical({**document, "checksum": _checksum(document)})
    if len(raw) > MANIFEST_LIMIT:
        raise InvalidInput(f"the manifest would have {len(raw)} bytes of at most {MANIFEST_LIMIT}: make info smaller")
    return raw


def seal(manifest: Manifest) -> str:
    """The SHA-256 of the manifest's one text, and so of every byte that it vouches for."""
    return hashlib.sha256(encode(manifest)).hexdigest()


def decode(raw: bytes, where: str | Path) -> Manifest:
    """The manifest of these bytes; `where` they are from is for the messages."""
    document = _parse(raw, where)
    if document.get("format") != FORMAT:
        raise corrupt(where, f"does not call itself a {FORMAT!r}")
    _check_version(document.get("version"), where)
    if not _is_sealed(document, raw):
        raise corrupt(where, "has changed since it was published")
    try:
        unknown = set(document["features"]) - FEATURES
        if unknown:
            raise UnsupportedFormat(f"{where} needs {sorted(unknown)}, unknown to this bpr: upgrade bpr to open it")
        return _manifest(document)
    except (LookupError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise corrupt(where, f"is not well formed ({error!r})") from error


def checked_info(info: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `info` as it will be read back, or InvalidInput if JSON cannot hold it."""
    try:
        copy = json.loads(_canonical(dict(info)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"info must be plain JSON values, without NaN or infinity: {error}") from error
    if not _names_files(copy.get("resident", []), files):
        raise InvalidInput(f"info['resident'] must list files of this bundle, not {copy['resident']!r}")
    return dict(copy)


def _names_files(names: object, files: Mapping[str, Any]) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) and name in files for name in names)


def _canonical(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(document)).hexdigest()


def _parse(raw: bytes, where: str | Path) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise corrupt(where, "is not the JSON that was published") from error
    if not isinstance(document, dict):
        raise corrupt(where, "is not a JSON object")
    return document


def _is_sealed(document: dict[str, Any], raw: bytes) -> bool:
    """Whether these are the very bytes that `encode` writes: nothing added, doubled, respelled or left out."""
    unsealed = {key: value for key, value in document.items() if key != "checksum"}
    try:
        return document.get("checksum") == _checksum(unsealed) and _canonical(document) == raw
    except (ValueError, RecursionError):  # NaN and the like can be read, but are never written
        return False


def _check_version(version: object, where: str | Path) -> None:
    if type(version) is not int or version < 1:
        raise corrupt(where, f"has no format version that ever was ({version!r})")
    if version > VERSION:
        raise UnsupportedFormat(
            f"{where} has format version {version}, this bpr knows up to {VERSION}: upgrade bpr to open it"
        )


def _manifest(document: Mapping[str, Any]) -> Manifest:
    files: dict[str, FileEntry] = {}
    first_block = 0
    for name in sorted(document["files"]):
        files[name] = _entry(name, document["files"][name], first_block)
        first_block += files[name].blocks
    manifest = Manifest(
        document["generation"],
        document["bundle_id"],
        document["generation_id"],
        document["info"],
        files,
        document["checksums_sha256"],
        frozenset(document["features"]),
    )
    _require(generation_number(manifest.generation) is not None, "generation")
    _require(isinstance(manifest.info, dict), "info")
    _require(_names_files(manifest.info.get("resident", []), files), "resident")
    _require(_SHA256.fullmatch(manifest.checksums_sha256) is not None, "checksums_sha256")
    _require(all(_ID.fullmatch(each) for each in (manifest.bundle_id, manifest.generation_id)), "ids")
    return manifest


def _entry_document(entry: FileEntry) -> dict[str, Any]:
    return {
        "bytes": entry.bytes,
        "sha256": entry.sha256,
        "dtype": entry.dtype,
        "shape": entry.shape,
        "first_block": entry.first_block,
        "blocks": entry.blocks,
    }


def _entry(name: str, document: Mapping[str, Any], first_block: int) -> FileEntry:
    """One checked entry: its numbers agree with each other, so that nothing is read or allocated by a false one."""
    _require(_FILE_NAME.fullmatch(name) is not None and name != CHECKSUMS, f"file name {name!r}")
    shape = document["shape"] if document["shape"] is None else tuple(document["shape"])
    entry = FileEntry(name, document["bytes"], document["sha256"], document["dtype"], shape, first_block)
    _require(_is_size(entry.bytes), f"size of {name}")
    _require(_SHA256.fullmatch(entry.sha256) is not None, f"sha256 of {name}")
    _require(_canonical(_entry_document(entry)) == _canonical(document), f"blocks of {name}")
    if entry.shape is None:
        _require(entry.dtype is None, f"dtype of {name}")
    else:
        _require(len(entry.shape) >= 1 and all(map(_is_size, entry.shape)), f"shape of {name}")
        head = array_head(str(entry.dtype), entry.shape)
        expected = len(head) + math.prod(entry.shape) * np.dtype(entry.dtype).itemsize
        _require(entry.bytes == expected, f"size of {name}")
    return entry


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
