"""The exhaustive index: every code is compared with every question. Exact, no memory beside the codes.

The default of every bundle, and what the other kinds are measured against. Knows the kernel; must not know bundles or
text.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..codes import Mask, Questions
from ..kernels import Cancel, Limits
from .protocol import Planes


class ScanIndex:
    """Candidates by a linear scan of all sign bits (the paper's default).

        index = bpr.ScanIndex(bpr.pack(vectors))                                       # one plane
        index = bpr.ScanIndex(codes, magnitudes=large, levels=(0.4528, 1.5104))        # two planes
        rows, distances = index.candidates(question_codes, 1000)                       # int64[q, l], int32[q, l]

    codes, magnitudes: uint8[n, bits/8], an array or a memory map; C-contiguous ones are used as they are, not copied.
    """

    scores_are_final = False

    def __init__(
        self,
        codes: ArrayLike,
        magnitudes: ArrayLike | None = None,
        levels: tuple[float, float] | None = None,
        touch: Callable[[NDArray[np.int64] | None], None] | None = None,
    ) -> None:
        """`touch` is called before magnitudes are read (see Planes)."""
        self.planes = Planes.of(codes, magnitudes, levels, touch)

    def __len__(self) -> int:
        """How many passages."""
        return len(self.planes.signs)

    def __repr__(self) -> str:
        """Rows, bits and planes."""
        planes = 1 if self.planes.magnitudes is None else 2
        return f"ScanIndex({len(self):,} rows, {self.planes.bits} bits, {planes} plane{'s' if planes > 1 else ''})"

    def candidates(
        self,
        questions: Questions | ArrayLike,
        l: int,
        *,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The l nearest rows of each question by (distance, row).

        questions: uint8[q, bits/8] codes, or Questions. mask: bool[n], rows that may be returned. deadline: a value of
        time.monotonic(). Asking for more than there is gives what there is.
        """
        codes, limits = self.planes.question_codes(questions), Limits(threads, deadline, cancel)
        return kernels.scan(self.planes.signs, codes, l, mask=mask, limits=limits)
