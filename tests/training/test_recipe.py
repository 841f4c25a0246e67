"""Settings from TOML and flags: the right type, or an error that says where."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from bpr.errors import InvalidInput
from bpr.training.batches import Diet
from bpr.training.biencoder import Objective
from bpr.training.readerrun import ReaderRecipe
from bpr.training.recipe import Recipe, changed, known, load, load_as

OTHER = {  # of every setting, another value as a flag gives it, and what it means
    "start": ("123", "123"),  # a name, although it looks like a number
    "name": ("some name", "some name"),
    "seed": ("3", 3),
    "bits": ("768", 768),
    "project": ("true", True),
    "question_bias": ("false", False),
    "pooling": ("mean", "mean"),
    "normalize": ("true", True),
    "shared": ("true", True),
    "batch": ("512", 512),
    "epochs": ("6", 6),
    "learning_rate": ("5e-5", 5e-5),
    "head_rate": ("10", 10.0),
    "freeze": ("encoders", "encoders"),
    "warmup": ("0.1", 0.1),
    "weight_decay": ("0.01", 0.01),
    "clip": ("0", 0.0),
    "dropout": ("0.0", 0.0),
    "accumulate": ("2", 2),
    "chunk": ("32", 32),
    "bf16": ("false", False),
    "compile": ("true", True),
    "workers": ("4", 4),
    "teacher": ("models/float", "models/float"),
    "anchor": ("models/start", "models/start"),
    "teacher_scale": ("2.5", 2.5),
    "anchor_scale": ("10", 10.0),
    "pair_weight": ("0.5", 0.5),
    "evaluate_every": ("100", 100),
    "save_every": ("50", 50),
    "pool": ("1_000", 1000),
    "select_by": ("top_20", "top_20"),
    "log_every": ("1", 1),
    "objective.code": ("float", "float"),
    "objective.planes": ("2", 2),
    "objective.candidates": ("cross-entropy", "cross-entropy"),
    "objective.rerank": ("false", False),
    "objective.margin": ("4", 4.0),
    "objective.reduction": ("sum", "sum"),
    "objective.gamma": ("0.1", 0.1),
    "objective.beta_start": ("0.5", 0.5),
    "objective.beta_end": ("3", 3.0),
    "objective.straight_through": ("0.2", 0.2),
    "objective.scale": ("20", 20.0),
    "objective.distill": ("1", 1.0),
    "objective.distill_scale": ("5", 5.0),
    "objective.balance": ("0.1", 0.1),
    "objective.decorrelate": ("0.1", 0.1),
    "objective.nested": ("[128, 256]", (128, 256)),
    "diet.hard": ("2", 2),
    "diet.hard_pool": ("5", 5),
    "diet.random": ("1", 1),
    "diet.pairs": ("0.5", 0.5),
    "diet.neighbours": ("2", 2),
    "diet.titles": ("0.9", 0.9),
    "diet.question_length": ("32", 32),
    "diet.passage_length": ("128", 128),
}


def value(recipe: Recipe, key: str) -> object:
    part, _, name = key.rpartition(".")
    return getattr(getattr(recipe, part) if part else recipe, name)


def test_all_settings_are_known() -> None:
    assert known() == list(OTHER)


@pytest.mark.parametrize("key", OTHER)
def test_a_flag_changes_its_setting_and_no_other(key: str) -> None:
    text, meant = OTHER[key]
    more = {"objective.beta_end": "none"} if key == "objective.gamma" else {}  # they exclude each other
    recipe = changed(Recipe(), {key: text, **more})
    assert value(recipe, key) == meant != value(Recipe(), key)
    assert type(value(recipe, key)) is type(meant)
    assert {each for each in known() if value(recipe, each) != value(Recipe(), each)} == {key, *more}


def test_settings_that_exclude_each_other_can_be_changed_together() -> None:
    for keys in (["objective.gamma", "objective.beta_end"], ["objective.beta_end", "objective.gamma"]):
        recipe = changed(Recipe(), {key: {"objective.gamma": "0.1", "objective.beta_end": "none"}[key] for key in keys})
        assert (recipe.objective.gamma, recipe.objective.beta_end) == (0.1, None)
    with pytest.raises(InvalidInput, match="either gamma"):
        changed(Recipe(), {"objective.gamma": "0.1"})


def test_the_defaults_are_the_papers() -> None:
    recipe = Recipe()
    assert (recipe.batch, recipe.epochs, recipe.learning_rate, recipe.warmup) == (128, 40, 2e-5, 0.06)
    assert (recipe.clip, recipe.dropout, recipe.weight_decay, recipe.pooling) == (2.0, 0.1, 0.0, "cls")
    assert (recipe.diet.hard, recipe.diet.question_length, recipe.diet.passage_length) == (1, 256, 256)
    assert (recipe.objective.margin, recipe.objective.planes, recipe.objective.scale) == (2.0, 1, 1.0)
    assert recipe.select_by == "average_rank"


def test_a_file_and_flags(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'start = "s"\nlearning_rate = 3e-5\nepochs = 2\n[objective]\nplanes = 2\nmargin = 1\nnested = [8, 16]\n'
        "[diet]\npairs = 0.5\n"
    )
    recipe = load(path, {"epochs": "3", "objective.margin": "4"})
    assert recipe == Recipe(
        start="s",
        learning_rate=3e-5,
        epochs=3,
        objective=Objective(planes=2, margin=4.0, nested=(8, 16)),
        diet=Diet(pairs=0.5),
    )
    path.write_text('[objective]\ngamma = 0.1\nbeta_end = "none"\n')
    assert load(path).objective == Objective(gamma=0.1, beta_end=None)


def test_a_recipe_as_toml_has_it() -> None:
    facts = Recipe(objective=Objective(planes=2)).to_dict()
    assert facts["objective"]["planes"] == 2 and {*facts} == {each.name for each in fields(Recipe)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 2", "there is no setting 'epoch'; there are accumulate, anchor"),
        ("[objective]\nalpha = 2", r"\[objective\]: there is no setting 'alpha'; there are balance"),
        ("[reader]\nx = 1", "there is no setting 'reader'"),
        ("objective = 3", r"objective must be a table, \[objective\]"),
        ('batch = "many"', "recipe.toml: batch must be int, not 'many'"),
        ("batch = 1.5", "batch must be int, not 1.5"),
        ("batch = true", "batch must be int, not True"),
        ("project = 1", "project must be bool, not 1"),
        ("learning_rate = nan", "learning_rate must be float, not nan"),
        ('pooling = "max"', r"pooling must be \['cls', 'mean'\], not 'max'"),
        ("[objective]\nnested = [1.5]", "nested must be tuple"),
        ('[objective]\nbeta_end = "soft"', "beta_end must be float or NoneType, not 'soft'"),
        ("[objective]\nplanes = 3", r"recipe.toml \[objective\]: planes must be 1 or 2"),
        ("batch = 0", "recipe.toml: batch must be at least 1, not 0"),
        ("seed = -1", "seed must be 0 or more"),
        ("learning_rate = -1e-5", "learning_rate must be 0 or more"),
        ("dropout = 1.0", "dropout must be a share, less than 1"),
        ("batch = ", "is not TOML"),
        ("batch = 1\nbatch = 2", "is not TOML"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        load(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="is not TOML"):
        load(tmp_path / "bytes.toml")


@pytest.mark.parametrize("key", ["alpha", "objective.alpha", "objective", "diet", "objective.margin.x", "seed.x", ""])
def test_unknown_flags(key: str) -> None:
    with pytest.raises(InvalidInput, match=r"there is no setting .*; there are start, name"):
        changed(Recipe(), {key: "1"})


def test_flags_of_the_wrong_type() -> None:
    with pytest.raises(InvalidInput, match="batch must be int, not 'many'"):
        changed(Recipe(), {"batch": "many"})


RECIPES = sorted((Path(__file__).parents[2] / "benchmarks" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_recipes_of_the_published_runs_can_be_read(path: Path) -> None:
    recipe = load_as(ReaderRecipe if path.stem == "reader" else Recipe, path)
    assert recipe.name == path.stem
    assert recipe.batch == {"twin": 512, "mini": 1024, "one": 1024, "reader": 64}[path.stem]
