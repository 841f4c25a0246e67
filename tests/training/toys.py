"""A world small enough to train in: 60 passages of random words, questions of words from them, a BERT of two layers.

Everything of torch is imported when it is made, so that tests that need none do not wait for it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bpr.training.data import Example
from bpr.training.prepared import Prepared, prepare

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{number}" for number in range(300)]
VOCABULARY = {token: number for number, token in enumerate([*SPECIAL, ".", "!", "?", *WORDS])}
PAD, CLS, SEP = 0, 2, 3
PASSAGES, HIDDEN = 60, 32


@dataclass(frozen=True)
class Toy:
    """Where it lies. data: a quarter or so of the questions is held out."""

    tokenizer: Path
    start: Path
    passages: Path
    examples: list[Example]
    data: Prepared

    def recipe(self, **changes: Any) -> Any:
        """A short run; settings of objective and diet by their own names."""
        from bpr.training.batches import Diet
        from bpr.training.biencoder import Objective
        from bpr.training.recipe import Recipe

        parts = {}
        for part, kind in (("objective", Objective), ("diet", Diet)):
            mine = {key: changes.pop(key) for key in list(changes) if key in kind.__dataclass_fields__}
            parts[part] = kind(**{**({"question_length": 16, "passage_length": 32} if kind is Diet else {}), **mine})
        plain = Recipe(
            start=str(self.start), name="toy", bits=64, pooling="mean", batch=16, epochs=1, learning_rate=2e-3,
            pool=1000, log_every=1, **parts,
        )  # fmt: skip
        return replace(plain, **changes)

    def train(self, recipe: Any, out: Path, **options: Any) -> dict[str, Any]:
        """Quietly."""
        from bpr.training import run

        options.setdefault("report", lambda logs: None)
        return run.train(recipe, self.data, self.tokenizer, out, **options)


def write_tokenizer(path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.save(str(path))
    return path


def write_backbone(folder: Path, seed: int = 0) -> Path:
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    logging.disable_progress_bar()
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def make_toy(folder: Path) -> Toy:
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(0)
    passages = [
        {
            "id": f"p{number}",
            "title": WORDS[number],
            "text": " . ".join(" ".join(dice.choices(WORDS, k=dice.randint(7, 12))) for _ in range(3)) + " .",
        }
        for number in range(PASSAGES)
    ]
    path = folder / "passages.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in passages))
    examples = [
        Example(
            question=" ".join(dice.sample([word for word in each["text"].split() if word != "."], 5)),
            answers=("x",),
            positives=(each["id"],) if number % 7 else (each["id"], f"p{(number + 30) % PASSAGES}"),
            negatives=tuple(f"p{(number + step) % PASSAGES}" for step in range(1, 1 + number % 4)),
            group=str(number % 30 // 3),  # the thirtieth next is of the same group
        )
        for number, each in enumerate(passages)
        for _ in range(3)
    ]
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    data = prepare(path, examples, tokenizer, held_share=0.3)
    return Toy(tokenizer, write_backbone(folder / "start"), path, examples, data)


@dataclass
class Step:
    """The loss of a run's first step, its parts, and all gradients as the optimizer sees them."""

    parts: dict[str, float]
    gradients: dict[str, Any]
    sigma: Any


def first_step(toy: Toy, recipe: Any, out: Path, change: Callable[[Any], None] | None = None) -> Step:
    """Train for one step, unclipped, and look. change: is given the trainer before it starts."""
    from transformers import TrainerCallback

    from bpr.training import run

    seen: list[Step] = []

    class Watch(TrainerCallback):
        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            bi = self.trainer.bi
            gradients = {name: each.grad.clone() for name, each in bi.named_parameters() if each.grad is not None}
            parts = {name: float(value) for name, value in self.trainer.parts.items()}
            seen.append(Step(parts, gradients, bi.passage.head.sigma.clone()))

        def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            control.should_training_stop = True

    class Watched(run.BiTrainer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.add_callback(Watch(self))
            if change:
                change(self)

    with patch.object(run, "BiTrainer", Watched):
        toy.train(replace(recipe, clip=0.0), out)
    return seen[0]
