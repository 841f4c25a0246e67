"""How an index lies in the files of a segment: its planes, and what its kind adds to them.

    scan     signs.npy magnitudes.npy, by row
    hash     the same, and hash-*.npy: the tables
    cells    the same, cell by cell, and cell-*.npy: centroids, and which row is where

segments.py writes and opens indexes here; nothing else knows which files a kind has. It knows bundles and indexes, and
nothing of passages or of how codes are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from . import bundle
from .codes import Codes, blocks
from .disk import OutputFile
from .errors import CorruptBundle, InvalidInput
from .index import CellIndex, Cells, HashIndex, ScanIndex, Tables
from .index.cells import lay_out, train
from .records import Progress
from .vectors import Kind as VectorKind

Kind: TypeAlias = Literal["scan", "hash", "cells"]
SegmentIndex: TypeAlias = ScanIndex | HashIndex | CellIndex
KINDS: tuple[str, ...] = get_args(Kind)
SIGNS, MAGNITUDES = "signs.npy", "magnitudes.npy"
HASH = {"bits": "hash-bits.npy", "starts": "hash-starts.npy", "rows": "hash-rows.npy"}
CELLS = {
    "centroids": "cell-centroids.npy",
    "starts": "cell-starts.npy",
    "rows": "cell-rows.npy",
    "positions": "cell-positions.npy",
}
_ADDED: Mapping[str, Mapping[str, str]] = {"scan": {}, "hash": HASH, "cells": CELLS}
INDEX_FILES = frozenset({SIGNS, MAGNITUDES, *HASH.values(), *CELLS.values()})


@dataclass(frozen=True)
class Plan:
    """Which index a bundle is to have, and what it keeps beside it.

    tables: of a hash index; cells: of a cell index (None: as many as suit the rows). probes: the share of the codes
    that a question looks at (None: the index's own default). recall: what was measured of it, {recall: probes}.
    words: for BM25 (lexical/). vectors: kept as "int8" or "float16" for a third stage (vectors.py).
    """

    kind: Kind = "scan"
    tables: int | None = None
    cells: int | None = None
    probes: float | None = None
    recall: Mapping[str, float] = field(default_factory=dict)
    words: bool = False
    vectors: VectorKind | None = None

    def __post_init__(self) -> None:
        """Refuse what no index has."""
        if self.kind not in KINDS:
            raise InvalidInput(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        given = {"tables": (self.tables, "hash"), "cells": (self.cells, "cells"), "probes": (self.probes, "cells")}
        for name, (value, kind) in given.items():
            if value is not None and kind != self.kind:
                raise InvalidInput(f"{name} is for an index of kind {kind}, not {self.kind}")
        if self.vectors not in (None, *get_args(VectorKind)):
            raise InvalidInput(f"vectors are kept as int8 or float16, not {self.vectors!r}")
        if self.probes is not None and not 0 < self.probes <= 1:
            raise InvalidInput(f"probes is the share of the codes to look at: more than 0, at most 1: {self.probes}")

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Plan:
        """What a bundle says."""
        try:
            return cls(info["kind"], **info.get("index", {}))
        except (LookupError, TypeError) as error:
            raise CorruptBundle(f"the bundle does not say which index it has ({error!r}); build it again") from error

    def to_info(self) -> dict[str, Any]:
        """What a bundle is told."""
        chosen = {
            name: value for name, value in asdict(self).items() if name != "kind" and value not in (None, False, {})
        }
        return {"kind": self.kind, **({"index": chosen} if chosen else {})}

    def added(self) -> Plan:
        """Of what is added later: it is scanned, and keeps what the rest keeps."""
        return Plan(words=self.words, vectors=self.vectors)

    def probes_for(self, target_recall: float) -> float:
        """The share of the codes to look at for a recall, by what was measured; beyond the best of it all."""
        if not 0 < target_recall <= 1:
            raise InvalidInput(f"target_recall must be more than 0 and at most 1, not {target_recall}")
        return min((share for recall, share in self.recall.items() if float(recall) >= target_recall), default=1.0)


def resident(kind: str, prefix: str) -> list[str]:
    """The files that every search may read anywhere: those that are verified when a bundle is opened."""
    return [prefix + name for name in (SIGNS, *_ADDED[kind].values())]


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class PlanesOut:
    """Codes on their way into a segment, in the order of rows; a context manager that ends with the index on disk."""

    def __init__(
        self,
        new: bundle.Writer,
        prefix: str,
        plan: Plan,
        planes: int,
        width: int,
        say: Progress,
        layout: Cells | None = None,
    ) -> None:
        """planes: 1 or 2; width: bytes of a code; layout: of these very rows, if it is known already."""
        self._new, self._prefix, self._plan, self._width, self._say = new, prefix, plan, width, say
        self._layout = layout
        self._names = [SIGNS, MAGNITUDES][:planes]
        self._files = ExitStack()
        self._append: list[Callable[[Codes], None]] = []

    def __enter__(self) -> PlanesOut:
        """Files are made: the final ones, or for cells, whose order is not known yet, scratch."""
        for name in self._names:
            if self._plan.kind == "cells":
                out = OutputFile(self._new.disk, self._new.scratch(_scratch(self._prefix, name)))
                self._files.callback(out.close)
                self._files.callback(out.finish)
                self._append.append(lambda codes, out=out: out.write(np.ascontiguousarray(codes).reshape(-1).data))  # type: ignore[misc]
            else:
                row = (self._width,)
                array = self._files.enter_context(self._new.array(self._prefix + name, np.dtype(np.uint8), row))
                self._append.append(array.append)
        return self

    def append(self, codes: Sequence[Codes]) -> None:
        """The next rows: of each plane uint8[m, width]."""
        for append, plane in zip(self._append, codes, strict=True):
            append(plane)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """What the kind adds, unless something went wrong."""
        if error is not None:
            self._files.__exit__(kind, error, trace)
            return
        self._files.close()
        if self._plan.kind == "hash":
            self._write_tables()
        elif self._plan.kind == "cells":
            self._write_cells()

    def _write_tables(self) -> None:
        path = self._new.generation_path / (self._prefix + SIGNS)
        tables = Tables.build(np.load(path, mmap_mode="r", allow_pickle=False), self._plan.tables)
        for part, name in HASH.items():
            self._new.save(self._prefix + name, getattr(tables, part))

    def _write_cells(self) -> None:
        signs, *others = (self._scratched(name) for name in self._names)
        layout = self._layout or made_layout(signs, self._plan, self._say)
        for name, plane in zip(self._names, (signs, *others), strict=True):
            with self._new.array(self._prefix + name, np.dtype(np.uint8), (self._width,)) as out:
                for part in blocks(len(plane)):
                    out.append(plane[layout.rows[part]])
        for part_name, name in CELLS.items():
            self._new.save(self._prefix + name, getattr(layout, part_name))

    def _scratched(self, name: str) -> Codes:
        path = self._new.scratch(_scratch(self._prefix, name))
        raw = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        return raw.reshape(-1, self._width)


def made_layout(signs: Codes, plan: Plan, say: Progress) -> Cells:
    """The cells of these codes; fewer than planned where there are fewer codes."""
    wanted = None if plan.cells is None else max(1, min(plan.cells, len(signs)))
    return lay_out(*train(signs, wanted, progress=lambda done, total: say("making cells", done, total)))


def _scratch(prefix: str, name: str) -> str:
    return prefix + name.replace(".npy", ".tmp")


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_index(opened: bundle.Opened, prefix: str, kind: str, rows: int) -> SegmentIndex:
    """The index of a segment; CorruptBundle where its files do not belong together."""
    signs = opened.array(prefix + SIGNS)
    if len(signs) != rows:
        raise bundle.corrupt(opened.path, f"has {len(signs)} codes for {rows} passages")
    magnitudes, levels, touch = _second_plane(opened, prefix)
    try:
        if kind == "hash":
            tables = Tables(**{part: opened.array(prefix + name) for part, name in HASH.items()})
            tables.check_fit(signs)
            return HashIndex(signs, magnitudes, levels, tables, touch)
        if kind == "cells":
            layout = Cells(**{part: opened.array(prefix + name) for part, name in CELLS.items()})
            return CellIndex(layout, signs, magnitudes, levels, Plan.of(opened.info).probes, touch)
    except InvalidInput as error:
        raise bundle.corrupt(opened.path, f"has an index that cannot be one ({error})") from error
    return ScanIndex(signs, magnitudes, levels, touch)


Touch: TypeAlias = Callable[[NDArray[np.int64] | None], None]


def _second_plane(opened: bundle.Opened, prefix: str) -> tuple[Codes | None, tuple[float, float] | None, Touch | None]:
    if opened.info["planes"] == 1:
        return None, None, None
    view = opened.view(prefix + MAGNITUDES)
    view.advise_random()  # candidates are scattered: reading ahead would fetch what nobody asked for

    def touch(places: NDArray[np.int64] | None) -> None:
        if places is None:
            view.require_all()
        else:
            view.require_rows(places)

    low, high = opened.info["levels"]
    return view.array, (low, high), touch


def by_row(index: SegmentIndex, rows: NDArray[np.int64], size: int) -> Iterator[tuple[NDArray[np.int64], list[Codes]]]:
    """The codes of these rows, `size` of them at a time: rows and, of each plane, uint8[m, width]."""
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        taken = index.planes.take(some)
        yield some, [taken.signs] if taken.magnitudes is None else [taken.signs, taken.magnitudes]
