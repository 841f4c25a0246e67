"""What a model folder is: bpr.json beside a tokenizer and two encoders. Reads and writes bpr.json; runs nothing.

    NAME/
        bpr.json                how texts become vectors and vectors become bits; size and sha256 of every other file
        tokenizer.json
        README.md               the card
        question.onnx           what encoder.py runs (with shared = true there is passage.onnx alone)
        passage.onnx
        question_encoder/       the same in float32, Hugging Face's layout, for training and GPUs; not in the wheel
        passage_encoder/            config.json, model.safetensors,
                                    head.safetensors (projection.weight, projection.bias, sigma)

The encoder, the builder and training call it; reader.py writes and reads its own JSON file by the same rules. It must
not know what a network is, nor torch or ONNX.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from .codes import LARGE, LEVELS, checked_bits
from .disk import storage_error
from .errors import InvalidInput, UnsupportedFormat

CONFIG, TOKENIZER, CARD = "bpr.json", "tokenizer.json", "README.md"
FORMAT, VERSION = "bpr-model", 1
READ_BYTES = 1 << 20
MINI = Path(__file__).parent / "models" / "mini"


@dataclass(frozen=True)
class Model:
    """How a model turns text into vectors and bits.

    bits: outputs of an encoder. planes: 2 where passages have a magnitude bit too; passage outputs are in units of
    their spread, so levels are the same for all dimensions; large: so many of them are on the upper level.
    candidates: the model's own default for l.
    normalize: the pooled vector is brought to length 1 before the projection. shared: one encoder for both sides.
    token_types: a passage's text is segment 1 after its title, as BERT's own pairs are; otherwise all is segment 0.
    weights: sha256 of the float weights that every other form of them was made from.
    """

    name: str
    bits: int
    planes: int = 1
    levels: tuple[float, float] | None = None
    large: int | None = None
    candidates: int = 1000
    pooling: Literal["mean", "cls"] = "cls"
    normalize: bool = False
    shared: bool = False
    token_types: bool = False
    question_length: int = 256
    passage_length: int = 256
    weights: str = ""
    tokenizer: str = ""  # sha256 of tokenizer.json

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        checked_bits(self.bits)
        if self.planes not in (1, 2):
            raise InvalidInput(f"planes must be 1 or 2, not {self.planes}")
        if any((self.planes == 2) != (each is not None) for each in (self.levels, self.large)):
            raise InvalidInput("levels and large belong to two planes, and two planes need both")
        if self.large is not None and not (type(self.large) is int and 0 <= self.large <= self.bits):
            raise InvalidInput(f"large must be a number of the {self.bits} bits, not {self.large!r}")
        if self.pooling not in ("mean", "cls"):
            raise InvalidInput(f"pooling must be 'mean' or 'cls', not {self.pooling!r}")
        for what in ("candidates", "question_length", "passage_length"):
            if getattr(self, what) < (1 if what == "candidates" else 3):
                raise InvalidInput(f"{what} is too small: {getattr(self, what)}")

    @property
    def fingerprint(self) -> str:
        """What a bundle remembers: sha256 of all that decides a text's bits. The name and the default l do not."""
        facts = asdict(replace(self, name="", candidates=1))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def two_planes(model: Model) -> Model:
    """The same with the second plane at the levels of codes.py."""
    return replace(model, planes=2, levels=LEVELS, large=round(model.bits * LARGE), candidates=2000)


def save(folder: Path, model: Model, files: Iterable[str]) -> None:
    """Write bpr.json over the files (relative to the folder) that belong to the model."""
    facts = {"format": FORMAT, "version": VERSION, **asdict(model), "fingerprint": model.fingerprint}
    write_facts(folder / CONFIG, facts, files)


def load(folder: str | Path) -> tuple[Model, Mapping[str, Mapping[str, Any]]]:
    """A folder's model, and its files with their sizes and sums. "mini" is the one that ships with bpr."""
    path = resolve(folder) / CONFIG
    if path.parent == MINI:
        missing = f"this bpr was built without its model {MINI.name!r}: name a model folder"
    else:
        missing = f"{path.parent} is no model folder: it has no {CONFIG} (`bpr train` and `bpr export` write one)"
    return _parsed(path, read_facts(path, FORMAT, VERSION, "a bpr model", missing))


def write_facts(path: Path, facts: Mapping[str, Any], files: Iterable[str]) -> None:
    """Write a folder's JSON file: the facts, and size and sum of each of the files (relative to the folder)."""
    folder, partial = path.parent, path.with_name(f"{path.name}.new")
    try:
        sums = {
            name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
            for name in sorted(set(files))
        }
        partial.write_text(json.dumps({**facts, "files": sums}, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)  # whoever reads meanwhile finds the old one or the new one
    except OSError as error:
        raise storage_error("write", path, error) from error


def read_facts(path: Path, form: str, version: int, what: str, missing: str) -> dict[str, Any]:
    """What `write_facts` wrote, if it is of this form and version. what: it describes; missing: said where none is."""
    try:
        facts = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(missing) from None
    except OSError as error:
        raise storage_error("read", path, error) from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != form:
        raise InvalidInput(f"{path} does not describe {what}")
    if facts.get("version") != version:
        raise UnsupportedFormat(
            f"{path} has version {facts.get('version')}, and this bpr reads {version}: a newer bpr may know it"
        )
    return facts


def resolve(folder: str | Path) -> Path:
    """The folder of a model; "mini" means the one inside the package, unless there is such a model folder here."""
    return MINI if str(folder) == "mini" and not (Path("mini") / CONFIG).exists() else Path(folder)


def check_file(folder: Path, name: str, files: Mapping[str, Mapping[str, Any]], config: str = CONFIG) -> Path:
    """The path of a model's file, after its size and sum were compared with bpr.json's (config: or a reader's own)."""
    path = folder / name
    if name not in files:
        raise InvalidInput(f"{folder} has no {name}: `bpr export` makes the ONNX files, `bpr train` the float weights")
    try:
        size = path.stat().st_size
        if size != files[name]["bytes"] or sha256(path) != files[name]["sha256"]:
            raise InvalidInput(
                f"{path} is not the file that {config} describes: it was changed or cut short; "
                "take the model from its source again"
            )
    except FileNotFoundError:
        raise InvalidInput(f"{path} is missing, and {config} names it: take the model from its source again") from None
    except OSError as error:
        raise storage_error("read", path, error) from error
    return path


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _parsed(path: Path, facts: Mapping[str, Any]) -> tuple[Model, Mapping[str, Mapping[str, Any]]]:
    files = facts.get("files")
    known = {field.name for field in fields(Model)}
    values = {name: value for name, value in facts.items() if name in known}
    if not isinstance(files, dict) or known - set(values):
        raise InvalidInput(f"{path} lacks {', '.join(sorted(known - set(values)) or ['files'])}")
    if not all(isinstance(entry, dict) and {"bytes", "sha256"} <= entry.keys() for entry in files.values()):
        raise InvalidInput(f"{path} does not say of every file how large it is and what its sum is")
    try:
        model = Model(**{**values, "levels": tuple(values["levels"]) if values["levels"] else None})
    except (InvalidInput, TypeError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    if model.fingerprint != facts.get("fingerprint"):
        raise InvalidInput(f"{path} was edited: its fingerprint does not fit its values")
    return model, files
