"""A bundle cut into shards finds what it found in one piece, and refuses shards that are not its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import bundle, live, shards
from bpr.cluster.front import ClusterRetriever
from bpr.errors import (
    BundleLocked,
    CorruptBundle,
    DeadlineExceeded,
    EmptyBundle,
    InvalidInput,
    MissingBundle,
    ModelMismatch,
)
from bpr.shards import Entry, Proposed, Shard, merged

DIM, ROWS = 32, 500
RANDOM = np.random.default_rng(9)
# Coarse values: many equal distances and scores, so that ties decide.
VECTORS = RANDOM.integers(-1, 2, (ROWS, DIM)).astype(np.float32)
ASKED = RANDOM.integers(-1, 2, (6, DIM)).astype(np.float32)


def passages(rows: range) -> list[dict[str, Any]]:
    extra = [{"late": row} if row > 400 else {} for row in range(rows.stop)]
    return [{"id": f"p{row}", "title": f"T{row}", "text": f"text {row}", "page": row, **extra[row]} for row in rows]


@pytest.fixture(scope="module", params=["one plane", "two planes, kept vectors", "hash", "changed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 500 passages, or what adding and deleting has left of it."""
    path, how = tmp_path_factory.mktemp("whole") / "x.bpr", {}
    if request.param.startswith("two"):
        how = {"planes": 2, "center": True, "rotate": True, "keep_vectors": "int8"}
    elif request.param == "hash":
        how = {"kind": "hash"}
    if request.param == "changed":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live, "SMALL_ROWS", 1)
            bpr.build(passages(range(400)), path, vectors=VECTORS[:400])
            bpr.add(path, passages(range(400, ROWS)), vectors=VECTORS[400:])
            bpr.delete(path, [f"p{row}" for row in (0, 17, 399, 400, 499)])
    else:
        bpr.build(passages(range(ROWS)), path, vectors=VECTORS, **how)
    return path


@pytest.fixture(scope="module", params=[1, 7])
def sharded(request: pytest.FixtureRequest, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded") / "s.bpr"
    shards.shard(whole, folder, request.param)
    return folder


class HereFleet:
    """All shards in this process; those in `gone` never answer."""

    def __init__(self, opened: bundle.Opened) -> None:
        self.shards = [Shard(opened.path, each) for each in shards.entries_of(opened)]
        self.gone: set[int] = set()
        self.closed = False

    def ask(
        self, method: str, calls: Mapping[int, tuple[Any, ...]], deadline: float | None, missing: bool = False
    ) -> dict[int, Any]:
        late = self.gone & set(calls)
        if late and not missing:
            raise DeadlineExceeded(f"shards {sorted(late)} did not answer in time")
        numbers = sorted(set(calls) - late, reverse=True)  # replies come in any order
        return {number: getattr(self.shards[number], method)(*calls[number]) for number in numbers}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def both(whole: Path, sharded: Path) -> Iterator[tuple[bpr.Retriever, ClusterRetriever]]:
    with bpr.open(whole) as one, ClusterRetriever(bundle.open(sharded), HereFleet) as other:
        yield one, other


HOW = [
    {},
    {"k": 1, "candidates": 1},
    {"k": 10, "candidates": 10},
    {"k": 7, "candidates": 60},
    {"k": 50, "candidates": "all"},
    {"k": 30, "candidates": 40, "rerank": False},
    {"k": 600, "candidates": 600},
    {"k": 9, "candidates": 30, "where": {"page": {">=": 100, "<": 420}}},
    {"k": 9, "where": {"late": {">": 450}}},
    {"k": 9, "where": {"page": -1}},
    {"k": 5, "candidates": 20, "refine": 0},
]


@pytest.mark.parametrize("how", HOW, ids=json.dumps)
def test_what_shards_find_is_what_one_machine_finds(both: tuple[bpr.Retriever, ClusterRetriever], how: dict) -> None:
    one, other = (each.rank(ASKED, **how) for each in both)
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.scores, other.scores)
    assert one.scores.dtype == other.scores.dtype and one.rows.dtype == other.rows.dtype
    found = [each.search(vectors=ASKED, **how) for each in both]
    assert found[0] == found[1]


