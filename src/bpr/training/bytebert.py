"""The network of native/bert.h in torch, for GPUs: many texts at a time, and each one's vector the same bits as there.

encode.py calls it for a model that has no float weights, as the one that ships. It knows the constants of a graph that
bert.py names, and computes what native/bert_impl.h and bert.cpp say, with the same operations in the same order:
products of whole numbers in float64, where they are exact in any order; sums of floats lane by lane; a fused
multiply-add as a product in float64, which is exact, and a sum that is rounded twice (once in 2²⁹ sums that may be the
other neighbour). Knows no text, no file and no bundle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bert import PRODUCTS, Facts

LANES = 8
SEVEN_BITS, EIGHT_BITS, MOST_WORD = 127, 255, 32767.0
MASSIVE = 6.0  # native/bert.cpp: rows of larger values pass the outer layer twice
SHIFT = 12582912.0  # 1.5 · 2²³: adding it rounds to a whole number, which then stands in the lowest bits
POWERS = (0.001327644451521337, 0.009675538167357445, 0.05550713464617729, 0.24022120237350464, 0.6931469440460205, 1)
LOGISTIC = (0.00101426522, -0.106775731, -2.30112134)


@dataclass(frozen=True)
class Bytes:
    """Rows as whole numbers: value = low + step · number.  numbers: float64[…, width]; steps, lows: float32[…, 1]"""

    numbers: Tensor
    steps: Tensor
    lows: Tensor


@dataclass(frozen=True)
class Dense:
    """weights: float64[in, out], whole numbers; scales, sums: float32[out]; bias: the same, or None."""

    weights: Tensor
    scales: Tensor
    sums: Tensor
    bias: Tensor | None

    def __call__(self, rows: Bytes, before: Tensor | None = None) -> Tensor:
        """The product, on top of the bias or of what was there before."""
        start = self.bias if before is None else before
        assert start is not None
        product = (rows.numbers @ self.weights).float()
        return fma(product, rows.steps * self.scales, fma(rows.lows, self.sums, start))


Affine = tuple[Tensor, Tensor]  # γ, β


class ByteBert:
    """A graph's network on a device."""

    def __init__(self, facts: Facts, constants: Mapping[str, NDArray[Any]], device: torch.device) -> None:
        """As `bert.open_constants` gives them."""
        self._facts = facts

        def take(name: str) -> Tensor:
            return torch.from_numpy(np.array(constants[name])).to(device)

        def affine(name: str) -> Affine:
            return take(f"{name}.gamma"), take(f"{name}.beta")

        def dense(name: str) -> Dense:
            weights, scales = take(f"{name}.weight").double(), take(f"{name}.scales")
            bias = take(f"{name}.bias") if f"{name}.bias" in constants else None
            return Dense(weights, scales, scales * weights.sum(0).float(), bias)

        self._words, self._word_scales = take("words"), take("words.scales").reshape(-1, 1)
        places = take("places")[0]
        self._places = torch.nn.functional.pad(places, (0, 0, 0, -len(places) % LANES))  # a batch ends with whole lanes
        self._segments = take("segments") if "segments" in constants else None
        self._last = affine("last")
        self._layers = [
            {each: (affine(f"layer{number}.{each}"), dense(f"layer{number}.{each}")) for each in PRODUCTS}
            for number in range(facts.layers)
        ]
        self._outputs: dict[str, tuple[Tensor, Tensor]] = {}
        for name in ("vector", "question"):
            if f"{name}.weight" in constants:
                self._outputs[name] = take(f"{name}.weight"), take(f"{name}.bias")
            elif f"{name}.scale" in constants:  # no projection: a diagonal one
                scale = take(f"{name}.scale")
                self._outputs[name] = torch.diag(scale), torch.zeros_like(scale)

    def vectors(self, ids: Tensor, mask: Tensor, segments: Tensor | None, output: str) -> Tensor:
        """ids, mask, segments: int64[texts, longest], longest a multiple of 8 → float32[texts, bits]"""
        real = mask.bool()
        x = self._words[ids].float() * self._word_scales[ids] + self._places[: ids.shape[1]]
        if segments is not None and self._segments is not None:
            x = x + self._segments[segments]
        for layer in self._layers:
            x = self._through(layer, x, real)
        return _projected(self._pooled(x, real), *self._outputs[output])

    def _through(self, layer: Mapping[str, tuple[Affine, Dense]], x: Tensor, real: Tensor) -> Tensor:
        """One layer. x: a sum whose norm is still to be taken, before and after."""
        (to_qkv, qkv), (to_rest, attention), (to_inner, inner), (to_sum, outer) = (layer[each] for each in PRODUCTS)
        normal = _normal(x, self._facts.epsilon)
        found = _attention(qkv(_bytes(_scaled(normal, to_qkv), EIGHT_BITS)), real, self._facts.heads)
        x = attention(_bytes(found, SEVEN_BITS), _scaled(normal, to_rest))
        normal = _normal(x, self._facts.epsilon)
        between = _gelu(inner(_bytes(_scaled(normal, to_inner), SEVEN_BITS)))
        wide = _bytes(between, SEVEN_BITS)
        x = outer(wide, _scaled(normal, to_sum))
        massive = (wide.steps * SEVEN_BITS > MASSIVE).squeeze(-1)
        if bool(massive.any()):  # what the bytes have left of their values passes as a second row
            rest = between[massive] - (wide.lows[massive] + wide.steps[massive] * wide.numbers[massive].float())
            x[massive] = outer(_bytes(rest, SEVEN_BITS), x[massive])
        return x

    def _pooled(self, x: Tensor, real: Tensor) -> Tensor:
        """[texts, longest, width] → [texts, width]"""
        if self._facts.pooling == "cls":
            pooled = _scaled(_normal(x[:, 0], self._facts.epsilon), self._last)
        else:
            x = torch.where(real.unsqueeze(-1), _scaled(_normal(x, self._facts.epsilon), self._last), 0.0)
            pooled = x[:, 0].clone()
            for token in range(1, x.shape[1]):
                pooled += x[:, token]
            pooled = pooled / real.sum(1, keepdim=True).float()
        if not self._facts.normalize:
            return pooled
        length = pooled.double().square().sum(1, keepdim=True).sqrt().float()
        return torch.where(length > 0, pooled / length, pooled)


