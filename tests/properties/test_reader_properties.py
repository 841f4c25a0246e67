"""Whatever a text holds, an answer is exactly what stands between its offsets, in whole words and whole letters."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from bpr.pieces import Cutter
from bpr.reader import Reader
from bpr.records import Passage
from tiny_models import WORDS

ODD = [
    "café", "cafe\u0301", "Ångström", "A\u030angstro\u0308m", "naïve", "İstanbul", "straße", "ﬁre", "ﬀ", "½", "Ⅳ",
    "😀", "👨‍👩‍👧‍👦", "👍🏽", "🇫🇷", "日本語", "ไทย", "हिन्दी", "שלום", "مرحبا", "\u0301",
    "a\u0301\u0323\u0308b", "\u200d", "\u200b", "\xa0", "\u3000", "\ufeff", "\x00", "\t", "\n", "\r\n", "[SEP]",
    "[CLS]", "##s", "don't", "3,000.5", "(x)", "—", "homers", "moonings",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(ODD), st.text(max_size=8)), max_size=40)
joints = st.sampled_from(["", " ", "  ", "-", ", "])


@pytest.fixture(scope="module")
def reader(tiny_reader: Path) -> Reader:
    return Reader.open(tiny_reader, threads=1)


def visible(character: str) -> bool:
    return unicodedata.category(character)[0] not in "CMZ"


def storable(text: str) -> bool:
    return not any(unicodedata.category(each) == "Cs" for each in text)


titles, forms = st.sampled_from(["", "Iliad", "é 😀"]), st.sampled_from(["", "NFD", "NFC"])


@given(words=texts, joint=joints, title=titles, form=forms)
@example(words=["the"] * 5 + ["café"] + ["the"] * 3 + ["0\f0"], joint=" ", title="", form="")
def test_offsets_cut_the_answer_out_of_the_passage(
    reader: Reader, words: list[str], joint: str, title: str, form: str
) -> None:
    text = joint.join(words)
    text = unicodedata.normalize(form, text) if form else text
    passage = Passage("p", title, text)
    if not storable(text):
        return
    for answer in reader.answer("who wrote the iliad", [passage], 5):
        assert passage.text[answer.start : answer.end] == answer.text != ""
        assert 0 <= answer.start < answer.end <= len(text)
        assert sum(any(map(visible, word)) for word in answer.text.split()) <= 10
        assert not answer.text[0].isspace() and not answer.text[-1].isspace()
        behind = text[answer.end : answer.end + 1]
        assert not behind or not unicodedata.category(behind).startswith("M")  # no letter without its accents


@given(words=texts, joint=joints)
@settings(max_examples=60)
def test_marks_are_what_the_characters_say(tiny_reader: Path, words: list[str], joint: str) -> None:
    text = joint.join(words)
    if not storable(text):
        return
    (found,) = Cutter(tiny_reader / "tokenizer.json").cut([text], 500)
    assert (found.starts <= found.ends).all() and (np.diff(found.starts) >= 0).all()
    for i in range(1, len(found.ids)):
        between = text[found.ends[i - 1] : found.starts[i]]
        assert found.glued[i] == (not any(each.isspace() for each in between))
