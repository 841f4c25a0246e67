"""BERT as an ONNX graph, written by hand: fewer and faster nodes than an exporter's, and int8 close to float32.

export.py calls it for every backbone of the type "bert" (BERT, MiniLM, DPR, the authors' BPR). It knows tensors and
ONNX's operators; nothing of folders or text. One text a call, so there is no padding and no mask. The constants have
names and the metadata an entry, by which bpr's own engine reads the file (bpr/bert.py); what follows is about ONNX
Runtime, which runs it too.

What is done for speed: one product for query, key and value; attention and GELU as one operator each; ONNX Runtime's
LayerNormalization, which is six times as fast as its fused SkipLayerNormalization; the head folded into one product.

What is done for closeness (sign bits that agree with float32's, all-MiniLM-L6-v2 on Wikipedia passages: plain dynamic
int8 96.4 %, this 98.5 %):

1. Weights are signed bytes with one scale for each output, such that no *pair* of products overflows 16 bits:
   processors without VNNI add two products of unsigned activation × signed weight in saturating 16 bits. Seven-bit
   weights are the usual answer to that; a bound on the sum of two neighbours keeps most of the eighth bit.
   The integer part of the network then gives the same numbers on every processor.
2. A few channels of BERT's layer norms are much larger than the rest, and activations have one scale for a whole text.
   Each such channel is divided by a factor in the norm and its weights are multiplied by it (SmoothQuant).
3. Behind the GELU it is single tokens that are large: each token is divided by its maximum, and the result multiplied.
4. With texts to look at, weights are not rounded to the nearest byte, but so that what one does wrong the others make
   up for, on inputs as those texts give them (rounding.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from .. import bert as engine
from ..encoder import Tokenized
from ..model import Model
from .onnxgraph import MICROSOFT, Graph
from .rounding import Doubles, Floats
from .tower import Head, Tower

if TYPE_CHECKING:
    from ..records import Progress

SMOOTHING = 0.7  # how much of a channel's size moves from the activations to the weights
ROW_FLOOR = 0.5  # below it a token is not scaled up further: GELU's smallest value, −0.17, would take half of the range


def fits(tower: Tower) -> bool:
    """Whether the backbone is a BERT as this file writes it."""
    config: Any = tower.backbone.config
    if config.model_type != "bert":
        return False
    plain = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return bool(plain and config.hidden_act == "gelu" and not config.is_decoder)


@dataclass(frozen=True)
class Seen:
    """What the dense layers were given, by their names; empty where nobody looked."""

    sizes: Mapping[str, Floats]  # the largest |value| of each channel: float32[in]
    products: Mapping[str, Doubles]  # XᵀX of all tokens X: float64[in, in]

    def divided(self, name: str, factors: Floats) -> Doubles | None:
        """The products of inputs whose channels are divided by these factors."""
        found = self.products.get(name)
        return None if found is None else found / np.outer(factors, factors)


def bert(
    tower: Tower,
    samples: Sequence[NDArray[np.int64]] | None,
    texts: Sequence[Tokenized] = (),
    progress: Progress | None = None,
    tokens: bool = False,
) -> onnx.ModelProto:
    """input_ids int64[1, n] (and token_type_ids, where the model has them) → vector float32[1, bits].

    samples: ids int64[1, n] of some texts, of which the sizes of channels are taken for int8; None: stay in float32.
    texts: by which int8 weights are rounded with error feedback; none: each to the nearest byte.
    A shared model's graph also has the output `question`: the same without the division by σ.
    tokens: a reader's graph, whose head is every token's: → logits float32[1, n, bits].
    """
    config: Any = tower.backbone.config
    values = {name: tensor.detach().float().cpu().numpy() for name, tensor in tower.backbone.state_dict().items()}
    graph = Graph(int8=samples is not None)
    say = progress or (lambda what, done, total: None)
    seen = Seen(
        {} if samples is None else channel_sizes(tower.backbone, samples),
        input_products(tower.backbone, texts, lambda done: say(f"{tower.side}s: reading", done, len(texts))),
    )
    norm = _embeddings(graph, values, tower.model, config)
    for layer in range(config.num_hidden_layers):
        say(f"{tower.side}s: layers", layer, config.num_hidden_layers)
        norm = _layer(graph, values, seen, layer, norm, config)
    last = norm("last")
    outputs = token_head(graph, last, tower.head) if tokens else head(graph, last, tower.head, tower.model, tower.side)
    inputs = ["input_ids", *(["token_type_ids"] if tower.model.token_types else [])]
    return graph.model(inputs, outputs, tower.model.bits, facts_of(tower) if graph.int8 else None, tokens)


def facts_of(tower: Tower) -> dict[str, str]:
    """What bpr's own engine has to know beside the constants (bpr/bert.py); nothing if it cannot run this one."""
    config: Any = tower.backbone.config
    if not engine.fits(config.hidden_size, config.num_attention_heads, config.intermediate_size, tower.model.bits):
        return {}
    facts = {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "epsilon": config.layer_norm_eps,
        "pooling": tower.model.pooling,
        "normalize": tower.model.normalize,
    }
    return {engine.FACTS: json.dumps(facts)}


