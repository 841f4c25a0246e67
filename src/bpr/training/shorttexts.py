"""Attention over many short texts laid end to end, as one Triton kernel: for encoding on a GPU, without gradients.

packed.py calls it where Triton is (torch for CUDA brings it). The kernel that torch has takes blocks of 128 x 128: a
passage of 140 tokens fills 30 % of four of them. Here blocks are 64 x 64, and query, key and value are read where the
product wrote them. On an H200, 936 texts of 140 tokens, 12 heads of 32: 0.31 ms against 0.70 ms
(`python benchmarks/gpu.py MODEL` prints what that is worth).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS, STAGES = 64, 4, 3
LONGEST = 256  # longer texts were not measured


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend(qkv, out, starts, stride, heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """One text and one head: softmax(q·kᵀ / √size)·v, by blocks of rows and columns, with a running maximum."""
    scale: tl.constexpr = size**-0.5 * 1.4426950408889634  # log2 e: exp2 is what the hardware has
    first = tl.load(starts + tl.program_id(0))
    length = tl.load(starts + tl.program_id(0) + 1) - first
    columns = tl.arange(0, size)
    width = heads * size
    source = qkv + first.to(tl.int64) * stride + tl.program_id(1) * size
    target = out + first.to(tl.int64) * width + tl.program_id(1) * size
    for m in range(0, length, block):
        rows = m + tl.arange(0, block)
        inside = rows[:, None] < length
        q = tl.load(source + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)
        most = tl.full([block], -1e30, tl.float32)
        total = tl.zeros([block], tl.float32)
        seen = tl.zeros([block, size], tl.float32)
        for n in range(0, length, block):
            others = n + tl.arange(0, block)
            there = others[:, None] * stride + columns[None, :]
            k = tl.load(source + width + there, mask=others[:, None] < length, other=0.0)
            v = tl.load(source + 2 * width + there, mask=others[:, None] < length, other=0.0)
            scores = tl.where(others[None, :] < length, tl.dot(q, tl.trans(k)) * scale, -1e30)
            higher = tl.maximum(most, tl.max(scores, 1))
            shares = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(most - higher)
            total = total * fade + tl.sum(shares, 1)
            seen = seen * fade[:, None] + tl.dot(shares.to(v.dtype), v)
            most = higher
        seen = seen / total[:, None]
        tl.store(target + rows[:, None] * width + columns[None, :], seen.to(out.dtype.element_ty), mask=inside)


def fits(qkv: Tensor, longest: int) -> bool:
    """Whether this is work for the kernel.  qkv: [tokens, 3, heads, size]"""
    size = qkv.shape[-1]
    return longest <= LONGEST and size in (16, 32, 64, 128) and not (torch.is_grad_enabled() and qkv.requires_grad)


def attention(qkv: Tensor, starts: Tensor) -> Tensor:
    """[tokens, 3, heads, size], starts of the texts and the end of the last → [tokens, heads, size]"""
    tokens, _, heads, size = qkv.shape
    out = torch.empty(tokens, heads, size, device=qkv.device, dtype=qkv.dtype)
    grid = (len(starts) - 1, heads)
    _attend[grid](qkv, out, starts, qkv.stride(0), heads, size, BLOCK, num_warps=WARPS, num_stages=STAGES)
    return out
