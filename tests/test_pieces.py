"""Tokens and where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpr.errors import InvalidInput
from bpr.pieces import CHARACTERS_PER_TOKEN, Cutter, beginning
from tiny_models import CLS, SEP, write_tokenizer


@pytest.fixture(scope="module")
def cutter(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    return Cutter(write_tokenizer(tmp_path_factory.mktemp("pieces") / "tokenizer.json"))


def test_tokens_know_their_places(cutter: Cutter) -> None:
    text = "Homer's  Troys,\u3000(sea)."
    (found,) = cutter.cut([text], 100)
    words = cutter.words()
    assert [words[each] for each in found.ids][:5] == ["homer", "'", "s", "troy", "##s"]
    cut = [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert cut[:6] == ["Homer", "'", "s", "Troy", "s", ","]
    assert found.inside.tolist()[:6] == [False, False, False, False, True, False]
    assert found.glued.tolist()[:6] == [False, True, True, False, True, True]
    assert not found.glued[6] and text[found.starts[6]] == "("  # an ideographic space is white space


def test_special_tokens_and_limits(cutter: Cutter) -> None:
    assert (cutter.cls, cutter.sep, cutter.pad) == (CLS, SEP, 0) and cutter.size == len(cutter.words())
    (short,) = cutter.cut(["homer " * 50], 7)
    assert len(short.ids) == len(short.glued) == 7
    (none,) = cutter.cut([" \n"], 7)
    assert len(none.ids) == len(none.inside) == 0
    assert cutter.cut([], 7) == []


def test_blanks_before_a_long_text_are_not_its_beginning(cutter: Cutter) -> None:
    blanks = " \n\u3000" * 7 * CHARACTERS_PER_TOKEN
    text = f"{blanks}Homer's Troys"
    (found,) = cutter.cut([text], 7)
    cut = [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert cut == ["Homer", "'", "s", "Troy", "s"]
    assert cutter.ids([text], 7) == [found.ids.tolist()]
    assert text[beginning(text, 7)] == "Homer's Troys"
    assert blanks[beginning(blanks, 7)] == ""
    assert beginning(" homer", 7).start == 0  # a short one is left as it is: some tokenizers see its blank


@pytest.mark.parametrize("dropped", "\v\f\x1c\x1d\x1e\x1f\x85")
def test_white_space_that_tokenizers_drop_parts_words(cutter: Cutter, dropped: str) -> None:
    found, plain = cutter.cut([f"homer{dropped}troy", "homer troy"], 7)
    assert [each.tolist() for each in found] == [each.tolist() for each in plain]


def test_a_tokenizer_without_special_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "t.json"))
    with pytest.raises(InvalidInput, match=r"has no \[CLS\]"):
        Cutter(tmp_path / "t.json")
