"""Text to vectors on the CPU: bpr and ONNX Runtime beside transformers in float32, in turns, on the same texts.

python benchmarks/encode.py MODEL PASSAGES [ROUNDS]      writes benchmarks/results/encode.json

MODEL: a model folder; where it has no float weights, as mini, transformers runs random ones of the same shape, which is
as fast, and sign bits are compared with nobody's. PASSAGES: a TSV or JSONL file, of which 64 are taken, evenly spaced.
The limits printed beside it are those of the dense layers alone: products of float32, measured as one large product of
torch's, and of bytes: with AVX2 64/24 of that, for two multiplications of 32 bytes and one of 16 words make 64
products, and with VNNI four times that, for one multiplication makes 64 where one of floats makes 16.
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
from bpr.kernels import Limits, simd_level
from bpr.training.tower import Tower, home, load_head, load_tower
from common import Figure, save

TEXTS, BATCH, QUESTIONS = 64, 16, 40
QUESTION = "who was the first president of the united states of america in 1789 ?"
BYTES_TO_FLOATS = {"AVX2": 64 / 24, "VNNI": 4}  # products of bytes in the time of one of floats


def random_tower(encoder: Encoder) -> Tower:
    """MiniLM's shape: what all models of this repository have."""
    from transformers import BertConfig, BertModel

    shape = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    backbone = BertModel(shape, add_pooling_layer=False)  # type: ignore[no-untyped-call]
    return Tower(backbone, load_head(None, backbone, encoder.model), encoder.model, "passage").float().eval()


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


def limits(tower: Tower, texts: list[Tokenized]) -> dict[str, float]:
    """Passages a second if the dense layers of the texts' own tokens were all there is to do, and at full speed."""
    size = 1024
    a = torch.rand(size, size)
    products = size**3 / min(seconds(lambda: a @ a) for _ in range(10))  # a second, on all threads
    layers = [part for part in tower.backbone.modules() if isinstance(part, torch.nn.Linear)]
    each = sum(layer.weight.numel() for layer in layers) * float(np.mean([len(text.ids) for text in texts]))
    kind = "VNNI" if simd_level() == "avx512" else "AVX2"
    return {"limit of float32": products / each, f"limit of bytes ({kind})": BYTES_TO_FLOATS[kind] * products / each}


def agreement(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found > 0) == (expected > 0)).mean())


def main() -> None:
    folder, source, rounds = sys.argv[1], Path(sys.argv[2]), int((sys.argv[3:] or ["4"])[0])
    everything = [(each.title, each.text) for each in passages.read(source)]
    pairs = everything[:: max(1, len(everything) // TEXTS)][:TEXTS]
    encoder, peer = Encoder.open(folder), Encoder.open(folder, engine="onnxruntime")
    own = home(encoder.folder, "passage", encoder.model).exists()
    tower = load_tower(folder, "passage").float() if own else random_tower(encoder)  # a CPU is not fast at half floats
    torch.set_num_threads(Limits().thread_count())
    texts = encoder.tokens.passages(pairs)
    order = sorted(texts, key=lambda text: len(text.ids))
    runs: dict[str, Callable[[], object]] = {
        "bpr": lambda: encoder.passages(pairs),
        "ONNX Runtime, the same graph": lambda: peer.passages(pairs),
        "transformers, as they come": lambda: run_torch(tower, texts),
        "transformers, sorted by length": lambda: run_torch(tower, order),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    questions: list[float] = []  # the median of each round
    encoder.questions([QUESTION])
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
        questions.append(
            1000 * float(np.median([seconds(lambda: encoder.questions([QUESTION])) for _ in range(QUESTIONS)]))
        )
    best = {name: len(pairs) / min(each) for name, each in times.items()}
    same: dict[str, float] = {}
    if own:
        expected = run_torch(tower, texts)
        same["bpr"] = agreement(encoder.passages(pairs), expected)
        same["ONNX Runtime"] = agreement(peer.passages(pairs), expected)
    bounds = limits(tower, texts)
    for name, rate in {**best, **bounds}.items():
        print(f"{rate:8.1f} passages/s  {rate / best['transformers, as they come']:5.2f} ×  {name}")
    figures = [
        Figure("times transformers, float32, batches of 16", best["bpr"] / best["transformers, as they come"], 3),
        Figure("ms for one question of 16 tokens, median of the best round", min(questions), 3, True, " ms"),
        *(Figure("of sign bits as in float32", share, 0.98) for share in [*same.values()][:1]),
    ]
    more = {"passages_per_second": best, "limits": bounds, "sign_bits_as_in_float32": same, "engine": encoder.engine}
    command = "python benchmarks/encode.py MODEL PASSAGES"
    save("encode", [], figures, command=command, **more, tokens=float(np.mean([len(text.ids) for text in texts])))


if __name__ == "__main__":
    main()
