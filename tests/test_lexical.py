"""Words in a bundle: what BM25 finds is what its definition says, over any segments, and damage is never believed."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpr import bundle
from bpr.codes import RowMask
from bpr.errors import Cancelled, CorruptBundle, DeadlineExceeded, InvalidInput, StorageError
from bpr.kernels import Cancel, Limits
from bpr.lexical import ENGLISH, FILES, Lexical, LexicalOut, bm25, layout, search, stored, words, writer
from bpr.lexical.words import words_of

TEXTS = [
    ("Iliad", "Homer's Iliad is an epic about the war at Troy, and about the anger of Achilles."),
    ("Odyssey", "The Odyssey is an epic about Odysseus, who comes home from the war. Homer wrote it."),
    ("Aeneid", "Virgil wrote the Aeneid: Aeneas leaves Troy. An epic of Rome; an epic of Augustus."),
    ("", ""),
    ("Troy", "Troy Troy Troy, a city."),
    ("the of and", "to be or not to be"),
]


def write(path: Path, *segments: Sequence[tuple[str, str]], **how: Any) -> list[Lexical]:
    with bundle.create(path) as new:
        for number, texts in enumerate(segments):
            out = LexicalOut(new, f"s{number}-", **how)
            for row, (title, text) in enumerate(texts):
                out.add(row, title, text)
            out.write()
        new.publish({})
    with bundle.open(path) as opened:
        return [Lexical(opened, f"s{number}-") for number in range(len(segments))]


def reference(
    texts: Sequence[tuple[str, str]],
    question: str,
    n: int,
    mask: Sequence[bool] | None = None,
    stopwords: frozenset[str] = ENGLISH,
    k1: float = 0.9,
    b: float = 0.4,
) -> list[tuple[int, float]]:
    """BM25 by its definition."""
    counted = [
        Counter(word for word in [*words_of(title), *words_of(text)] if word not in stopwords) for title, text in texts
    ]
    mean = max(1, sum(map(Counter.total, counted))) / len(texts)
    found = []
    for row, own in enumerate(counted):
        score = 0.0
        for word in words_of(question):
            df = sum(word in other for other in counted)
            if word in own:
                tf = min(own[word], 255)
                norm = k1 * (1 - b + b * own.total() / mean)
                score += math.log(1 + (len(texts) - df + 0.5) / (df + 0.5)) * tf / (tf + norm)
        if score > 0 and (mask is None or mask[row]):
            found.append((row, score))
    return sorted(found, key=lambda each: (-np.float32(each[1]), each[0]))[:n]


def assert_same(found: tuple[np.ndarray, np.ndarray], wanted: list[tuple[int, float]]) -> None:
    rows, scores = found
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_allclose(scores, [score for _, score in wanted], rtol=1e-5)
    # Equal but for rounding, scores may stand the other way round in the reference.
    assert sorted(zip(-scores, rows, strict=True)) == list(zip(-scores, rows, strict=True))
    assert {*rows.tolist()} == {row for row, _ in wanted}


@pytest.mark.parametrize("question", ["Who wrote the Odyssey?", "epic epic Troy", "the war", "Troy", "what", "", "of"])
@pytest.mark.parametrize("n", [1, 2, 100])
def test_bm25_is_what_its_definition_says(tmp_path: Path, question: str, n: int) -> None:
    [found] = search(write(tmp_path / "b", TEXTS), [question], n)
    assert_same(found, reference(TEXTS, question, n))


def test_titles_count_and_stopwords_do_not(tmp_path: Path) -> None:
    segments = write(tmp_path / "b", TEXTS)
    assert segments[0].stopwords == ENGLISH and len(segments[0]) == len(TEXTS)
    assert search(segments, ["odyssey"], 9)[0][0].tolist() == [1]
    assert search(segments, ["the"], 9)[0][0].tolist() == []
    every = write(tmp_path / "c", TEXTS, stopwords=())
    assert search(every, ["the"], 9)[0][0].tolist() == reference_rows("the")
    other = write(tmp_path / "d", TEXTS, stopwords=["Épic", "war of"])
    assert other[0].stopwords == {"epic", "war", "of"}
    assert search(other, ["epic war of"], 9)[0][0].tolist() == []


def reference_rows(question: str) -> list[int]:
    return [row for row, _ in reference(TEXTS, question, 9, stopwords=frozenset())]


def random_texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Words as frequent as in a language: few in most texts, many in few."""
    random = np.random.default_rng(seed)
    drawn = np.minimum(random.zipf(1.3, (count, 30)), 500)
    return [("", " ".join(f"w{word}" for word in some[: 1 + row % 30])) for row, some in enumerate(drawn.tolist())]


