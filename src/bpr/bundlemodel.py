"""The model that a bundle was built with: what the bundle remembers of it, and how it is found again.

The builder writes it down; the retriever, `live` and the service look it up. Runs no model but to compare one question;
knows a bundle's facts, and none of its files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import bundle
from . import model as models
from .codes import pack
from .encoder import Encoder, Encodes
from .errors import BprError, InvalidInput, ModelMismatch
from .model import Model

WARM_UP = "What is this text about?"  # whoever opens the bundle can see whether its model still gives the same bits


def remembered(model: Model, folder: Path | None, path: Path) -> dict[str, Any]:
    """What a bundle remembers of its model; the folder, seen from beside the bundle, is only where to look first."""
    where = None if folder is None else os.path.relpath(folder, os.path.realpath(path.parent))
    return {
        "model": {"name": model.name, "fingerprint": model.fingerprint, "folder": where},
        "levels": None if model.levels is None else list(model.levels),
        "candidates": model.candidates,
    }


def warm_up_code(encoder: Encodes) -> str:
    """The signs of a question that is the same for all bundles, in hexadecimal digits."""
    vector = encoder.questions([WARM_UP])
    return pack(vector[:, : vector.shape[1] // 8 * 8]).tobytes().hex()  # whole bytes, whatever the width


def known_model(opened: bundle.Opened) -> dict[str, Any]:
    """What a bundle remembers of its model; InvalidInput where it was built from vectors."""
    known = opened.info["model"]
    if not isinstance(known, dict):
        raise InvalidInput(
            f"{opened.path} was built from vectors of yours and cannot read text: pass vectors=… of your own encoder"
        )
    return known


def encoder_of(opened: bundle.Opened, model: str | Path | Encodes | None = None) -> Encodes:
    """The bundle's own encoder: the one that is given, or looked for; another model's is refused (ModelMismatch)."""
    known = known_model(opened)
    given = _find_model(opened, known) if model is None else model
    encoder = Encoder.open(given) if isinstance(given, str | Path) else given
    if encoder.model.fingerprint != known["fingerprint"]:
        raise ModelMismatch(
            f"{opened.path} was built with the model {known['name']!r} ({known['fingerprint'][:12]}…), and "
            f"{encoder.model.name!r} ({encoder.model.fingerprint[:12]}…) is another one: open the bundle with its "
            "own model, or build it again"
        )
    return encoder


def _find_model(opened: bundle.Opened, known: Mapping[str, Any]) -> Path:
    """The folder that the bundle's model was in, seen from beside the bundle, or the model that ships with bpr."""
    folder = known.get("folder")
    places: list[Path] = [Path(opened.path).resolve().parent / folder] if folder else []
    for place in [*places, models.MINI]:
        try:
            if models.load(place)[0].fingerprint == known["fingerprint"]:
                return place
        except BprError:
            continue  # nothing there, or not a model: the next place may have it
    raise ModelMismatch(
        f"{opened.path} was built with the model {known['name']!r} ({known['fingerprint'][:12]}…), which is "
        f"not in {' and not in '.join(map(str, [*places, 'bpr itself']))}: say where it is (model=…, --model DIR)"
    )
