"""What a bundle keeps beside its codes: words for hybrid search, vectors for a third stage. Through every change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import bundle, fusion, lexical, live, vectors
from bpr.errors import CorruptBundle, InvalidInput
from bpr.kernels import Limits
from bpr.kinds import Plan

RANDOM = np.random.default_rng(9)
ROWS, DIM = 300, 32
VECTORS = RANDOM.standard_normal((ROWS + 20, DIM)).astype(np.float32)
ASKED = RANDOM.standard_normal((4, DIM)).astype(np.float32)
WORDS = ("wine", "sea", "ship", "horse", "bronze", "spear", "grief", "anger", "city", "wall")


def text(row: int) -> str:
    return " ".join(WORDS[(row * step) % 10] for step in (1, 3, 7)) + f" number{row}"


def passages(*rows: int) -> list[dict[str, Any]]:
    return [{"id": f"book-{row}", "text": text(row), "even": row % 2 == 0} for row in rows]


@pytest.fixture
def of_text(tmp_path: Path, tiny_model: Path) -> Path:
    bpr.build(passages(*range(60)), tmp_path / "t.bpr", model=tiny_model, words=True, keep_vectors="int8")
    return tmp_path / "t.bpr"


def built(path: Path, **how: Any) -> Path:
    bpr.build(passages(*range(ROWS)), path, vectors=VECTORS[:ROWS], **how)
    return path


# ── the third stage ──────────────────────────────────────────────────────────────────────────────────────────────────


def ranked(path: Path, **how: Any) -> tuple[list[list[str]], np.ndarray]:
    with bpr.open(path) as opened:
        found = opened.rank(ASKED, k=10, **how)
        return [[each.id for each in opened.passages.get(rows)] for rows in found.rows], found.scores


@pytest.mark.parametrize(("kind", "error"), [("float16", 0.02), ("int8", 0.3)])
def test_kept_vectors_score_the_last_passages(tmp_path: Path, kind: str, error: float) -> None:
    path = built(tmp_path / "x.bpr", keep_vectors=kind)
    ids, scores = ranked(path, refine=ROWS, candidates=ROWS)
    exact = ASKED @ VECTORS[:ROWS].T
    best = np.sort(exact, axis=1)[:, ::-1][:, :10]
    np.testing.assert_allclose(scores, best, atol=error)
    assert ids[0][0] == f"book-{exact[0].argmax()}"
    assert ranked(path, candidates=40)[0] == ranked(path, candidates=40, refine=40)[0]  # as many as are candidates
    with bpr.open(path) as opened, pytest.raises(InvalidInput, match="candidates must be at least k"):
        opened.rank(ASKED, k=10, candidates=5)
    plain = ranked(path, refine=0)
    assert plain[0] == ranked(built(tmp_path / "y.bpr"))[0]
    assert ranked(path)[0] == ranked(path, refine=100)[0]


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_kept_vectors_live_through_changes(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    path, whole = built(tmp_path / "x.bpr", keep_vectors=kind), tmp_path / "whole.bpr"
    bpr.add(path, passages(*range(ROWS, ROWS + 20)), vectors=VECTORS[ROWS:])
    bpr.delete(path, ["book-3", f"book-{ROWS + 2}"])
    order = [row for row in range(ROWS + 20) if row not in (3, ROWS + 2)]
    bpr.build(passages(*order), whole, vectors=VECTORS[order], keep_vectors=kind)
    for _ in range(2):
        (ids, scores), (other_ids, other_scores) = ranked(path), ranked(whole)
        assert ids == other_ids
        np.testing.assert_array_equal(scores, other_scores)
        bpr.compact(path)
    with bundle.open(path) as one, bundle.open(whole) as other:
        np.testing.assert_array_equal(one.array(vectors.VALUES), other.array(vectors.VALUES))
    live.reindex(path, Plan("cells"))
    assert ranked(path, probes=1.0)[0] == ranked(whole)[0]


def test_without_kept_vectors_there_is_no_third_stage(tmp_path: Path) -> None:
    path = built(tmp_path / "x.bpr")
    with bpr.open(path) as opened, pytest.raises(InvalidInput, match="keeps no vectors"):
        opened.rank(ASKED, refine=10)
    with pytest.raises(InvalidInput, match="int8 or float16"):
        built(tmp_path / "y.bpr", keep_vectors="float8")


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hybrid_joins_both_rankings(of_text: Path) -> None:
    question = "which number17 is it"
    with bpr.open(of_text) as opened:
        by_codes = opened.rank(opened.encoder.questions([question]), k=60)
        ((rows, _),) = opened._snapshot.contents.by_words([question], 100, None, Limits())
        assert rows.tolist() == [17]
        expected, points = fusion.reciprocal([by_codes.rows[0], rows])
        hits = opened.search(question, k=5, hybrid="reciprocal")
        assert [hit.id for hit in hits] == [f"book-{row}" for row in expected[:5]]
        assert [hit.score for hit in hits] == pytest.approx(points[:5].tolist())
        assert hits[0].id == "book-17"
        assert opened.search([question], k=60, hybrid=True)[0] != opened.search([question], k=60)[0]
        found, times = opened.search_timed(question, hybrid=True)
        assert times.words > 0
        assert len(found) == 20


def test_hybrid_obeys_filters(of_text: Path) -> None:
    with bpr.open(of_text) as opened:
        hits = opened.search("number17 number18", k=60, hybrid="reciprocal", where={"even": True})
        assert hits[0].id == "book-18"
        assert {int(hit.id.removeprefix("book-")) % 2 for hit in hits} == {0}


def test_words_live_through_changes(of_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SMALL_ROWS", 1)
    bpr.add(of_text, passages(*range(60, 70)))
    bpr.delete(of_text, ["book-17", "book-61"])
    with bpr.open(of_text) as opened:
        assert len(opened.info["segments"]) == 2
        ids = [hit.id for hit in opened.search("number65 number17 number61", k=3, hybrid="reciprocal")]
        assert ids[0] == "book-65"
        assert not {"book-17", "book-61"} & set(ids)
    bpr.compact(of_text)
    with bpr.open(of_text) as opened:
        assert opened.search("number65", k=1, hybrid="reciprocal")[0].id == "book-65"
        assert lexical.stored(opened.bundle, "")


def test_hybrid_needs_words(of_text: Path, tmp_path: Path, tiny_model: Path) -> None:
    bpr.build(passages(1, 2), tmp_path / "plain.bpr", model=tiny_model)
    with bpr.open(tmp_path / "plain.bpr") as opened, pytest.raises(InvalidInput, match="keeps no words"):
        opened.search("wine", hybrid=True)
    with bpr.open(of_text) as opened:
        with pytest.raises(InvalidInput, match="in words"):
            opened.search(vectors=np.ones(opened.info["dimensions"]), hybrid=True)
        with pytest.raises(InvalidInput, match="'weighted' or 'reciprocal'"):
            opened.search("wine", hybrid="both")


def test_words_of_other_rows(of_text: Path) -> None:
    with bundle.update(of_text) as (old, new):
        for name in old.manifest.files:
            if name not in lexical.FILES:
                new.keep(name)
        out = lexical.LexicalOut(new, "")
        out.add(0, "", "one")
        out.write(3)
        new.publish(old.info, old.manifest.features)
    with pytest.raises(CorruptBundle, match="of other rows"):
        bpr.open(of_text)


def test_a_killed_build_with_vectors_goes_on(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bpr import builder
    from bpr.encoder import Encoder

    monkeypatch.setattr(builder, "PART_ROWS", 20)
    encoder, path, whole = Encoder.open(tiny_model), tmp_path / "x.bpr", tmp_path / "whole.bpr"

    def broken() -> Any:
        yield from passages(*range(45))
        raise RuntimeError("pulled out")

    with pytest.raises(RuntimeError):
        bpr.build(broken(), path, model=encoder, keep_vectors="int8")
    calls = []
    real = encoder.passages
    monkeypatch.setattr(encoder, "passages", lambda pairs, **how: calls.append(len(pairs)) or real(pairs, **how))
    bpr.build(passages(*range(60)), path, model=encoder, keep_vectors="int8")
    assert sum(calls) == 20
    bpr.build(passages(*range(60)), whole, model=encoder, keep_vectors="int8")
    with bundle.open(path) as one, bundle.open(whole) as other:
        np.testing.assert_array_equal(one.array(vectors.VALUES), other.array(vectors.VALUES))
        np.testing.assert_array_equal(one.array(vectors.SCALES), other.array(vectors.SCALES))


# ── documents, and the command line ──────────────────────────────────────────────────────────────────────────────────


def test_hits_by_document_with_their_neighbours(of_text: Path) -> None:
    with bpr.open(of_text) as opened:
        (group,) = opened.grouped(opened.search("number17", k=5, hybrid="reciprocal"), neighbours=1)
    assert group.document == "book"
    assert [each.id for each in group.passages] == ["book-16", "book-17", "book-18"]
    assert len(group.hits) == 5


def test_the_command_line(run, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in passages(*range(40))))
    path = tmp_path / "x.bpr"
    keep = ("--words", "--keep-vectors", "float16", "--model", tiny_model, "-o", path)
    assert run("index", tmp_path / "p.jsonl", *keep)[0] == 0
    status, out, _ = run("search", path, "number17", "--hybrid", "reciprocal", "-k", "3", "--refine", "5", "--json")
    assert status == 0
    assert json.loads(out)["hits"][0]["id"] == "book-17"
    status, out, _ = run("search", path, "number17", "--hybrid", "reciprocal", "--documents", "1", "--json")
    assert status == 0
    assert json.loads(out)["documents"][0]["document"] == "book"
    status, out, _ = run("search", path, "number17", "--hybrid", "reciprocal", "--documents", "1")
    assert status == 0
    assert "book  (20 hits)" in out
    assert "number16" in out
