"""Measures everything, the cheapest first, and reports: every figure that a machine without a GPU can give.

python benchmarks/all.py                                 what needs no data of others: `make bench`
python benchmarks/all.py --data FOLDER --work DIR        everything: `make figures DATA=FOLDER WORK=DIR`
        [--only NAME …] [--again] [--list]

FOLDER is laid out as docs/reproduction.md says. A step whose results carry the present commit is passed over, so a run
that was stopped goes on where it was; --again measures it all the same. DIR may hold what takes long already:
squad.bpr (SQuAD's paragraphs and Wikipedia's passages, indexed with mini), twin-p.npy and twin-q.npy (their vectors and
the dev questions' with benchmarks/twin), and all-MiniLM-L6-v2: minilm as `bpr convert encoder` and `bpr export` leave
it, minilm-float32 from `bpr export --float32`. Without them, what needs float weights is left out. A bar that does not
hold ends a step with 1: the others are measured all the same, and so does this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import HOME, RESULTS, commit, is_current, put

HERE = HOME / "benchmarks"
NEEDED = ("squad/train-v1.1.json.xz", "squad/dev-v1.1.json.xz", "wiki/wiki-2019-200k.tsv.xz", "amazon", "cranfield")
PREFIX = "squad-dev-"
ENCODED_AT_ONCE = 8192


@dataclass(frozen=True)
class Step:
    """What writes results/NAME.json, and roughly how many minutes it takes on 2 cores."""

    name: str
    minutes: float
    command: list[str]

    def is_done(self) -> bool:
        path = RESULTS / f"{self.name}.json"
        return path.exists() and is_current(self.name, json.loads(path.read_text(encoding="utf-8")))


def script(name: str, *arguments: Any) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py"), *map(str, arguments)]


def bpr(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "bpr.cli", *map(str, arguments)]


# ── The steps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def without_data() -> Iterator[Step]:
    yield Step("sizing", 0.1, script("sizing"))
    yield Step("memory", 0.5, script("memory"))
    yield Step("live", 1.5, script("live"))
    yield Step("filters", 2, script("filters"))
    yield Step("cluster", 4, script("cluster"))
    yield Step("load", 31, script("load"))
    yield Step("scan", 9, script("scan"))


def with_data(data: Path, work: Path) -> Iterator[Step]:
    """What needs FOLDER; all of it works on one bundle and its codes."""
    bundle, codes, minilm, exact = (work / name for name in ("squad.bpr", "codes", "minilm", "minilm-float32"))
    shared = ("--data", data, "--work")
    yield Step("encode", 1, script("encode", minilm if minilm.exists() else "mini", work / "passages.jsonl"))
    for name, minutes, more in (("cranfield", 0.5, ()), ("squad", 1, ("--bundle", bundle)), ("amazon-test", 5, ())):
        own = script("quality", "mini", *shared, work / "quality", "--set", name, *more)
        yield Step(f"quality-{name}-mini", minutes, own)
    if exact.exists():
        own = script("quality", exact, *shared, work / "quality", "--set", "cranfield", "--float")
        yield Step("quality-cranfield-all-MiniLM-L6-v2-float", 0.5, own)
    yield Step("tune", 1, script("tune", *shared, work / "tune", "--bundle", bundle))
    yield Step("lookup", 3.5, script("lookup", codes / "signs.npy", codes / "questions.npy"))
    for name, what, minutes in (("hybrid-time", "time", 2.5), ("hybrid", "measure", 8), ("hybrid-tune", "tune", 8)):
        yield Step(name, minutes, script("hybrid", *shared, work / "hybrid", "--codes", codes, what))
    yield Step("compare-squad", 18, compare(data, work))
    yield Step("reader-time", 0.5, script("answers", "--data", data, "--bundle", bundle, "--time"))
    yield Step("reader", 26, script("answers", "--data", data, "--bundle", bundle))
    yield Step("indexes", 47, script("indexes", codes, "--cache", work / "indexes"))


def tables(work: Path) -> Path:
    """Of this commit alone: `bpr compare` takes over finished rows of the same version."""
    return work / f"tables-{commit()}"


def compare(data: Path, work: Path) -> list[str]:
    asked = data / "squad" / "dev-v1.1.json.xz"
    vectors = ("--float-vectors", work / "twin-p.npy", work / "twin-q.npy")
    own = ("--bundle", work / "squad.bpr", "--reader", "mini", "--read", 300, "-o", tables(work))
    return bpr("compare", work / "passages.jsonl", asked, "--prefix", PREFIX, *vectors, *own)


def keep_tables(work: Path) -> None:
    """The tables of `bpr compare` as a results file."""
    found = json.loads((tables(work) / "compare.json").read_text(encoding="utf-8"))
    found["models"]["float"] = "benchmarks/twin, int8"
    put("compare-squad", "bpr compare", found, found.pop("machine"))


# ── What they work on ────────────────────────────────────────────────────────────────────────────────────────────────


def prepare(data: Path, work: Path, with_twin: bool) -> None:
    """passages.jsonl, squad.bpr, codes/ and, if they are wanted, the twin's vectors, where they are not there."""
    import quality

    missing = [name for name in NEEDED if not (data / name).exists()]
    if missing:
        raise SystemExit(f"{data} has no {', '.join(missing)}: docs/reproduction.md says what it should hold")
    work.mkdir(parents=True, exist_ok=True)
    passages, bundle, asked = work / "passages.jsonl", work / "squad.bpr", data / "squad" / "dev-v1.1.json.xz"
    if not passages.exists():
        records = ({"id": p.id, "title": p.title, "text": p.text} for p in quality.load("squad", data).passages)
        part = passages.with_suffix(".part")
        part.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
        part.rename(passages)
    if not (bundle / "manifest.json").exists():  # an index that was stopped goes on
        run("index squad.bpr", 35, bpr("index", passages, "-o", bundle))
    if not (work / "codes" / "gold.npy").exists():
        run("codes", 1, script("indexes", work / "codes", "--from", bundle, asked, "--prefix", PREFIX))
    if with_twin and not ((work / "twin-p.npy").exists() and (work / "twin-q.npy").exists()):
        encode_twin(quality.load("squad", data), work)