def _projected(pooled: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A product whose sums are added one after the other, each rounded."""
    found = torch.zeros(len(pooled), len(weight), device=pooled.device)
    for value, column in zip(pooled.unbind(1), weight.unbind(1), strict=True):
        found += value.unsqueeze(1) * column
    return found + bias


# ── The operations of native/bert_impl.h ─────────────────────────────────────────────────────────────────────────────


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """a · b + c, rounded at its end."""
    return (a.double() * _wide(b) + _wide(c)).float()


def quotient(a: Tensor | float, b: Tensor | float) -> Tensor:
    """A true division: of a number, or by one, torch makes a product with the reciprocal."""
    device = (a if isinstance(a, Tensor) else b).device  # type: ignore[union-attr]
    whole = [x if isinstance(x, Tensor) else torch.full((1,), x, dtype=torch.float32, device=device) for x in (a, b)]
    return torch.div(*whole)


def _root(x: Tensor) -> Tensor:
    """Rounded as it must be, which float32's own is not everywhere; a root in float64 is near enough to be."""
    return x.double().sqrt().float()


def _wide(x: Tensor | float) -> Tensor | float:
    return x.double() if isinstance(x, Tensor) else float(np.float32(x))


def _lanes(parts: Tensor) -> Tensor:
    """The sum of eight lanes, by pairs.  […, 8] → […, 1]"""
    pairs = parts[..., 0::2] + parts[..., 1::2]
    fours = pairs[..., 0::2] + pairs[..., 1::2]
    return fours[..., :1] + fours[..., 1:]


def _bytes(x: Tensor, most: int) -> Bytes:
    least, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    spread = high - least
    factor = torch.where(spread > 0, quotient(most, spread), 0.0)
    numbers = fma(x - least, factor, 0.5).clamp(0, most).trunc().double()
    return Bytes(numbers, quotient(spread, most), least)


def _normal(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """x, and what it must be multiplied with and then shifted by to have mean 0 and variance 1."""
    width = x.shape[-1]
    pieces = torch.split(x, 2 * LANES, -1)
    total = torch.zeros_like(pieces[0])
    for piece in pieces:
        total = total + piece
    mean = quotient(_lanes(total[..., :LANES] + total[..., LANES:]), width)
    total = torch.zeros_like(total)
    for piece in pieces:
        total = fma(piece - mean, piece - mean, total)
    variance = quotient(_lanes(total[..., :LANES] + total[..., LANES:]), width)
    scale = quotient(1, _root(variance + float(np.float32(epsilon))))
    return x, scale, -mean * scale


def _scaled(normal: tuple[Tensor, Tensor, Tensor], affine: Affine) -> Tensor:
    return fma(fma(*normal), *affine)


def _exp2(x: Tensor) -> Tensor:
    """2^x for x ≤ 126."""
    x = x.clamp(min=-126)
    whole = x + SHIFT
    f = x - (whole - SHIFT)
    p = fma(f, POWERS[0], POWERS[1])
    for coefficient in POWERS[2:]:
        p = fma(p, f, coefficient)
    return (p.view(torch.int32) + (whole.view(torch.int32) << 23)).view(torch.float32)


def _gelu(x: Tensor) -> Tensor:
    square = (x * x).clamp(max=30)
    p = fma(fma(square, LOGISTIC[0], LOGISTIC[1]), square, LOGISTIC[2])
    return x / (1 + _exp2((p * x).clamp(max=126)))


def _words(x: Tensor, real: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """As whole numbers up to `most`, and their scale: one for each text and head.  x: [texts, heads, longest, size]"""
    high = torch.where(real, x.abs(), 0.0).amax((-2, -1), keepdim=True)
    factor = torch.where(high > 0, quotient(most, high), 0.0)
    return torch.where(real, (x * factor).round(), 0.0).double(), quotient(high, most)


def _attention(qkv: Tensor, real: Tensor, heads: int) -> Tensor:
    """qkv: [texts, longest, 3 · width] → [texts, longest, width]"""
    texts, longest, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    size = width // heads
    query, key, value = qkv.view(texts, longest, 3, heads, size).permute(2, 0, 3, 1, 4)
    own = real[:, None, :, None]
    most = min(MOST_WORD, math.floor(np.sqrt(np.float32(2147483647.0) / np.float32(size))) - 1)
    keys, of_keys = _words(key, own, most)
    queries, of_queries = _words(query, own, most)
    values, of_values = _words(value, own, MOST_WORD)
    scale = quotient(of_queries * of_keys * float(np.float32(1.44269504)), float(np.sqrt(np.float32(size))))
    weights = (queries @ keys.transpose(-1, -2)).float() * scale
    weights = torch.where(real[:, None, None, :], weights, -torch.inf)
    found = (_softmax(weights) @ values).float() * quotient(of_values, MOST_WORD)
    return found.transpose(1, 2).reshape(texts, longest, width)


def _softmax(x: Tensor) -> Tensor:
    """Powers of two, divided by their sum, as whole numbers."""
    v = _exp2(x - x.amax(-1, keepdim=True))
    total = torch.zeros_like(v[..., :LANES])
    for piece in torch.split(v, LANES, -1):
        total = total + piece
    return (v * quotient(MOST_WORD, _lanes(total))).round().double()
