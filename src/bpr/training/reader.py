"""The paper's reader: which passage answers a question, and which span of it. A BERT with three numbers a token.

    P_score   softmax over a question's passages of w_s · h_[CLS]
    P_start, P_end    softmax over the tokens of a passage's text of w · h_token

The loss is −log P_score(positive) − log P(span): of its first span, or of all its spans together. readertrainer.py
trains it, readings.py reads with it, export.py writes its graph. Knows tensors and a reader's folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from .. import model as models
from .. import reader as readers
from ..disk import made_folder, storage_error
from ..errors import InvalidInput
from ..reader import ReaderModel
from . import packed
from .packed import Packed
from .readerbatches import Inputs
from .tower import CONFIG, HEAD, WEIGHTS, load_backbone, load_tower, saving, width

HOME = "reader_encoder"  # in the folder: the float weights
START, END, SCORE = range(3)  # what the head gives
VERY_LOW = -1e4  # a logit that no softmax sees, without the NaN of a row of nothing but infinities


@dataclass(frozen=True)
class Objective:
    """What is minimised.

    spans: "first", that of the first span alone, as the paper's authors have it; "marginal", −log Σ P_start · P_end
    over up to ten spans, as DPR has it. over: tokens compete within their "passage" (both papers), or over all passages
    of the "question", so that spans of different passages can be compared.
    """

    spans: Literal["first", "marginal"] = "first"
    over: Literal["passage", "question"] = "passage"


class Logits(NamedTuple):
    """start, end: float32[tokens]; score: float32[texts]."""

    start: Tensor
    end: Tensor
    score: Tensor


class Reader(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, backbone: nn.Module, head: nn.Linear | None = None) -> None:
        """backbone: any transformers AutoModel whose output has last_hidden_state. head: to 3 numbers; None: fresh."""
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width(backbone), 3) if head is None else head
        if head is None:
            nn.init.normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    def forward(self, batch: Inputs) -> Logits:
        """batch: as readerbatches.pairs gives it."""
        states = self._states(batch)  # [tokens, hidden]
        with torch.autocast(states.device.type, enabled=False):
            found = self.head(states.to(self.head.weight.dtype))  # [tokens, 3]
        return Logits(found[:, START], found[:, END], found[batch["starts"][:-1].long(), SCORE])

    def _states(self, batch: Inputs) -> Tensor:
        names = ("ids", "positions", "text", "starts", "longest", "segments")
        joined = Packed(*(batch[name] for name in names))
        if packed.fits(self.backbone):
            return packed.states(self.backbone, joined)
        # Any other model, and any other machine: padded.
        shape = (len(joined.starts) - 1, joined.longest)
        at = (joined.text, joined.positions)

        def spread(values: Tensor) -> Tensor:
            return values.new_zeros(shape).index_put(at, values)

        given = {"input_ids": spread(joined.ids), "attention_mask": spread(torch.ones_like(joined.ids))}
        if joined.segments is not None:
            given["token_type_ids"] = spread(joined.segments)
        states: Tensor = self.backbone(**given).last_hidden_state[at]
        return states


def losses(found: Logits, batch: Inputs, objective: Objective) -> dict[str, Tensor]:
    """The parts whose sum is minimised, each the mean over questions. batch: as readerbatches.Collate gives it."""
    places, spans = batch["places"], batch["spans"]  # [q, passages], [q, most, 2]
    scores = found.score[places.clamp_min(0)].masked_fill(places < 0, VERY_LOW)  # [q, passages]
    passage = cross_entropy(scores, torch.zeros_like(places[:, 0]))
    rivals = places if objective.over == "question" else places[:, :1]
    start, end = (_positive(each, rivals, batch) for each in (found.start, found.end))  # [q, longest]
    firsts, lasts = spans.clamp_min(0).unbind(2)  # [q, most]
    joint = (start.gather(1, firsts) + end.gather(1, lasts)).masked_fill(spans[:, :, 0] < 0, VERY_LOW)  # [q, most]
    each = -(joint[:, 0] if objective.spans == "first" else joint.logsumexp(1))  # [q]
    seen = (spans[:, 0, 0] >= 0).float()  # a window may have cut all of them off
    return {"passage": passage, "span": (each * seen).sum() / seen.sum().clamp_min(1)}


def _positive(logits: Tensor, rivals: Tensor, batch: Inputs) -> Tensor:
    """log P of each token of the positive's text, among those of its rivals.  [tokens] → [q, longest]"""
    every = in_texts(logits, batch, rivals.clamp_min(0))  # [q, rivals, longest]
    every = every.masked_fill((rivals < 0).unsqueeze(2), VERY_LOW)
    return log_softmax(every.flatten(1), 1)[:, : batch["longest"]]


