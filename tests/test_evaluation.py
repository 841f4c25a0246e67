"""Measures against figures worked out by hand, against other people's code, and against slow twins of their own."""

from __future__ import annotations

import itertools
import math
import signal
import sys
import threading
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr import evaluation
from bpr.errors import InvalidInput
from bpr.evaluation import (
    AnswerFinder,
    answer_ranks,
    exact_match,
    f1,
    gold_ranks,
    interval,
    measures,
    ndcg,
    paired,
    recall_curve,
    reciprocal_rank,
    top_k,
)
from bpr.questions import Question

# Four questions and what was found for them, with all their figures worked out by hand.
QUESTIONS = [
    Question("first", "?", ("Homer",), {"a": 1}),
    Question("third", "?", ("Troy", "Ilion"), {"c": 2, "d": 1}),
    Question("never", "?", ("Achilles",), {"z": 1}),
    Question("only answers", "?", ("Odysseus",)),
]
IDS = [["a", "b", "c", "d"], ["b", "a", "d", "c"], ["a", "b", "c", "d"], ["d", "c", "b", "a"]]
TEXTS = {"a": "HOMER sang.", "b": "of the fall of Ilion,", "c": "and of Odysseus'", "d": "way home"}
FOUND = [[TEXTS[each] for each in ids] for ids in IDS]


# ── Ranks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ranks_of_gold_passages_and_of_answers():
    assert gold_ranks(QUESTIONS, IDS).tolist() == [1, 3, 0, 0]
    assert answer_ranks(QUESTIONS, FOUND).tolist() == [1, 1, 0, 2]
    assert gold_ranks(QUESTIONS, IDS).dtype == answer_ranks(QUESTIONS, FOUND).dtype == np.int64


def test_nothing_found_is_no_rank():
    assert gold_ranks(QUESTIONS, [[], [], [], []]).tolist() == [0, 0, 0, 0]
    assert answer_ranks(QUESTIONS, [[], [], [], []]).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("measure", [gold_ranks, answer_ranks, ndcg])
def test_something_must_have_been_found_for_each_question(measure):
    with pytest.raises(InvalidInput, match="there are 4 questions and what was found for 3"):
        measure(QUESTIONS, IDS[:3])


def other_has_answer(answers: tuple[str, ...], text: str) -> bool:
    """DPR's rule written another way: runs of characters of one class, and windows over them."""

    def classes(character: str) -> tuple[str, int]:
        major = unicodedata.category(character)[0]
        return ("word", 0) if major in "LNM" else ("gap", 0) if major in "ZC" else ("sign", next(count))

    def words(string: str) -> tuple[str, ...]:
        runs = itertools.groupby(unicodedata.normalize("NFD", string), classes)
        return tuple("".join(run).lower() for (kind, _), run in runs if kind != "gap")

    count = itertools.count()
    held = words(text)
    wanted = [words(answer) for answer in answers]
    return any(w and w in {held[i : i + len(w)] for i in range(len(held))} for w in wanted)


PIECES = [
    "Homer",
    "homer",
    "café",
    "cafe\u0301",
    "CAFE",
    "24-10",
    "24–10",
    "24",
    "10",
    "-",
    "–",
    "U.S.",
    "US",
    "U",
    "S",
]
PIECES += [
    ".",
    ",",
    "'",
    "’s",
    "'s",
    " ",
    "  ",
    "\n",
    "\u00a0",
    "\u200b",
    "ﬁ",
    "ß",
    "Σ",
    "ς",
    "中",
    "文",
    "½",
    "$5",
    "",
]
sentences = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)


