"""The folder that training writes: what it may take the place of, the model in it, and the ledger of how it was made.

run.py and averaging.py call it. How a model folder's weights are summed is tower.save_model's; nobody else does it.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import model as models
from ..disk import made_folder, storage_error
from ..errors import InvalidInput
from ..model import Model
from .biencoder import BiEncoder
from .tower import save_model

LEDGER = "ledger.jsonl"
PACKAGES = ("binary-passage-retriever", "torch", "transformers", "accelerate", "tokenizers", "numpy")


def check_output(folder: Path) -> None:
    """Refuse a place where something else than a bpr model would be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file: name a folder for the model")
    if folder.exists() and not (folder / models.CONFIG).exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty and holds no bpr model: choose another folder")


def save(folder: Path, bi: BiEncoder, model: Model, tokenizer: Path) -> Model:
    """Write the model folder: float weights in Hugging Face's layout, the tokenizer, bpr.json. The card goes."""
    try:
        with made_folder(folder, whole=True):
            (folder / models.CARD).unlink(missing_ok=True)  # of the model that was here before
            return save_model(folder, model, [bi.passage] if model.shared else [bi.question, bi.passage], tokenizer)
    except OSError as error:
        raise storage_error("write", folder, error) from error


def write_ledger(folder: Path, line: dict[str, Any]) -> None:
    """Add a line to the ledger of a model folder."""
    try:
        with (folder / LEDGER).open("a", encoding="utf-8") as ledger:
            ledger.write(json.dumps(line) + "\n")
    except OSError as error:
        raise storage_error("write", folder / LEDGER, error) from error


def machine() -> dict[str, Any]:
    """What a run was made with, for its ledger."""
    return {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
    }


def origins(folders: dict[str, str]) -> dict[str, str]:
    """The fingerprints of the bpr models that a run began with, by their roles."""
    homes = {role: models.resolve(folder) for role, folder in folders.items() if folder}
    return {role: models.load(home)[0].fingerprint for role, home in homes.items() if (home / models.CONFIG).exists()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree
        return None
