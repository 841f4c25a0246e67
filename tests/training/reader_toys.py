"""A world small enough to learn to read in: passages of facts "w7 : w120", and questions that ask for one of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from toys import HIDDEN, VOCABULARY, WORDS, write_tokenizer

from bpr.training.data import Example
from bpr.training.readerdata import ReaderData, prepare

PASSAGES, FACTS, RETRIEVED = 60, 4, 8


@dataclass(frozen=True)
class ReaderToy:
    """Where it lies. data: a quarter or so of the questions is held out."""

    tokenizer: Path
    start: Path
    passages: Path
    examples: list[Example]
    ranked: Any  # int32[examples, RETRIEVED]
    data: ReaderData

    def recipe(self, **changes: Any) -> Any:
        from bpr.training.readerrun import ReaderRecipe

        plain = ReaderRecipe(
            start=str(self.start), name="toy", length=96, question_length=16, negatives=3, batch=16, epochs=1,
            learning_rate=2e-3, log_every=1, passages=4, validate=0,
        )  # fmt: skip
        return replace(plain, **changes)

    def train(self, recipe: Any, out: Path, **options: Any) -> dict[str, Any]:
        """Quietly."""
        from bpr.training import readerrun

        options.setdefault("report", lambda logs: None)
        return readerrun.train(recipe, self.data, self.tokenizer, out, **options)


def write_reader_backbone(folder: Path, seed: int = 0) -> Path:
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128,
    )  # fmt: skip
    logging.disable_progress_bar()
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def make_reader_toy(folder: Path) -> ReaderToy:
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(0)
    passages, examples = [], []
    for number in range(PASSAGES):
        keys = dice.sample(WORDS[:40], FACTS)
        values = dice.sample(WORDS[100:], FACTS)
        facts = " . ".join(f"{key} ! {value}" for key, value in zip(keys, values, strict=True))
        passages.append({"id": f"p{number}", "title": WORDS[200 + number], "text": f"{facts} ."})
        for key, value in zip(keys, values, strict=True):
            question = f"{WORDS[200 + number]} {key} ?"
            examples.append(Example(question, (value,), (f"p{number}",), (), group=str(number % 15)))
    path = folder / "passages.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in passages))
    random_rows = np.random.default_rng(0).integers(0, PASSAGES, (len(examples), RETRIEVED)).astype(np.int32)
    random_rows[::2, 1] = np.arange(len(examples))[::2] // FACTS  # every second one finds its own
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    data = prepare(path, examples, random_rows, tokenizer, held_share=0.3)
    return ReaderToy(tokenizer, write_reader_backbone(folder / "start"), path, examples, random_rows, data)
