"""How fast a GPU encodes and trains, from token ids, with the limit beside it.

python benchmarks/gpu.py MODEL [--passages 65536 --length 140] [--steps 200 --batch 128]

MODEL is a folder with float weights (`bpr convert encoder`). Writes benchmarks/results/gpu.json, and $OUT/gpu.json
where a machine hands $OUT back. Needs torch and transformers, and bpr's source on PYTHONPATH; no compiled kernel.
Made-up ids: no word of a text changes the time that its length takes. The limit beside it is what the network's matrix
products take alone, at the same sizes and in the same precision.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bpr.encoder import Tokenized
from bpr.training.arrays import Ragged
from bpr.training.batches import Diet
from bpr.training.biencoder import Objective
from bpr.training.encode import TorchEncoder
from bpr.training.prepared import Prepared
from bpr.training.recipe import Recipe
from bpr.training.run import train
from common import RESULTS, put

RUNS = 5
TRAININGS = 2


def seconds(work: Callable[[], Any]) -> float:
    """The median of some runs, after one that plans."""
    taken = []
    for _ in range(RUNS + 1):
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken[1:]))


def encode(model: Path, count: int, length: int, device: str) -> dict[str, float]:
    """Passages a second."""
    encoder = TorchEncoder.open(model, device)
    dice = np.random.default_rng(0)
    ids = dice.integers(1000, 20_000, (count, length))
    texts = [Tokenized(row, np.zeros_like(row)) for row in ids]
    found = {}
    for way, first in (("as it begins", 1 << 60), ("compiled", 0)):
        encoder.compile_from = first if device.startswith("cuda") else 1 << 60
        found[way] = count / seconds(lambda: encoder.encode(texts, "passage"))
    found["its matrix products alone, the limit"] = count / products(encoder, count * length, device)
    for way, speed in found.items():
        print(f"encode, {way}: {speed:,.0f} passages/s of {length} tokens", flush=True)
    return found


def products(encoder: TorchEncoder, tokens: int, device: str) -> float:
    """The matrix products of the network over so many tokens, without attention's own."""
    config: Any = encoder._tower("passage").backbone.config
    kind = torch.bfloat16 if device.startswith("cuda") else torch.float32
    wide, most, rows = config.hidden_size, config.intermediate_size, min(tokens, 1 << 17)
    x, y = (torch.randn(rows, size, device=device, dtype=kind) for size in (wide, most))
    shapes = ((3 * wide, wide), (wide, wide), (most, wide), (wide, most))
    weights = [torch.randn(*shape, device=device, dtype=kind) for shape in shapes]

    def layers() -> None:
        for _ in range(config.num_hidden_layers):
            for weight in weights:
                torch.nn.functional.linear(y if weight.shape[1] == most else x, weight)

    return seconds(layers) * tokens / rows


def steps(model: Path, batch: int, count: int, length: int, shared: bool, compile: bool) -> float:
    """Steps a second, with `batch` questions of 16 tokens and 2 passages each, as a recipe without teachers trains."""
    dice = np.random.default_rng(0)
    many = batch * count

    def ragged(size: int, of: int) -> Ragged:
        return Ragged(
            dice.integers(1000, 20_000, size * of).astype(np.uint16), np.arange(size + 1, dtype=np.int64) * of
        )

    rows = Ragged(np.arange(many, dtype=np.int32), np.arange(many + 1, dtype=np.int64))
    others = Ragged(np.roll(rows.flat, 1), rows.starts)
    held, trainable = np.zeros(many, bool), np.ones(many, bool)
    facts = {"cls": 101, "sep": 102, "pad": 0, "ends": [1012]}
    data = Prepared(ragged(many, 0), ragged(many, length), ragged(many, 14), rows, others, held, trainable, facts)
    recipe = Recipe(
        start=str(model),
        batch=batch,
        epochs=1,
        pooling="mean",
        normalize=True,
        workers=min(12, os.cpu_count() or 1),
        log_every=count,
        objective=Objective(code="float", scale=50.0),
        diet=Diet(hard=1),
        shared=shared,
        compile=compile,
    )
    how = f"{'one encoder' if shared else 'two encoders'}{', compiled' if compile else ''}"
    with tempfile.TemporaryDirectory() as folder:
        line = train(recipe, data, model / "tokenizer.json", Path(folder) / "trained", report=lambda figures: None)
    speed = float(line["steps"] / line["seconds"])
    print(f"train, {how}: {speed:.1f} steps/s of {batch} questions, {2 * batch} passages", flush=True)
    return speed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name, value in (("passages", 1 << 16), ("length", 140), ("steps", 400), ("batch", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    speeds = encode(given.model, given.passages, given.length, device)
    ways = {"two encoders": (False, False), "one encoder": (True, False)}
    if device == "cuda":
        ways["one encoder, compiled"] = (True, True)
        steps(given.model, given.batch, 50, given.length, shared=True, compile=True)  # the first steps compile
    rates = {
        way: [steps(given.model, given.batch, given.steps, given.length, *how) for _ in range(TRAININGS)]
        for way, how in ways.items()
    }
    found = {"length": given.length, "batch": given.batch, "passages_per_second": speeds, "steps_per_second": rates}
    name = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    put("gpu", "python benchmarks/gpu.py MODEL", found, {"device": name, "torch": torch.__version__})
    if "OUT" in os.environ:
        shutil.copy(RESULTS / "gpu.json", os.environ["OUT"])


if __name__ == "__main__":
    main()
