"""`bpr train-reader`: a recipe and prepared data → a trained reader's folder, and its line in the ledger.

    NAME/                   the reader (reader.py says what is in it)
    NAME/ledger.jsonl       every setting, the data's sum, versions, device, time and figures of each run
    NAME.checkpoints/       what a run that was stopped goes on from, and TensorBoard's files

Needs neither the command line nor the compiled kernel, so that a machine with a GPU and torch will do:

    from bpr.training.readerrun import ReaderRecipe, train
    from bpr.training.readerdata import ReaderData
    train(ReaderRecipe(start="MiniLM"), ReaderData.load("reader.data"), "MiniLM/tokenizer.json", "reader")
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import set_seed

from .. import model as models
from .. import reader as readers
from ..errors import InvalidInput
from ..reader import ReaderModel
from ..spans import Mix
from .building import set_dropout
from .output import write_ledger
from .reader import Objective, Reader, begun, check_fit, save
from .readerbatches import Schedule, Window
from .readerdata import ReaderData
from .readertrainer import ReaderTrainer
from .readings import Texts, gold, judge, read, retrieved
from .recipe import LARGEST_SEED, require
from .run import arguments, check_start, device, last_checkpoint, steps_of, trained
from .trainer import Report


@dataclass(frozen=True)
class ReaderRecipe:
    """The paper's hyper-parameters for a BERT-base reader, unless a recipe says otherwise.

    For ELECTRA-large the paper has negatives = 17 and learning_rate = 1e-5.
    start: a folder (or a downloaded hub model's name) of transformers weights, a bpr model (its passage encoder), or a
    reader to go on from. batch: questions a step, over all processes, each with its positive and its negatives;
    accumulate: in so many parts. spans, over: as in reader.Objective.
    evaluate_every: steps between validations (0: at the end only); the best by select_by is kept: EM or F1 of the first
    `passages` retrieved ones, or of the gold passage alone. validate: so many held-out questions (0: all).
    """

    start: str = ""
    name: str = "reader"
    seed: int = 0
    length: int = 350
    question_length: int = 64
    token_types: bool = False
    negatives: int = 23
    spans: Literal["first", "marginal"] = "first"
    over: Literal["passage", "question"] = "passage"
    batch: int = 32
    epochs: int = 20
    learning_rate: float = 2e-5
    warmup: float = 0.06
    weight_decay: float = 0.0
    clip: float = 2.0
    dropout: float = 0.1
    accumulate: int = 1
    bf16: bool = True
    workers: int = 0
    evaluate_every: int = 0
    save_every: int = 0
    validate: int = 1000
    passages: int = 20
    select_by: Literal["em", "f1", "gold_em", "gold_f1"] = "em"
    log_every: int = 50

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for name in ("batch", "epochs", "accumulate", "log_every", "passages"):
            require(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("seed", "negatives", "workers", "evaluate_every", "save_every", "validate"):
            require(name, getattr(self, name) >= 0, "0 or more", getattr(self, name))
        require("seed", self.seed <= LARGEST_SEED, f"at most {LARGEST_SEED}", self.seed)
        for name in ("learning_rate", "weight_decay", "clip"):
            require(name, 0 <= getattr(self, name) < math.inf, "0 or more", getattr(self, name))
        for name in ("warmup", "dropout"):
            require(name, 0 <= getattr(self, name) < 1, "a share, less than 1", getattr(self, name))
        self.described()  # refuses a window that is too short

    def to_dict(self) -> dict[str, Any]:
        """As TOML has it."""
        return asdict(self)

    def objective(self) -> Objective:
        """What is minimised."""
        return Objective(self.spans, self.over)

    def window(self) -> Window:
        """What is read at once."""
        return Window(self.length, self.question_length, self.token_types)

    def described(self) -> ReaderModel:
        """The reader that this trains."""
        mix = Mix(norm=0.0) if self.over == "question" else Mix()
        shape = (self.length, self.question_length, self.token_types, self.passages)
        return ReaderModel(self.name, *shape, mix=mix)


def train(
    recipe: ReaderRecipe,
    data: ReaderData,
    tokenizer: str | Path,
    output: str | Path,
    *,
    resume: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train, save the reader's folder `output`, and write a line to its ledger; returns that line.

    resume: go on from the last checkpoint, where there is one, to exactly the weights of an unbroken run. report: is
    told the figures that are logged; without one they go to stderr, in a terminal under the Trainer's progress bar.
    """
    out = Path(output)
    checkpoints = out.absolute().with_name(out.absolute().name + ".checkpoints")
    _check(recipe, data, Path(tokenizer), out)
    schedule = Schedule(data, recipe.negatives, recipe.epochs, recipe.seed)
    steps = steps_of(recipe, schedule)
    settings = {"recipe": recipe.to_dict(), "data": data.fingerprint()}
    last = last_checkpoint(checkpoints, settings, resume)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in run.py
    set_seed(recipe.seed)
    reader = begun(recipe.start)
    used = max(int(each.flat.max(initial=0)) for each in (data.questions, data.passages))
    check_fit(reader, recipe.length, used, recipe.start)
    set_dropout(reader, recipe.dropout)
    reader.to(device())
    told = arguments(recipe, checkpoints, steps, bar=report is None and sys.stderr.isatty())
    trainer = ReaderTrainer(reader, recipe, schedule, validation(recipe, data, tokenizer), told, report)
    line = trained(trainer, settings, last, out, data.facts, {"start": recipe.start})
    if trainer.is_world_process_zero():
        line["weights"] = save(out, reader, recipe.described(), Path(tokenizer)).weights
        write_ledger(out, line)
    trainer.accelerator.wait_for_everyone()
    return line


def validation(
    recipe: ReaderRecipe, data: ReaderData, tokenizer: str | Path
) -> Callable[[Reader], dict[str, float]] | None:
    """What measures a reader on held-out questions; None where there are none."""
    questions = np.flatnonzero(data.held)
    if not len(questions):
        return None
    if recipe.validate:
        questions = np.sort(np.random.default_rng([recipe.seed, 3]).permutation(questions)[: recipe.validate])
    texts, window, mix = Texts(data, tokenizer), recipe.window(), recipe.described().mix

    def measure(reader: Reader) -> dict[str, float]:
        found = read(reader, data, questions, retrieved(data, questions, recipe.passages), window)
        own = read(reader, data, questions, gold(data, questions), window)
        alone = judge(own, data, texts, 1, mix).summary()
        return {
            **judge(found, data, texts, recipe.passages, mix).summary(),
            **{f"gold_{name}": value for name, value in alone.items()},
        }

    return measure


def _check(recipe: ReaderRecipe, data: ReaderData, tokenizer: Path, out: Path) -> None:
    """Refuse what would fail, or be silently without effect, in the middle of a run."""
    if recipe.evaluate_every and not data.held.any():
        raise InvalidInput("evaluate_every is set, but no questions are held out: prepare the data with a held share")
    if not tokenizer.is_file():
        raise InvalidInput(f"there is no tokenizer {tokenizer}")
    if data.facts.get("tokenizer") != models.sha256(tokenizer):
        raise InvalidInput(f"the data was cut by another tokenizer than {tokenizer}: prepare it anew")
    check_start(recipe.start)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out} is a file: name a folder for the reader")
    if out.exists() and not (out / readers.CONFIG).exists() and any(out.iterdir()):
        raise InvalidInput(f"{out} is not empty and holds no reader: choose another folder")
