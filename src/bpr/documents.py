"""Documents to passages: people have files and folders, the index wants blocks of about 100 words.

Called by the command line and the builder. Knows text and its sentences; nothing of bundles, vectors or indexes.

A passage is an exact slice of its document: `text[meta["start"]:meta["end"]] == passage.text`, counted in characters of
the decoded text (without its byte order mark). A word is what stands between white space, as in the paper, with two
exceptions, so that no passage becomes a giant: in scripts without spaces a word is two characters (Chinese, Japanese)
or four (Thai, Lao, Tibetan, Burmese, Khmer), and in any script 100 characters without white space make a word.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Literal

from .disk import Disk, OutputFile, storage_error
from .errors import InvalidInput
from .passages import to_line, to_passage
from .records import Passage
from .textfiles import PACKED_TYPES, file_type, parse_objects, read_lines

MARKDOWN_TYPES = (".md", ".markdown")
LINES_TYPES = (".jsonl", ".ndjson")  # not .json: in folders of documents that is mostly somebody's settings
DOCUMENT_TYPES = (".txt", *MARKDOWN_TYPES, *LINES_TYPES)
ACCEPTED = ".txt, .md and .jsonl (each also as .gz, .xz or .zst)"


@dataclass
class Report:
    """What `cut` met, filled in as it goes: print it when the passages are through."""

    documents: int = 0
    empty: int = 0  # of the documents: those without a single word
    passages: int = 0
    ignored: int = 0  # files in folders: hidden, or of a type that is no document's
    repeated: int = 0  # files that were reached a second time, through a link or another source

    def __str__(self) -> str:
        parts = [_count(self.documents, "document"), f"{self.empty:,} empty", _count(self.passages, "passage")]
        parts += [f"{_count(self.ignored, 'other file')} ignored"] * (self.ignored > 0)
        parts += [f"{_count(self.repeated, 'file')} met twice"] * (self.repeated > 0)
        return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class _Document:
    name: str
    title: str
    text: str
    meta: Mapping[str, Any] = field(default_factory=dict)


_Word = tuple[re.Match[str], bool]  # a word, and whether a passage may end behind it


def cut(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    words: int = 100,
    by: Literal["words", "sentence"] = "words",
    overlap: int = 0,
    report: Report | None = None,
) -> Iterator[Passage]:
    """Passages of at most `words` words from files and folders of .txt, .md and .jsonl documents, in a fixed order.

    by="words": disjoint blocks, as in the paper. by="sentence": as many whole sentences as fit; one that does not fit
    alone is cut by words. overlap: so many words of a passage (by="sentence": the whole sentences among them) begin the
    next one too. A passage's id is its document's name, "#" and a number from 0; the name is the path relative to the
    source, or the id in the JSONL (behind the file's name where there are several JSONL files). Other keys of a JSONL
    document stay in the meta of its passages, but "document", "start" and "end" are ours.
    """
    if by not in ("words", "sentence"):
        raise InvalidInput(f'by must be "words" or "sentence", not {by!r}')
    if words < 1 or not 0 <= overlap < words:
        raise InvalidInput(f"words must be at least 1 and overlap from 0 to words - 1; got {words} and {overlap}")
    paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    split = _split_words if by == "words" else _split_sentences
    return _cut(list(map(Path, paths)), lambda text: _blocks(split(text), words, overlap), report or Report())


def _cut(sources: list[Path], split: Callable[[str], Iterator[tuple[int, int]]], report: Report) -> Iterator[Passage]:
    for document in _documents(_find_files(sources, report)):
        report.documents += 1
        number = -1
        for number, (start, end) in enumerate(split(document.text)):
            report.passages += 1
            meta = {**document.meta, "document": document.name, "start": start, "end": end}
            yield Passage(f"{document.name}#{number}", document.title, document.text[start:end], meta)
        report.empty += number < 0
    if not report.passages:
        raise InvalidInput(f"no text in {', '.join(map(str, sources)) or 'nothing'} ({report}); {ACCEPTED} are read")


# ── Files to documents ───────────────────────────────────────────────────────────────────────────────────────────────


def _find_files(sources: list[Path], report: Report) -> list[tuple[str, Path]]:
    """Every document file once, with a name that no other has."""
    files: list[tuple[str, Path]] = []
    names: dict[str, int] = {}
    seen: set[str] = set()
    for source in sources:
        for path in _walk(source, report) if os.path.isdir(source) else [_named_file(source)]:
            real = os.path.realpath(path)
            if real in seen:
                report.repeated += 1
                continue
            seen.add(real)
            name = path.relative_to(source).as_posix() if path != source else path.name
            name = os.fsencode(name).decode("utf-8", "replace")
            names[name] = names.get(name, 0) + 1
            files.append((name if names[name] == 1 else f"{name} ({names[name]})", path))
    return files


def _named_file(path: Path) -> Path:
    """A file that the user named: unlike one that was found in a folder, it must be a document."""
    if not os.path.exists(path):
        raise InvalidInput(f"{path}: there is no such file or folder")
    if file_type(path) not in DOCUMENT_TYPES:
        raise InvalidInput(f"{path}: not a type of document; {ACCEPTED} are read")
    return path


def _walk(top: Path, report: Report) -> Iterator[Path]:
    """The document files under a folder, sorted. Links are followed, but no folder is entered twice, so loops end."""
    entered = {os.path.realpath(top)}

    def is_new(folder: Path) -> bool:
        before = len(entered)
        entered.add(os.path.realpath(folder))
        return len(entered) > before

    def refuse(error: OSError) -> None:
        raise storage_error("list", error.filename, error) from error

    for root, folders, names in os.walk(top, followlinks=True, onerror=refuse):
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and is_new(Path(root, name))]
        for path in (Path(root, name) for name in sorted(names)):
            if path.name.startswith(".") or file_type(path) not in DOCUMENT_TYPES or not os.path.isfile(path):
                report.ignored += 1
            else:
                yield path


def _documents(files: list[tuple[str, Path]]) -> Iterator[_Document]:
    """The documents of the files; JSONL is streamed, other files are one document each."""
    several = sum(file_type(path) in LINES_TYPES for _, path in files) > 1
    for name, path in files:
        if file_type(path) in LINES_TYPES:
            yield from _json_documents(name, path, f"{name}/" if several else "")
        else:
            text = "".join(line for _, line in read_lines(path))
            title = _markdown_title(text) if file_type(path) in MARKDOWN_TYPES else ""
            yield _Document(name, title or _title_from_name(path), text)


def _json_documents(name: str, path: Path, prefix: str) -> Iterator[_Document]:
    for number, record in parse_objects(path, read_lines(path)):
        own_id = record.keys() & {"id", "_id"}
        try:
            document = to_passage(record if own_id else {**record, "id": f"{name}:{number}"})
        except ValueError as flaw:
            raise InvalidInput(f"{path}, line {number}: {flaw}") from None
        yield _Document(prefix * bool(own_id) + document.id, document.title, document.text, document.meta)


def _title_from_name(path: Path) -> str:
    name = path.stem if path.suffix.lower() in PACKED_TYPES else path.name
    return re.sub(r"[_-]+", " ", os.fsencode(Path(name).stem).decode("utf-8", "replace")).strip()


_NO_HEADING_IN = re.compile(r"\A---\n.*?^(?:---|\.\.\.)$|^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1|\Z)", re.M | re.S)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(\S.*)$|^ {0,3}([^\s#>|*+-].*)\n {0,3}(?:=+|-{2,})[ \t]*$", re.M)


def _markdown_title(text: str) -> str:
    """The first heading, be it `# ATX` or underlined; not in front matter, nor in a fenced block of code."""
    heading = _HEADING.search(_NO_HEADING_IN.sub("", text.replace("\r\n", "\n")))
    if not heading:
        return ""
    return re.sub(r"(^|\s)#+$", "", (heading[1] or heading[2]).strip()).strip()


# ── Text to blocks of words ──────────────────────────────────────────────────────────────────────────────────────────

_PAIRS = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
_FOURS = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
_MARKS = r"\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3"
_OPEN = "「『（《〈【〔｢"
_CLOSE = "、。，．！？：；」』）》〉】〕｡｣､…”’"
_SPACELESS = re.compile(rf"[{_PAIRS}{_FOURS}{_OPEN}]")
_SPACED_WORD = re.compile(r"\S{1,100}")
_ANY_WORD = re.compile(
    rf"[{_OPEN}]{{0,4}}(?:[{_PAIRS}]{{1,2}}[{_CLOSE}]{{0,4}}|[{_FOURS}]{{1,4}}[{_MARKS}]{{0,4}}"
    rf"|[^\s{_PAIRS}{_FOURS}{_OPEN}]{{1,100}})|[{_OPEN}]{{1,100}}"
)


def _blocks(split: Iterator[_Word], words: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Start and end of each passage: as many words as fit, up to the last one that closes, or all if none does."""
    window, carried = list(islice(split, words)), 0  # the first `carried` words stood in the passage before, too
    while len(window) > carried:
        size = next((size for size in range(len(window), carried, -1) if window[size - 1][1]), 0)
        if size == 0 and carried:  # the next sentence fits, if at all, only without the overlap
            window, carried = window[carried:] + list(islice(split, carried)), 0
            continue
        size = size or len(window)
        yield window[0][0].start(), window[size - 1][0].end()
        carried = max((back for back in range(1, min(overlap + 1, size)) if window[size - back - 1][1]), default=0)
        window = window[size - carried :]
        window += islice(split, words - len(window))


def _find_words(text: str) -> Iterator[re.Match[str]]:
    """Every word. Both patterns find the same ones where all scripts have spaces; one of them four times as fast."""
    return (_ANY_WORD if _SPACELESS.search(text) else _SPACED_WORD).finditer(text)


def _split_words(text: str) -> Iterator[_Word]:
    """Every word; a passage may end behind any of them."""
    return zip(_find_words(text), repeat(True))


_BLOCK_START = re.compile(r"#{1,6}|[-*+]|\d{1,2}[.)]")
_HEADING_START = re.compile(r"#{1,6}|=+|-{3,}")
_LIST_NUMBER = re.compile(r"\d{1,3}[.)]")


def _split_sentences(text: str) -> Iterator[_Word]:
    """Every word, those marked that end a sentence by their stop, or a heading, list item or paragraph."""
    at_line_start, heading = True, False
    found = _find_words(text)
    word = next(found, None)
    while word:
        following = next(found, None)
        token, after = word[0], following[0] if following else ""
        gap = text[word.end() : following.start()] if following else "\n\n"
        heading = bool(_HEADING_START.fullmatch(token)) if at_line_start else heading
        block_ends = "\n" in gap and (heading or gap.count("\n") > 1 or bool(_BLOCK_START.fullmatch(after)))
        numbered = at_line_start and bool(_LIST_NUMBER.fullmatch(token))
        yield word, block_ends or (not numbered and _ends_sentence(token, gap, after))
        at_line_start, word = "\n" in gap, following


_FULL_STOP = re.compile(r"[.!?…]+[\"'”’»)\]*_]*$")
_WIDE_STOP = re.compile(rf"[。！？｡][{_CLOSE}\"')\]]*$")
_INITIALS = re.compile(r"(?:[^\W\d_]{1,2}\.)*[^\W\d_]\.")  # J. U.S. Ph.D. e.g.
_ABBREVIATIONS = re.compile(
    r"mr|mrs|ms|messrs|dr|prof|st|sr|jr|rev|hon|gen|col|maj|capt|lt|sgt|cmdr|adm|gov|sen|rep|pres|mt|ft|vs|cf|ca|approx"
    r"|viz|inc|ltd|co|corp|dept|univ|bros|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.I,
)
_BEFORE_NUMBERS = re.compile(r"nos?|nr|vols?|pp?|figs?|ch|chap|sect?|art|eqs?|eds?|op|par|tab", re.I)


def _ends_sentence(token: str, gap: str, after: str) -> bool:
    """Whether a word ends its sentence. In doubt it does not: a longer sentence does less harm than a torn one."""
    if _WIDE_STOP.search(token):
        return True
    stop = _FULL_STOP.search(token)
    if not stop or not gap or after[0].islower():
        return False
    if not token[stop.start() :].startswith("."):
        return True
    core = token[: stop.start() + 1].lstrip("\"'“‘«([*_")
    if _INITIALS.fullmatch(core) or _ABBREVIATIONS.fullmatch(core[:-1]):
        return False
    return not (after[0].isdigit() and _BEFORE_NUMBERS.fullmatch(core[:-1]))


# ── Passages to a file ───────────────────────────────────────────────────────────────────────────────────────────────


def write_jsonl(passages: Iterable[Passage], path: str | os.PathLike[str]) -> int:
    """Write the passages to a JSONL file, all or nothing; how many there were.

    Until the last one is on the disk, whatever was at `path` before stays there. A link is followed.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InvalidInput(f"{path} is not a plain file, so it cannot be replaced; choose another name")
    if target.suffix.lower() in PACKED_TYPES:
        raise InvalidInput(f"{path}: passages are written unpacked; leave out {target.suffix} and pack the file later")
    disk = Disk()
    partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")
    with closing(OutputFile(disk, partial)) as out:
        try:
            count = _write_lines(passages, out)
            out.finish()
            disk.replace(partial, target)
        except BaseException:
            disk.remove_file(partial)
            raise
    disk.sync_folder(target.parent)
    return count


def _write_lines(passages: Iterable[Passage], out: OutputFile) -> int:
    count = 0
    for count, passage in enumerate(passages, 1):
        try:
            out.write(to_line(passage))
        except (TypeError, ValueError) as flaw:
            raise InvalidInput(f"passage {count} cannot be written: {flaw}") from None
    return count
