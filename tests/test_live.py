"""Passages are added, replaced and deleted in a bundle that is there; what is refused leaves it as it was."""

from __future__ import annotations

import json
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import bundle, live
from bpr.codes import pack
from bpr.encoder import Encoder
from bpr.errors import CorruptBundle, EmptyBundle, InvalidInput, MissingBundle, ModelMismatch
from bpr.index import ScanIndex, SegmentedIndex
from bpr.kinds import SIGNS
from bpr.segments import load_transform
from tiny_models import make_model

DIM = 32
RANDOM = np.random.default_rng(5)
VECTORS = RANDOM.standard_normal((500, DIM)).astype(np.float32)
ASKED = RANDOM.standard_normal((4, DIM)).astype(np.float32)
TEXTS = [{"id": f"t{row}", "title": f"Title {row}", "text": f"the {row} house stands on a hill"} for row in range(60)]


def passages(*rows: int, word: str = "text") -> list[dict[str, Any]]:
    return [{"id": f"p{row}", "title": f"T{row}", "text": f"{word} {row}", "page": row} for row in rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A bundle of 40 passages, one plane, from vectors."""
    bpr.build(passages(*range(40)), tmp_path / "x.bpr", vectors=VECTORS[:40])
    return tmp_path / "x.bpr"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few rows are kept apart."""
    monkeypatch.setattr(live, "SMALL_ROWS", 1)


def sizes(path: Path) -> list[int]:
    with bundle.open(path) as opened:
        return [each["rows"] for each in opened.info.get("segments", [{"rows": opened.info["rows"]}])]


def ids(path: Path) -> list[str]:
    with bpr.open(path) as opened:
        return [each.id for each in opened.passages]


def content(path: Path) -> bytes:
    return (path / "manifest.json").read_bytes()


# ── adding ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_added_is_found_and_stands_at_the_end(path: Path) -> None:
    assert bpr.add(path, passages(100, 101), vectors=VECTORS[100:102]) == 2
    assert ids(path) == [*(f"p{row}" for row in range(40)), "p100", "p101"]
    with bpr.open(path) as opened:
        assert len(opened) == 42
        assert opened.search(vectors=VECTORS[101], k=1)[0].id == "p101"
        assert opened.passages[41].meta == {"page": 101}


def test_a_small_bundle_stays_one_segment_that_every_bpr_can_read(path: Path) -> None:
    bpr.add(path, passages(100), vectors=VECTORS[:1])
    bpr.delete(path, "p100")
    bpr.add(path, passages(101), vectors=VECTORS[:1])
    with bundle.open(path) as opened:
        assert not opened.manifest.features
        assert "segments" not in opened.info
        assert isinstance(bpr.open(path).index, ScanIndex)


META = {"meta-fields.json", "meta-values.jsonl", "meta-starts.npy", "meta-rows.npy", "meta-marks.npy"}


@pytest.mark.usefixtures("small")
def test_segments_are_merged_by_size(path: Path) -> None:
    seen = []
    for row in range(100, 120):
        bpr.add(path, passages(row), vectors=VECTORS[row][None])
        seen.append(sizes(path))
    assert seen[:4] == [[40, 1], [40, 2], [40, 2, 1], [40, 4]]
    assert all(one >= 2 * other for each in seen for one, other in pairwise(each))
    assert ids(path) == [*(f"p{row}" for row in range(40)), *(f"p{row}" for row in range(100, 120))]
    bpr.add(path, passages(*range(200, 230)), vectors=VECTORS[200:230])
    assert sizes(path) == [90]
    assert set(bundle.open(path).manifest.files) == {
        "signs.npy", "passages.jsonl", "offsets.npy", "ids.npy", "mean.npy", "scales.npy", *META
    }  # fmt: skip


@pytest.mark.usefixtures("small")
def test_files_of_other_segments_are_linked_not_copied(path: Path) -> None:
    before = (path / "gen-000001" / SIGNS).stat().st_ino
    bpr.add(path, passages(100), vectors=VECTORS[:1])
    bpr.delete(path, "p1")
    assert (path / "gen-000003" / SIGNS).stat().st_ino == before
    meta = {prefix + name for name in META for prefix in ("", "s000002-")}
    assert sorted(set(bundle.open(path).manifest.files) - meta) == [
        "deleted.npy", "ids.npy", "mean.npy", "offsets.npy", "passages.jsonl", "s000002-ids.npy",
        "s000002-offsets.npy", "s000002-passages.jsonl", "s000002-signs.npy", "scales.npy", "signs.npy",
    ]  # fmt: skip
    assert [each.problem for each in bundle.verify(path)] == [None] * 22


def test_vectors_go_through_the_bundles_own_transform(tmp_path: Path) -> None:
    path = tmp_path / "x.bpr"
    bpr.build(passages(*range(300)), path, vectors=VECTORS[:300], planes=2, center=True, rotate=True, bits=64)
    np.save(tmp_path / "more.npy", VECTORS[300:].astype(np.float16))
    bpr.add(path, passages(*range(300, 500)), vectors=tmp_path / "more.npy")
    with bpr.open(path) as opened:
        transform = load_transform(opened.bundle)
        x = transform.passages(np.concatenate([VECTORS[:300], VECTORS[300:].astype(np.float16)]))
        np.testing.assert_array_equal(opened.index.planes.signs, pack(x))


def test_a_generator_and_a_file_can_be_added(path: Path, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(each) + "\n" for each in passages(50, 51)))
    assert bpr.add(path, (each for each in passages(48, 49)), vectors=VECTORS[48:50]) == 2
    assert bpr.add(str(path), str(tmp_path / "more.jsonl"), vectors=VECTORS[50:52]) == 2
    assert ids(path)[-4:] == ["p48", "p49", "p50", "p51"]


