"""transformers' Trainer with the paper's loss: negatives of the global batch, gradient caching, teachers, validation.

run.py makes and starts it. Optimizer steps, bf16, several GPUs, checkpoints and resume are the Trainer's; the loss is
biencoder.py's. It knows no folder but its checkpoints'.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler, Subset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .batches import Collate, Item
from .biencoder import Batch, BiEncoder, outputs
from .recipe import Recipe
from .tower import Side
from .validation import Validation

Inputs: TypeAlias = dict[str, Any]  # what batches.Collate gives
Report: TypeAlias = Callable[[Mapping[str, float]], None]  # is told the figures that are logged
RandomState: TypeAlias = tuple[Tensor, Tensor | None]


class PlannedTrainer(Trainer):
    """The Trainer over items whose order is settled, that reports the parts of its loss and measures what is held out.

    What is trained says how: `compute_loss` fills `parts`, `extras` are logged beside them, `figures` are measured.
    """

    def __init__(
        self,
        model: nn.Module,
        items: Dataset[Any],
        collate: Callable[[list[Any]], Inputs],
        batch: int,
        save_every: int,
        arguments: TrainingArguments,
        report: Report | None,
    ) -> None:
        """items: of all steps, in their order, `batch` of them a step."""
        self.report = report or (say_figures if arguments.disable_tqdm else None)
        self.parts: dict[str, Tensor] = {}
        items = Subset(items, range(arguments.max_steps * batch))  # what is left over makes no step
        super().__init__(model=model, args=arguments, train_dataset=items, eval_dataset=items, data_collator=collate)
        self.model_accepts_loss_kwargs = False  # so that the Trainer divides by the accumulated batches
        self.remove_callback(PrinterCallback)  # it prints on stdout
        if save_every:
            self.add_callback(SaveEvery(save_every))

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        assert self.train_dataset is not None
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]  # already shuffled, for all epochs

    def extras(self) -> dict[str, float]:
        """What else is logged with the loss."""
        return {}

    def figures(self) -> dict[str, float]:
        """What is measured of held-out questions; nothing where none are held out."""
        raise NotImplementedError

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the parts of the loss."""
        if "loss" in logs:
            logs |= {f"loss_{name}": round(float(value), 4) for name, value in self.parts.items()} | self.extras()
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
        """The figures, by the Trainer's names."""
        return {f"{prefix}_{name}": value for name, value in self.figures().items()}


