"""Hard negatives: best first, never a positive, never a passage with an answer, the same for any number of threads."""

from __future__ import annotations

import builtins
import math
import random
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from bpr.answers import has_answer
from bpr.errors import InvalidInput
from bpr.records import Passage
from bpr.training import negatives
from bpr.training.data import Example
from bpr.training.negatives import mine_bm25, mine_ranked

PASSAGES = [
    Passage("gold", "Iliad", "Homer wrote the Iliad, a poem about Troy"),
    Passage("twin", "Poems", "the Iliad is a poem that Homer wrote"),
    Passage("hard", "Troy", "the poem about Troy that Virgil wrote"),
    Passage("title", "Who wrote the Iliad?", "Homeric scholars disagree"),
    Passage("far", "Cheese", "milk and salt and poem"),
    Passage("none", "Zebra", "black and white stripes"),
]
ASK = Example("Who wrote the poem Iliad about Troy?", ("Homer",), ("gold",), ("old",), "g")


def ranks_of(examples, *rows, **options):
    return [each.negatives for each in mine_ranked(examples, np.array(rows), PASSAGES, **options)]


# ── BM25 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_negatives_are_near_without_an_answer_and_replace_what_was_there():
    (mined,) = mine_bm25(PASSAGES, [ASK])
    assert mined == Example(ASK.question, ASK.answers, ASK.positives, ("hard", "title", "far"), "g")


def test_without_answers_only_positives_are_left_out():
    (mined,) = mine_bm25(PASSAGES, [Example(ASK.question, (), ("gold",))])
    assert {*mined.negatives} == {"twin", "hard", "title", "far"}
    assert mined.negatives[-1] == "far"


def test_depth_and_pool_bound_what_is_kept():
    assert next(mine_bm25(PASSAGES, [ASK], depth=1)).negatives == ("hard",)
    assert next(mine_bm25(PASSAGES, [ASK], pool=1)).negatives == ()
    assert next(mine_bm25(PASSAGES, [ASK], pool=3)).negatives == ("hard", "title")


@pytest.mark.parametrize("question", ["the of and", "?!", "😀", "xylophone", "a", "x" * 65])
def test_a_question_that_shares_no_word_has_no_negatives(question):
    assert next(mine_bm25(PASSAGES, [Example(question, ("y",)), ASK])).negatives == ()


def test_an_answer_of_punctuation_is_looked_for_too():
    pile = [Passage("a", "", "poem ..."), Passage("b", "", "poem")]
    assert next(mine_bm25(pile, [Example("poem", ("...",), ("x",))])).negatives == ("b",)
    assert {*next(mine_bm25(pile, [Example("poem", ("", " "), ("x",))])).negatives} == {"a", "b"}


def test_one_passage_is_enough_and_some_may_have_no_words():
    pile = [Passage("a", "", "poem"), Passage("b", "", "")]
    assert next(mine_bm25(pile[:1], [Example("poem", ("x",))])).negatives == ("a",)
    assert next(mine_bm25(pile, [Example("poem", ("x",))])).negatives == ("a",)


def test_no_examples_are_no_error_but_no_passages_or_words_are():
    assert list(mine_bm25(PASSAGES, [])) == []
    with pytest.raises(InvalidInput, match="the passages hold no words"):
        list(mine_bm25([Passage("a", "", "? 😀")], [ASK]))
    with pytest.raises(InvalidInput, match="no passages"):
        list(mine_bm25([], [ASK]))


@pytest.mark.parametrize("options", [{"depth": 0}, {"pool": 0}, {"depth": -1}, {"threads": 0}])
def test_bounds_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidInput, match=r"at least 1|from 1 to"):
        list(mine_bm25(PASSAGES, [ASK], **options))


def random_pile(seed: int, count: int) -> tuple[list[Passage], list[Example]]:
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(60)]

    def some(least: int, most: int) -> str:
        return " ".join(draw.choices(words, [1 / (1 + rank) for rank in range(60)], k=draw.randint(least, most)))

    pile = [Passage(f"p{number}", some(0, 2), some(1, 30)) for number in range(count)]
    return pile, [Example(some(1, 6), (some(1, 1),), (f"p{number}",)) for number in range(50)]


