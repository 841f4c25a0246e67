"""What the integrations share where they ask: the options of a search, a search beside an event loop, metadata.

The modules of the frameworks call it. It knows retrievers; it must not know any framework.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..encoder import Encodes
from ..errors import InvalidInput
from ..kernels import Cancel
from ..records import Hit, Passage
from ..retriever import Retriever
from ..retriever import open as open_bundle

# Those of Retriever.search that can be written into a configuration, and `timeout`: seconds for one search.
OPTIONS = ("k", "where", "candidates", "rerank", "hybrid", "refine", "probes", "target_recall", "threads", "timeout")

Result = TypeVar("Result")


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the import of a framework: an ImportError says which extra of bpr brings it."""
    try:
        yield
    except ImportError as error:
        module = f"bpr.integrations.{name.replace('-', '_')}"
        message = f"{module} needs more than bpr: pip install 'binary-passage-retriever[{name}]' ({error})"
        raise ImportError(message, name=error.name) from error


def opened(bundle: str | Path | Retriever, model: str | Path | Encodes | None = None) -> Retriever:
    """The retriever itself, or the one of the bundle at that path."""
    return bundle if isinstance(bundle, Retriever) else open_bundle(bundle, model=model)


def options(settings: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What Retriever.search takes, from settings and what one call changes of them; None is the bundle's own."""
    given = {**settings, **(changes or {})}
    unknown = sorted(given.keys() - set(OPTIONS))
    if unknown:
        raise InvalidInput(f"a search has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
    how = {name: value for name, value in given.items() if value is not None}
    if "timeout" in how:
        how["deadline"] = time.monotonic() + how.pop("timeout")
    return how


async def beside_the_loop(call: Callable[[Cancel], Result]) -> Result:
    """The call in a thread of its own, with a handle that is set when the task that waits for it is cancelled."""
    cancel = Cancel()
    try:
        return await asyncio.to_thread(call, cancel)
    except asyncio.CancelledError:
        cancel.set()
        raise


def metadata(passage: Passage | Hit) -> dict[str, Any]:
    """A passage's own metadata, and its title unless they name one."""
    return {"title": passage.title, **passage.meta} if passage.title else dict(passage.meta)


def passage(outside_id: str, text: str, meta: Mapping[str, Any]) -> Passage:
    """The passage of a framework's document; a "title" in its metadata is encoded with the text."""
    title = meta.get("title")
    return Passage(outside_id, title if isinstance(title, str) else "", text, meta)
