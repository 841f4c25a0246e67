"""Answers found in texts exactly as DPR's tokenizer defines it, by string and by regular expression."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr.answers import Answers, Text, has_answer, tokens
from bpr.errors import InvalidInput

# Letters whose lower case depends on the neighbours or has another length, marks, digits of all kinds, spaces and
# controls that str.split knows and does not know, half a surrogate pair, emoji with joiners.
ODD = "aAbZ09 _-'.,$\t\n\x0b\x1c\x1f\x7f\x85\xa0ßẞéÉe\u0301ΣσςΑ'İı\u0307²½٣Ⅷ中〇ー한\u1100\u1161"
ODD += "\u200b\u200d\u2028\u3000\ufeff\ud800\ue000\U0001f600\U0001f3fd\u0378ǅª"
odd_text = st.text(st.sampled_from(ODD), max_size=30) | st.text(max_size=12)


def slow_tokens(text: str) -> list[str]:
    """DPR's definition, one character at a time."""
    found, run = [], ""
    for character in unicodedata.normalize("NFD", text):
        major = unicodedata.category(character)[0]
        if major in "LNM":
            run += character
            continue
        found += [run] * bool(run) + [character] * (major not in "ZC")
        run = ""
    return [token.lower() for token in [*found, *[run] * bool(run)]]


def slow_has_answer(answers: list[str], text: str) -> bool:
    words = slow_tokens(text)
    for wanted in map(slow_tokens, answers):
        if wanted and any(words[at : at + len(wanted)] == wanted for at in range(len(words))):
            return True
    return False


@given(odd_text)
def test_tokens_are_dprs(text):
    assert tokens(text) == slow_tokens(text)


@given(st.text(st.characters(max_codepoint=127), max_size=40))
def test_the_fast_path_of_ascii_is_no_other(text):
    assert tokens(text) == slow_tokens(text)


def test_every_single_character_is_taken_as_dpr_takes_it():
    for first in (*range(0, 0x40000, 256), 0xE0000, 0xE0100, 0xF0000, 0x10FF00):  # between them nothing is assigned
        text = "".join(f"a{chr(code)}" for code in range(first, first + 256))
        assert tokens(text) == slow_tokens(text), f"in U+{first:04X} to U+{first + 255:04X}"


def test_tokens_are_those_of_the_regular_expression_itself():
    regex = pytest.importorskip("regex")
    pattern = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
    # Assigned long ago, so that both packages' Unicode tables agree.
    for code in [*range(0x3000), *range(0x4E00, 0x5000), *range(0x1F600, 0x1F650)]:
        text = f"Aé{chr(code)}Σ B{chr(code)}"
        if unicodedata.category(chr(code)) != "Cn":
            wanted = [token.lower() for token in pattern.findall(unicodedata.normalize("NFD", text))]
            assert tokens(text) == wanted, f"U+{code:04X}"


@given(st.lists(odd_text, max_size=3), odd_text)
def test_answers_are_found_where_the_slow_way_finds_them(answers, text):
    assert has_answer(answers, text) == slow_has_answer(answers, text)


@given(odd_text, odd_text, odd_text)
def test_an_answer_that_was_put_there_is_found_as_the_slow_way_does(before, answer, after):
    for text in (before + answer + after, f"{before} {answer} {after}"):
        assert has_answer([answer], text) == slow_has_answer([answer], text)


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("Denver Broncos", "the DENVER  broncos won", True),
        ("Denver Broncos", "Denver's Broncos", False),
        ("Denver", "Denverite", False),
        ("24-10", "won 24 - 10 there", True),
        ("24–10", "won 24-10 there", False),  # an en dash is another character
        ("café", "at the CAFÉ", True),
        ("café", "at the cafe", False),
        ("U.S.", "the U.S. army", True),
        ("...", "well...", True),
        ("...", "well..", False),
        ("?!", "what?!", True),
        ("😀", "so 😀!", True),
        ("😀 😀", "so 😀😀", True),
        ("", "anything", False),
        (" \t\u200b", "anything", False),
        ("a", "", False),
        ("ΟΔΟΣ", "στην οδός ΟΔΟΣ'Α", True),
    ],
)
def test_what_people_may_wonder_about(answer, text, found):
    assert has_answer([answer], text) is found
    assert Answers([answer]).found_in(Text(text)) is found


def test_any_of_the_answers_is_enough_and_none_is_never_found():
    text = Text("one two")
    assert Answers(["three", "two"]).found_in(text)
    assert not Answers(["three"]).found_in(text)
    assert not Answers([]).found_in(text)
    assert not Answers([], regex=True).found_in(text)


def test_a_text_is_taken_apart_once():
    text = Text("One,two")
    assert text.padded == " one , two "
    assert text.padded is text.padded


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"Sept(ember)?\s+11", "on SEPTEMBER  11", True),
        (r"^two$", "one\ntwo\nthree", True),
        (r"caf.$", "café", False),  # NFD: the accent is a character of its own
        (r"café", "cafe\u0301", True),
        (r"\d{4}", "in 196", False),
    ],
)
def test_regular_expressions_are_searched_in_any_case_and_line(pattern, text, found):
    assert has_answer([pattern], text, regex=True) is found


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "*", "(?P<", "a" * 3 + "(" * 500])
def test_a_broken_regular_expression_is_refused(pattern):
    with pytest.raises(InvalidInput, match=r"is not a regular expression: .*; mend it"):
        Answers(["fine", pattern], regex=True)
