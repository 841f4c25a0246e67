"""A round of training a reader on a GPU that is paid for by the minute, as rounds.py is for retrieval.

cd WORK && python readers.py train READER.data START --seconds 330 --set over=question …    → WORK/reader, held.npz
cd WORK && python readers.py read DATA.data READER FILE                                       → $OUT/FILE.*.npz
cd WORK && python readers.py send READER                                                       → weights in $OUT

`train` takes as many epochs as the seconds hold, by the speed of a short run before. `read` saves what the reader makes
of every question's retrieved passages and of its gold passage; `judge DATA TOKENIZER FILE …` prints EM and F1 of that.
The reader as it is served is measured by answers.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpr.training.readerdata import ReaderData

OUT = Path(os.environ.get("OUT", "out"))
PART = 15_000_000  # bytes of a file that is sent
PROBE = 60  # steps of the short run
QUESTIONS_A_FILE = 3600


def train(given: argparse.Namespace) -> None:
    from bpr.training import recipe as recipes
    from bpr.training.readerrun import ReaderRecipe
    from bpr.training.readerrun import train as trained

    plain = ReaderRecipe(start=given.start, name="reader", workers=min(12, os.cpu_count() or 1))
    recipe = recipes.changed(plain, dict(each.split("=", 1) for each in given.set))
    data, tokenizer = ReaderData.load(given.data), Path(given.start) / "tokenizer.json"
    few = data.held.copy()
    few[np.flatnonzero(~few)[recipe.batch * PROBE :]] = True
    probe = replace(data, held=few, answers={question: ["-"] for question in range(len(few))})
    for name in ("warm", "probe"):  # the first loads and plans
        line = trained(replace(recipe, epochs=1, validate=1), probe, tokenizer, name)
    epoch = line["seconds"] / line["steps"] * int((~data.held).sum()) / recipe.batch
    epochs = max(1, int(given.seconds / epoch))
    print(f"probe: {line['steps'] / line['seconds']:.1f} steps/s, {epoch:.0f} s an epoch: {epochs} epochs", flush=True)
    line = trained(replace(recipe, epochs=epochs), data, tokenizer, "reader")
    print(f"trained {epochs} epochs in {line['seconds']} s: {line['metrics']}", flush=True)
    shutil.copyfile("reader/ledger.jsonl", OUT / "reader-ledger.jsonl")


def read(given: argparse.Namespace) -> None:
    import torch

    from bpr.training import reader, readings
    from bpr.training.readerbatches import Window

    data, (model, facts) = ReaderData.load(given.data), reader.load(given.reader)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    window = Window(facts.length, facts.question_length, facts.token_types)
    every, begun = np.flatnonzero(data.held), time.time()
    most = min(given.depth, int(np.diff(data.retrieved.starts).max()))
    readings.read(model, data, every, readings.gold(data, every), window).save(OUT / f"{given.file}.gold.npz")
    for number, first in enumerate(range(0, len(every), QUESTIONS_A_FILE)):
        some = every[first : first + QUESTIONS_A_FILE]
        found = readings.read(model, data, some, readings.retrieved(data, some, most), window)
        found.save(OUT / f"{given.file}.{number}.npz")
        print(f"read {first + len(some):,} questions in {time.time() - begun:.0f} s", flush=True)


def send(given: argparse.Namespace) -> None:
    from safetensors.torch import load_file, save_file

    home = Path(given.reader) / "reader_encoder"
    small = {key: value.half().contiguous() for key, value in load_file(home / "model.safetensors").items()}
    save_file(small, "sent.safetensors", metadata={"format": "pt"})
    whole = Path("sent.safetensors").read_bytes()
    for number, start in enumerate(range(0, len(whole), PART)):
        (OUT / f"reader.part{number}").write_bytes(whole[start : start + PART])
    for name in ("config.json", "head.safetensors"):
        shutil.copyfile(home / name, OUT / f"reader-{name}")
    shutil.copyfile(Path(given.reader) / "reader.json", OUT / "reader.json")


def judge(given: argparse.Namespace) -> None:
    from bpr.spans import Mix
    from bpr.training import readings

    data = ReaderData.load(given.data)
    texts, mix = readings.Texts(data, given.tokenizer), Mix(*given.mix)
    only = np.load(given.only) if given.only else None
    for k in given.k:
        exact, overlap = list[bool](), list[float]()
        for file in given.files:
            found = readings.Readings.load(file)
            judged = readings.judge(found if only is None else chosen(found, data, only), data, texts, k, mix)
            exact += judged.exact.tolist()
            overlap += judged.f1.tolist()
        print(f"k {k:3}  EM {100 * np.mean(exact):.2f}  F1 {100 * np.mean(overlap):.2f}  of {len(exact):,}", flush=True)


def chosen(found: Any, data: ReaderData, rows: NDArray[Any]) -> Any:
    """Of what was read of each question, the passages of these rows of the passages file, in their order."""
    stored = {int(row): passage for passage, row in enumerate(data.rows)}
    wanted = np.array([[stored[int(row)] for row in rows[question]] for question in found.questions])
    places = (found.passages[:, None, :] == wanted[:, :, None]).argmax(axis=2)  # [q, k]
    assert (np.take_along_axis(found.passages, places, 1) == wanted).all(), "not all of them were read"
    which = np.arange(len(places))[:, None]
    names = ("passages", "scores", "norms", "spans", "logits")
    return replace(found, **{name: getattr(found, name)[which, places] for name in names})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    arguments_of = {
        train: "data start",
        read: "data reader file",
        send: "reader",
        judge: "data tokenizer",
    }
    for function, names in arguments_of.items():
        verb = verbs.add_parser(function.__name__)
        verb.set_defaults(do=function)
        for name in names.split():
            verb.add_argument(name)
        if function is train:
            verb.add_argument("--seconds", type=float, required=True)
            verb.add_argument("--set", nargs="*", default=[])
        elif function is read:
            verb.add_argument("--depth", type=int, default=100)
        elif function is judge:
            verb.add_argument("files", nargs="+")
            verb.add_argument("-k", type=int, nargs="+", default=[1, 5, 10, 20, 50])
            verb.add_argument("--only", help="ROWS.npy: what another retriever found, of what was read.")
            verb.add_argument("--mix", type=float, nargs=3, default=(1.0, 1.0, 1.0))
    given = parser.parse_args(arguments)
    given.do(given)


if __name__ == "__main__":
    main()