def test_progress_is_told(path: Path) -> None:
    told: list[str] = []
    bpr.add(path, passages(50), vectors=VECTORS[:1], progress=lambda what, done, total: told.append(what))
    assert list(dict.fromkeys(told)) == ["reading passages", "merging", "publishing"]
    told.clear()
    bpr.delete(path, "p50")
    bpr.compact(path, progress=lambda what, done, total: told.append((what, done, total)))
    assert told == [("merging", 40, 40), ("publishing", 0, None)]


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_is_encoded_with_the_bundles_own_model(tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(TEXTS, tmp_path / "all.bpr", model=tiny_model)
    path = tmp_path / "x.bpr"
    bpr.build(TEXTS[:50], path, model=tiny_model)
    assert bpr.add(path, TEXTS[50:]) == 10  # the model is found where it was
    assert not (tmp_path / "x.bpr.parts").exists()
    with bundle.open(path) as ours, bundle.open(tmp_path / "all.bpr") as theirs:
        assert ours.manifest.files == theirs.manifest.files
        assert ours.info == theirs.info
    with bpr.open(path) as opened:
        assert opened.search("a hill", k=3) == bpr.open(tmp_path / "all.bpr").search("a hill", k=3)


def test_another_model_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(TEXTS[:5], tmp_path / "x.bpr", model=tiny_model)
    make_model(tmp_path / "other", seed=9)
    before = content(tmp_path / "x.bpr")
    with pytest.raises(ModelMismatch, match="is another one"):
        bpr.add(tmp_path / "x.bpr", TEXTS[5:6], model=tmp_path / "other")
    assert content(tmp_path / "x.bpr") == before
    shutil.copytree(tiny_model, tmp_path / "moved")
    assert bpr.add(tmp_path / "x.bpr", TEXTS[5:6], model=Encoder.open(tmp_path / "moved")) == 1


def test_a_killed_add_goes_on_where_it_was(tmp_path: Path, tiny_model: Path, monkeypatch) -> None:
    monkeypatch.setattr("bpr.builder.PART_ROWS", 4)
    path = tmp_path / "x.bpr"
    bpr.build(TEXTS[:5], path, model=tiny_model)

    class Killed(BaseException):
        pass

    def kill(what: str, done: int, total: int | None) -> None:
        if what == "encoding passages" and done == 8:
            raise Killed

    with pytest.raises(Killed):
        bpr.add(path, TEXTS[5:20], progress=kill)
    assert len(list((tmp_path / "x.bpr.parts").iterdir())) == 2
    assert len(ids(path)) == 5

    class Watched:
        """An encoder that counts."""

        def __init__(self) -> None:
            self.encoder, self.count = Encoder.open(tiny_model), 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.encoder, name)

        def passages(self, pairs: Any, **how: Any) -> Any:
            self.count += len(pairs)
            return self.encoder.passages(pairs, **how)

    watched = Watched()
    assert bpr.add(path, TEXTS[5:20], model=watched) == 15
    assert watched.count == 7
    assert not (tmp_path / "x.bpr.parts").exists()