class BiTrainer(PlannedTrainer):
    """The bi-encoder's: our loss and our batches."""

    def __init__(
        self,
        bi: BiEncoder,
        recipe: Recipe,
        items: Dataset[Item],
        pad: int,
        validation: Validation | None,
        teachers: Mapping[str, BiEncoder],
        arguments: TrainingArguments,
        report: Report | None = None,
    ) -> None:
        """items: of all steps, in their order. teachers: "teacher" for questions, "anchor" for made-up pairs."""
        self.bi, self.recipe, self.validation, self.teachers = bi, recipe, validation, teachers
        super().__init__(bi, items, Collate(pad), recipe.batch, recipe.save_every, arguments, report)
        for teacher in teachers.values():
            teacher.float().to(self.args.device).eval().requires_grad_(False)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Adam as the paper has it; a fresh head may learn faster than weights that were trained for long."""
        if self.optimizer is None:
            heads = {id(p) for tower in (self.bi.question, self.bi.passage) for p in tower.head.parameters()}
            learned = [p for p in self.bi.parameters() if p.requires_grad]
            rate = self.args.learning_rate
            groups: list[dict[str, Any]] = [
                {"params": [p for p in learned if id(p) not in heads]},
                {"params": [p for p in learned if id(p) in heads], "lr": rate * self.recipe.head_rate},
            ]
            self.optimizer = adam(groups, rate, self.recipe.weight_decay)
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss over the global batch."""
        tokens = None if isinstance(model, nn.DataParallel) else inputs["tokens"]  # that would split the texts
        sides = ("question_ids", "question_mask", "passage_ids", "passage_mask")
        e_q, e_p = model(*(inputs[name] for name in sides), tokens)
        return self.loss(e_q.float(), e_p.float(), inputs)

    def loss(self, e_q: Tensor, e_p: Tensor, inputs: Inputs) -> Tensor:
        """From this process's outputs: those of all processes are gathered first.  e_q: [q, bits], e_p: [p, bits]"""
        own = ("positive", "rows", "owned", "real")
        whole = gathered({"e_q": e_q, "e_p": e_p, **{name: inputs[name] for name in own}, **self._taught(inputs)})
        batch = Batch(
            whole["positive"],
            whole["rows"],
            whole["owned"],
            torch.where(whole["real"], 1.0, self.recipe.pair_weight),
            self._teachers_scores(whole),
        )
        if self.bi.training and self.bi.objective.code == "bits":
            self.bi.watch_spread(whole["e_q"], whole["e_p"])
        step, steps = self.state.global_step, self.state.max_steps
        with torch.autocast(e_q.device.type, enabled=False):  # older Trainers compute losses in half precision too
            parts = self.bi.losses(whole["e_q"], whole["e_p"], batch, step, steps)
        self.parts = {name: value.detach() for name, value in parts.items()}
        return torch.stack(list(parts.values())).sum()

    def training_step(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any = None) -> Tensor:
        """Plain, or with gradient caching: outputs first without a graph, then the loss, then each chunk again."""
        if not self.recipe.chunk:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        inputs = self._prepare_inputs(inputs)
        pieces = list(_pieces(inputs, self.recipe.chunk))
        states: list[RandomState] = []
        found: dict[str, list[Tensor]] = {"question": [], "passage": []}
        with torch.no_grad():
            for piece in pieces:
                states.append(_random_state(piece.ids.device))
                found[piece.side].append(self._outputs(self.bi, piece))
        after = _random_state(self.args.device)
        leaves = {side: torch.cat(some).requires_grad_() for side, some in found.items()}  # [q, bits], [p, bits]
        loss = self.loss(leaves["question"], leaves["passage"], inputs) / self.args.gradient_accumulation_steps
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {side: iter(_gradient(leaf).split(self.recipe.chunk)) for side, leaf in leaves.items()}  # type: ignore[no-untyped-call]
        for piece, state in zip(pieces, states, strict=True):
            _restore(state, piece.ids.device)  # the same dropout as the first time
            self._outputs(self.bi, piece).backward(next(gradients[piece.side]))  # type: ignore[no-untyped-call]
        _restore(after, self.args.device)
        if several() and self.accelerator.sync_gradients:  # what DistributedDataParallel does where it sees the model
            average_gradients(self.bi)
        return loss.detach()

    def _outputs(self, bi: BiEncoder, piece: Piece) -> Tensor:
        """In the precision of the run.  float32 [n, bits]"""
        with self.accelerator.autocast():  # here no wrapper of the model sees to it
            return outputs(bi.question if piece.side == "question" else bi.passage, piece.ids, piece.mask).float()

    @torch.no_grad()
    def _taught(self, inputs: Inputs) -> dict[str, Tensor]:
        """The teachers' outputs, 0 where they are not asked: by name, [q, bits of the teacher] and [p, …]."""
        found: dict[str, Tensor] = {}
        if not self.teachers:
            return found
        found["made"] = inputs["made"]
        for role, teacher in self.teachers.items():
            rows, columns = _whom(role, inputs["real"], found["made"])
            for side, chosen in (("question", rows), ("passage", columns)):
                e = torch.zeros(len(chosen), teacher.passage.model.bits, device=chosen.device)
                some = {f"{side}_{what}": inputs[f"{side}_{what}"][chosen] for what in ("ids", "mask")}
                if chosen.any():
                    size = self.recipe.chunk or len(chosen)
                    e[chosen] = torch.cat([self._outputs(teacher, piece) for piece in _side_pieces(some, side, size)])
                found[f"{role} {side}"] = e
        return found

    def _teachers_scores(self, whole: Mapping[str, Tensor]) -> Tensor | None:
        """A question's over the questions' passages, a made-up pair's over the pairs'; elsewhere −inf.  [q, p]"""
        if not self.teachers:
            return None
        scores = whole["e_q"].new_full((len(whole["e_q"]), len(whole["e_p"])), -math.inf)
        for role in self.teachers:
            scale = self.recipe.teacher_scale if role == "teacher" else self.recipe.anchor_scale
            rows, columns = _whom(role, whole["real"], whole["made"])
            theirs = whole[f"{role} question"] @ whole[f"{role} passage"].T * scale
            scores = torch.where(rows.unsqueeze(1) & columns, theirs, scores)
        return scores

    def extras(self) -> dict[str, float]:
        """β, while there are bits."""
        objective = self.recipe.objective
        if objective.code == "float":
            return {}
        return {"beta": round(objective.beta(self.state.global_step, self.state.max_steps), 4)}

    def figures(self) -> dict[str, float]:
        """The paper's average rank, and top-k."""
        return {} if self.validation is None else self.validation.measure(self.bi)


