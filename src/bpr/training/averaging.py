"""The mean of two models' float weights: between a start model and its fine-tuned one often lies one that keeps both.

`bpr average` calls it. Knows two model folders of one shape; nothing of training.
"""

from __future__ import annotations

from pathlib import Path

import torch

from .. import model as models
from ..errors import InvalidInput
from ..model import Model
from .biencoder import BiEncoder, Objective
from .output import check_output, save
from .tower import Side, Tower, load_tower


def average(tuned: str | Path, start: str | Path, share: float, out: str | Path) -> Model:
    """Write `out` = share · tuned + (1 − share) · start.

    Both must have the same layout; a start that shares one encoder between its sides may stand against a tuned model
    that does not. Heads (projection and σ), tokenizer and settings are the tuned model's; its card and its ONNX are not
    taken along, since they are not this model's.
    """
    if not 0 <= share <= 1:
        raise InvalidInput(f"share must be between 0 and 1, not {share}")
    folder, target = models.resolve(tuned), Path(out)
    check_output(target)
    model, files = models.load(folder)
    tokenizer = models.check_file(folder, models.TOKENIZER, files)
    base, _ = models.load(start)
    if model.shared and not base.shared:
        raise InvalidInput(f"{tuned} shares one encoder and {start} has two: there is no mean of them")
    passage = _mixed(folder, start, "passage", share)
    question = passage if model.shared else _mixed(folder, start, "question", share)
    return save(target, BiEncoder(question, passage, Objective()), model, tokenizer)


@torch.no_grad()
def _mixed(tuned: Path, start: str | Path, side: Side, share: float) -> Tower:
    """The tuned tower with its backbone moved towards the start's."""
    tower, other = load_tower(tuned, side), load_tower(start, side)
    ours, theirs = tower.backbone.state_dict(), other.backbone.state_dict()
    if {name: value.shape for name, value in ours.items()} != {name: value.shape for name, value in theirs.items()}:
        raise InvalidInput(f"{tuned} and {start} are not the same kind of encoder")
    for name, value in ours.items():
        if value.is_floating_point():
            value.lerp_(theirs[name].to(value.dtype), 1 - share)
    return tower
