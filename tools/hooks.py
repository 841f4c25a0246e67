"""What mkdocs asks while it builds the site (hooks: in mkdocs.yml).

Some pages live outside docs/, where forges look for them; the site shows them too. And docs/ links to files of the
repository that no site has: on the site they keep their names and lose their links.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
INTO_DOCS = re.compile(r"\]\(docs/")
OUT_OF_DOCS = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=INTO_DOCS.sub("](", text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/ become the names they carry."""
    return OUT_OF_DOCS.sub(r"`\1`", markdown)
