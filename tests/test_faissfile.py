"""Faiss's files, both ways, against Faiss itself: what it writes is read, what is written it reads, none is trusted."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from bpr.codes import candidates_reference
from bpr.disk import replacing
from bpr.errors import InvalidInput, StorageError, UnsupportedFormat
from bpr.interchange import faissfile

faiss = pytest.importorskip("faiss")

ROWS, BITS = 60, 64
CODES = np.random.default_rng(5).integers(0, 256, (ROWS, BITS // 8), np.uint8)
ASKED = np.random.default_rng(6).integers(0, 256, (9, BITS // 8), np.uint8)
OWN_IDS = np.random.default_rng(7).permutation(10_000)[:ROWS].astype(np.int64)


def saved(index, path: Path) -> Path:
    faiss.write_index_binary(index, str(path))
    return path


def made(kind: str, with_ids: bool = False):
    """An index of the codes, as its users make it."""
    if kind == "flat":
        index = faiss.IndexBinaryFlat(BITS)
    elif kind == "hnsw":
        index = faiss.IndexBinaryHNSW(BITS, 4)
    elif kind == "hash":
        index = faiss.IndexBinaryHash(BITS, 6)
    elif kind == "multihash":
        index = faiss.IndexBinaryMultiHash(BITS, 3, 7)
    else:
        cells = {"ivf": 3, "sparse ivf": 400}[kind]  # most of the 400 are empty, and left out of the file
        quantizer = faiss.IndexBinaryFlat(BITS)
        quantizer.add(np.random.default_rng(8).integers(0, 256, (cells, BITS // 8), np.uint8))
        index = faiss.IndexBinaryIVF(quantizer, BITS, cells)
        index.own_fields = False
        index.quantizer_of_ours = quantizer  # Python must not let go of it
        index.is_trained = True
    if with_ids:
        index.add_with_ids(CODES, OWN_IDS)
    else:
        index.add(CODES)
    return index


def all_of(stored: faissfile.StoredCodes) -> np.ndarray:
    return stored.take(np.arange(len(stored)))


KINDS = ["flat", "hnsw", "hash", "multihash", "ivf", "sparse ivf"]


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_index_gives_its_codes_in_the_order_in_which_they_were_added(tmp_path, kind):
    stored = faissfile.read(saved(made(kind), tmp_path / "a.faiss"))
    assert (len(stored), stored.bits, stored.ids) == (ROWS, BITS, None)
    np.testing.assert_array_equal(all_of(stored), CODES)
    assert stored.kind.split()[0] == faiss.read_index_binary(str(tmp_path / "a.faiss")).__class__.__name__


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf", "multihash"])
@pytest.mark.parametrize("around", ["IndexBinaryIDMap", "IndexBinaryIDMap2"])
def test_a_map_of_ids_around_any_index(tmp_path, kind, around):
    inner = made(kind)
    inner.reset()
    index = getattr(faiss, around)(inner)
    index.add_with_ids(CODES, OWN_IDS)
    stored = faissfile.read(saved(index, tmp_path / "a.faiss"))
    np.testing.assert_array_equal(stored.ids, OWN_IDS)
    np.testing.assert_array_equal(all_of(stored), CODES)
    assert stored.kind.startswith(f"{around} of IndexBinary")


@pytest.mark.parametrize("kind", ["ivf", "sparse ivf", "hash"])
def test_lists_that_keep_ids_of_their_own(tmp_path, kind):
    stored = faissfile.read(saved(made(kind, with_ids=True), tmp_path / "a.faiss"))
    order = np.argsort(stored.ids)
    np.testing.assert_array_equal(stored.ids[order], np.sort(OWN_IDS))
    np.testing.assert_array_equal(stored.take(order), CODES[np.argsort(OWN_IDS)])


@pytest.mark.parametrize("kind", ["Array", "Hashtable"])
def test_a_direct_map_is_passed_over(tmp_path, kind):
    index = made("ivf")
    index.set_direct_map_type(getattr(faiss.DirectMap, kind))
    np.testing.assert_array_equal(all_of(faissfile.read(saved(index, tmp_path / "a.faiss"))), CODES)


def test_the_old_files_of_the_papers_authors_whose_map_says_code_size_0(tmp_path):
    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(BITS))
    index.add_with_ids(CODES, OWN_IDS)
    path = saved(index, tmp_path / "old.idx")
    old = bytearray(path.read_bytes())
    old[8:12] = bytes(4)  # as Faiss 1.6.5 left it
    path.write_bytes(old)
    with pytest.raises(RuntimeError, match="code_size=0"):
        faiss.read_index_binary(str(path))
    stored = faissfile.read(path)
    np.testing.assert_array_equal(stored.ids, OWN_IDS)
    np.testing.assert_array_equal(all_of(stored), CODES)


def test_an_index_without_codes(tmp_path):
    for kind in KINDS[:4]:
        index = made(kind)
        index.reset()
        assert len(faissfile.read(saved(index, tmp_path / "a.faiss"))) == 0


def test_codes_stay_in_the_file_until_they_are_taken(tmp_path):
    stored = faissfile.read(saved(made("flat"), tmp_path / "a.faiss"))
    assert isinstance(stored._starts, int)
    np.testing.assert_array_equal(stored.take(np.array([59, 0, 59])), CODES[[59, 0, 59]])


def test_both_ways_of_saying_how_long_lists_are_are_tested_here(tmp_path):
    assert b"full" in saved(made("ivf"), tmp_path / "a.faiss").read_bytes()
    assert b"sprs" in saved(made("sparse ivf"), tmp_path / "b.faiss").read_bytes()


# ── What is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_indexes_that_are_not_read_say_what_to_do_in_faiss(tmp_path):
    floats = faiss.IndexFlatL2(BITS)
    wrapped = faiss.IndexBinaryFromFloat(floats)
    with pytest.raises(UnsupportedFormat, match=r"IndexBinaryFromFloat \(IBFf\).*reconstruct_n"):
        faissfile.read(saved(wrapped, tmp_path / "a.faiss"))
    floats.add(np.ones((3, BITS), np.float32))
    faiss.write_index(floats, str(tmp_path / "f.faiss"))
    with pytest.raises(UnsupportedFormat, match=r"begins with 'IxF2'.*bpr index --vectors"):
        faissfile.read(tmp_path / "f.faiss")


def test_lists_that_lie_elsewhere_are_named(tmp_path):
    path = saved(made("ivf"), tmp_path / "a.faiss")
    path.write_bytes(path.read_bytes().replace(b"ilar", b"ilod"))
    with pytest.raises(UnsupportedFormat, match="inverted lists as 'ilod'"):
        faissfile.read(path)


HEAD = struct.pack("<iiqBi", BITS, BITS // 8, 1, 1, 1)
FLAT = b"IBxF" + HEAD + struct.pack("<Q", 8) + bytes(8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "byte 0: the name of an index should take 4 bytes"),
        (b"\x00\x01\x02\x03rest", "byte 0: no name of an index"),
        (FLAT[:20], "byte 4: the header of an index should take 21 bytes, and the file has only 16 more"),
        (FLAT[:-1], "byte 33: the codes should take 8 bytes, and the file has only 7 more"),
        (FLAT + b"x", "byte 41: the index ends here, but the file has 1 bytes more"),
        (FLAT[:25] + struct.pack("<Q", 1 << 62) + bytes(8), "should take 4,611,686,018,427,387,904 bytes"),
        (FLAT[:25] + struct.pack("<Q", 7) + bytes(7), "7 bytes are not 1 codes of 64 bits"),
        (b"IBxF" + struct.pack("<iiqBi", 63, 8, 1, 1, 1), "codes of 63 bits"),
        (b"IBxF" + struct.pack("<iiqBi", 1 << 20, 1 << 17, 1, 1, 1), "codes of 1048576 bits"),
        (b"IBxF" + struct.pack("<iiqBi", BITS, 0, 1, 1, 1), "a header that cannot be"),
        (b"IBxF" + struct.pack("<iiqBi", BITS, 8, -1, 1, 1), "a header that cannot be: -1 codes"),
        (b"IBMp" + HEAD + FLAT + struct.pack("<Qqq", 2, 1, 2), "2 ids for 1 codes"),
        (b"IBMp" + struct.pack("<iiqBi", BITS, 0, 2, 1, 1) + FLAT + struct.pack("<Qq", 1, 1), "says 2 codes"),
        (5 * (b"IBMp" + HEAD) + FLAT, "deeper than Faiss makes them"),
    ],
)
def test_files_that_do_not_add_up_are_refused_with_the_byte(tmp_path, content, says):
    (tmp_path / "a.faiss").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"a\.faiss, byte") as error:
        faissfile.read(tmp_path / "a.faiss")
    assert says in str(error.value)


def changed(path: Path, at: int, content: bytes) -> Path:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(content)] = content
    path.write_bytes(whole)
    return path


def test_lists_that_do_not_add_up_are_refused_with_the_byte(tmp_path):
    ivf = saved(made("ivf"), tmp_path / "a.faiss").read_bytes()
    lists, sparse = ivf.index(b"ilar"), saved(made("sparse ivf"), tmp_path / "b.faiss").read_bytes()
    one = faiss.IndexBinaryHash(BITS, 6)
    one.add(CODES[:1])
    ids = saved(one, tmp_path / "c.faiss").stat().st_size - 8 - 8 - 8 - 8  # how many; the id; how many bytes; the code
    for name, at, content, says in (
        ("a.faiss", lists - 9, b"\x07", "a direct map of the unknown kind 7"),
        ("a.faiss", lists + 4, struct.pack("<Q", 4), "4 lists of 8 bytes a code, for 3 cells of 64 bits"),
        ("a.faiss", lists + 20, b"some", "sizes 'some' of 3 lists that are 3 numbers"),
        ("b.faiss", sparse.index(b"sprs") + 12, struct.pack("<Q", 400), "sizes 'sprs' of 400 lists"),
        ("c.faiss", ids + 16, struct.pack("<Q", 7), "7 bytes are not 1 codes of 64 bits"),
    ):
        whole = (tmp_path / name).read_bytes()
        with pytest.raises(InvalidInput, match=rf"{name[0]}\.faiss, byte [\d,]+: ") as error:
            faissfile.read(changed(tmp_path / name, at, content))
        assert says in str(error.value)
        (tmp_path / name).write_bytes(whole)


def test_lists_with_ids_of_their_own_inside_a_map_say_nothing_sure(tmp_path):
    inner = saved(made("ivf", with_ids=True), tmp_path / "a.faiss").read_bytes()
    head = b"IBMp" + struct.pack("<iiqBi", BITS, BITS // 8, ROWS, 1, 1)
    (tmp_path / "a.faiss").write_bytes(head + inner + struct.pack("<Q", ROWS) + OWN_IDS.tobytes())
    with pytest.raises(InvalidInput, match=r"IndexBinaryIVF should number its codes 0, 1, …"):
        faissfile.read(tmp_path / "a.faiss")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="there is no such file"):
        faissfile.read(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="cannot be the name of a file"):
        faissfile.read("a\0b")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidInput, match="not a plain file"):
            faissfile.read(path)
    with pytest.raises(StorageError, match="cannot read"):
        faissfile.read(saved(made("flat"), tmp_path / "a.faiss") / "below")


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def written(path: Path, ids=None, **how) -> Path:
    with replacing(path) as (out,):
        blocks = [CODES[:17], CODES[17:17], CODES[17:]]
        faissfile.write(out, ROWS, BITS, blocks, None if ids is None else [ids[:20], ids[20:]], **how)
    return path


def test_what_is_written_is_what_faiss_writes_to_the_byte(tmp_path):
    flat = written(tmp_path / "ours").read_bytes()
    assert flat == saved(made("flat"), tmp_path / "theirs").read_bytes()
    for name, around in (("IBMp", "IndexBinaryIDMap"), ("IBM2", "IndexBinaryIDMap2")):
        index = getattr(faiss, around)(faiss.IndexBinaryFlat(BITS))
        index.add_with_ids(CODES, OWN_IDS)
        ours = written(tmp_path / "ours", OWN_IDS, id_map=name).read_bytes()
        assert ours == saved(index, tmp_path / "theirs").read_bytes()


def test_faiss_reads_it_and_finds_what_bpr_finds(tmp_path):
    index = faiss.read_index_binary(str(written(tmp_path / "a.faiss")))
    distances, rows = index.search(ASKED, ROWS)
    expected_rows, expected = candidates_reference(CODES, ASKED, ROWS)
    np.testing.assert_array_equal(distances, expected)
    for row, ours in zip(rows, expected_rows, strict=True):
        assert sorted(row) == sorted(ours)
    by_id = faiss.read_index_binary(str(written(tmp_path / "b.faiss", OWN_IDS)))
    np.testing.assert_array_equal(by_id.search(ASKED, 1)[1][:, 0], OWN_IDS[index.search(ASKED, 1)[1][:, 0]])
    np.testing.assert_array_equal(by_id.reconstruct(int(OWN_IDS[33])), CODES[33])