def encode_twin(task: Any, work: Path) -> None:
    """Vectors of the float twin, part by part, so that a run that was stopped goes on."""
    import numpy as np

    from bpr.encoder import Encoder

    encoder, parts = Encoder.open(HERE / "twin"), work / "twin"
    parts.mkdir(exist_ok=True)
    files = []
    for first in range(0, len(task.passages), ENCODED_AT_ONCE):
        files.append(parts / f"{first:09}.npy")
        if not files[-1].exists():
            some = [(p.title, p.text) for p in task.passages[first : first + ENCODED_AT_ONCE]]
            np.save(files[-1].with_suffix(".part.npy"), encoder.passages(some))
            files[-1].with_suffix(".part.npy").rename(files[-1])
            print(f"the twin's vectors: {min(first + ENCODED_AT_ONCE, len(task.passages)):,}", flush=True)
    np.save(work / "twin-q.npy", encoder.questions(task.texts))
    np.save(work / "twin-p.npy", np.concatenate([np.load(file) for file in files]))


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def run(name: str, minutes: float, command: list[str]) -> int:
    print(f"\n── {name}: about {minutes:g} minutes\n$ {' '.join(command)}", flush=True)
    begun = time.monotonic()
    ended = subprocess.run(command, cwd=HOME).returncode
    print(
        f"── {name}: {(time.monotonic() - begun) / 60:.1f} minutes{f', ended with {ended}' * bool(ended)}", flush=True
    )
    return ended


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, default=HOME / "build" / "figures")
    parser.add_argument("--only", nargs="+", help="names of results files")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true", help="say what would be measured, and how long it takes")
    given = parser.parse_args(arguments)
    data, work = given.data and given.data.resolve(), given.work.resolve()
    steps = sorted([*without_data(), *(with_data(data, work) if data else ())], key=lambda step: step.minutes)
    wanted = [step for step in steps if not given.only or step.name in given.only]
    wanted = [step for step in wanted if given.again or not step.is_done()]
    for step in wanted:
        print(f"{step.minutes:6g} minutes  {step.name}")
    print(f"{sum(step.minutes for step in wanted):6g} minutes in all; {len(steps) - len(wanted)} steps are passed over")
    if given.list:
        return
    if data and any(step.name in {each.name for each in with_data(data, work)} for step in wanted):
        prepare(data, work, with_twin="compare-squad" in {step.name for step in wanted})
    failed = []
    for step in wanted:
        ended = run(step.name, step.minutes, step.command)
        failed += [step.name] * bool(ended)
        if step.name == "compare-squad" and not ended:
            keep_tables(work)
    run("report", 0.1, script("report"))
    if failed:
        raise SystemExit(f"not all bars hold, or it failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