# ── replacing ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rows", [1, 1024], ids=["apart", "merged"])
def test_upsert_replaces_and_adds(path: Path, monkeypatch, rows: int) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", rows)
    new = passages(3, 7, 100, word="new")
    assert bpr.add(path, new, vectors=VECTORS[[103, 107, 100]], upsert=True) == 3
    with bpr.open(path) as opened:
        assert len(opened) == 41
        assert [each.id for each in opened.passages] == [
            *(f"p{row}" for row in range(40) if row not in (3, 7)), "p3", "p7", "p100",
        ]  # fmt: skip
        assert opened.passages[opened.passages.row("p7")].text == "new 7"
        assert opened.search(vectors=VECTORS[103], k=1)[0].text == "new 3"
    assert bpr.add(path, passages(3, word="newer"), vectors=VECTORS[:1], upsert=True) == 1
    assert bpr.open(path).passages[40].text == "newer 3"


def test_everything_can_be_replaced(path: Path) -> None:
    bpr.add(path, passages(*range(40), word="new"), vectors=VECTORS[:40], upsert=True)
    assert sizes(path) == [40]
    assert all(each.text.startswith("new") for each in bpr.open(path).passages)


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_deleted_is_not_found(path: Path) -> None:
    nearest = bpr.open(path).search(vectors=VECTORS[5], k=1)[0].id
    assert bpr.delete(path, [nearest, nearest, "p7"]) == 2
    with bpr.open(path) as opened:
        assert len(opened) == 38
        assert nearest not in opened.passages
        assert nearest not in [hit.id for hit in opened.search(vectors=VECTORS[5], k=40)]
        assert [opened.passages.row(each.id) for each in opened.passages] == list(range(38))
        assert opened.passages.get([37, 0])[0].id == "p39"
        assert "38 rows" in repr(opened.index)
        with pytest.raises(InvalidInput, match="the rows are 0 to 37"):
            opened.passages.get([38])
        with pytest.raises(InvalidInput, match=r"a mask must be bool\[38\]"):
            opened.rank(ASKED, mask=np.ones(40, bool))


def test_an_id_can_be_a_string_or_a_number(tmp_path: Path) -> None:
    bpr.build([{"id": row, "text": "x"} for row in range(3)], tmp_path / "x.bpr", vectors=VECTORS[:3])
    assert bpr.delete(tmp_path / "x.bpr", "0") == 1
    assert bpr.delete(tmp_path / "x.bpr", [1]) == 1
    assert ids(tmp_path / "x.bpr") == ["2"]
    assert bpr.delete(tmp_path / "x.bpr", []) == 0


