"""The loss that the Trainer sees: the same with gradient caching, in one process or in two; and what it tells."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toys import Step, Toy, first_step

from bpr.training import run, trainer
from bpr.training.building import built
from bpr.training.trainer import BiTrainer, gathered

PAIRS = {"pairs": 0.5, "titles": 0.5, "pair_weight": 0.5}


@pytest.fixture(scope="module")
def teacher(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A float model of a few steps."""
    folder = tmp_path_factory.mktemp("teachers") / "float"
    toy.train(toy.recipe(bits=0, code="float", scale=5.0), folder)
    return str(folder)


def make_trainer(toy: Toy, recipe: Any, folder: Path) -> BiTrainer:
    bi, _ = built(recipe, toy.data)
    schedule = run.Schedule(toy.data, recipe.diet, recipe.epochs, recipe.seed)
    teachers = {role: run._teacher(each, recipe) for role, each in run._teachers(recipe).items()}
    arguments = run.arguments(recipe, folder, 4)
    return BiTrainer(bi, recipe, schedule, 0, None, teachers, arguments, lambda logs: None)


def assert_same(one: Step, other: Step, tolerance: float = 1e-5) -> None:
    assert one.parts == pytest.approx(other.parts, rel=1e-4)
    assert one.gradients.keys() == other.gradients.keys()
    torch.testing.assert_close(one.sigma, other.sigma, rtol=1e-5, atol=1e-6)
    largest = max(float(each.abs().max()) for each in other.gradients.values())
    assert largest > 0
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name], rtol=1e-4, atol=tolerance * largest, msg=name)


# ── Gradient caching ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "settings",
    [
        {"planes": 2},
        {"accumulate": 2, "shared": True},
        {"planes": 2, "distill": 0.5, "balance": 0.1, "decorrelate": 0.1, "nested": (32,), **PAIRS},
    ],
    ids=["plain", "accumulated, shared", "everything"],
)
def test_gradient_caching_is_the_plain_batch(toy: Toy, tmp_path: Path, teacher: str, settings: dict[str, Any]) -> None:
    given = {**settings, **({"teacher": teacher, "anchor": teacher} if "distill" in settings else {})}
    plain = toy.recipe(dropout=0.0, **given)
    whole = first_step(toy, plain, tmp_path / "whole")
    pieces = first_step(toy, replace(plain, chunk=5), tmp_path / "pieces")
    assert_same(pieces, whole)


def test_gradient_caching_sees_the_same_dropout_both_times(toy: Toy, tmp_path: Path) -> None:
    """One chunk that is the whole batch draws the same random numbers as the plain step, and must find the same."""
    recipe = toy.recipe(dropout=0.3, planes=2)
    whole = first_step(toy, recipe, tmp_path / "whole")
    assert_same(first_step(toy, replace(recipe, chunk=1000), tmp_path / "one"), whole)
    several = first_step(toy, replace(recipe, chunk=4), tmp_path / "several")  # other numbers: another loss, but a loss
    assert several.parts.keys() == whole.parts.keys() and several.parts != whole.parts


