"""transformers' Trainer with the reader's loss. readerrun.py makes and starts it; all else is the Trainer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler, Subset
from transformers import PrinterCallback, Trainer, TrainingArguments

from .reader import Logits, Reader, losses
from .readerbatches import Collate, Inputs, Schedule
from .trainer import Report, SaveEvery, adam, say_figures

if TYPE_CHECKING:
    from .readerrun import ReaderRecipe


class ReaderTrainer(Trainer):
    """The Trainer with our loss and our batches."""

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
        self.report = report or (say_figures if arguments.disable_tqdm else None)
        self.parts: dict[str, Tensor] = {}
        items = Subset(schedule, range(arguments.max_steps * recipe.batch))  # what is left over makes no step
        collate = Collate(schedule.data, recipe.window(), recipe.objective().spans == "first")
        super().__init__(model=reader, args=arguments, train_dataset=items, eval_dataset=items, data_collator=collate)
        self.model_accepts_loss_kwargs = False  # so that the Trainer divides by the accumulated batches
        self.remove_callback(PrinterCallback)  # it prints on stdout
        if recipe.save_every:
            self.add_callback(SaveEvery(recipe.save_every))

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        assert self.train_dataset is not None
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]  # already shuffled, for all epochs

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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the parts of the loss."""
        if "loss" in logs:
            logs |= {f"loss_{name}": round(float(value), 4) for name, value in self.parts.items()}
        super().log(logs, start_time)
        if self.report and self.is_world_process_zero():
            self.report({"step": self.state.global_step, **logs})

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """What the Trainer asks for between steps."""
        metrics = self.measured(metric_key_prefix)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measured(self, prefix: str = "eval") -> dict[str, float]:
        """EM and F1 of held-out questions; nothing where none are held out."""
        if self.validate is None:
            return {}
        return {f"{prefix}_{name}": value for name, value in self.validate(self.reader).items()}
