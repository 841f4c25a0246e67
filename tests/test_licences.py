"""docs/licences.md names every package that bpr needs, and none is under a licence that its users could not accept."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

import licences  # noqa: E402  # tools/ is no package

ROWS = re.findall(r"^\| ([\w.-]+) \| (.+?) \| (.+?) \|$", licences.PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1:]
NEEDED = sorted({package for _, package in licences.requirements()})


def test_every_package_is_on_the_page_and_no_other() -> None:
    assert sorted(package for package, _, _ in ROWS) == NEEDED, "run `make docs`"
    assert {"numpy", "torch", "fastapi", "ray"} <= set(NEEDED)


def test_where_each_is_needed() -> None:
    wanted: dict[str, set[str]] = {}
    for where, package in licences.requirements():
        wanted.setdefault(package, set()).add(where)
    assert {package: {each.strip("`") for each in places.split(", ")} for package, places, _ in ROWS} == wanted


@pytest.mark.parametrize(("package", "licence"), [(package, licence) for package, _, licence in ROWS])
def test_no_licence_is_unknown_or_forbids_a_use(package: str, licence: str) -> None:
    assert re.search(r"Apache|BSD|MIT|PSF|Python Software Foundation|MPL", licence), f"{package}: {licence}"
    assert not re.search(r"NonCommercial|-NC|AGPL|(?<!L)GPL", licence), f"{package}: {licence}"
