"""`bpr index --ray` and `bpr serve --ray` as users run them: from text to HTTP, on a cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bpr
from bpr import bundle, shards
from tiny_models import WORDS

QUESTIONS = ["who wrote the iliad", "the red house", "steel bridge"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "p.jsonl"
    lines = [
        {
            "id": f"p{row}",
            "title": WORDS[row % len(WORDS)],
            "text": " ".join(WORDS[(row * step) % 50] for step in range(9)),
        }
        for row in range(300)
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def bpr_on(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "bpr.cli", *map(str, arguments)]


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: dict[str, Any] = json.loads(reply.read())
    return found


@contextmanager
def served(*arguments: object) -> Iterator[str]:
    """The URL of `bpr serve`, which then ends as it is told to: in peace, and without a traceback of Ray's."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(bpr_on("serve", *arguments), stdout=subprocess.PIPE, stderr=log, text=True) as running,
    ):
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert "is served on" in line
            yield line.split()[-1].rstrip("/")
        finally:
            running.send_signal(signal.SIGTERM)
            status = running.wait(60)
        log.seek(0)
        said = log.read()
    assert status == 0, said
    assert "Traceback" not in said


def test_from_text_to_http_on_a_cluster(cluster: Any, source: Path, tiny_model: Path, tmp_path: Path) -> None:
    made = tmp_path / "x.bpr"
    how = ("--model", tiny_model, "--ray", cluster.address, "--workers", 1, "--threads", 1)
    done = subprocess.run(bpr_on("index", source, "-o", made, *how), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 worker (" in done.stderr and "bits as on this machine's CPU" in done.stderr
    bpr.build(source, tmp_path / "alone.bpr", model=tiny_model)
    with bundle.open(made) as one, bundle.open(tmp_path / "alone.bpr") as other:
        assert {n: e.sha256 for n, e in one.manifest.files.items()} == {
            n: e.sha256 for n, e in other.manifest.files.items()
        }

    shards.shard(made, tmp_path / "s", 2)
    how = ("--ray", cluster.address, "--replica-cpus", 0.4, "--port", 0, "--deadline", 20)
    with served(tmp_path / "s", *how) as url:
        found = asked(url, "/v1/search", {"questions": QUESTIONS, "k": 7})
        assert found["coverage"] == 1.0
        with bpr.open(made) as alone:
            wanted = [[hit.id for hit in hits] for hits in alone.search(QUESTIONS, k=7)]
        assert [[hit["id"] for hit in each["hits"]] for each in found["results"]] == wanted
        assert asked(url, "/v1/passages/p250")["id"] == "p250"
        facts = asked(url, "/v1/info")
        assert facts["rows"] == 300 and facts["bytes"]["total"] > 300 * 16
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(url, "/v1/search", {"question": "house", "hybrid": True})
        assert refused.value.code == 400 and b"hybrid search is not there on a cluster" in refused.value.read()


def test_shards_that_are_wrong_are_refused_before_ray_is_asked(
    tmp_path: Path, source: Path, tiny_model: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    bpr.build(source, tmp_path / "x.bpr", model=tiny_model)
    status, _, err = run("serve", tmp_path / "x.bpr", "--ray", "192.0.2.1:1", "--port", 0)
    assert status == 1 and "is no bundle of shards" in err
    [first, second] = shards.shard(tmp_path / "x.bpr", tmp_path / "s", 2)
    (tmp_path / "s" / second.name / "manifest.json").unlink()
    status, _, err = run("serve", tmp_path / "s", "--ray", "192.0.2.1:1", "--port", 0)
    assert status == 1 and second.name in err and first.name not in err


def test_options_that_need_a_cluster_say_so(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = run("index", tmp_path / "p.jsonl", "-o", tmp_path / "x.bpr", "--workers", 2)
    assert status == 2 and "--ray" in err
    vectors = ("--vectors", tmp_path / "v.npy", "--ray", "auto")
    status, _, err = run("index", tmp_path / "p.jsonl", "-o", tmp_path / "x.bpr", *vectors)
    assert status == 2 and "--ray" in err