def test_an_emptied_bundle_can_be_filled_again(path: Path) -> None:
    assert bpr.delete(path, [f"p{row}" for row in range(40)]) == 40
    with pytest.raises(EmptyBundle, match="holds no passages: add some"):
        bpr.open(path)
    assert {each.problem for each in bundle.verify(path)} == {None}
    with pytest.raises(InvalidInput, match="no passage with the id 'p1'"):
        bpr.delete(path, ["p1"])
    assert bpr.compact(path) == 0
    assert bpr.add(path, passages(3), vectors=VECTORS[:1]) == 1
    assert ids(path) == ["p3"]


@pytest.mark.usefixtures("small")
def test_an_id_that_was_deleted_can_come_back(path: Path) -> None:
    for word in ("once", "twice"):
        bpr.delete(path, "p3")
        bpr.add(path, passages(3, word=word), vectors=VECTORS[:1])
        assert bpr.open(path).passages[39].text == f"{word} 3"
    bpr.delete(path, "p3")
    assert "p3" not in bpr.open(path).passages


# ── merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("small")
def test_compacting_makes_the_bundle_that_would_be_built_at_once(path: Path, tmp_path: Path) -> None:
    bpr.add(path, passages(100, 101), vectors=VECTORS[100:102])
    bpr.delete(path, ["p0", "p101"])
    assert isinstance(bpr.open(path).index, SegmentedIndex)
    assert bpr.compact(path) == 40
    bpr.build(passages(*range(1, 40), 100), tmp_path / "once.bpr", vectors=VECTORS[[*range(1, 40), 100]])
    with bundle.open(path) as ours, bundle.open(tmp_path / "once.bpr") as theirs:
        assert ours.manifest.files == theirs.manifest.files
        assert (ours.info, ours.manifest.features) == (theirs.info, frozenset())
    before = content(path)
    assert bpr.compact(path) == 40
    assert content(path) == before  # nothing to do


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: bpr.delete(p, ["p1", "x"]), "has no passage with the id 'x'; nothing is deleted"),
        (lambda p: bpr.delete(p, ["\ud800"]), "has no passage with the id"),
        (
            lambda p: bpr.delete(p, [f"x{row}" for row in range(9)]),
            "'x0', 'x1', 'x2', 'x3', 'x4', … \\(9 in all\\)",
        ),
        (
            lambda p: bpr.add(p, passages(100, 3, 4), vectors=VECTORS[:3]),
            "has a passage with the id 'p3', 'p4' already; nothing is added .*--upsert",
        ),
        (
            lambda p: bpr.add(p, passages(100, 101, 100), vectors=VECTORS[:3]),
            "passages 1 and 3 of the input: the id 'p100' stands twice",
        ),
        (
            lambda p: bpr.add(p, passages(3, 3), vectors=VECTORS[:2], upsert=True),
            "passages 1 and 2 of the input: the id 'p3' stands twice",
        ),
        (
            lambda p: bpr.add(p, passages(100), vectors=np.ones((1, 64))),
            "x.bpr: vectors have 64 dimensions, and those of the passages had 32",
        ),
        (lambda p: bpr.add(p, passages(100), vectors=VECTORS[:2]), "1 passages but 2 vectors"),
        (lambda p: bpr.add(p, passages(100, 101), vectors=VECTORS[:1]), "2 passages but 1 vectors"),
        (lambda p: bpr.add(p, passages(100), vectors=np.full((1, DIM), np.nan)), "vector 0 contains NaN"),
        (lambda p: bpr.add(p, passages(100)), "built from vectors of yours and cannot read text"),
        (lambda p: bpr.add(p, [], vectors=VECTORS[:0]), "holds no passages"),
        (lambda p: bpr.add(p, [{"id": "x"}], vectors=VECTORS[:1]), '"text" is missing'),
    ],
)
def test_what_is_refused_changes_nothing(path: Path, change: Any, message: str) -> None:
    before = content(path)
    with pytest.raises(InvalidInput, match=message):
        change(path)
    assert content(path) == before
    assert sorted(each.name for each in path.iterdir()) == ["gen-000001", "lock", "manifest.json"]
    assert len(ids(path)) == 40


