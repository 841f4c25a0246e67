"""Other people's encoders to a bpr model folder: the BPR authors' Lightning checkpoints, and DPR-style folders.

`bpr convert checkpoint` calls it, and sentences.py with encoders of another kind. The only place that calls torch.load:
with weights_only, and the settings that Lightning stores beside the weights as plain values. Knows the names that
weights have elsewhere; what a model folder is stands in model.py, what its float part holds in tower.py.

    checkpoint   one .ckpt of studio-ousia/bpr           query_encoder.*, passage_encoder.*
    folders      two folders of Hugging Face's layout    question_encoder.bert_model.*, ctx_encoder.bert_model.*
                 (castorini/bpr-nq-*, facebook/dpr-*)

Only weights whose names are known are taken; any other is an error that names it, since a model without some of its
weights works, and works badly.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..disk import storage_error
from ..errors import InvalidInput
from ..model import Model
from .foreign import FOR_FLOATS, Foreign, write
from .tower import CONFIG, WEIGHTS, Side

if TYPE_CHECKING:
    from ..records import Progress

Family = Literal["bpr", "dpr"]

SIDES: dict[Side, tuple[str, str]] = {  # prefixes of a side's weights: in a checkpoint, in a folder
    "question": ("query_encoder.", "question_encoder."),
    "passage": ("passage_encoder.", "ctx_encoder."),
}
BERT_MODEL = "bert_model."  # what follows the prefix in a folder
OLD_WEIGHTS = "pytorch_model.bin"

_BERT = re.compile(
    r"embeddings\.(word|position|token_type)_embeddings\.weight|embeddings\.LayerNorm\.(weight|bias)"
    r"|encoder\.layer\.\d{1,3}\.(attention\.self\.(query|key|value)|attention\.output\.(dense|LayerNorm)"
    r"|intermediate\.dense|output\.(dense|LayerNorm))\.(weight|bias)"
)
_UNUSED = re.compile(r"pooler\.dense\.(weight|bias)|embeddings\.position_ids")  # the vector is the first token's own
_AUTHORS_HEAD = re.compile(r"(dense|layer_norm)\.(weight|bias)")
_HEAD_SIZE = 64  # of every published BERT; no weight's shape tells the number of heads
# Lightning's own dict of settings, read as a plain one, so that Lightning need not be there.
_DICTS = ("pytorch_lightning.utilities.parsing.AttributeDict", "lightning_fabric.utilities.data.AttributeDict")
# What may be taken from a foreign config.json: nothing that could name code.
_CONFIG_FIELDS = {
    "vocab_size": int,
    "hidden_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "intermediate_size": int,
    "max_position_embeddings": int,
    "type_vocab_size": int,
    "pad_token_id": int,
    "layer_norm_eps": float,
    "hidden_dropout_prob": float,
    "attention_probs_dropout_prob": float,
    "hidden_act": str,
}

NOT_COMMERCIAL = """The licence of the weights is that of their source: the checkpoints published with BPR and with DPR
are CC BY-NC 4.0, so they may not be used commercially. """
TRAINED: dict[Family, str] = {
    "bpr": NOT_COMMERCIAL + "The encoders were trained for bits.",
    "dpr": NOT_COMMERCIAL + f"The encoders were {FOR_FLOATS}",
}


def checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    tokenizer: str | Path,
    config: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """A .ckpt of the BPR authors' code to the model folder `out`, which must not be there yet; what it describes.

    tokenizer: the base model's tokenizer.json or vocab.txt, or a folder that has one; the checkpoint has none.
    config: the base model's config.json, needed only where an attention head is not 64 wide. The whole checkpoint is
    in memory, its optimizer too: about 3 GB for two BERT-base.
    """
    path = Path(source)
    say = progress or (lambda what, done, total: None)
    say("reading the checkpoint", 0, None)
    loaded = _load(path)
    state = loaded.get("state_dict")
    if not isinstance(state, Mapping):
        raise InvalidInput(f"{path} has no state_dict: it is no checkpoint of PyTorch Lightning")
    settings = _settings(path, loaded)
    known = None if config is None else read_config(Path(config))
    sides = _by_prefix(path, state, {side: prefixes[0] for side, prefixes in SIDES.items()})
    encoders = {side: _from_checkpoint(path, weights, known) for side, weights in sides.items()}
    model = Model(
        name=name or path.stem,
        bits=encoders["question"].bits,
        token_types=True,
        question_length=_length(path, settings, "max_query_length"),
        passage_length=_length(path, settings, "max_passage_length"),
    )
    return write(Path(out), model, encoders, Path(tokenizer), path.name, TRAINED["bpr"], say)


def folders(
    question: str | Path,
    passage: str | Path,
    out: str | Path,
    *,
    family: Family,
    tokenizer: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """Two folders of Hugging Face's layout to the model folder `out`, which must not be there yet; what it describes.

    family: "bpr" for castorini/bpr-nq-*, "dpr" for facebook/dpr-*. The weights do not tell, but it matters: BPR was
    trained with a passage's text as segment 1, DPR with all as segment 0. tokenizer: None for the question folder's.
    """
    if family not in ("bpr", "dpr"):
        raise InvalidInput(f'the family must be "bpr" or "dpr", not {family!r}')
    say = progress or (lambda what, done, total: None)
    places: dict[Side, Path] = {"question": Path(question), "passage": Path(passage)}
    encoders: dict[Side, Foreign] = {}
    for side, place in places.items():
        say(f"reading the {side} encoder", 0, None)
        encoders[side] = _from_folder(place, SIDES[side][1])
    model = Model(
        name=name or Path(out).name,
        bits=encoders["question"].bits,
        token_types=family == "bpr",
    )
    source = " and ".join(place.resolve().name for place in places.values())
    return write(Path(out), model, encoders, Path(tokenizer or question), source, TRAINED[family], say)


# ── Weights by name ──────────────────────────────────────────────────────────────────────────────────────────────────


def _from_checkpoint(path: Path, state: Mapping[str, Tensor], config: dict[str, Any] | None) -> Foreign:
    if any(_AUTHORS_HEAD.fullmatch(key) for key in state):
        raise InvalidInput(
            f"{path} was trained with projection_dim_size, whose LayerNorm a model of bpr does not have: it cannot be "
            "converted; the published checkpoints have none"
        )
    weights = bert_weights(path, state)
    return Foreign(complete(path, weights, config or {}), weights, {})


def _from_folder(folder: Path, prefix: str) -> Foreign:
    path = weights_file(folder)
    state = load_weights(path)
    (own,) = _by_prefix(path, state, {"question": prefix}).values()
    projection = {f"projection.{end}": own.pop(f"encode_proj.{end}", None) for end in ("weight", "bias")}
    present = {key: value for key, value in projection.items() if value is not None}
    if len(present) == 1:
        raise InvalidInput(f"{path} has {prefix}encode_proj only in part: take the file from its source again")
    _refuse_unknown(path, [prefix + key for key in own if not key.startswith(BERT_MODEL)])
    bert = bert_weights(path, {key.removeprefix(BERT_MODEL): value for key, value in own.items()})
    config = complete(path, bert, read_config(folder / CONFIG))
    return Foreign(config, bert, {key: _float(path, key, value) for key, value in present.items()})


def _by_prefix(path: Path, state: Mapping[str, Any], prefixes: dict[Side, str]) -> dict[Side, dict[str, Tensor]]:
    """The tensors of each side, without its prefix."""
    sides: dict[Side, dict[str, Tensor]] = {side: {} for side in prefixes}
    unknown = []
    for key, value in state.items():
        side = next((side for side, prefix in prefixes.items() if str(key).startswith(prefix)), None)
        if side is None or not isinstance(value, Tensor):
            unknown.append(str(key))
        else:
            sides[side][str(key).removeprefix(prefixes[side])] = value
    for side, prefix in prefixes.items():
        if not sides[side]:
            raise InvalidInput(f"{path} has no weights that begin with {prefix}: is it the right file, on this side?")
    _refuse_unknown(path, unknown)
    return sides


def bert_weights(path: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """BERT's own weights in float32; what BERT has and the vector does not need is left out."""
    _refuse_unknown(path, [key for key in state if not _BERT.fullmatch(key) and not _UNUSED.fullmatch(key)])
    return {key: _float(path, key, value) for key, value in state.items() if _BERT.fullmatch(key)}


