"""Rounds of training on a GPU that is paid for by the minute: made ready here, run there by one command, and judged.

python benchmarks/rounds.py prepare --passages all.jsonl --examples bm25.jsonl --dev dev/examples.jsonl \
    --tokenizer minilm/tokenizer.json --data FOLDER -o READY
cd WORK && python rounds.py run READY 'train twin recipes/twin.toml' 'eval twin' 'train mini recipes/mini.toml' …

`run` needs numpy, torch, transformers, accelerate and tokenizers, and bpr's source on PYTHONPATH: no compiled kernel.
It works in the current folder, where models are folders; its stages, in their order:

    train NAME RECIPE [KEY=VALUE …]    as `bpr train`; the negatives are the last mined ones, at first those of EXAMPLES
    mine MODEL                         20 negatives a question by the model, then 10 of EXAMPLES' (BM25's)
    best NAME SLACK MODEL MODEL …      NAME is the one that finds most held-out questions (mean of top 20 and 100);
                                       a later one only if it finds more by SLACK points
    eval MODEL [SET …]                 recall of the gold passage, or nDCG@10, on: held, dev, amazon-tune, …
    rank MODEL FILE                    each training, held-out and dev question's first 50 rows of the corpus
    vectors MODEL FIRST LAST           a share of the corpus's vectors (0 to 1) as float16, and all dev questions'
    signs MODEL                        the corpus's signs, packed, and dev questions' vectors as float16
    send MODEL SIDE                    weights as float16 in $OUT, in parts that travel

A stage that needs more time than --budget leaves is passed over (`need=SECONDS` before its verb); ledger.jsonl
gets a line for each model. Negatives that hold an answer are found by tokens, not by words as `bpr mine` does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpr import model as models
from bpr.pieces import Cutter
from bpr.training.arrays import Ragged
from bpr.training.prepared import Prepared

BEGUN = time.time()
CORPUS = "corpus.json"
LEDGER, MINER = Path("ledger.jsonl"), Path("mined.txt")
SETS = ("dev", "amazon-tune", "amazon-test", "cranfield")
MINED, KEPT, DEEP = 20, 10, 100
LISTED = 50
PART = 15_000_000  # bytes of a file that is sent


# ── Making ready ─────────────────────────────────────────────────────────────────────────────────────────────────────


def prepare(given: argparse.Namespace) -> None:
    """Token arrays of everything a round looks at. The corpus is what `--data`'s SQuAD and Wikipedia hold."""
    from bpr.training import data
    from bpr.training.prepared import LONGEST
    from bpr.training.prepared import prepare as prepared
    from quality import load

    out = Path(given.output)
    out.mkdir(parents=True)
    examples, dev = list(data.read_examples(given.examples)), list(data.read_examples(given.dev))
    train = prepared(given.passages, examples, given.tokenizer, reserved=dev, held_share=0.03)
    train.save(out / "train")
    cutter = Cutter(Path(given.tokenizer))

    def tokens(texts: list[str]) -> Ragged:  # the same cut, for texts that are no training data
        return Ragged.of(cutter.ids(texts, LONGEST), np.uint16)

    kept, held = data.hold_out(examples, 0.03)
    answers = [example.answers[0] for example in [*kept, *held]]
    tokens(answers).save(out, "answers")
    tasks = {name: load("squad" if name == "dev" else name, given.data) for name in SETS}
    place = {passage.id: row for row, passage in enumerate(tasks["dev"].passages)}
    for name, task in tasks.items():
        own = [p for p in task.passages if p.id not in place or name == "cranfield"]
        shared = [] if name == "cranfield" else [place[p.id] for p in task.passages if p.id in place]
        ids = {id: i for i, id in enumerate([*(p.id for p in own), *(tasks["dev"].passages[row].id for row in shared)])}
        home = out / name
        home.mkdir()
        tokens(task.texts).save(home, "questions")
        tokens([p.title for p in own]).save(home, "titles")
        tokens([p.text for p in own]).save(home, "texts")
        Ragged.of([[ids[id] for id in q.gold if id in ids] for q in task.questions], np.int32).save(home, "gold")
        np.save(home / "rows.npy", np.array(shared, np.int32))
    (out / CORPUS).write_text(json.dumps({"passages": len(place)}))


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Round:
    """What the stages of one run share."""

    ready: Path
    train: Prepared
    answers: Ragged
    size: int  # of the corpus: the first so many passages
    negatives: Ragged
    mined_by: str = "BM25"
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    corpora: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, ready: Path) -> Round:
        """With what an earlier run in this folder mined and measured."""
        train = Prepared.load(ready / "train")
        size = json.loads((ready / CORPUS).read_text())["passages"]
        state = cls(ready, train, Ragged.load(ready, "answers"), size, train.negatives)
        if LEDGER.exists():
            state.lines = {line["name"]: line for line in map(json.loads, LEDGER.read_text().splitlines())}
        if MINER.exists():
            state.negatives, state.mined_by = Ragged.load(Path(), "mined"), MINER.read_text()
        return state

    def joined(self, title: Any, text: Any) -> NDArray[np.int64]:
        return self.train.joined(title, text, 256)

    def towers(self, name: str) -> tuple[Any, Any, Any]:
        """Both towers on the GPU, and the objective that reads their outputs."""
        import torch

        from bpr.training.biencoder import Objective
        from bpr.training.tower import load_tower

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, _ = models.load(name)
        line = self.lines.get(name, {}).get("recipe", {}).get("objective", {})
        code = line.get("code", "bits" if model.planes == 2 else "float")
        question, passage = (load_tower(name, side).to(device) for side in ("question", "passage"))
        return question, passage, Objective(code=code, planes=model.planes)

    def corpus(self, name: str, passage: Any) -> Any:
        """The corpus's vectors; those of one model are kept."""
        from bpr.training.validation import encode

        if name not in self.corpora:
            texts = [self.joined(self.train.titles[row], self.train.texts[row]) for row in range(self.size)]
            self.corpora = {name: encode(passage, texts, self.train.facts["pad"])}
        return self.corpora[name]

    # ── The stages ───────────────────────────────────────────────────────────────────────────────────────────────────

    def do_train(self, name: str, recipe: str, *settings: str) -> None:
        from bpr.training import recipe as recipes
        from bpr.training.run import train

        changes = {"name": name, "workers": str(min(14, os.cpu_count() or 1)), "pool": "500", "log_every": "100"}
        changes |= dict(setting.split("=", 1) for setting in settings)
        made = recipes.load(recipe, changes)
        if (Path(made.start) / models.CONFIG).exists() and models.load(made.start)[0].bits and made.project:
            made = replace(made, shared=models.load(made.start)[0].shared)  # the bits are as their float model is
        data = replace(self.train, negatives=self.negatives)
        line = train(made, data, Path(made.anchor or made.start) / models.TOKENIZER, name)
        self.lines[name] = {**line, "negatives": self.mined_by, "results": {}}
        print(f"trained {name}: {line['seconds']} s, {line['steps']} steps", flush=True)

    def do_mine(self, name: str) -> None:
        question, passage, objective = self.towers(name)
        found = self.ranked(name, question, passage, objective, range(len(self.train.questions)), DEEP)
        texts = [self.train.texts[row].astype(np.uint16).tobytes() for row in range(self.size)]
        lists = []
        for i, rows in enumerate(found):
            answer, own = self.answers[i].astype(np.uint16).tobytes(), {*self.train.positives[i].tolist()}
            good = [row for row in rows.tolist() if row not in own and answer not in texts[row]][:MINED]
            before = [row for row in self.train.negatives[i].tolist() if row not in {*own, *good}]
            lists.append([*good, *before[:KEPT]])
        self.negatives, self.mined_by = Ragged.of(lists, np.int32), name
        self.negatives.save(Path(), "mined")
        MINER.write_text(name)
        print(f"mined with {name}: {np.mean([len(each) for each in lists]):.1f} negatives a question", flush=True)

    def do_best(self, name: str, slack: str, *others: str) -> None:
        def found(other: str) -> float:
            return float(np.mean(self.lines[other]["results"]["held"][1:]))

        best, *rest = (other for other in others if other in self.lines)
        for other in rest:
            best = other if found(other) > found(best) + float(slack) else best
        shutil.copytree(best, name)
        self.lines[name] = {**self.lines[best], "name": name, "is": best}
        print(f"{name} is {best}", flush=True)

    def do_eval(self, name: str, *sets: str) -> None:
        question, passage, objective = self.towers(name)
        results = self.lines.setdefault(name, {"name": name, "results": {}})["results"]
        for each in sets or ("held", "amazon-tune", "cranfield"):
            for l in (None,) if objective.code == "float" else (2000, None):
                label = each if l is None or objective.code == "float" else f"{each}/{l}"
                results[label] = self.measured(each, name, question, passage, objective, l)
        if objective.code == "bits":  # what is chosen by is what is served
            results |= {label.removesuffix("/2000"): value for label, value in results.items() if "/2000" in label}
        print(f"eval {name}: {json.dumps(results)}", flush=True)

    def measured(self, name: str, model: str, question: Any, passage: Any, objective: Any, l: int | None) -> Any:
        """Top 1, 20 and 100, or nDCG@10, in percent."""
        import torch

        from bpr.training.validation import encode, ranks

        pad = self.train.facts["pad"]
        if name == "held":
            asked = [int(i) for i in np.flatnonzero(self.train.held)]
            questions, gold = (
                [self.train.question(i, 256) for i in asked],
                [self.train.positives[i] for i in asked],
            )
            passages = self.corpus(model, passage)
        else:
            home = self.ready / name
            tokens = {part: Ragged.load(home, part) for part in ("questions", "titles", "texts", "gold")}
            rows = np.load(home / "rows.npy")
            questions, gold = [self.joined((), each) for each in tokens["questions"]], list(tokens["gold"])
            if len(rows) == self.size:
                passages = self.corpus(model, passage)
            else:
                own = [self.joined(*each) for each in zip(tokens["titles"], tokens["texts"], strict=True)]
                shared = [self.joined((), self.train.texts[int(row)]) for row in rows]
                passages = encode(passage, [*own, *shared], pad)
        vectors = encode(question, questions, pad)
        if name == "cranfield":
            return round(100 * ndcg(vectors, passages, gold, objective, l), 2)
        found = ranks(vectors, passages, gold, objective, l)
        return [round(100 * float((found <= k).to(torch.float64).mean()), 2) for k in (1, 20, 100)]

    def ranked(self, name: str, question: Any, passage: Any, objective: Any, which: Any, depth: int) -> NDArray[Any]:
        """The first rows of the corpus for training questions (or given tokens): int32[n, depth]."""
        import torch

        from bpr.training.validation import encode, nearest, values

        asked = [self.train.question(i, 256) if isinstance(i, int) else i for i in which]
        vectors, corpus = encode(question, asked, self.train.facts["pad"]), self.corpus(name, passage)
        reads, signs = values(corpus, objective), torch.where(corpus > 0, 1.0, -1.0)
        found = []
        for some in vectors.split(256):  # type: ignore[no-untyped-call]
            scores = some @ reads.T
            if objective.code == "bits":
                near = nearest(torch.where(some > 0, 1.0, -1.0) @ signs.T, min(2000, self.size))
                best = near.gather(1, scores.gather(1, near).topk(min(depth, self.size), dim=1).indices)
            else:
                best = scores.topk(min(depth, self.size), dim=1).indices
            found.append(best.int().cpu().numpy())
        return np.concatenate(found)

    def do_rank(self, name: str, file: str) -> None:
        question, passage, objective = self.towers(name)
        dev = [self.joined((), each) for each in Ragged.load(self.ready / "dev", "questions")]
        which = [*range(len(self.train.questions)), *dev]
        rows = self.ranked(name, question, passage, objective, which, LISTED)
        save_parts(file, rows)

    def do_vectors(self, name: str, first: str, last: str) -> None:
        """A share of the corpus at a time: what comes back of one call is limited."""
        question, passage, _ = self.towers(name)
        begin, end = (round(float(share) * self.size) for share in (first, last))
        save_parts(f"{name}-passages-{begin}", self.corpus(name, passage)[begin:end].half().cpu().numpy())
        self._save_questions(name, question)

    def do_signs(self, name: str) -> None:
        question, passage, _ = self.towers(name)
        save_parts(f"{name}-signs", np.packbits((self.corpus(name, passage) > 0).cpu().numpy(), axis=1))
        self._save_questions(name, question)

    def _save_questions(self, name: str, question: Any) -> None:
        from bpr.training.validation import encode

        dev = [self.joined((), each) for each in Ragged.load(self.ready / "dev", "questions")]
        save_parts(f"{name}-questions", encode(question, dev, self.train.facts["pad"]).half().cpu().numpy())

    def do_send(self, name: str, side: str) -> None:
        from safetensors.torch import load_file, save_file

        folder = Path(name) / f"{side}_encoder"
        small = {key: value.half().contiguous() for key, value in load_file(folder / "model.safetensors").items()}
        save_file(small, "sent.safetensors", metadata={"format": "pt"})
        whole, out = Path("sent.safetensors").read_bytes(), Path(os.environ.get("OUT", "out"))
        for number, start in enumerate(range(0, len(whole), PART)):
            (out / f"{name}-{side}.part{number}").write_bytes(whole[start : start + PART])
        for other in ("config.json", "head.safetensors"):
            shutil.copyfile(folder / other, out / f"{name}-{side}-{other}")
        shutil.copyfile(Path(name) / models.CONFIG, out / f"{name}-{models.CONFIG}")


