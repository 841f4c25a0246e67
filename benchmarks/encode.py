"""Text to vectors on the CPU: ONNX Runtime as bpr runs it, beside transformers in float32, in turns, on the same texts.

python benchmarks/encode.py MODEL PASSAGES [ROUNDS]      writes benchmarks/results/encode.json

MODEL: a model folder with float weights and ONNX. PASSAGES: a TSV or JSONL file, of which 256 are taken, evenly spaced.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bpr import passages
from bpr.encoder import Encoder, Tokenized
from bpr.kernels import Limits
from bpr.training.tower import Tower, load_tower
from common import Figure, save

TEXTS, BATCH = 256, 16
QUESTION = "who was the first president of the united states of america in 1789 ?"


def run_torch(tower: Tower, texts: list[Tokenized]) -> np.ndarray:
    """Batches of 16 in the order given, padded to their longest: what a plain loop over transformers does."""
    found = []
    with torch.inference_mode():
        for first in range(0, len(texts), BATCH):
            some = texts[first : first + BATCH]
            longest = max(len(text.ids) for text in some)
            ids = np.stack([np.pad(text.ids, (0, longest - len(text.ids))) for text in some])
            mask = np.stack([np.arange(longest) < len(text.ids) for text in some]).astype(np.int64)
            found.append(tower(torch.from_numpy(ids), torch.from_numpy(mask)).numpy())
    return np.concatenate(found)


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    folder, source, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int((sys.argv[3:] or ["5"])[0])
    everything = [(each.title, each.text) for each in passages.read(source)]
    pairs = everything[:: max(1, len(everything) // TEXTS)][:TEXTS]
    encoder, tower = Encoder.open(folder), load_tower(folder, "passage")
    torch.set_num_threads(Limits().thread_count())
    texts = encoder.tokens.passages(pairs)
    order = sorted(texts, key=lambda text: len(text.ids))
    runs: dict[str, Callable[[], object]] = {
        "bpr": lambda: encoder.passages(pairs),
        "transformers, as they come": lambda: run_torch(tower, texts),
        "transformers, sorted by length": lambda: run_torch(tower, order),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    questions = []
    encoder.questions([QUESTION])
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
        questions += [1000 * seconds(lambda: encoder.questions([QUESTION])) for _ in range(30)]
    best = {name: len(pairs) / min(each) for name, each in times.items()}
    same = (encoder.passages(pairs) > 0) == (run_torch(tower, texts) > 0)
    figures = [
        Figure("times transformers, float32, batches of 16", best["bpr"] / best["transformers, as they come"], 3),
        Figure("ms for one question of 17 tokens", float(np.median(questions)), 3, True, " ms"),
        Figure("of sign bits as in float32", float(same.mean()), 0.98),
    ]
    more = {"passages_per_second": best, "tokens": float(np.mean([len(text.ids) for text in texts]))}
    for name, rate in best.items():
        print(f"{rate:8.1f} passages/s  {name}")
    save("encode", [], figures, **more)


if __name__ == "__main__":
    main()
