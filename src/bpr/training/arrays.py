"""Folders of arrays that training reads: many short arrays in one, and how such a folder is written, read and summed.

prepared.py (for encoders) and readerdata.py (for readers) say which arrays theirs has; both are folders of .npy files
with one JSON file of facts, so that they can be made on one machine and trained with on another. Knows arrays, files
and ids; nothing of tokens, questions or torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..disk import storage_error
from ..errors import InvalidInput
from ..passages import DuplicateId, read
from ..records import Passage
from .data import Example


@dataclass(frozen=True)
class Ragged:
    """Many short arrays in one: the i-th is flat[starts[i]:starts[i + 1]]."""

    flat: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Iterable[Sequence[int] | NDArray[Any]], dtype: type[np.generic]) -> Ragged:
        """Join them."""
        arrays = [np.asarray(part, dtype) for part in parts]
        starts = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(part) for part in arrays], out=starts[1:])
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), starts)

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray[Any]:
        """The i-th."""
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """One after the other."""
        return map(self.__getitem__, range(len(self)))

    def save(self, folder: Path, name: str) -> None:
        """As two .npy files."""
        np.save(folder / f"{name}.npy", self.flat, allow_pickle=False)
        np.save(folder / f"{name}.starts.npy", self.starts, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, name: str) -> Ragged:
        """What `save` wrote; read when it is needed."""
        return cls(
            *(np.load(folder / f, mmap_mode="r", allow_pickle=False) for f in (f"{name}.npy", f"{name}.starts.npy"))
        )


Folder = TypeVar("Folder", bound="ArrayFolder")


class ArrayFolder:
    """What training data is made of: a dataclass whose fields are arrays, and its facts, as a folder.

    RAGGED, PLAIN: the fields that are Ragged and numpy's own. FACTS_FILE: the JSON file. REFUSAL: what a folder that is
    none of these is called. What is no array is saved, loaded and summed by the three methods at the end.
    """

    RAGGED: ClassVar[tuple[str, ...]]
    PLAIN: ClassVar[tuple[str, ...]]
    FACTS_FILE: ClassVar[str]
    REFUSAL: ClassVar[str]
    facts: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write the folder; the facts last, so that a folder that has them is whole."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / self.FACTS_FILE).unlink(missing_ok=True)
            for name in self.RAGGED:
                getattr(self, name).save(folder, name)
            for name in self.PLAIN:
                np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
            self._save_rest(folder)
            (folder / self.FACTS_FILE).write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise storage_error("write", folder, error) from error

    @classmethod
    def load(cls: type[Folder], folder: str | Path) -> Folder:
        """Read what `save` wrote."""
        home = Path(folder)
        try:
            parts: dict[str, Any] = {"facts": json.loads((home / cls.FACTS_FILE).read_text(encoding="utf-8"))}
            parts |= {name: Ragged.load(home, name) for name in cls.RAGGED}
            parts |= {name: np.load(home / f"{name}.npy", allow_pickle=False) for name in cls.PLAIN}
            return cls(**parts, **cls._load_rest(home))
        except (OSError, EOFError, ValueError, AttributeError) as error:
            raise InvalidInput(f"{home} is not {cls.REFUSAL}: {error}") from error

    def fingerprint(self) -> str:
        """sha256 of all that is not facts: what a ledger remembers of its data."""
        total = hashlib.sha256(self._rest_bytes())
        for name in self.RAGGED:
            ragged: Ragged = getattr(self, name)
            total.update(np.ascontiguousarray(ragged.flat).data)
            total.update(np.ascontiguousarray(ragged.starts).data)
        for name in self.PLAIN:
            total.update(np.ascontiguousarray(getattr(self, name)).data)
        return total.hexdigest()

    def _save_rest(self, folder: Path) -> None:
        """Nothing, where all is arrays."""

    @classmethod
    def _load_rest(cls, home: Path) -> dict[str, Any]:
        return {}

    def _rest_bytes(self) -> bytes:
        return b""


def numbered(source: str | Path, rows: dict[str, int]) -> Iterator[Passage]:
    """The passages of a file, each put into `rows` (its number by its id) as it is passed on; no id may come twice."""
    for passage in read(source):
        row = len(rows)
        if rows.setdefault(passage.id, row) != row:
            raise DuplicateId(passage.id, rows[passage.id], row).in_file(Path(source))
        yield passage


def row_of(rows: Mapping[str, int], id: str, example: Example) -> int:
    """The number of a passage that an example names."""
    try:
        return rows[id]
    except KeyError:
        raise InvalidInput(
            f"the example {example.question[:60]!r} names the passage {id!r}, which the passages lack"
        ) from None