def save_parts(file: str, array: NDArray[Any]) -> None:
    """As .npy files that travel, of whole rows each."""
    out, rows = Path(os.environ.get("OUT", "out")), PART // (array.itemsize * array.shape[1])
    for number, first in enumerate(range(0, len(array), rows)):
        np.save(out / f"{file}.{number}.npy", array[first : first + rows])


def ndcg(questions: Any, passages: Any, gold: Sequence[NDArray[Any]], objective: Any, l: int | None) -> float:
    """Mean nDCG@10 with judgements that are yes or no."""
    import torch

    from bpr.training.validation import nearest, values

    scores = questions @ values(passages, objective).T
    if l is not None and l < len(passages):
        near = nearest(torch.where(questions > 0, 1.0, -1.0) @ torch.where(passages > 0, 1.0, -1.0).T, l)
        scores = torch.full_like(scores, -torch.inf).scatter(1, near, scores.gather(1, near))
    first, discounts = scores.topk(10, dim=1).indices.cpu().numpy(), 1 / np.log2(np.arange(2, 12))
    judged = [(rows, own) for rows, own in zip(first, gold, strict=True) if len(own)]
    return float(np.mean([discounts[np.isin(rows, own)].sum() / discounts[: len(own)].sum() for rows, own in judged]))


