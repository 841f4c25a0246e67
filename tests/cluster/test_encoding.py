"""Passages are encoded by Ray's workers: the same bytes as without them, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_processes import processes

import bpr
from bpr import builder, bundle
from bpr.cluster.encoding import PoolEncoder
from bpr.errors import InvalidInput, ModelMismatch
from bpr.parts import Parts
from tiny_models import WORDS, make_model

RANDOM = np.random.default_rng(1)
PART = 200


def texts(count: int) -> list[dict[str, str]]:
    words = RANDOM.choice(WORDS, (count, 12))
    return [{"id": str(row), "title": words[row, 0], "text": " ".join(words[row])} for row in range(count)]


TEXTS = texts(20 * PART + 7)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "PART_ROWS", PART)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The same passages, encoded without Ray."""
    path = tmp_path_factory.mktemp("alone") / "x.bpr"
    bpr.build(TEXTS, path, model=tiny_model, keep_vectors="int8")
    return path


def sums(path: Path) -> dict[str, str]:
    with bundle.open(path, verify="all") as opened:
        return {name: each.sha256 for name, each in opened.manifest.files.items()}


def build(path: Path, pool: PoolEncoder, source: Any = TEXTS, **how: Any) -> int:
    return bpr.build(source, path, model=pool, keep_vectors="int8", **how)


def test_workers_give_the_same_bytes_as_one_machine(
    cluster: Any, alone: Path, tiny_model: Path, tmp_path: Path
) -> None:
    said: list[tuple[str, int, int | None]] = []
    with PoolEncoder(tiny_model, workers=2, threads=1) as pool:
        build(tmp_path / "x.bpr", pool, progress=lambda *told: said.append(told))
        assert [kind.differing for kind in pool.kinds] == [0, 0]
        assert pool.report().startswith("2 workers (") and "bits as on this machine's CPU" in pool.report()
    assert sums(tmp_path / "x.bpr") == sums(alone)
    done = [done for what, done, total in said if what == "encoding passages" and total == len(TEXTS)]
    assert done == sorted(done) and done[-1] == len(TEXTS) and len(set(done)) > 10
    assert not Parts(tmp_path / "x.bpr").folder.exists()


def test_no_more_than_a_few_parts_are_in_flight(cluster: Any, tiny_model: Path, tmp_path: Path) -> None:
    taken = finished = most = 0

    def source() -> Any:
        nonlocal taken, most
        for each in TEXTS:
            taken += 1
            most = max(most, taken - finished)
            yield each

    def say(what: str, done: int, total: int | None) -> None:
        nonlocal finished
        if what == "encoding passages":
            finished = done

    with PoolEncoder(tiny_model, workers=1, threads=1) as pool:
        build(tmp_path / "x.bpr", pool, source(), progress=say)
        assert pool.parts_ahead == 3
    assert most <= (pool.parts_ahead + 1) * PART + 1


def test_a_lost_worker_is_replaced_and_its_part_done_again(
    cluster: Any, alone: Path, tiny_model: Path, tmp_path: Path
) -> None:
    killed: list[int] = []

    def say(what: str, done: int, total: int | None) -> None:
        if what == "encoding passages" and done >= 3 * PART and not killed:
            killed.append(processes("ray::_Work")[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    with PoolEncoder(tiny_model, workers=2, threads=1) as pool:
        build(tmp_path / "x.bpr", pool, progress=say)
        assert killed
    assert sums(tmp_path / "x.bpr") == sums(alone)


def test_a_killed_run_goes_on_where_it_was_with_ray_or_without(
    cluster: Any, alone: Path, tiny_model: Path, tmp_path: Path
) -> None:
    source, path = tmp_path / "p.jsonl", tmp_path / "x.bpr"
    source.write_text("".join(json.dumps(each) + "\n" for each in TEXTS))
    program = (
        "import sys, bpr, time, ray; from bpr import builder; from bpr.cluster import rays\n"
        "from bpr.cluster.encoding import PoolEncoder\n"
        f"builder.PART_ROWS = {PART}; rays.connect({cluster.address!r})\n"
        f"pool = PoolEncoder({str(tiny_model)!r}, workers=1, threads=1)\n"
        "def say(what, done, total):\n"
        f"    if what == 'encoding passages' and done == {8 * PART}: print('now', flush=True); time.sleep(60)\n"
        f"bpr.build({str(source)!r}, {str(path)!r}, model=pool, keep_vectors='int8', progress=say)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stdout.readline() == "now\n"
    running.kill()
    running.wait()
    running.stdout.close()
    assert len(list(Parts(path).folder.glob("part-*"))) >= 8
    begun: list[int] = []
    with PoolEncoder(tiny_model, workers=1, threads=1) as pool:
        real: Callable[..., Any] = pool.begin
        pool.begin = lambda pairs, first, *rest: begun.append(first) or real(pairs, first, *rest)  # type: ignore[assignment]
        build(path, pool, source)
    assert begun[0] == 8 * PART
    assert sums(path) == sums(alone)


def test_what_a_worker_refuses_is_said_in_our_words(cluster: Any, tiny_model: Path, tmp_path: Path) -> None:
    plain = builder.Transform.identity(64)
    with PoolEncoder(tiny_model, workers=1, threads=1) as pool:
        codes, vectors = pool.begin([("title", "text")], 0, plain, False)()
        assert codes[0].shape == (1, 8) and vectors is None
        with pytest.raises(InvalidInput, match="the text of passage 0 must be a string"):
            pool.begin([("title", 7)], 0, plain, False)()  # type: ignore[list-item]


def test_another_model_on_a_worker_is_refused(cluster: Any, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make_model(folder)
    with PoolEncoder(folder, workers=1, threads=1) as pool:
        assert pool.engine  # opened here, before it is another one
        shutil.rmtree(folder)
        make_model(folder, seed=5)
        with pytest.raises(ModelMismatch, match="worker 0 has another model"):
            pool.begin([("a", "b")], 0, builder.Transform.identity(64), False)()


def test_more_workers_than_there_is_room_for_are_refused(cluster: Any, tiny_model: Path) -> None:
    with pytest.raises(InvalidInput, match="room for 6 workers, not 7"):
        PoolEncoder(tiny_model, workers=7, threads=1)
    with pytest.raises(InvalidInput, match="room for 1 workers, not 2"):
        PoolEncoder(tiny_model, device="cuda", workers=2)
    with pytest.raises(InvalidInput, match="no machine of the cluster has 64 CPUs"):
        PoolEncoder(tiny_model, threads=64)


def test_workers_of_another_kind_report_the_share_of_bits_that_differ(
    cluster: Any, tiny_model: Path, tmp_path: Path
) -> None:
    from bpr.training.encode import TorchEncoder

    some = TEXTS[: 3 * PART]
    with PoolEncoder(tiny_model, device="cpu:0") as pool:  # float weights in torch, where a GPU would be
        bpr.build(some, tmp_path / "x.bpr", model=pool)
        [kind] = pool.kinds
    assert 0 < kind.share < 0.2 and kind.bits == 64 * 64
    assert f"up to {kind.share:.3%} of the bits differ from this machine's CPU (torch" in pool.report()
    bpr.build(some, tmp_path / "alone.bpr", model=TorchEncoder.open(tiny_model, "cpu"))
    assert sums(tmp_path / "x.bpr") == sums(tmp_path / "alone.bpr")
