"""What stages.py asks of an index, and the planes of bits that every index of codes has.

Indexes and search import it; it must not know any particular index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..codes import Codes, Mask, Questions, checked_codes, checked_levels
from ..errors import InvalidInput
from ..kernels import Cancel, Limits
from ..records import Hits


@dataclass(frozen=True)
class Planes:
    """The bits of all passages: signs (Hamming distance and score) and perhaps magnitudes (score only).

    signs, magnitudes: uint8[n, bits/8], arrays or memory maps, never copied. positions: uint32[n], where the codes of
    each row stand; None: in the order of rows. `touch` is called with the positions (int64[q, m]) whose magnitudes are
    about to be read, or None for all: a bundle checks there what it has not checked yet.
    """

    signs: Codes
    magnitudes: Codes | None = None
    levels: tuple[float, float] | None = None
    touch: Callable[[NDArray[np.int64] | None], None] | None = None
    positions: NDArray[np.uint32] | None = None

    @classmethod
    def of(
        cls,
        codes: ArrayLike,
        magnitudes: ArrayLike | None,
        levels: tuple[float, float] | None,
        touch: Callable[[NDArray[np.int64] | None], None] | None = None,
        positions: NDArray[np.uint32] | None = None,
    ) -> Planes:
        """The same, checked."""
        signs = checked_codes(codes)
        if positions is not None and positions.shape != (len(signs),):
            raise InvalidInput(f"{len(signs)} codes need as many positions, not {positions.shape}")
        if (magnitudes is None) != (levels is None):
            raise InvalidInput(
                "magnitudes and levels come together: levels=(0.4528, 1.5104) are those of bpr.pack_magnitudes"
            )
        if magnitudes is None or levels is None:
            return cls(signs, positions=positions)
        large = checked_codes(magnitudes)
        if large.shape != signs.shape:
            raise InvalidInput(f"magnitudes {large.shape} and codes {signs.shape} differ in shape")
        return cls(signs, large, checked_levels(levels), touch, positions)

    @property
    def bits(self) -> int:
        """The width of a code."""
        return int(self.signs.shape[1]) * 8

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return self.signs.nbytes + (0 if self.magnitudes is None else self.magnitudes.nbytes)

    def question_codes(self, questions: Questions | ArrayLike) -> Codes:
        """The codes of questions, or codes as they are, of this width: uint8[q, bits/8]."""
        codes = questions.codes if isinstance(questions, Questions) else checked_codes(questions)
        if codes.shape[1] * 8 != self.bits:
            raise InvalidInput(f"the questions have {codes.shape[1] * 8} bits, the index has {self.bits}")
        return codes

    def about_to_read(self, rows: NDArray[np.int64] | None) -> None:
        """Say which rows' magnitudes will be read next (None: all)."""
        if self.touch is not None:
            by_row = rows is None or self.positions is None
            self.touch(rows if by_row else self.positions[rows].astype(np.int64))  # type: ignore[index]

    def take(self, rows: NDArray[np.int64]) -> Planes:
        """These rows alone, copied in the order given: int64[m]."""
        places = rows if self.positions is None else self.positions[rows]
        if self.magnitudes is None:
            return Planes(self.signs[places])
        self.about_to_read(rows)
        return Planes(self.signs[places], self.magnitudes[places], self.levels)

    def rerank(self, questions: Questions, rows: NDArray[np.int64], k: int, limits: Limits) -> Hits:
        """The k best of each question's rows (int64[q, m]) by (⟨e_q, code⟩ descending, row)."""
        self.about_to_read(rows)
        how: dict[str, Any] = {"limits": limits, "positions": self.positions}
        return Hits(*kernels.rerank(self.signs, self.magnitudes, self.levels, questions, rows, k, **how))

    def score_all(self, questions: Questions, k: int, mask: Mask | None, limits: Limits) -> Hits:
        """The k best of all rows that the mask lets through, by (⟨e_q, code⟩ descending, row)."""
        self.about_to_read(None)
        how: dict[str, Any] = {"mask": mask, "limits": limits, "positions": self.positions}
        return Hits(*kernels.scan_scores(self.signs, self.magnitudes, self.levels, questions, k, **how))


class Index(Protocol):
    """Proposes candidates. Rows are passage numbers, 0 to len(index) − 1."""

    @property
    def planes(self) -> Planes | None:
        """The bits that stages.py scores candidates with; None where scores are final and there are no bits."""
        ...

    @property
    def scores_are_final(self) -> bool:
        """True where `candidates` gives scores that no rerank can better (float baselines)."""
        ...

    def __len__(self) -> int:
        """How many passages."""
        ...

    def candidates(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """For each question min(l, live rows) rows with their distances (int32), ascending by (distance, row).

        Where scores are final: with their scores (float32), by (score descending, row).
        """
        ...
