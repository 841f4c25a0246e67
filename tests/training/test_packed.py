"""BERT without padding computes what Hugging Face's module computes with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from bpr.model import Model
from bpr.training import packed
from bpr.training.tower import pool


@pytest.fixture(scope="module")
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    model = BertModel(config, add_pooling_layer=False)
    for name, value in model.named_parameters():  # biases and norms begin at 0 and 1: make every part count
        if value.dim() == 1:
            torch.nn.init.normal_(value, 1.0 if "LayerNorm.weight" in name else 0.0, 0.3)
    return model.eval()


def batch(lengths: list[int]) -> tuple[Tensor, Tensor]:
    longest = max(lengths)
    mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).long()
    return torch.randint(1, 90, (len(lengths), longest), generator=torch.Generator().manual_seed(1)) * mask, mask


def test_texts_end_to_end_know_where_they_begin() -> None:
    ids, mask = batch([3, 1, 5])
    texts = packed.Packed.of(ids, mask)
    assert texts.starts.tolist() == [0, 3, 4, 9]
    assert texts.lengths.tolist() == [3, 1, 5]
    assert texts.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4]
    assert texts.text.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert texts.ids.tolist() == [*ids[0, :3].tolist(), *ids[1, :1].tolist(), *ids[2].tolist()]


def test_texts_that_were_never_padded_are_the_same() -> None:
    ids, mask = batch([3, 1, 5])
    rows = [each[each_mask.bool()].numpy() for each, each_mask in zip(ids, mask, strict=True)]
    segments = [row % 2 for row in rows]
    wanted = packed.Packed.of(ids, mask, ids % 2)
    found = packed.Packed.end_to_end(rows, segments, torch.device("cpu"))
    for name in ("ids", "positions", "text", "starts", "segments"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    assert found.longest == wanted.longest
    assert packed.Packed.end_to_end(rows, None, torch.device("cpu")).segments is None


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_those_of_the_padded_module(bert: BertModel, pooling: str, normalize: bool) -> None:
    ids, mask = batch([7, 2, 19, 12])
    model = Model("m", 32, pooling=pooling, normalize=normalize)  # type: ignore[arg-type]
    with torch.no_grad():
        wanted = pool(bert(input_ids=ids, attention_mask=mask).last_hidden_state, mask, model)
        texts = packed.Packed.of(ids, mask)
        found = packed.pooled(packed.states(bert, texts, torch.float32), texts, pooling, normalize)
        half = packed.pooled(packed.states(bert, texts), texts, pooling, normalize)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(half, wanted, atol=0.05, rtol=0.05)
    assert half.dtype == torch.float32


def test_segments_are_seen(bert: BertModel) -> None:
    ids, mask = batch([7, 4])
    segments = torch.zeros_like(ids)
    segments[:, 3:] = 1
    model = Model("m", 32, pooling="mean")
    with torch.no_grad():
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments * mask}
        wanted = pool(bert(**given).last_hidden_state, mask, model)
        texts = packed.Packed.of(ids, mask, segments)
        found = packed.pooled(packed.states(bert, texts, torch.float32), texts, "mean", False)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_gradients_are_those_of_the_padded_module(bert: BertModel) -> None:
    ids, mask = batch([4, 9])
    aim = torch.randn(2, 32, generator=torch.Generator().manual_seed(2))
    model = Model("m", 32, pooling="mean")
    (pool(bert(input_ids=ids, attention_mask=mask).last_hidden_state, mask, model) * aim).sum().backward()
    wanted = {name: value.grad.clone() for name, value in bert.named_parameters() if value.grad is not None}
    bert.zero_grad()
    texts = packed.Packed.of(ids, mask)
    (packed.pooled(packed.states(bert, texts, torch.float32), texts, "mean", False) * aim).sum().backward()
    for name, value in bert.named_parameters():
        if name in wanted:
            torch.testing.assert_close(value.grad, wanted[name], atol=1e-4, rtol=1e-4)
    bert.zero_grad()


def test_dropout_is_there_while_training(bert: BertModel) -> None:
    ids, mask = batch([6, 6])
    texts = packed.Packed.of(ids, mask)
    bert.train()
    try:
        first, second = (packed.states(bert, texts, torch.float32) for _ in range(2))
    finally:
        bert.eval()
    assert not torch.equal(first, second)


def test_only_a_gpu_in_half_precision_uses_it(bert: BertModel) -> None:
    assert not packed.fits(bert)
    assert not packed.fits(torch.nn.Linear(2, 2))
