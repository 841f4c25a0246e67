"""Examples to files and back, held out by group; what is broken is refused with its place, or skipped and told."""

from __future__ import annotations

import json
import logging
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr.disk import Disk
from bpr.errors import InvalidInput, StorageError
from bpr.passages import read
from bpr.records import Passage
from bpr.training.data import (
    Converted,
    Example,
    collect,
    hold_out,
    read_examples,
    to_example,
    write_converted,
    write_examples,
)

some_strings = st.lists(st.text(), max_size=3).map(tuple)
examples = st.builds(
    Example,
    question=st.text().filter(str.strip),
    answers=st.lists(st.text(), min_size=1, max_size=3).map(tuple),
    positives=some_strings,
    negatives=some_strings,
    group=st.text(),
)

GOOD = '{"question": "q", "answers": ["a"]}'
ONE = Example("q", ("a",), ("p",), ("n", "m"), "g")


def put(folder: Path, text: str) -> Path:
    path = folder / "examples.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        list(read_examples(path))
    return str(caught.value)


# ── read_examples, write_examples ────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20)
@given(items=st.lists(examples, min_size=1, max_size=5))
def test_examples_come_back(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("examples") / "e.jsonl"
    assert write_examples(path, items) == len(items)
    assert list(read_examples(path)) == items
    assert [entry.name for entry in path.parent.iterdir()] == ["e.jsonl"]


def test_a_line_is_as_the_module_says(tmp_path):
    write_examples(tmp_path / "e.jsonl", [Example("wär?", ("ä",), ("p",), ("n",), "g")])
    line = '{"question":"wär?","answers":["ä"],"positives":["p"],"negatives":["n"],"group":"g"}\n'
    assert (tmp_path / "e.jsonl").read_text() == line


def test_what_is_missing_is_empty_and_blank_lines_and_a_byte_order_mark_are_nothing(tmp_path):
    path = put(tmp_path, f'\ufeff{GOOD}\n\n  \n{{"question": "r", "positives": ["p"], "group": null}}')
    assert list(read_examples(path)) == [Example("q", ("a",)), Example("r", positives=("p",))]


def test_packed_files_are_read(tmp_path):
    (tmp_path / "e.jsonl.xz").write_bytes(lzma.compress(ONE.to_line() * 2))
    assert list(read_examples(str(tmp_path / "e.jsonl.xz"))) == [ONE, ONE]


BROKEN = [
    ("{", "not valid JSON"),
    ("[]", "each line must be a JSON object, not list"),
    ("[" * 100_000, "not valid JSON"),
    ("{}", '"question" is missing'),
    ('{"question": null, "answers": ["a"]}', '"question" is missing'),
    ('{"question": 7, "answers": ["a"]}', '"question" must be a string, not int'),
    ('{"question": " ", "answers": ["a"]}', '"question" is empty'),
    ('{"question": "q"}', 'needs "answers" or "positives"'),
    ('{"question": "q", "answers": []}', 'needs "answers" or "positives"'),
    ('{"question": "q", "answers": "a"}', '"answers" must be a list, not str'),
    ('{"question": "q", "answers": [["a"]]}', '"answers" must be a string, not list'),
    ('{"question": "q", "answers": [null]}', '"answers" is missing'),
    ('{"question": "q", "positives": [1]}', '"positives" must be a string, not int'),
    ('{"question": "q", "answers": ["a"], "negatives": {"n": 1}}', '"negatives" must be a list, not dict'),
    ('{"question": "q", "answers": ["a"], "group": 3}', '"group" must be a string, not int'),
    (
        '{"question": "q", "answers": ["a"], "positive": ["p"]}',
        "'positive' is no field of an example; those are question,",
    ),
    ('{"question": "q\\ud800", "answers": ["a"]}', '"question" has half a surrogate pair at character 1'),
]


@pytest.mark.parametrize(("line", "complaint"), BROKEN)
def test_a_broken_line_is_refused_by_number(tmp_path, line, complaint):
    message = refusal(put(tmp_path, f"{GOOD}\n\n{line}\n{GOOD}\n"))
    assert f"{tmp_path / 'examples.jsonl'}, line 3: " in message
    assert complaint in message


def test_broken_lines_are_skipped_and_told_when_that_is_wanted(tmp_path):
    told: list[str] = []
    path = put(tmp_path, "".join(f"{line}\n{GOOD}\n" for line, _ in BROKEN))
    assert list(read_examples(path, skip_bad=True, on_skip=told.append)) == [Example("q", ("a",))] * len(BROKEN)
    assert len(told) == len(BROKEN)
    for number, (message, (_, complaint)) in enumerate(zip(told, BROKEN, strict=True)):
        assert f"line {2 * number + 1}: " in message
        assert complaint in message


def test_nothing_is_skipped_in_silence(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "bpr"):
        assert list(read_examples(put(tmp_path, f"x\n{GOOD}\n"), skip_bad=True)) == [Example("q", ("a",))]
    assert "line 1: not valid JSON" in caplog.text


def test_what_is_no_file_of_examples_is_refused(tmp_path):
    assert "holds no examples" in refusal(put(tmp_path, ""))
    assert "holds no examples" in refusal(put(tmp_path, " \n\n"))
    assert "there is no such file" in refusal(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(GOOD.encode() + b'\n{"question": "\xe9"}')
    assert "latin.jsonl, line 2: not UTF-8" in refusal(tmp_path / "latin.jsonl")


def test_a_file_of_nothing_but_broken_lines_is_told_as_such(tmp_path):
    told: list[str] = []
    with pytest.raises(InvalidInput, match="holds no examples"):
        list(read_examples(put(tmp_path, "x\ny\n"), skip_bad=True, on_skip=told.append))
    assert len(told) == 2


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = put(tmp_path, "old")

    def failing():
        yield ONE
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_examples(path, failing())
    with pytest.raises(InvalidInput, match=r"example 2 cannot be written: .*surrogates not allowed"):
        write_examples(path, [ONE, Example("\ud800", ("a",))])
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_targets_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="is not a plain file"):
        write_examples(tmp_path, [ONE])
    with pytest.raises(InvalidInput, match=r"leave out \.xz"):
        write_examples(tmp_path / "e.jsonl.xz", [ONE])
    with pytest.raises(StorageError, match="create the folder above it first"):
        write_examples(tmp_path / "no" / "e.jsonl", [ONE])


# ── hold_out ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def grouped(count: int) -> list[Example]:
    return [Example(f"question {number}", ("a",), group=f"group {number // 4}") for number in range(count)]


def test_groups_are_held_out_as_wholes_and_about_as_many_as_wanted():
    items = grouped(8000)
    train, held = hold_out(items, 0.1)
    groups = {each.group for each in held}
    assert held == [each for each in items if each.group in groups]
    assert train == [each for each in items if each.group not in groups]
    assert 0.08 < len(held) / len(items) < 0.12


def test_a_side_depends_on_the_name_and_the_seed_alone():
    items = grouped(400)
    train, held = hold_out(items, 0.3, seed=1)
    assert hold_out(reversed(items), 0.3, seed=1) == (train[::-1], held[::-1])
    assert hold_out(items[:100], 0.3, seed=1)[1] == [each for each in held if each in items[:100]]
    assert hold_out(items, 0.3, seed=2)[1] != held
    assert {each.group for each in held} <= {each.group for each in hold_out(items, 0.5, seed=1)[1]}


def test_the_split_never_changes():
    assert {each.group for each in hold_out(grouped(80), 0.2)[1]} == {"group 12", "group 13", "group 17", "group 19"}


def test_without_groups_the_questions_of_one_passage_stay_together():
    items = [Example(f"question {number}", (), (f"p{number // 4}", f"q{number}")) for number in range(8000)]
    train, held = hold_out(items, 0.1)
    assert 600 < len(held) < 1000
    assert not {each.positives[0] for each in train} & {each.positives[0] for each in held}
    bare = [Example(f"question {number}", ("a",)) for number in range(2000)]
    assert 140 < len(hold_out(bare, 0.1)[1]) < 260


def test_all_or_nothing_can_be_held_out_and_no_more():
    items = grouped(40)
    assert hold_out(items, 0) == (items, [])
    assert hold_out(items, 1) == ([], items)
    assert hold_out([], 0.5) == ([], [])
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInput, match="from 0 to 1"):
            hold_out(items, share)


