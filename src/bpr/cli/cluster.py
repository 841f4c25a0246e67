"""The verb shard: a bundle cut for several machines. Registered by being imported (cli/__init__.py).

shards.py cuts; what serves shards is `bpr serve --ray` (onray.py). Nothing here knows Ray.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from .common import Bundle, Quiet, verb

Shards = Annotated[int, typer.Option("--shards", min=1, help="How many; one machine holds one or several.")]
ShardFolder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The bundle of shards to make.")]


@verb("shard wiki.bpr --shards 4 -o shards/")
def shard(name: Bundle, shards: Shards, output: ShardFolder, quiet: Quiet = False) -> None:
    """Cut a bundle into shards, for search on several machines (`bpr serve DIR --ray ADDRESS`).

    A bundle of shards that is there gets a new generation, which a running service goes over to.
    """
    from .. import shards as sharding
    from .. import terminal

    start = time.monotonic()
    with terminal.bars(not quiet) as say:
        made = sharding.shard(name, output, shards, progress=say)
    if not quiet:
        size, rows = terminal.size(sum(each.bytes for each in made)), sum(each.rows for each in made)
        parts, took = terminal.count(len(made), "shard"), time.monotonic() - start
        terminal.message(f"{output}: {parts}, {terminal.count(rows, 'passage')}, {size}, made in {took:,.1f} s")
