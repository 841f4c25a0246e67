"""Whole runs: they learn, they can be stopped and resumed, they choose the best, and they say what they did."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toys import HIDDEN, VOCABULARY, Toy, write_tokenizer
from transformers import BertConfig, BertModel

from bpr import model as models
from bpr.errors import InvalidInput, StorageError
from bpr.training import run
from bpr.training.batches import Schedule
from bpr.training.biencoder import BiEncoder
from bpr.training.building import built, pooled_of, set_dropout
from bpr.training.output import LEDGER, check_output, write_ledger
from bpr.training.prepared import Prepared, prepare
from bpr.training.recipe import changed
from bpr.training.tower import load_tower
from bpr.training.trainer import BiTrainer
from bpr.training.validation import Validation
from small_disk import files_up_to


def heads(folder: Path, side: str = "passage") -> dict[str, torch.Tensor]:
    return load_file(folder / f"{side}_encoder" / "head.safetensors")


def sum_of(folder: Path) -> str:
    return models.load(folder)[0].weights


def checkpoints(folder: Path) -> list[str]:
    found = folder.with_name(folder.name + ".checkpoints").glob("checkpoint-*")
    return sorted((each.name for each in found), key=lambda name: int(name.partition("-")[2]))


@pytest.fixture(scope="module")
def trained(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Any]]:
    """A two-plane model of five epochs: its folder, its ledger line, its logs."""
    folder, logs = tmp_path_factory.mktemp("runs") / "trained", []
    line = toy.train(toy.recipe(planes=2, epochs=5, dropout=0.0), folder, report=logs.append)
    return folder, line, logs


@pytest.fixture(scope="module")
def float_model(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "float"
    toy.train(toy.recipe(code="float", bits=0, scale=5.0), folder)
    return folder


# ── A run ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_loss_falls(trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    losses = [each["loss"] for each in trained[2] if "loss" in each]
    assert len(losses) == trained[1]["steps"] > 30
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_the_model_folder_is_whole(toy: Toy, trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    folder, line, _ = trained
    model, files = models.load(folder)
    assert (model.name, model.bits, model.planes, model.pooling) == ("toy", 64, 2, "mean")
    assert (model.question_length, model.passage_length, model.candidates) == (16, 32, 2000)
    assert model.tokenizer == models.sha256(toy.tokenizer) and model.weights == line["weights"] != ""
    assert {*files} == {
        "tokenizer.json",
        *(
            f"{side}_encoder/{name}"
            for side in ("question", "passage")
            for name in ("config.json", "model.safetensors", "head.safetensors")
        ),
    }
    assert load_tower(folder, "question").head.projection.weight.shape == (64, HIDDEN)


def test_sigma_follows_the_outputs_and_is_in_the_head(
    toy: Toy, trained: tuple[Path, dict[str, Any], list[Any]]
) -> None:
    folder, _, _ = trained
    begun, _ = built(toy.recipe(planes=2), toy.data)
    for side in ("question", "passage"):
        sigma = heads(folder, side)["sigma"]
        assert sigma.shape == (64,) and not torch.allclose(sigma, getattr(begun, side).head.sigma, rtol=0.05)
    tower = load_tower(folder, "passage")
    texts = [toy.data.passage(int(row), 32) for row in np.flatnonzero(toy.data.trainable)]
    with torch.no_grad():
        e = tower.head.projection(pooled_of(tower, texts, 0))
    drift = tower.head.sigma / e.square().mean(0).sqrt()
    assert 0.5 < drift.median() < 1.5  # it follows with some delay; the first σ would be a third


def test_the_ledger_has_every_setting(toy: Toy, trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    folder, line, _ = trained
    (written,) = (json.loads(each) for each in (folder / LEDGER).read_text().splitlines())
    assert written == json.loads(json.dumps(line))
    assert written["recipe"] == json.loads(json.dumps(toy.recipe(planes=2, epochs=5, dropout=0.0).to_dict()))
    assert written["data"]["sha256"] == toy.data.fingerprint() and written["data"]["passages"] == 60
    assert {"torch", "transformers", "accelerate", "numpy"} <= written["versions"].keys()
    assert written["metrics"].keys() == {
        f"eval_{each}" for each in ("average_rank", "top_1", "top_5", "top_20", "top_100")
    }
    assert written["steps"] == written["best_step"] and written["seconds"] > 0 and written["processes"] == 1
    assert written["device"] and written["python"] and written["resumed"] is None and written["models"] == {}
    assert not checkpoints(folder)


def test_a_second_run_may_take_the_place_of_a_model(toy: Toy, tmp_path: Path) -> None:
    recipe = toy.recipe(learning_rate=0.0, dropout=0.0)
    first = toy.train(recipe, tmp_path / "out")
    (tmp_path / "out" / models.CARD).write_text("the card of the first\n")
    second = toy.train(replace(recipe, name="second"), tmp_path / "out")
    assert len((tmp_path / "out" / LEDGER).read_text().splitlines()) == 2
    assert models.load(tmp_path / "out")[0].name == "second" and first["weights"] != ""
    assert not (tmp_path / "out" / models.CARD).exists() and second["metrics"] == first["metrics"]


def test_frozen_embeddings_stay(toy: Toy, tmp_path: Path) -> None:
    toy.train(toy.recipe(freeze="embeddings"), tmp_path / "out")
    name = "embeddings.word_embeddings.weight"
    start, body = (
        load_file(toy.start / "model.safetensors"),
        load_file(tmp_path / "out/passage_encoder/model.safetensors"),
    )
    assert torch.equal(body[name], start[name])
    assert not torch.equal(body["embeddings.LayerNorm.weight"], start["embeddings.LayerNorm.weight"])


def test_frozen_encoders_stay_and_projections_learn(toy: Toy, tmp_path: Path) -> None:
    toy.train(toy.recipe(freeze="encoders", project=True, learning_rate=1e-2), tmp_path / "out")
    toy.train(toy.recipe(freeze="encoders", project=True, learning_rate=0.0), tmp_path / "same")
    start = load_file(toy.start / "model.safetensors")
    for side in ("question", "passage"):
        body = load_file(tmp_path / f"out/{side}_encoder/model.safetensors")
        assert body and all(torch.equal(body[name], start[name]) for name in body)
        learned, fresh = (load_file(tmp_path / f"{name}/{side}_encoder/head.safetensors") for name in ("out", "same"))
        assert not torch.equal(learned["projection.weight"], fresh["projection.weight"])


# ── Resume ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """As if somebody pulled the plug in the step after."""
    real, done = BiTrainer.training_step, []

    def step(self: BiTrainer, *given: Any) -> Any:
        done.append(1)
        if len(done) > steps:
            raise KeyboardInterrupt
        return real(self, *given)

    monkeypatch.setattr(BiTrainer, "training_step", step)


@pytest.mark.parametrize(
    ("settings", "stop", "last"),
    [
        ({"planes": 2, "save_every": 3, "pairs": 0.5}, 5, "checkpoint-3"),
        ({"shared": True, "chunk": 8, "save_every": 2}, 4, "checkpoint-4"),
        ({"evaluate_every": 3, "save_every": 2, "accumulate": 2, "select_by": "top_5"}, 9, "checkpoint-4"),
    ],
    ids=["two planes", "shared, chunks", "validated, accumulated"],
)
def test_a_resumed_run_ends_with_exactly_the_weights_of_an_unbroken_one(
    toy: Toy, tmp_path: Path, settings: dict[str, Any], stop: int, last: str
) -> None:
    recipe = toy.recipe(dropout=0.2, **settings)
    unbroken = toy.train(recipe, tmp_path / "unbroken")
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            toy.train(recipe, tmp_path / "broken")
    assert checkpoints(tmp_path / "broken")[-1] == last and not (tmp_path / "broken").exists()
    resumed = toy.train(replace(recipe, name="resumed"), tmp_path / "broken", resume=True)
    assert resumed["weights"] == unbroken["weights"] == sum_of(tmp_path / "broken")
    assert resumed["metrics"] == unbroken["metrics"] and resumed["resumed"] == last
    assert resumed["steps"] == unbroken["steps"] == 6 and resumed["best_step"] == unbroken["best_step"]
    before, after = heads(tmp_path / "unbroken"), heads(tmp_path / "broken")
    assert torch.equal(before["sigma"], after["sigma"])


def test_a_finished_run_resumes_to_itself_and_a_broken_checkpoint_is_passed_over(toy: Toy, tmp_path: Path) -> None:
    recipe = toy.recipe(save_every=5)
    first = toy.train(recipe, tmp_path / "out")
    where = tmp_path / "out.checkpoints"
    (where / "checkpoint-9999").mkdir()  # begun, and never written to its end
    assert toy.train(recipe, tmp_path / "out", resume=True)["weights"] == first["weights"]


def test_resume_without_checkpoints_begins(toy: Toy, tmp_path: Path) -> None:
    assert toy.train(toy.recipe(), tmp_path / "out", resume=True)["resumed"] is None


def test_checkpoints_of_another_run_are_neither_used_nor_overwritten(toy: Toy, tmp_path: Path) -> None:
    recipe, out = toy.recipe(save_every=4), tmp_path / "out"
    toy.train(recipe, out)
    with pytest.raises(InvalidInput, match=r"holds checkpoint-\d+ of an earlier run: resume it, or delete"):
        toy.train(recipe, out)
    for other in (replace(recipe, learning_rate=1e-4), toy.recipe(save_every=4, margin=4.0)):
        with pytest.raises(InvalidInput, match=r"other settings \((learning_rate|objective)\)"):
            toy.train(other, out, resume=True)
    less = prepare(toy.passages, toy.examples, toy.tokenizer, held_share=0.1)
    with pytest.raises(InvalidInput, match=r"other settings \(the data\)"):
        run.train(recipe, less, toy.tokenizer, out, resume=True)
    (tmp_path / "out.checkpoints" / run.SETTINGS).unlink()
    with pytest.raises(InvalidInput, match=r"run\.json, which says how the run began, cannot be read"):
        toy.train(recipe, out, resume=True)


# ── Validation and checkpoints ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("by", "values", "best"),
    [("average_rank", [9, 5, 3, 4, 3, 8], 3), ("top_20", [9, 5, 3, 10, 3, 8], 4), ("top_1", [9, 5, 3, 4, 3, 9.5], 6)],
)
def test_the_best_checkpoint_is_kept(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, values: list[float], best: int
) -> None:
    weights: list[dict[str, torch.Tensor]] = []

    def measure(self: Validation, bi: BiEncoder) -> dict[str, float]:
        weights.append({name: value.clone() for name, value in bi.state_dict().items()})
        return {by: float([*values, 42][len(weights) - 1])}

    monkeypatch.setattr(Validation, "measure", measure)
    line = toy.train(toy.recipe(evaluate_every=1, select_by=by), tmp_path / "out")
    assert (line["steps"], line["best_step"], len(weights)) == (6, best, 7)
    assert line["metrics"] == {f"eval_{by}": 42}  # measured anew, with the best weights and their σ
    assert all(torch.equal(value, weights[best - 1][name]) for name, value in weights[-1].items())
    saved = heads(tmp_path / "out")
    assert all(torch.equal(value, weights[-1][f"passage.head.{name}"]) for name, value in saved.items())


def test_validation_while_training_is_what_the_model_gives_afterwards(toy: Toy, tmp_path: Path) -> None:
    logs: list[Any] = []
    recipe = toy.recipe(evaluate_every=3)
    line = toy.train(recipe, tmp_path / "out", report=logs.append)
    seen = {each["step"]: each["eval_average_rank"] for each in logs if "eval_average_rank" in each}
    assert list(seen) == [3, 6] and line["metrics"]["eval_average_rank"] == min(seen.values())
    bi = BiEncoder(*(load_tower(tmp_path / "out", side) for side in ("question", "passage")), recipe.objective)
    found = run.held_out(toy.data, recipe).measure(bi)
    assert {f"eval_{name}": value for name, value in found.items()} == line["metrics"]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, []),
        ({"save_every": 4}, [4, 6]),  # the end is one
        ({"evaluate_every": 4, "save_every": 3}, [3, 4, 6]),
    ],
)
def test_checkpoints_are_written_when_they_should_be(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], wanted: list[int]
) -> None:
    written: list[int] = []
    real = BiTrainer._save_checkpoint

    def save(self: BiTrainer, *given: Any) -> None:
        written.append(self.state.global_step)
        real(self, *given)

    monkeypatch.setattr(BiTrainer, "_save_checkpoint", save)
    assert toy.train(toy.recipe(**settings), tmp_path / "out")["steps"] == 6
    assert written == wanted and len(checkpoints(tmp_path / "out")) == min(2, len(wanted))


@pytest.mark.parametrize(
    ("terminal", "listener", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_progress_bar_is_for_terminals_where_nobody_listens(
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    listener: bool,
    shown: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    toy.train(toy.recipe(batch=108), tmp_path / "out", report=(lambda logs: None) if listener else None)
    assert ("100%|" in capsys.readouterr().err) == shown


# ── Sweeps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sweep_trains_each_value_and_picks_by_top_100(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures = iter([(50.0, 9.0), (70.0, 8.0), (70.0, 7.0), (60.0, 1.0)])

    def measured(self: BiTrainer, prefix: str = "eval") -> dict[str, float]:
        top, rank = next(measures)
        return {"eval_top_100": top, "eval_average_rank": rank}

    monkeypatch.setattr(BiTrainer, "measured", measured)
    choices = {"learning_rate": ["1e-3", "2e-3"], "objective.margin": ["1", "2"]}
    given = (toy.recipe(), choices, toy.data, toy.tokenizer, tmp_path)
    lines, best = run.sweep(*given, report=lambda logs: None)
    settings = [(line["recipe"]["learning_rate"], line["recipe"]["objective"]["margin"]) for line in lines]
    assert settings == [(1e-3, 1.0), (1e-3, 2.0), (2e-3, 1.0), (2e-3, 2.0)]
    assert best is lines[2]  # of two equals, the one with the lower average rank
    for line in lines:
        assert models.load(line["output"])[0].weights == line["weights"]
    assert Path(best["output"]) == tmp_path / "learning_rate=2e-3,objective.margin=1"
    # What is finished stays; what is not the same is trained again.
    monkeypatch.setattr(BiTrainer, "training_step", lambda *unused: pytest.fail("it was trained already"))
    assert run.sweep(*given, resume=True).lines == lines
    for folder in tmp_path.glob("*=1e-3,objective.margin=1"):
        (folder / LEDGER).unlink()
    with pytest.raises(pytest.fail.Exception, match="trained already"):
        run.sweep(*given, resume=True, report=lambda logs: None)


def test_a_sweep_that_cannot_choose(toy: Toy, tmp_path: Path) -> None:
    blind = prepare(toy.passages, toy.examples, toy.tokenizer)
    with pytest.raises(InvalidInput, match="no questions are held out"):
        run.sweep(toy.recipe(), {"seed": ["1"]}, blind, toy.tokenizer, tmp_path / "out")
    for choices in ({}, {"seed": []}):
        with pytest.raises(InvalidInput, match="needs a setting and some values"):
            run.sweep(toy.recipe(), choices, toy.data, toy.tokenizer, tmp_path / "out")
    with pytest.raises(InvalidInput, match="there is no setting 'rate'"):
        run.sweep(toy.recipe(), {"rate": ["1"]}, toy.data, toy.tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ── Before any work ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": ""}, "the recipe has no start"),
        ({"start": "/no/such/folder"}, "start = '/no/such/folder' is neither a folder here nor a hub model"),
        ({"start": "nobody/has-this"}, "is neither a folder here nor a hub model that was downloaded"),
        ({"teacher": "/no/such", "objective.distill": "1"}, "/no/such is no model folder"),
        ({"anchor": "/no/such", "objective.distill": "1", "diet.pairs": "1"}, "/no/such is no model folder"),
        ({"anchor": "/no/such", "objective.distill": "1"}, "diet.pairs is 0"),
        ({"teacher": "/no/such"}, "objective.distill needs a teacher"),
        ({"objective.distill": "1"}, "objective.distill needs a teacher"),
        ({"diet.neighbours": "1"}, "diet.neighbours come with made-up pairs"),
        ({"shared": "true", "question_bias": "false"}, "question_bias = false needs two"),
        ({"freeze": "encoders", "bits": "0", "project": "false"}, "leaves nothing to learn without a projection"),
        ({"accumulate": "3"}, "batch = 16 must be a multiple of 3"),
        ({"batch": "4096"}, "questions over all epochs are not one batch of 4096"),
        ({"objective.nested": "[128]"}, "the model has 64 bits"),
        ({"diet.passage_length": "100"}, "reads 64 tokens, and the recipe wants 100"),
        ({"bits": "63"}, "multiple of 8"),
    ],
)
def test_recipes_that_cannot_be_trained(
    toy: Toy, tmp_path: Path, changes: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BiTrainer", None)
    with pytest.raises(InvalidInput, match=message):
        toy.train(changed(toy.recipe(), changes), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_data_that_cannot_be_trained_with(toy: Toy, tmp_path: Path) -> None:
    blind = prepare(toy.passages, toy.examples, toy.tokenizer)
    with pytest.raises(InvalidInput, match="evaluate_every is set, but no questions are held out"):
        run.train(toy.recipe(evaluate_every=2), blind, toy.tokenizer, tmp_path / "out")
    with pytest.raises(InvalidInput, match="there is no tokenizer"):
        run.train(toy.recipe(), toy.data, tmp_path / "none.json", tmp_path / "out")
    other = write_tokenizer(tmp_path / "tokenizer.json")
    other.write_text(other.read_text() + "\n")
    with pytest.raises(InvalidInput, match="cut by another tokenizer"):
        run.train(toy.recipe(), toy.data, other, tmp_path / "out")
    small = BertConfig(
        vocab_size=len(VOCABULARY) - 10, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(small, add_pooling_layer=False).save_pretrained(tmp_path / "small")
    with pytest.raises(InvalidInput, match=r"knows 298 tokens, and the data has the number 30\d"):
        run.train(toy.recipe(start=str(tmp_path / "small")), toy.data, toy.tokenizer, tmp_path / "out")


def test_a_two_plane_model_is_no_teacher(
    toy: Toy, tmp_path: Path, trained: tuple[Path, dict[str, Any], list[Any]]
) -> None:
    with pytest.raises(InvalidInput, match="has two planes: a teacher must be a float model"):
        toy.train(toy.recipe(teacher=str(trained[0]), distill=1.0), tmp_path / "out")


def test_nothing_but_a_bpr_model_is_overwritten(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="is not empty and holds no bpr model: choose another folder"):
        toy.train(toy.recipe(), tmp_path / "letters")
    with pytest.raises(InvalidInput, match=r"dear\.txt is a file: name a folder"):
        toy.train(toy.recipe(), tmp_path / "letters" / "dear.txt")
    assert [each.name for each in tmp_path.rglob("*")] == ["letters", "dear.txt"]
    (tmp_path / "empty").mkdir()
    check_output(tmp_path / "empty")
    check_output(tmp_path / "not there")


def test_a_disk_that_says_no(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*ledger\.jsonl"):
        write_ledger(tmp_path / "nowhere", {})


@pytest.mark.parametrize("size", [100, 3000, 10_000])  # the settings, TensorBoard's thread, the weights
def test_a_disk_that_is_full_leaves_no_half_of_a_model(toy: Toy, tmp_path: Path, size: int, capfd: Any) -> None:
    with files_up_to(size), pytest.raises(StorageError, match=r"cannot write .*new"):
        toy.train(toy.recipe(epochs=1), tmp_path / "new", report=lambda told: None)
    assert not (tmp_path / "new").exists()
    assert "Traceback" not in capfd.readouterr().err


def test_torchruns_world(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.world_size() == 1
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert run.world_size() == 4
    schedule = Schedule(toy.data, toy.recipe().diet, 1, 0)
    assert run.steps_of(toy.recipe(batch=16, accumulate=2), schedule) == len(schedule) // 16
    with pytest.raises(InvalidInput, match="batch = 18 must be a multiple of 8: processes × accumulate"):
        run.steps_of(toy.recipe(batch=18, accumulate=2), schedule)


# ── What a run begins with ───────────────────────────────────────────────────────────────────────────────────────────


def test_fresh_heads_begin_in_units_of_their_spread(toy: Toy) -> None:
    bi, model = built(toy.recipe(planes=2), toy.data)
    assert model.bits == 64 and not bi.shared
    schedule = Schedule(toy.data, toy.recipe().diet, 1, 0)
    texts = [text for i in range(len(schedule)) for text in schedule[i].passages]
    with torch.no_grad():
        e = bi.passage.head.projection(pooled_of(bi.passage, texts, 0))
    torch.testing.assert_close(e.mean(0), torch.zeros(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(e.square().mean(0).sqrt(), bi.passage.head.sigma, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(bi.question.head.projection.weight, bi.passage.head.projection.weight)


def test_a_question_without_a_bias_stays_without(toy: Toy, tmp_path: Path) -> None:
    recipe = toy.recipe(planes=2, question_bias=False)
    bi, _ = built(recipe, toy.data)
    assert not bi.question.head.projection.bias.any() and bi.passage.head.projection.bias.any()
    toy.train(recipe, tmp_path / "out")
    assert not heads(tmp_path / "out", "question")["projection.bias"].any()
    assert not torch.equal(heads(tmp_path / "out", "question")["projection.weight"], bi.question.head.projection.weight)
    again, _ = built(toy.recipe(planes=2, start=str(tmp_path / "out")), toy.data)
    assert again.question.head.projection.bias.requires_grad


def test_a_float_model_has_no_sigma_and_no_projection(float_model: Path) -> None:
    model, _ = models.load(float_model)
    assert (model.bits, model.planes) == (HIDDEN, 1)
    assert {*heads(float_model)} == {"sigma"} and heads(float_model)["sigma"].eq(1).all()


def test_bits_go_on_from_a_float_model(toy: Toy, float_model: Path, tmp_path: Path) -> None:
    recipe = toy.recipe(start=str(float_model), planes=2, teacher=str(float_model), distill=0.5)
    bi, model = built(recipe, toy.data)
    body = load_file(float_model / "passage_encoder/model.safetensors")
    assert all(torch.equal(value, body[name]) for name, value in bi.passage.backbone.state_dict().items())
    assert model.bits == 64 and bi.passage.head.projection.weight.shape == (64, HIDDEN)
    line = toy.train(recipe, tmp_path / "out")
    known = models.load(float_model)[0].fingerprint
    assert line["models"] == {"start": known, "teacher": known}
    same, plain = built(toy.recipe(start=str(float_model), bits=0), toy.data)
    assert plain.bits == HIDDEN and same.passage.head.projection is None
    turned, _ = built(toy.recipe(start=str(float_model), bits=0, project=True), toy.data)
    assert turned.passage.head.projection.weight.shape == (HIDDEN, HIDDEN)


def test_bits_go_on_with_their_own_head(toy: Toy, trained: tuple[Path, dict[str, Any], list[Any]]) -> None:
    folder, _, _ = trained
    bi, _ = built(toy.recipe(start=str(folder), bits=0, planes=2), toy.data)
    for side in ("question", "passage"):
        assert torch.equal(getattr(bi, side).head.projection.weight, heads(folder, side)["projection.weight"])
    one, model = built(toy.recipe(start=str(folder), planes=2, shared=True), toy.data)
    assert one.shared and model.shared and one.question.head is one.passage.head


def test_dropout_is_set_wherever_it_is() -> None:
    attention = nn.Linear(2, 2)
    attention.dropout_prob = 0.5
    module = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout(0.2)), attention)
    set_dropout(module, 0.3)
    assert (module[0].p, module[1][0].p, attention.dropout_prob) == (0.3, 0.3, 0.3)


def test_prepared_data_of_before_tokenizers_were_remembered(toy: Toy, tmp_path: Path) -> None:
    facts = {key: value for key, value in toy.data.facts.items() if key != "tokenizer"}
    run.check_inputs(toy.recipe(), Prepared(**{**vars(toy.data), "facts": facts}), toy.tokenizer)
