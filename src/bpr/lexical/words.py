"""What a word is, in passages and in questions alike. writer.py and bm25.py call it; it knows text only."""

from __future__ import annotations

import hashlib
import re
import unicodedata

# Lucene's. Their weight is next to nothing in English, and their lists of rows are the longest by far.
ENGLISH = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)

_ACCENTS = re.compile(r"[\u0300-\u036f]+")
# Marks that stand inside words, but are no letters to `\w`: vowel signs above all.
_MARKS = (
    r"\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    r"\u0900-\u0963\u0966-\u0df3"
)
# Scripts without spaces: Chinese, Japanese; Thai, Lao, Tibetan, Burmese, Khmer.
_SPACELESS = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0f40-\u0fbc\u1000-\u1049\u1050-\u109f\u1780-\u17d3"
)
_WORD = re.compile(rf"[\w{_MARKS}]+")
_RUN = re.compile(rf"[{_SPACELESS}]+|(?:(?![{_SPACELESS}])[\w{_MARKS}])+")
_HAS_SPACELESS = re.compile(rf"[{_SPACELESS}]")


def words_of(text: str) -> list[str]:
    """The words of a text, in their order: letters, digits and _, in lower case, without accents.

    Scripts without spaces give pairs of neighbouring characters, as others have words: 東京都 is 東京 and 京都.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    text = text.lower()
    if text.isascii() or not _HAS_SPACELESS.search(text):
        return _WORD.findall(text)
    found = []
    for run in _RUN.findall(text):
        pairs = len(run) > 1 and _HAS_SPACELESS.match(run)
        found += [run[at : at + 2] for at in range(len(run) - 1)] if pairs else [run]
    return found


REMEMBERED = 1 << 20  # words whose digests are at hand


class Numbers(dict[str, int]):
    """Of each word 8 bytes that stand for it, the same everywhere."""

    def __missing__(self, word: str) -> int:
        if len(self) >= REMEMBERED:
            self.clear()
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        number = self[word] = int.from_bytes(digest, "big")
        return number
