"""Training data as bpr keeps it: examples read, checked, written, held out.

`bpr convert`, mining and training call it. Knows files and examples; nothing of models, so torch is not needed here.

The canonical form is a passages file (anything `bpr.passages.read` reads) and a JSONL file with one example a line:

    {"question": "…", "answers": ["…"], "positives": ["passage id"], "negatives": ["passage id"], "group": "article"}

Negatives are hard ones, best first. The group is what may not be torn apart when examples are held out. "question" and
one of "answers" and "positives" must be there; what is missing is empty.

A converter (formats.py) yields Passage and Example values as it meets them, each passage once; `write_converted` puts
them into two files, `collect` into two lists. A broken item is an InvalidInput that names the file and the item; with
skip_bad it is passed over and `on_skip` is told.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..disk import replacing
from ..errors import InvalidInput
from ..layouts import string_of, strings_of
from ..passages import to_line
from ..records import Passage
from ..textfiles import PACKED_TYPES, parse_objects, read_lines

if TYPE_CHECKING:
    from ..records import Progress

PathLike: TypeAlias = str | os.PathLike[str]
OnSkip: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answers, the ids of passages that answer it, and of hard ones that do not (best first)."""

    question: str
    answers: tuple[str, ...] = ()
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    group: str = ""

    def to_line(self) -> bytes:
        """As one line of JSON."""
        return (json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n").encode()


Item: TypeAlias = Passage | Example


class Converted(NamedTuple):
    """How much was written."""

    passages: int
    examples: int


# ── Examples in files ────────────────────────────────────────────────────────────────────────────────────────────────


def read_examples(path: PathLike, *, skip_bad: bool = False, on_skip: OnSkip | None = None) -> Iterator[Example]:
    """The examples of a JSONL file (also as .gz, .xz, .zst), one by one."""
    source, careful = Path(path), Careful(skip_bad, on_skip)
    empty = True
    for where, record in line_records(source, read_lines(source), careful):
        empty = False
        with careful.at(where):
            yield to_example(record)
    if empty:
        raise InvalidInput(f"{source} holds no examples")


def to_example(record: Mapping[str, Any]) -> Example:
    """The example in a record; a ValueError says what is wrong with it, the caller knows where it stood."""
    unknown = sorted(map(repr, record.keys() - Example.__slots__))
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is no field of an example; those are {', '.join(Example.__slots__)}")
    lists = {key: strings_of(record, key) for key in ("answers", "positives", "negatives")}
    example = Example(question=string_of(record, "question"), group=string_of(record, "group", ""), **lists)
    if not example.question.strip():
        raise ValueError('"question" is empty')
    if not example.answers and not example.positives:
        raise ValueError('an example needs "answers" or "positives", or nothing can be learned or measured')
    return example


def write_examples(path: PathLike, examples: Iterable[Example]) -> int:
    """Write the examples to a JSONL file, all or nothing; how many there were."""
    count = 0
    with replacing(_unpacked(path)) as [out]:
        for count, example in enumerate(examples, 1):
            out.write(_line(example, count))
    return count


def hold_out(examples: Iterable[Example], share: float, seed: int = 0) -> tuple[list[Example], list[Example]]:
    """(train, held): about `share` of the groups are held out, each as a whole.

    A group's side depends on its name and the seed alone, so it stays where it is when examples are added. Examples
    without a group belong together by their first positive; were they one group, all or none would be held out.
    """
    if not 0 <= share <= 1:
        raise InvalidInput(f"the share to hold out must be from 0 to 1, not {share}")
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        name = example.group or next(iter(example.positives), example.question)
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
        sides[int.from_bytes(digest, "big") < share * 2**64].append(example)
    return sides


# ── What a converter yields ──────────────────────────────────────────────────────────────────────────────────────────


def collect(items: Iterable[Item]) -> tuple[list[Passage], list[Example]]:
    """Passages and examples in two lists."""
    passages: list[Passage] = []
    examples: list[Example] = []
    for item in items:
        if isinstance(item, Passage):
            passages.append(item)
        else:
            examples.append(item)
    return passages, examples


def write_converted(
    items: Iterable[Item], passages: PathLike, examples: PathLike, progress: Progress | None = None
) -> Converted:
    """Write passages and examples to two JSONL files, both or neither, in flat memory."""
    say = progress or (lambda what, done, total: None)
    counts = {Passage: 0, Example: 0}
    with replacing(_unpacked(passages), _unpacked(examples)) as files:
        out = dict(zip(counts, files, strict=True))
        for done, item in enumerate(items):
            counts[type(item)] += 1
            out[type(item)].write(_line(item, counts[type(item)]))
            if done % 4096 == 0:
                say("converting", done, None)
        if not counts[Example]:
            raise InvalidInput("no examples were found, so nothing is written")
    say("converting", sum(counts.values()), sum(counts.values()))
    return Converted(counts[Passage], counts[Example])


def _line(item: Item, number: int) -> bytes:
    try:
        return to_line(item) if isinstance(item, Passage) else item.to_line()
    except (TypeError, ValueError) as flaw:
        raise InvalidInput(f"{type(item).__name__.lower()} {number} cannot be written: {flaw}") from None


def _unpacked(path: PathLike) -> PathLike:
    """The path, which must not ask for a packed file."""
    suffix = Path(path).suffix
    if suffix.lower() in PACKED_TYPES:
        raise InvalidInput(f"{path}: this is written unpacked; leave out {suffix} and pack the file later")
    return path


# ── Records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Careful:
    """What happens to a broken item: an InvalidInput with its place, or it is passed over and somebody is told."""

    def __init__(self, skip_bad: bool, on_skip: OnSkip | None) -> None:
        self._skip = skip_bad
        self._tell = on_skip or logging.getLogger("bpr").warning  # never silently

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """The place of an item: a ValueError is about it; an InvalidInput names a place already."""
        try:
            yield
        except (ValueError, InvalidInput) as flaw:
            message = str(flaw) if isinstance(flaw, InvalidInput) else f"{where}: {flaw}"
            if not self._skip:
                raise InvalidInput(message) from None
            self._tell(message)


def line_records(
    source: Path, lines: Iterable[tuple[int, str]], careful: Careful
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object of each line, with its place."""
    for number, line in lines:
        with careful.at(str(source)):
            for _, record in parse_objects(source, [(number, line)]):
                yield f"{source}, line {number}", record
