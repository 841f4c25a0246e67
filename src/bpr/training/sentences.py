"""A BERT for sentences, as sentence-transformers and others publish them, to a bpr model folder.

`bpr convert encoder` calls it. Knows what sentence-transformers writes beside weights; convert.py reads the weights
themselves, by a list of known names, and foreign.py writes the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidInput
from ..model import Model
from .convert import bert_weights, complete, load_weights, read_config, read_json, weights_file
from .foreign import FOR_FLOATS, Foreign, write
from .tower import CONFIG, Side

if TYPE_CHECKING:
    from ..records import Progress

Pooling = Literal["cls", "mean"]

MODULES, SENTENCES = "modules.json", "sentence_bert_config.json"  # of sentence-transformers


def encoder(
    source: str | Path,
    out: str | Path,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    length: int | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """A folder with one BERT for questions and passages to the model folder `out`; what it describes.

    pooling, normalize, length: None for what sentence-transformers' files in the folder say; a folder without them
    does not tell how it pools, and must be told.
    """
    folder = Path(source)
    say = progress or (lambda what, done, total: None)
    say("reading the encoder", 0, None)
    path, said = weights_file(folder), _said(folder)
    pools = pooling or said.get("pooling")
    if pools is None:
        raise InvalidInput(f"{folder} does not say how a text's tokens become one vector: give the pooling")
    state = {str(key).removeprefix("bert."): value for key, value in load_weights(path).items()}
    weights = bert_weights(path, state)
    config = complete(path, weights, read_config(folder / CONFIG))
    tokens = min(length or said.get("length", 256), config["max_position_embeddings"])
    model = Model(
        name=name or folder.resolve().name,
        bits=config["hidden_size"],
        pooling=pools,
        normalize=bool(said.get("normalize") if normalize is None else normalize),
        shared=True,
        question_length=tokens,
        passage_length=tokens,
    )
    about = f"The licence of the weights is that of their source. The encoder was {FOR_FLOATS}"
    one: dict[Side, Foreign] = {"passage": Foreign(config, weights, {})}
    return write(Path(out), model, one, folder, folder.resolve().name, about, say)


def _said(folder: Path) -> dict[str, Any]:
    """What sentence-transformers wrote beside the weights: pooling, normalize, length; nothing where it did not."""
    modules = read_json(folder / MODULES)
    if not isinstance(modules, list):
        return {}
    kinds = {str(each.get("type", "")).rpartition(".")[2]: each for each in modules if isinstance(each, dict)}
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise InvalidInput(
            f"{folder / MODULES} has {unknown[0]}, which a model of bpr has not: it would be another one"
        )
    said: dict[str, Any] = {"normalize": "Normalize" in kinds}
    pools = read_json(folder / str(kinds.get("Pooling", {}).get("path", "")) / CONFIG) or {}
    modes = [key for key, on in pools.items() if key.startswith("pooling_mode_") and on is True]
    if modes == ["pooling_mode_mean_tokens"] or pools.get("pooling_mode") == "mean":
        said["pooling"] = "mean"
    elif modes == ["pooling_mode_cls_token"] or pools.get("pooling_mode") == "cls":
        said["pooling"] = "cls"
    length = (read_json(folder / SENTENCES) or {}).get("max_seq_length")
    return {**said, **({"length": length} if type(length) is int and length > 0 else {})}
