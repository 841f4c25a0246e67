"""How much memory an index takes: `python -m bpr.compare.resident INDEX QUESTIONS.npy SETTINGS` prints it as JSON.

A process of its own, since in one that has built an index the allocator holds what nobody needs any more. Libraries are
loaded and used before the first look, so that their own memory (threads, buffers) does not count. measure.py starts it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .. import baselines
from ..codes import pack
from ..index import Planes
from ..stages import search


def resident() -> int | None:
    """Bytes of this process that are in memory; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def main(folder: str, questions: str, settings: str) -> int | None:
    """Bytes by which the process has grown after a search."""
    how: dict[str, Any] = json.loads(settings)
    asked = np.load(questions, allow_pickle=False)
    _warm(how["threads"])
    before = resident()
    index = baselines.load(Path(folder))
    search(index, index.questions(asked), how["depth"], how["candidates"], how["rerank"], threads=how["threads"])
    after = resident()
    return None if before is None or after is None else after - before


def _warm(threads: int) -> None:
    random = np.random.default_rng(0).standard_normal((512, 64), np.float32)
    for index in (baselines.flat(random), baselines.faiss_binary(Planes(pack(random)))):
        search(index, index.questions(random), 10, 10, threads=threads)


if __name__ == "__main__":
    print(json.dumps({"grown": main(*sys.argv[1:4])}))
