"""bpr's own engine for the graphs that training/bertgraph.py writes: their constants, onto the kernel (native/bert.h).

The encoder calls it. A graph says in its metadata that it is one of these, and its constants have names; every other
graph is ONNX Runtime's. The engine computes what the graph says, with other roundings: activations have a scale for
each token, not one for a text, and GELU is closer to erf's. A text's vector is the same bits on every machine. Knows
ids and weights; nothing of text, nor of what a vector is for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput
from .kernels import native
from .onnxfile import OnnxFile

FACTS = "bpr.bert.1"  # the metadata entry; another arrangement of the constants would get another number
OUTPUTS = ("vector", "question", "logits")
TOKENS = "logits"  # the output that every token has: a reader's
GRAIN, HEAD_GRAIN = 32, 8  # what widths, and the dimensions of a head, are multiples of
MOST_WIDTH, MOST_INNER = 4096, 16384
_MOST_LAYERS = 256
PRODUCTS = ("qkv", "attention", "inner", "outer")


def fits(width: int, heads: int, inner: int, bits: int) -> bool:
    """Whether the kernel can run a BERT of these sizes."""
    if width % GRAIN or inner % GRAIN or width > MOST_WIDTH or inner > MOST_INNER or bits % 8:
        return False
    return width % heads == 0 and width // heads % HEAD_GRAIN == 0


@dataclass(frozen=True)
class Facts:
    """What a graph's metadata say of its network."""

    layers: int
    heads: int
    epsilon: float
    pooling: str
    normalize: bool

    @classmethod
    def read(cls, text: str) -> Facts:
        """From the metadata entry; InvalidInput where it is not sensible."""
        try:
            facts = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"its metadata entry {FACTS} cannot be read: {error}") from error
        whole = type(facts.layers) is int and type(facts.heads) is int
        if not whole or not 1 <= facts.layers <= _MOST_LAYERS or not 1 <= facts.heads <= MOST_WIDTH:
            raise InvalidInput(f"its metadata entry {FACTS} has no sensible numbers of layers and heads")
        if type(facts.epsilon) not in (int, float) or not 0 <= facts.epsilon < 1:
            raise InvalidInput(f"its metadata entry {FACTS} has no sensible epsilon")
        if facts.pooling not in ("mean", "cls") or type(facts.normalize) is not bool:
            raise InvalidInput(f"its metadata entry {FACTS} has no pooling that is known")
        return facts


class Bert:
    """A graph on the kernel. Threads may share one: a call is one text on the caller's thread, without the GIL."""

    name = "bpr 1"

    def __init__(self, file: OnnxFile) -> None:
        """Made by `open_bert`."""
        try:
            facts, constants = Facts.read(file.metadata[FACTS]), file.constants()
            self.inputs = {"input_ids", *(["token_type_ids"] if "segments" in constants else [])}
            self.outputs = [name for name in OUTPUTS if f"{name}.weight" in constants or f"{name}.scale" in constants]
            self._network = _network(facts, constants, self.outputs)
        except (InvalidInput, ValueError, TypeError) as error:
            raise InvalidInput(f"{file.path} is not a graph as `bpr export` makes it: {error}") from error

    def run(self, output: str, ids: NDArray[np.int64], segments: NDArray[np.int64]) -> NDArray[np.float32]:
        """ids, segments: int64[n] → float32[bits]; logits: float32[n, bits]."""
        given = segments if "token_type_ids" in self.inputs else None
        compute = self._network.encode_tokens if output == TOKENS else self._network.encode
        try:
            found: NDArray[np.float32] = compute(ids, given, self.outputs.index(output))  # [1, bits] or [n, bits]
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"a text cannot be encoded: {error}") from error
        return found if output == TOKENS else found.reshape(-1)


def has_fast_kernel() -> bool:
    """Whether this processor has more than the portable kernel, which ONNX Runtime outruns (on ARM, today)."""
    return bool(native().has_fast_bert())


def open_bert(path: Path) -> Bert | None:
    """The engine for this graph, or None if it is not one of ours."""
    file = OnnxFile.open(path)
    return Bert(file) if FACTS in file.metadata else None


def open_constants(path: Path) -> tuple[Facts, Mapping[str, NDArray[Any]]]:
    """What a graph of ours is made of, for those who compute it elsewhere (training/bytebert.py)."""
    file = OnnxFile.open(path)
    if FACTS not in file.metadata:
        raise InvalidInput(
            f"{path} is not a graph that bpr's own engine knows, so a GPU needs the model's float weights, which are "
            "not in its folder: leave --device out to encode on the CPU"
        )
    return Facts.read(file.metadata[FACTS]), file.constants()


def _network(facts: Facts, constants: Mapping[str, NDArray[Any]], outputs: list[str]) -> Any:
    """The kernel's network; its own complaints are ValueErrors and TypeErrors."""

    def get(name: str, dims: int, kind: str = "f4") -> NDArray[Any]:
        found = constants.get(name)
        if found is None or found.dtype != np.dtype(kind) or found.ndim != dims:
            raise InvalidInput(f"it needs a constant {name!r} of {dims} dimensions as {np.dtype(kind).name}")
        return np.require(found, requirements=["C", "A"])  # in the file it may lie at any byte

    def row(name: str) -> NDArray[Any]:
        return get(name, 1)[None]

    network = native().Bert(
        facts.heads,
        facts.epsilon,
        facts.pooling == "mean",
        facts.normalize,
        get("words", 2, "i1"),
        get("words.scales", 2).reshape(1, -1),
        get("places", 3).reshape(-1, get("places", 3).shape[2]),
        get("segments", 2) if "segments" in constants else None,
        row("last.gamma"),
        row("last.beta"),
    )
    for layer in range(facts.layers):
        names = [f"layer{layer}.{product}" for product in PRODUCTS]
        network.add_layer(
            [row(f"{name}.{part}") for name in names for part in ("gamma", "beta")],
            [get(f"{name}.weight", 2, "i1") for name in names],
            [row(f"{name}.scales") for name in names],
            [row(f"{name}.bias") for name in names if name.endswith(("qkv", "inner"))],
        )
    for name in outputs:
        if f"{name}.weight" in constants:
            network.add_output(get(f"{name}.weight", 2), row(f"{name}.bias"))
        else:  # no projection: a diagonal one
            scale = get(f"{name}.scale", 1)
            network.add_output(np.diag(scale), np.zeros_like(scale)[None])
    return network
