"""Small bundles whose every file tells which one it is of, and a reader that believes nothing."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bpr import bundle
from bpr.disk import Disk

ROWS = 900


def campaign(quick: int, full: int) -> int:
    """How many cases to run: BPR_CAMPAIGN=full before a release, the quick slice otherwise."""
    return full if os.environ.get("BPR_CAMPAIGN", "quick") == "full" else quick


@lru_cache
def contents(stamp: int) -> dict[str, np.ndarray[Any, Any] | bytes]:
    """The files of sample bundle number `stamp`; of one size for all stamps, and larger than a block."""
    generator = np.random.default_rng(stamp)
    return {
        "signs.npy": generator.integers(0, 256, (ROWS, 24), dtype=np.uint8),
        "offsets.npy": np.arange(ROWS + 1, dtype=np.int64) + stamp,
        "passages.jsonl": b"".join(b'{"stamp": %08d, "row": %06d}\n' % (stamp, row) for row in range(ROWS)),
        "nothing": b"",
    }


def write(path: Path, stamp: int, disk: Disk | None = None, finish: bool = True) -> None:
    """Write sample number `stamp` as a new generation; without `finish`, leave before it is published."""
    with bundle.create(path, disk=disk) as new:
        for name, content in contents(stamp).items():
            if isinstance(content, bytes):
                with new.file(name) as out:
                    out.write(content)
            else:
                with new.array(name, content.dtype, content.shape[1:]) as rows:
                    rows.append(content[: ROWS // 2])
                    rows.append(content[ROWS // 2 :])
        if finish:
            new.publish({"stamp": stamp, "resident": ["signs.npy"]})


def read(path: Path, **options: Any) -> int:
    """Open the bundle, read every byte of it, and say which sample it is; AssertionError if it is a mixture."""
    with bundle.open(path, **options) as opened:
        stamp = int(opened.info["stamp"])
        expected = contents(stamp)
        assert set(opened.manifest.files) == set(expected)
        for name, content in expected.items():
            found = opened.array(name)
            assert found.tobytes() == (content if isinstance(content, bytes) else content.tobytes()), name
        return stamp


def is_tidy(path: Path) -> bool:
    """Whether the folder holds one generation, the manifest, the lock, and nothing else."""
    with bundle.open(path) as opened:
        return sorted(os.listdir(path)) == sorted(["lock", "manifest.json", opened.generation])
