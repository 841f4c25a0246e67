"""EM and F1 by how many passages were read, and what a calibration is judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpr import answering
from bpr.answering import Answered, Sure, best_text, best_threshold, reliability, report
from bpr.evaluation import exact_match, f1
from bpr.questions import Question
from bpr.reader import Reader
from bpr.records import Hit, passages_of
from bpr.spans import Calibration, features
from tiny_models import WORDS

RANDOM = np.random.default_rng(4)
HITS = [Hit(f"p{i}", "", " ".join(RANDOM.choice(WORDS, 15)), 1.0, i + 1, {"i": i}) for i in range(6)]


def test_each_k_is_what_reading_so_many_gives(tiny_reader: Path) -> None:
    reader = Reader.open(tiny_reader, threads=1)
    answers = {k: reader.answer("who wrote", passages_of(HITS[:k]), least=0.0)[0].text for k in (1, 3, 6)}
    for wanted in (answers[3], f"{answers[6]} extra"):
        watch = Answered(reader, (1, 3, 6))
        watch.watch(Question("1", "who wrote", (wanted,), {}), HITS, [])
        watch.watch(Question("2", "who wrote", (), {"p1": 1}), HITS, [])
        found = watch.measures()
        for k, text in answers.items():
            assert found[f"EM, {k} read"][0] == exact_match(text, [wanted])
            assert found[f"F1, {k} read"][0] == f1(text, [wanted])
            assert np.isnan(found[f"EM, {k} read"][1])


def test_no_hits_have_no_answer(tiny_reader: Path) -> None:
    assert best_text(Reader.open(tiny_reader), [], [], 5) == "" and passages_of(HITS)[2].meta == {"i": 2}


def some(questions: int = 2000, seed: int = 0) -> Sure:
    random = np.random.default_rng(seed)
    p = random.uniform(0.02, 0.98, questions)
    known = features(p, random.normal(size=questions), np.zeros(questions))
    return Sure(known, random.random(questions) < p**2, np.ones(questions, bool))


def test_a_fit_is_judged_on_questions_that_it_did_not_see() -> None:
    sure = some()
    confidence = sure.crossed()
    assert confidence.shape == (2000,) and not np.array_equal(confidence, sure.confidence(sure.fit()))
    found = report(sure, Calibration(), 0.5)
    assert found["ece"] < 0.05 < found["ece_now"] and found["questions"] == 2000 and "auroc" not in found
    assert found["coverage"]["10%"] > found["coverage"]["50%"] > found["coverage"]["100%"]
    assert found["coverage"]["100%"] == pytest.approx(found["exact"]) == pytest.approx(100 * sure.right.mean())
    means = [each["confidence"] for each in found["reliability"]]
    assert means == sorted(means) and sum(each["answers"] for each in found["reliability"]) == 2000


def test_absent_articles() -> None:
    here, random = some(), np.random.default_rng(1)
    low = features(random.uniform(0.02, 0.3, 2000), random.normal(size=2000), np.zeros(2000))
    both = here + Sure(low, np.zeros(2000, bool), np.zeros(2000, bool))
    found = report(both, Calibration(), 0.0)
    assert found["questions"] == found["absent"] == 2000 and 0.7 < found["auroc"] <= 1 and 0 < found["threshold"] < 1
    assert found["exact"] == pytest.approx(100 * here.right.mean())


def test_the_best_threshold_by_hand() -> None:
    confidence = np.array([0.9, 0.6, 0.4, 0.2])
    right, answerable = np.array([True, True, False, False]), np.array([True, True, False, False])
    assert best_threshold(confidence, right, answerable) == 0.6
    assert reliability(confidence, right)[0] == {"confidence": 0.2, "right": 0.0, "answers": 1}
    assert answering.TOP == (1, 5, 10, 20, 50, 100)