@given(st.lists(st.tuples(st.lists(sentences, max_size=3), st.lists(sentences, max_size=5)), max_size=4))
def test_answers_are_found_where_an_independent_rule_finds_them(cases):
    questions = [Question(str(number), "?", tuple(answers)) for number, (answers, _) in enumerate(cases)]
    found = [texts for _, texts in cases]
    wanted = [[other_has_answer(q.answers, text) for text in texts] for q, texts in zip(questions, found, strict=True)]
    finder = AnswerFinder()
    assert [finder.holds(q, texts) for q, texts in zip(questions, found, strict=True)] == wanted
    assert answer_ranks(questions, found).tolist() == [row.index(True) + 1 if True in row else 0 for row in wanted]


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("café", "the CAFE\u0301 there", True),  # composed or not: the same letter
        ("café", "the cafe there", False),  # an accent counts
        ("Jay-Z", "by jay - z.", True),  # a hyphen is a token of its own, whatever is around it
        ("Jay-Z", "by Jay Z", False),
        ("co-op", "coop", False),
        ("U.S.", "the U.S., then", True),
        ("U.S.", "the US", False),
        ("don't", "DON'T", True),
        ("don't", "don’t", False),  # a curly apostrophe is another character
        ("New York", "New\n York", True),
        ("New York", "new, york", False),
        ("art", "party", False),
        ("1,000", "1000", False),
        ("", "anything", False),
        (" ", "any thing", False),
        ("中文", "中文字", False),  # no spaces: a run of letters is one token, as in DPR
    ],
)
def test_hard_cases(answer, text, found):
    assert answer_ranks([Question("q", "?", (answer,))], [[text]]).tolist() == [int(found)]
    assert other_has_answer((answer,), text) is found


def test_a_passage_is_taken_apart_once_for_all_questions(monkeypatch):
    taken = []

    class Counted(evaluation.Text):
        def __init__(self, text):
            taken.append(text)
            super().__init__(text)

    monkeypatch.setattr(evaluation, "Text", Counted)
    answer_ranks(QUESTIONS, FOUND)
    assert sorted(taken) == sorted(TEXTS.values())


# ── Regular expressions ──────────────────────────────────────────────────────────────────────────────────────────────


def test_answers_as_regular_expressions():
    questions = [Question("q", "?", (r"19\d\d", r"^twenty")), Question("r", "?", (r"Sept(ember)?\s+11",))]
    found = [["in 1899", "Twenty", "1914"], ["on sept  11"]]
    assert answer_ranks(questions, found, regex=True).tolist() == [2, 1]
    assert answer_ranks(questions, found).tolist() == [0, 0]


def test_a_broken_expression_is_refused():
    with pytest.raises(InvalidInput, match=r"the answer '\(' is not a regular expression"):
        answer_ranks([Question("q", "?", ("(",))], [["x"]], regex=True)


EVIL = Question("evil", "?", ("(a+)+$",))  # for each a more, twice the time


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(evaluation, "REGEX_SECONDS", 0.05)


def test_an_expression_that_takes_for_ever_is_stopped(short_patience):
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(InvalidInput, match=r"question 'evil' are regular expressions .* simplify \['\(a\+\)\+\$'\]"):
        answer_ranks([EVIL], [["a" * 200 + "!"]], regex=True)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert answer_ranks([EVIL], [["a" * 200]], regex=True).tolist() == [1]


def test_somebody_elses_alarm_is_left_alone(short_patience):
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        assert answer_ranks([EVIL], [["aaa!"]], regex=True).tolist() == [0]
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 400
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_search_too_unwatched():
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(answer_ranks([EVIL], [["aaa"]], regex=True)))
    thread.start()
    thread.join()
    assert found == [1]


# ── Measures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_top_k_and_reciprocal_ranks():
    ranks = np.array([1, 3, 0, 10, 11])
    assert top_k(ranks, 1).tolist() == [True, False, False, False, False]
    assert top_k(ranks, 10).tolist() == [True, True, False, True, False]
    assert reciprocal_rank(ranks).tolist() == [1, 1 / 3, 0, 0.1, 0]
    assert reciprocal_rank(ranks, 2).tolist() == [1, 0, 0, 0, 0]
    assert recall_curve(ranks, 4).tolist() == [20, 20, 40, 40]
    assert recall_curve([2, 2], 3).tolist() == [0, 100, 100]


