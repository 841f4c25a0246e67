"""The only writer of index files: a folder `NAME.bpr/` with `manifest.json`, `gen-NNNNNN/` and `lock`.

    with bundle.create("wiki.bpr") as new:                       # writes a new generation, unseen by readers ...
        with new.array("signs.npy", np.dtype(np.uint8), (96,)) as out:
            out.append(block)
        new.publish({"rows": 1000, "resident": ["signs.npy"]})   # ... until here, and then all of it at once

    with bundle.update("wiki.bpr") as (old, new):                # another generation, with files of the old one
        new.keep("signs.npy")
        new.publish({**old.info, "title": "Wikipedia"})

    with bundle.open("wiki.bpr") as opened:
        signs = opened.array("signs.npy")                        # mapped, read-only, every byte as it was published

Passages, indexes and the retriever call it. It knows nothing of what its files are for, and of bpr only errors and
disk.
"""

from __future__ import annotations

from .manifest import BLOCK_BYTES, SEGMENTS, SHARDS, FileEntry, Manifest, corrupt, seal
from .reader import VERIFY_LIMIT, Checked, Opened, Verify, open, verify
from .view import View
from .writer import ArrayOut, Writer, create, update

__all__ = [
    "BLOCK_BYTES",
    "SEGMENTS",
    "SHARDS",
    "VERIFY_LIMIT",
    "ArrayOut",
    "Checked",
    "FileEntry",
    "Manifest",
    "Opened",
    "Verify",
    "View",
    "Writer",
    "corrupt",
    "create",
    "open",
    "seal",
    "update",
    "verify",
]
