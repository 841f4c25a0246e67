"""What index and serve share for --ray: the options, and the way to cluster/. Registers no verb.

bundles.py and serve.py call it. cluster/ is imported where it is called, so that nobody else pays for Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import needs_extra

if TYPE_CHECKING:
    from ..cluster.encoding import PoolEncoder
    from ..retriever import Retriever

RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="The Ray cluster of this machine: auto or HOST:PORT; local: start one."
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes that encode on Ray.  [default: what has room]")
]
Replicas = Annotated[int, typer.Option("--replicas", min=1, help="With --ray: processes that hold each shard.")]
ReplicaCpus = Annotated[float, typer.Option("--replica-cpus", min=0.1, help="With --ray: CPUs of each of them.")]
RequireAll = Annotated[
    bool,
    typer.Option(
        "--require-all/--partial",
        help="With --ray, when a shard does not answer in time: an error; or what the others have, with its coverage.",
    ),
]


@contextmanager
def on_ray(
    address: str, model: Path | str, device: str, workers: int | None, threads: int | None
) -> Iterator[PoolEncoder]:
    """An encoder whose work is done on a cluster; its workers end with the block."""
    with needs_extra("cluster", "ray"):
        from ..cluster import encoding, rays

    joined = rays.connect(address)
    try:
        with encoding.PoolEncoder(model, device, workers, threads) as pool:
            yield pool
    finally:
        if joined:
            rays.disconnect()


def opened_on_ray(
    path: Path, address: str, model: Path | None, reader: Path | None, replicas: int, cpus: float, partial: bool
) -> Retriever:
    """A bundle of shards, whose shards are up on the cluster."""
    with needs_extra("cluster", "ray"):
        from ..cluster import fleet, front, rays
    from .. import bundle
    from .. import shards as sharding

    parent, size = bundle.open(path), fleet.Size(replicas, cpus)
    sharding.check(parent)  # before a cluster is waited for
    rays.connect(address)
    make: Callable[[Any], front.Fleet] = lambda opened: fleet.RayFleet(opened, size)  # noqa: E731
    opened = front.ClusterRetriever(parent, make, partial)
    if model is not None:
        opened.use(model)
    if reader is not None:
        opened.use_reader(reader)
    return opened
