"""Every setting of a training run, from a TOML file and flags. Unknown keys and wrong types are errors.

The command line reads a recipe, run.py and building.py follow it. Knows names, types and ranges; what a setting does to
a model is theirs, and what it is for a person is told in cli/settings.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import InvalidInput
from .batches import Diet
from .biencoder import Objective

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Made = TypeVar("Made")
LARGEST_SEED = 2**32 - 1  # that numpy takes, whom transformers.set_seed seeds too


@dataclass(frozen=True)
class Recipe:
    """The paper's hyper-parameters for the bi-encoder, unless a recipe says otherwise.

    start: a folder (or a downloaded hub model's name) of transformers weights, or a bpr model folder to go on from.
    bits: 0 for as many as the encoder has outputs; project: an orthogonal projection even where none is needed.
    question_bias: whether the question's projection has a bias. ⟨bias, code⟩ is a taste for some passages whatever is
    asked, which another corpus need not share; without it, outputs should have a mean near 0, or bits stay constant.
    freeze: what keeps its weights: the word vectors, or the encoders whole (only the projections learn; no dropout).
    batch: questions a step, over all processes; accumulate: in so many parts, each with its own negatives.
    compile: on a GPU through torch.compile, for long runs: its first steps take half a minute.
    chunk: texts encoded at a time with gradient caching (0: the whole batch at once); the loss is the whole batch's.
    teacher: a model folder whose scores over the questions' passages are distilled; anchor: one whose scores over
    made-up pairs are. pair_weight: of a made-up pair's own losses against a question's; with 0 the anchor alone teaches
    them, which forgets least.
    evaluate_every: steps between validations (0: at the end only); the best by select_by is kept. pool: passages in a
    validation beside the held-out positives. save_every: steps between checkpoints to resume from (0: none but those of
    validations).
    """

    start: str = ""
    name: str = "model"
    seed: int = 0
    bits: int = 0
    project: bool = False
    question_bias: bool = True
    pooling: Literal["cls", "mean"] = "cls"
    normalize: bool = False
    shared: bool = False
    batch: int = 128
    epochs: int = 40
    learning_rate: float = 2e-5
    head_rate: float = 1.0
    freeze: Literal["nothing", "embeddings", "encoders"] = "nothing"
    warmup: float = 0.06
    weight_decay: float = 0.0
    clip: float = 2.0
    dropout: float = 0.1
    accumulate: int = 1
    chunk: int = 0
    bf16: bool = True
    compile: bool = False
    workers: int = 0
    teacher: str = ""
    anchor: str = ""
    teacher_scale: float = 1.0
    anchor_scale: float = 20.0
    pair_weight: float = 1.0
    evaluate_every: int = 0
    save_every: int = 0
    pool: int = 20_000
    select_by: Literal["average_rank", "top_1", "top_5", "top_20", "top_100"] = "average_rank"
    log_every: int = 50
    objective: Objective = field(default_factory=Objective)
    diet: Diet = field(default_factory=Diet)

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be; what depends on data or files is refused by run.py."""
        for name in ("batch", "epochs", "accumulate", "log_every"):
            require(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("seed", "bits", "chunk", "workers", "evaluate_every", "save_every", "pool"):
            require(name, getattr(self, name) >= 0, "0 or more", getattr(self, name))
        require("seed", self.seed <= LARGEST_SEED, f"at most {LARGEST_SEED}", self.seed)
        for name in ("learning_rate", "head_rate", "weight_decay", "clip", "pair_weight"):
            require(name, 0 <= getattr(self, name) < math.inf, "0 or more", getattr(self, name))
        for name in ("warmup", "dropout"):
            require(name, 0 <= getattr(self, name) < 1, "a share, less than 1", getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """As TOML has it."""
        return asdict(self)


def load(path: str | Path, changes: Mapping[str, str] | None = None) -> Recipe:
    """A recipe from a TOML file, with changes such as {"objective.margin": "4"}."""
    return load_as(Recipe, path, changes)


def load_as(kind: type[Made], path: str | Path, changes: Mapping[str, str] | None = None) -> Made:
    """The same for any dataclass of settings."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from error
    recipe: Made = _made(kind, values, str(path))
    return changed(recipe, changes or {})


def changed(recipe: Made, changes: Mapping[str, str]) -> Made:
    """With values given as text, e.g. on the command line; all at once, since some exclude each other."""
    groups: dict[str, dict[str, Any]] = {}
    for key, text in changes.items():
        if key not in (names := known(type(recipe))):
            raise InvalidInput(f"there is no setting {key!r}; there are {', '.join(names)}")
        part, _, name = key.rpartition(".")
        target = getattr(recipe, part) if part else recipe
        groups.setdefault(part, {})[name] = _read(type(target), name, text)
    mine = groups.pop("", {})
    inner = {part: replace(getattr(recipe, part), **new) for part, new in groups.items()}
    return replace(recipe, **mine, **inner)  # type: ignore[type-var]  # a dataclass


def known(kind: type[Any] = Recipe) -> list[str]:
    """All settings, as `changed` takes them."""
    names, hints = [], get_type_hints(kind)
    for each in fields(kind):
        inner = hints[each.name] if is_dataclass(hints[each.name]) else None
        names += [f"{each.name}.{sub.name}" for sub in fields(inner)] if inner else [each.name]
    return names


def require(name: str, true: bool, wanted: str, value: Any) -> None:
    """InvalidInput unless it is true."""
    if not true:
        raise InvalidInput(f"{name} must be {wanted}, not {value}")


def _made(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    made = {}
    for key, value in values.items():
        if key not in hints:
            raise InvalidInput(f"{where}: there is no setting {key!r}; there are {', '.join(sorted(hints))}")
        if is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise InvalidInput(f"{where}: {key} must be a table, [{key}]")
            made[key] = _made(hints[key], value, f"{where} [{key}]")
        else:
            made[key] = _fits(hints[key], value, f"{where}: {key}")
    try:
        return kind(**made)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None


def _fits(hint: Any, value: Any, where: str) -> Any:
    """The value if it is of the setting's type."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple) and all(type(each) is int for each in value):
            return tuple(value)
        if option is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if option is type(None) and value in (None, "none"):
            return None
    wanted = " or ".join(
        str(list(get_args(o))) if get_origin(o) is Literal else getattr(o, "__name__", str(o)) for o in options
    )
    raise InvalidInput(f"{where} must be {wanted}, not {value!r}")


def _read(kind: type[Any], name: str, text: str) -> Any:
    """A setting's value from a flag: TOML, or a bare word."""
    hint = get_type_hints(kind)[name]
    if hint is str:
        return text  # also one that looks like a number
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except ValueError:
        value = text
    return _fits(hint, value, name)