# ── What the layers are given ────────────────────────────────────────────────────────────────────────────────────────


def channel_sizes(backbone: nn.Module, samples: Sequence[NDArray[np.int64]]) -> dict[str, Floats]:
    """For each dense layer by its name the largest |value| of each of its input channels: float32[in]."""
    sizes: dict[str, Floats] = {}

    def watch(name: str, rows: torch.Tensor) -> None:
        found = rows.abs().amax(0).cpu().numpy()
        sizes[name] = np.maximum(sizes.get(name, found), found)

    for ids in samples:
        _watched(backbone, Tokenized(ids[0], np.zeros_like(ids[0])), watch)
    return sizes


def input_products(
    backbone: nn.Module, texts: Iterable[Tokenized], tell: Callable[[int], None] = lambda done: None
) -> dict[str, Doubles]:
    """For each dense layer by its name XᵀX of its inputs X, all tokens of all texts: float64[in, in].

    Key and value are given what query is, and are left out. tell: is told how many texts are done.
    """
    sums: dict[str, torch.Tensor] = {}

    def watch(name: str, rows: torch.Tensor) -> None:
        if name.endswith((".key", ".value")):
            return
        # Channels differ by orders of magnitude: with sums in float32 the small ones could lose their definiteness.
        rows = rows.double()
        if name not in sums:
            sums[name] = rows.new_zeros(rows.shape[1], rows.shape[1])
        sums[name].addmm_(rows.T, rows)

    for done, text in enumerate(texts, 1):
        _watched(backbone, text, watch)
        tell(done)
    return {name: found.cpu().numpy() for name, found in sums.items()}


@torch.inference_mode()
def _watched(backbone: nn.Module, text: Tokenized, watch: Callable[[str, torch.Tensor], None]) -> None:
    """Run the backbone on a text; each dense layer's name and inputs float[n, in] are shown to `watch`."""
    layers = [(name, part) for name, part in backbone.named_modules() if isinstance(part, nn.Linear)]
    hooks = [
        part.register_forward_pre_hook(lambda _, given, name=name: watch(name, given[0].flatten(0, -2)))
        for name, part in layers
    ]
    try:
        ids, segments = (torch.from_numpy(each[None]) for each in text)
        backbone(input_ids=ids, token_type_ids=segments)
    finally:
        for hook in hooks:
            hook.remove()


# ── The network ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Norm:
    """A sum whose layer norm is still to be taken: once for the next dense layer, once for the residual."""

    graph: Graph
    x: str
    gamma: Floats
    beta: Floats
    epsilon: float

    def __call__(self, name: str, divided: Floats | float = 1.0, plus: Floats | float = 0.0) -> str:
        """Its norm, with each channel divided, and something added. name: of what it is for."""
        gamma = self.graph.const(self.gamma / divided, f"{name}.gamma")
        beta = self.graph.const(self.beta / divided + plus, f"{name}.beta")
        return self.graph.op("LayerNormalization", [self.x, gamma, beta], axis=-1, epsilon=self.epsilon)


def _norm(graph: Graph, x: str, values: Mapping[str, Floats], name: str, config: Any) -> _Norm:
    return _Norm(graph, x, values[f"{name}.weight"], values[f"{name}.bias"], config.layer_norm_eps)


def _embeddings(graph: Graph, values: Mapping[str, Floats], model: Model, config: Any) -> _Norm:
    """Word + position + segment."""
    longest = max(model.question_length, model.passage_length)
    segments, places = (values[f"embeddings.{kind}_embeddings.weight"] for kind in ("token_type", "position"))
    places = places[:longest] if model.token_types else places[:longest] + segments[0]
    x = graph.rows(values["embeddings.word_embeddings.weight"], "input_ids", "words")  # [1, n, hidden]
    length = graph.op("Shape", ["input_ids"], start=1, end=2)
    first, axis = graph.const(np.zeros(1, np.int64)), graph.const(np.ones(1, np.int64))
    x = graph.op("Add", [x, graph.op("Slice", [graph.const(places[None], "places"), first, length, axis])])
    if model.token_types:
        x = graph.op("Add", [x, graph.op("Gather", [graph.const(segments, "segments"), "token_type_ids"])])
    return _norm(graph, x, values, "embeddings.LayerNorm", config)