def test_chunks_and_teachers_are_encoded_in_the_precision_of_the_run(
    toy: Toy, tmp_path: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = run.arguments, []

    def half(*given: Any, **more: Any) -> Any:
        return replace(real(*given, **more), bf16=True)

    def watch(made: BiTrainer) -> None:
        made.validation = None
        for bi in (made.bi, *made.teachers.values()):
            query = bi.passage.backbone.encoder.layer[0].attention.self.query
            query.register_forward_hook(lambda *given: seen.append(given[2].dtype))

    monkeypatch.setattr(run, "arguments", half)
    recipe = toy.recipe(dropout=0.0, teacher=teacher, distill=0.5)
    whole = first_step(toy, recipe, tmp_path / "whole", watch)
    assert len(seen) == 2  # the model and its teacher
    pieces = first_step(toy, replace(recipe, chunk=6), tmp_path / "pieces", watch)
    assert {*seen} == {torch.bfloat16} and len(seen) > 10
    assert pieces.parts == pytest.approx(whole.parts, rel=0.05)


def test_a_run_with_dropout_and_chunks_learns(toy: Toy, tmp_path: Path) -> None:
    logs: list[Any] = []
    toy.train(toy.recipe(chunk=20, epochs=4), tmp_path / "out", report=logs.append)
    losses = [each["loss"] for each in logs if "loss" in each]
    assert sum(losses[-3:]) < sum(losses[:3])


# ── Two processes ────────────────────────────────────────────────────────────────────────────────────────────────────

CASES: dict[str, dict[str, Any]] = {
    "plain": {"dropout": 0.0, "planes": 2, **PAIRS},
    "cached": {"dropout": 0.0, "chunk": 3, "accumulate": 2, "shared": True},
    "taught": {"dropout": 0.0, "distill": 0.5, "balance": 0.1, **PAIRS},
}


@pytest.fixture(scope="module")
def together(toy: Toy, teacher: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes saw of the first step of each case."""
    folder = tmp_path_factory.mktemp("two")
    toy.data.save(folder / "data")
    shutil.copyfile(toy.tokenizer, folder / "tokenizer.json")
    shutil.copytree(toy.start, folder / "start")
    CASES["taught"] |= {"teacher": teacher, "anchor": teacher}
    (folder / "cases.json").write_text(json.dumps(CASES))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, str(here / "two_processes.py"), str(folder), str(port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_loss_and_gradients_of_one(toy: Toy, together: Path, tmp_path: Path, name: str) -> None:
    alone = first_step(toy, toy.recipe(**CASES[name]), tmp_path / "alone")
    tensors = load_file(together / f"{name}.safetensors")
    both = Step(json.loads((together / f"{name}.json").read_text()), tensors, tensors.pop("sigma"))
    assert_same(both, alone)


def test_two_processes_leave_one_model_and_one_line(together: Path) -> None:
    for name in CASES:
        lines = (together / name / "ledger.jsonl").read_text().splitlines()
        assert len(lines) == 1 and json.loads(lines[0])["processes"] == 2


def test_a_process_whose_questions_have_fewer_positives_adds_columns_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"rows": torch.tensor([4, 0, 7]), "positive": torch.tensor([0, 1]), "owned": torch.tensor([[4], [0]])}
    theirs = iter(
        [
            torch.tensor([[2, 0], [1, 0], [1, 3]]),  # rows and columns of all that follow
            torch.tensor([5, 6, 0]),
            torch.tensor([3, 0]),
            torch.tensor([[5, 8, 0], [0, 0, 0]]),
        ]
    )

    def all_gather(parts: list[torch.Tensor], own: torch.Tensor) -> None:
        parts[0].copy_(own)
        parts[1].copy_(next(theirs))

    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": 0}.items():
        monkeypatch.setattr(trainer.dist, name, lambda value=value: value)
    monkeypatch.setattr(trainer.dist, "all_gather", all_gather)
    whole = gathered(mine)
    assert whole["rows"].tolist() == [4, 0, 7, 5, 6] and whole["positive"].tolist() == [0, 1, 3]
    assert whole["owned"].tolist() == [[4, -1, -1], [0, -1, -1], [5, 8, 0]]  # row 0 is a passage: none is −1


def test_one_process_has_nothing_to_gather() -> None:
    mine = {"e_q": torch.ones(1)}
    assert gathered(mine) is mine


# ── The rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_optimizer_sees_every_weight_once_and_heads_at_their_own_rate(toy: Toy, tmp_path: Path) -> None:
    for shared in (False, True):
        made = make_trainer(toy, toy.recipe(shared=shared, head_rate=10.0, learning_rate=1e-4), tmp_path)
        body, heads = made.create_optimizer().param_groups
        assert (body["lr"], heads["lr"]) == (1e-4, 1e-3)
        assert body["betas"] == (0.9, 0.999) and body["eps"] == 1e-6 and body["weight_decay"] == 0.0
        assert len(heads["params"]) == (2 if shared else 4)
        seen = [id(each) for each in [*body["params"], *heads["params"]]]
        assert len(seen) == len({*seen}) == len(list(made.bi.parameters()))
        assert made.create_optimizer() is made.optimizer


def test_teachers_score_their_own_kind(toy: Toy, teacher: str, tmp_path: Path) -> None:
    recipe = toy.recipe(teacher=teacher, anchor=teacher, distill=1.0, teacher_scale=2.0, anchor_scale=3.0, **PAIRS)
    made = make_trainer(toy, recipe, tmp_path)
    inputs = made.data_collator([made.train_dataset[i] for i in range(6)])
    real = inputs["real"]
    n, p = len(real), len(inputs["rows"])
    whole = {**inputs, "e_q": torch.zeros(n, 64), "e_p": torch.zeros(p, 64), **made._taught(inputs)}
    scores = made._teachers_scores(whole)
    assert scores.shape == (n, p) and 0 < real.sum() < n
    pairs = torch.cat([~real, torch.zeros(p - n, dtype=torch.bool)])
    known = made.teachers["teacher"]
    e_q, e_p = known(*(inputs[f"{side}_{what}"] for side in ("question", "passage") for what in ("ids", "mask")))
    for q in range(n):
        scale, columns = (2.0, ~pairs) if real[q] else (3.0, pairs)
        assert torch.equal(scores[q].isfinite(), columns)
        torch.testing.assert_close(scores[q, columns], (e_q @ e_p.T)[q, columns] * scale, rtol=1e-4, atol=1e-4)
    assert not any(each.requires_grad for each in known.parameters())


def test_a_teacher_whose_kind_is_not_in_the_batch_is_not_asked(toy: Toy, teacher: str, tmp_path: Path) -> None:
    made = make_trainer(toy, toy.recipe(anchor=teacher, distill=1.0, pairs=0.0), tmp_path)
    inputs = made.data_collator([made.train_dataset[i] for i in range(3)])
    whole = {**inputs, "e_q": torch.zeros(3, 64), "e_p": torch.zeros(6, 64), **made._taught(inputs)}
    assert not made._teachers_scores(whole).isfinite().any()


def test_figures_are_reported_with_the_parts_of_the_loss(
    toy: Toy, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs: list[Any] = []
    recipe = toy.recipe(balance=0.1)
    steps = toy.train(recipe, tmp_path / "out", report=logs.append)["steps"]
    lines = [each for each in logs if "loss" in each]
    assert [each["step"] for each in lines] == list(range(1, steps + 1))
    for each in lines:
        parts = sum(each[f"loss_{name}"] for name in ("candidates", "rerank", "balance"))
        assert parts == pytest.approx(each["loss"], abs=1e-3)
        assert each["beta"] == pytest.approx(recipe.objective.beta(each["step"], steps), abs=1e-4)
    assert capfd.readouterr().out == ""


def test_without_a_listener_figures_go_to_stderr(toy: Toy, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    toy.train(toy.recipe(code="float", scale=5.0), tmp_path / "out", report=None)
    said = capfd.readouterr()
    assert said.out == "" and "step 1  loss " in said.err and "beta" not in said.err and "%|" not in said.err
