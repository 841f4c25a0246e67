"""Other processes: writers that die, writers that get in the reader's way, two writers at once."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import killing
import pytest
import rewriting
from samples import campaign, is_tidy, read, write

from bpr import bundle
from bpr.errors import BundleLocked

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_killed_writers_leave_the_old_bundle_or_the_new(room: Path) -> None:
    kills = campaign(quick=20, full=1_000)
    command = [sys.executable, killing.__file__, str(room), "11", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + kills, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    print(f"\n{kills} kills: {tally}")
    assert sum(tally.values()) == kills
    assert tally["old"] > 0
    assert tally["new"] > 0


def test_a_reader_is_never_disturbed_by_a_writer(room: Path) -> None:
    rewrites = campaign(quick=30, full=1_000)
    path = room / "x.bpr"
    write(path, 0)
    writer = subprocess.Popen([sys.executable, rewriting.__file__, str(path), str(rewrites)], env=ENVIRONMENT)
    opens, seen = 0, {0}
    while writer.poll() is None:
        seen.add(read(path, verify_limit=0 if opens % 2 else bundle.VERIFY_LIMIT))
        opens += 1
    assert writer.returncode == 0
    assert read(path) == rewrites
    print(f"\n{opens} opens during {rewrites} rewrites, {len(seen)} different generations seen")
    assert len(seen) > rewrites // 20


def test_what_a_reader_holds_survives_the_next_generations(room: Path) -> None:
    path = room / "x.bpr"
    write(path, 1)
    with bundle.open(path, verify_limit=0) as opened:
        for stamp in (2, 3):
            write(path, stamp)
        assert not (path / opened.generation).exists()
        assert bytes(opened.array("passages.jsonl")).startswith(b'{"stamp": 00000001,')
        assert [each.problem for each in opened.verify()] == [None] * 4
    assert read(path) == 3


def test_a_second_writer_is_refused_in_this_process_and_in_another(room: Path) -> None:
    path = room / "x.bpr"
    write(path, 1)
    with bundle.create(path):
        with pytest.raises(BundleLocked, match="being written by another process"), bundle.create(path):
            pytest.fail("two writers")
        command = [sys.executable, rewriting.__file__, str(path), "1"]
        other = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        assert other.returncode == 1
        assert "BundleLocked" in other.stderr
        assert read(path) == 1
    write(path, 2)
    assert is_tidy(path)


def test_opening_and_closing_leaks_no_descriptor(room: Path) -> None:
    path = room / "x.bpr"
    write(path, 1)

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/dev/fd"))

    before = descriptors()
    for _ in range(50):
        assert read(path) == 1
        with bundle.open(path, verify="size") as opened:
            opened.view("signs.npy")
        write(path, 1)
    assert abs(descriptors() - before) <= 2