def adam(groups: list[dict[str, Any]], rate: float, decay: float) -> torch.optim.Optimizer:
    """As the paper has it."""
    learned = [group for group in groups if group["params"]]
    gpu = torch.cuda.is_available()
    return torch.optim.AdamW(learned, lr=rate, betas=(0.9, 0.999), eps=1e-6, weight_decay=decay, fused=gpu)


class SaveEvery(TrainerCallback):
    """Checkpoints to resume from, beside those of validations."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any
    ) -> TrainerControl:
        """Ask for one."""
        if state.global_step % self.every == 0:
            control.should_save = True
        return control


def say_figures(logs: Mapping[str, float]) -> None:
    """On stderr, where nobody else is told."""
    print("  ".join(f"{name} {value:.6g}" for name, value in logs.items()), file=sys.stderr)


# ── Teachers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _whom(role: str, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
    """The questions and the passages that a teacher scores.  bool [q], [p]"""
    return (real, ~made) if role == "teacher" else (~real, made)


# ── Gradient caching ─────────────────────────────────────────────────────────────────────────────────────────────────


class Piece(NamedTuple):
    """Texts of a side that go through the encoder together.  ids, mask: int64 [n, tokens]"""

    side: Side
    ids: Tensor
    mask: Tensor


def _pieces(inputs: Inputs, size: int) -> Iterator[Piece]:
    for side in ("question", "passage"):
        yield from _side_pieces(inputs, side, size)


def _side_pieces(inputs: Inputs, side: Any, size: int) -> Iterator[Piece]:
    for ids, mask in zip(inputs[f"{side}_ids"].split(size), inputs[f"{side}_mask"].split(size), strict=True):
        yield Piece(side, ids, mask)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _random_state(device: torch.device) -> RandomState:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _restore(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


# ── Several processes ────────────────────────────────────────────────────────────────────────────────────────────────


def several() -> bool:
    """Whether torchrun has started more processes than this one."""
    return dist.is_initialized() and dist.get_world_size() > 1


def gathered(mine: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of all processes, one below the other in the order of ranks; columns are added where some have fewer.

    Every process then computes the same loss of the whole batch, so each has the whole gradient of its own outputs
    already; nothing needs to travel back. It is multiplied by the number of processes because gradients of weights are
    averaged over them, not summed: together exactly the gradient of one process with the whole batch.
    """
    if not several():
        return mine
    shapes = _shapes(mine)
    before = sum(int(rows) for rows, _ in shapes["rows"][: dist.get_rank()])
    mine = {**mine, "positive": mine["positive"] + before}  # the column in the global batch
    return {name: torch.cat(_everyones(tensor, shapes[name], name == "owned")) for name, tensor in mine.items()}


def _shapes(mine: dict[str, Tensor]) -> dict[str, list[list[int]]]:
    """Rows and columns of each process's tensors."""
    sizes = [[len(tensor), tensor.shape[1] if tensor.dim() > 1 else 0] for tensor in mine.values()]
    own = torch.tensor(sizes, device=next(iter(mine.values())).device)  # [tensors, 2]
    everyones = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    table = torch.stack(everyones, 1).tolist()  # [tensors, processes, 2]
    return dict(zip(mine, table, strict=True))


def _everyones(mine: Tensor, shapes: list[list[int]], fill_none: bool) -> list[Tensor]:
    """Each process's tensor; my own with its graph."""
    most, columns = (max(each) for each in zip(*shapes, strict=True))
    margins = (0, most - len(mine)) if mine.dim() == 1 else (0, columns - mine.shape[1], 0, most - len(mine))
    even = nn.functional.pad(mine.detach().to(_carried(mine)), margins, value=-1 if fill_none else 0).contiguous()
    parts = [torch.empty_like(even) for _ in shapes]
    dist.all_gather(parts, even)
    whole = [part[:rows].to(mine.dtype) for part, (rows, _) in zip(parts, shapes, strict=True)]
    if mine.requires_grad:
        live = mine.clone()
        live.register_hook(lambda gradient: gradient * len(shapes))  # type: ignore[no-untyped-call]
        whole[dist.get_rank()] = live
    return whole


def _carried(tensor: Tensor) -> torch.dtype:
    return torch.uint8 if tensor.dtype == torch.bool else tensor.dtype  # not every backend carries booleans


def average_gradients(bi: nn.Module) -> None:
    """Over the processes, as DistributedDataParallel does."""
    for parameter in bi.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
