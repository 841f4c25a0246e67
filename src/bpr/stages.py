"""The paper's two stages: candidates by Hamming distance, then their rank by the float question.

Snapshots, tuning, bench.py and the paper's tables search here. Knows any index by its protocol; must not know
files or text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .codes import Mask, Questions
from .errors import InvalidInput
from .index.protocol import Index
from .kernels import Cancel, Limits
from .records import Hits

CANDIDATES = 1000  # the paper's l


def search(
    index: Index,
    questions: Questions | ArrayLike,
    k: int = 100,
    candidates: int | None = CANDIDATES,
    rerank: bool = True,
    *,
    mask: Mask | None = None,
    threads: int | None = None,
    deadline: float | None = None,
    cancel: Cancel | None = None,
    lap: Callable[[str], None] | None = None,
) -> Hits:
    """The k best passages of each question: Hits(rows int64[q, k], scores float32[q, k]).

    1. Candidate generation: the `candidates` passages whose codes are nearest to the question's code.
    2. Rerank: those by ⟨e_q, h_p⟩, the float question against the passage's bits.

    questions: float[q, bits], or Questions. rerank=False keeps the order of distances, with the score ⟨h_q, h_p⟩ =
    bits − 2·distance. candidates=None scores every passage (the paper's "without candidate generation").
    mask: bool[n], the rows that may be returned. deadline: a value of time.monotonic(). threads: default all cores.
    lap: called with "candidates" when the first stage has ended, for those who time it.
    """
    asked = questions if isinstance(questions, Questions) else Questions(questions)  # type: ignore[arg-type]
    check(k)
    planes = index.planes
    if index.scores_are_final or planes is None:  # one stage: candidates and rerank do not matter
        how: dict[str, Any] = {"mask": mask, "threads": threads, "deadline": deadline, "cancel": cancel}
        rows, found = index.candidates(asked, k, **how)
        return Hits(rows, found.astype(np.float32, copy=False))
    if asked.vectors.shape[1] != planes.bits:
        raise InvalidInput(f"the questions have {asked.vectors.shape[1]} dimensions, the index has {planes.bits} bits")
    check(k, candidates, rerank)
    limits = Limits(threads, deadline, cancel)
    if candidates is None:
        return planes.score_all(asked, k, mask, limits)

    # 1. candidate generation
    rows, found = index.candidates(asked, candidates, mask=mask, threads=threads, deadline=deadline, cancel=cancel)
    if lap is not None:
        lap("candidates")
    if not rerank:
        return Hits(rows[:, :k].copy(), (planes.bits - 2 * found[:, :k]).astype(np.float32))

    # 2. rerank
    return planes.rerank(asked, rows, k, limits)


def check(k: int, candidates: int | None = None, rerank: bool = True) -> None:
    """InvalidInput for what no search can give, before anything is computed."""
    if k < 1:
        raise InvalidInput(f"k must be at least 1, not {k}")
    if candidates is None and not rerank:
        raise InvalidInput(
            "candidates=None scores every passage with the float question: that cannot go without rerank"
        )
    if candidates is not None and candidates < k:
        raise InvalidInput(f"{candidates} candidates cannot give {k} hits: candidates must be at least k")
