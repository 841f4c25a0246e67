"""What `bpr tune` measures and chooses for SQuAD's corpus, and what its choice finds for questions it has not seen.

python benchmarks/tune.py --data FOLDER --bundle squad.bpr [--work build/tune]      writes benchmarks/results/tune.json

The bundle is copied, and stays as it is. Tuned with 500 of SQuAD's training questions; judged by the gold passages of
its dev questions.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bpr
from bpr.evaluation import top_k
from bpr.questions import Question, read_questions
from bpr.terminal import bars
from bpr.training.data import collect
from bpr.training.formats import squad
from bpr.tuning import QUESTIONS
from common import put

TARGET, DEPTHS = 0.99, (20, 100)


def training_questions(data: Path) -> list[str]:
    _, examples = collect(squad(data / "squad" / "train-v1.1.json.xz", "squad-train-"))
    chosen = np.random.default_rng(0).choice(len(examples), QUESTIONS, replace=False)
    return [examples[number].question for number in np.sort(chosen)]


def found_in(path: Path, questions: Sequence[Question], vectors: Any) -> dict[str, float]:
    """Percent of the questions whose gold passage is found."""
    with bpr.open(path) as opened:
        gold = opened.passages.find_all([next(iter(each.gold)) for each in questions])
        rows = np.concatenate(
            [opened.rank(vectors[i : i + 256], k=max(DEPTHS)).rows for i in range(0, len(vectors), 256)]
        )
    right = rows == np.array([-1 if row is None else row for row in gold])[:, None]
    ranks = np.where(right.any(axis=1), right.argmax(axis=1) + 1, 0)
    return {f"top {k}": 100 * float(top_k(ranks, k).mean()) for k in DEPTHS}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build") / "tune")
    given = parser.parse_args(arguments)
    copy = given.work / "tuned.bpr"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(given.bundle, copy)
    with bars(True) as say:
        tuned = bpr.tune(copy, TARGET, questions=training_questions(given.data), progress=say)
    asked = read_questions(given.data / "squad" / "dev-v1.1.json.xz", prefix="squad-dev-")
    with bpr.open(given.bundle) as opened:
        passages, vectors = len(opened), opened.encoder.questions([each.text for each in asked])
    found = {name: found_in(path, asked, vectors) for name, path in (("tuned", copy), ("scan", given.bundle))}
    print(tuned, found, sep="\n")
    whole = {"passages": passages, "tuned": tuned.to_dict(), "asked": len(asked), "found": found}
    put("tune", "python benchmarks/tune.py --data FOLDER --bundle squad.bpr", whole)
    shutil.rmtree(copy)


if __name__ == "__main__":
    main()
