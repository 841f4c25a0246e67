"""From a model folder's float weights to the ONNX graphs that encoder.py runs, in int8 or in float32.

`bpr export` and the end of a training run call it. BERT is written by hand (bertgraph.py); any other architecture goes
through torch's exporter and ONNX Runtime's quantisation, which is slower to run and somewhat further from float32.
Knows model folders and graphs; nothing of how weights were trained.
"""

from __future__ import annotations

import heapq
import logging
import random
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from .. import model as models
from ..disk import replacing, storage_error
from ..encoder import Encoder, Tokenized, Tokens
from ..errors import InvalidInput
from ..pieces import Cutter
from . import bertgraph
from .tower import Side, Tower, load_tower, vectors_of

if TYPE_CHECKING:
    from ..records import Progress

Item = TypeVar("Item")

SAMPLE_TEXTS, SAMPLE_WORDS, TITLE_WORDS = 16, 90, 4
CALIBRATION_TEXTS, LEAST_TEXTS = 256, 48  # to round weights by; of both SAMPLE_TEXTS are kept to measure with
LEAST_AGREEMENT = 0.9  # of sign bits with float32; below it the export is broken, not merely rounded
OPSET = 17


@dataclass(frozen=True)
class Exported:
    """What an export made: where, and for each side its bytes and the share of sign bits that agree with float32."""

    folder: Path
    bytes: dict[Side, int]
    agreement: dict[Side, float]


