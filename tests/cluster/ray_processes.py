"""Which processes Ray has started below this one, to be killed in tests."""

from __future__ import annotations

from contextlib import suppress

import psutil


def processes(title: str) -> list[psutil.Process]:
    """Those of Ray, below this process, whose title begins so: ray::NAME for an actor."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if " ".join(each.cmdline()).startswith(title):
                found.append(each)
    return found