@pytest.mark.parametrize("at_once", [1, 7, 1 << 22])
def test_segments_blocks_and_runs_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    texts = random_texts(400)
    whole = write(tmp_path / "whole", texts)
    questions = ["w1 w2 w3", "w17", "w1", "w400 w1 w2 w9", "w3 w499 nothing", *(text for _, text in texts[:40])]
    wanted = search(whole, questions, 10)
    for question, found in zip(questions[:8], wanted, strict=False):
        assert_same(found, reference(texts, question, 10))
    monkeypatch.setattr(writer, "SORTED_AT_ONCE", max(at_once, 50))
    monkeypatch.setattr(bm25, "SCORED_AT_ONCE", max(at_once, 50))
    parts = write(tmp_path / "parts", texts[:10], texts[10:11], [], texts[11:300], texts[300:])
    for found, same in zip(wanted, search(parts, questions, 10), strict=True):
        np.testing.assert_array_equal(found[0], same[0])
        np.testing.assert_array_equal(found[1], same[1])


def test_frequent_words_are_not_read_where_they_cannot_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(3000, seed=1)
    segments = write(tmp_path / "b", texts[:2000], texts[2000:])
    questions = [text for _, text in texts[:60]]
    pruned = search(segments, questions, 5)
    monkeypatch.setattr(bm25, "SLACK", 1e9)  # nothing is ever passed over
    for found, same in zip(pruned, search(segments, questions, 5), strict=True):
        np.testing.assert_array_equal(found[0], same[0])
        np.testing.assert_array_equal(found[1], same[1])


def test_masks(tmp_path: Path) -> None:
    texts = random_texts(200, seed=2)
    segments = write(tmp_path / "b", texts[:77], texts[77:])
    mask = np.random.default_rng(3).random(200) < 0.3
    for question in ["w1 w2", "w1 w5 w77 w3", "w2 w2"]:
        for given in (mask, RowMask.of(mask)):
            [found] = search(segments, [question], 7, mask=given)
            assert_same(found, reference(texts, question, 7, mask.tolist()))
    assert search(segments, ["w1"], 7, mask=RowMask.none(200))[0][0].tolist() == []
    with pytest.raises(InvalidInput, match="the mask is of 199 rows, and there are 200"):
        search(segments, ["w1"], 7, mask=mask[1:])


def test_equal_scores_stand_in_the_order_of_rows(tmp_path: Path) -> None:
    segments = write(tmp_path / "b", [("", "one two")] * 20, [("", "one two")] * 20)
    assert search(segments, ["two"], 7)[0][0].tolist() == list(range(7))
    assert search(segments, ["two"], 30)[0][0].tolist() == list(range(30))


def test_words_more_often_than_a_byte_holds(tmp_path: Path) -> None:
    texts = [("", "a1 " * 300 + "b1 " * 255 + "c1"), ("", "a1 b1"), ("", "d1")]
    segments = write(tmp_path / "b", texts)
    assert segments[0].lengths().tolist() == [556, 2, 1]
    for question in ("a1", "b1", "c1 a1"):
        assert_same(search(segments, [question], 5)[0], reference(texts, question, 5))


@pytest.mark.parametrize(("k1", "b"), [(0, 0), (0.9, 0.4), (1.2, 1), (100, 0.5)])
def test_parameters(tmp_path: Path, k1: float, b: float) -> None:
    [found] = search(write(tmp_path / "b", TEXTS), ["epic war of Troy"], 9, k1=k1, b=b)
    assert_same(found, reference(TEXTS, "epic war of Troy", 9, k1=k1, b=b))


@pytest.mark.parametrize("wrong", [{"n": 0}, {"k1": -1}, {"b": 1.1}, {"k1": float("nan")}, {"k1": float("inf")}])
def test_parameters_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="n must be at least 1, k1 from 0 to 1e"):
        search([], ["x"], **{"n": 1, **wrong})


def test_nothing_to_search(tmp_path: Path) -> None:
    assert [rows.tolist() for rows, _ in search([], ["x", "the"], 3)] == [[], []]
    assert search(write(tmp_path / "b", []), ["x"], 3)[0][0].tolist() == []
    assert search(write(tmp_path / "c", [("", "")]), ["x"], 3)[0][0].tolist() == []
    assert search(write(tmp_path / "d", TEXTS), [], 3) == []


