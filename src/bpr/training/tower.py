"""One side of the bi-encoder: backbone, pooling, projection. How text ids become vectors, in torch, in one place.

Training, the export and the GPU encoder call it. Knows a model folder's float part; nothing of losses, ONNX or bits.

    question side    v = W·pool(BERT(ids)) + b
    passage side     v = (W·pool(BERT(ids)) + b) / σ        σ: the spread of the passages' outputs, one for each bit
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .. import model as models
from ..disk import storage_error
from ..errors import InvalidInput
from ..model import Model
from . import packed

Side: TypeAlias = Literal["question", "passage"]

CONFIG, WEIGHTS, HEAD = "config.json", "model.safetensors", "head.safetensors"


class Head(nn.Module):
    """What follows the pooling: a projection to the bits (or none) and the spread σ of the passages' outputs."""

    sigma: Tensor

    def __init__(self, hidden: int, bits: int, projected: bool = True) -> None:
        """hidden: width of the backbone. Without a projection the pooled vector itself is the output: bits = hidden."""
        super().__init__()
        if not projected and hidden != bits:
            raise InvalidInput(
                f"the backbone gives {hidden} values and the model has {bits} bits: it needs a projection"
            )
        self.projection = nn.Linear(hidden, bits) if projected else None
        self.register_buffer("sigma", torch.ones(bits))  # float[bits]


class Tower(nn.Module):
    """A side as one module: ids in, vectors out."""

    def __init__(self, backbone: nn.Module, head: Head, model: Model, side: Side) -> None:
        """backbone: any transformers AutoModel whose output has last_hidden_state."""
        super().__init__()
        self.backbone, self.head = backbone, head
        self.model, self.side = model, side
        self.compiled = False  # on a GPU, through torch.compile

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """int64[n, length], with a mask where rows are padded → float[n, bits]."""
        return self.scaled(self.outputs(input_ids, attention_mask, token_type_ids))

    def scaled(self, outputs: Tensor) -> Tensor:
        """A passage's in units of σ."""
        return outputs / self.head.sigma if self.side == "passage" else outputs

    def outputs(
        self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None, tokens: int | None = None
    ) -> Tensor:
        """The outputs e, not in units of σ.  int64[n, length] → float[n, bits]"""
        return projected(self.pooled(ids, mask, segments, tokens), self.head)

    def pooled(
        self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None, tokens: int | None = None
    ) -> Tensor:
        """What the head is given, in its precision: a backbone in bfloat16 may have a head in float32.  [n, hidden]

        tokens: how many are no padding, if it is known (see packed.Packed.of).
        """
        if mask is not None and packed.fits(self.backbone):
            return self.pooled_texts(packed.Packed.of(ids, mask, segments, tokens))
        given = {"attention_mask": mask, "token_type_ids": segments}
        out = self.backbone(input_ids=ids, **{name: value for name, value in given.items() if value is not None})
        return pool(out.last_hidden_state.to(self.head.sigma.dtype), mask, self.model)

    def pooled_texts(self, batch: packed.Packed) -> Tensor:
        """The same of texts that lie end to end.  → [texts, hidden]"""
        states = packed.compiled() if self.compiled else packed.states
        return packed.pooled(states(self.backbone, batch), batch, self.model.pooling, self.model.normalize)


def vectors_of(hidden: Tensor, mask: Tensor | None, head: Head, model: Model, side: Side) -> Tensor:
    """float[n, length, hidden], mask int[n, length] (None: nothing is padded) → float[n, bits]."""
    vectors = projected(pool(hidden.to(head.sigma.dtype), mask, model), head)  # [n, bits]
    return vectors / head.sigma if side == "passage" else vectors


def projected(pooled: Tensor, head: Head) -> Tensor:
    """float[n, hidden] → float[n, bits], never in half precision: it decides the bits, and costs next to nothing."""
    if head.projection is None:
        return pooled
    with torch.autocast(pooled.device.type, enabled=False):
        vectors: Tensor = head.projection(pooled.to(head.sigma.dtype))
    return vectors


def pool(hidden: Tensor, mask: Tensor | None, model: Model) -> Tensor:
    """float[n, length, hidden] → float[n, hidden]: the first token, or the mean of those that are no padding."""
    if model.pooling == "cls":
        pooled = hidden[:, 0]
    elif mask is None:
        pooled = hidden.mean(dim=1)
    else:
        weights = mask.unsqueeze(-1).to(hidden.dtype)  # [n, length, 1]
        pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
    return nn.functional.normalize(pooled, dim=-1) if model.normalize else pooled


def home(folder: Path, side: Side, model: Model) -> Path:
    """Where a side's float weights lie; a shared model has them once."""
    return folder / f"{'passage' if model.shared else side}_encoder"


