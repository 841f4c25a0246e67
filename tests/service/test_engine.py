"""What a request becomes: the retriever's own results, in batches; and a bundle that is not believed before it is
checked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import bundle, kernels
from bpr.encoder import Encoder
from bpr.errors import CorruptBundle, InvalidInput, ModelMismatch
from bpr.service.engine import Asked, Engine, number_of
from bpr.service.metrics import Metrics
from bpr.service.settings import Settings
from calling import ASKED, ROWS, Held, Service, passages
from tiny_models import make_model

Make = Callable[..., Service]
VECTORS = np.random.default_rng(3).standard_normal((ROWS, 64), np.float32)


def soon() -> float:
    return time.monotonic() + 60


def republish(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The bundle with other words in its info, and every file as it was; the code that it had stored."""
    with bundle.update(path) as (old, new):
        for name in old.manifest.files:
            new.keep(name)
        info = dict(old.info)
        change(info)
        new.publish(info, old.manifest.features)
        return str(old.info.get("warm_up"))


def with_code(path: Path, code: str) -> None:
    republish(path, lambda info: info.update(warm_up=code))


def flipped(path: Path, bits: int) -> None:
    """The stored code with so many other bits."""
    with bundle.open(path) as opened:
        stored = opened.info["warm_up"]
    with_code(path, f"{int(stored, 16) ^ ((1 << bits) - 1):0{len(stored)}x}")


@pytest.fixture
def of_vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.bpr"
    bpr.build(passages(), path, vectors=VECTORS)
    return path


# ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_questions_of_several_requests_share_a_search_and_get_what_they_would_alone(
    make: Make, held: Held
) -> None:
    service = make(encoder=held)
    engine, seen = service.engine, held.seen
    alone = [service.retriever.search(f"greek poem {number}", k=3) for number in range(6)]
    first = asyncio.create_task(engine.search(Asked(["hold on"], True, {"k": 1}), soon()))
    assert await asyncio.to_thread(held.entered.wait, 60)
    seen.clear()
    how = {"k": 3}
    tasks = [
        asyncio.create_task(engine.search(Asked([f"greek poem {number}"], True, how), soon())) for number in range(6)
    ]
    other = asyncio.create_task(engine.search(Asked(["another k"], True, {"k": 4}), soon()))
    while len(engine._searches) < 7:
        await asyncio.sleep(0.005)
    held.go.set()
    await first
    found = await asyncio.gather(*tasks)
    assert (await other).batch == 1 and len((await other).results[0]) == 4
    assert [each.results[0] for each in found] == alone
    assert {each.batch for each in found} == {6} and sorted(map(len, seen)) == [1, 6]
    assert all(each.times["queue"] > 0 and each.times["encode"] > 0 for each in found)
    assert {each.generation for each in found} == {1}


def test_the_order_of_options_does_not_keep_requests_apart() -> None:
    one, other = Asked(["a"], True, {"k": 1, "rerank": False}), Asked(["b"], True, {"rerank": False, "k": 1})
    assert one.key() == other.key() != Asked(["a"], False, {"k": 1, "rerank": False}).key()
    assert one.key() != Asked(["a"], True, {"k": 2, "rerank": False}).key()


async def test_answers_are_those_of_the_retriever(service: Service) -> None:
    questions = [ASKED, "when was the bridge built?", "river"]
    wanted = service.retriever.answer(questions, n=3, k=10, least=0.0)
    found = await service.engine.answer(Asked(questions, True, {"k": 10}), 3, 0.0, soon())
    assert found.results == wanted and all(len(each) == 3 for each in wanted)
    assert found.times["read"] > 0 and found.batch == 3
    default = await service.engine.answer(Asked([ASKED], True), 1, 0.0, soon())
    assert default.results == [service.retriever.answer(ASKED, n=1, least=0.0)]


async def test_a_bundle_of_vectors_is_searched_with_vectors_and_has_no_reader(make: Make, of_vectors: Path) -> None:
    service = make(of_vectors, encoder=None, reader=None)
    asked = VECTORS[:2].tolist()
    found = await service.engine.search(Asked(asked, False, {"k": 5}), soon())
    assert found.results == service.retriever.search(vectors=VECTORS[:2], k=5)
    assert not service.engine.has_reader()
    with pytest.raises(InvalidInput, match="no reader"):
        await service.engine.answer(Asked(["who?"], True), 1, None, soon())
    with pytest.raises(InvalidInput, match="cannot read text"):
        await service.engine.search(Asked(["who?"], True, {"k": 5}), soon())
    assert service.engine.info()["model"] is None and service.engine.info()["reader"] is False


