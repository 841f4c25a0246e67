"""A model folder's bpr.json: written, read back, and refused when it or its files were changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bpr import model as models
from bpr.codes import LARGE, LEVELS
from bpr.errors import InvalidInput, StorageError, UnsupportedFormat
from bpr.model import Model

MODEL = Model("some", 64, pooling="mean", normalize=True, weights="a" * 64, tokenizer="b" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights").write_bytes(b"x" * 3_000_000)
    models.save(tmp_path, models.two_planes(MODEL), ["tokenizer.json", "sub/weights"])
    return tmp_path


def change(folder: Path, **values: object) -> None:
    facts = json.loads((folder / "bpr.json").read_text())
    facts.update(values)
    (folder / "bpr.json").write_text(json.dumps({key: value for key, value in facts.items() if value != "gone"}))


def test_what_is_saved_is_loaded(folder: Path) -> None:
    model, files = models.load(str(folder))
    assert model == models.two_planes(MODEL)
    assert (model.planes, model.levels, model.large, model.candidates) == (2, LEVELS, round(model.bits * LARGE), 2000)
    assert set(files) == {"tokenizer.json", "sub/weights"}
    assert files["sub/weights"]["bytes"] == 3_000_000
    assert models.check_file(folder, "sub/weights", files) == folder / "sub" / "weights"
    assert not (folder / "bpr.json.new").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bits", 128),
        ("pooling", "cls"),
        ("normalize", False),
        ("shared", True),
        ("token_types", True),
        ("question_length", 64),
        ("passage_length", 64),
        ("weights", "c" * 64),
        ("tokenizer", "c" * 64),
    ],
)
def test_all_that_decides_bits_is_in_the_fingerprint(name: str, value: object) -> None:
    assert replace(MODEL, **{name: value}).fingerprint != MODEL.fingerprint


def test_the_name_and_the_default_l_are_not_in_the_fingerprint() -> None:
    assert replace(MODEL, name="other", candidates=7).fingerprint == MODEL.fingerprint
    assert models.two_planes(MODEL).fingerprint != MODEL.fingerprint


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"bits": 63}, "multiple of 8"),
        ({"planes": 3}, "planes must be 1 or 2"),
        ({"planes": 2}, "two planes need both"),
        ({"levels": (0.5, 1.5)}, "belong to two planes"),
        ({"large": 3, "planes": 2}, "two planes need both"),
        ({"large": 9, "planes": 2, "levels": LEVELS, "bits": 8}, "large must be a number of the 8 bits"),
        ({"large": 1.5, "planes": 2, "levels": LEVELS}, "large must be a number"),
        ({"pooling": "max"}, "pooling must be"),
        ({"candidates": 0}, "candidates is too small"),
        ({"question_length": 2}, "question_length is too small"),
    ],
)
def test_what_cannot_be_is_refused(values: dict, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        replace(MODEL, **values)


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"format": "else"}, InvalidInput, "does not describe a bpr model"),
        ({"version": 2}, UnsupportedFormat, "version 2, and this bpr reads 1"),
        ({"files": []}, InvalidInput, "lacks files"),
        ({"files": {"a": 3}}, InvalidInput, "does not say of every file"),
        ({"bits": "gone"}, InvalidInput, "lacks bits"),
        ({"bits": 65}, InvalidInput, r"bpr\.json: a code has a multiple of 8"),
        ({"levels": 3}, InvalidInput, r"bpr\.json: "),
        ({"pooling": "cls"}, InvalidInput, "was edited"),
        ({"fingerprint": "gone"}, InvalidInput, "was edited"),
    ],
)
def test_a_changed_description_is_refused(folder: Path, values: dict, error: type, says: str) -> None:
    change(folder, **values)
    with pytest.raises(error, match=says):
        models.load(folder)


def test_what_is_no_description(folder: Path) -> None:
    (folder / "bpr.json").write_text("{")
    with pytest.raises(InvalidInput, match="is not JSON"):
        models.load(folder)
    (folder / "bpr.json").write_text("[]")
    with pytest.raises(InvalidInput, match="does not describe"):
        models.load(folder)
    (folder / "bpr.json").unlink()
    with pytest.raises(InvalidInput, match=r"is no model folder: it has no bpr\.json"):
        models.load(folder)
    with pytest.raises(InvalidInput, match="is no model folder"):
        models.load(folder / "tokenizer.json")
    (folder / "bpr.json").mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        models.load(folder)


def test_files_that_are_missing_or_changed(folder: Path) -> None:
    _, files = models.load(folder)
    with pytest.raises(InvalidInput, match=r"has no passage\.onnx: `bpr export` makes"):
        models.check_file(folder, "passage.onnx", files)
    content = (folder / "tokenizer.json").read_bytes()
    for other in (content + b" ", b"[]"):
        (folder / "tokenizer.json").write_bytes(other)
        with pytest.raises(InvalidInput, match=r"tokenizer\.json is not the file that bpr\.json describes"):
            models.check_file(folder, "tokenizer.json", files)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match=r"tokenizer\.json is missing"):
        models.check_file(folder, "tokenizer.json", files)
    (folder / "tokenizer.json").symlink_to(folder / "tokenizer.json")
    with pytest.raises(StorageError, match="cannot read"):
        models.check_file(folder, "tokenizer.json", files)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*bpr\.json"):
        models.save(tmp_path / "nowhere", MODEL, [])


def test_mini_is_the_one_that_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert models.resolve("mini") == models.MINI
    monkeypatch.setattr(models, "MINI", tmp_path / "gone")
    with pytest.raises(InvalidInput, match="built without its model"):
        models.load("mini")
    (tmp_path / "mini").mkdir()
    models.save(tmp_path / "mini", MODEL, [])
    assert models.load("mini")[0] == MODEL  # a model folder of that name here comes first


def test_the_model_that_ships_is_the_one_that_it_describes() -> None:
    _, files = models.load("mini")
    assert {"README.md", "passage.onnx", "tokenizer.json"} <= set(files)
    for name in files:
        assert models.check_file(models.MINI, name, files).exists()
