"""A Ray cluster of three node processes on this machine, for all tests of this folder: a head and two others.

They must not run beside themselves (`make test` runs them alone): tests kill processes by their names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

OBJECTS = 80_000_000  # bytes of each node's object store, which is memory
SOURCE = Path(__file__).parent.parent.parent / "src"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Connected; ray.cluster_utils.Cluster."""
    room = tempfile.mkdtemp(prefix="bpr", dir="/tmp")  # sockets lie in it: its path must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", room)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]))
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 2, "object_store_memory": OBJECTS, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=node)
        made.add_node(**node)
        made.add_node(**node, num_gpus=1)  # Ray believes it
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()
    shutil.rmtree(room, ignore_errors=True)
