"""`bpr train`: a recipe and prepared data → a trained model folder, and its line in the ledger.

    NAME/                   the model
    NAME/ledger.jsonl       every setting, the data's sum, versions, device, time and figures of each run
    NAME.checkpoints/       what a run that was stopped goes on from, and TensorBoard's files

The command line calls it; under torchrun every process does. building.py makes what is trained, trainer.py trains it,
output.py writes it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from huggingface_hub import try_to_load_from_cache
from transformers import TrainingArguments

from .. import model as models
from ..disk import storage_error
from ..errors import InvalidInput
from . import recipe as recipes
from .batches import Schedule
from .biencoder import BiEncoder
from .building import built
from .output import LEDGER, check_output, machine, origins, save, write_ledger
from .prepared import Prepared
from .recipe import Recipe
from .tower import load_tower, refusals
from .trainer import BiTrainer, PlannedTrainer, Report
from .validation import Validation

if TYPE_CHECKING:
    from .readerrun import ReaderRecipe

SETTINGS = "run.json"  # among the checkpoints: what they were made with
CHOICE = "eval_top_100"  # what the paper chose its learning rate by
HARMLESS = ("name", "workers")  # settings that a resumed run may change


def train(
    recipe: Recipe,
    data: Prepared,
    tokenizer: str | Path,
    output: str | Path,
    *,
    resume: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train, save the model folder `output`, and write a line to its ledger; returns that line.

    resume: go on from the last checkpoint, where there is one, to exactly the weights of an unbroken run. report: is
    told the figures that are logged; without one they go to stderr, in a terminal under the Trainer's progress bar.
    """
    out = Path(output)
    checkpoints = out.absolute().with_name(out.absolute().name + ".checkpoints")
    check_inputs(recipe, data, Path(tokenizer))
    check_output(out)
    schedule = Schedule(data, recipe.diet, recipe.epochs, recipe.seed)
    steps = steps_of(recipe, schedule)
    settings = {"recipe": recipe.to_dict(), "data": data.fingerprint()}
    last = last_checkpoint(checkpoints, settings, resume)
    teachers = {role: _teacher(folder, recipe) for role, folder in _teachers(recipe).items()}
    # cuDNN's attention plans anew for every shape, and nearly every batch has its own. The published runs from trunk on
    # were made so; what it gains was not measured by itself.
    torch.backends.cuda.enable_cudnn_sdp(False)
    bi, model = built(recipe, data, device())
    if recipe.freeze == "encoders" and bi.passage.head.projection is None:
        raise InvalidInput("freeze = 'encoders' leaves nothing to learn without a projection: set project = true")
    settled = arguments(recipe, checkpoints, steps, bar=report is None and sys.stderr.isatty())
    validation = held_out(data, recipe)
    trainer = BiTrainer(bi, recipe, schedule, data.facts["pad"], validation, teachers, settled, report)
    line = trained(trainer, settings, last, out, data.facts, {"start": recipe.start, **_teachers(recipe)})
    if trainer.is_world_process_zero():
        line["weights"] = save(out, bi, model, Path(tokenizer)).weights
        write_ledger(out, line)
    trainer.accelerator.wait_for_everyone()
    return line


def trained(
    trainer: PlannedTrainer,
    settings: Mapping[str, Any],
    last: Path | None,
    out: Path,
    facts: Mapping[str, Any],
    begun_with: dict[str, str],
) -> dict[str, Any]:
    """Run it to its end; the ledger's line, but for the weights' sum.

    settings: the recipe and the data's fingerprint. begun_with: folders of models, by their roles.
    """
    checkpoints = Path(str(trainer.args.output_dir))
    begun = time.time()
    with _writing(checkpoints):
        if last is None and trainer.is_world_process_zero():
            (checkpoints / SETTINGS).write_text(json.dumps(settings))
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    state = trainer.state
    best = state.best_global_step if trainer.args.load_best_model_at_end else None
    line: dict[str, Any] = plain(
        {
            "name": settings["recipe"]["name"],
            "output": str(out),
            "seconds": round(time.time() - begun, 1),
            "resumed": None if last is None else last.name,
            "steps": state.global_step,
            "best_step": best or state.global_step,
            "metrics": trainer.measured(),
            "processes": world_size(),
            "recipe": settings["recipe"],
            "data": {**facts, "sha256": settings["data"]},
            "models": origins(begun_with),
            **machine(),
        }
    )
    return line


@contextmanager
def _writing(checkpoints: Path) -> Iterator[None]:
    """What the disk refuses the Trainer is a StorageError; TensorBoard's thread, which it ends too, says nothing."""
    hook = threading.excepthook
    threading.excepthook = lambda told: None if isinstance(told.exc_value, OSError) else hook(told)
    try:
        with refusals():
            yield
    except BrokenPipeError:  # of whoever reads what is printed
        raise
    except OSError as error:
        raise storage_error("write", checkpoints, error) from error
    finally:
        threading.excepthook = hook


