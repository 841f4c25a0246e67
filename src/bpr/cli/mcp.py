"""The verb mcp: a bundle as tools for language models. Registered by being imported (cli/__init__.py).

It opens the bundle, and integrations/mcp.py does the rest: stdout is the protocol's, so nothing is printed here.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .bundles import SameModel
from .common import Bundle, Quiet, ReaderFolder, needs_extra, verb

K = Annotated[int, typer.Option("-k", min=1, max=100, help="Passages of a search, unless the caller says otherwise.")]


@verb("mcp wiki.bpr", "mcp docs.bpr --reader models/reader -k 10")
def mcp(name: Bundle, model: SameModel = None, reader: ReaderFolder = None, k: K = 5, quiet: Quiet = False) -> None:
    """Offer a bundle to language models: an MCP server on stdin and stdout, with search, answer and passage.

    Programs for language models start it themselves (docs/mcp.md). It ends when stdin is closed, or with Ctrl-C.
    """
    with needs_extra("mcp", "mcp", "pydantic"):
        from ..integrations import mcp as serving
    from .. import retriever, terminal

    with retriever.open(name, model=model, reader=reader) as opened:
        if not quiet:
            terminal.message(f"{name}: {terminal.count(len(opened), 'passage')}, waiting for an MCP client on stdin")
        serving.serve(opened, name.name, k)