def test_ndcg_worked_out_by_hand():
    wanted = [1, (1 / math.log2(4) + 2 / math.log2(5)) / (2 + 1 / math.log2(3)), 0, 0]
    assert ndcg(QUESTIONS, IDS).tolist() == pytest.approx(wanted)
    assert ndcg(QUESTIONS, IDS, 3).tolist() == pytest.approx([1, 0.5 / (2 + 1 / math.log2(3)), 0, 0])


def slow_ndcg(question: Question, ids: list[str], depth: int) -> float:
    gains = [question.gold.get(each, 0) / math.log2(place + 2) for place, each in enumerate(ids[:depth])]
    ideal = sorted(question.gold.values(), reverse=True)[:depth]
    return sum(gains) / sum(grade / math.log2(place + 2) for place, grade in enumerate(ideal)) if ideal else 0.0


names = st.sampled_from("abcdefghijklmnop")


@given(
    st.lists(st.tuples(st.dictionaries(names, st.integers(1, 3), max_size=12), st.lists(names, unique=True))),
    st.integers(1, 12),
)
def test_ndcg_of_ir_measures_is_ours(cases, depth):
    questions = [Question(f"id {number % 2}", "?", (), gold) for number, (gold, _) in enumerate(cases)]
    found = [ids for _, ids in cases]
    wanted = [slow_ndcg(question, ids, depth) for question, ids in zip(questions, found, strict=True)]
    assert ndcg(questions, found, depth).tolist() == pytest.approx(wanted)


def test_ndcg_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    assert not evaluation.has_ndcg()
    with pytest.raises(InvalidInput, match=r"nDCG needs ir-measures: pip install 'binary-passage-retriever\[eval\]'"):
        ndcg(QUESTIONS, IDS)


def test_every_measure_counts_the_questions_that_it_can_judge():
    answer, gold = answer_ranks(QUESTIONS, FOUND), gold_ranks(QUESTIONS, IDS)
    found = measures(QUESTIONS, (1, 3), answer=answer, gold=gold, ndcg=ndcg(QUESTIONS, IDS))
    means = {name: 100 * np.nanmean(values) for name, values in found.items()}
    assert means == pytest.approx(
        {
            "top 1, answer": 50,
            "top 3, answer": 75,
            "MRR@10, answer": 100 * (1 + 1 + 0 + 1 / 2) / 4,
            "top 1, gold": 100 / 3,
            "top 3, gold": 200 / 3,
            "MRR@10, gold": 100 * (1 + 1 / 3) / 3,
            "nDCG@10, gold": 100 * (1 + (0.5 + 2 / math.log2(5)) / (2 + 1 / math.log2(3))) / 3,
        }
    )
    assert np.isnan(found["top 1, gold"]).tolist() == [False, False, False, True]


def test_measures_that_no_question_allows_are_not_there():
    ranks = np.array([1])
    assert [*measures([Question("q", "?", ("a",))], (1,), answer=ranks, gold=ranks)] == [
        "top 1, answer",
        "MRR@10, answer",
    ]
    gold_only = [Question("q", "?", (), {"a": 1})]
    assert [*measures(gold_only, (1,), answer=ranks, gold=ranks)] == ["top 1, gold", "MRR@10, gold"]


