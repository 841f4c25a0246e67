"""What training and evaluation read alike: fields, SQuAD's articles, BEIR's judgements."""

from __future__ import annotations

import errno
import json
import lzma
from pathlib import Path

import pytest

from bpr.errors import InvalidInput, StorageError
from bpr.layouts import (
    beir_judgement,
    judgement_lines,
    list_of,
    packed_or_not,
    squad_answers,
    squad_articles,
    squad_id,
    string_of,
    strings_of,
)


def test_fields_are_what_they_should_be_or_say_what_they_are():
    record = {"text": "x", "list": ["a", "b"], "number": 1, "none": None}
    assert string_of(record, "text") == "x"
    assert string_of(record, "none", "y") == string_of(record, "missing", "y") == "y"
    assert list_of(record, "list") == ["a", "b"]
    assert strings_of(record, "list") == ("a", "b")
    assert strings_of(record, "missing") == ()
    for call, complaint in (
        (lambda: string_of(record, "number"), '"number" must be a string, not int'),
        (lambda: string_of(record, "none"), '"none" is missing'),
        (lambda: string_of([], "text"), "must be a JSON object, not list"),
        (lambda: list_of(record, "text"), '"text" must be a list, not str'),
        (lambda: strings_of({"list": [1]}, "list"), '"list" must be a string, not int'),
    ):
        with pytest.raises(ValueError, match=complaint):
            call()


def test_squad_is_read_whole_and_its_paragraphs_have_one_id(tmp_path):
    path = tmp_path / "dev.json.xz"
    path.write_bytes(lzma.compress(json.dumps({"data": [{"title": "T"}]}).encode()))
    assert squad_articles(path) == [{"title": "T"}]
    assert squad_id("dev-", 3, 14) == "dev-3-14"
    assert squad_answers({"answers": [{"text": "a"}, {"text": "b"}, {"text": "a"}]}) == ["a", "b"]
    with pytest.raises(ValueError, match=r"as in SQuAD 2\.0"):
        squad_answers({"answers": []})
    (tmp_path / "other.json").write_text('{"articles": []}')
    with pytest.raises(InvalidInput, match="is not JSON in SQuAD's layout"):
        squad_articles(tmp_path / "other.json")


@pytest.mark.parametrize("header", ["", "query-id\tcorpus-id\tscore\n"])
def test_judgements_with_and_without_a_header(tmp_path, header):
    path = tmp_path / "test.tsv"
    path.write_text(header + "q1\td 1\t2\n\nq1\td2\t-1\r\n")
    assert [beir_judgement(line) for _, line in judgement_lines(path)] == [("q1", "d 1", 2), ("q1", "d2", -1)]
    assert [place.rpartition(" ")[2] for place, _ in judgement_lines(path)] == [
        str(number + bool(header)) for number in (1, 3)
    ]


@pytest.mark.parametrize("line", ["q d 1", "q\td\tmuch", "q\t0\td\t1", "q\td\t1.5"])
def test_other_judgements_are_refused(line):
    with pytest.raises(ValueError, match="must be question id, document id and a whole number, with tabs between"):
        beir_judgement(line)


def test_a_file_as_it_is_or_packed(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no .*a\.tsv or .*b\.tsv; BEIR's layout has it"):
        packed_or_not(tmp_path / "a.tsv", tmp_path / "b.tsv")
    (tmp_path / "b.tsv.gz").write_bytes(b"")
    assert packed_or_not(tmp_path / "a.tsv", tmp_path / "b.tsv") == tmp_path / "b.tsv.gz"


def test_a_folder_that_may_not_be_looked_into_is_not_one_without_the_file(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(StorageError, match=r"cannot read .*corpus\.jsonl: Permission denied; change its permissions"):
        packed_or_not(tmp_path / "corpus.jsonl")
