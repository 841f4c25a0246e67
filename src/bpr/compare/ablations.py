"""The paper's ablations: small models trained with one setting changed each, and what they find. Knows training.

Each variant is trained into a folder of its own; one that is there already, of the same recipe and data, is not trained
again. They are measured on the held-out questions, as the paper's are on its development set. `bpr compare` calls it,
where ablations are asked for; nothing else of compare/ may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput

if TYPE_CHECKING:
    from ..training.prepared import Prepared
    from ..training.recipe import Recipe
    from ..training.trainer import Report

BASE = {"objective.code": "bits", "objective.planes": "1"}  # the paper's own: one plane
VARIANTS: dict[str, dict[str, dict[str, str]]] = {
    "γ: how fast the codes harden (raw, as in the paper)": {
        f"γ = {each}": {"objective.gamma": each, "objective.beta_end": "none"}
        for each in ("0.025", "0.05", "0.1", "0.2")
    },
    "α: the margin of L_cand": {f"α = {each}": {"objective.margin": each} for each in ("0", "1", "2", "4")},
    "The losses": {
        "L_cand by margin, and L_rerank": {},
        "L_cand by cross-entropy, and L_rerank": {"objective.candidates": "cross-entropy"},
        "without L_cand": {"objective.candidates": "off"},
        "without L_rerank": {"objective.rerank": "false"},
    },
}


def train(
    recipe: Recipe, data: Prepared, tokenizer: Path, folder: Path, report: Report
) -> dict[str, list[dict[str, Any]]]:
    """{title: [{"name", "metrics", …}]}, a list for each of VARIANTS."""
    from dataclasses import replace

    from ..training import recipe as recipes
    from ..training import run

    if not data.held.any():
        raise InvalidInput("no questions are held out, so nothing can be measured: prepare the data with a held share")
    found: dict[str, list[dict[str, Any]]] = {}
    done: dict[str, Mapping[str, Any]] = {}  # by recipe: the base is a line of two tables
    for title, variants in VARIANTS.items():
        found[title] = []
        for name, changes in variants.items():
            each = replace(recipes.changed(recipe, {**BASE, **changes}), name="ablation")
            settings = str(each)
            if settings not in done:
                home = folder / _place(changes)
                done[settings] = run.finished(home, each, data) or run.train(
                    each, data, tokenizer, home, resume=True, report=report
                )
            line = done[settings]
            found[title].append({"name": name, **{key: line[key] for key in ("metrics", "steps", "seconds", "output")}})
    return found


def _place(changes: Mapping[str, str]) -> str:
    """A folder's name."""
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in changes.items()) or "base"