# ── EM and F1 ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "score"),
    [
        ("The Denver Broncos!", ["Denver Broncos"], True, 1),
        ("denver  broncos", ["x", "The Denver Broncos"], True, 1),
        ("Denver", ["Denver Broncos"], False, 2 / 3),
        ("the big Denver Broncos team", ["Denver Broncos"], False, 2 * 1 * 0.5 / 1.5),
        ("a a b", ["b a"], True, 1),  # articles go, so b is left of both
        ("gold gold silver", ["gold silver silver"], False, 2 * 2 / 6),  # words count as often as both have them
        ("24-10", ["2410"], True, 1),
        ("U.S.", ["us"], True, 1),
        ("café", ["cafe"], False, 0),
        ("theatre", ["atre"], False, 0),
        ("the", ["a"], True, 1),  # nothing is left of either
        ("", ["Homer"], False, 0),
        ("Homer", [], False, 0),
    ],
)
def test_exact_match_and_f1_worked_out_by_hand(prediction, answers, exact, score):
    assert exact_match(prediction, answers) is exact
    assert f1(prediction, answers) == pytest.approx(score)


@given(st.text("ab the,. ", max_size=12), st.lists(st.text("ab the,. ", max_size=12), max_size=3))
def test_f1_is_1_exactly_where_the_words_are_the_same(prediction, answers):
    assert 0 <= f1(prediction, answers) <= 1
    if exact_match(prediction, answers):
        assert f1(prediction, answers) == 1


# ── How sure ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_interval_is_that_of_a_plain_bootstrap():
    values = np.random.default_rng(1).random(400) ** 3
    random = np.random.default_rng(2)
    means = [100 * values[random.integers(400, size=400)].mean() for _ in range(20_000)]
    found = interval(values, resamples=20_000)
    assert found.mean == pytest.approx(100 * values.mean())
    assert (found.low, found.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.1)
    assert found.questions == 400


def test_the_interval_of_a_share_is_that_of_the_normal_law():
    found = interval(np.arange(10_000) % 4 == 0)
    assert found.mean == 25
    spread = 100 * 1.96 * math.sqrt(0.25 * 0.75 / 10_000)
    assert (found.low, found.high) == pytest.approx((25 - spread, 25 + spread), abs=0.1)


def test_intervals_are_repeatable_and_leave_out_what_is_not_judged():
    values = np.array([0.0, 1.0, np.nan, 1.0])
    assert interval(values) == interval(values) == interval([0, 1, 1])
    assert interval(values).questions == 3
    assert interval([1, 1]).to_dict() == {"mean": 100, "low": 100, "high": 100, "questions": 2}
    with pytest.raises(InvalidInput, match="no value"):
        interval([np.nan])


def test_small_memory_gives_the_same_kind_of_interval(monkeypatch):
    values = np.random.default_rng(1).random(50)
    monkeypatch.setattr(evaluation, "DRAWN_AT_ONCE", 120)
    found = interval(values)
    assert found.low < found.mean < found.high
    assert 0 < paired(values, values[::-1]).p <= 1


def test_equal_runs_do_not_differ():
    assert paired([1, 0, 1], [1, 0, 1]).to_dict() == {"mean": 0, "low": 0, "high": 0, "p": 1}


def test_p_is_the_share_of_all_ways_to_swap():
    a, b = np.array([3.0, 5, 1, 4, 2, 7]), np.array([1.0, 4, 1, 1, 3, 2])
    differences = a - b
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=6)
    ]
    exact = np.mean(np.array(sums) >= abs(differences.sum()) - 1e-9)
    found = paired(a, b)
    assert found.p == pytest.approx(exact, abs=0.02)
    assert found.mean == pytest.approx(100 * differences.mean())
    assert paired(b, a).mean == -found.mean
    assert found.low < found.mean < found.high


def test_a_difference_on_every_question_is_no_accident():
    found = paired(np.ones(40), np.zeros(40))
    assert (found.mean, found.low, found.high) == (100, 100, 100)
    assert found.p == pytest.approx(1e-4, abs=1e-6)


def test_only_what_both_judged_is_compared_and_lengths_must_be_the_same():
    assert paired([1, np.nan, 1], [1, 1, np.nan]).mean == 0
    with pytest.raises(InvalidInput, match="two runs over the same questions"):
        paired([1, 0], [1])
