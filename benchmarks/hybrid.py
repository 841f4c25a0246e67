"""What BM25 beside the codes finds, and what kept vectors add as a third stage, by the same recipe on every set.

python benchmarks/hybrid.py --data FOLDER tune          # how to fuse: Amazon's tune half and SQuAD's training questions
python benchmarks/hybrid.py --data FOLDER measure       # with fusion's defaults
python benchmarks/hybrid.py --data FOLDER time          # BM25 here and in bm25s, in turns, and what is stored

FOLDER is laid out as docs/reproduction.md says. The model is `mini` with its own defaults. Sets: squad (dev's questions
over all 20,963 paragraphs), amazon-test and cranfield as benchmarks/quality.py has them, and squad-wiki (the same
questions over 220,963 passages), whose codes `--codes` names: signs.npy, magnitudes.npy and questions.npy. Vectors are
encoded once, into `--work`. The first 100 rows are judged; differences are paired, against codes alone. Writes
benchmarks/results/hybrid.json (measure), hybrid-tune.json and hybrid-time.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpr import bundle, lexical
from bpr.codes import Floats, pack, pack_largest
from bpr.encoder import Encoder
from bpr.evaluation import Values, gold_ranks, interval, ndcg, paired, reciprocal_rank, top_k
from bpr.fusion import LISTED, WEIGHTS, Ranked, reciprocal, weighted
from bpr.index import ScanIndex
from bpr.lexical import Lexical, LexicalOut
from bpr.questions import Question
from bpr.records import Passage
from bpr.stages import search
from bpr.training.data import collect
from bpr.training.formats import squad
from bpr.vectors import Vectors, quantized, rerank, writing
from common import put
from quality import Task, load

DEPTH = 100
TUNING = ("amazon-tune", "squad-train")
SETS = ("squad", "squad-wiki", "amazon-test", "cranfield")
TRAIN_QUESTIONS = 2000


@dataclass
class Bench:
    """A set, and what the two kinds of search find in it."""

    task: Task
    asked: NDArray[np.float32]
    floats: NDArray[np.float32] | None
    codes: list[Ranked]
    words: list[Ranked]
    folder: Path

    def judged(self, found: Sequence[Ranked]) -> dict[str, Values]:
        """Each measure's value for every question."""
        ids = [[self.task.passages[row].id for row in rows[:DEPTH].tolist()] for rows, _ in found]
        if self.task.name == "cranfield":
            return {"nDCG@10": ndcg(self.task.questions, ids)}
        ranks = gold_ranks(self.task.questions, ids)
        tops = {f"top {k}": top_k(ranks, k).astype(float) for k in (1, 5, 20, 100)}
        return {**tops, "MRR@10": reciprocal_rank(ranks)}


# ── The sets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_set(name: str, data: Path) -> Task:
    if name.startswith("amazon") or name == "cranfield":
        return load(name, data)
    task = load("squad", data)
    if name == "squad-wiki":
        return Task(name, task.passages, task.questions)
    train, examples = collect(squad(data / "squad" / "train-v1.1.json.xz", "squad-train-"))
    dev, _ = collect(squad(data / "squad" / "dev-v1.1.json.xz", "squad-dev-"))
    questions = task.questions
    if name == "squad-train":
        chosen = np.sort(np.random.default_rng(0).choice(len(examples), TRAIN_QUESTIONS, replace=False))
        some = [examples[number] for number in chosen]
        questions = [
            Question(str(i), each.question, each.answers, {each.positives[0]: 1}) for i, each in enumerate(some)
        ]
    return Task(name, [*train, *dev], questions)


def encoded(path: Path, encode: Callable[[], Floats]) -> Any:
    if not path.exists():
        np.save(path, encode())
    return np.load(path, allow_pickle=False)


def passage_vectors(task: Task, encoder: Encoder, work: Path) -> Any:
    def encode(some: list[Passage]) -> Floats:
        return encoder.passages([(passage.title, passage.text) for passage in some])

    if not task.name.startswith("amazon"):
        return encoded(work / f"{task.name.split('-')[0]}-passages.npy", partial(encode, task.passages))
    own = sum(passage.id.startswith("amazon-") for passage in task.passages)  # the others are the same in both halves
    return np.concatenate(
        [
            encoded(work / f"{task.name}-own.npy", partial(encode, task.passages[:own])),
            encoded(work / "wiki-plain.npy", partial(encode, task.passages[own:])),
        ]
    )


