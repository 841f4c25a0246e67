"""To Ray and back: connecting, and its errors in our words.

The rest of cluster/ and the command line call it. It must not know what runs there: no bundle, no model.
"""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray starts: nothing is told to anybody
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # read when ray is imported: only `connect` joins a cluster

import ray

from .. import __version__
from ..errors import InvalidInput

LOCAL = "local"  # an address: Ray is started on this machine, and ends with this process


def connect(address: str) -> bool:
    """Join the cluster at `address` (HOST:PORT, or "auto" for the one that this machine is part of), or start one.

    False where this process is part of one already, which is then the one.
    """
    if ray.is_initialized():
        return False
    how: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level=logging.WARNING, configure_logging=True, **how)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise InvalidInput(
            f"there is no Ray cluster at {address!r} ({_first_line(error)}): `ray start --head` starts one, and "
            f"--ray {LOCAL} tries it on this machine alone"
        ) from error
    return True


def disconnect() -> None:
    """Leave the cluster; one that `connect` started ends."""
    ray.shutdown()


def room(resource: str) -> list[float]:
    """How much of a resource ("CPU", "GPU") each machine that is up has; machines without it are left out."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    found = [float(node["Resources"].get(resource, 0)) for node in nodes if node["Alive"]]
    return [each for each in found if each > 0]


def same_version(other: str, where: str) -> None:
    """InvalidInput where a machine has another bpr than this one."""
    if other != __version__:
        raise InvalidInput(f"{where} has bpr {other}, this machine {__version__}: install the same on all of them")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
