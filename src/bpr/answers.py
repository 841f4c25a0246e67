"""Whether a passage holds an answer: DPR's `has_answer`, by string and by regular expression.

Mining of negatives (training/negatives.py) and evaluation call it. Knows strings; nothing of passages or questions.

By string, the answer's tokens must stand in the text one after another. Text is taken apart after NFD normalisation,
as `[\\p{L}\\p{N}\\p{M}]+|[^\\p{Z}\\p{C}]` would do it: a token is a run of letters, numbers and marks, or one other
visible character. Tokens are compared in lower case. Here they are joined by spaces, which no token has in it, so that
looking for an answer is looking for a substring, at the speed of C.

One difference from DPR: an answer without a single token (empty, or white space) is found nowhere, not everywhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from .errors import InvalidInput

_TOKEN = re.compile(r"[0-9A-Za-z\x80-\U0010ffff]+|[!-/:-@\[-`{-~]")  # once _SPACING was there
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class _Spacing(dict[int, str]):
    """For str.translate: letters, numbers and marks stay, other visible characters stand alone, the rest is space.

    Only for what is not ASCII: str.translate takes 100 ns a character, and most text is mostly ASCII.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        major = unicodedata.category(character)[0]
        self[code] = character if major in "LNM" else " " if major in "ZC" else f" {character} "
        return self[code]


_SPACING = _Spacing()


def tokens(text: str) -> list[str]:
    """The tokens of a text, in lower case."""
    return _joined(text).split()


def _joined(text: str) -> str:
    """The tokens in lower case with one space between. Lowered after the cut, since Greek sigmas look at neighbours."""
    if not text.isascii():
        text = _NOT_ASCII.sub(lambda run: run[0].translate(_SPACING), unicodedata.normalize("NFD", text))
    return " ".join(_TOKEN.findall(text)).lower()


class Text:
    """A text in which answers are looked for: taken apart once, however many questions ask about it."""

    __slots__ = ("_padded", "_text")

    def __init__(self, text: str) -> None:
        """Takes no time: the work is done when the first question asks."""
        self._text = text
        self._padded: str | None = None

    @property
    def padded(self) -> str:
        """The tokens with a space before, between and behind them."""
        if self._padded is None:
            self._padded = f" {_joined(self._text)} "
        return self._padded

    @property
    def plain(self) -> str:
        """The text, NFD-normalised, for regular expressions."""
        return unicodedata.normalize("NFD", self._text)


class Answers:
    """A question's answers, made ready to be looked for in many texts."""

    __slots__ = ("_needles", "_patterns")

    def __init__(self, answers: Iterable[str], *, regex: bool = False) -> None:
        """regex: each answer is a regular expression (CuratedTREC's are), found anywhere in the text in any case."""
        self._patterns = tuple(map(_pattern, answers)) if regex else ()
        joined = () if regex else map(_joined, answers)
        self._needles = tuple(f" {needle} " for needle in joined if needle)

    def found_in(self, text: Text | str) -> bool:
        """Whether any of the answers stands in the text."""
        where = Text(text) if isinstance(text, str) else text
        if self._patterns:
            plain = where.plain
            return any(pattern.search(plain) for pattern in self._patterns)
        padded = where.padded
        return any(needle in padded for needle in self._needles)


def has_answer(answers: Iterable[str], text: str, *, regex: bool = False) -> bool:
    """Whether any of the answers stands in the text; for many texts or questions, keep `Answers` and `Text` values."""
    return Answers(answers, regex=regex).found_in(text)


def _pattern(answer: str) -> re.Pattern[str]:
    try:
        return re.compile(unicodedata.normalize("NFD", answer), re.IGNORECASE | re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"the answer {answer!r} is not a regular expression: {error}; mend it, or look for answers as plain strings"
        ) from None