def _refuse_unknown(path: Path, keys: list[str]) -> None:
    if keys:
        some = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        raise InvalidInput(f"{path} holds what is no weight of a BPR or DPR encoder on BERT: {some}")


def _float(path: Path, key: str, value: Tensor) -> Tensor:
    if not value.is_floating_point() or value.layout != torch.strided or not bool(value.isfinite().all()):
        raise InvalidInput(f"{path}: {key} is not a dense tensor of finite numbers")
    return value.detach().to("cpu", torch.float32, copy=True).contiguous()


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def weights_file(folder: Path) -> Path:
    """Where the weights of a folder are."""
    path = folder / WEIGHTS if (folder / WEIGHTS).is_file() else folder / OLD_WEIGHTS
    if not path.is_file():
        raise InvalidInput(f"{folder} has neither {WEIGHTS} nor {OLD_WEIGHTS}: is it the folder of an encoder?")
    return path


def load_weights(path: Path) -> Mapping[str, Any]:
    """Of such a file."""
    return _load_safetensors(path) if path.name == WEIGHTS else _load(path)


def read_json(path: Path) -> Any:
    """What a file of a foreign folder holds; None where there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from None


def _load(path: Path) -> Mapping[str, Any]:
    """A file of torch.save, from which only tensors, plain values and Lightning's settings are taken."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace, *((dict, name) for name in _DICTS)]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except OSError as error:
        raise storage_error("read", path, error) from error
    except Exception as error:  # whatever a file can be, torch's reader has an exception of its own for it
        raise InvalidInput(
            f"{path} cannot be read as plain weights: {_reason(error)}; if you trust it, load it where it was made "
            "and save its state_dict alone"
        ) from None
    if not isinstance(loaded, Mapping):
        raise InvalidInput(f"{path} holds no named weights but one {type(loaded).__name__}")
    return loaded


