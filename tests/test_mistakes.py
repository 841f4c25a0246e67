"""A newcomer's mistakes, verb by verb: one wrong thing at a time in a call that would otherwise be right.

Each row ends with status 1 or 2, one message on stderr that names what is wrong, nothing on stdout, and nothing at the
output's path. The calls themselves are right: `test_the_calls_are_right` runs the quick ones unbroken.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr import cli
from bpr.interchange.codes import out_of_bundle
from tiny_models import WORDS, backbone, make_model, write_tokenizer

pytest.importorskip("torch")

ROWS = 24
# `out/…` is the output; what stands before it in a call is there, and right.
CALLS = {
    "train": "train recipe.toml --passages p.jsonl --examples e.jsonl -q -o out/m --set start=start --set epochs=1"
    " --set batch=4 --set diet.question_length=16 --set diet.passage_length=48 --set diet.hard=0 --set bf16=false",
    "train-reader": "train-reader reader.toml --data reader.data -q -o out/r --set start=start --set epochs=1"
    " --set batch=4 --set length=64 --set question_length=8 --set negatives=0 --set bf16=false",
    "compare": "compare p.jsonl e.jsonl -q -k 1 --float-vectors v.npy v.npy --model tiny -o out/c",
    "compare bundle": "compare p.jsonl e.jsonl -q -k 1 --float-vectors v.npy v.npy --bundle b.bpr -o out/c",
    "bundle": "convert bundle b.bpr -q -o out/c.npy",
    "codes": "convert codes codes.npy --passages p.jsonl -q -o out/n.bpr",
    "faiss": "convert faiss codes.faiss --passages p.jsonl --rows -q -o out/n.bpr",
    "results": "convert results run.trec --to dpr --questions e.jsonl --bundle b.bpr -q -o out/r.json",
    "encoder": "convert encoder start --pooling mean --no-normalize -q -o out/o",
    "search": "search b.bpr who -k 2",
    "add": "add b.bpr more.jsonl -q",
    "evaluate": "evaluate b.bpr e.jsonl -k 1 -q -o out/e",
    "answer": "answer b.bpr who --reader reader",
    "serve": "serve b.bpr --port 0",
    "mcp": "mcp b.bpr",
    "compact": "compact b.bpr -q",
    "shard": "shard b.bpr --shards 2 -q -o out/s",
}
QUICK = ("bundle", "codes", "faiss", "results", "encoder", "search", "add", "evaluate", "answer", "compact", "shard")

# (verb, the input that is replaced, by what, what the message says)
INPUTS = [
    ("train", "recipe.toml", "nothing", "recipe.toml cannot be read"),
    ("train", "recipe.toml", "half JSON", "recipe.toml is not TOML"),
    ("train", "recipe.toml", "a folder", "recipe.toml cannot be read"),
    ("train", "p.jsonl", "nothing", "p.jsonl: there is no such file"),
    ("train", "p.jsonl", "half JSON", "p.jsonl, line 1: not valid JSON"),
    ("train", "e.jsonl", "nothing", "e.jsonl: there is no such file"),
    ("train", "e.jsonl", "half JSON", "e.jsonl, line 1"),
    ("train", "start", "b.bpr", "has no tokenizer.json"),
    ("train", "start", "a folder", "has no tokenizer.json"),
    ("train-reader", "reader.toml", "half JSON", "reader.toml is not TOML"),
    ("train-reader", "reader.data", "nothing", "reader.data"),
    ("train-reader", "reader.data", "a folder", "reader.data"),
    ("train-reader", "reader.data", "tiny", "reader.data"),
    ("compare", "p.jsonl", "nothing", "p.jsonl"),
    ("compare", "p.jsonl", "half JSON", "p.jsonl, line 1: not valid JSON"),
    ("compare", "e.jsonl", "an empty file", "e.jsonl"),
    ("compare", "v.npy", "half JSON", "v.npy is not a plain .npy array"),
    ("compare", "v.npy", "short.npy", "v.npy"),
    ("compare", "tiny", "reader", "is no model folder"),
    ("compare", "tiny", "b.bpr", "is no model folder"),
    ("compare bundle", "b.bpr", "tiny", "holds no bundle"),
    ("codes", "codes.npy", "v.npy", "codes are uint8"),
    ("codes", "codes.npy", "half JSON", "is not a plain .npy array"),
    ("codes", "p.jsonl", "codes.npy", "p.jsonl, line 1: not UTF-8"),
    ("faiss", "codes.faiss", "v.npy", "this is no binary index of Faiss"),
    ("faiss", "codes.faiss", "a folder", "codes.faiss is not a plain file"),
    ("results", "run.trec", "half JSON", "run.trec"),
    ("results", "run.trec", "v.npy", "run.trec, byte 0: 0x93 is not UTF-8"),
    ("encoder", "start", "tiny", "is it the folder of an encoder?"),
    ("encoder", "start/model.safetensors", "half JSON", "model.safetensors is damaged"),
    ("encoder", "start/config.json", "half JSON", "config.json is not JSON"),
    ("answer", "reader", "tiny", "there is no reader.json"),
    ("answer", "reader", "b.bpr", "there is no reader.json"),
    *(
        (verb, "b.bpr", other, message)
        for verb in ("bundle", "search", "add", "evaluate", "answer", "serve", "mcp", "compact", "shard")
        for other, message in (
            ("nothing", "b.bpr"),
            ("tiny", "b.bpr is a folder, but holds no bundle"),
            ("reader", "b.bpr is a folder, but holds no bundle"),
            ("v.npy", "b.bpr is a file, not a bundle"),
        )
    ),
    *(
        (verb, "b.bpr/manifest.json", "half JSON", "manifest.json is not the JSON that was published")
        for verb in ("bundle", "search", "add", "evaluate", "answer", "serve", "mcp", "compact", "shard")
    ),
]
# (verb, what goes behind the call, what the message says)
OPTIONS = [
    *(
        (verb, f"--set {value}", message)
        for verb in ("train", "train-reader")
        for value, message in (
            ("batch=0", "batch must be at least 1, not 0"),
            ("accumulate=-1", "accumulate must be at least 1, not -1"),
            ("learning_rate=nan", "learning_rate must be float, not nan"),
            ("seed=-1", "seed must be 0 or more, not -1"),
            ("seed=99999999999999999999", "seed must be at most 4294967295"),
            ("no_such=1", "there is no setting 'no_such'"),
        )
    ),
    ("train", "--hold-out 2", "--hold-out"),
    ("compare", "-k 0", "-k"),
    ("compare", "--sample -1", "--sample"),
    *((verb, "--model other", "is another one") for verb in ("search", "add", "evaluate", "answer", "serve", "mcp")),
    *((verb, "--model reader", "is no model folder") for verb in ("search", "add", "evaluate", "serve", "mcp")),
]
WRITERS = ("train", "train-reader", "compare", "bundle", "codes", "faiss", "results", "encoder", "evaluate", "shard")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_reader: Path) -> Path:
    """Everything that the calls name; to be copied, not changed."""
    home = tmp_path_factory.mktemp("world")
    passages = [{"id": f"{i}", "title": "war", "text": " ".join(WORDS[i : i + 12])} for i in range(ROWS)]
    asked = [
        {"question": f"what {each['text']}?", "answers": [each["text"][:9]], "positives": [each["id"]], "group": ""}
        for each in passages
    ]  # fmt: skip
    for name, records in (("p", passages), ("e", asked), ("more", [{"id": "new", "text": "the moon"}])):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (home / "run.trec").write_text("".join(f"{i} Q0 {i} 1 1.5 x\n" for i in range(1, ROWS)))
    (home / "recipe.toml").write_text('name = "mine"\n')
    (home / "reader.toml").write_text('name = "reader"\n')
    random = np.random.default_rng(0)
    np.save(home / "v.npy", random.standard_normal((ROWS, 64)).astype(np.float32))
    np.save(home / "short.npy", random.standard_normal((ROWS - 1, 64)).astype(np.float32))
    backbone().save_pretrained(home / "start")
    write_tokenizer(home / "start" / "tokenizer.json")
    shutil.copytree(tiny_model, home / "tiny")
    shutil.copytree(tiny_reader, home / "reader")
    make_model(home / "other", seed=9)
    bpr.build(home / "p.jsonl", home / "b.bpr", model=home / "tiny")  # found beside it in every copy
    for name in ("codes.npy", "codes.faiss"):
        out_of_bundle(home / "b.bpr", home / name)
    line = "prepare-reader p.jsonl e.jsonl --retrieved run.trec --tokenizer start/tokenizer.json -q -o reader.data"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.chdir(home)
        patch.setattr("sys.argv", ["bpr", *line.split()])
        cli.main()
    assert not end.value.code
    return home


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, to stand in and to break."""
    home = tmp_path / "w"
    shutil.copytree(world, home, copy_function=os.link)  # whoever changes a file puts a new one in its place
    (home / "out").mkdir()
    monkeypatch.chdir(home)
    return home


