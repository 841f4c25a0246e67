"""The torch encoder: the same interface and, within rounding, the same vectors as ONNX Runtime's."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bpr.encoder import Encoder, Encodes
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.kernels import Cancel
from bpr.training import encode
from bpr.training.encode import TorchEncoder
from tiny_models import BITS, WORDS, make_model

RANDOM = np.random.default_rng(6)
PAIRS = [("" if row % 2 else "iliad", " ".join(RANDOM.choice(WORDS, row % 50 + 1))) for row in range(70)]


@pytest.fixture(scope="module")
def encoder(tiny_model: Path) -> TorchEncoder:
    return TorchEncoder.open(tiny_model, "cpu")


def test_it_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    make_model(tmp_path, int8=False)
    torch_one, onnx_one = TorchEncoder.open(tmp_path, "cpu"), Encoder.open(tmp_path)
    np.testing.assert_allclose(torch_one.passages(PAIRS), onnx_one.passages(PAIRS), rtol=1e-3, atol=1e-4)
    asked = [text for _, text in PAIRS]
    np.testing.assert_allclose(torch_one.questions(asked), onnx_one.questions(asked), rtol=1e-3, atol=1e-4)


def test_batches_leave_every_text_in_its_place(encoder: TorchEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoder.passages(PAIRS)
    assert whole.shape == (len(PAIRS), BITS) and whole.dtype == np.float32
    for most in (1, 100, 1000):
        monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", most)
        found = encoder.passages(PAIRS)
        np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-4)
        assert ((found > 0) == (whole > 0)).mean() > 0.999  # but for values within rounding of 0
    assert encoder.passages([]).shape == encoder.questions([]).shape == (0, BITS)


def test_batches_are_sorted_and_bounded(encoder: TorchEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", 200)
    texts = [encoder.tokens.passage(pair) for pair in PAIRS]
    batches = list(encoder._batches(texts))
    assert sorted(np.concatenate(batches)) == list(range(len(PAIRS)))
    longest = [max(len(texts[row].ids) for row in rows) for rows in batches]
    assert longest == sorted(longest, reverse=True)
    assert all(len(rows) * most <= 200 for rows, most in zip(batches, longest, strict=True))


def test_it_is_an_encoder(encoder: TorchEncoder, tiny_model: Path) -> None:
    def takes(one: Encodes) -> str:
        return one.model.fingerprint

    assert takes(encoder) == encoder.fingerprint == Encoder.open(tiny_model).fingerprint
    assert encoder.engine == "torch cpu torch.float32"
    assert encoder.engine != Encoder.open(tiny_model).engine


def test_limits_and_odd_input(encoder: TorchEncoder) -> None:
    with pytest.raises(DeadlineExceeded):
        encoder.passages(PAIRS, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        encoder.questions(["a"], cancel=cancel)
    with pytest.raises(InvalidInput, match="question 1 must be a string"):
        encoder.questions(["a", 3])
    with pytest.raises(InvalidInput, match="passages must be a list"):
        encoder.passages("text")
    assert np.isfinite(encoder.passages([("", ""), ("😀", "word " * 100_000)])).all()


def test_devices(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="sees no CUDA device"):
        TorchEncoder.open(tiny_model, "cuda")
    with pytest.raises(InvalidInput, match="is no device of torch"):
        TorchEncoder.open(tiny_model, "toaster")
    with pytest.raises(InvalidInput, match="use cpu or cuda"):
        TorchEncoder.open(tiny_model, "meta")