def test_time_is_limited(tmp_path: Path) -> None:
    segments = write(tmp_path / "b", TEXTS)
    cancel = Cancel()
    assert len(search(segments, ["troy"], 3, limits=Limits(None, time.monotonic() + 100, cancel))) == 1
    cancel.set()
    with pytest.raises(Cancelled):
        search(segments, ["troy"], 3, limits=Limits(cancel=cancel))
    with pytest.raises(DeadlineExceeded):
        search(segments, ["troy"], 3, limits=Limits(deadline=time.monotonic() - 1))


def test_segments_must_leave_out_the_same_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="leave out different words"):
        search([*write(tmp_path / "b", TEXTS), *write(tmp_path / "c", TEXTS, stopwords=())], ["x"], 3)


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Who wrote the ILIAD, in 750 B.C.?", ["who", "wrote", "the", "iliad", "in", "750", "b", "c"]),
        ("Beyoncé's naïve café; Ｆｕｌｌ ﬁne", ["beyonce", "s", "naive", "cafe", "full", "fine"]),
        ("Straße Ελλάδα Россия йод", ["straße", "ελλαδα", "россия".replace("й", "и"), "иод"]),
        ("हिन्दी भाषा। বাংলা", ["हिन्दी", "भाषा", "বাংলা"]),
        ("مُحَمَّد שָׁלוֹם", ["مُحَمَّد", "שָׁלוֹם"]),
        ("東京都に住む", ["東京", "京都", "都に", "に住", "住む"]),
        ("我 GPT4模型x", ["我", "gpt4", "模型", "x"]),
        ("がギガ ｶﾞ", ["がギ", "ギガ", "ガ"]),
        ("한국어 문서", ["한국어", "문서"]),
        ("กินข้าว", ["กิ", "ิน", "นข", "ข้", "้า", "าว"]),
        ("... — !", []),
        ("", []),
        ("half \ud800 pair", ["half", "pair"]),
    ],
)
def test_what_a_word_is(text: str, found: list[str]) -> None:
    assert words_of(text) == found


def test_numbers_of_words_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = words.Numbers()
    assert numbers["homer"] == int.from_bytes(hashlib.blake2b(b"homer", digest_size=8).digest(), "big")
    assert len(numbers) == 1
    monkeypatch.setattr(words, "REMEMBERED", 2)
    assert len({numbers[word] for word in ("a", "b", "c", "\ud800")}) == 4 and len(numbers) <= 2


# ── into a bundle ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_may_be_missing_but_must_ascend(tmp_path: Path) -> None:
    with bundle.create(tmp_path / "b") as new:
        out = LexicalOut(new)
        out.add(2, "", "two")
        with pytest.raises(InvalidInput, match=r"rows must ascend and lie below .*: row 2 came behind row 2"):
            out.add(2, "", "two")
        with pytest.raises(InvalidInput, match="row 4294967296"):
            out.add(1 << 32, "", "two")
        out.add(4, "", "four two")
        with pytest.raises(InvalidInput, match="row 4 has words, but there are only 4 rows"):
            out.write(4)
        out.write(9)
        new.publish({})
    with bundle.open(tmp_path / "b") as opened:
        assert stored(opened) and not stored(opened, "s1-")
        assert sorted(opened.manifest.files) == sorted(FILES)
        segment = Lexical(opened)
    assert len(segment) == 9 and segment.lengths().tolist() == [0, 0, 1, 0, 2, 0, 0, 0, 0]
    assert search([segment], ["two"], 5)[0][0].tolist() == [2, 4]


def test_scratch_that_is_lost(tmp_path: Path) -> None:
    with bundle.create(tmp_path / "b") as new:
        out = LexicalOut(new)
        out.add(0, "", "one two three")
        out._spill()
        path = new.scratch("lexical-0.tmp")
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StorageError, match="was cut short while it was in use"):
            out.write()
    with bundle.create(tmp_path / "b") as new:
        out = LexicalOut(new)
        out.add(0, "", "one two three")
        out._spill()
        new.scratch("lexical-0.tmp").unlink()
        with pytest.raises(StorageError, match="cannot read"):
            out.write()


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged(tmp_path: Path, name: str, change: Callable[[np.ndarray], Any]) -> Lexical:
    """The words of a bundle one file of which was never right, whatever its checksum says."""
    write(tmp_path / "good", random_texts(50))
    with bundle.open(tmp_path / "good") as opened:
        arrays = {each: opened.array(f"s0-{each}").copy() for each in FILES}
    changed = change(arrays[name])
    arrays[name] = arrays[name] if changed is None else changed
    with bundle.create(tmp_path / "bad") as new:
        for each, content in arrays.items():
            if each.endswith(".npy"):
                new.save(each, content)
            else:
                with new.file(each) as out:
                    out.write(content.tobytes())
        new.publish({})
    with bundle.open(tmp_path / "bad") as opened:
        return Lexical(opened)