def load_tower(folder: str | Path, side: Side, **options: Any) -> Tower:
    """A side of the model in this folder, in float32 and ready to evaluate. options: as for AutoModel."""
    folder = models.resolve(folder)
    model, files = models.load(folder)
    where = home(folder, side, model)
    for name in (f"{where.name}/{CONFIG}", f"{where.name}/{WEIGHTS}"):
        models.check_file(folder, name, files)
    backbone = load_backbone(where, **options)
    head_name = f"{where.name}/{HEAD}"
    head = load_head(models.check_file(folder, head_name, files) if head_name in files else None, backbone, model)
    return Tower(backbone, head, model, side).float().eval()  # weights may be stored in half precision


def load_backbone(where: str | Path, **options: Any) -> nn.Module:
    """A transformers AutoModel from a folder of config.json and model.safetensors, without BERT's unused pooler."""
    import transformers

    # From a folder alone: neither code nor weights that are not safetensors, and nothing from the network.
    options = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True, **options}
    try:
        with quiet_bars():
            try:
                backbone = transformers.AutoModel.from_pretrained(where, add_pooling_layer=False, **options)
            except TypeError:  # an architecture that has no such layer
                backbone = transformers.AutoModel.from_pretrained(where, **options)
    except MemoryError:
        raise
    except Exception as error:  # what a strange configuration or damaged weights make of it has no common base
        why = " ".join(str(error).split())
        raise InvalidInput(f"{where} holds no encoder that transformers can open: {why}") from error
    if not isinstance(backbone, nn.Module):
        raise InvalidInput(f"{where} holds no torch encoder")
    return backbone


@contextmanager
def quiet_bars() -> Iterator[None]:
    """transformers draws a progress bar for every file, also where nobody looks on."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Around transformers and safetensors that write there: no bar, and `refusals`.

    Weights may be read by whoever may read config.json: safetensors makes files for their owner alone.
    """
    with quiet_bars(), refusals():
        yield
        for weights in folder.glob("*.safetensors"):
            shutil.copymode(folder / CONFIG, weights)


@contextmanager
def refusals() -> Iterator[None]:
    """Around safetensors that writes: what the disk refuses is an OSError, as usual."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        refused = re.search(r"os error (\d+)", str(error))
        if refused is None:
            raise
        raise OSError(int(refused[1]), str(error)) from error


def load_head(path: Path | None, backbone: nn.Module, model: Model) -> Head:
    """The head of a file; None: no projection, σ = 1."""
    hidden = width(backbone)
    if path is None:
        return Head(hidden, model.bits, projected=False)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        head = Head(hidden, model.bits, projected="projection.weight" in tensors)
        head.load_state_dict(tensors)
    except OSError as error:
        raise storage_error("read", path, error) from error
    except (SafetensorError, RuntimeError) as error:
        raise InvalidInput(f"{path} is not the head of a model with {model.bits} bits: {error}") from error
    if not bool((head.sigma > 0).all() & head.sigma.isfinite().all()):
        raise InvalidInput(f"{path}: sigma must be finite and positive in every dimension")
    return head


def save_tower(folder: Path, side: Side, backbone: nn.Module, head: Head) -> list[str]:
    """Write a side's float weights in Hugging Face's layout; the names of its files, relative to the folder."""
    from safetensors.torch import save_file

    where = folder / f"{side}_encoder"
    where.mkdir(parents=True, exist_ok=True)
    with saving(where):
        backbone.save_pretrained(where)  # type: ignore[operator]  # a transformers model
        save_file({name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}, where / HEAD)
    return [f"{where.name}/{name}" for name in (CONFIG, WEIGHTS, HEAD)]


def save_model(folder: Path, model: Model, towers: Iterable[Tower], tokenizer: Path) -> Model:
    """Write a whole model folder but its ONNX: the towers (one, if shared), the tokenizer's file, bpr.json.

    The model that comes back is the given one with the sums of what was written, which make its fingerprint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for tower in towers:
        names += save_tower(folder, "passage" if model.shared else tower.side, tower.backbone, tower.head)
    if tokenizer.resolve() != (folder / models.TOKENIZER).resolve():
        shutil.copyfile(tokenizer, folder / models.TOKENIZER)
    sums = {name: models.sha256(folder / name) for name in sorted(names)}
    weights = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
    model = replace(model, weights=weights, tokenizer=models.sha256(folder / models.TOKENIZER))
    card = [models.CARD] if (folder / models.CARD).is_file() else []
    models.save(folder, model, [*names, models.TOKENIZER, *card])
    return model


def width(backbone: nn.Module) -> int:
    """How many values the backbone gives a token."""
    return int(backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]
