"""What a row finds and what it costs, measured; and kept, so that the next run need not measure it again.

An index is made, written to disk and opened from there: what is measured is what a user would open. Times are medians
of runs that took turns with BPR's (bench.py says why), so that their ratio holds on a machine that others use too.
Memory is that of a process of its own (resident.py). It knows rows and sides, and no table: report.py makes those.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .. import __version__, baselines, bench
from ..baselines import Baseline, TooFew
from ..codes import Floats
from ..disk import replacing, storage_error
from ..errors import InvalidInput
from ..evaluation import AnswerFinder, Ranks, gold_ranks
from ..kernels import Limits
from ..records import Hits, Progress
from ..stages import search
from .inputs import BITS, Corpus, Side
from .rows import MAIN, Row

VERSION = 2  # of what a kept result holds: another one is measured again
QUESTIONS_AT_ONCE = 256
READ = 20  # passages of a question that are kept, for readers
SCRATCH = ".index-"  # in FOLDER: the index that is being measured
BATCH, ROUNDS = 64, 5  # questions of a timed batch; turns of each system
ALONE = 5  # single questions of a turn


@dataclass(frozen=True)
class How:
    """depth: passages of a question that are looked at. threads: of every search, None for all cores."""

    depth: int
    threads: int | None = None


def run(
    rows: Sequence[Row], sides: Mapping[str, Side], corpus: Corpus, folder: Path, how: How, say: Progress
) -> list[dict[str, Any]]:
    """The results of all rows, in their order; one that cannot be measured has a "problem" instead of figures.

    Results are kept in FOLDER/rows as soon as they are there; one whose inputs are the same is taken from there.
    """
    _check(sides, corpus, how)
    keys = _keys(rows, sides, corpus, how)
    homes = {row.name: _folder(folder / "rows") / f"{row.file}.json" for row in rows}
    found = {row.name: _kept(homes[row.name], keys[row.name]) for row in rows}
    todo = [row for row in rows if found[row.name] is None]
    say("rows", len(rows) - len(todo), len(rows))
    for left in folder.glob(f"{SCRATCH}*"):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    work = _Work(sides, corpus, how, say, reference(rows))
    for _, group in groupby(todo, key=lambda row: row.index):
        for row, result in work.measured(list(group), folder):
            whole = {"name": row.name, "table": row.table, "settings": row.settings, **result}
            _keep(homes[row.name], {"key": keys[row.name], **whole})
            found[row.name] = whole
            say("rows", sum(each is not None for each in found.values()), len(rows))
    return [each for each in found.values() if each is not None]


def reference(rows: Sequence[Row]) -> Row:
    """The row that all others take turns with: BPR as it is."""
    return next(row for row in rows if row.table == MAIN and row.index == {"side": BITS, "index": "trained"})


class _Work:
    """What the rows of a run share."""

    def __init__(self, sides: Mapping[str, Side], corpus: Corpus, how: How, say: Progress, bpr: Row) -> None:
        self.sides, self.corpus, self.how, self.say = sides, corpus, how, say
        self.ids = [passage.id for passage in corpus.passages]
        self.finder = AnswerFinder(corpus.regex)
        self.bpr, self.bpr_index = bpr, baselines.trained(sides[BITS].planes)

    def measured(self, rows: list[Row], folder: Path) -> Iterator[tuple[Row, dict[str, Any]]]:
        """The rows of one index."""
        side = self.sides[rows[0].side]
        self.say(f"{rows[0].name}: building", 0, None)
        with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
            home = Path(scratch) / "index"
            home.mkdir()
            try:
                begin = time.monotonic()
                made: Baseline = rows[0].make(side.data)
                facts: dict[str, Any] = {"build_seconds": round(time.monotonic() - begin, 2), "bytes": made.nbytes}
                made.save(home)
            except TooFew as problem:
                for row in rows:
                    yield row, {"problem": str(problem)}
                return
            del made  # what follows sees what was on disk, and nothing else of it is in memory
            facts["disk"] = sum(file.stat().st_size for file in home.iterdir())
            facts["resident"] = self._resident(home, rows[0], side.questions)
            index = baselines.load(home)
            for row in rows:
                ranks, best, seconds = self._ranks(row, index, side.questions)
                times = self._times(row, index, side.questions)
                kept = {"ranks": ranks.tolist(), **({"best": best} if row.table == MAIN else {})}
                yield row, {**facts, "search_seconds": seconds, **times, **kept}

    def _ranks(self, row: Row, index: Baseline, questions: Floats) -> tuple[Ranks, list[list[int]], float]:
        """Where each question's first right passage stands, its first READ passages, and how long all searches took."""
        ranks, best, took = [], [], 0.0
        for first in range(0, len(questions), QUESTIONS_AT_ONCE):
            self.say(f"{row.name}: searching", first, len(questions))
            begin = time.monotonic()
            found = self._search(row, index, questions[first : first + QUESTIONS_AT_ONCE]).rows.tolist()
            took += time.monotonic() - begin
            ranks.append(self._judged(first, found))
            best += [rows[:READ] for rows in found]
        self.say(f"{row.name}: searching", len(questions), len(questions))
        return np.concatenate(ranks), best, round(took, 3)

    def _judged(self, first: int, found: list[list[int]]) -> Ranks:
        some = self.corpus.questions[first : first + len(found)]
        if self.corpus.by == "gold":
            return gold_ranks(some, [[self.ids[row] for row in rows] for rows in found])
        texts = ([self.corpus.passages[row].text for row in rows] for rows in found)
        return np.array([self.finder.rank(question, each) for question, each in zip(some, texts, strict=True)])

    def _search(self, row: Row, index: Baseline, vectors: Floats) -> Hits:
        """From the vectors of questions to their passages: also what it takes to turn them is part of a search."""
        how = {"candidates": row.candidates, "rerank": row.rerank, "threads": self.how.threads}
        return search(index, index.questions(vectors), self.how.depth, **how)  # type: ignore[arg-type]

    def _times(self, row: Row, index: Baseline, questions: Floats) -> dict[str, Any]:
        """Milliseconds of one question alone and of one in a batch, and how many times as long as BPR's."""
        found: dict[str, Any] = {}
        for name, count, runs in (("alone", 1, ALONE), ("batch", min(BATCH, len(questions)), 1)):
            systems = [self._turn(self.bpr, self.bpr_index, self.sides[BITS].questions, count)]
            if row != self.bpr:
                systems.append(self._turn(row, index, questions, count))
            times = [1000 * each / count for each in in_turns(systems, runs)]
            found[f"ms_{name}"], found[f"times_bpr_{name}"] = times[-1], times[-1] / times[0]
        return found

    def _turn(self, row: Row, index: Baseline, questions: Floats, count: int) -> Callable[[], object]:
        """A search for the next questions: other ones each time, or their passages would be in the caches already."""
        firsts = itertools.cycle(range(0, len(questions) - count + 1, count))

        def run() -> object:
            first = next(firsts)
            return self._search(row, index, questions[first : first + count])

        return run

    def _resident(self, home: Path, row: Row, questions: Floats) -> int | None:
        """Bytes by which a process grows that opens the index and searches."""
        asked = home.parent / "questions.npy"
        np.save(asked, np.asarray(questions[:BATCH], np.float32), allow_pickle=False)
        settings = {"depth": self.how.depth, "candidates": row.candidates, "rerank": row.rerank}
        settings["threads"] = Limits(self.how.threads).thread_count()
        command = [sys.executable, "-m", "bpr.compare.resident", str(home), str(asked), json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            raise InvalidInput(f"{row.name}: the process that measures its memory failed: {last}")
        grown: int | None = json.loads(done.stdout)["grown"]
        return grown


def in_turns(systems: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """The median seconds of each system, of `runs` runs in every round.

    Before each turn Faiss's threads get the time to stop spinning (bench.py), and one run that does not count wakes
    this system's own: otherwise whoever comes after another one that has just been busy would seem the faster.
    """
    times: list[list[float]] = [[] for _ in systems]
    for _ in range(ROUNDS):
        for system, took in zip(systems, times, strict=True):
            time.sleep(bench.SETTLE_SECONDS)
            system()
            for _ in range(runs):
                begin = time.perf_counter()
                system()
                took.append(time.perf_counter() - begin)
    return [median(each) for each in times]


# ── Results that are there already ───────────────────────────────────────────────────────────────────────────────────


def _keys(rows: Sequence[Row], sides: Mapping[str, Side], corpus: Corpus, how: How) -> dict[str, str]:
    """A hash of all that a row's figures depend on: also the machine, and the shape of what it took turns with."""
    machine, bpr = bench.machine(), reference(rows)
    common = {
        "version": VERSION,
        "bpr": __version__,
        "machine": {name: machine[name] for name in ("processor", "simd", "numpy", "faiss-cpu")},
        "threads": Limits(how.threads).thread_count(),
        "corpus": corpus.fingerprint,
        "bpr row": [sides[BITS].shape, sides[BITS].planes.magnitudes is None, bpr.candidates],
        "how": asdict(how),
    }
    found = {}
    for row in rows:
        facts = {**common, "side": sides[row.side].fingerprint, "settings": row.settings}
        found[row.name] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return found


def _kept(path: Path, key: str) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result if result["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError):
        return None  # not there, or not whole: it is measured again


def _keep(path: Path, result: Mapping[str, Any]) -> None:
    with replacing(path) as [file]:
        file.write(json.dumps(result).encode())


def _folder(path: Path) -> Path:
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """What the system refuses is a StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error("write", path, error) from error


def check_depth(depth: int, corpus: Corpus) -> None:
    """Refuse to look at more passages than there are."""
    if depth > len(corpus.passages):
        raise InvalidInput(f"there are {len(corpus.passages):,} passages: top {depth} cannot be told (--top)")


def _check(sides: Mapping[str, Side], corpus: Corpus, how: How) -> None:
    """Refuse what cannot be right: each side must see all passages and all questions."""
    check_depth(how.depth, corpus)
    passages, questions = len(corpus.passages), len(corpus.questions)
    for name, side in sides.items():
        rows, width = side.shape
        if (rows, len(side.questions)) != (passages, questions):
            raise InvalidInput(
                f"{name}: vectors of {rows:,} passages and {len(side.questions):,} questions, but there are "
                f"{passages:,} and {questions:,}"
            )
        if side.questions.shape[1] != width:
            raise InvalidInput(f"{name}: questions have {side.questions.shape[1]} dimensions, passages {width}")
