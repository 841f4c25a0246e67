"""How float weights become bytes: one scale for each output, and which byte each weight takes.

onnxgraph.py calls it. Knows matrices and what processors can add up; nothing of networks.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]

MOST = 127  # of a weight
MOST_OF_PAIR = 128  # of two neighbours with the same sign: 255 · 128 < 2¹⁵
DAMPING = 0.01  # of the mean square of an input, added to each: directions that no text took are not free


def signed_bytes(weight: Floats, products: Doubles | None = None) -> tuple[NDArray[np.int8], Floats]:
    """int8[out, in] and float32[out] with weight ≈ bytes · scale, whose products no processor has to clip.

    products: XᵀX float64[in, in] of inputs X that the layer is given: bytes are chosen such that its outputs come close
    (`fed_back`). None: each byte is the nearest one.

    Without VNNI a product of bytes is `vpmaddubsw`: a₀w₀ + a₁w₁ for neighbours, saturated at 2¹⁵. With 0 ≤ a ≤ 255 it
    stays below if the positive parts of two neighbours, and their negative parts, sum up to no more than 128.
    """
    even = np.pad(weight, ((0, 0), (0, weight.shape[1] % 2))).reshape(len(weight), -1, 2)  # [out, pairs, 2]
    ups, downs = np.maximum(even, 0).sum(axis=2).max(axis=1), np.maximum(-even, 0).sum(axis=2).max(axis=1)
    # 0.6 less than the bound: rounding adds at most 0.5 to each of the two.
    limits = np.maximum(np.maximum(ups, downs) / (MOST_OF_PAIR - 0.6), np.abs(weight).max(axis=1) / MOST)
    scales = np.where(limits > 0, limits, 1).astype(np.float32)
    units = weight / scales[:, None]
    return np.rint(units).astype(np.int8) if products is None else fed_back(units, products), scales


def fed_back(wanted: Floats, products: Doubles) -> NDArray[np.int8]:
    """Bytes int8[out, in] near `wanted`, such that Σ |x·(wanted − bytes)ᵀ|² over the inputs x is small (GPTQ).

    With XᵀX = LᵀL, L lower triangular, and errors e = wanted − bytes of an output that sum is Σᵢ (Σⱼ≤ᵢ Lᵢⱼ·eⱼ)². So the
    columns are rounded one after another, and each first takes over what those before it did wrong, as far as it can:
    it is best at wantedᵢ + Σⱼ<ᵢ Lᵢⱼ/Lᵢᵢ·eⱼ. The largest inputs come first: the last ones have few left to help them.
    """
    width, squares = len(products), np.diag(products)
    order = np.argsort(-squares, kind="stable")
    damping = max(DAMPING * float(squares.mean()), 1e-12)
    damped = products[np.ix_(order, order)] + damping * np.eye(width)
    lower = np.linalg.cholesky(damped[::-1, ::-1]).T[::-1, ::-1]
    shares = lower / np.diag(lower)[:, None]
    target = np.ascontiguousarray(wanted.T[order], np.float64)  # [in, out], as are those below
    errors = np.zeros_like(target)
    chosen = np.zeros((width + width % 2, len(wanted)), np.int8)  # in the order of the weights; 0: not yet, or padding
    for step, column in enumerate(order):
        # No more than what the neighbour has left of the pair, if that was rounded before.
        beside = chosen[column ^ 1].astype(np.float64)
        most, least = (np.minimum(MOST, MOST_OF_PAIR - np.maximum(side, 0)) for side in (beside, -beside))
        found = np.clip(np.rint(target[step] + shares[step, :step] @ errors[:step]), -least, most)
        chosen[column] = found
        errors[step] = target[step] - found
    return np.ascontiguousarray(chosen[:width].T)