class Sweep(NamedTuple):
    """The ledger's lines of all runs, and the best one's."""

    lines: list[dict[str, Any]]
    best: dict[str, Any]


def sweep(
    recipe: Recipe,
    choices: Mapping[str, Sequence[str]],
    data: Prepared,
    tokenizer: str | Path,
    output: str | Path,
    *,
    resume: bool = False,
    report: Report | None = None,
) -> Sweep:
    """Train with each of some values, e.g. {"learning_rate": ["1e-5", "2e-5"]}; of several settings, all combinations.

    Each goes into its own folder in `output`. The best is chosen as the paper did, by top-100 of the held-out
    questions; of equals, by average rank. resume: what is finished stays, what was begun goes on.
    """
    if not data.held.any():
        raise InvalidInput("no questions are held out, so nothing can be chosen: prepare the data with a held share")
    runs: dict[Path, Recipe] = {}
    for values in product(*choices.values()):
        given = dict(zip(choices, values, strict=True))
        place = ",".join(f"{key}={value}".replace(os.sep, "_") for key, value in given.items())
        runs[Path(output) / place] = replace(recipes.changed(recipe, given), name=f"{recipe.name} {place}")
    if not choices or not runs:
        raise InvalidInput("a sweep needs a setting and some values, such as learning_rate = 1e-5, 2e-5")
    for folder, each in runs.items():
        check_inputs(each, data, Path(tokenizer))
        check_output(folder)
    lines = []
    for folder, each in runs.items():
        done = finished(folder, each, data) if resume else None
        lines.append(done or train(each, data, tokenizer, folder, resume=resume, report=report))
    return Sweep(lines, max(lines, key=lambda line: (line["metrics"][CHOICE], -line["metrics"]["eval_average_rank"])))


def finished(folder: Path, recipe: Recipe, data: Prepared) -> dict[str, Any] | None:
    """The ledger's last line, if the model in this folder is what the recipe would make of the data."""
    try:
        line: dict[str, Any] = json.loads((folder / LEDGER).read_text(encoding="utf-8").splitlines()[-1])
        same = line["recipe"] == plain(recipe.to_dict()) and line["data"]["sha256"] == data.fingerprint()
        return line if same and models.load(folder)[0].weights == line["weights"] else None
    except (OSError, ValueError, LookupError, InvalidInput):
        return None


def held_out(data: Prepared, recipe: Recipe) -> Validation | None:
    """The held-out questions against their own passages and a pool of others."""
    questions = [int(i) for i in np.flatnonzero(data.held)]
    if not questions:
        return None
    gold = np.unique(np.concatenate([data.positives[i] for i in questions]))
    others = np.setdiff1d(np.flatnonzero(data.trainable), gold)
    random = np.random.default_rng([recipe.seed, 3])
    pool = np.concatenate([gold, random.choice(others, min(recipe.pool, len(others)), replace=False)])
    place = {int(row): i for i, row in enumerate(pool)}
    return Validation(
        [data.question(i, recipe.diet.question_length) for i in questions],
        [data.passage(int(row), recipe.diet.passage_length, recipe.diet.titles > 0) for row in pool],
        [np.array([place[int(row)] for row in data.positives[i]], np.int32) for i in questions],
        data.facts["pad"],
    )


# ── Before any work ──────────────────────────────────────────────────────────────────────────────────────────────────


def check_inputs(recipe: Recipe, data: Prepared, tokenizer: Path) -> None:
    """Refuse what would fail, or be silently without effect, in the middle of a run."""
    if recipe.evaluate_every and not data.held.any():
        raise InvalidInput("evaluate_every is set, but no questions are held out: prepare the data with a held share")
    if not tokenizer.is_file():
        raise InvalidInput(f"there is no tokenizer {tokenizer}")
    if data.facts.get("tokenizer", "") not in ("", models.sha256(tokenizer)):
        raise InvalidInput(f"the data was cut by another tokenizer than {tokenizer}: prepare it anew")
    check_start(recipe.start)
    if bool(_teachers(recipe)) != bool(recipe.objective.distill):
        raise InvalidInput("objective.distill needs a teacher or an anchor, and they need it")
    if recipe.anchor and not recipe.diet.pairs:
        raise InvalidInput("the anchor teaches made-up pairs, and diet.pairs is 0")
    if recipe.shared and not recipe.question_bias:
        raise InvalidInput("shared encoders have one projection: question_bias = false needs two")
    if recipe.diet.neighbours and not recipe.diet.pairs:
        raise InvalidInput("diet.neighbours come with made-up pairs, and diet.pairs is 0")
    for role, folder in _teachers(recipe).items():
        model, _ = models.load(folder)
        if model.planes == 2:
            raise InvalidInput(f"{folder} has two planes: a {role} must be a float model")