# ── write_converted, collect ─────────────────────────────────────────────────────────────────────────────────────────

ITEMS = [Passage("p", "T", "x"), ONE, Passage("n", "", "y", {"k": 1}), Example("r", ("a",))]


def test_passages_and_examples_go_to_two_files(tmp_path):
    said: list[tuple[str, int, int | None]] = []
    paths = tmp_path / "p.jsonl", tmp_path / "e.jsonl"
    assert write_converted(ITEMS, *paths, progress=lambda *what: said.append(what)) == Converted(2, 2)
    assert (list(read(paths[0])), list(read_examples(paths[1]))) == collect(ITEMS)
    assert said == [("converting", 0, None), ("converting", 4, 4)]


@pytest.mark.parametrize("verb", ["create", "write", "flush", "rename a file to"])
def test_a_disk_that_says_no_leaves_both_files_as_they_were(tmp_path, monkeypatch, verb):
    paths = tmp_path / "p.jsonl", tmp_path / "e.jsonl"
    for path in paths:
        path.write_text("old")
    done = 0

    def refuse(self, what, path, function, *arguments):
        nonlocal done
        done += what == verb
        if what == verb and (done == 2 or verb == "rename a file to"):
            raise OSError(28, "no space")
        return function(*arguments)

    monkeypatch.setattr(Disk, "system_call", refuse)
    with pytest.raises(StorageError, match="free some space"):
        write_converted(ITEMS, *paths)
    assert [path.read_text() for path in paths] == ["old", "old"]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_makes_no_training_data_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no examples were found"):
        write_converted(ITEMS[:1], tmp_path / "p.jsonl", tmp_path / "e.jsonl")
    with pytest.raises(InvalidInput, match="give two names"):
        write_converted(ITEMS, tmp_path / "p.jsonl", tmp_path / "p.jsonl")
    with pytest.raises(InvalidInput, match=r"passage 1 cannot be written: .*surrogates not allowed"):
        write_converted([Passage("p", "", "\ud800")], tmp_path / "p.jsonl", tmp_path / "e.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_to_example_is_what_to_line_wrote():
    assert to_example(json.loads(ONE.to_line())) == ONE


def test_neither_torch_nor_bm25s_is_loaded_by_reading_examples():
    loaded = "from bpr.training import data, formats, negatives; import sys; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "bpr.training.negatives" in names
    assert not {"torch", "transformers", "bm25s", "numba"} & {*names}
