"""How well a model ranks held-out questions: the paper's average rank and top-k, with hard codes, in torch.

trainer.py asks it while training; building.py measures start models with it. Nothing here is approximate: every passage
of the pool is scored, and candidates are the very ones that `stages` would take. Knows tensors; nothing of the Trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..codes import LEVELS, THRESHOLD
from .batches import Tokens, padded
from .biencoder import BiEncoder, Objective, of_one_length
from .tower import Tower

TOP = (1, 5, 20, 100)
TOKENS_A_BATCH = 1 << 16
BLOCK = 256  # questions ranked at a time


def encode(tower: Tower, texts: Sequence[Tokens], pad: int) -> Tensor:
    """Vectors as encoder.py gives them, in the order of the texts.  float32 [n, bits]"""
    return by_length(tower, tower, texts, pad)


@torch.no_grad()
def by_length(tower: Tower, run: Callable[[Tensor, Tensor], Tensor], texts: Sequence[Tokens], pad: int) -> Tensor:
    """What `run` makes of ids and masks; batches hold texts of like length, so little is padded.  float32 [n, …]"""
    training, device = tower.training, next(tower.parameters()).device
    tower.eval()
    order = np.argsort([-len(text) for text in texts], kind="stable")
    parts: list[Tensor] = []
    first = 0
    while first < len(order):
        some = order[first : first + max(1, TOKENS_A_BATCH // len(texts[order[first]]))]
        ids, mask = (each.to(device) for each in padded([texts[i] for i in some], pad))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            parts.append(run(ids, mask).float())
        first += len(some)
    tower.train(training)
    back = torch.from_numpy(np.argsort(order)).to(device)
    return torch.cat(parts)[back]


def values(vectors: Tensor, objective: Objective) -> Tensor:
    """What the rerank reads of passages: their levels.  [n, bits]"""
    if objective.code == "float":
        return vectors
    signs = torch.where(vectors > 0, 1.0, -1.0)
    if objective.planes == 1:
        return signs
    return signs * torch.where(of_one_length(vectors).abs() > THRESHOLD, LEVELS[1], LEVELS[0])


@torch.no_grad()
def ranks(
    questions: Tensor,
    passages: Tensor,
    gold: Sequence[NDArray[np.int32]],
    objective: Objective,
    candidates: int | None = None,
) -> Tensor:
    """The rank (from 1) of each question's best-placed gold passage.  int64 [q]

    candidates: only so many, nearest by Hamming distance, are ranked; a gold passage not among them ranks behind all.
    """
    reads = values(passages, objective)  # [p, bits]
    signs = torch.where(passages > 0, 1.0, -1.0)  # [p, bits]
    found = torch.empty(len(questions), dtype=torch.int64, device=questions.device)
    for first in range(0, len(questions), BLOCK):
        some = questions[first : first + BLOCK]
        scores = some @ reads.T  # [some, p]
        if candidates is not None and candidates < len(passages):
            near = nearest(torch.where(some > 0, 1.0, -1.0) @ signs.T, candidates)
            scores = torch.full_like(scores, -torch.inf).scatter(1, near, scores.gather(1, near))
        for i, own in enumerate(gold[first : first + BLOCK]):
            best = scores[i, torch.from_numpy(own.astype(np.int64)).to(scores.device)].max()
            beaten = (scores[i] > best).sum() if best > -torch.inf else len(passages)
            found[first + i] = beaten + 1
    return found


def nearest(agree: Tensor, count: int) -> Tensor:
    """The rows of the nearest codes; of equally near ones, the first.  agree: ⟨h_q, h_p⟩ [q, p] → int64 [q, count]"""
    rows = torch.arange(agree.shape[1], device=agree.device)
    order = agree.long() * agree.shape[1] - rows  # exact: all are integers, and no two are the same
    return order.topk(count, dim=1).indices


def summary(found: Tensor) -> dict[str, float]:
    """Average rank and top-k recall in percent."""
    top = {f"top_{k}": 100 * float((found <= k).float().mean()) for k in TOP}
    return {"average_rank": float(found.float().mean()), **top}


@dataclass(frozen=True)
class Validation:
    """Held-out questions and a pool of passages, as tokens. gold: places in the pool."""

    questions: Sequence[Tokens]
    passages: Sequence[Tokens]
    gold: Sequence[NDArray[np.int32]]
    pad: int

    def measure(self, model: BiEncoder, candidates: int | None = None) -> dict[str, float]:
        """Average rank and top-k of the model as it stands."""
        questions = encode(model.question, self.questions, self.pad)
        passages = encode(model.passage, self.passages, self.pad)
        return summary(ranks(questions, passages, self.gold, model.objective, candidates))
