"""One change to a valid bundle, and whether it is found. Run as a program it works off a slice and prints the tally.

python mutations.py FOLDER SEED COUNT
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
from samples import ROWS, contents, read, write

from bpr import bundle
from bpr.errors import CorruptBundle, UnsupportedFormat

REJECTED = (CorruptBundle, UnsupportedFormat)


class Target:
    """A bundle to damage and to heal again, and another one of the same sizes to take files from."""

    def __init__(self, room: Path) -> None:
        self.path = room / "target.bpr"
        write(self.path, 1)
        write(room / "other.bpr", 2)
        self.home = self.path / "gen-000001"
        self.files = [self.path / "manifest.json", *sorted(self.home.iterdir())]
        self.pristine = {file: file.read_bytes() for file in self.files}
        others = [room / "other.bpr" / file.relative_to(self.path) for file in self.files]
        self.foreign = {file: other.read_bytes() for file, other in zip(self.files, others, strict=True)}
        self.filled = [file for file in self.files if self.pristine[file]]
        self.aside = room / "aside"

    def heal(self) -> None:
        """Put everything back as it was."""
        for folder in (self.path, self.aside):
            shutil.rmtree(folder, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.aside.mkdir()
        for file, content in self.pristine.items():
            file.write_bytes(content)


def flip(target: Target, random: Random) -> None:
    file = random.choice(target.filled)
    content = bytearray(target.pristine[file])
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def word(target: Target, random: Random) -> None:
    file = random.choice(target.filled)
    content = bytearray(target.pristine[file])
    at = random.randrange(len(content) - 8)
    fresh = random.choice((random.randbytes(8), bytes(8), b"\xff" * 8))
    content[at : at + 8] = fresh if fresh != content[at : at + 8] else bytes(byte ^ 1 for byte in fresh)
    file.write_bytes(content)


def truncate(target: Target, random: Random) -> None:
    file = random.choice(target.filled)
    file.write_bytes(target.pristine[file][: random.randrange(len(target.pristine[file]))])


def extend(target: Target, random: Random) -> None:
    file = random.choice(target.files)
    extra = random.choice((random.randbytes(random.randint(1, 64)), bytes(random.randint(1, 20_000)), b" ", b"\n"))
    file.write_bytes(target.pristine[file] + extra)


def swap(target: Target, random: Random) -> None:
    one, two = random.sample(target.files, 2)
    one.write_bytes(target.pristine[two])
    two.write_bytes(target.pristine[one])


def foreign_file(target: Target, random: Random) -> None:
    file = random.choice(target.filled)
    file.write_bytes(target.foreign[file])


def delete(target: Target, random: Random) -> None:
    random.choice(target.files).unlink()


def rename(target: Target, random: Random) -> None:
    file = random.choice(target.files)
    file.rename(file.with_name(random.choice(("a.npy", file.name + ".bak", "old-" + file.name))))


def link(target: Target, random: Random) -> None:
    file = random.choice(target.files)
    file.rename(target.aside / file.name)  # the very same bytes, but somebody else's to change
    file.symlink_to(target.aside / file.name)


def extra_file(target: Target, random: Random) -> None:
    (target.home / random.choice(("extra.npy", ".hidden", "signs.npy~", "UPPER"))).write_bytes(random.randbytes(3))


def other_kind(target: Target, random: Random) -> None:
    file = random.choice(target.files)
    file.unlink()
    os.mkfifo(file) if random.random() < 0.5 else file.mkdir()


def generation(target: Target, random: Random) -> None:
    kind = random.randrange(4)
    target.home.rename(target.aside / "gone")
    if kind == 1:
        (target.aside / "gone").rename(target.path / "gen-000002")
    elif kind == 2:
        target.home.symlink_to(target.aside / "gone")
    elif kind == 3:
        target.home.write_bytes(b"")


MUTATIONS = (
    *(flip, word, truncate) * 5,  # the usual ones more often
    *(extend, swap, foreign_file, delete, rename, link, extra_file, other_kind, generation),
)


def probe(target: Target, random: Random) -> bool:
    """Whether the damage is found; AssertionError if a wrong byte was served before that."""
    try:
        if random.random() < 0.5:
            read(target.path)
        else:
            _read_piecemeal(target.path, random)
    except REJECTED:
        return True
    return False


def _read_piecemeal(path: Path, random: Random) -> None:
    """As a large bundle is read: opened with nothing but its resident files verified, then by rows and byte ranges."""
    expected = contents(1)
    with bundle.open(path, verify_limit=0) as opened:
        for _ in range(3):
            rows = np.array(random.sample(range(ROWS), 20))
            for name in ("signs.npy", "offsets.npy"):
                opened.view(name).require_rows(rows)
                assert np.array_equal(opened.view(name).array[rows], expected[name][rows])
            start = random.randrange(len(expected["passages.jsonl"]))
            opened.view("passages.jsonl").require_bytes(start, start + 1)
            assert opened.view("passages.jsonl").array[start] == expected["passages.jsonl"][start]
        for name in expected:
            opened.array(name)


def run(room: Path, seed: int, count: int) -> dict[str, Counter[str]]:
    """Damage and probe `count` times: how many of each kind were rejected, how many accepted."""
    random = Random(seed)
    target = Target(room)
    tally = {"rejected": Counter[str](), "accepted": Counter[str]()}
    for _ in range(count):
        target.heal()
        mutation = random.choice(MUTATIONS)
        mutation(target, random)
        tally["rejected" if probe(target, random) else "accepted"][mutation.__name__] += 1
    target.heal()
    assert read(target.path) == 1  # the target itself was good all the time
    return tally


def main(room: Path, seed: int, count: int) -> None:
    (room / "warm").mkdir()
    run(room / "warm", 0, 5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (room / "slice").mkdir()
    tally = run(room / "slice", seed, count)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in KiB on Linux, in bytes on macOS
    print(json.dumps({**tally, "grown": grown}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
