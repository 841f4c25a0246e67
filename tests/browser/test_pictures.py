"""The pictures of docs/page.md, made anew: BPR_SCREENSHOTS=docs/images pytest tests/browser/test_pictures.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from visiting import Visit, serving

from bpr import demo
from bpr.encoder import Encoder

FOLDER = os.environ.get("BPR_SCREENSHOTS")
OXYGEN = "#q=Who+discovered+oxygen%3F"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PICTURES = {
    "page-light": (OXYGEN, DESK, "light"),
    "page-dark": (OXYGEN, DESK, "dark"),
    "page-phone": (OXYGEN, PHONE, "light"),
    "page-compare": (OXYGEN + "&compare=1", DESK, "light"),
}
MOST_BYTES = 300_000

pytestmark = pytest.mark.skipif(not FOLDER, reason="pictures are made where BPR_SCREENSHOTS says")


@pytest.fixture(scope="module")
def sample_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a service with the whole sample of `bpr demo`: it takes a minute to index."""
    path = tmp_path_factory.mktemp("pictures") / "demo.bpr"
    demo.index(path, Encoder.open("mini"), lambda what, done, total: None)
    with serving(path) as (url, _):
        yield url


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_documentation(visit: Visit, sample_service: str, name: str):
    hash, viewport, scheme = PICTURES[name]
    picture = Path(FOLDER or "") / f"{name}.png"
    page = visit(hash=hash, url=sample_service, viewport=viewport, color_scheme=scheme)
    page.reload()  # the second time: what it costs to begin is not what a question costs
    page.locator(".answer-text").wait_for()
    page.screenshot(path=picture)
    assert 20_000 < picture.stat().st_size < MOST_BYTES
