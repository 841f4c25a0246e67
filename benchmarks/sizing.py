"""What passages occupy in a bundle beside their codes: the bytes of texts that operations.md scales up.

    python benchmarks/sizing.py

Builds a bundle of the sample of `bpr demo` and counts. Writes benchmarks/results/sizing.json; report.py makes the table
of operations.md of it and of what scan.py, indexes.py, encode.py and memory.py measured.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import bpr
from bpr import bundle, demo
from bpr.textfiles import read_records
from common import put

BITS = 384
TEXT_FILES = ("passages.jsonl", "offsets.npy", "ids.npy", "checksums.npy")


def main() -> None:
    passages = list(read_records(demo.PASSAGES))
    vectors = np.random.default_rng(0).standard_normal((len(passages), BITS), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        bpr.build((fields for _, fields in passages), Path(folder) / "sample.bpr", vectors=vectors)
        with bundle.open(Path(folder) / "sample.bpr") as opened:
            entries = [*opened.manifest.files.values(), opened.manifest.checksums]
            size = sum(each.bytes for each in entries if each.name in TEXT_FILES)
    print(f"{len(passages):,} passages: {size:,} bytes of texts, offsets, ids and digests")
    put("sizing", "python benchmarks/sizing.py", {"passages": len(passages), "bytes": size})


if __name__ == "__main__":
    main()
