"""bpr add, delete and compact, and what the other verbs say of a bundle that was changed."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

import bpr
from bpr import cli, live

RANDOM = np.random.default_rng(2)
VECTORS = RANDOM.standard_normal((300, 32)).astype(np.float32)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A bundle of 200 passages, and files to add to it."""
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    made = SimpleNamespace(bundle=tmp_path / "w.bpr", more=tmp_path / "more.jsonl", vectors=tmp_path / "v.npy")
    bpr.build(passages(*range(200)), made.bundle, vectors=VECTORS[:200])
    made.more.write_text("".join(json.dumps(each) + "\n" for each in passages(200, 201)))
    np.save(made.vectors, VECTORS[200:202])
    return made


def passages(*rows: int) -> list[dict[str, Any]]:
    return [{"id": f"p{row}", "title": f"T{row}", "text": f"text of {row}"} for row in rows]


@pytest.mark.parametrize("verb", ["add", "delete", "compact"])
def test_every_verb_explains_itself(run, verb: str) -> None:
    status, out, err = run(verb, "--help")
    assert (status, err) == (0, "")
    assert re.search(rf"^ +\$ bpr {verb} ", out, re.M)
    for parameter in typer.main.get_command(cli.app).commands[verb].params:
        assert parameter.help


def test_add_delete_compact(run, world) -> None:
    status, out, err = run("add", world.bundle, world.more, "--vectors", world.vectors)
    assert (status, out) == (0, "")
    assert re.fullmatch(r".*w\.bpr: 2 passages added in [\d.]+ s; 202 passages in all, 2 segments\n", err)
    status, out, err = run("add", world.bundle, world.more, "--vectors", world.vectors)
    assert (status, out) == (1, "")
    assert re.fullmatch(r"bpr: .* id 'p200', 'p201' already; nothing is added \(.*--upsert.*\n", err)
    assert run("add", world.bundle, world.more, "--vectors", world.vectors, "--upsert", "-q") == (0, "", "")
    status, out, err = run("delete", world.bundle, "p1", "p2", "p200")
    assert re.fullmatch(r".*w\.bpr: 3 passages deleted in [\d.]+ s; 199 passages in all, 2 segments\n", err)
    facts = json.loads(run("info", world.bundle, "--json")[1])
    assert (facts["rows"], facts["deleted"]) == (199, 3)
    assert facts["segments"] == [
        {"rows": 200, "deleted": 2, "kind": "scan"},
        {"rows": 2, "deleted": 1, "kind": "scan"},
    ]
    assert facts["health"]["rows"] == 199
    shown = run("info", world.bundle)[1]
    assert re.search(r"^segments +200 \+ 2 rows, 3 of them deleted *$", shown, re.M)
    assert run("verify", world.bundle, "-q") == (0, "", "")
    status, out, err = run("compact", world.bundle)
    assert re.fullmatch(r".*w\.bpr: compacted in [\d.]+ s; 199 passages in all, 1 segment\n", err)
    assert "segments" not in run("info", world.bundle)[1]


def test_ids_from_a_file_or_from_stdin(run, world, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "gone.txt").write_text("p5\r\n\np6\n")
    assert run("delete", world.bundle, "p4", "--ids", tmp_path / "gone.txt", "-q") == (0, "", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO("p7\np8"))
    assert run("delete", world.bundle, "--ids", "-", "-q") == (0, "", "")
    assert len(bpr.open(world.bundle)) == 195


def test_what_is_refused(run, world, tmp_path: Path) -> None:
    before = (world.bundle / "manifest.json").read_bytes()
    status, _, err = run("delete", world.bundle, "p1", "nobody")
    assert (status, "no passage with the id 'nobody'" in err) == (1, True)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\n")
    for name, message in (("empty.txt", "holds no ids"), ("bytes.txt", "is not UTF-8"), ("none.txt", "cannot be read")):
        status, _, err = run("delete", world.bundle, "--ids", tmp_path / name)
        assert (status, message in err) == (1, True)
    assert run("delete", world.bundle)[0] == 2
    assert run("add", world.bundle, world.more, "--vectors", world.vectors, "--model", tmp_path)[0] == 2
    status, _, err = run("add", world.bundle, world.more)
    assert (status, "cannot read text" in err) == (1, True)
    for verb in (("add", world.more), ("delete", "p1"), ("compact",)):
        status, _, err = run(verb[0], tmp_path / "none.bpr", *verb[1:])
        assert (status, "there is no bundle at" in err) == (1, True)
    assert (world.bundle / "manifest.json").read_bytes() == before


def test_an_emptied_bundle(run, world) -> None:
    ids = [f"p{row}" for row in range(200)]
    assert run("delete", world.bundle, *ids, "-q") == (0, "", "")
    facts = json.loads(run("info", world.bundle, "--json")[1])
    assert (facts["rows"], facts["segments"], facts["health"]) == (0, [], None)
    status, _, err = run("search", world.bundle, "--vectors", world.vectors)
    assert (status, "holds no passages" in err) == (1, True)
    assert run("add", world.bundle, world.more, "--vectors", world.vectors, "-q") == (0, "", "")
    assert len(bpr.open(world.bundle)) == 2


def test_the_health_of_many_is_measured_on_a_sample(run, world, monkeypatch) -> None:
    run("add", world.bundle, world.more, "--vectors", world.vectors)
    monkeypatch.setattr("bpr.health.BIT_ROWS", 50)
    health = json.loads(run("info", world.bundle, "--json")[1])["health"]
    assert health["rows"] == 202


def test_text_is_added_with_the_model(run, tmp_path: Path, tiny_model: Path) -> None:
    source = tmp_path / "p.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in passages(1, 2, 3)))
    assert run("index", source, "--model", tiny_model, "-o", tmp_path / "t.bpr", "-q") == (0, "", "")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("A house on a hill.")
    assert run("add", tmp_path / "t.bpr", tmp_path / "docs", "--model", tiny_model, "-q") == (0, "", "")
    assert len(bpr.open(tmp_path / "t.bpr", model=tiny_model).search("a hill", k=9)) == 4