def facts_with(**changes: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda raw: np.frombuffer(json.dumps({**json.loads(raw.tobytes()), **changes}).encode(), np.uint8)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (layout.FACTS, lambda raw: raw[:-5]),
        (layout.FACTS, lambda raw: np.frombuffer(b"[" * 100_000, np.uint8)),
        (layout.FACTS, lambda raw: np.frombuffer(b"[]", np.uint8)),
        (layout.FACTS, lambda raw: np.frombuffer(b"\xff\xfe{}", np.uint8)),
        (layout.FACTS, facts_with(rows=-1)),
        (layout.FACTS, facts_with(rows=51)),
        (layout.FACTS, facts_with(rows="50")),
        (layout.FACTS, facts_with(tokens=1 << 70)),
        (layout.FACTS, facts_with(stopwords=7)),
        (layout.WORDS, lambda found: found[1:]),
        (layout.WORDS, lambda found: found.astype(np.int64)),
        (layout.WORDS, lambda found: found[:, None]),
        (layout.STARTS, lambda found: found[1:]),
        (layout.ROWS, lambda found: found[1:]),
        (layout.ROWS, lambda found: found.astype(np.uint64)),
        (layout.COUNTS, lambda found: found[1:]),
        (layout.LENGTHS, lambda found: found[1:]),
    ],
)
def test_files_that_do_not_belong_together(tmp_path: Path, name: str, change: Callable[[np.ndarray], Any]) -> None:
    with pytest.raises(CorruptBundle, match="restore or rebuild"):
        damaged(tmp_path, name, change)


def spoil_the_second(rows: np.ndarray) -> None:
    begins = np.flatnonzero(np.diff(rows.astype(np.int64), prepend=1 << 40, append=-1) < 0)  # rows ascend inside a list
    long = begins[:-1][np.diff(begins) >= 6]
    assert len(long)
    rows[long + 1] = 60


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        (layout.STARTS, lambda starts: starts[::-1].copy(), "points outside lexical-rows"),
        (layout.STARTS, lambda starts: starts + np.uint64(1 << 63), "points outside lexical-rows"),
        (layout.ROWS, lambda rows: rows + np.uint32(50), "rows that are not there"),
        (layout.ROWS, lambda rows: np.full_like(rows, 2**32 - 1), "rows that are not there"),
        (layout.ROWS, spoil_the_second, "rows out of their order"),
    ],
)
def test_places_that_do_not_exist(tmp_path: Path, name: str, change: Callable[[np.ndarray], Any], says: str) -> None:
    segment = damaged(tmp_path, name, change)
    with pytest.raises(CorruptBundle, match=says):
        search([segment], [" ".join(f"w{number}" for number in range(500))], 5)


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("seed", range(5))
def test_any_content_is_survived(tmp_path: Path, name: str, seed: int) -> None:
    """Wrong bytes may give wrong rows, but rows that exist, or CorruptBundle."""
    random = np.random.default_rng(seed)

    def scramble(array: np.ndarray) -> None:
        raw = array.view(np.uint8)
        raw[:] = random.permutation(raw) if seed % 2 else random.integers(0, 2, raw.size)

    try:
        segment = damaged(tmp_path, name, scramble)
        for rows, scores in search([segment], ["w1 w2 w3 w5 w9", "w1", "w2 w400"], 5, k1=0.0 if seed == 2 else 1.5):
            assert len(rows) == len(scores) <= 5
            assert all(0 <= row < 50 for row in rows.tolist())
    except CorruptBundle:
        pass


def test_bytes_that_changed_are_found_when_they_are_needed(tmp_path: Path) -> None:
    write(tmp_path / "b", random_texts(3000))
    [path] = tmp_path.glob(f"b/gen-*/s0-{layout.COUNTS}")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with bundle.open(tmp_path / "b", verify_limit=0) as opened:
        segment = Lexical(opened, "s0-")
        with pytest.raises(CorruptBundle, match="has changed since it was published"):
            search([segment], [" ".join(f"w{number}" for number in range(500))], 5)