def check_start(start: str) -> None:
    """Refuse a start that is not on this machine."""
    if not start:
        raise InvalidInput("the recipe has no start: name a folder of transformers weights, or a bpr model")
    if models.resolve(start).is_dir():
        return
    try:
        known = isinstance(try_to_load_from_cache(start, "config.json"), str)
    except ValueError:  # no name that the hub could have
        known = False
    if not known:
        raise InvalidInput(f"start = {start!r} is neither a folder here nor a hub model that was downloaded before")


def steps_of(recipe: Recipe | ReaderRecipe, schedule: Sized) -> int:
    """Optimizer steps of a run; each has as many questions as the recipe says, over all processes."""
    parts = world_size() * recipe.accumulate
    if recipe.batch % parts:
        raise InvalidInput(f"batch = {recipe.batch} must be a multiple of {parts}: processes × accumulate")
    steps = len(schedule) // recipe.batch
    if not steps:
        raise InvalidInput(f"{len(schedule)} questions over all epochs are not one batch of {recipe.batch}")
    return steps


def last_checkpoint(folder: Path, settings: Mapping[str, Any], resume: bool) -> Path | None:
    """What to go on from: the last checkpoint that was written to its end."""
    states = folder.glob("checkpoint-*/trainer_state.json")  # it is written last
    found = sorted((state.parent for state in states), key=lambda path: int(path.name.rpartition("-")[2]))
    if not found:
        return None
    if not resume:
        raise InvalidInput(f"{folder} holds {found[-1].name} of an earlier run: resume it, or delete that folder")
    try:
        before = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{folder / SETTINGS}, which says how the run began, cannot be read: {error}") from error
    now = plain(settings)
    changed = [key for key in now["recipe"] if now["recipe"][key] != before["recipe"].get(key) and key not in HARMLESS]
    if now["data"] != before["data"]:
        changed.append("the data")
    if changed:
        raise InvalidInput(f"{folder} belongs to a run with other settings ({', '.join(changed)}): it cannot go on")
    return found[-1]


# ── What the Trainer is told ─────────────────────────────────────────────────────────────────────────────────────────


def arguments(recipe: Recipe | ReaderRecipe, folder: Path, steps: int, bar: bool = False) -> TrainingArguments:
    """As a recipe has them; a reader's recipe calls them by the same names."""
    gpu = torch.cuda.is_available()
    every = recipe.evaluate_every
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=recipe.batch // world_size() // recipe.accumulate,
        gradient_accumulation_steps=recipe.accumulate,
        learning_rate=recipe.learning_rate,
        warmup_steps=math.ceil(steps * recipe.warmup),
        lr_scheduler_type="linear",
        max_grad_norm=recipe.clip,
        weight_decay=recipe.weight_decay,
        bf16=recipe.bf16 and gpu,
        use_cpu=not gpu,
        seed=recipe.seed,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,  # looking at every step's loss would make the host wait for it
        eval_strategy="steps" if every else "no",
        eval_steps=every or None,
        save_strategy="steps" if every or recipe.save_every else "no",
        save_steps=every or recipe.save_every or 500,  # with both, trainer.py adds those of save_every
        save_total_limit=2,
        load_best_model_at_end=bool(every),
        metric_for_best_model=f"eval_{recipe.select_by}",
        greater_is_better=recipe.select_by != "average_rank",
        dataloader_num_workers=recipe.workers,
        dataloader_drop_last=True,
        dataloader_pin_memory=gpu,
        accelerator_config={"non_blocking": gpu},  # a batch travels while the last one is worked on
        remove_unused_columns=False,
        report_to=["tensorboard"] if find_spec("tensorboard") else [],
        disable_tqdm=not bar,
    )


def world_size() -> int:
    """How many processes train together: torchrun says so."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def device() -> str:
    """This process's own GPU, if there are any."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def _teachers(recipe: Recipe) -> dict[str, str]:
    """The folders of those that are given, by their roles."""
    return {role: folder for role, folder in (("teacher", recipe.teacher), ("anchor", recipe.anchor)) if folder}


def _teacher(folder: str, recipe: Recipe) -> BiEncoder:
    return BiEncoder(load_tower(folder, "question"), load_tower(folder, "passage"), recipe.objective)


def plain(settings: Mapping[str, Any]) -> Any:
    """As JSON gives them back."""
    return json.loads(json.dumps(settings))
