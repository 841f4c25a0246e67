"""English text that is not Wikipedia's, for training to hold on to: Debian's package descriptions and documentation.

python benchmarks/othertext.py FOLDER -o other.jsonl

FOLDER/debs holds packages that `apt-get download` fetched (docs/reproduction.md names them), FOLDER/lists what
`apt-get update -o Acquire::Languages=en -o Dir::State::lists=FOLDER/lists` did. Passages of 25 to 180 words of prose,
no two with the same beginning or end; needs dpkg-deb and apt-helper. Nothing of it is in this repository or the wheel.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeAlias

Entry: TypeAlias = tuple[str, str]  # title, text

UNREAD = {"script", "style", "pre", "table", "nav", "svg", "math"}
BLOCKS = {"p", "li", "dd", "h1", "h2", "h3", "blockquote", "td"}
WORD = re.compile(r"[(\"']?[A-Za-z][a-z'’-]*[.,;:)!?\"']*")
READ = re.compile(r"\.(html?|html\.gz|rst|rst\.gz|rst\.txt|txt|txt\.gz)(\.en)?$")
LANGUAGES = "de|fr|es|ja|it|pt|ru|nl|ca|cs|hu|zh|ko|tr|pl|da|el|fi|nb|ro|vi|ar|fa|id|sv|pt_BR|zh-cn|zh_CN|zh_TW|zh_cn"
SKIPPED = re.compile(rf"/({LANGUAGES})([-_A-Z]*)/|genindex|search\.html|copyright|_modules|NEWS|changelog|/generated/")
LARGEST_FILE = 4_000_000


class Page(HTMLParser):
    """The title and the blocks of prose of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title, self.blocks = "", list[str]()
        self._unread, self._in_title, self._now = 0, False, list[str]()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._unread += tag in UNREAD
        self._edge(tag, True)

    def handle_endtag(self, tag: str) -> None:
        self._unread = max(0, self._unread - (tag in UNREAD))
        self._edge(tag, False)

    def _edge(self, tag: str, opens: bool) -> None:
        if tag == "title":
            self._in_title = opens
        if tag in BLOCKS:
            self.end_block()

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._unread:
            self._now.append(data)

    def end_block(self) -> None:
        text = " ".join("".join(self._now).split())
        self._now = []
        if text:
            self.blocks.append(text)


def is_prose(text: str) -> bool:
    words = text.split()
    return len(words) >= 10 and sum(bool(WORD.fullmatch(word)) for word in words) / len(words) > 0.8


def grouped(title: str, paragraphs: Iterable[str], least: int = 50, most: int = 170) -> Iterator[Entry]:
    """Paragraphs joined to passages, whose lengths vary as those of people's texts do."""
    buffer: list[str] = []
    for paragraph in filter(is_prose, paragraphs):
        words = paragraph.split()[:most]
        if buffer and len(buffer) + len(words) > most:
            if len(buffer) >= 20:
                yield title, " ".join(buffer)
            buffer = []
        buffer += words
        if len(buffer) >= least + random.random() * 80:
            yield title, " ".join(buffer)
            buffer = []
    if len(buffer) >= 25:
        yield title, " ".join(buffer)


def members(package: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a package's files, one after the other."""
    whole = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        for member in archive:
            if member.isfile() and (found := archive.extractfile(member)):
                yield member.name, found.read()


def documentation(package: Path) -> Iterator[Entry]:
    for name, content in members(package):
        wanted = READ.search(name) or "fortunes/" in name
        if not wanted or len(content) > LARGEST_FILE or SKIPPED.search(name):
            continue
        text = (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8", "replace")
        if ".html" in name or name.endswith(".htm"):
            page = Page()
            page.feed(text)
            page.end_block()
            title = re.split(r" [—–|] | - | &#8212; ", page.title)[0].strip()
            yield from grouped(title[:80], page.blocks)
        else:
            yield from grouped("", (" ".join(each.split()) for each in re.split(r"\n\s*\n|\n%\n", text)))


def dictionary(package: Path) -> Iterator[Entry]:
    for name, content in members(package):
        if not name.endswith(".dict.dz"):
            continue
        for entry in re.split(r"\n(?=\S)", gzip.decompress(content).decode("utf-8", "replace")):
            head, _, rest = entry.partition("\n")
            words = re.sub(r"\[.*?\]|<.*?>|\{|\}", " ", rest).split()
            if len(words) >= 30 and is_prose(" ".join(words[:170])):
                yield head.split("\\")[0].strip()[:60], " ".join(words[:170])


def descriptions(lists: Path) -> Iterator[Entry]:
    """What Debian says of each package: its one line as the title, the paragraphs as the text."""
    for path in lists.glob("*_main_i18n_Translation-en*"):
        command = ["/usr/lib/apt/apt-helper", "cat-file", str(path)]
        for block in subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\n\n"):
            found = re.search(r"Description-en: (.*)\n((?: .*\n?)*)", block)
            if not found:
                continue
            paragraphs = (" ".join(each.split()) for each in found[2].replace("\n .\n", "\n\n").split("\n\n"))
            words = " ".join(filter(is_prose, paragraphs)).split()
            if len(words) >= 25:
                yield found[1], " ".join(words[:180])


def sources(folder: Path) -> Iterator[tuple[str, Iterator[Entry]]]:
    yield "descriptions", descriptions(folder / "lists")
    for package in sorted((folder / "debs").glob("*.deb")):
        name = package.name.split("_")[0]
        yield name, (dictionary if name.startswith("dict-") else documentation)(package)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    random.seed(0)
    seen: set[str] = set()
    with given.output.open("w", encoding="utf-8") as out:
        for name, entries in sources(given.folder):
            kept = 0
            for i, (title, text) in enumerate(entries):
                if not seen.isdisjoint((text[:60], text[-50:])):
                    continue
                seen |= {text[:60], text[-50:]}
                out.write(json.dumps({"id": f"{name}-{i}", "title": title, "text": text}, ensure_ascii=False) + "\n")
                kept += 1
            print(f"{name:28} {kept:7,}")


if __name__ == "__main__":
    main()
