"""Vectors and codes that were made elsewhere: loaded, and brought together with their passages.

builder.py and live.py call it. It knows arrays, files of arrays and passages; nothing of bundles, models or encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .codes import (
    BLOCK_ROWS,
    Codes,
    Floats,
    blocks,
    checked_codes,
    checked_vectors,
    finite,
    pack,
    pack_magnitudes,
)
from .disk import storage_error
from .errors import InvalidInput
from .records import Passage, Progress
from .segments import Block
from .transform import Transform

# ── Arrays ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_vectors(vectors: ArrayLike | str | Path) -> Floats:
    """An array float[n, dimensions]; a path is memory-mapped."""
    return _loaded(vectors, checked_vectors)


def load_codes(codes: ArrayLike | str | Path) -> Codes:
    """An array uint8[n, bits/8]; a path is memory-mapped."""
    return _loaded(codes, checked_codes)


Array = TypeVar("Array", Floats, Codes)


def _loaded(given: ArrayLike | str | Path, checked: Callable[[ArrayLike], Array]) -> Array:
    if not isinstance(given, (str, Path)):
        return checked(given)
    array = mapped_array(given)
    try:
        return checked(array)
    except InvalidInput as error:
        raise InvalidInput(f"{given}: {error}") from error


def mapped_array(path: str | Path) -> NDArray[Any]:
    """The array in an .npy file, memory-mapped."""
    try:
        # Not np.load, which would also open archives and pickles.
        with np.errstate(over="ignore"):  # a header may claim any size
            return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise storage_error("read", Path(path), error) from error
    except Exception as error:  # numpy's header parser lets a hostile header raise almost anything
        raise InvalidInput(f"{path} is not a plain .npy array of numbers (numpy.save writes one): {error}") from error


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_vectors(
    found: Iterable[Passage],
    floats: Floats,
    transform: Transform,
    planes: int,
    origins: tuple[object, object],
    say: Progress,
) -> Iterator[Block]:
    """The passages with the codes of their vectors. origins: of both, for the message if their numbers differ."""
    rest, rows, total = iter(found), 0, len(floats)
    say("reading passages", rows, total)
    for part in blocks(total):
        some = list(islice(rest, part.stop - part.start))
        if len(some) == part.stop - part.start:
            given = finite(np.asarray(floats[part]), part.start)
            block = finite(transform.passages(given), part.start)
            yield Block(some, [pack(block), *([pack_magnitudes(block)] if planes == 2 else [])], given)
        rows += len(some)
        say("reading passages", rows, total)
    rows += sum(1 for _ in rest)
    if rows != total:
        texts, numbers = _named(origins)
        raise InvalidInput(
            f"{texts}{rows} passages but {numbers}{total} vectors; the i-th vector must be the i-th passage's"
        )


def _named(origins: tuple[object, object]) -> Iterator[str]:
    """What stands before a number in a message: the file that it is of, if it is of one."""
    return (f"{file}: " if isinstance(file, str | Path) else "" for file in origins)


# ── Codes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class GivenCodes(Protocol):
    """Codes that were made elsewhere, one for each passage (interchange/ has those of other software's files)."""

    @property
    def bits(self) -> int:
        """The width of a code."""
        ...

    def __len__(self) -> int:
        """How many codes."""
        ...

    def codes_of(self, some: Sequence[Passage], first_row: int) -> Codes:
        """The codes of these passages, which stand from this row on in their source: uint8[passages, bits/8]."""
        ...


def given_codes(codes: ArrayLike | str | Path | GivenCodes) -> GivenCodes:
    """Codes of that kind as they are; an array, or the path of an .npy file, in the order of the passages."""
    return cast("GivenCodes", codes) if hasattr(codes, "codes_of") else InOrder(load_codes(cast("ArrayLike", codes)))


class InOrder:
    """The i-th code is the i-th passage's."""

    def __init__(self, codes: Codes) -> None:
        """codes: uint8[n, bits/8], an array or a memory map."""
        self._codes = codes
        self.bits = int(codes.shape[1]) * 8

    def __len__(self) -> int:
        """How many codes."""
        return len(self._codes)

    def codes_of(self, some: Sequence[Passage], first_row: int) -> Codes:
        """Those of the same rows."""
        return self._codes[first_row : first_row + len(some)]


def with_codes(
    found: Iterable[Passage], ready: GivenCodes, origins: tuple[object, object], say: Progress
) -> Iterator[Block]:
    """The passages with their codes. origins: of both, for the message if their numbers differ."""
    rest, rows, total = iter(found), 0, len(ready)
    say("reading passages", rows, total)
    while some := list(islice(rest, BLOCK_ROWS)):
        if rows + len(some) <= total:
            yield Block(some, [ready.codes_of(some, rows)])
        rows += len(some)
        say("reading passages", rows, total)
    if rows != total:
        texts, numbers = _named(origins)
        raise InvalidInput(f"{texts}{rows} passages but {numbers}{total} codes; every passage needs its code")