def run(given: argparse.Namespace) -> None:
    state = Round.load(Path(given.ready).absolute())
    print(f"loaded after {time.time() - BEGUN:.0f} s", flush=True)
    for stage in given.stages:
        words = stage.split()
        need = float(words.pop(0).removeprefix("need=")) if words[0].startswith("need=") else 0.0
        if time.time() - BEGUN + need > given.budget:
            print(f"no time for: {stage}", flush=True)
            continue
        begun = time.time()
        getattr(state, f"do_{words[0]}")(*words[1:])
        print(f"{stage}: {time.time() - begun:.1f} s, {time.time() - BEGUN:.0f} s in all", flush=True)
        LEDGER.write_text("".join(json.dumps(line) + "\n" for line in state.lines.values()))
        shutil.copyfile(LEDGER, Path(os.environ.get("OUT", "out")) / LEDGER)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    make = verbs.add_parser("prepare")
    for name in ("passages", "examples", "dev", "tokenizer", "data"):
        make.add_argument(f"--{name}", type=Path, required=True)
    make.add_argument("-o", "--output", required=True)
    make.set_defaults(do=prepare)
    go = verbs.add_parser("run")
    go.add_argument("ready")
    go.add_argument("stages", nargs="+")
    go.add_argument("--budget", type=float, default=float("inf"), help="Seconds.")
    go.set_defaults(do=run)
    given = parser.parse_args(arguments)
    given.do(given)


if __name__ == "__main__":
    main()
