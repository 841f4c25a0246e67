"""Vectors that were not trained for bits: centred, rotated and scaled so that their bits keep their order.

builder.py applies it to passages, retriever.py to questions. It knows arrays and the kernel; it must not know files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernels
from .codes import Floats, Questions, checked_bits, checked_vectors, finite, overflow_is_infinite, pack
from .errors import InvalidInput

SAMPLE_ROWS = 1 << 17  # vectors that mean and spread are measured on
PANEL = 8  # columns of a rotation that the kernel takes together


@dataclass(frozen=True)
class Transform:
    """How float vectors become codes: centre, rotate, scale.

    With mean μ, rotation R and spread σ: passage bits come from x = (p − μ)R / σ, question *bits* from (q − μ)R, but
    the question *vector* that scores is qR·σ, not centred: ⟨μ, code⟩ differs from passage to passage, so a centred
    question would rank otherwise. A trained model needs none of it: the identity.

    mean: float32[dim]; rotation: float32[dim, bits] or None for none; scales: float32[bits].
    """

    mean: NDArray[np.float32]
    rotation: NDArray[np.float32] | None
    scales: NDArray[np.float32]

    @classmethod
    def identity(cls, bits: int) -> Transform:
        """The transform of vectors that are trained for bits."""
        return cls(np.zeros(bits, np.float32), None, np.ones(bits, np.float32))

    @classmethod
    def fit(
        cls,
        vectors: ArrayLike,
        *,
        center: bool = False,
        rotate: bool = False,
        bits: int | None = None,
        scale: bool = True,
        seed: int = 0,
    ) -> Transform:
        """Measure mean and spread on (evenly spaced) vectors: float[n, dim]. `bits` > dim stacks rotations."""
        floats = checked_vectors(vectors)
        dim = floats.shape[1]
        bits = checked_bits(dim if bits is None else bits)
        if bits != dim and not rotate:
            raise InvalidInput(
                f"the vectors have {dim} dimensions: {bits} bits need a rotation (rotate=True, --rotate)"
            )
        step = max(1, -(-len(floats) // SAMPLE_ROWS))
        with overflow_is_infinite():
            sample = finite(np.asarray(floats[::step], np.float64), step=step)
            mean = sample.mean(axis=0) if center and len(sample) else np.zeros(dim)
            rotation = random_rotation(dim, bits, seed) if rotate else None
            turned = sample - mean if rotation is None else (sample - mean) @ rotation
            spread = np.sqrt((turned**2).mean(axis=0)) if scale and len(sample) else np.ones(bits)
            scales = spread.astype(np.float32)
        scales[scales == 0] = 1  # a dimension that never varies says nothing, whatever its scale
        return cls(mean.astype(np.float32), rotation, scales)

    @cached_property
    def is_identity(self) -> bool:
        """True where it leaves vectors as they are."""
        return self.rotation is None and not self.mean.any() and bool((self.scales == 1).all())

    def passages(self, vectors: ArrayLike) -> Floats:
        """x = (p − μ)R / σ, whose signs and magnitudes are the code: float[n, dim] → float[n, bits]."""
        floats = self._checked(vectors)
        if self.is_identity:
            return floats
        with overflow_is_infinite():
            return self._turn(np.asarray(floats, np.float32) - self.mean) / self.scales

    def questions(self, vectors: ArrayLike) -> Questions:
        """Bits from (q − μ)R, scores from qR·σ: float[q, dim] → Questions."""
        floats = self._checked(vectors)
        if self.is_identity:
            return Questions(floats)
        with overflow_is_infinite():
            floats = np.asarray(floats, np.float32)
            return Questions(self._turn(floats) * self.scales, pack(self._turn(floats - self.mean)))

    def _turn(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        # Not vectors @ rotation: that rounds differently for one vector than for many (native/rotate.h).
        return vectors if self.rotation is None else kernels.rotate(vectors, self._panels)

    @cached_property
    def _panels(self) -> NDArray[np.float32]:
        assert self.rotation is not None
        panels = self.rotation.reshape(len(self.mean), -1, PANEL).transpose(1, 0, 2)  # [bits / PANEL, dim, PANEL]
        return np.ascontiguousarray(panels)

    def _checked(self, vectors: ArrayLike) -> Floats:
        floats = checked_vectors(vectors)
        if floats.shape[1] != len(self.mean):
            raise InvalidInput(
                f"vectors have {floats.shape[1]} dimensions, and those of the passages had {len(self.mean)}"
            )
        return floats


def random_rotation(dim: int, bits: int, seed: int) -> NDArray[np.float32]:
    """Random orthonormal columns, float32[dim, bits]; for more bits than dimensions, several rotations side by side."""
    random = np.random.default_rng(seed)
    turns = [np.linalg.qr(random.standard_normal((dim, dim)))[0] for _ in range(-(-bits // dim))]
    return np.concatenate(turns, axis=1)[:, :bits].astype(np.float32)
