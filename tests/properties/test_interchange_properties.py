"""Files of other software, damaged in every way: a clear word, or codes that are there; never much memory."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr.errors import BprError, InvalidInput, UnsupportedFormat
from bpr.interchange import arrays, faissfile, jsonpieces, results, writing
from bpr.interchange.results import Context, Result

BITS, ROWS = 32, 20
CODES = np.random.default_rng(1).integers(0, 256, (ROWS, BITS // 8), np.uint8)
MOST = 4 << 20  # bytes of memory for a file of less than ten thousand
KINDS = ("flat", "map", "map2", "hnsw", "hash", "multihash", "ivf", "sparse", "table")


@cache
def valid(kind: str) -> bytes:
    """A file as Faiss writes it."""
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexBinaryFlat(BITS)
    if kind in ("map", "map2"):
        index = (faiss.IndexBinaryIDMap if kind == "map" else faiss.IndexBinaryIDMap2)(flat)
        index.add_with_ids(CODES, np.arange(100, 100 + ROWS))
    elif kind in ("ivf", "sparse", "table"):
        cells = 90 if kind == "sparse" else 3
        flat.add(np.random.default_rng(2).integers(0, 256, (cells, BITS // 8), np.uint8))
        index = faiss.IndexBinaryIVF(flat, BITS, cells)
        index.is_trained = True
        index.add(CODES)
        if kind == "table":
            index.set_direct_map_type(faiss.DirectMap.Hashtable)
    else:
        made = {
            "flat": lambda: flat,
            "hnsw": lambda: faiss.IndexBinaryHNSW(BITS, 4),
            "hash": lambda: faiss.IndexBinaryHash(BITS, 4),
            "multihash": lambda: faiss.IndexBinaryMultiHash(BITS, 2, 5),
        }
        index = made[kind]()
        index.add(CODES)
    return faiss.serialize_index_binary(index).tobytes()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid file with a few bytes changed, cut, put in, or with a length that claims the moon."""
    content = bytearray(valid(draw(st.sampled_from(KINDS))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(content) - 1, 0)) | st.integers(0, min(80, len(content))))
        how = draw(st.sampled_from(["change", "cut", "insert", "number", "remove", "repeat"]))
        if how == "change":
            content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del content[at:]
        elif how == "insert":
            content[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif how == "remove":
            del content[at : at + draw(st.integers(1, 9))]
        elif how == "repeat":
            content += content[at:]
        else:
            number = draw(st.sampled_from([0, 1, 2**31 - 1, 2**32, 2**62, 2**63 - 1, 2**64 - 1]))
            content[at : at + 8] = number.to_bytes(8, "little")
    return bytes(content)


@given(damaged())
def test_a_damaged_index_of_faiss_is_refused_or_gives_codes_that_are_there(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.faiss"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            stored = faissfile.read(path)
            codes = stored.take(np.arange(len(stored)))
            assert codes.shape == (len(stored), stored.bits // 8) and codes.nbytes <= len(content)
            assert stored.ids is None or stored.ids.shape == (len(stored),)
        except (InvalidInput, UnsupportedFormat) as error:
            assert str(path) in str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST


@given(st.sampled_from(KINDS), st.data())
def test_a_file_that_is_cut_short_anywhere_is_refused(kind: str, data: st.DataObject) -> None:
    content = valid(kind)
    size = data.draw(st.integers(0, len(content) - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.faiss"
        path.write_bytes(content[:size])
        with pytest.raises(InvalidInput, match=r"a\.faiss, byte [\d,]+: "):
            faissfile.read(path)


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_what_faiss_reads_of_ours_is_what_we_wrote(rows: int, width: int, seed: int, with_ids: bool) -> None:
    faiss = pytest.importorskip("faiss")
    from bpr.disk import replacing

    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (rows, width), np.uint8)
    ids = random.permutation(2 * rows + 1)[:rows].astype(np.int64) - rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.faiss"
        with replacing(path) as (out,):
            faissfile.write(out, rows, 8 * width, [codes], [ids] if with_ids else None)
        theirs, ours = faiss.read_index_binary(str(path)), faissfile.read(path)
        assert (theirs.ntotal, theirs.d) == (rows, 8 * width) == (len(ours), ours.bits)
        np.testing.assert_array_equal(ours.take(np.arange(rows)), codes)
        if with_ids:
            np.testing.assert_array_equal(faiss.vector_to_array(theirs.id_map), ids)
            np.testing.assert_array_equal(ours.ids, ids)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda rest: b"\x93NUMPY\x01\x00" + rest))
def test_what_is_no_array_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npy"
        path.write_bytes(content)
        with pytest.raises(BprError):
            arrays.read(path)


# ── Results ──────────────────────────────────────────────────────────────────────────────────────────────────────────

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8)
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)


