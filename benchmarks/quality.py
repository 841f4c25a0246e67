"""What a model finds, on text like its training's and on text unlike it, with the product's own build and search.

python benchmarks/quality.py MODEL --data FOLDER --set squad [--float] [--device cuda] [--against RUN.json]

FOLDER is laid out as docs/reproduction.md says. Writes benchmarks/results/quality-SET-MODEL.json with the rank of every
question's gold passage, so that two runs can be compared question by question (--against prints the paired difference).
--float ranks all passages by the inner product of float vectors: the start model, or the float twin, without bits.
Encoding SQuAD's corpus takes about half an hour on 2 cores; it goes on where it was when it is run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bpr
from bpr.answers import Answers, Text
from bpr.bench import machine
from bpr.encoder import Encoder, Encodes
from bpr.passages import read
from bpr.records import Passage
from bpr.terminal import bars
from bpr.training.data import Example, collect
from bpr.training.formats import beir, squad
from common import RESULTS

DEPTH = 100
TOP = (1, 5, 20, 100)
RESAMPLES = 2000
Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Passages to find in, and examples to find."""

    name: str
    passages: list[Passage]
    examples: list[Example]


def load(name: str, data: Path) -> Task:
    if name == "cranfield":
        return Task(name, *collect(beir(data / "cranfield")))
    wiki = [Passage(f"wiki-{p.id}", p.title, p.text, {}) for p in read(data / "wiki" / "wiki-2019-200k.tsv.xz")]
    if name == "squad":
        train, _ = collect(squad(data / "squad" / "train-v1.1.json.xz", "squad-train-"))
        dev, examples = collect(squad(data / "squad" / "dev-v1.1.json.xz", "squad-dev-"))
        return Task(name, [*train, *dev, *wiki], examples)
    passages, examples = collect(squad(data / "amazon" / f"{name.removeprefix('amazon-')}.json.xz", "amazon-"))
    plain = [Passage(p.id, "", p.text, {}) for p in [*passages, *wiki[:20_000]]]
    return Task(name, plain, examples)


def ranked_by_codes(task: Task, encoder: Encodes, work: Path) -> Ranks:
    """The rows that bpr finds, with the model's own defaults: int64[q, depth]."""
    path = work / f"{task.name}-{encoder.model.name}-{encoder.model.fingerprint[:8]}.bpr"
    if not path.exists():
        with bars(True) as progress:
            bpr.build(
                ({"id": p.id, "title": p.title, "text": p.text} for p in task.passages),
                path,
                model=encoder,
                progress=progress,
            )
    with bpr.open(path, model=encoder) as retriever:
        vectors = encoder.questions([example.question for example in task.examples])
        return np.concatenate([retriever.rank(vectors[i : i + 256], k=DEPTH).rows for i in range(0, len(vectors), 256)])


def ranked_by_floats(task: Task, encoder: Encodes, work: Path) -> Ranks:
    """The rows with the largest inner products of float vectors."""
    path = work / f"{task.name}-{encoder.model.name}-{encoder.model.fingerprint[:8]}.npy"
    if not path.exists():
        np.save(path, encoder.passages([(p.title, p.text) for p in task.passages]))
    floats, questions = np.load(path), encoder.questions([example.question for example in task.examples])
    best = []
    for first in range(0, len(questions), 64):
        scores = questions[first : first + 64] @ floats.T
        some = np.argpartition(-scores, DEPTH, axis=1)[:, :DEPTH]
        order = np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable")
        best.append(np.take_along_axis(some, order, 1))
    return np.concatenate(best)


def gold_ranks(task: Task, found: Ranks) -> Ranks:
    """The rank of the first gold passage, from 1; 0 where it is not among those found."""
    rows = {passage.id: row for row, passage in enumerate(task.passages)}
    ranks = np.zeros(len(found), np.int64)
    for i, example in enumerate(task.examples):
        hit = np.flatnonzero(np.isin(found[i], [rows[each] for each in example.positives]))
        ranks[i] = hit[0] + 1 if len(hit) else 0
    return ranks


def answer_ranks(task: Task, found: Ranks) -> Ranks:
    """The rank of the first passage whose text holds an answer."""
    texts: dict[int, Text] = {}
    ranks = np.zeros(len(found), np.int64)
    for i, example in enumerate(task.examples):
        answers = Answers(example.answers)
        for rank, row in enumerate(found[i].tolist(), 1):
            if row not in texts:
                texts[row] = Text(task.passages[row].text)
            if answers.found_in(texts[row]):
                ranks[i] = rank
                break
    return ranks


def ndcg(task: Task, found: Ranks) -> NDArray[np.float64]:
    """nDCG@10 of each question, binary judgements."""
    rows = {passage.id: row for row, passage in enumerate(task.passages)}
    gain = 1 / np.log2(np.arange(2, 12))
    each = []
    for row, example in zip(found, task.examples, strict=True):
        gold = [rows[positive] for positive in example.positives]
        each.append((np.isin(row[:10], gold) * gain).sum() / gain[: min(10, len(gold))].sum())
    return np.array(each)


def interval(values: NDArray[Any]) -> tuple[float, float, float]:
    """The mean and its 95 % bootstrap interval, in percent."""
    random = np.random.default_rng(0)
    means = [values[random.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * float(values.mean()), 100 * float(low), 100 * float(high)


def measures(result: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Each measure's value for every question."""
    if "ndcg" in result:
        return {"nDCG@10": np.array(result["ndcg"])}
    found = {kind: np.array(result[kind]) for kind in ("gold", "answer")}
    return {f"top {k}, {kind}": (ranks > 0) & (ranks <= k) for kind, ranks in found.items() for k in TOP}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=("squad", "amazon-tune", "amazon-test", "cranfield"), required=True)
    parser.add_argument("--float", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path("build/quality"))
    parser.add_argument("--against", type=Path)
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    task, encoder = load(given.set, given.data), opened(given.model, given.device)
    found = (ranked_by_floats if given.float else ranked_by_codes)(task, encoder, given.work)
    result: dict[str, Any] = {
        "model": encoder.model.name,
        "float": given.float,
        "set": given.set,
        "engine": encoder.engine,
    }
    if given.set == "cranfield":
        result["ndcg"] = ndcg(task, found).round(5).tolist()
    else:
        result |= {"gold": gold_ranks(task, found).tolist(), "answer": answer_ranks(task, found).tolist()}
    show(result, json.loads(given.against.read_text()) if given.against else None)
    path = RESULTS / f"quality-{given.set}-{encoder.model.name}{'-float' if given.float else ''}.json"
    path.write_text(json.dumps({**result, "machine": machine()}) + "\n")
    print(f"written: {path}")


def opened(model: str, device: str) -> Encodes:
    if device == "cpu":
        return Encoder.open(model)
    from bpr.training.encode import TorchEncoder

    return TorchEncoder.open(model, device)


def show(result: dict[str, Any], against: dict[str, Any] | None) -> None:
    other = measures(against) if against else {}
    for name, values in measures(result).items():
        mean, low, high = interval(values.astype(float))
        line = f"{result['set']:12} {result['model']:24} {name:16} {mean:6.2f}  [{low:.2f}, {high:.2f}]"
        if name in other:
            difference, low, high = interval(values.astype(float) - other[name].astype(float))
            line += f"   {difference:+.2f} [{low:+.2f}, {high:+.2f}] against {against['model'] if against else ''}"
        print(line)


if __name__ == "__main__":
    main()
