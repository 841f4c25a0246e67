"""Passages from every source into a bundle and back, by row and by id, in flat memory."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bpr import bundle, idmap, passages
from bpr.errors import CorruptBundle, InvalidInput, MissingBundle
from bpr.passages import Passages, read, write
from bpr.records import Passage

PACK = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}

ids = st.text(min_size=1).filter(str.strip)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
metas = st.dictionaries(st.text(), values, max_size=3)
some_passages = st.lists(
    st.builds(Passage, id=ids, title=st.text(), text=st.text(), meta=metas),
    min_size=1,
    max_size=6,
    unique_by=lambda passage: passage.id,
)


def build(folder: Path, items) -> Passages:
    """The passages, through a bundle of their own."""
    path = folder / "a.bpr"
    with bundle.create(path) as new:
        rows = write(items, new)
        new.publish({"rows": rows})
    opened = Passages(bundle.open(path))
    assert len(opened) == rows
    return opened


def numbered(count: int) -> list[Passage]:
    return [Passage(f"doc-{number}", "", f"text {number}") for number in range(count)]


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def refusal(source) -> str:
    with pytest.raises(InvalidInput) as caught:
        list(read(source))
    return str(caught.value)


# ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_tsv(items: list[Passage]) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter="\t").writerows([("id", "text", "title"), *((p.id, p.text, p.title) for p in items)])
    return out.getvalue()


def as_jsonl(items: list[Passage]) -> str:
    return "".join(json.dumps(passage.to_dict()) + "\n" for passage in items)


def as_beir(items: list[Passage]) -> str:
    beir = ({"_id": p.id, "title": p.title, "text": p.text, "metadata": p.meta} for p in items)
    return "".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in beir)


@pytest.mark.parametrize("suffix", PACK)
@settings(max_examples=15, deadline=None)
@given(items=some_passages)
def test_passages_come_back_from_every_format(tmp_path_factory, suffix, items):
    folder = tmp_path_factory.mktemp("formats")
    for name, encode in (("a.jsonl", as_jsonl), ("b.jsonl", as_beir)):
        (folder / f"{name}{suffix}").write_bytes(PACK[suffix](encode(items).encode()))
        assert list(read(folder / f"{name}{suffix}")) == items
    plain = [Passage(p.id.replace("\0", "0"), p.title.replace("\0", "0"), p.text.replace("\0", "0")) for p in items]
    (folder / f"c.tsv{suffix}").write_bytes(PACK[suffix](as_tsv(plain).encode()))
    assert list(read(str(folder / f"c.tsv{suffix}"))) == plain


@settings(max_examples=30, deadline=None)
@given(items=some_passages)
def test_passages_come_back_from_iterables(items):
    assert list(read(items)) == items
    assert list(read(passage.to_dict() for passage in items)) == items


def test_the_files_of_the_field_are_read(tmp_path):
    dpr = put(tmp_path, "psgs.tsv", 'id\ttext\ttitle\n1\t"Aaron ( or ; ""Ahärôn"") is a prophet"\tAaron\n')
    assert list(read(dpr)) == [Passage("1", "Aaron", 'Aaron ( or ; "Ahärôn") is a prophet')]
    beir = put(tmp_path, "corpus.jsonl", '{"_id": "d1", "title": "T", "text": "x", "metadata": {"url": "u"}}\n')
    assert list(read(beir)) == [Passage("d1", "T", "x", {"url": "u"})]


def test_the_title_may_be_missing_or_null_and_other_keys_become_meta(tmp_path):
    source = put(
        tmp_path, "a.jsonl", '{"id": 7, "text": "x", "year": 1999, "meta": {"a": [1]}}\n{"id": -1, "text": ""}\n'
    )
    assert list(read(source)) == [Passage("7", "", "x", {"a": [1], "year": 1999}), Passage("-1", "", "")]
    assert list(read([{"id": np.int64(3), "text": "x", "title": None, "meta": None}])) == [Passage("3", "", "x")]
    assert list(read(put(tmp_path, "a.tsv", "id\ttext\tyear\n1\tx\t1999\n"))) == [
        Passage("1", "", "x", {"year": "1999"})
    ]


def test_control_characters_are_kept(tmp_path):
    text = "".join(map(chr, range(32))) + "\x7f\x85\u2028"
    assert build(tmp_path, read([{"id": "1", "text": text}]))[0].text == text


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"text": "x"}, '"id" is missing; a passage needs "id" and "text" (and may have "title" and "meta")'),
        ({"id": "1"}, '"text" is missing'),
        ({"id": None, "text": "x"}, '"id" is missing'),
        ({"id": "", "text": "x"}, '"id" is empty; every passage needs an id of its own'),
        ({"id": " \t", "text": "x"}, '"id" is empty'),
        ({"id": True, "text": "x"}, '"id" must be a string, not bool'),
        ({"id": 1.5, "text": "x"}, '"id" must be a string, not float'),
        ({"id": "1", "text": 5}, '"text" must be a string, not int'),
        ({"id": "1", "text": ["x"]}, '"text" must be a string, not list'),
        ({"id": "1", "text": "x", "title": 5}, '"title" must be a string, not int'),
        ({"id": "\udc00", "text": "x"}, '"id" has half a surrogate pair at character 0, which is no text'),
        ({"id": "1", "text": "ab\ud800"}, '"text" has half a surrogate pair at character 2'),
        ({"id": "1", "text": "x", "meta": ["a"]}, '"meta" must be a JSON object, not list'),
        ({"id": "1", "text": "x", "metadata": "a"}, '"meta" must be a JSON object, not str'),
        ({"id": "1", "text": "x", "meta": {"a": float("nan")}}, '"meta" cannot be stored as JSON: Out of range float'),
        ({"id": "1", "text": "x", "a": float("inf")}, '"meta" cannot be stored as JSON: Out of range float'),
        ({"id": "1", "text": "x", "a": "\ud800"}, "\"meta\" cannot be stored as JSON: 'utf-8' codec can't encode"),
        ({"id": "1", "text": "x", "meta": {"a": 1}, "a": 2}, "'a' stands both beside \"meta\" and in it"),
    ],
)
def test_a_record_that_is_no_passage_is_refused_with_its_place(tmp_path, record, complaint):
    good = {"id": "0", "text": "fine"}
    assert f"item 1: {complaint}" in refusal([good, record])
    path = put(tmp_path, "a.jsonl", f"{json.dumps(good)}\n\n{json.dumps(record)}\n")
    assert f"{path}, line 3: {complaint}" in refusal(path)


def test_values_that_json_does_not_have_are_refused():
    assert 'item 0: "meta" cannot be stored as JSON: Object of type set' in refusal(
        [{"id": "1", "text": "x", "a": {1}}]
    )
    message = refusal([{"id": "1", "text": "x", "meta": {1: "a"}}])
    assert 'item 0: "meta" cannot be stored as JSON: the key 1 is not a string' in message
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert '"meta" cannot be stored as JSON' in refusal([{"id": "1", "text": "x", "meta": {"a": deep}}])


def test_numbers_that_json_cannot_give_back_are_refused(tmp_path):
    path = put(tmp_path, "a.jsonl", '{"id": "1", "text": "x", "a": 1e999}\n')
    assert f'{path}, line 1: "meta" cannot be stored as JSON' in refusal(path)


def test_a_bad_passage_value_is_refused_like_a_dict():
    assert 'item 0: "text" must be a string, not int' in refusal([Passage("1", "", 5)])


def test_what_is_no_source_of_passages_is_refused():
    assert "passages must be a path or an iterable of dicts or Passage values, not int" in refusal(5)
    assert "item 0: a passage must be a dict or a Passage, not str" in refusal(["text"])
    assert "item 0: a passage must be a dict or a Passage, not str" in refusal({"id": "1", "text": "x"})


def test_a_source_without_passages_is_refused(tmp_path):
    for name in ("a.tsv", "a.jsonl"):
        assert f"{name} holds no passages" in refusal(put(tmp_path, name, ""))
    assert "h.tsv holds no passages" in refusal(put(tmp_path, "h.tsv", "id\ttext\n"))
    assert "the iterable of passages holds no passages" in refusal([])


# ── write and Passages ───────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, deadline=None)
@given(items=some_passages)
def test_passages_come_back_from_a_bundle(tmp_path_factory, items):
    stored = build(tmp_path_factory.mktemp("bundle"), items)
    assert list(stored) == items
    assert [stored[row] for row in range(len(items))] == items
    assert [stored.row(passage.id) for passage in items] == list(range(len(items)))


def test_the_files_are_as_the_module_says(tmp_path):
    build(tmp_path, [Passage("ä", "T", "x\n", {"k": 1}), Passage("b", "", "")])
    folder = tmp_path / "a.bpr" / "gen-000001"
    lines = ['{"id":"ä","title":"T","text":"x\\n","meta":{"k":1}}\n', '{"id":"b","title":"","text":""}\n']
    assert (folder / "passages.jsonl").read_text() == "".join(lines)
    first, second = (len(line.encode()) for line in lines)
    assert np.load(folder / "offsets.npy").tolist() == [0, first, first + second]
    assert sorted(file.name for file in folder.iterdir()) == [
        "checksums.npy",
        "ids.npy",
        "offsets.npy",
        "passages.jsonl",
    ]


def test_the_id_map_takes_five_bytes_a_passage(tmp_path):
    build(tmp_path, numbered(10_000))
    table = np.load(tmp_path / "a.bpr" / "gen-000001" / "ids.npy")
    assert table.dtype == np.uint32
    assert 5.0 <= table.nbytes / 10_000 < 5.05
    assert sorted(table[table != 2**32 - 1]) == list(range(10_000))


def test_rows_are_numbered_with_four_bytes_as_long_as_they_fit():
    assert idmap.row_type(2**32 - 2) == np.uint32
    assert idmap.row_type(2**32 - 1) == np.uint64
    assert idmap.empty(np.dtype(np.uint64)) == 2**64 - 1


@pytest.mark.parametrize("partition_rows", [1, 2, 7, 64, 1 << 20])
def test_every_id_is_found_and_no_other_whatever_the_partitions(tmp_path, monkeypatch, partition_rows):
    whole = build(tmp_path, numbered(200))
    table = whole._ids.array.tobytes()
    monkeypatch.setattr(idmap, "PARTITION_ROWS", partition_rows)
    monkeypatch.setattr(idmap, "HASHES_AT_ONCE", 33)
    stored = build(tmp_path, numbered(200))
    assert stored._ids.array.tobytes() == table
    assert [stored.row(f"doc-{row}") for row in range(200)] == list(range(200))
    assert not any(f"doc-{row}" in stored for row in range(200, 1200))


digests = st.sampled_from([b"\0" * 8, b"\0" * 7 + b"\1", b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7, b"\xff" * 8])


@settings(max_examples=25, deadline=None)
@given(known=st.dictionaries(ids, digests, max_size=12), unknown=st.dictionaries(ids, digests, max_size=6))
def test_ids_whose_hashes_collide_are_told_apart(tmp_path_factory, known, unknown):
    chosen = {**unknown, **known}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idmap, "digest", chosen.__getitem__)
        patch.setattr(idmap, "PARTITION_ROWS", 3)
        stored = build(tmp_path_factory.mktemp("collide"), [Passage(key, "", "") for key in known])
        assert [stored.row(key) for key in known] == list(range(len(known)))
        assert not any(key in stored for key in unknown.keys() - known.keys())


@pytest.mark.parametrize("partition_rows", [2, 1 << 20])
def test_an_id_that_comes_twice_is_refused_with_both_rows(tmp_path, monkeypatch, partition_rows):
    monkeypatch.setattr(idmap, "PARTITION_ROWS", partition_rows)
    items = [*numbered(50), Passage("doc-7", "", "again")]
    with pytest.raises(InvalidInput, match="passages 8 and 51 of the input: the id 'doc-7' stands twice"):
        build(tmp_path, items)
    with pytest.raises(MissingBundle):
        bundle.open(tmp_path / "a.bpr")


def test_a_twin_is_found_behind_a_stranger_with_the_same_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(idmap, "digest", lambda _: b"\0" * 8)
    with pytest.raises(InvalidInput, match="passages 1 and 3 of the input: the id 'a' stands twice"):
        build(tmp_path, [Passage("a", "", ""), Passage("b", "", ""), Passage("a", "", "")])


def test_a_refused_write_leaves_the_bundle_as_it_was(tmp_path):
    build(tmp_path, numbered(3))
    with pytest.raises(InvalidInput):
        build(tmp_path, numbered(3) * 2)
    assert list(Passages(bundle.open(tmp_path / "a.bpr"))) == numbered(3)


@pytest.mark.parametrize(
    ("passage", "complaint"),
    [
        (Passage(5, "", ""), "first argument must be a string, not int"),
        (Passage("1", "", "\ud800"), "surrogates not allowed"),
        (Passage("1", "", "", {"a": float("nan")}), '"meta" cannot be stored as JSON'),
    ],
)
def test_a_passage_that_cannot_be_stored_is_refused_with_its_row(tmp_path, passage, complaint):
    with pytest.raises(InvalidInput, match=f"the passage for row 2 cannot be stored: .*{complaint}"):
        build(tmp_path, [*numbered(2), passage])


def test_text_goes_out_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "BATCH_BYTES", 100)
    assert list(build(tmp_path, numbered(40))) == numbered(40)


def test_no_passages_can_be_stored_too(tmp_path):
    stored = build(tmp_path, [])
    assert (len(stored), list(stored), stored.get([]), "a" in stored) == (0, [], [], False)


def test_rows_come_in_the_order_asked_for(tmp_path):
    stored, items = build(tmp_path, numbered(3000)), numbered(3000)
    assert list(stored) == items
    for rows in ([2, 0, 2], np.array([2999, 1], np.int32), np.array([5], np.uint64), range(3), (7,)):
        assert stored.get(rows) == [items[row] for row in rows]
    assert stored[np.int64(4)] == items[4]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([0, 3], "there is no row 3: the rows are 0 to 2"),
        ([2, -1], "there is no row -1: the rows are 0 to 2"),
        (np.array([2**64 - 1], np.uint64), "there is no row 18446744073709551615"),
        ([1.0], "rows must be whole numbers in one dimension, not float64 in 1"),
        ([True], "not bool in 1"),
        ([[1]], "not int64 in 2"),
        (1, "not int64 in 0"),
        (["a"], "rows must be whole numbers"),
    ],
)
def test_rows_that_are_not_there_are_refused(tmp_path, rows, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        build(tmp_path, numbered(3)).get(rows)


@pytest.mark.parametrize("unknown", ["doc-3", "", "\ud800", 5, None])
def test_an_unknown_id_is_refused_by_name(tmp_path, unknown):
    stored = build(tmp_path, numbered(3))
    assert unknown not in stored
    with pytest.raises(InvalidInput) as caught:
        stored.row(unknown)
    assert f"no passage has the id {unknown!r}; ids are strings" in str(caught.value)


# ── Damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LINE = b'{"id":"a","title":"","text":""}\n'
NO_ID = np.full(4, 2**32 - 1, np.uint32)


def forge(folder: Path, text: bytes, offsets: np.ndarray, table: np.ndarray) -> Passages:
    """A bundle with good checksums whose files contradict each other."""
    with bundle.create(folder / "a.bpr") as new:
        with new.file("passages.jsonl") as out:
            out.write(text)
        new.save("offsets.npy", offsets)
        new.save("ids.npy", table)
        new.publish({})
    return Passages(bundle.open(folder / "a.bpr"))


@pytest.mark.parametrize(
    ("offsets", "table"),
    [
        (np.zeros(0, np.uint64), NO_ID),
        (np.array([0, 32], np.int64), NO_ID),
        (np.array([0, 32], np.uint64), NO_ID.astype(np.uint64)),
        (np.array([0, 32], np.uint64), NO_ID[:3]),
    ],
)
def test_files_that_do_not_belong_together_are_corrupt(tmp_path, offsets, table):
    with pytest.raises(CorruptBundle, match=r"offsets\.npy and ids\.npy do not belong together; restore or rebuild"):
        forge(tmp_path, LINE, offsets, table)


@pytest.mark.parametrize("offsets", [[0, 33], [5, 5], [6, 5], [0, 2**64 - 1]])
def test_offsets_that_lead_outside_are_corrupt(tmp_path, offsets):
    stored = forge(tmp_path, LINE, np.array(offsets, np.uint64), NO_ID)
    with pytest.raises(CorruptBundle, match=r"offsets\.npy points outside passages\.jsonl"):
        stored[0]


@pytest.mark.parametrize("line", [b"{}\n", b"[1]\n", b"null\n", b"broken", b'{"id":"\xff"}'])
def test_lines_that_are_no_passages_are_corrupt(tmp_path, line):
    stored = forge(tmp_path, line, np.array([0, len(line)], np.uint64), NO_ID)
    with pytest.raises(CorruptBundle, match=r"passages\.jsonl holds no passage at byte 0"):
        stored[0]


@pytest.mark.parametrize("slot", [1, 7])
def test_an_id_map_that_leads_nowhere_is_corrupt(tmp_path, slot):
    stored = forge(tmp_path, LINE, np.array([0, 32], np.uint64), np.full(4, slot, np.uint32))
    with pytest.raises(CorruptBundle, match=r"ids\.npy leads nowhere for 'a'"):
        stored.row("a")


def test_an_id_map_without_an_end_is_corrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(idmap, "digest", lambda _: b"\0" * 8)
    stored = forge(tmp_path, LINE, np.array([0, 32], np.uint64), np.zeros(4, np.uint32))
    with pytest.raises(CorruptBundle, match=r"ids\.npy leads nowhere for 'b'"):
        stored.row("b")


@pytest.mark.parametrize("name", ["passages.jsonl", "offsets.npy", "ids.npy"])
def test_bytes_that_changed_are_never_served(tmp_path, name):
    build(tmp_path, numbered(20_000))
    path = tmp_path / "a.bpr" / "gen-000001" / name
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    stored = Passages(bundle.open(tmp_path / "a.bpr", verify_limit=0))  # as with a bundle too large to check at open
    assert stored[0].id == "doc-0"
    with pytest.raises(CorruptBundle, match=name):
        [stored.row(passage.id) for passage in stored] if name != "ids.npy" else stored._slots(
            [*range(25_000)], [""] * 25_000
        )


# ── Memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FLAT = """
import re, resource, sys
from pathlib import Path
from bpr import bundle, idmap, passages

def peak():  # KB; on Linux getrusage begins with the peak of the process that started this one
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

source, target = sys.argv[1:]
start = peak()
rows = sum(1 for _ in passages.read(source))
after_read = peak()
with bundle.create(target) as new:
    assert passages.write(passages.read(source), new) == rows
    after_write = peak()
    new.publish({})
print(rows, after_read - start, after_write - start)
"""


def test_memory_is_flat_whatever_the_size_of_the_file(tmp_path):
    source = tmp_path / "big.tsv"
    with source.open("w") as out:
        out.write("id\ttext\ttitle\n")
        for block in range(100):
            text = f"{block} " * 1500
            out.writelines(f'{block}-{number}\t"{text} {number}"\tTitle\n' for number in range(250))
    assert source.stat().st_size > 90_000_000
    command = [sys.executable, "-c", FLAT, str(source), str(tmp_path / "big.bpr")]
    rows, read_kb, write_kb = map(
        int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    )
    assert rows == 25_000
    assert read_kb < 16_000
    assert write_kb < 64_000