async def test_without_a_reader_anywhere_there_are_no_answers(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bpr.model.MINI", tmp_path / "none")
    service = make(reader=None)
    assert not service.engine.has_reader() and service.engine.info()["reader"] is False
    with pytest.raises(InvalidInput, match="no reader"):
        await service.engine.answer(Asked(["who?"], True), 1, None, soon())


def test_messages_name_no_path(service: Service) -> None:
    path = service.retriever.bundle.path
    assert service.engine.without_paths(f"{path} holds nothing") == "the bundle holds nothing"


def test_passages_by_id(service: Service) -> None:
    assert service.engine.passage("a/b/c").title == "title 0"
    assert service.engine.passage("p9").meta == {"year": 2009, "lang": "en"}
    assert service.engine.passage("nobody") is None


def test_facts(service: Service, small: Path) -> None:
    info = service.engine.info()
    assert info["rows"] == ROWS and info["bits"] == 64 and info["planes"] == 2 and info["generation"] == 1
    assert info["bytes"]["codes"] == ROWS * 16
    assert info["bytes"]["float32"] == ROWS * 64 * 4
    assert info["bytes"]["total"] == sum(
        each.stat().st_size for each in (small / "gen-000001").glob("[!c]*")
    )  # all but checksums.npy
    assert info["model"] == "tiny" and info["words"] is True and info["vectors"] == "int8" and info["reader"] is True
    assert info["limits"]["deadline_ms"] == 60_000 and info["limits"]["k"] == 1000
    assert service.engine.facts() is service.engine.facts()


def test_closing_ends_the_threads(small: Path, encoder: Encoder) -> None:
    engine = Engine(bpr.open(small, model=encoder), Settings(), Metrics())
    names = {each.name for each in threading.enumerate()}
    assert {"bpr-search", "bpr-read"} <= names
    threads = [engine._searches._thread, engine._readings._thread]
    engine.close()
    assert not any(each.is_alive() for each in threads)


# ── warm-up ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_gives_another_code_than_when_the_bundle_was_built_is_refused(make: Make, own: Path) -> None:
    flipped(own, 32)
    service = make(own, warm=False)
    with pytest.raises(CorruptBundle, match="32 of 64 bits differ"):
        service.engine.warm_up()


def test_a_stored_code_of_another_length_is_refused(make: Make, own: Path) -> None:
    with_code(own, "00")
    with pytest.raises(CorruptBundle, match="8 of 8 bits differ"):
        make(own)


def test_a_few_bits_may_be_rounded_to_the_other_side(make: Make, own: Path) -> None:
    flipped(own, 3)  # of 64: up to a twentieth
    make(own).engine.warm_up()
    flipped(own, 7)  # three of them back, four others
    with pytest.raises(CorruptBundle, match="4 of 64 bits"):
        make(own)


def test_an_older_bundle_without_a_stored_code_is_warmed_up_all_the_same(make: Make, own: Path) -> None:
    assert republish(own, lambda info: info.pop("warm_up"))
    make(own).engine.warm_up()


@pytest.mark.parametrize("part", [0, 1])
def test_a_kernel_that_disagrees_with_numpy_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    scan = kernels.scan

    def wrong(*given: Any, **how: Any) -> Any:
        found = [each.copy() for each in scan(*given, **how)]
        found[part][0, 0] += 1
        return tuple(found)

    service = make(warm=False)
    monkeypatch.setattr(kernels, "scan", wrong)
    with pytest.raises(CorruptBundle, match="numpy disagree"):
        service.engine.warm_up()


def test_the_model_of_another_bundle_is_refused(make: Make, tmp_path: Path, own: Path) -> None:
    make_model(tmp_path / "other", seed=9)
    with pytest.raises(ModelMismatch):
        make(own, encoder=Encoder.open(tmp_path / "other"))


# ── reload ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_reload_goes_over_to_the_newest_generation(make: Make, own: Path, encoder: Encoder) -> None:
    service = make(own)
    engine, metrics = service.engine, service.metrics
    assert not engine.reload()
    bpr.add(own, [{"id": "new", "text": "the moon is new"}], model=encoder)
    assert number_of(service.retriever) == 1
    assert engine.reload() and engine.facts()["rows"] == ROWS + 1 and engine.facts()["generation"] == 2
    found = await engine.search(Asked(["moon"], True, {"k": 1}), soon())
    assert found.generation == 2
    text = metrics.text().decode()
    assert 'bpr_reloads_total{result="done"} 1.0' in text and "bpr_index_generation 2.0" in text
    assert f"bpr_index_rows {ROWS + 1}.0" in text


def test_a_generation_that_cannot_be_used_leaves_the_old_one(make: Make, own: Path) -> None:
    service = make(own)
    bpr.build(passages(), own, vectors=VECTORS)  # of no model now
    with pytest.raises(ModelMismatch):
        service.engine.reload()
    assert service.engine.facts()["generation"] == 1
    assert service.retriever.search("moon", k=1)
    assert 'bpr_reloads_total{result="failed"} 1.0' in service.metrics.text().decode()
