"""transformers' Trainer with the reader's loss. readerrun.py makes and starts it; all else is the Trainer's.

It knows batches as readerbatches.py makes them; what the loss is stands in reader.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import TrainingArguments

from .reader import Logits, Reader, losses
from .readerbatches import Collate, Inputs, Schedule
from .trainer import PlannedTrainer, Report, adam

if TYPE_CHECKING:
    from .readerrun import ReaderRecipe


class ReaderTrainer(PlannedTrainer):
    """The reader's: our loss and our batches."""

    def __init__(
        self,
        reader: Reader,
        recipe: ReaderRecipe,
        schedule: Schedule,
        validate: Callable[[Reader], dict[str, float]] | None,
        arguments: TrainingArguments,
        report: Report | None = None,
    ) -> None:
        """schedule: the items of all steps. validate: what is measured of held-out questions."""
        self.reader, self.recipe, self.validate = reader, recipe, validate
        collate = Collate(schedule.data, recipe.window(), recipe.objective().spans == "first")
        super().__init__(reader, schedule, collate, recipe.batch, recipe.save_every, arguments, report)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Adam as the paper has it."""
        if self.optimizer is None:
            learned = [p for p in self.reader.parameters() if p.requires_grad]
            self.optimizer = adam([{"params": learned}], self.args.learning_rate, self.recipe.weight_decay)
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean over this process's questions; the Trainer takes the mean over processes."""
        found: Logits = model(inputs)
        with torch.autocast(found.score.device.type, enabled=False):
            parts = losses(found, inputs, self.recipe.objective())
        self.parts = {name: value.detach() for name, value in parts.items()}
        return torch.stack(list(parts.values())).sum()

    def figures(self) -> dict[str, float]:
        """EM and F1."""
        return {} if self.validate is None else self.validate(self.reader)
