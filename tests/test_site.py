"""The site of docs/, built once as `make docs` builds it: nothing is missing, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# What a browser fetches without being asked: by tag, the attribute that names it.
LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "use": "href",
}


class Page(HTMLParser):
    """What a built page loads, where it leads, and the places in it that can be led to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors = {"", "__top"}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):  # named, not loaded
            return
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])


# Not --quiet: warnings that are not shown do not count, and strict means nothing.
def build(to: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to), *more]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    done = build(to)
    assert done.returncode == 0, done.stderr
    return to


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


def test_every_page_of_docs_is_built_and_in_the_navigation(site, pages):
    names = {file.stem for file in DOCS.glob("*.md")} | {"contributing", "changelog"}
    assert {file.stem for file in pages} - {"404"} == names
    listed = {urlsplit(link).path for link in pages[site / "tutorial.html"].links}
    assert {f"{name}.html" for name in names} <= listed


def test_links_lead_to_pages_and_anchors_that_exist(site, pages):
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or file.name == "404.html":  # that one is shown anywhere, so its links begin at the root
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{file.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{file.name}: {link}"


def test_no_page_loads_anything_from_another_host(site, pages):
    for file, page in pages.items():
        assert page.loaded
        for address in page.loaded:
            assert not urlsplit(address).netloc and urlsplit(address).scheme in ("", "data"), f"{file.name}: {address}"


def test_no_stylesheet_loads_anything_from_another_host(site):
    sheets = sorted(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        for address in re.findall(
            r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", sheet.read_text(encoding="utf-8")
        ):
            assert not urlsplit("".join(address)).netloc, f"{sheet.name}: {address}"


def test_the_search_has_its_index_and_finds_every_verb_in_it(site):
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "bpr convert squad" in index and "objective.margin" in index


def test_a_bar_in_a_cell_is_shown_without_its_escape(site):
    page = (site / "cli.html").read_text(encoding="utf-8")
    assert re.search(r"<code>--by words(\||&#124;)sentence</code>", page)
    assert not re.search(r"<code>[^<]*\\[^<]*</code>", page)


def test_a_broken_link_or_anchor_ends_the_build(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config[: config.index("nav:\n  - Home")].replace(
        "  - tools/hooks.py", f"  - {ROOT / 'tools' / 'hooks.py'}"
    )
    (tmp_path / "mkdocs.yml").write_text(config.replace("extra_css:\n  - site.css\n", ""), encoding="utf-8")
    (docs / "architecture.md").write_text("# Architecture, which CONTRIBUTING.md leads to", encoding="utf-8")

    (docs / "index.md").write_text("# A\n\n[page](b.md), [place](#b)", encoding="utf-8")
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert "'b.md'" in done.stderr and "'#b'" in done.stderr

    (docs / "index.md").write_text("# A\n\n[out of docs](../b.py), [place](#a)", encoding="utf-8")
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode == 0, done.stderr
    assert "<code>out of docs</code>" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
