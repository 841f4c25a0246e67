"""The reader's network and its losses, against numbers that were worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from reader_toys import ReaderToy
from torch import Tensor

from bpr.training import packed
from bpr.training.reader import Logits, Objective, Reader, begun, in_texts, losses
from bpr.training.readerbatches import Collate, Schedule, Window, pairs


def hand() -> tuple[Logits, dict[str, Any]]:
    """Two questions: one with a positive of 3 text tokens and a negative of 2, one with a positive of 2 alone."""
    # Sequences of 5, 4 and 4 tokens; the texts are their last 3, 2 and 2 but one.
    start = torch.tensor([9.0, 9, 1, 2, 0, 9, 9, 1, 3, 9, 0.5, 1.5, 9])
    end = torch.tensor([9.0, 9, 0, 1, 2, 9, 9, 2, 1, 9, 1.0, 0.0, 9])
    batch = {
        "starts": torch.tensor([0, 5, 9, 13], dtype=torch.int32),
        "begins": torch.tensor([2, 2, 1]),
        "ends": torch.tensor([5, 4, 3]),
        "longest": 5,
        "places": torch.tensor([[0, 1], [2, -1]]),
        "spans": torch.tensor([[[2, 3], [4, 4]], [[1, 1], [-1, -1]]]),
    }
    return Logits(start, end, torch.tensor([1.0, 2.0, 5.0])), batch


def log_p(value: float, among: list[float]) -> float:
    return value - math.log(sum(math.exp(each) for each in among))


PASSAGE = -(log_p(1, [1, 2]) + 0.0) / 2  # the second question has one passage: P = 1


@pytest.mark.parametrize("over", ["passage", "question"])
@pytest.mark.parametrize("spans", ["first", "marginal"])
def test_the_losses_by_hand(spans: str, over: str) -> None:
    found, batch = hand()
    parts = losses(found, batch, Objective(spans, over))
    starts, ends = [1.0, 2, 0], [0.0, 1, 2]
    if over == "question":
        starts, ends = [*starts, 1, 3], [*ends, 2, 1]
    one = log_p(1, starts) + log_p(1, ends)  # from token 2 to token 3
    other = log_p(0, starts) + log_p(2, ends)  # token 4 alone
    mine = one if spans == "first" else math.log(math.exp(one) + math.exp(other))
    second = log_p(0.5, [0.5, 1.5]) + log_p(1.0, [1.0, 0.0])
    assert parts["passage"].item() == pytest.approx(PASSAGE, abs=1e-6)
    assert parts["span"].item() == pytest.approx(-(mine + second) / 2, abs=1e-6)


def test_a_question_whose_spans_were_cut_off_teaches_which_passage_alone() -> None:
    found, batch = hand()
    batch["spans"] = torch.tensor([[[-1, -1], [-1, -1]], [[1, 1], [-1, -1]]])
    second = log_p(0.5, [0.5, 1.5]) + log_p(1.0, [1.0, 0.0])
    assert losses(found, batch, Objective("marginal"))["span"].item() == pytest.approx(-second, abs=1e-6)
    batch["spans"][:] = -1
    assert losses(found, batch, Objective("marginal"))["span"].item() == 0


def test_logits_outside_the_text_count_nowhere() -> None:
    found, batch = hand()
    before = losses(found, batch, Objective("marginal", "question"))
    found.start[[0, 1, 5, 6, 9, 12]] = 50.0
    after = losses(found, batch, Objective("marginal", "question"))
    assert torch.equal(before["span"], after["span"])
    assert in_texts(found.end, batch, torch.tensor([1]), -7.0).tolist() == [[-7, -7, 2, 1, -7]]


def test_no_padding_gives_the_same_as_padding(reader_toy: ReaderToy) -> None:
    reader, data = begun(str(reader_toy.start)).eval(), reader_toy.data
    for token_types in (False, True):
        batch = pairs(data, np.array([0, 5, 9]), np.array([3, 1, 40]), Window(96, 16, token_types))
        padded = reader(batch)
        joined = packed.Packed(*(batch[name] for name in ("ids", "positions", "text", "starts", "longest", "segments")))
        states = packed.states(reader.backbone, joined, torch.float32)
        torch.testing.assert_close(reader.head(states)[:, 0], padded.start, rtol=1e-4, atol=1e-5)
        alone = reader(pairs(data, np.array([5]), np.array([1]), Window(96, 16, token_types)))
        torch.testing.assert_close(alone.score[0], padded.score[1], rtol=1e-4, atol=1e-5)


def test_a_batch_is_learned_by_heart(reader_toy: ReaderToy) -> None:
    torch.manual_seed(0)
    reader, schedule = begun(str(reader_toy.start)), Schedule(reader_toy.data, 3, 1, 0)
    batch = Collate(reader_toy.data, Window(96, 16))([schedule[i] for i in range(8)])
    learning = torch.optim.Adam(reader.parameters(), 2e-3)
    seen: list[dict[str, Tensor]] = []
    for _ in range(120):
        parts = losses(reader(batch), batch, Objective("marginal"))
        seen.append({name: value.item() for name, value in parts.items()})
        learning.zero_grad()
        sum(parts.values()).backward()
        learning.step()
    assert all(seen[-1][name] < 0.3 * seen[0][name] for name in ("passage", "span"))


def test_any_automodel_will_do(reader_toy: ReaderToy) -> None:
    from tiny_models import backbone

    reader = Reader(backbone(kind="distilbert")).eval()
    batch = pairs(reader_toy.data, np.array([0]), np.array([3]), Window(60, 8))
    batch["ids"] = batch["ids"] % 50
    found = reader(batch)
    assert found.start.shape == batch["ids"].shape and found.score.shape == (1,)