def test_twins_in_a_file_are_named_by_their_lines(path: Path, tmp_path: Path) -> None:
    source = tmp_path / "more.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in passages(50, 51, 50)))
    with pytest.raises(InvalidInput, match=r"more\.jsonl, lines 1 and 3: the id 'p50' stands twice"):
        bpr.add(path, source, vectors=VECTORS[:3])


def test_a_bundle_with_a_model_takes_no_vectors(tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(TEXTS[:5], tmp_path / "x.bpr", model=tiny_model)
    with pytest.raises(InvalidInput, match="encodes text itself: leave the vectors out"):
        bpr.add(tmp_path / "x.bpr", passages(1), vectors=np.ones((1, 64)))


@pytest.mark.parametrize(
    "change", [lambda p: bpr.add(p, passages(1), vectors=VECTORS[:1]), lambda p: bpr.delete(p, "x"), bpr.compact]
)
def test_there_must_be_a_bundle(tmp_path: Path, change: Any) -> None:
    with pytest.raises(MissingBundle):
        change(tmp_path / "x.bpr")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.bpr").mkdir()
    with pytest.raises(MissingBundle):
        change(tmp_path / "x.bpr")
    assert list((tmp_path / "x.bpr").iterdir()) == []


def test_damage_is_found_when_it_is_read_and_not_carried_on(path: Path) -> None:
    signs = path / "gen-000001" / SIGNS
    raw = bytearray(signs.read_bytes())
    raw[-1] ^= 1
    signs.write_bytes(raw)
    with pytest.raises(CorruptBundle, match=r"signs\.npy has changed"):
        bpr.add(path, passages(100), vectors=VECTORS[:1])  # merges, so it reads them


# ── a running retriever ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("small")
def test_reload_sees_what_was_changed(path: Path) -> None:
    with bpr.open(path) as opened:
        assert not opened.reload()
        signs = opened.bundle.view(SIGNS)
        opened.candidates = 30
        bpr.add(path, passages(100), vectors=VECTORS[100:101])
        assert len(opened) == 40
        assert opened.reload()
        assert (len(opened), opened.candidates) == (41, 30)
        assert opened.bundle.view(SIGNS) is signs  # nothing is verified again
        assert opened.search(vectors=VECTORS[100], k=1)[0].id == "p100"
        bpr.delete(path, "p0")
        assert opened.reload()
        assert len(opened) == 40
        bpr.compact(path)
        assert opened.reload()
        assert isinstance(opened.index, ScanIndex)


def test_reload_to_an_empty_or_a_foreign_bundle_keeps_the_old(path: Path, tiny_model: Path) -> None:
    with bpr.open(path) as opened:
        bpr.delete(path, [f"p{row}" for row in range(40)])
        with pytest.raises(EmptyBundle):
            opened.reload()
        assert len(opened.search(vectors=ASKED[0], k=3)) == 3
        bpr.build(TEXTS, path, model=tiny_model)
        with pytest.raises(ModelMismatch, match="open it anew"):
            opened.reload()
        assert len(opened) == 40
        bpr.build(passages(*range(7)), path, vectors=VECTORS[:7, :16])
        assert opened.reload()  # of other vectors: whoever asks knows of which
        assert (len(opened), opened.info["bits"]) == (7, 16)
    with pytest.raises(InvalidInput, match="is closed"):
        opened.reload()


def test_searches_run_while_others_reload(path: Path) -> None:
    """Every answer is of one generation: a passage's text tells which, and its score must be of the same."""
    words = ["text", "even", "odd"]
    opened, wrong, stop = bpr.open(path), [], threading.Event()

    def search() -> None:
        while not stop.is_set():
            hits = opened.search(vectors=ASKED[0], k=40)
            if len({hit.text.split()[0] for hit in hits}) != 1:
                wrong.append(hits)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        word = words[1 + turn % 2]
        bpr.add(path, passages(*range(40), word=word), vectors=VECTORS[:40], upsert=True)
        assert opened.reload()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