def opened(name: str, data: Path, work: Path, codes: Path | None) -> Bench:
    """A set with both rankings of all its questions."""
    encoder, task = Encoder.open("mini"), load_set(name, data)
    model = encoder.model
    assert model.large is not None and model.levels is not None
    floats = None
    if name == "squad-wiki":
        assert codes is not None, "squad-wiki needs --codes"
        signs, magnitudes, asked = (
            np.load(codes / f"{each}.npy", allow_pickle=False) for each in ("signs", "magnitudes", "questions")
        )
    else:
        floats = passage_vectors(task, encoder, work)
        asked = encoded(
            work / f"{'squad-dev' if name == 'squad' else name}-questions.npy", lambda: encoder.questions(task.texts)
        )
        signs, magnitudes = pack(floats), pack_largest(floats, model.large)
    index = ScanIndex(signs, magnitudes, model.levels)
    found = search(index, asked, min(LISTED, len(signs)), model.candidates)
    folder = work / f"{name}.bpr"
    segment = word_index(task, folder)
    bench = Bench(task, asked, floats, list(zip(*found, strict=True)), [], folder)
    bench.words = lexical.search([segment], task.texts, LISTED)
    return bench


def word_index(task: Task, folder: Path) -> Lexical:
    if not folder.exists():
        with bundle.create(folder) as new:
            out = LexicalOut(new)
            for row, passage in enumerate(task.passages):
                out.add(row, passage.title, passage.text)
            out.write()
            new.publish({})
    with bundle.open(folder) as found:
        return Lexical(found)


# ── How to fuse ──────────────────────────────────────────────────────────────────────────────────────────────────────


def by_best(rows: Any, scores: Any) -> Any:
    return rows, scores / max(float(scores.max(initial=0)), 1e-9)


def from_worst_to_best(rows: Any, scores: Any) -> Any:
    low, high = float(scores.min(initial=np.inf)), float(scores.max(initial=-np.inf))
    return rows, (scores - low) / (high - low) if high > low else np.ones(len(rows))


def summed(lists: Sequence[Any], weights: Sequence[float]) -> Ranked:
    """As fusion.weighted, but of scores that were brought to one scale in another way."""
    rows, places = np.unique(np.concatenate([each[0] for each in lists]), return_inverse=True)
    points = np.bincount(
        places, np.concatenate([w * each[1] for w, each in zip(weights, lists, strict=True)]), len(rows)
    )
    order = np.lexsort((rows, -points))
    return rows[order], points[order].astype(np.float32)


def fused(bench: Bench, how: Callable[[Ranked, Ranked], Ranked], depth: int) -> list[Ranked]:
    """Both rankings, so many rows of each, as one."""
    pairs = zip(bench.codes, bench.words, strict=True)
    return [how((x[0][:depth], x[1][:depth]), (y[0][:depth], y[1][:depth])) for x, y in pairs]


