"""What a model finds, on text like its training's and on text unlike it, with the product's own build and search.

python benchmarks/quality.py MODEL --data FOLDER --set squad [--float] [--device cuda] [--against RUN.json]
                                                              [--bundle NAME.bpr]

FOLDER is laid out as docs/reproduction.md says. Writes benchmarks/results/quality-SET-MODEL.json with the rank of every
question's gold passage, so that two runs can be compared question by question (--against prints the paired difference).
--float ranks all passages by the inner product of float vectors: the start model, or the float twin, without bits.
Encoding SQuAD's corpus takes about half an hour on 2 cores; it goes on where it was when it is run again, and --bundle
names one that is there already.
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
from bpr.encoder import Encoder, Encodes
from bpr.evaluation import Values, answer_ranks, gold_ranks, interval, ndcg, paired, top_k
from bpr.passages import read
from bpr.questions import Question, read_questions
from bpr.records import Passage
from bpr.terminal import bars
from bpr.training.data import collect
from bpr.training.formats import beir, squad
from common import put

DEPTH = 100
TOP = (1, 5, 20, 100)
Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Passages to find in, and questions to find them for."""

    name: str
    passages: list[Passage]
    questions: list[Question]

    @property
    def texts(self) -> list[str]:
        return [question.text for question in self.questions]


def load(name: str, data: Path) -> Task:
    if name == "cranfield":
        return Task(name, collect(beir(data / name))[0], read_questions(data / name))
    wiki = [Passage(f"wiki-{p.id}", p.title, p.text, {}) for p in read(data / "wiki" / "wiki-2019-200k.tsv.xz")]
    if name == "squad":
        train, _ = collect(squad(data / name / "train-v1.1.json.xz", "squad-train-"))
        dev, _ = collect(squad(data / name / "dev-v1.1.json.xz", "squad-dev-"))
        asked = read_questions(data / name / "dev-v1.1.json.xz", prefix="squad-dev-")
        return Task(name, [*train, *dev, *wiki], asked)
    file = data / "amazon" / f"{name.removeprefix('amazon-')}.json.xz"
    passages, _ = collect(squad(file, "amazon-"))
    plain = [Passage(p.id, "", p.text, {}) for p in [*passages, *wiki[:20_000]]]
    return Task(name, plain, read_questions(file, prefix="amazon-"))


def ranked_by_codes(task: Task, encoder: Encodes, work: Path, bundle: Path | None) -> Ranks:
    """The rows that bpr finds, with the model's own defaults: int64[q, depth]."""
    path = bundle or work / f"{task.name}-{encoder.model.name}-{encoder.model.fingerprint[:8]}.bpr"
    if not path.exists():
        with bars(True) as progress:
            bpr.build(
                ({"id": p.id, "title": p.title, "text": p.text} for p in task.passages),
                path,
                model=encoder,
                progress=progress,
            )
    with bpr.open(path, model=encoder) as retriever:
        if [each.id for each in retriever.passages] != [each.id for each in task.passages]:
            raise SystemExit(f"{path} does not hold the passages of {task.name} in their order")
        vectors = encoder.questions(task.texts)
        return np.concatenate([retriever.rank(vectors[i : i + 256], k=DEPTH).rows for i in range(0, len(vectors), 256)])


def ranked_by_floats(task: Task, encoder: Encodes, work: Path) -> Ranks:
    """The rows with the largest inner products of float vectors."""
    path = work / f"{task.name}-{encoder.model.name}-{encoder.model.fingerprint[:8]}.npy"
    if not path.exists():
        np.save(path, encoder.passages([(p.title, p.text) for p in task.passages]))
    floats, questions = np.load(path), encoder.questions(task.texts)
    best = []
    for first in range(0, len(questions), 64):
        scores = questions[first : first + 64] @ floats.T
        some = np.argpartition(-scores, DEPTH, axis=1)[:, :DEPTH]
        order = np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable")
        best.append(np.take_along_axis(some, order, 1))
    return np.concatenate(best)


def judged(task: Task, found: Ranks) -> dict[str, Any]:
    """The ranks of the right passages; of Cranfield, whose questions have many, nDCG@10."""
    passages = [[task.passages[row] for row in rows.tolist()] for rows in found]
    ids = [[passage.id for passage in some] for some in passages]
    if task.name == "cranfield":
        return {"ndcg": ndcg(task.questions, ids).round(5).tolist()}
    answer = answer_ranks(task.questions, [[passage.text for passage in some] for some in passages])
    return {"gold": gold_ranks(task.questions, ids).tolist(), "answer": answer.tolist()}


def measures(result: dict[str, Any]) -> dict[str, Values]:
    """Each measure's value for every question."""
    if "ndcg" in result:
        return {"nDCG@10": np.array(result["ndcg"])}
    return {f"top {k}, {kind}": top_k(result[kind], k).astype(float) for kind in ("gold", "answer") for k in TOP}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=("squad", "amazon-tune", "amazon-test", "cranfield"), required=True)
    parser.add_argument("--float", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path("build/quality"))
    parser.add_argument("--against", type=Path)
    parser.add_argument("--bundle", type=Path, help="the set's passages, indexed with MODEL")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    task, encoder = load(given.set, given.data), opened(given.model, given.device)
    if given.float:
        found = ranked_by_floats(task, encoder, given.work)
    else:
        found = ranked_by_codes(task, encoder, given.work, given.bundle)
    result: dict[str, Any] = {
        "model": encoder.model.name,
        "float": given.float,
        "set": given.set,
        "engine": encoder.engine,
        **judged(task, found),
    }
    show(result, json.loads(given.against.read_text()) if given.against else None)
    command = f"python benchmarks/quality.py MODEL --data FOLDER --set {given.set}{' --float' * given.float}"
    put(f"quality-{given.set}-{encoder.model.name}{'-float' * given.float}", command, result, indent=None)


def opened(model: str, device: str) -> Encodes:
    if device == "cpu":
        return Encoder.open(model)
    from bpr.training.encode import TorchEncoder

    return TorchEncoder.open(model, device)


def show(result: dict[str, Any], against: dict[str, Any] | None) -> None:
    other = measures(against) if against else {}
    for name, values in measures(result).items():
        all = interval(values)
        line = f"{result['set']:12} {result['model']:24} {name:16} {all.mean:6.2f}  [{all.low:.2f}, {all.high:.2f}]"
        if against and name in other:
            less = paired(values, other[name])
            line += (
                f"   {less.mean:+.2f} [{less.low:+.2f}, {less.high:+.2f}], p {less.p:.4f}, against {against['model']}"
            )
        print(line)


if __name__ == "__main__":
    main()
