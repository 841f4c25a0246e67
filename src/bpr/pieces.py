"""Text to tokens, and where each token stands in its text. The only importer of tokenizers beside training.

The encoder opens its tokenizers here; the reader and its training cut questions and passages with `Cutter`, so that a
span of tokens is a span of characters. It knows texts and one file, tokenizer.json; nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

# A text is cut to so many characters for each token that the model reads before it is tokenised: the rest is not read
# anyway (a token of ordinary text has four or five characters), and a book must not take seconds to be cut up.
CHARACTERS_PER_TOKEN = 64

# White space that BERT's tokenizers drop as control characters: a form feed between two pages made one word of two.
_DROPPED_SPACES = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x1f\x85"), " ")
_SPACES = np.array([chr(code).isspace() for code in range(0x3002)])  # the last white space of Unicode is U+3000

Ids: TypeAlias = NDArray[np.int64]


class Pieces(NamedTuple):
    """The tokens of a text without special ones, and where they stand in it.

    starts, ends: characters of the text. inside: whether a token goes on with the word of the one before. glued:
    whether no white space stands before it.
    """

    ids: Ids  # int64[n]
    starts: Ids  # int64[n]
    ends: Ids  # int64[n]
    inside: NDArray[np.bool_]  # [n]
    glued: NDArray[np.bool_]  # [n]


class Cutter:
    """Cuts texts into tokens that know their places; what reads answers out of passages is built on it."""

    def __init__(self, path: Path) -> None:
        """path: a tokenizer.json."""
        self._tokenizer = open_tokenizer(path, None)
        found = [self.id_of(token) for token in ("[CLS]", "[SEP]", "[PAD]")]
        if None in found:
            raise InvalidInput(f"{path} has no [CLS], [SEP] and [PAD]: bpr reads with BERT-like models")
        self.cls, self.sep, self.pad = found
        self.size: int = self._tokenizer.get_vocab_size()

    def cut(self, texts: Sequence[str], longest: int) -> list[Pieces]:
        """Each text's first `longest` tokens; all of them on all cores."""
        parts = [beginning(text, longest) for text in texts]
        short = [text[part].translate(_DROPPED_SPACES) for text, part in zip(texts, parts, strict=True)]
        found = self._tokenizer.encode_batch(short, add_special_tokens=False)
        return [_pieces(*each, longest) for each in zip(found, short, [part.start for part in parts], strict=True)]

    def ids(self, texts: Sequence[str], longest: int) -> list[list[int]]:
        """The tokens alone, for those who need no places: training."""
        short = [text[beginning(text, longest)] for text in texts]
        return [each.ids[:longest] for each in self._tokenizer.encode_batch(short, add_special_tokens=False)]

    def id_of(self, token: str) -> int | None:
        """The number of a token, if there is such a one."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def words(self) -> list[str]:
        """The vocabulary in the order of its ids."""
        return words_of(self._tokenizer)


def _pieces(found: Any, text: str, first: int, longest: int) -> Pieces:
    """text: what was tokenised, which stands in the whole one from character `first` on."""
    ids = np.array(found.ids[:longest], np.int64)
    places = np.array(found.offsets[: len(ids)], np.int64).reshape(-1, 2)
    words = np.array([-1 if word is None else word for word in found.word_ids[: len(ids)]], np.int64)
    starts, ends = places[:, 0].copy(), places[:, 1].copy()
    inside, glued = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
    inside[1:] = (words[1:] == words[:-1]) & (words[1:] >= 0)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    spaces = np.zeros(len(codes) + 1, np.int64)
    np.cumsum(_SPACES[np.minimum(codes, len(_SPACES) - 1)], out=spaces[1:])
    glued[1:] = spaces[starts[1:]] == spaces[ends[:-1]]
    return Pieces(ids, starts + first, ends + first, inside, glued)


def beginning(text: str, tokens: int) -> slice:
    """Which characters of a text to tokenise for a model that reads so many tokens.

    White space at its head is no part of it where the text is long: some is pasted with thousands of blanks before it.
    """
    most = tokens * CHARACTERS_PER_TOKEN
    first = len(text) - len(text.lstrip()) if len(text) > most else 0
    return slice(first, first + most)


def check_text(text: Any, what: str) -> None:
    """InvalidInput unless it is a string that UTF-8 can hold."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be a string, not {type(text).__name__}")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} has half a surrogate pair at character {error.start}, which is no text") from None


def words_of(tokenizer: Any) -> list[str]:
    """The vocabulary of a tokenizer, in the order of its ids."""
    known: dict[str, int] = tokenizer.get_vocab()
    return sorted(known, key=known.__getitem__)


def open_tokenizer(path: Path, length: int | None) -> Any:
    """Of the tokenizers library, without padding; what is longer than `length` tokens is cut, the longer part first."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no better one
        raise InvalidInput(f"{path} is not a tokenizer of the tokenizers library: {error}") from error
    tokenizer.no_padding()
    if length is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(length, strategy="longest_first")
    return tokenizer
