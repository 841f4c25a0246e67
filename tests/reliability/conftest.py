from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of bundles are written here and none needs to survive."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="bpr-", dir=memory))
    yield folder
    shutil.rmtree(folder)
