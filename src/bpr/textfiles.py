"""Text files, plain or packed, as numbered lines and as records: what every reader of text reads from.

Passages, questions, examples and results are read through it. Knows files and their formats, not passages: a record is
a dict, whatever its keys mean. All is streamed in flat memory, and every error names the file and the line.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import lzma
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .disk import storage_error
from .errors import InvalidInput

JSON_TYPES = (".jsonl", ".json", ".ndjson")
PACKED_TYPES = (".gz", ".xz", ".zst")
LONGEST_LINE = 64 << 20  # bytes of a line, characters of a TSV field: beyond this a file is not what it seems
PIECE_BYTES = 1 << 20
ZSTD_INPUT = 1 << 13  # small, because a few bytes of zstd can unpack to megabytes

_csv_limit = threading.Lock()


def file_type(path: Path) -> str:
    """The suffix that tells the format, in lower case: `.jsonl` for `corpus.JSONL.xz`."""
    packed = path.suffix.lower() in PACKED_TYPES
    return Path(path.stem if packed else path.name).suffix.lower()


def kind(value: object) -> str:
    """What a value is, for messages to people who may not know Python."""
    return "null" if value is None else type(value).__name__


def check_string(key: str, value: object) -> None:
    """ValueError unless the value of a field is a string that UTF-8 can hold."""
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be a string, not {kind(value)}')
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'"{key}" has half a surrogate pair at character {error.start}, which is no text') from None


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file or the rows of a TSV with a header, each with its line number (from 1)."""
    lines = read_lines(path)
    head = list(itertools.islice(lines, 1))
    looks_json = any(line.lstrip().startswith("{") for _, line in head)
    parse = parse_objects if looks_json or file_type(path) in JSON_TYPES else parse_rows
    return parse(path, itertools.chain(head, lines))


def parse_objects(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object of each line that is not blank, with its line number."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(
                f"{path}, line {number}: not valid JSON: {error.msg} at column {error.pos + 1}"
            ) from None
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits; a thousand brackets
            raise InvalidInput(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise InvalidInput(f"{path}, line {number}: each line must be a JSON object, not {kind(value)}")
        yield number, value


def parse_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a TSV as dicts by the header's names, each with the number of the line that it begins on."""
    rows = split_rows(path, lines)
    first_line, header = next(rows, (1, ["id", "text"]))
    columns = [name.strip().lower() for name in header]
    found = f"found {', '.join(map(repr, header))}"
    if "text" not in columns or not {"id", "_id"} & set(columns):
        raise InvalidInput(
            f"{path}, line {first_line}: the first line must name the columns id and text, "
            f"as in id<TAB>text<TAB>title; {found}"
        )
    if len(set(columns)) < len(columns):
        raise InvalidInput(f"{path}, line {first_line}: the header names a column twice; {found}")
    for number, row in rows:
        if len(row) != len(columns):
            raise InvalidInput(
                f"{path}, line {number}: {len(row)} columns where the header names {len(columns)}; "
                "a field that holds a tab or a line end must stand in double quotes"
            )
        yield number, dict(zip(columns, row, strict=True))


def split_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its first line. Quotes are csv's, as in DPR's file.

    Strictly so: the lenient reader makes one passage of all the text from a stray quote to the next, and says nothing.
    """
    reader = csv.reader((line for _, line in lines), delimiter="\t", strict=True)
    while True:
        first_line = reader.line_num + 1
        try:
            row = _next_row(reader)
        except csv.Error as error:
            raise InvalidInput(
                f"{path}, line {first_line}: {error}; a field with a double quote in it must stand in double quotes, "
                'with each inner one doubled: "so ""called"" by some"'
            ) from None
        if row is None:
            return
        if row:
            yield first_line, row


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row, whose fields may be long. csv's limit is the whole process's, so it is raised for this row only."""
    with _csv_limit:
        limit = csv.field_size_limit(LONGEST_LINE)
        try:
            return next(reader, None)
        finally:
            csv.field_size_limit(limit)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, unpacked and decoded, each with its number (from 1). A byte order mark is dropped."""
    number = 0
    with _reading(path, lambda: f"line {number}") as stream:
        while line := stream.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise InvalidInput(f"{path}, line {number}: {LONGEST_LINE} bytes or longer; is this a text file?")
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")


def read_pieces(path: Path) -> Iterator[str]:
    """A text file, unpacked and decoded, in pieces that may end anywhere: for what has no lines, or very long ones."""
    decoder, done = codecs.getincrementaldecoder("utf-8-sig")(), 0
    with _reading(path, lambda: f"byte {done:,}") as stream:
        while True:
            piece = stream.read(PIECE_BYTES)
            done += len(piece)
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                at, bad = done - len(error.object) + error.start, error.object[error.start]
                raise InvalidInput(f"{path}, byte {at:,}: 0x{bad:02x} is not UTF-8; save the file as UTF-8") from None
            if not piece:
                return
            yield text


@contextmanager
def _reading(path: Path, place: Callable[[], str]) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, unpacked; whatever goes wrong while they are read and decoded is said with its place."""
    try:
        with _open_unpacked(path) as stream:
            yield stream
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"{path}: there is no such file; check the path") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder, where a file is needed") from None
    except UnicodeDecodeError as error:
        bad = f"byte {error.start + 1} of the line is 0x{error.object[error.start]:02x}"
        raise InvalidInput(f"{path}, {place()}: not UTF-8 ({bad}); save the file as UTF-8") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise InvalidInput(f"{path}: damaged or cut short after {place()} ({error}); fetch it again") from None
    except OSError as error:
        raise storage_error("read", path, error) from error
    except ValueError as error:  # a NUL in the name
        raise InvalidInput(f"{str(path)!r} cannot be the name of a file: {error}") from None


@contextmanager
def _open_unpacked(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, unpacked when they begin as gzip, xz or zstd do, whatever the name says."""
    with path.open("rb") as raw:
        head = raw.peek(8)
        for magic, unpack in _UNPACKERS.items():
            if head.startswith(magic):
                with unpack(raw) as stream:
                    yield io.BufferedReader(stream)
                return
        yield raw


class _ZstdStream(io.RawIOBase):
    """Unpacked zstd. The package's own stream_reader takes a file that was cut short for a whole one."""

    def __init__(self, packed: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise InvalidInput(
                f'{packed.name}: to read zstd, pip install "binary-passage-retriever[zstd]", or unpack the file first'
            ) from None
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()
        self._packed = packed
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        """True: BufferedReader asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as the unpacked bytes at hand go; 0 at the end."""
        while not self._plain:
            packed = self._frame.unused_data or self._packed.read(ZSTD_INPUT)
            if not packed and self._frame.eof:
                return 0
            self._plain = memoryview(self._unpack(packed))
        size = min(len(buffer), len(self._plain))
        buffer[:size], self._plain = self._plain[:size], self._plain[size:]
        return size

    def _unpack(self, packed: bytes) -> bytes:
        if not packed:
            raise EOFError("the last zstd frame has no end")
        if self._frame.eof:  # one file may hold several frames
            self._frame = self._new_frame()
        try:
            plain: bytes = self._frame.decompress(packed)
        except self._error as error:
            raise EOFError(str(error)) from None
        return plain


_UNPACKERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _ZstdStream,
}