def replaced(path: Path, by: str) -> None:
    """Put another thing in a thing's place."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if by == "a folder":
        path.mkdir()
    elif by in ("half JSON", "an empty file"):
        path.write_text('{"a": [1, 2\n' if by == "half JSON" else "")
    elif by != "nothing":
        other = path.parent / by
        shutil.copytree(other, path) if other.is_dir() else shutil.copyfile(other, path)


def everything(home: Path) -> dict[Path, int | None]:
    """What lies in a folder, and when each file was written."""
    return {each: each.stat().st_mtime_ns if each.is_file() else None for each in home.rglob("*")}


def refused(run: Run, here: Path, line: str, message: str) -> None:
    """One message, and nothing else: not on stdout, and not on the disk."""
    before = everything(here)
    status, out, err = run(*shlex.split(line))
    assert status in (1, 2), err
    assert out == ""
    assert "Traceback" not in err
    assert message in err
    if status == 1:
        assert err.startswith("bpr: ")
        assert err.count("\n") == 1, err
    assert everything(here) == before


@pytest.mark.parametrize("verb", QUICK)
def test_the_calls_are_right(run: Run, here: Path, verb: str) -> None:
    status, _, err = run(*shlex.split(CALLS[verb]))
    assert status == 0, err


@pytest.mark.parametrize(("verb", "name", "by", "message"), INPUTS)
def test_a_wrong_input_is_named(run: Run, here: Path, verb: str, name: str, by: str, message: str) -> None:
    replaced(here / name, by)
    refused(run, here, CALLS[verb], message)


@pytest.mark.parametrize(("verb", "more", "message"), OPTIONS)
def test_a_wrong_option_is_named(run: Run, here: Path, verb: str, more: str, message: str) -> None:
    key = more.partition("=")[0]  # stands once in a call: what was right makes room for what is wrong
    line = re.sub(rf" {key}=\S+", "", CALLS[verb])
    refused(run, here, f"{line} {more}", message)


@pytest.mark.parametrize("verb", WRITERS)
def test_an_output_below_a_file_is_refused(run: Run, here: Path, verb: str) -> None:
    (here / "out").rmdir()
    (here / "out").write_text("precious\n")
    refused(run, here, CALLS[verb], "out")


@pytest.mark.parametrize("damage", ["", "half", "x" * 5000])
def test_damaged_weights_to_start_from_are_named(run: Run, here: Path, damage: str) -> None:
    """The tokens stay: they are good, and the next run needs them. The model does not begin to be."""
    weights = here / "start" / "model.safetensors"
    weights.unlink()
    weights.write_text(damage)
    status, out, err = run(*shlex.split(CALLS["train"]))
    assert (status, out) == (1, "")
    assert err.startswith("bpr: start holds no encoder that transformers can open: ")
    assert err.count("\n") == 1
    assert not (here / "out" / "m").exists()