def _layer(graph: Graph, values: Mapping[str, Floats], seen: Seen, layer: int, norm: _Norm, config: Any) -> _Norm:
    """Attention, then the two dense layers, each with its residual: post-norm, as BERT is."""
    name, mine = f"encoder.layer.{layer}.", f"layer{layer}."
    parts = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
    weight, bias = (np.concatenate([values[f"{part}.{what}"] for part in parts]) for what in ("weight", "bias"))
    factors = smoothing(weight, seen.sizes.get(parts[0]))
    x, products = norm(f"{mine}qkv", divided=factors), seen.divided(parts[0], factors)
    x = graph.dense(x, weight * factors, bias, f"{mine}qkv", products)  # [1, n, 3·hidden]
    heads = graph.ops("Split", [x], 3, axis=2, num_outputs=3)
    x = graph.op("MultiHeadAttention", heads, MICROSOFT, num_heads=config.num_attention_heads)
    out = f"{name}attention.output"
    products = seen.products.get(f"{out}.dense")
    x = graph.dense(x, values[f"{out}.dense.weight"], name=f"{mine}attention", products=products)
    x = graph.op("Add", [x, norm(f"{mine}attention", plus=values[f"{out}.dense.bias"])])
    norm = _norm(graph, x, values, f"{out}.LayerNorm", config)

    inner, outer = f"{name}intermediate.dense", f"{name}output"
    factors = smoothing(values[f"{inner}.weight"], seen.sizes.get(inner))
    x, products = norm(f"{mine}inner", divided=factors), seen.divided(inner, factors)
    x = graph.dense(x, values[f"{inner}.weight"] * factors, values[f"{inner}.bias"], f"{mine}inner", products)
    # The tanh form is less than 0.0005 from erf's, far below a step of int8, and takes three quarters of its time.
    x = graph.op("FastGelu" if graph.int8 else "Gelu", [x], MICROSOFT)
    # A token's division is undone behind the product, so that its error counts as much as the token is large.
    products = seen.products.get(f"{outer}.dense")
    x = graph.dense_by_row(x, values[f"{outer}.dense.weight"], ROW_FLOOR, f"{mine}outer", products)
    x = graph.op("Add", [x, norm(f"{mine}outer", plus=values[f"{outer}.dense.bias"])])
    return _norm(graph, x, values, f"{outer}.LayerNorm", config)


def smoothing(weight: Floats, sizes: Floats | None) -> Floats:
    """What each input channel is divided by, and its weights multiplied: float32[in]; all 1 without sizes."""
    if sizes is None:
        return np.ones(weight.shape[1], np.float32)
    tiny = 1e-4  # a dead channel keeps a finite factor
    weights = np.abs(weight).max(axis=0)
    factors = np.maximum(sizes, tiny) ** SMOOTHING / np.maximum(weights, tiny) ** (1 - SMOOTHING)
    return np.asarray(factors / factors.mean(), np.float32)


def head(graph: Graph, x: str, parts: Head, model: Model, side: str) -> list[str]:
    """Pooling, length 1, projection and the division by σ; float32 throughout, for it is small and decides the bits."""
    if model.pooling == "cls":
        pooled = graph.op("Gather", [x, graph.const(np.int64(0))], axis=1)  # [1, hidden]
    else:
        pooled = graph.op("ReduceMean", [x, graph.const(np.ones(1, np.int64))], keepdims=0)
    if model.normalize:
        pooled = graph.op("LpNormalization", [pooled], axis=1, p=2)
    sigma = parts.sigma.detach().float().cpu().numpy()
    wanted = {"vector": side == "passage", **({"question": False} if model.shared else {})}
    for name, divided in wanted.items():
        scale = 1 / sigma if divided else np.ones_like(sigma)
        if parts.projection is None:
            graph.op("Mul", [pooled, graph.const(scale, f"{name}.scale")], output=name)
        else:
            weight = parts.projection.weight.detach().float().cpu().numpy()  # [bits, hidden]
            bias = parts.projection.bias.detach().float().cpu().numpy()
            constants = [
                graph.const(weight * scale[:, None], f"{name}.weight"),
                graph.const(bias * scale, f"{name}.bias"),
            ]
            graph.op("Gemm", [pooled, *constants], output=name, transB=1)
    return list(wanted)


def token_head(graph: Graph, x: str, parts: Head) -> list[str]:
    """A reader's numbers for every token; float32, for they are few."""
    assert parts.projection is not None
    weight, bias = (each.detach().float().cpu().numpy() for each in (parts.projection.weight, parts.projection.bias))
    across = graph.op(
        "Transpose", [graph.const(weight, f"{engine.TOKENS}.weight")], perm=[1, 0]
    )  # as the engine reads it
    product = graph.op("MatMul", [x, across])
    return [graph.op("Add", [product, graph.const(bias, f"{engine.TOKENS}.bias")], output=engine.TOKENS)]
