"""bpr tune, bpr duplicates, and the kinds of index on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr import plots

RANDOM = np.random.default_rng(8)
VECTORS = RANDOM.standard_normal((400, 64)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    vectors = VECTORS.copy()
    vectors[7] = vectors[3]
    vectors[9] = vectors[3] * np.where(np.arange(64) < 2, -1, 1)
    passages = [{"id": f"p{row}", "text": f"text {row}"} for row in range(400)]
    bpr.build(passages, tmp_path / "x.bpr", vectors=vectors)
    np.save(tmp_path / "q.npy", VECTORS[:20] + 0.1)
    return tmp_path / "x.bpr"


def test_tune_prints_what_it_measured_and_draws_it(run, path: Path, tmp_path: Path) -> None:
    status, out, err = run(
        "tune", path, "--target-recall", "0.9", "--vectors", tmp_path / "q.npy", "-o", tmp_path / "p"
    )
    assert status == 0
    assert "candidates" in out
    assert "20 questions (given vectors)" in out
    assert "now has the index scan" in err
    assert (tmp_path / "p" / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "p" / "tune.svg").read_bytes()
    known = bpr.open(path).info
    assert f"{known['candidates']:,}" in out


def test_tune_in_json_and_without_writing(run, path: Path) -> None:
    before = (path / "manifest.json").read_bytes()
    status, out, _ = run("tune", path, "--dry-run", "--json", "--quiet")
    assert status == 0
    found = json.loads(out)
    assert found["asked"] == "its own codes"
    assert found["chosen"] in found["points"]
    assert (path / "manifest.json").read_bytes() == before


def test_tune_with_questions_in_a_file(run, tmp_path: Path, tiny_model: Path) -> None:
    bpr.build([{"id": str(n), "text": f"word {n} of them"} for n in range(30)], tmp_path / "t.bpr", model=tiny_model)
    (tmp_path / "asked.txt").write_text("which word?\nhow many?\n")
    status, out, err = run("tune", tmp_path / "t.bpr", "--questions", tmp_path / "asked.txt", "--dry-run")
    assert status == 0
    assert "2 questions (given questions)" in out
    assert "would get" in err


def test_tune_takes_one_kind_of_questions(run, path: Path, tmp_path: Path) -> None:
    status, _, err = run("tune", path, "--questions", tmp_path / "x", "--vectors", tmp_path / "q.npy")
    assert status == 2
    assert "not both" in err


def test_duplicates(run, path: Path) -> None:
    assert run("duplicates", path, "--radius", "0", "--quiet")[:2] == (0, "p3\tp7\n")
    status, out, err = run("duplicates", path, "--radius", "2", "--json")
    assert status == 0
    assert json.loads(out) == {"ids": ["p3", "p7", "p9"]}
    assert "1 group, 2 passages more than needed" in err


@pytest.mark.parametrize("kind", ["scan", "cells", "hash"])
def test_index_takes_a_kind_and_search_a_share(run, tmp_path: Path, kind: str) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"id": str(n), "text": "x"}) + "\n" for n in range(400)))
    np.save(tmp_path / "v.npy", VECTORS)
    source = (tmp_path / "p.jsonl", "--vectors", tmp_path / "v.npy")
    assert run("index", *source, "--kind", kind, "-o", tmp_path / "k.bpr")[0] == 0
    assert json.loads(run("info", tmp_path / "k.bpr", "--json")[1])["kind"] == kind
    asked = ("search", tmp_path / "k.bpr", "--vectors", tmp_path / "v.npy", "-k", "1", "--json", "--probes", "0.5")
    status, out, _ = run(*asked)
    assert status == 0
    assert [json.loads(line)["hits"][0]["id"] for line in out.splitlines()[:5]] == ["0", "1", "2", "3", "4"]


def test_what_would_keep_it_from_drawing_is_said_before_anything_is_measured(run, path: Path, monkeypatch) -> None:
    before = (path / "manifest.json").read_bytes()
    (path.parent / "file").touch()
    status, _, err = run("tune", path, "-o", path.parent / "file")
    assert status == 1 and "something else has that name already" in err
    monkeypatch.setattr(plots, "available", lambda: False)
    status, _, err = run("tune", path, "-o", path.parent / "p")
    assert status == 1 and err.endswith("pip install 'binary-passage-retriever[eval]'\n")
    assert not (path.parent / "p").exists()
    assert (path / "manifest.json").read_bytes() == before
