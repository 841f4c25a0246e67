"""Kept vectors: what comes back, what it scores, and that damage is never believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpr import bundle, vectors
from bpr.errors import CorruptBundle, InvalidInput
from bpr.vectors import SCALES, VALUES, Kind, Vectors, quantized, rerank, stored, writing

both_kinds = pytest.mark.parametrize("kind", ["int8", "float16"])


def write(path: Path, kind: Kind, *segments: np.ndarray) -> list[Vectors]:
    with bundle.create(path) as new:
        for number, block in enumerate(segments):
            with writing(new, block.shape[1], kind, f"s{number}-") as out:
                for start in range(0, len(block), 7):
                    out.add(block[start : start + 7])
                assert out.rows == len(block)
        new.publish({})
    with bundle.open(path) as opened:
        assert stored(opened, "s0-") and not stored(opened)
        return [Vectors(opened, f"s{number}-") for number in range(len(segments))]


def random(rows: int, dimensions: int = 24, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, dimensions)).astype(np.float32)


@both_kinds
def test_round_trip(tmp_path: Path, kind: Kind) -> None:
    given = random(50) * np.geomspace(1e-3, 1e3, 50, dtype=np.float32)[:, None]
    [kept] = write(tmp_path / "b", kind, given)
    assert (len(kept), kept.dimensions, kept.kind) == (50, 24, kind)
    rows = np.array([3, 49, 0, 3])
    found = kept.get(rows)
    assert found.dtype == np.float32 and found.shape == (4, 24)
    bound = (
        np.abs(given[rows]).max(axis=1, keepdims=True) / 254
        if kind == "int8"
        else np.abs(given[rows]) * 2**-11 + 2**-25
    )
    assert (np.abs(found - given[rows]) <= bound * (1 + 1e-5)).all()
    assert kept.get([]).shape == (0, 24)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_int8_is_off_by_half_a_step(dtype: Any) -> None:
    given = random(100, 40).astype(dtype)
    numbers, scales = quantized(given)
    assert numbers.dtype == np.int8 and scales.dtype == np.float32
    assert np.abs(numbers.astype(int)).max(axis=1).tolist() == [127] * 100
    wide = given.astype(np.float64)
    off = np.abs(numbers * scales[:, None].astype(np.float64) - wide)
    assert (off <= scales[:, None] * (0.5 + 1e-4)).all()


def test_rows_of_zeros_and_of_next_to_nothing() -> None:
    numbers, scales = quantized(np.array([[0, 0], [1e-320, -1e-320], [3e38, -3e38]]))
    assert scales[:2].tolist() == [0, 0] and numbers[:2].tolist() == [[0, 0], [0, 0]]
    assert numbers[2].tolist() == [127, -127]
    with pytest.raises(InvalidInput, match="beyond float32"):
        quantized(np.array([[1e300]]))


@both_kinds
def test_scores_are_inner_products_of_what_is_kept(tmp_path: Path, kind: Kind) -> None:
    [kept] = write(tmp_path / "b", kind, random(60))
    questions, rows = random(3, seed=1), np.random.default_rng(2).integers(0, 60, (3, 11))
    scores = kept.score(rows, questions)
    assert scores.dtype == np.float32 and scores.shape == (3, 11)
    values = np.asarray(kept.get(np.arange(60)), np.float64)
    np.testing.assert_allclose(scores, np.einsum("qmd,qd->qm", values[rows], questions), rtol=1e-5, atol=1e-5)
    for number in range(3):  # alone as in company
        assert kept.score(rows[number, :1, None].T, questions[number, None])[0, 0] == scores[number, 0]
    assert kept.score(np.empty((2, 0), int), questions[:2]).shape == (2, 0)


@both_kinds
def test_rerank_over_segments(tmp_path: Path, kind: Kind) -> None:
    given = random(60)
    given[30] = given[10]  # a tie
    questions = random(4, seed=1)
    rows = np.argsort(np.random.default_rng(2).random((4, 60)), axis=1)[:, :20]
    rows[0, :2] = 30, 10
    rows[0, 2:] = np.setdiff1d(np.arange(60), [10, 30])[:18]
    questions[0] = given[10] * 9
    whole = rerank(write(tmp_path / "whole", kind, given), rows, questions, 5)
    parts = rerank(write(tmp_path / "parts", kind, given[:13], given[13:14], given[14:]), rows, questions, 5)
    assert whole.rows.shape == whole.scores.shape == (4, 5)
    np.testing.assert_array_equal(whole.rows, parts.rows)
    np.testing.assert_array_equal(whole.scores, parts.scores)
    assert whole.rows[0, :2].tolist() == [10, 30]
    exact = np.einsum("qmd,qd->qm", given[rows].astype(np.float64), questions)
    best = np.take_along_axis(rows, np.argsort(-exact, axis=1), axis=1)[:, 0]
    np.testing.assert_array_equal(whole.rows[1:, 0], best[1:])
    assert rerank([], np.empty((1, 0), int), questions[:1], 3).rows.shape == (1, 0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda kept: kept.get([60]), "there are 60 vectors; asked for 60 to 60"),
        (lambda kept: kept.get([-1]), "asked for -1"),
        (lambda kept: kept.get([0.5]), "rows must be whole numbers with 1 axes"),
        (lambda kept: kept.score([0], random(1)), "rows must be whole numbers with 2 axes"),
        (lambda kept: kept.score([[0]], random(2)), "there are 2 questions, and rows of 1"),
        (lambda kept: kept.score([[0]], random(1, 23)), "the questions have 23 dimensions, the kept vectors 24"),
        (lambda kept: kept.score([[0]], np.full((1, 24), np.nan)), "NaN"),
        (lambda kept: rerank([kept], [[0]], random(1), 0), "k must be at least 1"),
        (lambda kept: rerank([kept], [[60]], random(1), 1), "there are 60 vectors"),
        (lambda kept: rerank([kept], [[0]], random(2), 1), "there are 2 questions"),
    ],
)
def test_what_cannot_be_scored(tmp_path: Path, call: Any, says: str) -> None:
    [kept] = write(tmp_path / "b", "int8", random(60))
    with pytest.raises(InvalidInput, match=says):
        call(kept)


@both_kinds
def test_what_cannot_be_kept(tmp_path: Path, kind: Kind) -> None:
    with bundle.create(tmp_path / "b") as new, writing(new, 24, kind) as out:
        out.add(random(5))
        with pytest.raises(InvalidInput, match="these vectors have 23 dimensions, those before 24"):
            out.add(random(5, 23))
        with pytest.raises(InvalidInput, match="vector 6 contains NaN"):
            out.add(np.array([[0.0] * 24, [np.nan] * 24]))
        if kind == "float16":
            with pytest.raises(InvalidInput, match="vector 6 has values beyond float16's 65,504"):
                out.add(np.array([[0.0] * 24, [1e5] * 24]))
        assert out.rows == 5


def test_an_unknown_kind(tmp_path: Path) -> None:
    with (
        bundle.create(tmp_path / "b") as new,
        pytest.raises(InvalidInput, match="int8 or float16, not 'int4'"),
        writing(new, 24, "int4"),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.parametrize(
    "arrays",
    [
        {VALUES: np.zeros((5, 3), np.float32)},
        {VALUES: np.zeros((5, 3), np.int8)},
        {VALUES: np.zeros(5, np.float16)},
        {VALUES: np.zeros((5, 3), np.float16), SCALES: np.zeros(5, np.float32)},
        {VALUES: np.zeros((5, 3), np.int8), SCALES: np.zeros(4, np.float32)},
        {VALUES: np.zeros((5, 3), np.int8), SCALES: np.zeros(5, np.float64)},
    ],
)
def test_files_that_do_not_belong_together(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    with bundle.create(tmp_path / "b") as new:
        for name, array in arrays.items():
            new.save(name, array)
        new.publish({})
    with bundle.open(tmp_path / "b") as opened, pytest.raises(CorruptBundle, match="restore or rebuild"):
        Vectors(opened)


@pytest.mark.parametrize("name", [VALUES, SCALES])
def test_bytes_that_changed_are_found_when_they_are_needed(tmp_path: Path, name: str) -> None:
    write(tmp_path / "b", "int8", random(6000))
    [path] = tmp_path.glob(f"b/gen-*/s0-{name}")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with bundle.open(tmp_path / "b", verify_limit=0) as opened:
        kept = Vectors(opened, "s0-")
        if name == VALUES:
            assert kept.get([0]).shape == (1, 24)  # lies in another block
        with pytest.raises(CorruptBundle, match="has changed since it was published"):
            kept.get([5999])


def test_large_blocks_are_taken_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bpr.codes.BLOCK_ROWS", 4)
    given = random(11)
    with bundle.create(tmp_path / "b") as new:
        with vectors.writing(new, 24) as out:
            out.add(given)
        new.publish({})
    with bundle.open(tmp_path / "b") as opened:
        np.testing.assert_allclose(Vectors(opened).get(np.arange(11)), given, atol=0.02)