def test_a_mask_goes_to_the_shards(both: tuple[bpr.Retriever, ClusterRetriever]) -> None:
    mask = RANDOM.random(len(both[0])) < 0.2
    one, other = (each.rank(ASKED, k=12, candidates=20, mask=mask) for each in both)
    np.testing.assert_array_equal(one.rows, other.rows)
    with pytest.raises(InvalidInput, match="mask must be"):
        both[1].rank(ASKED, mask=mask[:-1])


def test_passages_are_found_by_id_and_row(both: tuple[bpr.Retriever, ClusterRetriever]) -> None:
    one, other = (each.passages for each in both)
    assert len(one) == len(other)
    ids = ["p1", "p250", "p498", "nobody's", "p17"]
    assert one.find_all(ids) == other.find_all(ids)
    rows = [3, 200, 3, len(one) - 1]
    assert one.get(rows) == other.get(rows)
    with pytest.raises(InvalidInput, match="no row"):
        other.get([len(one)])


def test_what_is_wrong_is_refused_as_on_one_machine(both: tuple[bpr.Retriever, ClusterRetriever]) -> None:
    for how in ({"k": 0}, {"k": 9, "candidates": 8}, {"where": {"nowhere": 1}}, {"where": {"page": "text"}}):
        said = []
        for each in both:
            with pytest.raises(InvalidInput) as error:
                each.rank(ASKED, **how)
            said.append(str(error.value))
        assert said[0] == said[1]
    with pytest.raises(InvalidInput, match="dimensions"):
        both[1].rank(ASKED[:, :8])


def test_fields_are_known_and_codes_are_not_here(both: tuple[bpr.Retriever, ClusterRetriever]) -> None:
    assert both[0].fields() == both[1].fields()
    with pytest.raises(InvalidInput, match="other machines"):
        _ = both[1].index
    with pytest.raises(InvalidInput, match="does not list"):
        list(both[1].filtered({"page": 3}))


def test_every_order_of_replies_gives_the_same() -> None:
    rows = np.arange(12, dtype=np.int64)[None]
    scores, far = np.repeat([[2.0, 1.0, 2.0]], 4, axis=0).reshape(1, 12), np.tile([3, 3, 1], 4)[None]
    parts = [Proposed(rows[:, at : at + 3], scores[:, at : at + 3], far[:, at : at + 3]) for at in range(0, 12, 3)]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        found = merged([parts[at] for at in order], 4, 6)  # the nearest six: 2, 5, 8, 11, then 0 and 1
        assert found.rows.tolist() == [[0, 2, 5, 8]]
    assert merged(parts, 4, None).rows.tolist() == [[0, 2, 3, 5]]


# ── coverage ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A bundle of shards from a bundle of one plane, and the bundle beside it: plain / ../x.bpr."""
    bpr.build(passages(range(ROWS)), tmp_path / "x.bpr", vectors=VECTORS)
    shards.shard(tmp_path / "x.bpr", tmp_path / "s.bpr", 4)
    return tmp_path / "s.bpr"


def test_a_shard_that_does_not_answer_is_an_error_that_names_it(plain: Path) -> None:
    with ClusterRetriever(bundle.open(plain), HereFleet) as opened:
        opened._snapshot.fleet.gone = {2}
        with pytest.raises(DeadlineExceeded, match=r"shards \[2\]"):
            opened.search_covered(vectors=ASKED)


def test_results_without_a_shard_state_their_coverage_or_are_refused(plain: Path) -> None:
    with ClusterRetriever(bundle.open(plain), HereFleet, partial=True) as opened:
        whole, _, coverage = opened.search_covered(vectors=ASKED, k=50)
        assert coverage == 1.0
        opened._snapshot.fleet.gone = {2}
        found, _, coverage = opened.search_covered(vectors=ASKED, k=50)
        assert coverage == 0.75
        left = [[hit.id for hit in hits if not 250 <= hit.meta["page"] < 375] for hits in whole]
        assert all([hit.id for hit in hits][: len(ids)] == ids for hits, ids in zip(found, left, strict=True))
        for call in (opened.search, opened.search_timed):  # what cannot say so needs all
            with pytest.raises(DeadlineExceeded):
                call(vectors=ASKED)
        opened._snapshot.fleet.gone = {0, 1, 2, 3}
        with pytest.raises(DeadlineExceeded, match="no shard"):
            opened.search_covered(vectors=ASKED)