def slow_bm25(pile: list[Passage], question: str) -> list[tuple[float, int]]:
    """Lucene's formula with k1 = 1.5, b = 0.75, one passage at a time; (score, row), best first."""
    bags = [Counter(f"{each.title} {each.text}".split()) for each in pile]
    mean = sum(bag.total() for bag in bags) / len(bags)
    scores = []
    for row, bag in enumerate(bags):
        score = 0.0
        for word in question.split():
            holders = sum(word in other for other in bags)
            idf = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
            score += idf * bag[word] / (bag[word] + 1.5 * (0.25 + 0.75 * bag.total() / mean))
        scores.append((score, row))
    return sorted((each for each in scores if each[0] > 0), key=lambda each: (-each[0], each[1]))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_bm25(seed):
    pile, asked = random_pile(seed, 80)
    for example, mined in zip(asked, mine_bm25(pile, asked, depth=80, pool=80), strict=True):
        ranked = slow_bm25(pile, example.question)
        kept = {
            pile[row].id: score
            for score, row in ranked
            if pile[row].id not in example.positives and not has_answer(example.answers, pile[row].text)
        }
        assert {*mined.negatives} == {*kept}
        scores = [kept[each] for each in mined.negatives]
        assert all(first > second - 1e-4 for first, second in pairwise(scores))


def test_the_result_is_the_same_for_any_number_of_threads_and_any_batch(monkeypatch):
    pile, asked = random_pile(7, 300)
    one = list(mine_bm25(pile, asked, threads=1))
    assert list(mine_bm25(pile, asked, threads=2)) == one
    monkeypatch.setattr(negatives, "QUESTIONS_AT_ONCE", 7)
    said: list[tuple[str, int, int | None]] = []
    assert list(mine_bm25(pile, asked, threads=64, progress=lambda *what: said.append(what))) == one
    assert ("reading words", 0, 300) in said
    assert said[-1] == ("mining", 50, 50)


def test_equal_passages_stand_in_their_order():
    pile = [Passage(f"p{number}", "", "poem") for number in range(9)]
    assert next(mine_bm25(pile, [Example("poem", ("x",))])).negatives == tuple(f"p{number}" for number in range(9))


@pytest.mark.parametrize("package", ["bm25s", "numba"])
def test_a_missing_package_is_named_with_what_to_install(monkeypatch, package):
    really = builtins.__import__

    def without(name, *arguments):
        if name == package:
            raise ImportError(f"No module named {name}", name=name)
        return really(name, *arguments)

    for name in [name for name in sys.modules if name == package or name.partition(".")[0] == "bm25s"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInput, match=rf"BM25 needs {package}: pip install"):
        list(mine_bm25(PASSAGES, [ASK]))
    assert "bm25s" not in sys.modules  # imported without numba, it would do without for good


# ── A model's rankings ───────────────────────────────────────────────────────────────────────────────────────────────


def test_ranked_rows_are_taken_in_their_order_with_the_same_exclusions():
    assert ranks_of([ASK], [5, 0, 1, 4, 2]) == [("none", "far", "hard")]
    assert ranks_of([ASK], [5, 0, 1, 4, 2], depth=2) == [("none", "far")]
    assert ranks_of([ASK], [5, 5, 0, 5, 4]) == [("none", "far")]
    assert ranks_of([ASK, Example("q", (), ("none",))], [0, 1], [5, 0]) == [(), ("gold",)]


def test_any_whole_numbers_will_do_and_nothing_too():
    for kind in (np.int32, np.int64, np.uint64):
        assert next(mine_ranked([ASK], np.array([[2]], kind), PASSAGES)).negatives == ("hard",)
    assert next(mine_ranked([ASK], np.zeros((1, 0), np.int64), PASSAGES)).negatives == ()
    assert list(mine_ranked([], np.zeros((0, 5), np.int64), PASSAGES)) == []


@pytest.mark.parametrize(
    ("ranked", "options", "complaint"),
    [
        (np.zeros((1, 2)), {}, r"rows of whole numbers for 1 examples, not float64\[1, 2\]"),
        (np.zeros(3, np.int64), {}, r"not int64\[3\]"),
        (np.zeros((2, 3), np.int64), {}, r"for 1 examples, not int64\[2, 3\]"),
        (np.array([[0, 6]]), {}, "holds rows 0 to 6, but the passages are 0 to 5"),
        (np.array([[0, -1]]), {}, "holds rows -1 to 0"),
        (np.array([[0]]), {"depth": 0}, "at least 1"),
    ],
)
def test_rankings_that_do_not_fit_are_refused(ranked, options, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        list(mine_ranked([ASK], ranked, PASSAGES, **options))
