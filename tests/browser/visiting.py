"""What the tests of the page share: the passages they ask for, a service that runs, and a watch on the browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, Page, Request, expect

from bpr import demo
from bpr.textfiles import read_records

TOKEN = "a-token-of-the-tests"
LIGHTHOUSE = {
    "id": "lighthouse",
    "title": "Lighthouses",
    "text": "🗼🦊🌊 The lighthouse of Porto Vento was built by the engineer Amalia Ferro in 1887. 🏮 It guides ships "
    "past the reef, and its lamp was the first in the country to run on electricity.",
    "meta": {"year": 1887, "coast": "north"},
}
MARKUP = {
    "id": "<i>markup</i>",
    "title": "<b>Marble</b> & stone",
    "text": '<img src=x onerror="window.ran=1"><script>window.ran=1</script> The marble festival of Quarryville is '
    "held every year in <em>September</em>, when the quarries rest.",
    "meta": {"note": "<img src=x onerror='window.ran=1'>"},
}
SUBJECTS = ("Oxygen", "Nikola Tesla", "Warsaw")  # of the sample that comes with bpr
OF_EACH = 12
ROWS = len(SUBJECTS) * OF_EACH + 2
LENGTH = 330  # characters: more than a closed passage shows, and quickly read

Visit = Callable[..., Page]


def passages() -> list[dict[str, Any]]:
    """Real paragraphs, one with characters outside the basic plane, and one that is full of markup."""
    found = [{**record, "text": record["text"][:LENGTH]} for _, record in read_records(demo.PASSAGES)]
    chosen = [each for name in SUBJECTS for each in [one for one in found if one["title"] == name][:OF_EACH]]
    return [*chosen, LIGHTHOUSE, MARKUP]


@contextmanager
def serving(path: Path, token: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`bpr serve` as a process: its URL, and itself."""
    command = [sys.executable, "-m", "bpr.cli", "serve", str(path), "--port", "0", "--quiet", "--answer-deadline", "60"]
    environment = {**os.environ, "BPR_TOKEN": token}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()  # comes when the service is ready
            assert "http://" in line, f"bpr serve said {line!r}"
            yield line.split()[-1], process
        finally:
            process.terminate()


class Watch:
    """What a page did that no page of ours may do. refused: what a test provokes, which Chromium logs by itself."""

    def __init__(self, page: Page, origin: str, refused: tuple[str, ...]) -> None:
        self.origin, self.refused = origin, refused
        self.found: list[str] = []
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", self._error)

    def _request(self, request: Request) -> None:
        if not request.url.startswith(self.origin):
            self.found.append(f"a request to {request.url}")

    def _console(self, message: ConsoleMessage) -> None:  # a breach of the content security policy is here too
        text = message.text
        provoked = text.startswith("Failed to load resource") and any(each in text for each in self.refused)
        if message.type in ("error", "warning") and not provoked:
            self.found.append(f"{message.type}: {text}")

    def _error(self, error: Error) -> None:
        self.found.append(f"an uncaught error: {error}")


def settled(page: Page) -> None:
    """Wait until everything that was asked for is shown."""
    expect(page.locator("#results, #routes")).to_have_attribute("aria-busy", "false")


def ask(page: Page, question: str) -> None:
    """Type a question, and wait for all of its reply."""
    page.get_by_label("Your question").fill(question)
    page.keyboard.press("Enter")
    settled(page)
