"""From passages and vectors to a bundle; a build that fails leaves what was there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import builder, bundle
from bpr.builder import build, load_vectors
from bpr.codes import BLOCK_ROWS, LARGE, LEVELS, pack, pack_largest, pack_magnitudes
from bpr.encoder import Encoder
from bpr.errors import InvalidInput, MissingBundle, StorageError
from bpr.kinds import MAGNITUDES, SIGNS
from bpr.segments import ROTATION, load_transform
from bpr.transform import Transform
from tiny_models import BITS, WORDS, make_model

ROWS, DIM = 60, 64
VECTORS = np.random.default_rng(1).standard_normal((ROWS, DIM), np.float32) + 0.3
PASSAGES = [{"id": f"p{row}", "title": f"Title {row}", "text": f"text {row}", "page": row} for row in range(ROWS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.bpr"


def as_tsv(folder: Path) -> Path:
    lines = [f"{each['id']}\t{each['text']}\t{each['title']}" for each in PASSAGES]
    (folder / "p.tsv").write_text("\n".join(["id\ttext\ttitle", *lines]) + "\n")
    return folder / "p.tsv"


def as_jsonl(folder: Path) -> Path:
    (folder / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in PASSAGES))
    return folder / "p.jsonl"


def as_npy(folder: Path, vectors: np.ndarray = VECTORS) -> Path:
    np.save(folder / "v.npy", vectors)
    return folder / "v.npy"


def contents(path: Path) -> dict[str, bytes]:
    """Every file of the bundle but the lock."""
    files = [each for each in path.rglob("*") if each.is_file() and each.name != "lock"]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("source", [as_tsv, as_jsonl, lambda _: PASSAGES, lambda _: iter(PASSAGES)])
@pytest.mark.parametrize("vectors", [as_npy, lambda folder: str(as_npy(folder)), lambda _: VECTORS])
def test_a_bundle_from_any_source(tmp_path: Path, path: Path, source, vectors) -> None:
    assert build(source(tmp_path), str(path), vectors=vectors(tmp_path)) == ROWS
    with bundle.open(path) as opened:
        np.testing.assert_array_equal(opened.array(SIGNS), pack(VECTORS))
        assert opened.info == {
            "kind": "scan",
            "rows": ROWS,
            "bits": DIM,
            "dimensions": DIM,
            "planes": 1,
            "levels": None,
            "centered": False,
            "rotated": False,
            "model": None,
            "resident": [SIGNS],
        }
        assert load_transform(opened).rotation is None
    assert not [found for found in bundle.verify(path) if found.problem]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_vectors_of_any_float(tmp_path: Path, path: Path, dtype) -> None:
    build(PASSAGES, path, vectors=as_npy(tmp_path, VECTORS.astype(dtype)))
    np.testing.assert_array_equal(bundle.open(path).array(SIGNS), pack(VECTORS.astype(dtype)))


def test_vectors_in_fortran_order(tmp_path: Path, path: Path) -> None:
    build(PASSAGES, path, vectors=as_npy(tmp_path, np.asfortranarray(VECTORS)))
    np.testing.assert_array_equal(bundle.open(path).array(SIGNS), pack(VECTORS))


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(("rotate", "bits"), [(False, None), (False, DIM), (True, None), (True, 96), (True, 32)])
def test_planes_and_transform_are_stored(path: Path, planes: int, center: bool, rotate: bool, bits: int | None) -> None:
    build(PASSAGES, path, vectors=VECTORS, planes=planes, center=center, rotate=rotate, bits=bits, seed=4)
    expected = Transform.identity(DIM)
    if planes == 2 or center or rotate:
        expected = Transform.fit(VECTORS, center=center, rotate=rotate, bits=bits, seed=4)
    with bundle.open(path) as opened:
        stored, info = load_transform(opened), opened.info
        names = set(opened.manifest.files)
        signs, large = opened.array(SIGNS), opened.array(MAGNITUDES) if planes == 2 else None
    for one, other in ((stored.mean, expected.mean), (stored.scales, expected.scales)):
        np.testing.assert_array_equal(one, other)
    assert (info["planes"], info["bits"], info["dimensions"]) == (planes, bits or DIM, DIM)
    assert (info["centered"], info["rotated"]) == (center, rotate)
    assert info["levels"] == (list(LEVELS) if planes == 2 else None)
    assert (ROTATION in names, MAGNITUDES in names) == (rotate, planes == 2)
    if rotate:
        np.testing.assert_array_equal(stored.rotation, expected.rotation)
    np.testing.assert_array_equal(signs, pack(expected.passages(VECTORS)))
    if large is not None:
        np.testing.assert_array_equal(large, pack_magnitudes(expected.passages(VECTORS)))


def test_dimensions_that_only_a_rotation_makes_codes_of(path: Path) -> None:
    vectors = VECTORS[:, :50]
    with pytest.raises(InvalidInput, match="multiple of 8"):
        build(PASSAGES, path, vectors=vectors)
    build(PASSAGES, path, vectors=vectors, rotate=True, bits=128)
    assert bpr.open(path).info["bits"] == 128


def test_a_build_is_reproducible(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(PASSAGES, tmp_path / name, vectors=VECTORS, planes=2, center=True, rotate=True)
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert first.keys() == second.keys()
    differ = {name for name in first if first[name] != second[name]}
    assert differ == {"manifest.json"}  # it gives every bundle an identity of its own


def test_progress_is_told(path: Path) -> None:
    told: list[tuple] = []
    rows = BLOCK_ROWS + 5
    vectors = np.ones((rows, 8), np.float16)
    build(
        ({"id": str(row), "text": "x"} for row in range(rows)),
        path,
        vectors=vectors,
        planes=2,
        progress=lambda *each: told.append(each),
    )
    assert told[0] == ("reading passages", 0, rows)
    assert [done for what, done, _ in told if what == "reading passages"] == [0, BLOCK_ROWS, rows]
    assert told[-1] == ("publishing", 0, None)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def with_value(row: int, value: float) -> np.ndarray:
    vectors = VECTORS.astype(np.float64)
    vectors[row, 3] = value
    return vectors


REFUSED = {
    "more passages than vectors": ({"vectors": VECTORS[:-1]}, "60 passages but 59 vectors"),
    "more vectors than passages": ({"source": PASSAGES[:-1]}, "59 passages but 60 vectors"),
    "no vectors": ({"vectors": VECTORS[:0]}, "60 passages but 0 vectors"),
    "no passages": ({"source": []}, "no passages"),
    "the same id twice": ({"source": [*PASSAGES[:-1], PASSAGES[0]]}, "'p0' stands twice"),
    "not a number": ({"vectors": with_value(41, np.nan)}, "vector 41 contains NaN"),
    "infinite": ({"vectors": with_value(7, np.inf)}, "vector 7 contains NaN or infinity"),
    "infinite, rotated": ({"vectors": with_value(7, -np.inf), "rotate": True}, "vector 7 contains NaN or infinity"),
    "beyond float32, two planes": ({"vectors": with_value(9, 1e120), "planes": 2}, "vector 9 contains NaN or infinity"),
    "odd width": ({"vectors": VECTORS[:, :63]}, "multiple of 8 bits from 8 to 4096; the vectors have 63"),
    "one axis": ({"vectors": VECTORS[0]}, "two axes"),
    "whole numbers": ({"vectors": VECTORS.astype(int)}, "floats, not int64"),
    "three planes": ({"planes": 3}, "planes must be 1 or 2, not 3"),
    "no plane": ({"planes": 0}, "planes must be 1 or 2, not 0"),
    "bits without rotation": ({"bits": 128}, "128 bits need a rotation"),
    "bits without rotation, centred": ({"bits": 128, "center": True}, "128 bits need a rotation"),
    "odd bits": ({"bits": 100, "rotate": True}, "multiple of 8"),
    "negative bits": ({"bits": -8, "rotate": True}, "multiple of 8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_build_leaves_what_was_there(path: Path, case: str) -> None:
    change, says = REFUSED[case]
    arguments = {"source": PASSAGES, "path": path, "vectors": VECTORS, **change}
    with pytest.raises(InvalidInput, match=says):
        build(**arguments)
    with pytest.raises(MissingBundle):
        bundle.open(path)

    build(PASSAGES[:5], path, vectors=VECTORS[:5], planes=2, rotate=True)
    before = contents(path)
    with pytest.raises(InvalidInput, match=says):
        build(**arguments)
    assert contents(path) == before


def test_a_bad_value_is_named_beyond_the_first_block(path: Path) -> None:
    rows = BLOCK_ROWS + 10
    vectors = np.ones((rows, 8))
    vectors[BLOCK_ROWS + 3, 0] = np.nan
    with pytest.raises(InvalidInput, match=f"vector {BLOCK_ROWS + 3} contains"):
        build(({"id": str(row), "text": "x"} for row in range(rows)), path, vectors=vectors)


def test_an_id_that_stands_twice_in_a_file_is_named_with_both_lines(tmp_path: Path, path: Path) -> None:
    lines = ["id\ttext", "a\tone", 'b\t"two\nlines"', "", "c\tthree", "b\tfour", "d\tfive"]
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInput, match=r"p\.tsv, lines 3 and 7: the id 'b' stands twice; give every passage"):
        build(tmp_path / "p.tsv", path, vectors=np.ones((5, 8)))


def test_an_id_that_stands_twice_in_a_pipe_is_named_with_both_places(tmp_path: Path, path: Path) -> None:
    os.mkfifo(tmp_path / "p.jsonl")
    text = '{"id":"a","text":"one"}\n{"id":"a","text":"two"}\n'
    writer = threading.Thread(target=(tmp_path / "p.jsonl").write_text, args=(text,))
    writer.start()
    with pytest.raises(InvalidInput, match="passages 1 and 2 of the input: the id 'a' stands twice"):
        build(tmp_path / "p.jsonl", path, vectors=np.ones((2, 8)))
    writer.join()


def test_files_of_different_lengths_are_both_named(tmp_path: Path, path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id":"a","text":"one"}\n')
    np.save(tmp_path / "v.npy", np.ones((2, 8)))
    with pytest.raises(InvalidInput, match=r"p\.jsonl: 1 passages but .*v\.npy: 2 vectors"):
        build(tmp_path / "p.jsonl", path, vectors=tmp_path / "v.npy")


# ── vectors from files ───────────────────────────────────────────────────────────────────────────────────────────────


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


def test_no_pickle_is_ever_opened(tmp_path: Path, path: Path) -> None:
    sprung = tmp_path / "sprung"
    trap = np.array([[Trap(sprung)]], object)
    np.save(tmp_path / "object.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "object.npz", trap, allow_pickle=True)
    trap.dump(tmp_path / "bare.npy")
    for name in ("object.npy", "object.npz", "bare.npy"):
        with pytest.raises(InvalidInput, match=r"not a plain \.npy"):
            build(PASSAGES, path, vectors=tmp_path / name)
    assert not sprung.exists()
    np.load(tmp_path / "bare.npy", allow_pickle=True)
    assert sprung.exists()  # it was armed


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "some.zip", "w") as out:
        out.writestr("a.npy", b"x")
    return (folder / "some.zip").read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"id\ttext\n",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00aaaa",
        b"PK\x03\x04 no archive after all",
        archive,
        header("(2, 64)") + b"\0" * 100,
        header("(-1, 64)") + b"\0" * 512,
        header("(4611686018427387904, 64)") + b"\0" * 512,
        header("(1180591620717411303424, 64)") + b"\0" * 512,
        header("(True, 64)") + b"\0" * 512,
        header("(2, 64.0)") + b"\0" * 512,
        header("(2, 64)", "'O'") + b"\0" * 1024,
        header("(2, 64)", "'no type'") + b"\0" * 512,
        header("(2, 64)", "__import__('os')") + b"\0" * 512,
        header("(" * 50),
        header("(2, 64)")[:60],
    ],
)
def test_files_that_are_no_arrays(tmp_path: Path, path: Path, content) -> None:
    file = tmp_path / "v.npy"
    file.write_bytes(content if isinstance(content, bytes) else content(tmp_path))
    with pytest.raises(InvalidInput, match=r"v\.npy is not a plain \.npy array of numbers \(numpy\.save"):
        build(PASSAGES, path, vectors=file)
    assert not path.exists()


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.ones(8), r"v\.npy: vectors must have two axes"),
        (np.float32(3), r"v\.npy: vectors must have two axes"),
        (np.ones((3, 8), int), r"v\.npy: vectors must be floats"),
        (np.ones((3, 8), [("a", "<f4")]), r"v\.npy: vectors must be floats"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path: Path, array, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        load_vectors(as_npy(tmp_path, array))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*nothing\.npy: No such file"):
        load_vectors(tmp_path / "nothing.npy")
    with pytest.raises(StorageError, match="Is a directory"):
        load_vectors(tmp_path)


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    loaded = load_vectors(as_npy(tmp_path))
    assert isinstance(loaded.base, np.memmap)
    assert not loaded.flags.writeable
    assert builder.load_vectors(VECTORS) is VECTORS


# ── from text ────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = [
    {
        "id": f"p{row}",
        "title": WORDS[row % 7] if row % 3 else "",
        "text": " ".join(WORDS[row % 50 : row % 50 + 9]) + f" {row}",
    }
    for row in range(130)
]
PAIRS = [(each["title"], each["text"]) for each in TEXTS]


class Counting:
    """An encoder that remembers how much it was asked for, and may fail."""

    def __init__(self, folder: Path, fail_after: int | None = None) -> None:
        self._encoder = Encoder.open(folder)
        self.model, self.folder, self.engine = self._encoder.model, folder, self._encoder.engine
        self.at_once = 7
        self.encoded = 0
        self._fail_after = fail_after

    def passages(self, pairs: Sequence[tuple[str, str]], **how: Any) -> np.ndarray:
        if self._fail_after is not None and self.encoded >= self._fail_after:
            raise KeyboardInterrupt
        self.encoded += len(pairs)
        return self._encoder.passages(pairs, **how)

    def questions(self, texts: Sequence[str], **how: Any) -> np.ndarray:
        return self._encoder.questions(texts, **how)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "PART_ROWS", 20)


def text_file(folder: Path, texts: list[dict] = TEXTS) -> Path:
    (folder / "t.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    return folder / "t.jsonl"


def codes_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with bundle.open(path, verify="all") as opened:
        return np.array(opened.array(SIGNS)), np.array(opened.array(MAGNITUDES))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("source", [text_file, lambda _: TEXTS, lambda _: iter(TEXTS)])
@pytest.mark.parametrize("opened", [False, True])
def test_text_is_encoded(tmp_path: Path, path: Path, tiny_model: Path, source, opened: bool) -> None:
    vectors = Encoder.open(tiny_model).passages(PAIRS)
    model = Encoder.open(tiny_model) if opened else str(tiny_model)
    assert build(source(tmp_path), path, model=model) == len(TEXTS)
    signs, large = codes_of(path)
    np.testing.assert_array_equal(signs, pack(vectors))
    np.testing.assert_array_equal(large, pack_largest(vectors, round(vectors.shape[1] * LARGE)))
    with bundle.open(path) as stored:
        info = stored.info
        assert load_transform(stored).is_identity
    assert (info["bits"], info["dimensions"], info["planes"], info["rows"]) == (BITS, BITS, 2, len(TEXTS))
    assert info["levels"] == list(LEVELS)
    assert info["candidates"] == 2000
    fingerprint = Encoder.open(tiny_model).fingerprint
    assert info["model"] == {
        "name": "tiny",
        "fingerprint": fingerprint,
        "folder": os.path.relpath(tiny_model, tmp_path),
    }
    assert not path.with_name("a.bpr.parts").exists()


def test_a_model_of_one_plane(tmp_path: Path, path: Path) -> None:
    make_model(tmp_path / "m", planes=1, candidates=77)
    build(TEXTS, path, model=tmp_path / "m")
    with bpr.open(path) as retriever:
        assert (retriever.info["planes"], retriever.info["levels"], retriever.candidates) == (1, None, 77)
        assert MAGNITUDES not in retriever.bundle.manifest.files


def test_the_number_of_threads_changes_nothing(path: Path, tmp_path: Path, tiny_model: Path) -> None:
    for name, threads in (("a.bpr", 1), ("b.bpr", 3)):
        build(TEXTS, tmp_path / name, model=tiny_model, threads=threads)
    for one, other in zip(codes_of(tmp_path / "a.bpr"), codes_of(tmp_path / "b.bpr"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_documents_are_cut_and_encoded(tmp_path: Path, path: Path, tiny_model: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "homer.md").write_text("# Homer\n\n" + "homer wrote the iliad . " * 50)
    (tmp_path / "docs" / "moon.txt").write_text("the moon is a planet ? no")
    rows = build(tmp_path / "docs", path, model=tiny_model)
    passages = list(bpr.open(path).passages)
    assert rows == len(passages) == 4
    assert {each.title for each in passages} == {"Homer", "moon"}
    assert build(tmp_path / "docs" / "moon.txt", tmp_path / "one.bpr", model=tiny_model) == 1


def test_a_pipe_is_read_once(tmp_path: Path, path: Path, tiny_model: Path) -> None:
    os.mkfifo(tmp_path / "p.jsonl")
    text = text_file(tmp_path).read_text()
    writer = threading.Thread(target=(tmp_path / "p.jsonl").write_text, args=(text,))
    writer.start()
    assert build(tmp_path / "p.jsonl", path, model=tiny_model) == len(TEXTS)
    writer.join()


@pytest.mark.usefixtures("small_parts")
def test_encoding_tells_how_far_it_is(tmp_path: Path, path: Path, tiny_model: Path) -> None:
    for source, total in ((text_file(tmp_path), 130), (iter(TEXTS), None)):
        told: list[tuple] = []
        build(source, path, model=tiny_model, progress=lambda *each, told=told: told.append(each))
        done = [each for each in told if each[0] == "encoding passages"]
        assert done == [("encoding passages", rows, total) for rows in (0, 20, 40, 60, 80, 100, 120, 130)]
        assert told[-1] == ("publishing", 0, None)


def test_a_part_is_encoded_piece_by_piece_and_says_so(path: Path, tiny_model: Path) -> None:
    told: list[tuple] = []
    encoder = Counting(tiny_model)
    build(TEXTS, path, model=encoder, progress=lambda *each: told.append(each))
    assert [rows for what, rows, _ in told if what == "encoding passages"] == [*range(0, 130, 7), 130]
    with bundle.open(path) as opened:
        assert np.array_equal(opened.array(SIGNS), pack(encoder._encoder.passages(PAIRS)))


def test_a_flaw_in_the_last_line_is_found_before_anything_is_encoded(
    tmp_path: Path, path: Path, tiny_model: Path
) -> None:
    encoder = Counting(tiny_model)
    with pytest.raises(InvalidInput, match=r"t\.jsonl, line 131: .*\"text\" is missing"):
        build(text_file(tmp_path, [*TEXTS, {"id": "last"}]), path, model=encoder)
    assert encoder.encoded == 0
    assert not path.exists()


@pytest.mark.parametrize("how", [{"planes": 2}, {"center": True}, {"rotate": True}, {"bits": 128}])
def test_a_model_has_settled_what_vectors_leave_open(path: Path, tiny_model: Path, how: dict) -> None:
    with pytest.raises(InvalidInput, match="are for vectors of yours"):
        build(TEXTS, path, model=tiny_model, **how)


def test_no_model_no_bundle(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no model folder"):
        build(TEXTS, path, model=tmp_path)
    assert not path.exists()


def test_a_model_that_gives_nonsense_is_refused_with_the_row(path: Path, tiny_model: Path, small_parts: None) -> None:
    class Broken(Counting):
        def passages(self, pairs, **how):
            found = super().passages(pairs, **how)
            if self.encoded > 40:
                found[3] = np.nan
            return found

    with pytest.raises(InvalidInput, match="vector 43 contains NaN"):
        build(TEXTS, path, model=Broken(tiny_model))


# ── going on after a kill ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("small_parts")
class TestGoingOn:
    def interrupted(self, source: Any, path: Path, model: Path, after: int = 60) -> None:
        with pytest.raises(KeyboardInterrupt):
            build(source, path, model=Counting(model, fail_after=after))

    def test_only_the_rest_is_encoded(self, path: Path, tmp_path: Path, tiny_model: Path) -> None:
        self.interrupted(TEXTS, path, tiny_model)
        assert not path.exists()
        encoder = Counting(tiny_model)
        assert build(TEXTS, path, model=encoder) == len(TEXTS)
        assert encoder.encoded == len(TEXTS) - 60
        build(TEXTS, tmp_path / "whole.bpr", model=tiny_model)
        for one, other in zip(codes_of(path), codes_of(tmp_path / "whole.bpr"), strict=True):
            np.testing.assert_array_equal(one, other)
        assert not path.with_name("a.bpr.parts").exists()

    def test_the_old_bundle_stays_until_the_end(self, path: Path, tiny_model: Path) -> None:
        build(TEXTS[:7], path, model=tiny_model)
        self.interrupted(TEXTS, path, tiny_model)
        assert len(bpr.open(path)) == 7

    def test_changed_texts_are_encoded_again(self, path: Path, tiny_model: Path) -> None:
        self.interrupted(TEXTS, path, tiny_model)
        changed = [{**each, "text": "moon"} if row == 25 else each for row, each in enumerate(TEXTS)]
        encoder = Counting(tiny_model)
        build(changed, path, model=encoder)
        assert encoder.encoded == len(TEXTS) - 40  # the part of row 25, and what had not been reached
        expected = Encoder.open(tiny_model).passages([(each["title"], each["text"]) for each in changed])
        np.testing.assert_array_equal(codes_of(path)[0], pack(expected))

    def test_another_model_or_engine_starts_afresh(self, path: Path, tmp_path: Path, tiny_model: Path) -> None:
        make_model(tmp_path / "other", seed=9)
        same_weights = Path(shutil.copytree(tiny_model, tmp_path / "float"))
        from bpr.training.export import export_onnx

        export_onnx(same_weights, int8=False)
        for other in (tmp_path / "other", same_weights):
            self.interrupted(TEXTS, path, tiny_model)
            encoder = Counting(other)
            build(TEXTS, path, model=encoder)
            assert encoder.encoded == len(TEXTS)

    def test_a_damaged_part_is_encoded_again(self, path: Path, tiny_model: Path) -> None:
        self.interrupted(TEXTS, path, tiny_model)
        first = path.with_name("a.bpr.parts") / "part-00000000"
        raw = bytearray(first.read_bytes())
        raw[-1] ^= 1
        first.write_bytes(raw)
        encoder = Counting(tiny_model)
        build(TEXTS, path, model=encoder)
        assert encoder.encoded == len(TEXTS) - 40

    def test_an_id_that_stands_twice_costs_no_second_encoding(
        self, tmp_path: Path, path: Path, tiny_model: Path
    ) -> None:
        twice = text_file(tmp_path, [*TEXTS, TEXTS[0]])
        with pytest.raises(InvalidInput, match=r"t\.jsonl, lines 1 and 131: the id 'p0' stands twice"):
            build(twice, path, model=tiny_model)
        encoder = Counting(tiny_model)
        build(text_file(tmp_path), path, model=encoder)
        assert encoder.encoded == 10  # of the last part only


KILLED = """
import sys, bpr.builder
bpr.builder.PART_ROWS = 40
from bpr.cli import main
sys.argv = ["bpr", *sys.argv[1:]]
main()
"""


def test_a_killed_process_goes_on_where_it_was(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [{**TEXTS[row % 130], "id": str(row)} for row in range(20_000)]
    source, target, parts = text_file(tmp_path, texts), tmp_path / "k.bpr", tmp_path / "k.bpr.parts"
    command = [
        sys.executable,
        "-c",
        KILLED,
        "index",
        source,
        "--model",
        tiny_model,
        "-o",
        target,
        "--threads",
        "1",
        "-q",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(bpr.__file__).parents[1])}
    done = []
    for _ in range(2):
        process = subprocess.Popen([str(each) for each in command], env=environment)
        enough = len(done) + 3
        while process.poll() is None and not (parts / f"part-{enough:08d}").exists():
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = sorted(parts.glob("part-????????"))
        assert len(done) > enough
        with pytest.raises(MissingBundle):
            bundle.open(target)
    monkeypatch.setattr(builder, "PART_ROWS", 40)
    encoder = Counting(tiny_model)
    assert build(source, target, model=encoder) == len(texts)
    assert encoder.encoded == len(texts) - 40 * len(done)
    assert not parts.exists()
    once = pack(Encoder.open(tiny_model).passages(PAIRS))
    np.testing.assert_array_equal(codes_of(target)[0], once[np.arange(len(texts)) % 130])
