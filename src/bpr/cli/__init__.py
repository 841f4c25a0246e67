"""The command line: parse, call, print; nothing else.

`bpr` and `python -m bpr.cli` start it. Whatever is computed is computed elsewhere: a verb turns options into one call,
and what comes back into lines. Results go to stdout; progress, messages and errors to stderr. common.py is what all
verbs share; the verbs stand in the other files, which register them by being imported here, in the order of --help.
"""

from __future__ import annotations

import io
import os
import sys

from . import bundles as bundles
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


def main() -> None:
    """The program."""
    for name in ("stdout", "stderr"):  # Python has None for one that was closed before the start
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that its encoding lacks is no reason to stop
        sys.stdout.reconfigure(errors="replace")
    with ending():
        try:
            app(prog_name="bpr")
        finally:
            print(end="", flush=True)  # what stdout refuses, it refuses here, not when the interpreter shuts down
