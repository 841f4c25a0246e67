"""What the readers of other people's files share: fields of records, SQuAD's articles, BEIR's judgements.

questions.py and training/formats.py call it, so that a paragraph or a judgement means the same in training and in
measuring. Knows layouts; what is made of them is the callers' business. A ValueError says what is wrong with an item;
the caller knows where it stood.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .disk import storage_error
from .errors import InvalidInput
from .textfiles import PACKED_TYPES, check_string, kind, read_lines

# ── Fields ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _field(record: Any, key: str, default: Any) -> Any:
    if not isinstance(record, Mapping):
        raise ValueError(f"must be a JSON object, not {kind(record)}")
    value = record.get(key)
    value = default if value is None else value
    if value is None:
        raise ValueError(f'"{key}" is missing')
    return value


def string_of(record: Any, key: str, default: str | None = None) -> str:
    """A field of a record as a string that UTF-8 can hold; a ValueError says what else it is."""
    value = _field(record, key, default)
    check_string(key, value)
    return str(value)


def list_of(record: Any, key: str, default: list[Any] | None = None) -> list[Any]:
    """A field of a record as a list; a ValueError says what else it is."""
    value = _field(record, key, default)
    if not isinstance(value, list):
        raise ValueError(f'"{key}" must be a list, not {kind(value)}')
    return value


def strings_of(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A field of a record as strings, none where it is missing; a ValueError says what else it is."""
    return tuple(string_of({key: value}, key) for value in list_of(record, key, []))


# ── SQuAD ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def squad_articles(source: Path) -> list[Any]:
    """The articles of a file in SQuAD's layout, read as a whole, into about four times its size of memory."""
    try:
        return list_of(json.loads("".join(line for _, line in read_lines(source))), "data")
    except (ValueError, RecursionError) as flaw:
        raise InvalidInput(f"{source} is not JSON in SQuAD's layout: {flaw}") from None


def squad_id(prefix: str, article: int, paragraph: int) -> str:
    """The id of a paragraph: prefix, article and paragraph from 0, as in "dev-3-14"."""
    return f"{prefix}{article}-{paragraph}"


def squad_answers(question: Any) -> list[str]:
    """The different answers that people gave to a question, in their order."""
    answers = list(dict.fromkeys(string_of(answer, "text") for answer in list_of(question, "answers")))
    if not answers:
        raise ValueError("no answers; what cannot be answered (as in SQuAD 2.0) says nothing of a retriever")
    return answers


# ── BEIR ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def packed_or_not(*paths: Path) -> Path:
    """The first of these files that is there, as it is or packed."""
    for path in paths:
        for candidate in (path, *(path.with_name(path.name + suffix) for suffix in PACKED_TYPES)):
            try:
                if candidate.is_file():
                    return candidate
            except OSError as error:
                raise storage_error("read", candidate, error) from error
    raise InvalidInput(f"there is no {' or '.join(map(str, paths))}; BEIR's layout has it")


def judgement_lines(source: Path) -> Iterator[tuple[str, str]]:
    """Each line of a file of judgements, with its place, but for blank ones and a header."""
    for number, line in read_lines(source):
        last = line.split()[-1:]
        if last and (number > 1 or last[0].removeprefix("-").isdecimal()):
            yield f"{source}, line {number}", line


def beir_judgement(line: str) -> tuple[str, str, int]:
    """(question id, document id, how relevant it is)."""
    columns = line.rstrip("\r\n").split("\t")
    if len(columns) != 3 or not columns[2].strip().removeprefix("-").isdecimal():
        raise ValueError(f"must be question id, document id and a whole number, with tabs between: {line!r:.200}")
    return columns[0], columns[1], int(columns[2])