def tune(given: argparse.Namespace) -> None:
    """Every way to fuse, on the two sets that may be looked at."""
    benches = [opened(name, given.data, given.work, given.codes) for name in TUNING]
    lines: dict[str, Any] = {}

    def say(what: str, rankings: Sequence[Sequence[Ranked]]) -> None:
        values = [bench.judged(found) for bench, found in zip(benches, rankings, strict=True)]
        tops = [f"{100 * each[name].mean():6.2f}" for each in values for name in ("top 1", "top 20", "MRR@10")]
        mean = 50 * sum(float(each["MRR@10"].mean()) for each in values)
        print(f"{what:44} {'  '.join(tops)}   {mean:6.2f}", flush=True)
        sets = {
            name: {k: 100 * float(v.mean()) for k, v in each.items()} for name, each in zip(TUNING, values, strict=True)
        }
        lines[what] = {**sets, "mean": mean}

    print(f"{'':44} {'   '.join(f'{name}: top 1, top 20, MRR@10' for name in TUNING)}   mean MRR@10")
    say("codes", [bench.codes for bench in benches])
    segments = [word_index(bench.task, bench.folder) for bench in benches]
    for k1, b in ((0.6, 0.3), (0.9, 0.2), (0.9, 0.4), (0.9, 0.6), (1.2, 0.4), (1.2, 0.75), (1.5, 0.75), (2.0, 0.75)):
        how = {"k1": k1, "b": b}
        found = [
            lexical.search([one], bench.task.texts, DEPTH, **how)  # type: ignore[arg-type]
            for one, bench in zip(segments, benches, strict=True)
        ]
        say(f"BM25, k1 {k1}, b {b}", found)
    for depth in (100, 300, 1000):
        for k in (5, 10, 60):
            for weight in (0.7, 1.0):
                ranks = partial(lambda k, w, x, y: reciprocal([x[0], y[0]], k, [1, w]), k, weight)
                say(f"{depth}: reciprocal, k {k}, BM25 weighs {weight}", [fused(one, ranks, depth) for one in benches])
        for weight in (0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
            points = partial(lambda w, x, y: weighted([x, y], [1, w]), weight)
            say(f"{depth}: weighted, BM25 weighs {weight}", [fused(one, points, depth) for one in benches])
        for name, scaled in (("0 to 1", from_worst_to_best), ("by the best", by_best)):
            for weight in (0.3, 0.5, 0.7, 1.0):
                other = partial(lambda scaled, w, x, y: summed([scaled(*x), scaled(*y)], [1, w]), scaled, weight)
                say(f"{depth}: {name}, BM25 weighs {weight}", [fused(one, other, depth) for one in benches])
    put("hybrid-tune", "python benchmarks/hybrid.py --data FOLDER tune", {"lines": lines})


# ── What it brings ───────────────────────────────────────────────────────────────────────────────────────────────────


def kept(bench: Bench, kind: Any, reads: int) -> list[Ranked]:
    """Codes, and the first `reads` of each question by vectors that were kept; those behind stay as they were."""
    folder = bench.folder.with_name(f"{bench.task.name}-{kind}.bpr")
    if not folder.exists():
        assert bench.floats is not None
        with bundle.create(folder) as new:
            with writing(new, bench.floats.shape[1], kind) as out:
                out.add(bench.floats)
            new.publish({})
    with bundle.open(folder) as found:
        segment = Vectors(found)
    rows = np.array([rows for rows, _ in bench.codes])
    best = rerank([segment], rows[:, :reads], bench.asked, reads)
    return [(np.append(first, rest[reads:]), np.zeros(len(rest))) for first, rest in zip(best.rows, rows, strict=True)]  # type: ignore[misc]


def by_floats(bench: Bench) -> list[Ranked]:
    """Every passage by float vectors: what a third stage strives for."""
    assert bench.floats is not None
    found: list[Ranked] = []
    for first in range(0, len(bench.asked), 256):
        scores = bench.asked[first : first + 256] @ bench.floats.T
        some = np.argpartition(-scores, DEPTH, axis=1)[:, :DEPTH]
        order = np.take_along_axis(some, np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable"), 1)
        found += [(rows, scores[i, rows]) for i, rows in enumerate(order)]
    return found


def systems(bench: Bench) -> dict[str, Callable[[], Sequence[Ranked]]]:
    some: dict[str, Callable[[], Sequence[Ranked]]] = {
        "codes": lambda: bench.codes,
        "BM25": lambda: bench.words,
        "codes + BM25, reciprocal ranks": lambda: fused(bench, lambda x, y: reciprocal([x[0], y[0]]), LISTED),
        "codes + BM25, weighted": lambda: fused(bench, lambda x, y: weighted([x, y], WEIGHTS), LISTED),
    }
    if bench.floats is not None:
        for kind in ("int8", "float16"):
            for reads in (20, 100):
                some[f"codes, then {kind} for {reads}"] = partial(kept, bench, kind, reads)
        some["floats, every passage"] = partial(by_floats, bench)
    return some


def measure(given: argparse.Namespace) -> None:
    results: dict[str, Any] = {}
    for name in SETS:
        if name == "squad-wiki" and given.codes is None:
            continue
        bench = opened(name, given.data, given.work, given.codes)
        plain = bench.judged(bench.codes)
        results[name] = {"passages": len(bench.task.passages), "questions": len(bench.task.questions), "systems": {}}
        print(f"\n{name}: {len(bench.task.passages):,} passages, {len(bench.task.questions):,} questions")
        for system, rank in systems(bench).items():
            own = results[name]["systems"][system] = {}
            for what, values in bench.judged(rank()).items():
                whole, less = interval(values), paired(values, plain[what])
                own[what] = {**whole.to_dict(), "against codes": less.to_dict()}
                change = f"{less.mean:+.2f} [{less.low:+.2f}, {less.high:+.2f}]" if system != "codes" else ""
                print(
                    f"  {system:34} {what:8} {whole.mean:6.2f} [{whole.low:.2f}, {whole.high:.2f}]  {change}",
                    flush=True,
                )
        if bench.floats is not None:
            results[name]["rounding"] = rounding(bench.floats, bench.asked, bench.codes)
            print("  ", results[name]["rounding"])
    put("hybrid", "python benchmarks/hybrid.py --data FOLDER --codes CODES measure", {"sets": results})


def rounding(floats: NDArray[np.float32], asked: NDArray[np.float32], found: Sequence[Ranked]) -> dict[str, float]:
    """How far off the scores of the first 20 rows are, in units of their spread."""
    rows = np.array([rows[:20] for rows, _ in found])[:2000]
    questions = asked[: len(rows)]

    def scores(values: Any) -> Any:
        return np.einsum("qmd,qd->qm", np.asarray(values, np.float64)[rows], questions)

    numbers, scales = quantized(floats)
    largest = np.abs(floats).max(axis=0) / 127
    true = scores(floats)
    spread = true.std(axis=1, keepdims=True)
    forms = {
        "int8, a scale a row": numbers * scales[:, None],
        "int8, a scale a dimension": np.rint(floats / largest) * largest,
        "float16": floats.astype(np.float16),
    }
    return {name: float((np.abs(scores(form) - true) / spread).mean()) for name, form in forms.items()}


# ── What it costs ────────────────────────────────────────────────────────────────────────────────────────────────────


def clock(given: argparse.Namespace) -> None:
    """BM25 of 1,000 questions over 220,963 passages: ours and that of bm25s, in turns and on one thread."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    task = load_set("squad-wiki", given.data)
    folder = given.work / "time.bpr"
    shutil.rmtree(folder, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    segment = word_index(task, folder)
    built = time.perf_counter() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    vocabulary: dict[str, int] = {}

    def numbers(text: str, known_only: bool) -> list[int]:
        words = [word for word in lexical.words_of(text) if word not in lexical.ENGLISH]
        if known_only:
            return [vocabulary[word] for word in words if word in vocabulary]
        return [vocabulary.setdefault(word, len(vocabulary)) for word in words]

    passages = [numbers(f"{passage.title} {passage.text}", False) for passage in task.passages]
    chosen = np.random.default_rng(0).choice(len(task.texts), 1000, replace=False)
    texts = [task.texts[number] for number in chosen]
    asked = [numbers(text, True) for text in texts]
    runs: dict[str, Callable[[slice], Any]] = {"bpr": lambda some: lexical.search([segment], texts[some], DEPTH)}
    for backend in ("numpy", "numba"):
        index = bm25s.BM25(backend=backend, k1=lexical.K1, b=lexical.B)
        index.index((passages, vocabulary), show_progress=False)
        threads = 1 if backend == "numba" else 0
        runs[f"bm25s, {backend}"] = partial(
            lambda index, threads, some: index.retrieve(asked[some], k=DEPTH, n_threads=threads, show_progress=False),
            index,
            threads,
        )
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(slice(0, 10))  # numba compiles now
    for first in range(0, 1000, 100):
        for name, run in runs.items():
            begin = time.perf_counter()
            run(slice(first, first + 100))
            times[name].append((time.perf_counter() - begin) * 10)
    ours = lexical.search([segment], texts, DEPTH)
    theirs = runs["bm25s, numba"](slice(0, 1000))[1]
    with bundle.open(folder) as found:
        sizes = {name: found.manifest.files[name].bytes / len(segment) for name in lexical.FILES}
    result = {
        "milliseconds a question": {
            name: {"best": min(some), "median": float(np.median(some))} for name, some in times.items()
        },
        "largest difference of a score": max(
            float(np.abs(mine[1] - other[: len(mine[1])]).max(initial=0))
            for mine, other in zip(ours, theirs, strict=True)
        ),
        "bytes a passage": {**sizes, "all": sum(sizes.values())},
        "seconds to build": built,
        "MB that building took at its peak": grown,
    }
    print(json.dumps(result, indent=1))
    put("hybrid-time", "python benchmarks/hybrid.py --data FOLDER time", result)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--codes", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/hybrid"))
    parser.add_argument("what", choices=("tune", "measure", "time"))
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    {"tune": tune, "measure": measure, "time": clock}[given.what](given)


if __name__ == "__main__":
    main()
