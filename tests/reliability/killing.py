"""Writers that are killed without warning, and what they leave. A program, because it forks: no threads, no pytest.

python killing.py FOLDER SEED KILLS
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

from samples import is_tidy, read, write

from bpr.errors import MissingBundle

LONGEST = 0.04  # seconds until the kill: several rewrites of a sample


def rewrite_until_killed(path: Path, stamp: int) -> int:
    """Start a process that writes one generation after the other; its id."""
    child = os.fork()
    if child == 0:
        for later in count(stamp):
            write(path, later)
    return child


def kill_once(path: Path, before: int | None, delay: float) -> str:
    """Kill a writer after `delay` seconds: the bundle that is left is old, new, or none if there was none before."""
    child = rewrite_until_killed(path, 1 if before is None else before + 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        found = read(path, verify="all")
    except MissingBundle:
        assert before is None, "the bundle is gone"
        return "none"
    return "old" if found == before else "new"


def run(room: Path, seed: int, kills: int) -> Counter[str]:
    """Kill that many writers at random moments; every tenth time the bundle's very first one."""
    random = Random(seed)
    tally: Counter[str] = Counter()
    for number in range(kills):
        first = number % 10 == 0
        path = room / f"{number // 10}.bpr"
        delay = random.random() * (LONGEST / 2 if first else LONGEST)
        tally[kill_once(path, None if first else read(path), delay)] += 1
        write(path, 1000 * number)  # the next writer works, and leaves nothing of the dead one
        assert is_tidy(path)
    return tally


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
