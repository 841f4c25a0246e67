"""A real service and a real Chromium. Whatever a test does, nothing may leave the origin, break the content security
policy, or end up as an error in the console: that is checked when the test is over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from visiting import Visit, Watch, passages, serving, settled

import bpr

ARGUMENTS = [
    "--no-sandbox",  # containers run it as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 20_000  # a reader beside other tests, on a small machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, headless. Not for the session: while it is there an event loop runs, and tests with one of their own
    could not."""
    program = shutil.which("chromium")
    if program is None and os.environ.get("BPR_SKIP_BROWSER") == "1":
        pytest.skip("BPR_SKIP_BROWSER=1, and there is no chromium")
    assert program, "the tests of the page need a browser: apt-get install chromium (or set BPR_SKIP_BROWSER=1)"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The passages of the tests, with their words."""
    path = tmp_path_factory.mktemp("page") / "small.bpr"
    bpr.build(passages(), path, words=True)
    return path


@pytest.fixture(scope="session")
def service(small_bundle: Path) -> Iterator[str]:
    """The URL of a service without a token."""
    with serving(small_bundle) as (url, _):
        yield url


@pytest.fixture
def visit(browser: Browser, service: str) -> Iterator[Visit]:
    """Open a page as somebody new: visit("who …?"), visit(hash="#q=…") or visit(path="docs"), with options of a
    browser's context."""
    contexts, watches = [], []

    def go(
        question: str = "",
        hash: str = "",
        url: str = service,
        path: str = "",
        refused: tuple[str, ...] = (),
        **how: Any,
    ) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watches.append(Watch(page, url, refused))
        page.goto(url + path + (hash or (f"#q={quote(question)}" if question else "")))
        settled(page)
        return page

    yield go
    for context in contexts:
        context.close()
    assert [each for watch in watches for each in watch.found] == []