def export_onnx(
    folder: str | Path,
    out: str | Path | None = None,
    int8: bool = True,
    texts: Sequence[tuple[str, str]] | None = None,
    questions: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write passage.onnx and (unless the model is shared) question.onnx, and enter them into bpr.json.

    folder: with question_encoder/ and passage_encoder/. out: another folder, which gets the ONNX files, the tokenizer,
    the card and bpr.json, but not the float weights; None: the same folder.
    texts: (title, text) pairs of the kind that the model will read, by which int8 weights are rounded with error
    feedback (rounding.py); the first SAMPLE_TEXTS are kept apart, to measure with. None: each weight becomes the
    nearest byte, and random words tell the sizes of activations. questions: as texts; None: the texts' beginnings.
    """
    source = models.resolve(folder)
    target = source if out is None else Path(out)
    model, files = models.load(source)
    tokens = Tokens(source)
    if texts is None:
        kept = samples = _Samples.of(sample_texts(tokens), None)
    else:
        kept, samples = _Samples.of(texts, questions).split()
    names = list(files) if out is None else _copied(source, target)
    sides: list[Side] = ["passage"] if model.shared else ["question", "passage"]
    for side in sides:
        path = target / f"{side}.onnx"
        tower = load_tower(source, side)
        found = samples.tokenized(tokens, side)
        seen = [] if texts is None or not int8 else found
        if seen and model.shared:  # its one tower reads questions too
            seen = [*seen, *samples.tokenized(tokens, "question")]
        graph = graph_of(tower, found[:SAMPLE_TEXTS], int8, seen, progress)
        with replacing(path) as [file]:
            file.write(graph.SerializeToString())
        names.append(path.name)
    models.save(target, model, names)
    made = {side: (target / f"{side}.onnx").stat().st_size for side in sides}
    return Exported(target, made, {side: _agreement(source, target, side, kept) for side in sides})


def graph_of(
    tower: Tower,
    samples: Sequence[Tokenized],
    int8: bool,
    texts: Sequence[Tokenized] = (),
    progress: Progress | None = None,
) -> onnx.ModelProto:
    """The graph of a side. samples: texts to take the sizes of activations from. texts: to round weights by, if any."""
    if bertgraph.fits(tower):
        return bertgraph.bert(tower, [each.ids[None] for each in samples] if int8 else None, texts, progress)
    if texts:
        raise InvalidInput("only the weights of a BERT can be rounded by texts: export this model without them")
    return _traced(tower, samples[0], int8)


def sample_texts(tokens: Tokens | Cutter) -> list[tuple[str, str]]:
    """Random words of the vocabulary, the same ones every time: which channels are large is the network's habit."""
    words = [word for word in tokens.words() if word.isalpha()] or tokens.words()
    dice = np.random.default_rng(0)

    def draw(many: int) -> str:
        return " ".join(words[each] for each in dice.integers(0, len(words), many))

    return [(draw(TITLE_WORDS), draw(SAMPLE_WORDS)) for _ in range(SAMPLE_TEXTS)]


@dataclass(frozen=True)
class _Samples:
    """What the two sides read while a model is exported."""

    passages: Sequence[tuple[str, str]]
    questions: Sequence[str]

    @classmethod
    def of(cls, texts: Sequence[tuple[str, str]], questions: Sequence[str] | None) -> _Samples:
        """Without questions the beginnings of the texts are asked."""
        return cls(texts, [text[: len(text) // 4] for _, text in texts] if questions is None else questions)

    def split(self) -> tuple[_Samples, _Samples]:
        """Those to measure with, and those to round by."""
        passages, questions = split(self.passages, "passages"), split(self.questions, "questions")
        return _Samples(passages[0], questions[0]), _Samples(passages[1], questions[1])

    def tokenized(self, tokens: Tokens, side: Side) -> list[Tokenized]:
        """The texts of a side, one by one."""
        if side == "passage":
            return [tokens.passage(pair) for pair in self.passages]
        return [tokens.question(text) for text in self.questions]


def split(given: Sequence[Item], what: str) -> tuple[Sequence[Item], Sequence[Item]]:
    """Those to measure with, and those to round by, of which there must be enough."""
    if len(given) < LEAST_TEXTS:
        raise InvalidInput(
            f"too few {what} to round weights by ({len(given)}): give {LEAST_TEXTS} or more "
            f"({CALIBRATION_TEXTS} are better), or export without texts"
        )
    return given[:SAMPLE_TEXTS], given[SAMPLE_TEXTS:]


def drawn(items: Iterable[Item], count: int = CALIBRATION_TEXTS) -> list[Item]:
    """So many of them at random, the same ones every time, or all; in flat memory, for a pile may be large."""
    dice = random.Random(0)
    found = heapq.nsmallest(count, ((dice.random(), row, item) for row, item in enumerate(items)))
    return [item for _, _, item in found]


def _copied(source: Path, target: Path) -> list[str]:
    """Copy what an encoder needs beside its graphs; the names of it."""
    names = [name for name in (models.TOKENIZER, models.CARD) if (source / name).is_file()]
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise storage_error("write", target, error) from error
    return names


@torch.inference_mode()
def _agreement(source: Path, target: Path, side: Side, samples: _Samples) -> float:
    """The share of sign bits on which the exported side and torch's float32 agree."""
    tower, encoder = load_tower(source, side), Encoder(target)
    found = encoder.passages(samples.passages) if side == "passage" else encoder.questions(samples.questions)
    same = 0.0
    for row, text in enumerate(samples.tokenized(encoder.tokens, side)):
        ids, segments = (torch.from_numpy(each[None]) for each in text)
        expected = tower(ids, None, segments if tower.model.token_types else None)[0].numpy()
        same += float(((found[row] > 0) == (expected > 0)).mean()) / len(found)
    if same < LEAST_AGREEMENT:
        raise InvalidInput(
            f"only {same:.1%} of the {side} encoder's sign bits survived the export: ONNX Runtime does not compute "
            "this architecture as torch does; export it with int8 off (--float32), and report it"
        )
    return same


# ── Architectures that bertgraph.py does not know ────────────────────────────────────────────────────────────────────


class _Bare(nn.Module):
    """A tower as torch's exporter wants it: tensors in, the graph's outputs out."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        tower = self.tower
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = tower.backbone(input_ids=input_ids, **segments).last_hidden_state
        vector = vectors_of(hidden, None, tower.head, tower.model, tower.side)
        return (vector, vector * tower.head.sigma) if tower.model.shared else (vector,)


def _traced(tower: Tower, sample: Tokenized, int8: bool) -> onnx.ModelProto:
    """Torch's exporter, then ONNX Runtime's dynamic quantisation, then its fusions, all of them now and none later."""
    inputs = {"input_ids": sample.ids, **({"token_type_ids": sample.segments} if tower.model.token_types else {})}
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode(), warnings.catch_warnings():
        # The newer exporter needs packages of its own; this one says at every call that it is the older one.
        warnings.simplefilter("ignore")
        path = Path(scratch, "float.onnx")
        torch.onnx.export(
            _Bare(tower),
            tuple(torch.from_numpy(each[None]) for each in inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=["vector", *(["question"] if tower.model.shared else [])],
            dynamic_axes={name: {1: "n"} for name in inputs},
            opset_version=OPSET,
            dynamo=False,
        )
        return _fused(_quantized(path) if int8 else path)


def _quantized(path: Path) -> Path:
    """Products and tables as bytes; seven bits of weight, because no processor may clip (onnxgraph.py)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantized = path.with_name("int8.onnx")
    # The projection decides the bits and stays float; a Gemm is taken apart first, and its product is called so.
    projection = [f"{node.name}_MatMul" for node in onnx.load(str(path)).graph.node if node.op_type == "Gemm"]
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it advises a step that has been done, on the root logger
    try:
        quantize_dynamic(
            path,
            quantized,
            op_types_to_quantize=["MatMul", "Gather"],
            nodes_to_exclude=projection,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(before)
    return quantized


def _fused(path: Path) -> onnx.ModelProto:
    import onnxruntime

    fused = path.with_name("fused.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(fused)
    # Its fused kernel is six times as slow as the two that it replaces (bertgraph.py).
    slow = ["SkipLayerNormFusion"]
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=slow)
    return onnx.load(str(fused))
