"""Codes in .npy files, with a file of ids beside them: numpy's own, and sentence-transformers' two kinds of them.

codes.py calls it. It knows arrays and lines; nothing of bundles or passages.

`quantize_embeddings(…, precision="ubinary")` gives the bits that bpr has (x > 0, most significant bit first) as uint8;
precision="binary" the same, less 128, as int8. Which of the two an array is, its type tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..codes import MAX_BITS, Codes
from ..disk import OutputFile
from ..errors import InvalidInput
from ..given import mapped_array
from ..textfiles import read_lines

PRECISIONS = {"uint8": "ubinary", "int8": "binary"}


@dataclass(frozen=True)
class ArrayCodes:
    """The codes of an .npy file, memory-mapped. kind: "ubinary" or "binary", as sentence-transformers calls them.

    ids: of the passages, int64[n] where all are whole numbers; None where they are in the order of the passages.
    """

    path: Path
    kind: str
    ids: NDArray[np.int64] | list[str] | None
    _array: NDArray[np.uint8] | NDArray[np.int8]

    @property
    def bits(self) -> int:
        """The width of a code."""
        return int(self._array.shape[1]) * 8

    def __len__(self) -> int:
        """How many codes."""
        return len(self._array)

    def take(self, rows: NDArray[np.int64]) -> Codes:
        """The codes of these rows: uint8[m, bits/8]."""
        some = np.ascontiguousarray(self._array[rows])
        return some.view(np.uint8) ^ np.uint8(128 if self.kind == "binary" else 0)


def read(path: str | Path, ids: str | Path | None = None) -> ArrayCodes:
    """The codes of an .npy file: uint8[n, bits/8], or int8 as of sentence-transformers. ids: one a line, row by row."""
    array = mapped_array(path)
    kind = PRECISIONS.get(str(array.dtype))
    if kind is None or array.ndim != 2 or not 1 <= array.shape[1] <= MAX_BITS // 8:
        raise InvalidInput(
            f"{path} has {array.dtype}{list(array.shape)}; codes are uint8[n, 1 to {MAX_BITS // 8}] (bpr.pack, "
            'precision="ubinary"), or int8 (precision="binary"). Vectors become codes with bpr index --vectors'
        )
    known = None if ids is None else read_ids(Path(ids))
    if known is not None and len(known) != len(array):
        raise InvalidInput(f"{ids} has {len(known):,} ids, and {path} {len(array):,} codes: each needs its own")
    return ArrayCodes(Path(path), kind, known, array)


def read_ids(path: Path) -> NDArray[np.int64] | list[str]:
    """The ids in a file, one a line; all whole numbers, as int64[n]."""
    lines = [line.rstrip("\r\n") for _, line in read_lines(path)]
    for number, each in enumerate(lines, 1):
        if not each.strip():
            raise InvalidInput(f"{path}, line {number}: an empty line where the id of row {number - 1} should stand")
    whole = [whole_number(each) for each in lines]
    return lines if None in whole else np.array(whole, np.int64)


def whole_number(outside_id: str) -> int | None:
    """The id as int64, if it is one and is written as Python writes it: "7", not "007"."""
    if len(outside_id) > 20 or not outside_id.removeprefix("-").isdecimal() or not outside_id.isascii():
        return None
    number = int(outside_id)
    return number if str(number) == outside_id and -(1 << 63) <= number < 1 << 63 else None


def write(out: OutputFile, rows: int, width: int, codes: Iterable[Codes]) -> None:
    """An .npy file of uint8[rows, width], whose rows come in blocks."""
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (rows, width)})
    out.write(head.getvalue())
    for block in codes:
        out.write(np.ascontiguousarray(block).reshape(-1).data)
