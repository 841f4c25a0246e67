"""Many codes out of few: noisy copies of real ones, so that speed can be measured on more rows than there are passages.

Random codes will not do for an index that leaves most of them out: they have no neighbours. Copies of real ones have.
indexes.py calls it. Knows arrays only.
"""

from __future__ import annotations

import numpy as np

from bpr.codes import Codes, blocks


def multiply(signs: Codes, magnitudes: Codes, rows: int, flips: float = 0.18, seed: int = 0) -> tuple[Codes, Codes]:
    """The codes themselves, then copies of them in turns up to `rows`, every bit flipped with the chance `flips`.

    Both planes: uint8[n, w] → uint8[rows, w]. Two copies of one code are about 2·flips·(1 − flips) of all bits apart;
    with the default that is as far as a real passage of 384 bits is from its nearest neighbour. Where a sign is
    flipped, the magnitude is that of another code, so that as many are large as before.
    """
    random = np.random.default_rng(seed)
    made = [np.empty((rows, signs.shape[1]), np.uint8) for _ in range(2)]
    source = np.arange(rows) % len(signs)
    made[0][: len(signs)], made[1][: len(signs)] = signs[:rows], magnitudes[:rows]
    for part in blocks(rows - min(rows, len(signs))):
        here = slice(part.start + len(signs), part.stop + len(signs))
        noise = np.packbits(random.random((here.stop - here.start, signs.shape[1] * 8), np.float32) < flips, axis=1)
        made[0][here] = signs[source[here]] ^ noise
        other = magnitudes[random.integers(0, len(signs), here.stop - here.start)]
        made[1][here] = (magnitudes[source[here]] & ~noise) | (other & noise)
    return made[0], made[1]
