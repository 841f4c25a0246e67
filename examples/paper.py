"""The paper's own experiment, from DPR's files to its tables, with the paper's settings.

    python examples/paper.py DATA OUT --set nq                          # or trivia
    python examples/paper.py DATA OUT --set nq --train-with "torchrun --nproc-per-node 8 -m bpr.cli" --device cuda

DATA holds what DPR's download_data.py fetches (also unpacked, without .gz):

    psgs_w100.tsv.gz                    21,015,324 passages of Wikipedia, 100 words each
    biencoder-nq-train.json.gz          questions with positives and BM25 negatives; biencoder-trivia-train.json.gz
    nq-test.qa.csv                      questions and answers; trivia-test.qa.csv.gz

START (--start) is a folder with bert-base-uncased, or any other start: config.json, model.safetensors, tokenizer.json.

A step whose output is in OUT already is not done again. What differs from the paper: the model that is kept is chosen
by the average rank of 3 % of the training questions that are held out, not by DPR's development file. The reader comes
later. On 8 V100 the paper trained for a day or so; all passages in floats, which the comparison needs for DPR's rows,
take 65 GB of disk and of memory: `--sample 100000` compares on fewer.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bpr.cli import app

# Section 4 and the appendix: batch 128, 40 epochs, learning rate 2e-5, warm-up 6 %, dropout 0.1, clip 2.0, texts of 256
# tokens, one hard negative; γ = 0.1 and α = 2. Most of them are bpr's defaults too.
RECIPE = """\
start = "{start}"
name = "{name}"
pooling = "cls"
batch = 128
epochs = 40
learning_rate = 2e-5
warmup = 0.06
dropout = 0.1
clip = 2.0
evaluate_every = 500

[objective]
code = "{code}"
planes = 1
margin = 2.0
gamma = 0.1
beta_end = "none"

[diet]
hard = 1
question_length = 256
passage_length = 256
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Every step of the experiment, in its order."""
    given = parsed(arguments)
    data, out = given.data, given.out
    out.mkdir(parents=True, exist_ok=True)
    pile, asked = file(data, "psgs_w100.tsv"), file(data, f"{given.set}-test.qa.csv")
    train = out / "train"

    # 1. DPR's training file to passages and examples: its hard negatives are BM25's already, as in the paper.
    step(train, "convert", "dpr", file(data, f"biencoder-{given.set}-train.json"), "-o", train)
    examples = train / "examples.jsonl"

    # 2. BPR, and its float twin (DPR) with the same settings.
    for name, code in (("bpr", "bits"), ("dpr", "float")):
        learn(given, name, code, examples)
    model = out / "bpr"

    # 3. Not in the paper, but in its authors' later release: negatives that the model itself takes for answers.
    if given.mined:
        step(
            out / "mined.jsonl", "mine", train / "passages.jsonl", examples, "--model", model, "-o", out / "mined.jsonl"
        )
        model = learn(given, "bpr-mined", "bits", out / "mined.jsonl")

    # 4. All passages as codes.
    index = out / f"{model.name}.bpr"
    step(index, "index", pile, "--model", model, "--device", given.device, "-o", index)

    # 5. Top 1, 20 and 100 by answer string; retrieved.json is what a reader reads.
    depths = [option for k in (1, 20, 100) for option in ("-k", k)]
    runs = out / "evaluate"
    step(runs / "results.json", "evaluate", index, asked, "--model", model, "--candidates", 1000, *depths, "-o", runs)

    # 6. Tables 1 and 2, and the one over l. It goes on where it was by itself.
    sample = [] if given.sample is None else ["--sample", given.sample]
    models = ["--float", out / "dpr", "--model", model, "--bundle", index]
    how = ["--by", "answer", "--candidates", 1000, "--hnsw-links", 512, *sample]
    bpr("compare", pile, asked, *models, *how, "-o", out / "compare")


def learn(given: argparse.Namespace, name: str, code: str, examples: Path) -> Path:
    """Train one model and export it."""
    model, recipe = given.out / name, given.out / f"{name}.toml"
    recipe.write_text(RECIPE.format(start=given.start.resolve().as_posix(), name=name, code=code))
    changes = [part for change in given.change for part in ("--set", change)]
    how = ["--passages", given.out / "train" / "passages.jsonl", "--examples", examples, "--resume", *changes]
    step(model, "train", recipe, *how, "-o", model, program=given.train_with)
    step(model / "passage.onnx", "export", model)
    return Path(model)


def step(output: Path, *arguments: object, program: str = "") -> None:
    """One verb of bpr, unless what it makes is there."""
    if not output.exists():
        bpr(*arguments, program=program)


def bpr(*arguments: object, program: str = "") -> None:
    """Run `bpr ARGUMENTS`: here, or with a program that starts several processes."""
    words = [str(each) for each in arguments]
    print("$ bpr", shlex.join(words), flush=True)
    if program:
        subprocess.run([*shlex.split(program), *words], check=True)
    else:
        app(words, standalone_mode=False)


def file(folder: Path, name: str) -> Path:
    """A file of the data, packed or not."""
    found = [path for suffix in ("", ".gz", ".xz", ".zst") if (path := folder / (name + suffix)).is_file()]
    if not found:
        raise SystemExit(f"{folder / name}(.gz) is missing: DPR's download_data.py fetches it")
    return found[0]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", choices=("nq", "trivia"), default="nq")
    parser.add_argument("--start", type=Path, default=Path("bert-base-uncased"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what encodes all passages")
    parser.add_argument("--train-with", default="", help="a program that runs bpr.cli on several GPUs")
    parser.add_argument(
        "--change", action="append", default=[], metavar="KEY=VALUE", help="another setting to train with"
    )
    parser.add_argument("--mined", action="store_true", help="a second round with negatives of the model's own")
    parser.add_argument("--sample", type=int, help="compare on so many questions and passages")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
