"""Numbered lines and records out of plain and packed text files, and an error with a place for everything else."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sys
import threading
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr import textfiles
from bpr.errors import InvalidInput, StorageError
from bpr.textfiles import file_type, kind, read_lines, read_records

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(PACK[path.suffix if path.suffix in PACK else ""](raw))
    return path


def records(folder: Path, name: str, content: str | bytes) -> list[tuple[int, dict]]:
    return list(read_records(put(folder, name, content)))


def refusal(folder: Path, name: str, content: str | bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        records(folder, name, content)
    assert name in str(caught.value)
    return str(caught.value)


# ── Lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", PACK)
def test_lines_are_the_same_however_they_are_packed(tmp_path, suffix):
    path = put(tmp_path, f"a.txt{suffix}", "one\ntwo \u2028 still two\r\n\nlast")
    assert list(read_lines(path)) == [(1, "one\n"), (2, "two \u2028 still two\r\n"), (3, "\n"), (4, "last")]


@settings(max_examples=25, deadline=None)
@given(text=st.text(), suffix=st.sampled_from(sorted(PACK)))
def test_the_lines_together_are_the_text(tmp_path_factory, text, suffix):
    path = put(tmp_path_factory.mktemp("lines"), f"a.txt{suffix}", text)
    assert "".join(line for _, line in read_lines(path)) == text.removeprefix("\ufeff")


@pytest.mark.parametrize("suffix", PACK)
def test_packing_is_told_by_content_not_by_name(tmp_path, suffix):
    (tmp_path / "a.gz").write_bytes(PACK[suffix](b"hello\n"))
    assert list(read_lines(tmp_path / "a.gz")) == [(1, "hello\n")]


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path):
    assert list(read_lines(put(tmp_path, "a.txt", "\ufeffone\n\ufefftwo"))) == [(1, "one\n"), (2, "\ufefftwo")]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kept", [0.6, 0.999])
def test_a_packed_file_that_was_cut_short_is_refused(tmp_path, suffix, kept):
    path = put(tmp_path, f"a.txt{suffix}", "".join(f"line {n} {n * n}\n" for n in range(5_000)))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(InvalidInput, match=rf"a\.txt\{suffix}: damaged or cut short after line \d+ .*fetch it again"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_packed_file_with_damage_is_refused(tmp_path, suffix):
    path = put(tmp_path, f"a.txt{suffix}", "".join(f"line {n} {n * n}\n" for n in range(5_000)))
    raw = bytearray(path.read_bytes())
    raw[10:] = bytes(byte ^ 0x5A for byte in raw[10:])
    path.write_bytes(raw)
    with pytest.raises(InvalidInput, match="damaged or cut short"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_packed_files_may_be_concatenated(tmp_path, suffix):
    path = tmp_path / "a.txt"
    path.write_bytes(PACK[suffix](b"one\n") + PACK[suffix](b"two\n"))
    assert [line for _, line in read_lines(path)] == ["one\n", "two\n"]


def test_zstd_unpacks_more_than_one_buffer(tmp_path):
    path = put(tmp_path, "a.txt.zst", "0123456789" * 100_000)
    assert [len(line) for _, line in read_lines(path)] == [1_000_000]


def test_without_the_zstd_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    path = put(tmp_path, "a.txt.zst", "hello")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InvalidInput, match=r'a\.txt\.zst: .*pip install "binary-passage-retriever\[zstd\]"'):
        list(read_lines(path))


def test_bad_utf8_names_line_and_byte(tmp_path):
    path = put(tmp_path, "a.txt", b"fine\nna\xefve\n")
    with pytest.raises(
        InvalidInput, match=r"a\.txt, line 2: not UTF-8 \(byte 3 of the line is 0xef\); save the file as"
    ):
        list(read_lines(path))


def test_utf16_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"line 1: not UTF-8 \(byte 1 of the line is 0xff\)"):
        list(read_lines(put(tmp_path, "a.txt", "hello".encode("utf-16"))))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.tsv: there is no such file"):
        list(read_lines(tmp_path / "none.tsv"))
    with pytest.raises(InvalidInput, match="there is no such file"):
        list(read_lines(put(tmp_path, "file.tsv", "") / "below.tsv"))
    with pytest.raises(InvalidInput, match="is a folder, where a file is needed"):
        list(read_lines(tmp_path))
    with pytest.raises(InvalidInput, match=r"'a\\x00b' cannot be the name of a file"):
        list(read_lines(Path("a\0b")))


def test_a_disk_that_says_no_is_a_storage_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"cannot read .*a\.txt: Permission denied"):
        list(read_lines(tmp_path / "a.txt"))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(textfiles, "LONGEST_LINE", 100)
    path = put(tmp_path, "a.txt", "short\n" + "x" * 1000)
    with pytest.raises(InvalidInput, match=r"a\.txt, line 2: 100 bytes or longer; is this a text file\?"):
        list(read_lines(path))


def test_the_type_is_the_suffix_below_the_packing():
    found = [file_type(Path(name)) for name in ("a.jsonl", "a.JSONL.xz", "b.json.tsv", "c.tar.gz", "d.gz", "e")]
    assert found == [".jsonl", ".jsonl", ".tsv", ".tar", "", ""]


def test_kinds_are_named_for_people():
    assert [kind(None), kind([]), kind("")] == ["null", "list", "str"]


# ── JSONL ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_objects_come_with_their_lines_and_blank_lines_do_not_count(tmp_path):
    assert records(tmp_path, "a.jsonl", '{"a": 1}\r\n\n  \n{"a": 2}') == [(1, {"a": 1}), (4, {"a": 2})]


@pytest.mark.parametrize("name", ["a.json", "a.ndjson", "a", "a.data.xz"])
def test_jsonl_is_told_by_its_first_line_or_its_name(tmp_path, name):
    assert records(tmp_path, name, '\ufeff{"a": 1}\n') == [(1, {"a": 1})]


def test_broken_json_names_the_line(tmp_path):
    broken = refusal(tmp_path, "a.jsonl", '{"a": 1}\n{"a": \n')
    assert "a.jsonl, line 2: not valid JSON: Expecting value at column 8" in broken
    assert "a.jsonl, line 1: not valid JSON" in refusal(tmp_path, "a.jsonl", '{"a":' * 100_000)
    assert "a.jsonl, line 1: not valid JSON" in refusal(tmp_path, "a.jsonl", '{"a":' + "1" * 10_000 + "}")


def test_json_that_is_no_object_names_the_line(tmp_path):
    for text, what in (("[1]", "list"), ("null", "null"), ('"x"', "str"), ("1", "int")):
        expected = f"a.jsonl, line 2: each line must be a JSON object, not {what}"
        assert expected in refusal(tmp_path, "a.jsonl", f"{{}}\n{text}\n")


# ── TSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_columns_go_by_the_header_in_any_order(tmp_path):
    assert records(tmp_path, "a.tsv", "Title\t id\ttext\tyear\r\nT\t1\tx\t1999\r\n") == [
        (2, {"title": "T", "id": "1", "text": "x", "year": "1999"})
    ]


def test_quotes_are_csvs_and_rows_have_the_line_they_begin_on(tmp_path):
    text = 'id\ttext\n1\t"so ""called""\nin\ttwo lines"\n\n2\tinner "quotes" stay\n'
    assert records(tmp_path, "a.tsv", text) == [
        (2, {"id": "1", "text": 'so "called"\nin\ttwo lines'}),
        (5, {"id": "2", "text": 'inner "quotes" stay'}),
    ]


fields = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(fields, fields), max_size=5))
def test_what_csv_writes_is_read(tmp_path_factory, rows):
    out = io.StringIO()
    csv.writer(out, delimiter="\t").writerows([("id", "text"), *rows])
    found = records(tmp_path_factory.mktemp("tsv"), "a.tsv", out.getvalue())
    assert [(record["id"], record["text"]) for _, record in found] == rows


def test_long_fields_are_read_and_csvs_limit_stays_as_it_was(tmp_path):
    limit = csv.field_size_limit()
    assert len(records(tmp_path, "a.tsv", "id\ttext\n1\t" + "x" * (limit + 1))[0][1]["text"]) == limit + 1
    assert csv.field_size_limit() == limit


def test_threads_do_not_disturb_each_others_limit(tmp_path):
    limit = csv.field_size_limit()
    path = put(tmp_path, "a.tsv", "id\ttext\n" + ("1\t" + "x" * (limit + 1) + "\n") * 10)
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(len(list(read_records(path))))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [10] * 4
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    "text", ['id\ttext\n1\tfine\n2\t"never closed\n3\tx\n', 'id\ttext\n1\tfine\n2\t"word" then more\n']
)
def test_a_stray_quote_is_refused_where_it_opens(tmp_path, text):
    message = refusal(tmp_path, "a.tsv", text)
    assert "a.tsv, line 3: " in message
    assert "must stand in double quotes, with each inner one doubled" in message


def test_an_open_quote_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(textfiles, "LONGEST_LINE", 100)
    message = refusal(tmp_path, "a.tsv", 'id\ttext\n1\t"open\n' + "text\n" * 100)
    assert "line 2: field larger than field limit (100)" in message


@pytest.mark.parametrize("header", ["1\tsome text\ttitle", "id\ttitle", "text\ttitle", "id,text,title", "hello"])
def test_a_header_without_the_columns_is_refused(tmp_path, header):
    message = refusal(tmp_path, "a.tsv", f"{header}\n1\tx\n")
    expected = "a.tsv, line 1: the first line must name the columns id and text, as in id<TAB>text<TAB>title; found "
    assert expected in message
    assert repr(header.split("\t")[0]) in message


def test_a_header_that_names_a_column_twice_is_refused(tmp_path):
    message = refusal(tmp_path, "a.tsv", "id\ttext\tText\n")
    assert "a.tsv, line 1: the header names a column twice; found 'id', 'text', 'Text'" in message


@pytest.mark.parametrize(("row", "count"), [("2", 1), ("2\tx\ty", 3)])
def test_a_row_with_other_columns_is_refused(tmp_path, row, count):
    message = refusal(tmp_path, "a.tsv", f"id\ttext\n1\tx\n{row}\n")
    assert f"a.tsv, line 3: {count} columns where the header names 2; a field that holds a tab" in message


def test_an_empty_file_has_no_records(tmp_path):
    assert records(tmp_path, "a.tsv", "") == records(tmp_path, "a.jsonl", "") == []
    assert records(tmp_path, "a.tsv", "id\ttext\n") == []


def test_the_reader_is_lazy(tmp_path):
    path = put(tmp_path, "a.jsonl", json.dumps({"id": "1"}) + "\nbroken")
    assert next(read_records(path)) == (1, {"id": "1"})
