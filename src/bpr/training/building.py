"""The bi-encoder that a run begins with: from transformers weights with a fresh head, or from a bpr model as it stands.

run.py calls it. Knows recipes, towers and prepared data; nothing of losses or of the Trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import set_seed

from .. import model as models
from ..errors import InvalidInput
from ..model import Model
from .batches import Schedule, Tokens
from .biencoder import BiEncoder, start_orthogonal
from .prepared import Prepared
from .recipe import Recipe
from .tower import Head, Tower, load_backbone, load_tower, projected, width
from .validation import by_length

CALIBRATION = 2048  # questions that the first mean and spread are measured on, with their passages
SMALLEST_SIGMA = 1e-6


def described(recipe: Recipe, bits: int) -> Model:
    """The model that a recipe trains."""
    plain = Model(
        name=recipe.name,
        bits=bits,
        pooling=recipe.pooling,
        normalize=recipe.normalize,
        shared=recipe.shared,
        question_length=recipe.diet.question_length,
        passage_length=recipe.diet.passage_length,
    )
    return models.two_planes(plain) if recipe.objective.code == "bits" and recipe.objective.planes == 2 else plain


def built(recipe: Recipe, data: Prepared, device: torch.device | str = "cpu") -> tuple[BiEncoder, Model]:
    """A bi-encoder to train, and what its model folder will say."""
    set_seed(recipe.seed)
    folder = models.resolve(recipe.start)
    if (folder / models.CONFIG).exists():
        question, passage, fresh = _continued(recipe, folder)
    else:
        question, passage, fresh = *_begun(recipe), True
    _check_fit(passage, recipe, data)
    question.compiled = passage.compiled = recipe.compile
    bi = BiEncoder(question, passage, recipe.objective).float().to(device)
    set_dropout(bi, 0.0 if recipe.freeze == "encoders" else recipe.dropout)
    _freeze(bi, recipe)
    start_heads(bi, recipe, data, fresh)
    if not recipe.question_bias and bi.question.head.projection is not None:
        bi.question.head.projection.bias.data.zero_()
        bi.question.head.projection.bias.requires_grad_(False)
    return bi, passage.model


def _begun(recipe: Recipe) -> tuple[Tower, Tower]:
    """From transformers weights: the head is fresh."""
    backbone = load_backbone(recipe.start)
    hidden = width(backbone)
    model = described(recipe, recipe.bits or hidden)

    def head() -> Head:
        return Head(hidden, model.bits, recipe.project or model.bits != hidden)

    passage = Tower(backbone, head(), model, "passage")
    if recipe.shared:
        return Tower(backbone, passage.head, model, "question"), passage
    return Tower(load_backbone(recipe.start), head(), model, "question"), passage


def _continued(recipe: Recipe, folder: Path) -> tuple[Tower, Tower, bool]:
    """From a bpr model: its weights go on, and its head unless another number of bits (or a projection) is wanted.

    The third value says whether the head is fresh.
    """
    before, _ = models.load(folder)
    question, passage = load_tower(folder, "question"), load_tower(folder, "passage")
    model = described(recipe, recipe.bits or before.bits)
    fresh = model.bits != before.bits or (recipe.project and passage.head.projection is None)
    for tower in (question, passage):
        tower.model = model
        if fresh:
            tower.head = Head(width(tower.backbone), model.bits)
    if model.shared:
        question.backbone, question.head = passage.backbone, passage.head
    return question, passage, fresh


def _check_fit(tower: Tower, recipe: Recipe, data: Prepared) -> None:
    """Refuse what the encoder would stumble over in the middle of a run."""
    if any(not 0 < bits <= tower.model.bits for bits in recipe.objective.nested):
        raise InvalidInput(f"nested = {recipe.objective.nested}: the model has {tower.model.bits} bits")
    config = tower.backbone.config
    longest = max(recipe.diet.question_length, recipe.diet.passage_length)
    places = int(getattr(config, "max_position_embeddings", longest))
    if longest > places:
        raise InvalidInput(f"{recipe.start} reads {places} tokens, and the recipe wants {longest}")
    words = int(getattr(config, "vocab_size", 1 << 62))
    used = max(int(each.flat.max(initial=0)) for each in (data.titles, data.texts, data.questions))
    if used >= words:
        raise InvalidInput(
            f"{recipe.start} knows {words} tokens, and the data has the number {used}: it was cut by another tokenizer"
        )


def _freeze(bi: BiEncoder, recipe: Recipe) -> None:
    """What the recipe leaves as it is."""
    for tower in (bi.question, bi.passage):
        if recipe.freeze == "encoders":
            tower.backbone.requires_grad_(False)
        elif recipe.freeze == "embeddings":
            tower.backbone.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]


def set_dropout(module: nn.Module, share: float) -> None:
    """Wherever transformers has put it."""
    for each in module.modules():
        for name in ("p",) if isinstance(each, nn.Dropout) else ("dropout_prob",):  # the second is attention's own
            if hasattr(each, name):
                setattr(each, name, share)


@torch.no_grad()
def start_heads(bi: BiEncoder, recipe: Recipe, data: Prepared, fresh: bool = True) -> None:
    """Measure mean and spread of both sides on some texts, and set fresh projections, and σ, from them."""
    schedule = Schedule(data, recipe.diet, 1, recipe.seed)
    items = [schedule[i] for i in range(min(CALIBRATION, len(schedule)))]
    bits = recipe.objective.code == "bits"
    sides = [(bi.passage, [text for item in items for text in item.passages])]
    if not bi.shared:  # otherwise the head is the passages'
        sides.append((bi.question, [text for item in items for text in item.questions]))
    for tower, texts in sides:
        pooled = pooled_of(tower, texts, data.facts["pad"])  # [n, hidden]
        if fresh:
            centred = bits and (recipe.question_bias or tower.side == "passage")
            start_orthogonal(tower.head, pooled.mean(0) if centred else pooled.mean(0) * 0, recipe.seed)
        if bits:
            e = projected(pooled, tower.head)  # [n, bits]
            tower.head.sigma.copy_(e.square().mean(0).sqrt().clamp_min(SMALLEST_SIGMA))
        else:
            tower.head.sigma.fill_(1)


def pooled_of(tower: Tower, texts: Sequence[Tokens], pad: int) -> Tensor:
    """What the projection gets.  float32 [n, hidden]"""
    return by_length(tower, tower.pooled, texts, pad)
