"""Opened bundles find passages, by the two stages and with their texts."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr import bundle, live
from bpr.codes import LEVELS, pack, pack_magnitudes
from bpr.encoder import Encoder
from bpr.errors import (
    Cancelled,
    CorruptBundle,
    DeadlineExceeded,
    EmptyBundle,
    InvalidInput,
    MissingBundle,
    ModelMismatch,
)
from bpr.kernels import Cancel
from bpr.kinds import MAGNITUDES, SIGNS
from bpr.transform import Transform
from tiny_models import make_model

ROWS, DIM = 6000, 64
RANDOM = np.random.default_rng(1)
VECTORS = RANDOM.standard_normal((ROWS, DIM), np.float32) + 0.2
ASKED = RANDOM.standard_normal((7, DIM), np.float32)
BLOCK = bundle.BLOCK_BYTES // (DIM // 8)  # rows in a block of a plane


def passages(rows: int = ROWS, word: str = "text") -> list[dict]:
    return [{"id": f"p{row}", "title": f"T{row}", "text": f"{word} {row}", "page": row} for row in range(rows)]


@pytest.fixture(scope="module")
def one_plane(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "a.bpr"
    bpr.build(passages(), path, vectors=VECTORS)
    return path


@pytest.fixture
def two_planes(tmp_path: Path) -> Path:
    path = tmp_path / "two.bpr"
    bpr.build(passages(), path, vectors=VECTORS, planes=2, center=True, rotate=True)
    return path


def assert_same(found: bpr.Hits, expected: bpr.Hits) -> None:
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)


# ── searching ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hits_are_passages_with_score_and_rank(one_plane: Path) -> None:
    expected = bpr.search(bpr.ScanIndex(pack(VECTORS)), ASKED, 5, 1000)
    with bpr.open(one_plane) as retriever:
        found = retriever.search(vectors=ASKED, k=5)
    for hits, rows, scores in zip(found, expected.rows.tolist(), expected.scores.tolist(), strict=True):
        assert hits == [
            bpr.Hit(f"p{row}", f"T{row}", f"text {row}", score, rank, {"page": row})
            for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1)
        ]
        assert all(type(hit.score) is float for hit in hits)


def test_one_question_or_several(one_plane: Path) -> None:
    retriever = bpr.open(one_plane)
    several = retriever.search(vectors=ASKED)
    assert [len(hits) for hits in several] == [20] * 7
    assert retriever.search(vectors=ASKED[2]) == several[2]
    assert retriever.search(vectors=ASKED[2].tolist()) == several[2]
    assert retriever.search(vectors=ASKED[2:3]) == [several[2]]
    assert retriever.search(vectors=ASKED[:0]) == []
    assert retriever.search(vectors=ASKED.astype(np.float64)) == several


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize(("center", "rotate", "bits"), [(False, False, None), (True, True, None), (True, True, 128)])
def test_a_bundle_ranks_as_the_same_codes_in_memory(tmp_path: Path, planes, center, rotate, bits) -> None:
    vectors = VECTORS[:500].astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    how = {"center": center, "rotate": rotate, "bits": bits}
    bpr.build(passages(500), tmp_path / "a.bpr", vectors=tmp_path / "v.npy", planes=planes, **how)
    plain = planes == 1 and not center
    transform = Transform.identity(DIM) if plain else Transform.fit(vectors, **how)
    x, asked = transform.passages(vectors), transform.questions(ASKED)
    index = bpr.ScanIndex(pack(x), *((pack_magnitudes(x), LEVELS) if planes == 2 else ()))
    retriever = bpr.open(tmp_path / "a.bpr", verify="all")
    assert_same(retriever.rank(ASKED), bpr.search(index, asked, 20, 1000 * planes))
    assert_same(retriever.rank(ASKED, k=7, candidates=50), bpr.search(index, asked, 7, 50))
    assert_same(retriever.rank(ASKED, k=7, candidates="all"), bpr.search(index, asked, 7, None))
    assert_same(retriever.rank(ASKED, k=7, rerank=False), bpr.search(index, asked, 7, 1000, rerank=False))


def test_how_many_candidates_by_default(one_plane: Path, two_planes: Path) -> None:
    for path, default in ((one_plane, 1000), (two_planes, 2000)):
        retriever = bpr.open(path)
        assert retriever.candidates == default
        assert_same(retriever.rank(ASKED), retriever.rank(ASKED, candidates=default))
        assert retriever.rank(ASKED, k=3000).rows.shape == (7, 3000)  # the default grows with k
        with pytest.raises(InvalidInput, match="10 candidates cannot give 20 hits"):
            retriever.rank(ASKED, candidates=10)
        retriever.candidates = 40
        assert_same(retriever.rank(ASKED), retriever.rank(ASKED, candidates=40))


def test_masks_and_limits_are_passed_on(one_plane: Path) -> None:
    retriever = bpr.open(one_plane)
    mask = np.arange(ROWS) % 7 == 0
    assert (retriever.rank(ASKED, mask=mask).rows % 7 == 0).all()
    assert all(hit.meta["page"] % 7 == 0 for hit in retriever.search(vectors=ASKED[0], mask=mask))
    assert_same(retriever.rank(ASKED, threads=1), retriever.rank(ASKED, threads=3))
    with pytest.raises(DeadlineExceeded):
        retriever.search(vectors=ASKED, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        retriever.search(vectors=ASKED, cancel=cancel)


def test_threads_share_a_retriever(two_planes: Path) -> None:
    shared = bpr.Retriever(bundle.open(two_planes, verify_limit=0))
    expected = bpr.open(two_planes).search(vectors=ASKED)
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(shared.search(vectors=ASKED))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


def test_a_search_takes_text_or_vectors(one_plane: Path, tiny_model: Path) -> None:
    retriever = bpr.open(one_plane)
    for arguments in ({}, {"question": "text", "vectors": ASKED}):
        with pytest.raises(InvalidInput, match="takes either text"):
            retriever.search(**arguments)
    with pytest.raises(InvalidInput, match="built from vectors of yours and cannot read text: pass vectors"):
        retriever.search("who wrote the Iliad?")
    with pytest.raises(InvalidInput, match="built from vectors of yours"):
        bpr.open(one_plane, model=tiny_model)


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        (ASKED[:, :56], "have 56 dimensions, and those of the passages had 64"),
        (ASKED[None], "two axes"),
        (np.float32(3), "two axes"),
        ("text", "two axes"),
        (np.ones((2, 64), int), "floats"),
        (np.full((2, 64), np.nan), "vector 0 contains NaN"),
        (np.full(64, np.inf), "vector 0 contains NaN or infinity"),
        (np.full(64, 1e300), "vector 0 contains NaN or infinity"),
        (np.full(64, 3e38, np.float32), "astronomically large"),
        ([[1.0] * 64, [1.0]], "not an array"),
    ],
)
def test_vectors_that_do_not_fit(one_plane: Path, vectors, says: str) -> None:
    retriever = bpr.open(one_plane)
    with pytest.raises(InvalidInput, match=says):
        retriever.search(vectors=vectors)


# ── searching with text ──────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = [
    "homer wrote the iliad",
    "paris is the capital of france",
    "the moon and the sun",
    "a steam engine and a train",
    "snow and rain in the mountain",
]


@pytest.fixture(scope="module")
def of_text(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "t.bpr"
    bpr.build([{"id": str(row), "text": text} for row, text in enumerate(TEXTS)], path, model=tiny_model)
    return path


def test_text_is_encoded_with_the_bundles_model(of_text: Path, tiny_model: Path) -> None:
    retriever = bpr.open(of_text)
    vectors = Encoder.open(tiny_model).questions(TEXTS)
    expected = retriever.search(vectors=vectors, k=3)
    assert retriever.search(TEXTS, k=3) == expected
    assert retriever.search(TEXTS[2], k=3) == expected[2]
    assert retriever.search(tuple(TEXTS[:2]), k=3, threads=1) == expected[:2]
    assert retriever.search([]) == []
    assert isinstance(expected[0][0], bpr.Hit)


def test_a_model_may_be_named_or_given(of_text: Path, tiny_model: Path) -> None:
    expected = bpr.open(of_text).search(TEXTS)
    for model in (tiny_model, str(tiny_model), Encoder.open(tiny_model)):
        assert bpr.open(of_text, model=model).search(TEXTS) == expected


def test_another_model_is_refused(of_text: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "other", seed=5)
    with pytest.raises(
        ModelMismatch, match=r"built with the model 'tiny' \(\w{12}…\), and 'tiny' \(\w{12}…\) is another"
    ):
        bpr.open(of_text, model=tmp_path / "other")


def test_a_model_that_is_nowhere(of_text: Path, tiny_model: Path, tmp_path: Path) -> None:
    alone = tmp_path / "deep" / "er" / "t.bpr"
    shutil.copytree(of_text, alone)
    retriever = bpr.open(alone)
    with pytest.raises(
        ModelMismatch, match=r"not in .*tiny and not in bpr itself: say where it is \(model=…, --model DIR\)"
    ):
        retriever.search("homer")
    retriever.use(tiny_model)
    assert len(retriever.search("homer")) == len(TEXTS)


def test_the_model_that_ships_is_found(
    of_text: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "deep" / "er" / "t.bpr"
    shutil.copytree(of_text, alone)
    monkeypatch.setattr("bpr.model.MINI", tiny_model)
    assert len(bpr.open(alone).search("homer")) == len(TEXTS)


def test_a_bundle_and_its_model_move_together(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "here" / "model")
    bpr.build([{"id": "a", "text": "homer"}], tmp_path / "here" / "a.bpr", model=tmp_path / "here" / "model")
    (tmp_path / "here").rename(tmp_path / "there")
    assert bpr.open(tmp_path / "there" / "a.bpr").search("homer")[0].id == "a"


def test_limits_reach_the_encoder(of_text: Path) -> None:
    retriever = bpr.open(of_text)
    with pytest.raises(DeadlineExceeded, match="encoding"):
        retriever.search(TEXTS, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled, match="encoding"):
        retriever.search(TEXTS, cancel=cancel)


@pytest.mark.parametrize("asked", ["", "😀", "\x00", "word " * 5000])
def test_odd_questions_get_hits(of_text: Path, asked: str) -> None:
    assert len(bpr.open(of_text).search(asked, k=2)) == 2


@pytest.mark.parametrize("asked", [3, [3], b"bytes", "half \ud800"])
def test_what_is_no_question_is_refused(of_text: Path, asked) -> None:
    with pytest.raises(InvalidInput, match=r"string|list|surrogate"):
        bpr.open(of_text).search(asked)


def test_a_timed_search_gives_the_same_hits_and_its_times(of_text: Path) -> None:
    retriever = bpr.open(of_text)
    hits, times = retriever.search_timed(TEXTS, k=3)
    assert hits == retriever.search(TEXTS, k=3)
    assert times._fields == ("encode", "candidates", "rerank", "texts", "words")
    assert all(each > 0 for each in times[:4])
    assert times.words == 0
    assert retriever.search_covered(TEXTS, k=3)[::2] == (hits, 1.0)
    one, times = retriever.search_timed(vectors=np.ones(64, np.float32), candidates="all")
    assert len(one) == len(TEXTS)
    assert times.candidates == 0 < times.rerank


# ── opening, closing, replacing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_retriever_says_what_it_holds(one_plane: Path) -> None:
    with bpr.open(str(one_plane), verify="size") as retriever:
        assert len(retriever) == len(retriever.index) == len(retriever.passages) == ROWS
        assert retriever.info["bits"] == DIM
        assert retriever.passages[17] == bpr.Passage("p17", "T17", "text 17", {"page": 17})
        assert retriever.passages.row("p17") == 17
        assert retriever.questions(ASKED).codes.tolist() == pack(ASKED).tolist()
    with pytest.raises(InvalidInput, match="is closed"):
        retriever.bundle.view(SIGNS)


def test_opening_what_is_not_there(tmp_path: Path, one_plane: Path) -> None:
    with pytest.raises(MissingBundle):
        bpr.open(tmp_path / "nothing.bpr")
    with pytest.raises(InvalidInput, match="verify must be"):
        bpr.open(one_plane, verify="some")  # type: ignore[arg-type]


def test_an_empty_bundle_says_so(tmp_path: Path) -> None:
    with bundle.create(tmp_path / "a.bpr") as new:
        new.publish({"kind": "scan", "rows": 0})
    with pytest.raises(EmptyBundle, match=r"a\.bpr holds no passages"):
        bpr.open(tmp_path / "a.bpr")


def test_a_bundle_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with bundle.create(tmp_path / "a.bpr") as new:
        new.publish({"kind": "garden", "rows": 1})
    with pytest.raises(bpr.UnsupportedFormat, match="kind 'garden'"):
        bpr.open(tmp_path / "a.bpr")


def test_a_replaced_bundle_leaves_the_old_retriever_on_its_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "a.bpr"
    bpr.build(passages(300), path, vectors=VECTORS[:300], planes=2)
    old = bpr.open(path)
    lazy = bpr.Retriever(bundle.open(path, verify_limit=0))  # has verified and read next to nothing yet
    before = old.search(vectors=ASKED)
    for word in ("second", "third"):
        bpr.build(passages(200, word), path, vectors=-VECTORS[:200], planes=2)
    assert old.search(vectors=ASKED) == before
    assert lazy.search(vectors=ASKED) == before
    new = bpr.open(path)
    assert len(new) == 200
    assert all(hit.text.startswith("third") for hit in new.search(vectors=ASKED[0], k=200))


# ── what is damaged is not served ────────────────────────────────────────────────────────────────────────────────────


def flip_last_byte(path: Path, name: str) -> None:
    (file,) = path.glob(f"gen-*/{name}")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_damaged_block_is_found_when_it_is_touched_and_never_served(two_planes: Path) -> None:
    expected = bpr.open(two_planes).rank(ASKED, mask=np.arange(ROWS) < BLOCK // 2)
    flip_last_byte(two_planes, MAGNITUDES)
    for verify in ("auto", "all"):  # a small bundle is verified as a whole
        with pytest.raises(CorruptBundle, match=MAGNITUDES):
            bpr.open(two_planes, verify=verify)
    lazy = bpr.Retriever(bundle.open(two_planes, verify_limit=0))
    first, last = np.arange(ROWS) < BLOCK // 2, np.arange(ROWS) >= ROWS - 30
    assert_same(lazy.rank(ASKED, mask=first), expected)
    assert lazy.rank(ASKED, mask=last, rerank=False).rows.shape == (7, 20)  # signs are whole
    for _ in range(2):  # and again: it does not become good by being asked for
        with pytest.raises(CorruptBundle, match=MAGNITUDES):
            lazy.rank(ASKED, mask=last)
        with pytest.raises(CorruptBundle, match=MAGNITUDES):
            lazy.rank(ASKED, candidates="all")
    assert_same(lazy.rank(ASKED, mask=first), expected)


@pytest.mark.parametrize("name", [SIGNS, "mean.npy", "rotation.npy", "scales.npy"])
def test_what_every_search_reads_is_verified_at_once(two_planes: Path, name: str) -> None:
    flip_last_byte(two_planes, name)
    with pytest.raises(CorruptBundle, match=name):
        bpr.Retriever(bundle.open(two_planes, verify_limit=0))


def test_damaged_texts_are_not_served(two_planes: Path) -> None:
    flip_last_byte(two_planes, "passages.jsonl")
    lazy = bpr.Retriever(bundle.open(two_planes, verify_limit=0))
    last = np.arange(ROWS) == ROWS - 1
    assert lazy.rank(ASKED, mask=last).rows.tolist() == [[ROWS - 1]] * 7
    with pytest.raises(CorruptBundle, match=r"passages\.jsonl"):
        lazy.search(vectors=ASKED, mask=last)


# ── Filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_filter_gives_what_is_left_of_the_whole_ranking(one_plane: Path) -> None:
    where = {"page": {">=": 100, "<": 900}, "not": {"page": {"in": [200, 300]}}}
    left = [row for row in range(100, 900) if row not in (200, 300)]
    with bpr.open(one_plane) as opened:
        whole = opened.rank(ASKED, k=ROWS, candidates=ROWS)
        found = opened.rank(ASKED, k=len(left) + 5, candidates=ROWS, where=where)
        for rows, expected in zip(found.rows, whole.rows, strict=True):
            assert rows.tolist() == [row for row in expected.tolist() if row in left]
        assert {
            hit.meta["page"] for hit in opened.search(vectors=ASKED[0], k=3, where={"page": {"in": [5, 6, 9]}})
        } == {
            5,
            6,
            9,
        }


def test_a_filter_and_a_mask_must_both_let_a_row_through(one_plane: Path) -> None:
    even = np.arange(ROWS) % 2 == 0
    with bpr.open(one_plane) as opened:
        rows = opened.rank(ASKED[:1], k=20, where={"page": {"<": 10}}, mask=even).rows
    assert sorted(rows[0].tolist()) == [0, 2, 4, 6, 8]


def test_a_filter_is_evaluated_once(one_plane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    with bpr.open(one_plane) as opened:
        real = opened._snapshot.contents.fulfilling
        monkeypatch.setattr(opened._snapshot.contents, "fulfilling", lambda *each: asked.append(each) or real(*each))
        for low in (*range(40), 39, 39):
            assert opened.rank(ASKED[:1], k=1, where={"page": {">=": low, "<=": low}}).rows.tolist() == [[low]]
    assert len(asked) == 40
    assert len(opened._snapshot.found) == 32


def test_all_passages_that_fulfil_a_filter_come_in_the_order_of_the_bundle(one_plane: Path) -> None:
    with bpr.open(one_plane) as opened:
        assert [each.meta["page"] for each in opened.filtered({"page": {"in": [900, 3, 40]}})] == [3, 40, 900]
        assert len(list(opened.filtered())) == len(list(opened.filtered({}))) == ROWS
        with pytest.raises(InvalidInput, match="there is no field 'pages'"):
            opened.filtered({"pages": 3})


def test_filtered_passages_and_fields_are_those_of_every_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    path, vectors = tmp_path / "x.bpr", np.ones((4, 8), np.float32)
    bpr.build([{"id": str(row), "text": "", "a": row} for row in range(4)], path, vectors=vectors)
    bpr.delete(path, ["1"])
    bpr.add(path, [{"id": "9", "text": "", "a": "nine", "b": {"c.d": None}}], vectors=vectors[:1])
    with bpr.open(path) as opened:
        assert [each.id for each in opened.filtered({"a": {"<": 3}})] == ["0", "2"]
        assert [each.id for each in opened.filtered({"a": {"!=": 0}})] == ["2", "3", "9"]
        assert opened.fields() == {"a": {"numbers", "strings"}, "b": {"objects"}, "b.c\\.d": {"null"}}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"pages": 3}, "there is no field 'pages'; the fields are 'page'"),
        ({"page": "three"}, "'page' holds numbers"),
        ({"page": {"~": 3}}, "~"),
        ([1], "filter"),
    ],
)
def test_a_filter_that_makes_no_sense(one_plane: Path, where: object, words: str) -> None:
    with bpr.open(one_plane) as opened, pytest.raises(InvalidInput, match=words):
        opened.rank(ASKED[:1], where=where)