def in_texts(logits: Tensor, batch: Inputs, which: Tensor, fill: float = VERY_LOW) -> Tensor:
    """The logits of some sequences, padded; `fill` outside the passages' texts.  [tokens] → [*which, longest]"""
    columns = torch.arange(batch["longest"], device=logits.device)
    begins, ends = batch["begins"][which].unsqueeze(-1), batch["ends"][which].unsqueeze(-1)
    real = (columns >= begins) & (columns < ends)
    at = (batch["starts"].long()[which].unsqueeze(-1) + columns).clamp_max(len(logits) - 1)
    return logits[at].masked_fill(~real, fill)


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def begun(start: str) -> Reader:
    """A reader to train: from transformers weights or a bpr model's passage encoder, with a fresh head; or a reader."""
    folder = models.resolve(start)
    if (folder / readers.CONFIG).exists() and (folder / HOME).is_dir():
        return load(folder)[0]
    if (folder / models.CONFIG).exists():
        return Reader(load_tower(folder, "passage").backbone).float()
    return Reader(load_backbone(start)).float()


def load(folder: str | Path) -> tuple[Reader, ReaderModel]:
    """The float reader of a folder, ready to evaluate, and what the folder says of it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    home = models.resolve(folder)
    model, files = readers.load_model(home)
    for name in (CONFIG, WEIGHTS, HEAD):
        models.check_file(home, f"{HOME}/{name}", files, readers.CONFIG)
    backbone = load_backbone(home / HOME)
    head = nn.Linear(width(backbone), 3)
    try:
        head.load_state_dict(load_file(home / HOME / HEAD))
    except (SafetensorError, RuntimeError) as error:
        raise InvalidInput(f"{home / HOME / HEAD} is not the head of a reader: {error}") from error
    return Reader(backbone, head).float().eval(), model


def save(folder: Path, reader: Reader, model: ReaderModel, tokenizer: Path) -> ReaderModel:
    """Write a reader's folder but its ONNX: float weights in Hugging Face's layout, the tokenizer, reader.json.

    The model that comes back is the given one with the sums of what was written.
    """
    from safetensors.torch import save_file

    where, head = folder / HOME, reader.head.state_dict()
    try:
        with made_folder(folder, whole=True):
            where.mkdir(exist_ok=True)
            with saving(where):
                reader.backbone.save_pretrained(where)  # type: ignore[operator]  # a transformers model
                save_file({name: value.detach().cpu().contiguous() for name, value in head.items()}, where / HEAD)
            if tokenizer.resolve() != (folder / models.TOKENIZER).resolve():
                shutil.copyfile(tokenizer, folder / models.TOKENIZER)
            names = [f"{HOME}/{name}" for name in (CONFIG, WEIGHTS, HEAD)]
            sums = {name: models.sha256(folder / name) for name in names}
            weights = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
            made = replace(model, weights=weights, tokenizer=models.sha256(folder / models.TOKENIZER))
            readers.save_model(folder, made, [*names, models.TOKENIZER])
    except OSError as error:
        raise storage_error("write", folder, error) from error
    return made


def check_fit(reader: Reader, longest: int, highest: int, start: str) -> None:
    """Refuse what the network would stumble over in the middle of a run. highest: the largest token of the data."""
    config: Any = reader.backbone.config
    places = int(getattr(config, "max_position_embeddings", longest))
    if longest > places:
        raise InvalidInput(f"{start} reads {places} tokens, and the recipe wants {longest}")
    words = int(getattr(config, "vocab_size", 1 << 62))
    if highest >= words:
        raise InvalidInput(
            f"{start} knows {words} tokens, and the data has the number {highest}: it was cut by another tokenizer"
        )
