"""Somebody else's encoder, and how it becomes a bpr model folder.

convert.py and sentences.py read them. Knows BERT's settings and weights once they have their usual names; what a model
folder is stands in model.py, what its float part holds in tower.py.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import model as models
from ..disk import Disk, storage_error
from ..errors import InvalidInput
from ..model import Model
from .tower import CONFIG, HEAD, WEIGHTS, Side, saving

if TYPE_CHECKING:
    from ..records import Progress

VOCABULARY, TOKENIZER_CONFIG = "vocab.txt", "tokenizer_config.json"
FOR_FLOATS = "trained for floats, not for bits: build with --rotate and two planes, or train on."
CARD = """# {name}

Converted by `bpr convert` from {source}.

{about}
"""


@dataclass(frozen=True)
class Foreign:
    """A side: BERT's configuration and weights, and the projection behind it, if there is one."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    projection: dict[str, Tensor]

    @property
    def bits(self) -> int:
        """How many values it gives."""
        return int(self.projection["projection.bias"].shape[0] if self.projection else self.config["hidden_size"])


def write(
    out: Path,
    model: Model,
    encoders: Mapping[Side, Foreign],
    tokenizer: Path,
    source: str,
    about: str,
    say: Progress,
) -> Model:
    """Make the model folder `out`, which must not be there yet. encoders: of both sides, or one for both."""
    if encoders["passage"].bits != model.bits:
        raise InvalidInput(f"questions get {model.bits} values and passages {encoders['passage'].bits}: no pair")
    with _new_folder(out) as folder:
        words, vectors = (
            _write_tokenizer(tokenizer, folder / models.TOKENIZER),
            encoders["passage"].config["vocab_size"],
        )
        if words > vectors:
            raise InvalidInput(f"{tokenizer} has {words} words and the encoders {vectors}: it is another model's")
        files = []
        for side, encoder in encoders.items():
            say(f"writing the {side} encoder", 0, None)
            files += _write_encoder(folder, side, encoder)
        # As training does it, so that a model is known by its weights wherever they come from.
        weights = hashlib.sha256("".join(models.sha256(folder / name) for name in sorted(files)).encode()).hexdigest()
        model = replace(model, weights=weights, tokenizer=models.sha256(folder / models.TOKENIZER))
        card = CARD.format(name=model.name, source=source, about=about)
        (folder / models.CARD).write_text(card, encoding="utf-8")
        models.save(folder, model, [*files, models.TOKENIZER, models.CARD])
    return model


def _write_encoder(folder: Path, side: Side, encoder: Foreign) -> list[str]:
    """Config, weights, and the head where there is one; their names, relative to the folder."""
    import transformers
    from safetensors.torch import save_file

    home = folder / f"{side}_encoder"
    home.mkdir()
    bert: Any = transformers.BertModel  # untyped
    try:
        backbone = bert(transformers.BertConfig(**encoder.config), add_pooling_layer=False)
        backbone.load_state_dict(encoder.weights)
    except (RuntimeError, ValueError, KeyError) as error:
        raise InvalidInput(f"the {side} encoder's weights do not fit its configuration: {error}") from None
    with saving(home):
        backbone.save_pretrained(home)
    names = [CONFIG, WEIGHTS]
    if encoder.projection:
        bits, hidden = encoder.bits, encoder.config["hidden_size"]
        if encoder.projection["projection.weight"].shape != (bits, hidden):
            raise InvalidInput(f"the {side} encoder's encode_proj does not lead from {hidden} values to {bits}")
        with saving(home):
            save_file({**encoder.projection, "sigma": torch.ones(bits)}, home / HEAD)
        names.append(HEAD)
    return [f"{home.name}/{name}" for name in names]


def _write_tokenizer(source: Path, target: Path) -> int:
    """tokenizer.json as it is, or made of a vocab.txt; how many words it knows."""
    names = [models.TOKENIZER, VOCABULARY]
    found = next((source / name for name in names if (source / name).is_file()), None) if source.is_dir() else source
    if found is None or not found.is_file():
        raise InvalidInput(f"{source} has no tokenizer: give the base model's tokenizer.json or vocab.txt")
    import tokenizers

    try:
        if found.name == VOCABULARY:
            made = tokenizers.BertWordPieceTokenizer(str(found), lowercase=_lower_case(found.parent))
            made.save(str(target))
        else:
            shutil.copyfile(found, target)
        return int(tokenizers.Tokenizer.from_file(str(target)).get_vocab_size())
    except OSError as error:
        raise storage_error("copy", found, error) from error
    except Exception as error:  # tokenizers raises Exception itself
        raise InvalidInput(f"{found} is no tokenizer: {error}") from None


def _lower_case(folder: Path) -> bool:
    """Whether a vocabulary is for lower case, as its folder says; BERT-base-uncased's is."""
    try:
        facts = json.loads((folder / TOKENIZER_CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return True
    return bool(facts.get("do_lower_case", True)) if isinstance(facts, dict) else True


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that gets its name when all is in it."""
    if out.exists():
        raise InvalidInput(f"{out} is there already: choose another name, or remove it first")
    disk = Disk()
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    disk.make_folder(partial)
    try:
        yield partial
        disk.replace(partial, out)
    except OSError as error:
        disk.remove_tree(partial)
        raise storage_error("write", out, error) from error
    except BaseException:
        disk.remove_tree(partial)
        raise
