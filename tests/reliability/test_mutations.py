"""Whatever is changed in a bundle, opening and reading it says so: never a wrong byte, a crash or a wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import mutations
import pytest
from samples import campaign

COUNT = campaign(quick=500, full=30_000)


def test_every_mutation_is_rejected(room: Path) -> None:
    tally = mutations.run(room, seed=2021, count=COUNT)
    assert not tally["accepted"]
    assert tally["rejected"].total() == COUNT
    assert set(tally["rejected"]) == {mutation.__name__ for mutation in mutations.MUTATIONS}
    print(f"\n{COUNT} mutations rejected: {dict(tally['rejected'])}")


def test_no_mutation_kills_or_hangs_a_process(room: Path) -> None:
    count = campaign(quick=100, full=2_000)
    command = [sys.executable, mutations.__file__, str(room), "7", str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + count / 20, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["accepted"] == {}
    assert sum(result["rejected"].values()) == count
    assert result["grown"] < (64 << 10 if sys.platform == "linux" else 64 << 20)


@pytest.mark.parametrize("mutation", dict.fromkeys(mutations.MUTATIONS))
def test_each_kind_changes_something_and_heals(room: Path, mutation: object) -> None:
    target = mutations.Target(room)
    for seed in range(4):
        target.heal()
        assert not mutations.probe(target, Random(seed))
        mutation(target, Random(seed))  # type: ignore[operator]
        assert mutations.probe(target, Random(seed))