def _reason(error: Exception) -> str:
    """What torch found, without its advice, which is to read the file unsafely."""
    text = str(error)
    if named := re.search(r"GLOBAL (\S+)", text):
        return f"it names {named[1]}, which is code"
    if text.startswith("Weights only load failed"):
        return "it holds other things than weights and settings"
    return text.split(". ")[0][:200] or "it is damaged or cut short"


def _load_safetensors(path: Path) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        loaded: dict[str, Tensor] = load_file(path)
    except OSError as error:
        raise storage_error("read", path, error) from error
    except SafetensorError as error:
        raise InvalidInput(f"{path} is damaged ({error}): take it from its source again") from None
    return loaded


def _settings(path: Path, loaded: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the training was called with; empty where the checkpoint does not say."""
    found = loaded.get("hyper_parameters", loaded.get("hparams", {}))
    found = vars(found) if isinstance(found, argparse.Namespace) else found
    if not isinstance(found, Mapping):
        raise InvalidInput(f"{path}: hyper_parameters is no table of settings")
    return found


def _length(path: Path, settings: Mapping[str, Any], key: str) -> int:
    value = settings.get(key, 256)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{path}: {key} is {value!r}, not a number of tokens")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a config.json (or of the one in a folder) that shape a BERT."""
    path = path / CONFIG if path.is_dir() else path
    facts = read_json(path)
    if facts is None:
        raise InvalidInput(f"{path}: there is no such file")
    if not isinstance(facts, dict) or facts.get("model_type") not in ("bert", "dpr"):
        raise InvalidInput(f"{path} does not describe a BERT or DPR encoder")
    if facts.get("position_embedding_type", "absolute") != "absolute":
        raise InvalidInput(f"{path}: only absolute position embeddings are known")
    taken = {key: facts[key] for key in _CONFIG_FIELDS if facts.get(key) is not None}
    for key, value in taken.items():
        wanted = (int, float) if _CONFIG_FIELDS[key] is float else _CONFIG_FIELDS[key]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InvalidInput(f"{path}: {key} is {value!r}, not {_CONFIG_FIELDS[key].__name__}")
    return taken


def complete(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, checked against the weights' shapes: a wrong one could ask for any amount of memory."""
    try:
        vocabulary, hidden = weights["embeddings.word_embeddings.weight"].shape
        positions, _ = weights["embeddings.position_embeddings.weight"].shape
        types, _ = weights["embeddings.token_type_embeddings.weight"].shape
        inner, _ = weights["encoder.layer.0.intermediate.dense.weight"].shape
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"{path} lacks a weight of BERT, or it has another shape: {error}") from None
    seen = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": len({key.split(".")[2] for key in weights if key.startswith("encoder.")}),
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
    }
    wrong = [f"{key} {given[key]}, but {seen[key]}" for key in seen if given.get(key, seen[key]) != seen[key]]
    if wrong:
        raise InvalidInput(f"{path}: the weights are not those of its configuration, which says {', '.join(wrong)}")
    heads = given.get("num_attention_heads", hidden // _HEAD_SIZE)
    if heads < 1 or hidden % heads or ("num_attention_heads" not in given and hidden % _HEAD_SIZE):
        raise InvalidInput(f"{path}: a BERT {hidden} wide; give the config.json of its base model, with its heads")
    return {**given, **seen, "num_attention_heads": heads}
