"""docs/licences.md: under which licence each package stands that bpr needs, always or for an extra.

`make docs` runs it, in an environment that has them all. Licences are read from what the packages themselves say.
tests/test_licences.py fails when a dependency is not on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licences.md"
OURS = "binary-passage-retriever"
HEAD = """# Licences

bpr is under Apache-2.0; the sample of `bpr demo` is SQuAD's, under CC BY-SA 4.0. These are the packages that it needs,
always or for an extra, with the licence that each states of itself. What they need in turn `pip-licenses` lists.

Written by `make docs` from the packages themselves; do not edit by hand.
"""


def requirements() -> Iterator[tuple[str, str]]:
    """(where it is needed, package) of pyproject.toml, by what an installed bpr says.

    Left out are those of developers, and those of older Pythons alone, which are not here to be read.
    """
    for line in metadata(OURS).get_all("Requires-Dist") or []:
        name = re.match(r"[A-Za-z0-9_.-]+", line)
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", line)
        where = extra[1] if extra else "always"
        if name and name[0] != OURS and where not in ("dev", "docs") and "python_version" not in line:
            yield where, name[0]


def licence(package: str) -> str:
    """As the package states it: an expression, else the classifiers, else a first line of text."""
    about = metadata(package)
    if about["License-Expression"]:
        return str(about["License-Expression"])
    named = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or [] if each.startswith("License ::")]
    lines = str(about["License"] or "").strip().splitlines()
    return ", ".join(named) or (lines[0] if lines else "not stated")


def page() -> str:
    """All of it."""
    needed: dict[str, list[str]] = {}
    for where, package in requirements():
        needed.setdefault(package, []).append(where)
    rows = ["| package | needed | licence |", "|---|---|---|"]
    for package, places in sorted(needed.items(), key=lambda each: ("always" not in each[1], each[0].lower())):
        shown = ", ".join(place if place == "always" else f"`{place}`" for place in sorted(set(places)))
        rows.append(f"| {package} | {shown} | {licence(package)} |")
    return HEAD + "\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