# ── making and opening ───────────────────────────────────────────────────────────────────────────────────────────────


def entries(folder: Path) -> list[Entry]:
    with bundle.open(folder) as opened:
        return shards.entries_of(opened)


def test_shards_are_bundles_of_contiguous_rows(plain: Path) -> None:
    found = entries(plain)
    assert [(each.first, each.rows) for each in found] == [(0, 125), (125, 125), (250, 125), (375, 125)]
    with bpr.open(plain / found[1].name) as opened:
        assert [each.id for each in opened.passages] == [f"p{row}" for row in range(125, 250)]
    for each in found:
        assert all(file.problem is None for file in bundle.verify(plain / each.name))


def test_a_bundle_of_shards_is_not_opened_as_if_it_held_passages(plain: Path) -> None:
    for call in (bpr.open, bpr.compact, lambda path: bpr.delete(path, "p1")):
        with pytest.raises(InvalidInput, match="bundle of shards"):
            call(plain)
    with bundle.open(plain.parent / "x.bpr") as opened, pytest.raises(InvalidInput, match="no bundle of shards"):
        shards.entries_of(opened)


def refused(folder: Path, kind: type[Exception], words: str) -> None:
    with bundle.open(folder) as opened, pytest.raises(kind, match=words):
        shards.check(opened)


def test_a_missing_shard_is_refused_by_name(plain: Path) -> None:
    name = entries(plain)[2].name
    shutil.rmtree(plain / name)
    refused(plain, MissingBundle, rf"shard 2 \({name}\) is missing")


def test_swapped_shards_are_refused_by_name(plain: Path) -> None:
    one, other = (plain / entries(plain)[number].name for number in (1, 3))
    one.rename(plain / "aside")
    other.rename(one)
    (plain / "aside").rename(other)
    refused(plain, CorruptBundle, rf"shard 1 \({one.name}\).* holds shard 3: two were swapped")


def test_a_shard_of_another_generation_is_refused_by_name(plain: Path) -> None:
    before = entries(plain)[0].name
    shards.shard(plain.parent / "x.bpr", plain, 4)
    now = entries(plain)[0].name
    assert now != before
    shutil.rmtree(plain / now)
    shutil.copytree(plain / before, plain / now)
    refused(plain, CorruptBundle, rf"shard 0 \({now}\).* of another generation")


