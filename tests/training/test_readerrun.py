"""Whole runs of the reader: they learn, they can be stopped and resumed, and they say what they did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reader_toys import ReaderToy
from toys import write_tokenizer

from bpr import model as models
from bpr import reader as readers
from bpr.errors import InvalidInput, StorageError
from bpr.training import reader, recipe
from bpr.training.output import LEDGER
from bpr.training.readerrun import ReaderRecipe
from bpr.training.readertrainer import ReaderTrainer
from small_disk import files_up_to


@pytest.fixture(scope="module")
def trained(reader_toy: ReaderToy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Any]]:
    folder, logs = tmp_path_factory.mktemp("runs") / "trained", []
    line = reader_toy.train(reader_toy.recipe(epochs=8, dropout=0.0, spans="marginal"), folder, report=logs.append)
    return folder, line, logs


def test_the_loss_falls(trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    for part in ("loss", "loss_span"):  # which passage answers, two layers learn later: test_training_reader.py
        values = [each[part] for each in trained[2] if part in each]
        assert len(values) == trained[1]["steps"] > 50
        assert np.mean(values[-5:]) < 0.8 * np.mean(values[:5]), part


def test_the_folder_is_whole(reader_toy: ReaderToy, trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    folder, line, _ = trained
    model, files = readers.load_model(folder)
    assert (model.name, model.length, model.question_length, model.passages) == ("toy", 96, 16, 4)
    assert model.weights == line["weights"] != "" and model.tokenizer == models.sha256(reader_toy.tokenizer)
    names = ("config.json", "model.safetensors", "head.safetensors")
    assert {*files} == {"tokenizer.json", *(f"reader_encoder/{name}" for name in names)}
    loaded, same = reader.load(folder)
    assert same == model and not loaded.training
    again = reader.begun(str(folder))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_the_ledger_has_every_setting(reader_toy: ReaderToy, trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    folder, line, _ = trained
    (written,) = (json.loads(each) for each in (folder / LEDGER).read_text().splitlines())
    assert written == json.loads(json.dumps(line))
    assert written["recipe"]["spans"] == "marginal" and written["data"]["sha256"] == reader_toy.data.fingerprint()
    assert written["metrics"].keys() == {"eval_em", "eval_f1", "eval_gold_em", "eval_gold_f1"}
    assert 0 <= written["metrics"]["eval_em"] <= written["metrics"]["eval_f1"] <= 100


def test_a_start_may_be_a_retrieval_model(reader_toy: ReaderToy, tiny_model: Path) -> None:
    begun = reader.begun(str(tiny_model))
    passage = reader.load_tower(tiny_model, "passage").backbone.state_dict()
    assert all(torch.equal(value, passage[name]) for name, value in begun.backbone.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "stop", "last"),
    [
        ({"save_every": 3}, 5, "checkpoint-3"),
        ({"spans": "marginal", "over": "question", "token_types": True, "save_every": 2}, 4, "checkpoint-4"),
        ({"evaluate_every": 4, "save_every": 3, "accumulate": 2}, 13, "checkpoint-6"),
    ],
    ids=["plain", "over the question", "validated, accumulated"],
)
def test_a_resumed_run_ends_with_exactly_the_weights_of_an_unbroken_one(
    reader_toy: ReaderToy, tmp_path: Path, settings: dict[str, Any], stop: int, last: str
) -> None:
    plan = reader_toy.recipe(dropout=0.2, **settings)
    unbroken = reader_toy.train(plan, tmp_path / "unbroken")
    real, done = ReaderTrainer.training_step, []

    def step(self: ReaderTrainer, *given: Any) -> Any:
        done.append(1)
        if len(done) > stop:
            raise KeyboardInterrupt
        return real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReaderTrainer, "training_step", step)
        with pytest.raises(KeyboardInterrupt):
            reader_toy.train(plan, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    resumed = reader_toy.train(replace(plan, name="resumed"), tmp_path / "broken", resume=True)
    assert resumed["weights"] == unbroken["weights"] and resumed["resumed"] == last
    assert resumed["metrics"] == unbroken["metrics"] and resumed["steps"] == unbroken["steps"] > 8


def test_what_cannot_be_is_refused_before_any_work(reader_toy: ReaderToy, tmp_path: Path) -> None:
    plan = reader_toy.recipe()
    other = write_tokenizer(tmp_path / "other.json")
    other.write_text(other.read_text() + " ")
    with pytest.raises(InvalidInput, match="cut by another tokenizer"):
        _train(reader_toy, plan, other, tmp_path)
    with pytest.raises(InvalidInput, match="there is no tokenizer"):
        _train(reader_toy, plan, tmp_path / "none.json", tmp_path)
    with pytest.raises(InvalidInput, match="neither a folder here nor a hub model"):
        reader_toy.train(replace(plan, start="nowhere"), tmp_path / "out")
    with pytest.raises(InvalidInput, match="reads 128 tokens, and the recipe wants 350"):
        reader_toy.train(replace(plan, length=350), tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not empty and holds no reader"):
        reader_toy.train(plan, tmp_path / "full")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is a file"):
        reader_toy.train(plan, tmp_path / "file")
    everything = replace(reader_toy.data, held=np.zeros_like(reader_toy.data.held))
    with pytest.raises(InvalidInput, match="no questions are held out"):
        _train(replace(reader_toy, data=everything), replace(plan, evaluate_every=1), reader_toy.tokenizer, tmp_path)
    with pytest.raises(InvalidInput, match="batch must be at least 1"):
        reader_toy.recipe(batch=0)
    with pytest.raises(InvalidInput, match="a window of 60 tokens is too short"):
        reader_toy.recipe(length=60)


def _train(toy: ReaderToy, plan: ReaderRecipe, tokenizer: Path, tmp_path: Path) -> None:
    from bpr.training import readerrun

    readerrun.train(plan, toy.data, tokenizer, tmp_path / "out", report=lambda logs: None)


def test_a_disk_that_is_full_leaves_no_half_of_a_reader(reader_toy: ReaderToy, tmp_path: Path) -> None:
    with files_up_to(10_000), pytest.raises(StorageError, match=r"cannot write .*new: "):
        reader_toy.train(reader_toy.recipe(epochs=1), tmp_path / "new", report=lambda told: None)
    assert not (tmp_path / "new").exists()


def test_a_recipe_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "reader.toml"
    path.write_text('start = "x"\nnegatives = 17\nlearning_rate = 1e-5\n')
    made = recipe.load_as(ReaderRecipe, path, {"spans": "marginal", "batch": "8"})
    assert (made.negatives, made.learning_rate, made.spans, made.batch) == (17, 1e-5, "marginal", 8)
    with pytest.raises(InvalidInput, match="there is no setting 'nope'"):
        recipe.load_as(ReaderRecipe, path, {"nope": "1"})
    path.write_text("hard = 1\n")
    with pytest.raises(InvalidInput, match="there is no setting 'hard'"):
        recipe.load_as(ReaderRecipe, path)


def test_the_paper_s_settings_are_the_defaults() -> None:
    plain = ReaderRecipe()
    assert (plain.length, plain.negatives, plain.batch, plain.epochs) == (350, 23, 32, 20)
    assert (plain.learning_rate, plain.warmup, plain.clip, plain.weight_decay) == (2e-5, 0.06, 2.0, 0.0)
