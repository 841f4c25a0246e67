"""BERT over many texts laid end to end, without padding: on a GPU what Hugging Face's module computes, in less time.

A batch of passages of 20 to 256 tokens is two fifths padding, and sorting it into buckets only trades that for launches
of small kernels. Here every matrix product runs once over all tokens, and attention is told where texts begin.
biencoder.py uses it where it fits; anywhere else the module itself runs.

What differs: attention's own dropout is left out (hidden dropout stays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, layer_norm, linear, scaled_dot_product_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None  # type: ignore[assignment]

try:
    from . import shorttexts
except ImportError:  # Triton comes with torch for CUDA alone
    shorttexts = None  # type: ignore[assignment]

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Packed:
    """Texts end to end. starts: where each begins, and the end of the last."""

    ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens], from 0 in each text
    text: Tensor  # int64 [tokens], which text a token is of
    starts: Tensor  # int32 [texts + 1]
    longest: int
    segments: Tensor | None = None  # int64 [tokens]; None: all are in the first

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, segments: Tensor | None = None, tokens: int | None = None) -> Packed:
        """From a padded batch.  ids, mask, segments: [texts, longest]

        tokens: how many are real, where it is known: otherwise the host must wait for a GPU to count them, and cannot
        prepare the next step meanwhile.
        """
        real = mask.bool()
        found = real.nonzero() if tokens is None else torch.nonzero_static(real, size=tokens)
        text, positions = found.unbind(1)
        starts = nn.functional.pad(real.sum(1).cumsum(0), (1, 0)).int()
        kinds = None if segments is None else segments[text, positions]
        return cls(ids[text, positions], positions, text, starts, ids.shape[1], kinds)

    @classmethod
    def end_to_end(
        cls, texts: Sequence[NDArray[np.int64]], segments: Sequence[NDArray[np.int64]] | None, device: torch.device
    ) -> Packed:
        """From ids that are on the host, without a batch that is padded first; the host does not wait."""
        lengths = np.array([len(text) for text in texts], np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        text = np.repeat(np.arange(len(texts)), lengths)
        ids, kinds = np.concatenate(texts), None if segments is None else _sent(np.concatenate(segments), device)
        sent = [_sent(each, device) for each in (ids, positions, text, starts.astype(np.int32))]
        return cls(sent[0], sent[1], sent[2], sent[3], int(lengths.max()), kinds)

    @property
    def lengths(self) -> Tensor:
        """[texts]"""
        return self.starts.diff()


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """To the device, without waiting for it."""
    there = torch.from_numpy(np.ascontiguousarray(array))
    return there.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else there


def fits(backbone: nn.Module) -> bool:
    """Whether this is BERT as `states` computes it, on a GPU and in the half precision that its kernel needs."""
    config: Any = getattr(backbone, "config", None)
    plain = getattr(config, "model_type", "") == "bert" and getattr(config, "hidden_act", "") == "gelu"
    if not plain or varlen_attn is None:
        return False
    weight = next(backbone.parameters())
    return weight.is_cuda and (weight.dtype in HALF or torch.is_autocast_enabled("cuda"))


def states(backbone: Any, batch: Packed, kind: torch.dtype = torch.bfloat16) -> Tensor:
    """The last hidden states; matrix products and attention are in `kind`, all else as the weights are.

    → [tokens, hidden]
    """
    config, training = backbone.config, backbone.training
    share = float(backbone.embeddings.dropout.p)

    def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
        return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def dense(x: Tensor, layer: nn.Linear) -> Tensor:
        return linear(x.to(kind), layer.weight.to(kind), layer.bias.to(kind))

    with torch.autocast(batch.ids.device.type, enabled=False):
        given = backbone.embeddings
        x = given.word_embeddings(batch.ids) + given.position_embeddings(batch.positions)
        kinds = given.token_type_embeddings
        x = x + (kinds.weight[0] if batch.segments is None else kinds(batch.segments))
        x = dropout(normed(x, given.LayerNorm), share, training)  # [tokens, hidden]
        for layer in backbone.encoder.layer:
            asks = layer.attention.self
            weight = torch.cat([asks.query.weight, asks.key.weight, asks.value.weight]).to(kind)
            bias = torch.cat([asks.query.bias, asks.key.bias, asks.value.bias]).to(kind)
            qkv = linear(x.to(kind), weight, bias)
            qkv = qkv.view(len(x), 3, config.num_attention_heads, -1)  # [tokens, 3, heads, size]
            seen = attention(qkv, batch).flatten(1)  # [tokens, hidden]
            out = layer.attention.output
            x = normed(dropout(dense(seen, out.dense), share, training) + x, out.LayerNorm)
            wide = gelu(dense(x, layer.intermediate.dense))  # [tokens, 4 · hidden]
            x = normed(dropout(dense(wide, layer.output.dense), share, training) + x, layer.output.LayerNorm)
    return x


@cache
def compiled() -> Callable[..., Tensor]:
    """`states` through torch.compile: a quarter faster, after 12 s for encoding and half a minute for training."""
    return torch.compile(states, dynamic=True)


def attention(qkv: Tensor, batch: Packed) -> Tensor:
    """Each token looks at its own text.  [tokens, 3, heads, size] → [tokens, heads, size]"""
    if shorttexts is not None and qkv.is_cuda and shorttexts.fits(qkv, batch.longest):
        return shorttexts.attention(qkv, batch.starts)
    q, k, v = qkv.unbind(1)
    if q.is_cuda:
        starts, longest = batch.starts, batch.longest
        out = varlen_attn(q, k, v, starts, starts, longest, longest)
        assert isinstance(out, Tensor)  # it would be more only if more were asked for
        return out
    return _padded_attention(q, k, v, batch)


def _padded_attention(q: Tensor, k: Tensor, v: Tensor, batch: Packed) -> Tensor:
    """The same where there is no such kernel: what tests compare with."""
    texts = len(batch.starts) - 1
    at = (batch.text, batch.positions)

    def spread(x: Tensor) -> Tensor:  # [texts, heads, longest, size]
        return x.new_zeros(texts, batch.longest, *x.shape[1:]).index_put(at, x).transpose(1, 2)

    seen = torch.arange(batch.longest, device=q.device) < batch.lengths.unsqueeze(1)  # [texts, longest]
    out = scaled_dot_product_attention(spread(q), spread(k), spread(v), attn_mask=seen[:, None, None, :])
    return out.transpose(1, 2)[at]


def pooled(x: Tensor, batch: Packed, pooling: str, normalize: bool) -> Tensor:
    """One vector a text, in float32.  [tokens, hidden] → [texts, hidden]"""
    x = x.float()
    if pooling == "cls":
        vectors = x[batch.starts[:-1].long()]
    else:
        vectors = torch.segment_reduce(x, "mean", offsets=batch.starts.long(), axis=0, unsafe=True)  # or it waits
    return nn.functional.normalize(vectors, dim=-1) if normalize else vectors