def test_a_shard_of_another_model_is_refused_by_name(tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(passages(range(20)), tmp_path / "x.bpr", vectors=VECTORS[:20])
    bpr.build(passages(range(20)), tmp_path / "y.bpr", model=tiny_model)
    for name in "xy":
        shards.shard(tmp_path / f"{name}.bpr", tmp_path / f"{name}s", 2)
    name = entries(tmp_path / "ys")[1].name
    shutil.rmtree(tmp_path / "ys" / name)
    shutil.copytree(tmp_path / "xs" / name, tmp_path / "ys" / name)
    refused(tmp_path / "ys", ModelMismatch, rf"shard 1 \({name}\).* another model")


def test_a_bundle_that_is_no_shard_and_one_that_was_changed_are_refused(plain: Path) -> None:
    first, second = (plain / entries(plain)[number].name for number in (0, 1))
    shutil.rmtree(first)
    shutil.copytree(plain.parent / "x.bpr", first)
    refused(plain, CorruptBundle, "shard 0 .* no shard")
    shards.shard(plain.parent / "x.bpr", plain, 4)
    second = plain / entries(plain)[1].name
    bpr.delete(second, "p130")
    refused(plain, CorruptBundle, "shard 1 .* not the one that was published")


def test_a_new_generation_leaves_the_shards_of_the_one_before_and_no_older(plain: Path) -> None:
    old = ClusterRetriever(bundle.open(plain), HereFleet)
    first = {each.name for each in entries(plain)}
    assert old.reload() is False
    bpr.add(plain.parent / "x.bpr", passages(range(500, 501)), vectors=VECTORS[:1])
    shards.shard(plain.parent / "x.bpr", plain, 3)
    second = {each.name for each in entries(plain)}
    assert {each.name for each in plain.glob("shard-*")} == first | second
    fleet = old._snapshot.fleet
    assert old.reload() is True
    assert len(old) == 501 and old.search(vectors=VECTORS[0], k=501, candidates=501)[0].id in ("p0", "p500")
    assert not fleet.closed  # what began on it may still ask
    old.close()
    assert fleet.closed
    shards.shard(plain.parent / "x.bpr", plain, 2)
    assert {each.name for each in plain.glob("shard-*")} == second | {each.name for each in entries(plain)}


def test_what_cannot_be_sharded_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    bpr.build(passages(range(3)), tmp_path / "x.bpr", vectors=VECTORS[:3])
    for count in (0, 4):
        with pytest.raises(InvalidInput, match=f"1 to 3 shards, not {count}"):
            shards.shard(tmp_path / "x.bpr", tmp_path / "s", count)
    with pytest.raises(MissingBundle):
        shards.shard(tmp_path / "none.bpr", tmp_path / "s", 1)
    bpr.delete(tmp_path / "x.bpr", ["p0", "p1", "p2"])
    with pytest.raises(EmptyBundle, match="nothing to shard"):
        shards.shard(tmp_path / "x.bpr", tmp_path / "s", 1)
    assert not (tmp_path / "s").exists()


def test_a_failure_in_the_middle_keeps_the_generation_that_is_there(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = sorted(each.name for each in plain.iterdir()), bundle.seal
    calls: list[Any] = []

    def seal(manifest: bundle.Manifest) -> str:
        calls.append(manifest)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(manifest)

    monkeypatch.setattr(bundle, "seal", seal)
    with pytest.raises(KeyboardInterrupt):
        shards.shard(plain.parent / "x.bpr", plain, 4)
    monkeypatch.undo()
    assert sorted(each.name for each in plain.iterdir()) == before
    with bundle.open(plain) as opened:
        shards.check(opened)


def test_only_one_writes_at_a_time(plain: Path) -> None:
    with bundle.create(plain), pytest.raises(BundleLocked):
        shards.shard(plain.parent / "x.bpr", plain, 2)


def test_words_are_left_out_and_hybrid_search_says_why(tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(passages(range(20)), tmp_path / "x.bpr", model=tiny_model, words=True)
    shards.shard(tmp_path / "x.bpr", tmp_path / "s", 2)
    with bpr.open(tmp_path / "x.bpr") as one, ClusterRetriever(bundle.open(tmp_path / "s"), HereFleet) as other:
        assert other.search("the house", k=7) == one.search("the house", k=7)
        with pytest.raises(InvalidInput, match="hybrid search is not there on a cluster"):
            other.search("the house", hybrid=True)


def test_cells_of_shards_are_searched(tmp_path: Path) -> None:
    bpr.build(passages(range(ROWS)), tmp_path / "x.bpr", vectors=VECTORS, kind="cells")
    shards.shard(tmp_path / "x.bpr", tmp_path / "s", 2)
    with ClusterRetriever(bundle.open(tmp_path / "s"), HereFleet) as opened, bpr.open(tmp_path / "x.bpr") as whole:
        assert opened.info["kind"] == "cells"
        one, other = (each.rank(ASKED, k=9, probes=1.0) for each in (whole, opened))
        np.testing.assert_array_equal(one.rows, other.rows)


def test_the_verb_shards_a_bundle(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    bpr.build(passages(range(ROWS)), tmp_path / "x.bpr", vectors=VECTORS)
    status, out, err = run("shard", tmp_path / "x.bpr", "--shards", 3, "-o", tmp_path / "s.bpr")
    assert status == 0 and "3 shards" in err and not out
    assert len(entries(tmp_path / "s.bpr")) == 3
    assert run("shard", tmp_path / "x.bpr", "--shards", 0, "-o", tmp_path / "s.bpr")[0] == 2
    status, _, err = run("shard", tmp_path / "x.bpr", "--shards", 501, "-o", tmp_path / "s.bpr")
    assert status == 1 and "1 to 500 shards" in err
