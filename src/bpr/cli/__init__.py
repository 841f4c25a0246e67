"""The command line: parse, call, print; nothing else.

`bpr` and `python -m bpr.cli` start it. Whatever is computed is computed elsewhere: a verb turns options into one call,
and what comes back into lines. Results go to stdout; progress, messages and errors to stderr. common.py is what all
verbs share; the verbs stand in the other files, which register them by being imported here.
"""

from __future__ import annotations

import io
import logging
import os
import sys

from ..errors import StorageError
from . import bundles as bundles
from . import checking as checking
from . import cluster as cluster
from . import compare as compare
from . import convert as convert
from . import demo as demo
from . import evaluate as evaluate
from . import interchange as interchange
from . import live as live
from . import mcp as mcp
from . import mine as mine
from . import reader as reader
from . import serve as serve
from . import training as training
from . import tune as tune
from .common import app, ending

__all__ = ["app", "main"]

# In the order in which people meet them: that of --help and of docs/cli.md.
ORDER = (
    *("demo", "passages", "index", "search", "answer", "serve", "mcp"),
    *("add", "delete", "compact", "verify", "info", "tune", "duplicates", "shard"),
    *("evaluate", "score", "compare", "bench"),
    *("mine", "train", "export", "average", "prepare-reader", "train-reader", "calibrate"),
)
app.registered_commands.sort(key=lambda each: ORDER.index(each.name or each.callback.__name__.replace("_", "-")))  # type: ignore[union-attr]


def main() -> None:
    """The program."""
    for name in ("stdout", "stderr"):  # Python has None for one that was closed before the start
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that its encoding lacks is no reason to stop
        sys.stdout.reconfigure(errors="replace")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that it cannot keep a cache at home is no news
    with ending():
        try:
            _check_folder()
            app(prog_name="bpr")
        finally:
            print(end="", flush=True)  # what stdout refuses, it refuses here, not when the interpreter shuts down


def _check_folder() -> None:
    """A shell may stand in a folder that is gone, where no path but a whole one means anything."""
    try:
        os.getcwd()
    except OSError as error:
        raise StorageError(f"the folder that you are in cannot be used ({error.strerror}): cd to another") from error
