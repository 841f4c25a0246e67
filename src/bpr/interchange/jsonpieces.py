"""A JSON file of any size, one question at a time: the elements of an array, or the members of an object.

results.py reads with it. Knows JSON; nothing of questions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..textfiles import LONGEST_LINE, read_pieces

LONGEST_VALUE = LONGEST_LINE  # characters of one element: beyond this a file is not what it seems
_SPACE = re.compile(r"[ \t\n\r]*")


def elements(path: Path) -> Iterator[Any]:
    """The objects of a JSON array, one by one."""
    text = _Text(path)
    text.expect("[")
    yield from (text.value("{") for _ in text.between("]"))


def members(path: Path) -> Iterator[tuple[str, Any]]:
    """The names and objects of a JSON object, one by one."""
    text = _Text(path)
    text.expect("{")
    for _ in text.between("}"):
        name = text.value('"')
        text.expect(":")
        yield name, text.value("{")


class _Text:
    """The text of a file from a place on: what is behind us is forgotten, what is before us is read as it is needed."""

    def __init__(self, path: Path) -> None:
        self._path, self._pieces = path, read_pieces(path)
        self._text, self._at, self._before = "", 0, 0
        self._decode = json.JSONDecoder().raw_decode

    def between(self, end: str) -> Iterator[None]:
        """Once before each element, up to the end of the array or object and of the file; commas are passed over."""
        if self._next() != end:
            yield
            while self._next() == ",":
                self._at += 1
                yield
        self.expect(end)
        if self._next():
            raise self._wrong("something stands behind the end of it")

    def expect(self, sign: str) -> None:
        """Pass over this sign, which must come next."""
        if self._next() != sign:
            raise self._wrong(f"{sign!r} should stand here, not {self._next() or 'the end of the file'!r}")
        self._at += 1

    def value(self, begins: str) -> Any:
        """The value that begins here with this sign; of an object or a string it is known where it ends."""
        if self._next() != begins:
            raise self._wrong(f"{begins!r} should stand here, not {self._next() or 'the end of the file'!r}")
        while True:
            try:
                found, self._at = self._decode(self._text, self._at)
                return found
            except RecursionError:
                raise self._wrong("values in values, too deep to be read") from None
            except ValueError as error:  # broken, or not here as a whole yet
                if len(self._text) - self._at > LONGEST_VALUE:
                    raise self._wrong(f"no value ends within {LONGEST_VALUE:,} characters") from None
                if not self._more():
                    raise self._wrong(f"not valid JSON: {getattr(error, 'msg', error)}") from None

    def _next(self) -> str:
        """The next sign that is no white space; "" at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read on, at least as much as is at hand, so that a long value is not parsed again for each piece."""
        kept = self._text[self._at :]
        self._before, self._at = self._before + self._at, 0
        pieces, wanted = [kept], len(kept)
        for piece in self._pieces:
            pieces.append(piece)
            wanted -= len(piece)
            if wanted <= 0 and piece:
                break
        self._text = "".join(pieces)
        return len(self._text) > len(kept)

    def _wrong(self, what: str) -> InvalidInput:
        return InvalidInput(f"{self._path}, character {self._before + self._at:,}: {what}")