@given(
    st.lists(st.dictionaries(st.text(max_size=4), values, max_size=4), max_size=5), st.integers(1, 40), st.booleans()
)
def test_pieces_of_json_are_the_elements_of_the_whole(items: list, size: int, indented: bool) -> None:
    text = json.dumps(items, indent=2 if indented else None, ensure_ascii=indented)
    named = json.dumps({str(number): item for number, item in enumerate(items)})
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bpr.textfiles.PIECE_BYTES", size)
        path = Path(folder) / "a.json"
        path.write_text(text, encoding="utf-8", errors="replace")
        expected = json.loads(path.read_text(encoding="utf-8"))
        assert repr(list(jsonpieces.elements(path))) == repr(expected)
        path.write_text(named, encoding="utf-8")
        assert repr(dict(jsonpieces.members(path))) == repr(json.loads(named))


@st.composite
def found(draw: st.DrawFn) -> list[Result]:
    """Results with everything that every layout has, scores that go down, and ids of one word."""
    questions = []
    for number in range(draw(st.integers(1, 4))):
        ids = draw(st.lists(words, unique=True, max_size=4))
        scores = sorted(draw(st.lists(st.integers(-1000, 1000), min_size=len(ids), max_size=len(ids), unique=True)))[
            ::-1
        ]
        contexts = tuple(
            Context(each, float(score), draw(words), draw(lines), draw(st.booleans()))
            for each, score in zip(ids, scores, strict=True)
        )
        questions.append(Result(f"q{number}", draw(words), tuple(draw(st.lists(lines, max_size=2))), contexts))
    return questions


@given(found(), st.sampled_from(results.KINDS))
def test_what_is_written_is_read_again(given_results: list[Result], kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results"
        count = writing.write(given_results, path, kind)
        assert count.questions == len(given_results)
        if kind == "trec" and not any(each.contexts for each in given_results):
            return
        again = list(results.read(path))
        for ours, theirs in zip(
            [each for each in given_results if each.contexts or kind != "trec"], again, strict=True
        ):
            assert [each.id for each in theirs.contexts] == [each.id for each in ours.contexts]
            assert [each.score for each in theirs.contexts] == [each.score for each in ours.contexts]
            if kind == "trec":
                assert theirs.id == ours.id
                continue
            assert (theirs.question, theirs.answers) == (ours.question.strip(), ours.answers)
            assert [each.has_answer for each in theirs.contexts] == [each.has_answer for each in ours.contexts]
            if kind != "pyserini":
                assert theirs.contexts == ours.contexts
            assert kind == "dpr" or theirs.id == ours.id


@given(values, st.sampled_from([*results.KINDS, None]), st.booleans())
def test_json_of_any_shape_is_read_or_refused_with_its_place(value: object, kind: str | None, in_list: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        path.write_text(json.dumps([value, {"question": "q", "ctxs": value}] if in_list else {"1": value}))
        try:
            read = list(results.read(path, kind))
        except InvalidInput as error:
            assert "results.json" in str(error)
        else:
            assert read and not in_list
