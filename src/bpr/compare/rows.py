"""The rows of the tables: which index, made of which side, searched how.

measure.py measures them; report.py shows them in this order. A later kind of index is one more Row in `all_rows`, and
nothing else here knows of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import baselines
from .inputs import BITS, FLOAT, ONE, Side

MAIN, WITHOUT, L = "Table 1", "Table 2", "l"  # the tables
CANDIDATES = (200, 500, 1000, 2000)  # the paper's
# The paper has 512: on 20,000 vectors of 384 dimensions three times the bytes and 1.4 times the time to build, for 0.2
# points more of the true ten nearest. --hnsw-links 512 is the paper's row.
LINKS = 32


@dataclass(frozen=True)
class Row:
    """A line of a table. make: of the side's data, an index; its keywords are settings that the result depends on."""

    name: str
    side: str
    make: partial[Any]  # … → Baseline
    candidates: int | None = None
    rerank: bool = True
    table: str = MAIN

    @property
    def index(self) -> dict[str, Any]:
        """What the index depends on, beside its side's data."""
        return {"side": self.side, "index": self.make.func.__name__, **self.make.keywords}

    @property
    def settings(self) -> dict[str, Any]:
        """What the row depends on, beside its side's data and the questions."""
        return {**self.index, "candidates": self.candidates, "rerank": self.rerank}

    @property
    def file(self) -> str:
        """The name without what a file system may not like."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.table} {self.name}".lower()).strip("-")


def all_rows(sides: Mapping[str, Side], depth: int, *, candidates: int | None = None, links: int = LINKS) -> list[Row]:
    """All rows, those of one index beside each other. depth: passages that are looked at, at most.

    candidates: l of every row that reranks; None: the model's own. All of them have the same, so that no row is better
    for having looked further.
    """
    bits = sides[BITS]
    planes = bits.planes
    l = max(candidates or bits.candidates, depth)
    size = planes.nbytes // len(planes.signs)  # bytes of a code: what the rivals get too
    found = [
        Row("DPR", FLOAT, partial(baselines.flat)),
        Row("DPR + HNSW", FLOAT, partial(baselines.hnsw, links=links)),
        Row("DPR + LSH", FLOAT, partial(baselines.lsh, size=size), depth, rerank=False),
        Row("DPR + PQ", FLOAT, partial(baselines.pq, size=size)),
        Row("DPR, rotated signs", FLOAT, partial(baselines.signs, size=size), l),
        Row("DPR, 2 bits afterwards", FLOAT, partial(baselines.two_bits, size=size), l),
        Row("DPR, RaBitQ 1 bit", FLOAT, partial(baselines.rabitq, bits=1, width=8 * size)),
        Row("DPR, RaBitQ 2 bits", FLOAT, partial(baselines.rabitq, bits=2, width=4 * size)),
    ]
    if ONE in sides:
        found += _bpr("BPR, one plane", ONE, l, len(planes.signs), depth)
    elif planes.magnitudes is not None:
        found.append(Row("BPR, signs only", BITS, partial(baselines.signs_only), l))
    name = main_row(sides)
    found.append(Row("BPR, Faiss binary flat", BITS, partial(baselines.faiss_binary), l))
    return found + _bpr(name, BITS, l, len(planes.signs), depth)


def main_row(sides: Mapping[str, Side]) -> str:
    """The name of the row that the others are compared with."""
    return f"BPR, {'one plane' if sides[BITS].planes.magnitudes is None else 'two planes'}"


def _bpr(name: str, side: str, l: int, rows: int, depth: int) -> list[Row]:
    """The paper's rows of a model that was trained for bits: as it is, with parts switched off, with other l."""
    row = partial(Row, side=side, make=partial(baselines.trained))
    return [
        row(name, candidates=l),
        row(f"{name}, no rerank", candidates=depth, rerank=False, table=WITHOUT),
        row(f"{name}, no candidates", table=WITHOUT),
        *(row(f"{name}, l = {each}", candidates=each, table=L) for each in CANDIDATES if depth <= each <= rows),
    ]
