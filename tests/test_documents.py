"""Documents into passages: exact slices, no word lost, stable names, and a file that is written whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr import documents
from bpr.documents import Report, cut, write_jsonl
from bpr.errors import InvalidInput, StorageError
from bpr.passages import read
from bpr.records import Passage


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def texts(folder: Path, text: str, **options) -> list[str]:
    """The texts of the passages of one document, each compared with the slice that it says it is."""
    found = list(cut(put(folder, "a.txt", text), **options))
    for passage in found:
        assert text[passage.meta["start"] : passage.meta["end"]] == passage.text
    return [passage.text for passage in found]


def sentences(text: str) -> list[str]:
    """The sentences that are told apart."""
    closes = [word.end() for word, closes in documents._split_sentences(text) if closes]
    return [text[start:end].strip() for start, end in zip([0, *closes], closes, strict=False)]


def titles(folder: Path, name: str, text: str) -> list[str]:
    return [passage.title for passage in cut(put(folder, name, text))]


# ── Blocks of words ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_documents_are_cut_as_in_the_paper(tmp_path):
    words = [f"word{number}" for number in range(250)]
    found = list(cut(put(tmp_path, "my_first-document.txt", " ".join(words))))
    assert [passage.text.split() for passage in found] == [words[:100], words[100:200], words[200:]]
    first = found[0]
    assert (first.id, first.title) == ("my_first-document.txt#0", "my first document")
    assert first.meta == {"document": "my_first-document.txt", "start": 0, "end": len(" ".join(words[:100]))}
    assert found[2].id == "my_first-document.txt#2"


def test_white_space_inside_is_kept_and_outside_is_not(tmp_path):
    assert texts(tmp_path, "\n a \t b\r\n\r\nc  d e\n", words=3) == ["a \t b\r\n\r\nc", "d e"]


def test_passages_may_overlap(tmp_path):
    assert texts(tmp_path, "a b c d e f g", words=3, overlap=1) == ["a b c", "c d e", "e f g"]
    assert texts(tmp_path, "a b c d e f g", words=4, overlap=3) == ["a b c d", "b c d e", "c d e f", "d e f g"]
    assert texts(tmp_path, "a b c d", words=3, overlap=2) == ["a b c", "b c d"]
    assert texts(tmp_path, "a b", words=3, overlap=2) == ["a b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("漢字仮名交じり文", ["漢字", "仮名", "交じ", "り文"]),
        ("他说「你好」。好的！", ["他说", "「你好」。", "好的！"]),
        ("Python（パイソン）は言語", ["Python", "（パイ", "ソン）", "は言", "語"]),
        ("ภาษาไทยไม่มีช่อง", ["ภาษา", "ไทยไ", "ม่มี", "ช่อง"]),
        ("한국어는 띄어쓰기를 한다", ["한국어는", "띄어쓰기를", "한다"]),
        ("a 「「「「「「 b", ["a", "「「「「「「", "b"]),
        ("x" * 250, ["x" * 100, "x" * 100, "x" * 50]),
    ],
)
def test_words_in_scripts_without_spaces_are_counted_by_characters(tmp_path, text, words):
    assert texts(tmp_path, text, words=1) == words
    assert texts(tmp_path, text) == [text]


@pytest.mark.parametrize("script", ["漢", "ひ", "ก", "ğ", "a", "「", "。", "\u0e34", "𠀀"])
@pytest.mark.parametrize("by", ["words", "sentence"])
def test_no_passage_is_a_giant(tmp_path, script, by):
    found = texts(tmp_path, script * 50_000, by=by)
    assert "".join(found) == script * 50_000
    assert max(map(len, found)) <= 100 * 100


any_text = st.text(st.sampled_from("aA1 .!?\n\r\t#-\"'」「。、漢字ก่ié")) | st.text()


@settings(max_examples=150, deadline=None)
@given(text=any_text, words=st.integers(1, 6), by=st.sampled_from(["words", "sentence"]))
def test_disjoint_passages_hold_every_word_once_and_in_order(text, words, by):
    split = documents._split_words if by == "words" else documents._split_sentences
    spans = list(documents._blocks(split(text), words, 0))
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(text.split())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(len(list(documents._find_words(text[start:end]))) <= words for start, end in spans)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), text=any_text, words=st.integers(1, 6), by=st.sampled_from(["words", "sentence"]))
def test_overlapping_passages_go_forward_and_leave_nothing_out(data, text, words, by):
    overlap = data.draw(st.integers(0, words - 1))
    split = documents._split_words if by == "words" else documents._split_sentences
    spans = list(documents._blocks(split(text), words, overlap))
    assert all(first < second for first, second in pairwise(spans))
    assert all(before[1] < after[1] for before, after in pairwise(spans))
    gaps = [
        text[before[1] : after[0]] for before, after in zip([(0, 0), *spans], [*spans, (len(text), 0)], strict=False)
    ]
    assert not "".join(gaps).strip()


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x24F)))
def test_both_ways_to_find_words_agree_where_scripts_have_spaces(text):
    fast = [word.span() for word in documents._SPACED_WORD.finditer(text)]
    assert [word.span() for word in documents._ANY_WORD.finditer(text)] == fast


def test_words_are_what_split_says_in_ordinary_text():
    text = "Le café\u00a0coûte 3,50\u2009€ — n'est-ce pas ?\x1fOui."
    assert [word[0] for word in documents._find_words(text)] == text.split()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"words": 0}, "words must be at least 1 and overlap from 0 to words - 1; got 0 and 0"),
        ({"words": 5, "overlap": 5}, "got 5 and 5"),
        ({"overlap": -1}, "got 100 and -1"),
        ({"by": "page"}, 'by must be "words" or "sentence", not \'page\''),
    ],
)
def test_senseless_options_are_refused_at_once(tmp_path, options, complaint):
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        cut(tmp_path, **options)


# ── Sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "expected",
    [
        ["It rained.", "We stayed at home!", "Why not?", "Well…", "So be it."],
        ["Dr. J. R. Smith met Mrs. Jones of Acme Inc. in Washington.", "They talked."],
        ["It cost 3.50 dollars, i.e. a lot.", "The U.S. Army paid, e.g. for Ph.D. Students."],
        ["See Fig. 3 and vol. 2, p. 17.", "He said no.", "Then he left."],
        ['"Stop!" he cried.', '"Why?"', "She said: “Go.”", "(They went.)", "It was late."],
        ["**Bold words.**", "More words."],
        ["今天下雨。", "我们在家！", "「为什么？」", "好吧。"],
        ["これは文です。", "It ends here.", "終わり"],
        ["Born in 1999.", "Died in 2001."],
        ["Version 2.0 is out.", "Get it at example.com.", "Now."],
    ],
)
def test_sentences_are_told_apart(expected):
    joiner = "" if "今" in expected[0] else " "
    assert sentences(joiner.join(expected)) == expected


def test_headings_lists_and_paragraphs_end_a_sentence():
    text = "# The title\nFirst line\ngoes on\n\nA paragraph\n- an item\n1. A number\n2) Another\n"
    text += "Underlined\n=====\nText\n---\nend"
    assert sentences(text) == [
        "# The title",
        "First line\ngoes on",
        "A paragraph",
        "- an item",
        "1. A number",
        "2) Another\nUnderlined\n=====",
        "Text\n---",
        "end",
    ]


def test_a_heading_ends_the_sentence_before_it():
    assert sentences("no stop here\r\n## Next\r\nmore text") == ["no stop here", "## Next", "more text"]


def test_whole_sentences_are_packed_up_to_the_limit(tmp_path):
    text = "One two three. Four five. Six seven eight nine. Ten."
    assert texts(tmp_path, text, words=5, by="sentence") == ["One two three. Four five.", "Six seven eight nine. Ten."]
    assert texts(tmp_path, text, words=4, by="sentence") == [
        "One two three.",
        "Four five.",
        "Six seven eight nine.",
        "Ten.",
    ]


def test_a_sentence_that_is_too_long_is_cut_by_words(tmp_path):
    assert texts(tmp_path, "Aa bb cc dd ee ff gg. Hh ii.", words=3, by="sentence") == [
        "Aa bb cc",
        "dd ee ff",
        "gg. Hh ii.",
    ]


def test_sentences_overlap_whole(tmp_path):
    text = "Aa bb. Cc dd ee. Ff. Gg hh. Ii jj kk ll."
    assert texts(tmp_path, text, words=5, by="sentence", overlap=3) == [
        "Aa bb. Cc dd ee.",
        "Cc dd ee. Ff.",
        "Ff. Gg hh.",
        "Ii jj kk ll.",  # would not fit behind "Gg hh."
    ]
    assert texts(tmp_path, text, words=5, by="sentence", overlap=2)[1] == "Ff. Gg hh."


# ── Files and folders ────────────────────────────────────────────────────────────────────────────────────────────────


def test_folders_are_read_in_a_fixed_order_and_other_files_are_counted(tmp_path):
    for name in ("b.txt", "a.md", "sub/c.TXT", "sub/deep/d.markdown", "A/e.txt.gz"):
        raw = f"text of {name}".encode()
        put(tmp_path, name, gzip.compress(raw) if name.endswith(".gz") else raw)
    for name in ("settings.json", ".hidden.txt", "noextension"):
        put(tmp_path, name, "x")
    put(tmp_path, ".git/x.txt", "never entered")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling.txt")
    report = Report()
    found = [passage.id for passage in cut(str(tmp_path), report=report)]
    assert found == ["a.md#0", "b.txt#0", "A/e.txt.gz#0", "sub/c.TXT#0", "sub/deep/d.markdown#0"]
    assert report == Report(documents=5, empty=0, passages=5, ignored=4, repeated=0)
    assert str(report) == "5 documents, 0 empty, 5 passages, 4 other files ignored"


def test_empty_documents_are_skipped_and_counted(tmp_path):
    sources = [put(tmp_path, "a.txt", " \n\t"), put(tmp_path, "b.txt", "text"), put(tmp_path, "c.md", "")]
    report = Report()
    assert [passage.id for passage in cut(sources, report=report)] == ["b.txt#0"]
    assert str(report) == "3 documents, 2 empty, 1 passage"


def test_names_stay_unique_when_sources_hold_the_same_ones(tmp_path):
    for folder in ("x", "y", "z"):
        put(tmp_path, f"{folder}/same.txt", folder)
    found = cut([tmp_path / "x", tmp_path / "y" / "same.txt", tmp_path / "z"])
    assert [(passage.id, passage.text) for passage in found] == [
        ("same.txt#0", "x"),
        ("same.txt (2)#0", "y"),
        ("same.txt (3)#0", "z"),
    ]


def test_a_file_that_is_reached_twice_is_cut_once(tmp_path):
    path = put(tmp_path, "d/a.txt", "text")
    os.symlink(path, tmp_path / "d" / "b.txt")
    report = Report()
    assert [passage.id for passage in cut([tmp_path / "d", path], report=report)] == ["a.txt#0"]
    assert report.repeated == 2
    assert str(report) == "1 document, 0 empty, 1 passage, 2 files met twice"


def test_links_that_go_in_circles_end(tmp_path):
    put(tmp_path, "d/e/a.txt", "text")
    os.symlink(tmp_path / "d", tmp_path / "d" / "e" / "loop", target_is_directory=True)
    os.symlink(tmp_path / "d" / "e", tmp_path / "d" / "other", target_is_directory=True)
    os.symlink("self", tmp_path / "d" / "self")
    assert [passage.id for passage in cut(tmp_path / "d")] == ["e/a.txt#0"]


def test_file_names_that_are_no_text_are_made_text(tmp_path):
    os.makedirs(os.fsencode(tmp_path) + b"/d")
    with open(os.fsencode(tmp_path) + b"/d/na\xefve.txt", "w") as out:
        out.write("text")
    (passage,) = cut(tmp_path / "d")
    assert (passage.id, passage.title) == ("na\ufffdve.txt#0", "na\ufffdve")


def test_a_folder_that_cannot_be_listed_is_a_storage_error(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=r"cannot list .*: Permission denied"):
        list(cut(tmp_path))


def test_what_was_named_must_be_there_and_be_a_document(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.txt: there is no such file or folder"):
        list(cut(tmp_path / "none.txt"))
    with pytest.raises(InvalidInput, match=r"a\.pdf: not a type of document; \.txt, \.md and \.jsonl \(each also as"):
        list(cut([put(tmp_path, "a.pdf", "x")]))


def test_nothing_to_cut_is_refused(tmp_path):
    put(tmp_path, "image.png", "x")
    with pytest.raises(
        InvalidInput, match=r"no text in .* \(0 documents, 0 empty, 0 passages, 1 other file ignored\); \.txt"
    ):
        list(cut(tmp_path))
    with pytest.raises(InvalidInput, match=r"no text in nothing"):
        list(cut([]))
    with pytest.raises(InvalidInput, match=r"no text in .*a\.txt \(1 document, 1 empty"):
        list(cut(put(tmp_path, "a.txt", "")))


def test_bad_utf8_names_file_and_line(tmp_path):
    with pytest.raises(InvalidInput, match=r"a\.txt, line 2: not UTF-8 \(byte 3 of the line is 0xff\)"):
        list(cut(put(tmp_path, "a.txt", b"fine\nno\xff\n")))


def test_a_byte_order_mark_is_no_text(tmp_path):
    (passage,) = cut(put(tmp_path, "a.txt", b"\xef\xbb\xbfhello"))
    assert (passage.text, passage.meta["start"]) == ("hello", 0)


# ── JSONL documents ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_jsonl_documents_keep_their_ids_titles_and_metadata(tmp_path):
    lines = [
        {"id": "x", "title": "T", "text": "a b c", "year": 1999},
        {"_id": 7, "text": "d"},
        {"text": "e", "meta": {"k": 1, "start": "ours wins"}},
        {"id": "blank", "text": " "},
    ]
    path = put(tmp_path, "docs.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    report = Report()
    assert list(cut(path, words=2, report=report)) == [
        Passage("x#0", "T", "a b", {"year": 1999, "document": "x", "start": 0, "end": 3}),
        Passage("x#1", "T", "c", {"year": 1999, "document": "x", "start": 4, "end": 5}),
        Passage("7#0", "", "d", {"document": "7", "start": 0, "end": 1}),
        Passage("docs.jsonl:3#0", "", "e", {"k": 1, "document": "docs.jsonl:3", "start": 0, "end": 1}),
    ]
    assert (report.documents, report.empty) == (4, 1)


def test_ids_of_several_jsonl_files_do_not_meet(tmp_path):
    for name in ("a.jsonl", "sub/b.jsonl.gz"):
        raw = b'{"id": 1, "text": "x"}\n{"text": "y"}\n'
        put(tmp_path, name, gzip.compress(raw) if name.endswith(".gz") else raw)
    found = [passage.id for passage in cut(tmp_path)]
    assert found == ["a.jsonl/1#0", "a.jsonl:2#0", "sub/b.jsonl.gz/1#0", "sub/b.jsonl.gz:2#0"]


def test_a_bad_jsonl_document_is_refused_with_its_place(tmp_path):
    with pytest.raises(InvalidInput, match=r'docs\.jsonl, line 2: "text" is missing'):
        list(cut(put(tmp_path, "docs.jsonl", '{"text": "x"}\n{"title": "T"}\n')))
    with pytest.raises(InvalidInput, match=r"docs\.jsonl, line 1: not valid JSON"):
        list(cut(put(tmp_path, "docs.jsonl", "{")))


# ── Titles ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# The Title\ntext", "The Title"),
        ("intro\n\n  ### Later ###  \ntext", "Later"),
        ("# C#\n", "C#"),
        ("The Title\n=========\ntext", "The Title"),
        ("The Title\r\n---\r\ntext", "The Title"),
        ("---\nlayout: post\n---\n\n# Real\n", "Real"),
        ("```python\n# a comment\n```\n# Real\n", "Real"),
        ("~~~\n# never closed\n", "the file"),
        ("para\n\n---\n\n#hashtag\n", "the file"),
        ("#\n# \ntext", "the file"),
        ("no heading", "the file"),
    ],
)
def test_the_title_of_markdown_is_its_first_heading(tmp_path, text, title):
    assert titles(tmp_path, "the_file.md", text) == [title]


@pytest.mark.parametrize("name", ["the_file.txt", "the-file.txt", "_the__file_.txt", "the file.txt"])
def test_the_title_of_plain_text_is_its_name(tmp_path, name):
    assert titles(tmp_path, name, "# not Markdown") == ["the file"]


def test_the_title_leaves_out_the_packing(tmp_path):
    path = put(tmp_path, "the_file.txt.gz", gzip.compress(b"text"))
    assert [passage.title for passage in cut(path)] == ["the file"]


# ── write_jsonl ──────────────────────────────────────────────────────────────────────────────────────────────────────

PASSAGES = [Passage("1", "T", "ä\n", {"k": 1}), Passage("2", "", "")]


def test_what_is_written_is_read(tmp_path):
    assert write_jsonl(PASSAGES, tmp_path / "p.jsonl") == 2
    assert list(read(tmp_path / "p.jsonl")) == PASSAGES
    assert os.listdir(tmp_path) == ["p.jsonl"]
    assert write_jsonl(iter(PASSAGES[:1]), str(tmp_path / "p.jsonl")) == 1
    assert list(read(tmp_path / "p.jsonl")) == PASSAGES[:1]


def test_documents_go_through_the_file_into_passages(tmp_path):
    put(tmp_path, "docs/a.md", "# Title\n\nSome text. " * 100)
    found = list(cut(tmp_path / "docs", by="sentence"))
    write_jsonl(found, tmp_path / "p.jsonl")
    assert list(read(tmp_path / "p.jsonl")) == found


def failing():
    yield PASSAGES[0]
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("passages", "error"),
    [([PASSAGES[0], Passage("2", "", "\ud800")], InvalidInput), ([PASSAGES[0], Passage(2, "", "")], InvalidInput)],
)
def test_the_old_file_stays_when_a_passage_cannot_be_written(tmp_path, passages, error):
    path = put(tmp_path, "p.jsonl", "old")
    with pytest.raises(error, match="passage 2 cannot be written: "):
        write_jsonl(passages, path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["p.jsonl"])


def test_the_old_file_stays_when_the_user_interrupts(tmp_path):
    path = put(tmp_path, "p.jsonl", "old")
    with pytest.raises(KeyboardInterrupt):
        write_jsonl(failing(), path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["p.jsonl"])


def test_the_old_file_stays_when_the_disk_is_full(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = put(tmp_path, "p.jsonl", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left on device"):
        write_jsonl(PASSAGES, path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["p.jsonl"])


def test_a_link_stays_a_link(tmp_path):
    os.symlink(tmp_path / "real.jsonl", tmp_path / "link.jsonl")
    write_jsonl(PASSAGES, tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert list(read(tmp_path / "real.jsonl")) == PASSAGES


def test_long_names_can_be_written(tmp_path):
    assert write_jsonl(PASSAGES, tmp_path / ("n" * 249 + ".jsonl")) == 2


def test_targets_that_cannot_be_replaced_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="is not a plain file, so it cannot be replaced; choose another name"):
        write_jsonl(PASSAGES, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="is not a plain file"):
        write_jsonl(PASSAGES, tmp_path / "pipe")
    with pytest.raises(InvalidInput, match=r"p\.jsonl\.gz: passages are written unpacked; leave out \.gz"):
        write_jsonl(PASSAGES, tmp_path / "p.jsonl.gz")
    with pytest.raises(StorageError, match="No such file or directory; create the folder above it first"):
        write_jsonl(PASSAGES, tmp_path / "none" / "p.jsonl")
