"""The hash index: what it gives is what the scan gives; what it takes, what it tells, what it refuses."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr import kernels
from bpr.codes import Questions, candidates_reference, pack
from bpr.errors import Cancelled, CorruptBundle, DeadlineExceeded, InvalidInput
from bpr.index import HashIndex, Index, ScanIndex, Tables, duplicates
from bpr.index.hash import MEASURED, NEVER_SCAN
from bpr.kernels import Cancel, Limits

RANDOM = np.random.default_rng(1)
CODES = RANDOM.integers(0, 256, (3000, 8), dtype=np.uint8)
LARGE = RANDOM.integers(0, 256, (3000, 8), dtype=np.uint8)
VECTORS = RANDOM.standard_normal((5, 64), np.float32)
MANY = RANDOM.integers(0, 256, (60_000, 48), dtype=np.uint8)  # enough that a look-up can win


def flipped(codes: np.ndarray, count: int) -> np.ndarray:
    """The same with so many bits of each changed."""
    bits = np.unpackbits(codes, axis=1)
    for row in bits:
        row[RANDOM.permutation(len(row))[:count]] ^= 1
    return np.packbits(bits, axis=1)


# ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("costs", [MEASURED, NEVER_SCAN])
def test_candidates_are_the_nearest_by_distance_and_row(costs) -> None:
    index: Index = HashIndex(CODES, costs=costs)
    assert len(index) == 3000
    assert not index.scores_are_final
    expected = candidates_reference(CODES, pack(VECTORS), 20)
    for questions in (pack(VECTORS), Questions(VECTORS), np.asfortranarray(pack(VECTORS))):
        rows, far = index.candidates(questions, 20)
        assert (rows.dtype, far.dtype) == (np.int64, np.int32)
        np.testing.assert_array_equal(rows, expected[0])
        np.testing.assert_array_equal(far, expected[1])


@pytest.mark.parametrize("costs", [MEASURED, NEVER_SCAN])
@pytest.mark.parametrize("live", [0, 1, 7, 3000])
@pytest.mark.parametrize("l", [1, 5, 4000])
def test_mask_and_more_than_there_is(costs, live: int, l: int) -> None:
    mask = np.zeros(3000, np.bool_)
    mask[RANDOM.permutation(3000)[:live]] = True
    rows, far = HashIndex(CODES, costs=costs).candidates(CODES[:3], l, mask=mask)
    assert rows.shape == far.shape == (3, min(l, live))
    expected = candidates_reference(CODES, CODES[:3], l, mask)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(far, expected[1])


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("costs", [MEASURED, NEVER_SCAN])
def test_few_rows(rows: int, costs) -> None:
    found, far = HashIndex(CODES[:rows], costs=costs).candidates(CODES[:1], 2)
    expected = candidates_reference(CODES[:rows], CODES[:1], 2)
    np.testing.assert_array_equal(found, expected[0])
    np.testing.assert_array_equal(far, expected[1])


def test_no_question() -> None:
    found = HashIndex(CODES).lookup(CODES[:0], 3)
    assert found.rows.shape == found.distances.shape == (0, 3)
    assert found.probes.shape == found.visited.shape == found.fell_back.shape == (0,)


def test_every_level_gives_the_same() -> None:
    questions = flipped(MANY[:8], 12)
    expected = kernels.scan(MANY, questions, 2)
    index = HashIndex(MANY, costs=NEVER_SCAN)
    for level in kernels.simd_levels():
        with kernels.using_simd(level):
            rows, far = index.candidates(questions, 2)
        np.testing.assert_array_equal(rows, expected[0])
        np.testing.assert_array_equal(far, expected[1])


def test_it_searches_as_any_index() -> None:
    two = {"magnitudes": LARGE, "levels": (0.5, 1.5)}
    found = bpr.search(HashIndex(CODES, **two), VECTORS, k=5, candidates=50)
    expected = bpr.search(ScanIndex(CODES, **two), VECTORS, k=5, candidates=50)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_equal_codes_come_in_the_order_of_rows() -> None:
    codes = np.tile(MANY[:1], (5000, 1))
    index = HashIndex(codes, costs=NEVER_SCAN)
    rows, far = index.candidates(flipped(codes[:1], 3), 7)
    assert rows.tolist() == [[0, 1, 2, 3, 4, 5, 6]]
    assert far.tolist() == [[3] * 7]


# ── what it took ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_near_duplicate_is_found_without_a_scan() -> None:
    index = HashIndex(MANY)
    for question in flipped(MANY[:40], 6):
        found = index.lookup(question[None], 1, threads=1)
        assert not found.fell_back[0]
        assert found.distances.tolist() == [[6]]
        assert 0 < found.probes[0] <= 64
        assert 0 < found.visited[0] < 1000


def test_strangers_are_left_to_the_scan_soon() -> None:
    strangers = RANDOM.integers(0, 256, (20, 48), dtype=np.uint8)
    for question in strangers:
        found = HashIndex(MANY, tables=12).lookup(question[None], 1, threads=1)
        assert found.fell_back[0]
        assert found.visited[0] * 3 * MEASURED.visit[0] < 0.1 * MEASURED.at(MANY.nbytes).scan()


def test_many_candidates_are_not_even_looked_for() -> None:
    found = HashIndex(MANY).lookup(MANY[:3], 1000)
    assert found.fell_back.all()
    assert not found.probes.any()
    assert not found.visited.any()


def test_a_batch_in_which_some_fall_back() -> None:
    strangers = RANDOM.integers(0, 256, (5, 48), dtype=np.uint8)
    questions = np.concatenate([flipped(MANY[:5], 2), strangers])[[0, 5, 1, 6, 2, 7, 3, 8, 4, 9]]
    found = HashIndex(MANY).lookup(questions, 1, threads=2)  # what a scan costs depends on them
    assert found.fell_back.tolist() == [False, True] * 5
    np.testing.assert_array_equal(found.rows, kernels.scan(MANY, questions, 1)[0])


def test_a_crowded_key_is_not_walked_through() -> None:
    codes = np.tile(MANY[:1], (50_000, 1))
    found = HashIndex(codes).lookup(codes[:1], 1)
    assert found.fell_back[0]
    assert found.visited[0] == 0


def test_a_look_up_that_is_given_up_on_its_way() -> None:
    """Near enough to set out for, and then the rings hold far more rows than the first keys said."""
    codes = MANY.copy()
    bits = Tables.build(codes, 12).bits
    near = np.unpackbits(codes[:1], axis=1)[0]
    crowd = np.unpackbits(codes[1000:41_000], axis=1)
    crowd[:, bits.ravel()] = near[bits.ravel()]
    crowd[np.arange(40_000)[:, None], bits[:, 0][None]] ^= 1  # one bit of every table away, and far elsewhere
    codes[1000:41_000] = np.packbits(crowd, axis=1)
    tables = Tables(bits, *kernels.build_tables(codes, bits))
    question = flipped(codes[:1], 30)
    found = HashIndex(codes, tables=tables).lookup(question, 1, threads=1)
    np.testing.assert_array_equal(found.rows, kernels.scan(codes, question, 1)[0])


def test_what_a_scan_costs() -> None:
    costs = MEASURED.at(10_000_000)
    assert costs.scan(1, 2) == costs.scan(1, 1) / 2
    assert costs.scan(64) < 64 * costs.scan(1)  # a batch shares its work
    small, large = MEASURED.at(1), MEASURED.at(1 << 40)
    assert (small.visit, large.visit) == MEASURED.visit
    assert small.visit < MEASURED.at(64 << 20).visit < large.visit


# ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tables_hold_every_row_under_its_key() -> None:
    tables = Tables.build(CODES, 5)
    assert tables.bits.shape == (5, 10)
    assert len(np.unique(tables.bits)) == 50
    all_bits = np.unpackbits(CODES, axis=1).astype(np.int64)
    for bits, starts, rows in zip(tables.bits, tables.starts, tables.rows, strict=True):
        keys = all_bits[:, bits] @ (1 << np.arange(9, -1, -1))
        np.testing.assert_array_equal(rows, np.argsort(keys, kind="stable"))
        np.testing.assert_array_equal(starts, np.searchsorted(np.sort(keys), np.arange(1025)))


def test_wide_keys_are_sorted_too() -> None:
    """More than the eleven bits that one pass of the sort takes; more than 2^11 rows in one key."""
    codes = MANY.copy()
    codes[:30_000] = codes[0]
    tables = Tables.build(codes, 2)
    assert tables.bits.shape[1] == 14
    all_bits = np.unpackbits(codes, axis=1).astype(np.int64)
    keys = all_bits[:, tables.bits[1]] @ (1 << np.arange(13, -1, -1))
    np.testing.assert_array_equal(tables.rows[1], np.argsort(keys, kind="stable"))


def test_bits_that_say_nothing_are_left_out() -> None:
    codes = CODES.copy()
    codes[:, 3] = 255
    assert not set(range(24, 32)) & set(Tables.build(codes, 4).bits.ravel().tolist())


def test_the_number_of_tables_follows_the_costs() -> None:
    chosen = Tables.build(MANY)
    assert 1 < len(chosen.bits) <= 384 // 14
    assert len(Tables.build(MANY, radius=4).bits) < len(chosen.bits)
    assert len(Tables.build(CODES[:50]).bits) == 1  # a scan of 50 codes costs nothing
    width = chosen.bits.shape[1]
    costs = MEASURED.at(MANY.nbytes)
    assert costs.reach(60_000, 4, width, 1.0) == -1
    assert costs.reach(60_000, 4, width, 1e5) < costs.reach(60_000, 4, width, 1e6) < costs.reach(60_000, 8, width, 1e6)
    assert costs.reach(60_000, 4, width, 1e12) == 4 * (width + 1) - 1  # every key of every table


def test_four_bytes_a_row_and_table() -> None:
    tables = Tables.build(MANY, 3)
    assert tables.rows.nbytes == 3 * 4 * len(MANY)
    assert tables.starts.nbytes <= 3 * 2 * len(MANY) + 12
    assert tables.nbytes == tables.rows.nbytes + tables.starts.nbytes + tables.bits.nbytes
    assert repr(tables) == f"Tables(3 over 14 bits, {tables.nbytes:,} bytes)"
    assert repr(HashIndex(MANY, tables=tables)) == f"HashIndex(60,000 rows, 384 bits, 1 plane, {tables!r})"
    assert "2 planes" in repr(HashIndex(CODES, LARGE, (0.5, 1.5), tables=1))


def test_tables_can_be_memory_mapped(tmp_path: Path) -> None:
    built = Tables.build(CODES, 4)
    for name in ("bits", "starts", "rows"):
        np.save(tmp_path / f"{name}.npy", getattr(built, name))
    mapped = Tables(*(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("bits", "starts", "rows")))
    index = HashIndex(CODES, tables=mapped, costs=NEVER_SCAN)
    assert np.shares_memory(index.tables.rows, mapped.rows)
    np.testing.assert_array_equal(index.candidates(CODES[:9], 3)[0], kernels.scan(CODES, CODES[:9], 3)[0])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"bits": np.zeros((4, 10), np.int32)}, InvalidInput, "bits of hash tables must be uint16 with two axes"),
        ({"rows": np.zeros(3000, np.uint32)}, InvalidInput, "rows of hash tables must be uint32"),
        ({"starts": np.zeros((4, 1025), np.float32)}, InvalidInput, "starts of hash tables must be uint32"),
        ({"bits": np.zeros((0, 10), np.uint16)}, InvalidInput, "over 1 to 24 bits each"),
        ({"bits": np.zeros((4, 25), np.uint16)}, InvalidInput, "over 1 to 24 bits each"),
        ({"starts": np.zeros((4, 1024), np.uint32)}, InvalidInput, r"need starts \[4, 1025\]"),
        ({"rows": np.zeros((3, 3000), np.uint32)}, InvalidInput, r"and rows \[4, n\]"),
        ({"bits": np.zeros((4, 10), np.uint16)}, CorruptBundle, "a bit is in two hash tables"),
        ({"starts": np.zeros((4, 1025), np.uint32)}, CorruptBundle, "do not hold every row"),
        ({"rows": np.zeros((4, 2999), np.uint32)}, CorruptBundle, "do not hold every row"),
    ],
)
def test_arrays_that_are_no_tables(change: dict, error: type, says: str) -> None:
    built = Tables.build(CODES, 4)
    arrays = {"bits": built.bits, "starts": built.starts, "rows": built.rows}
    with pytest.raises(error, match=says):
        Tables(**arrays | change)


def test_tables_of_other_codes() -> None:
    with pytest.raises(InvalidInput, match="the hash tables hold 3,000 rows"):
        HashIndex(CODES[:2000], tables=Tables.build(CODES, 4))
    with pytest.raises(InvalidInput, match="codes of 32 bits"):
        HashIndex(np.ascontiguousarray(CODES[:, :4]), tables=Tables.build(CODES, 6))
    with pytest.raises(CorruptBundle, match="not those of these codes"):
        HashIndex(LARGE, tables=Tables.build(CODES, 1))


@pytest.mark.parametrize(
    "broken", ["starts beyond the end", "starts descend", "rows beyond the end", "a row is missing"]
)
def test_corrupt_tables_are_told(broken: str) -> None:
    built = Tables.build(CODES, 4)
    starts, rows = built.starts.copy(), built.rows.copy()
    if broken == "starts beyond the end":
        starts[:, 1:-1] = 3001
    elif broken == "starts descend":
        starts[:, 1:-1] = starts[:, 1:-1][:, ::-1]
    elif broken == "rows beyond the end":
        rows[:] = 3000
    else:
        rows[:] = 5
    index = HashIndex(CODES, tables=built, costs=NEVER_SCAN)
    index.tables = Tables(built.bits, starts, rows)  # past the look at some of them when it is opened
    with pytest.raises(CorruptBundle, match="build them again"):
        index.candidates(CODES[:4], 3000)
    with pytest.raises(CorruptBundle, match="not those of these codes"):
        HashIndex(CODES, tables=index.tables)


@pytest.mark.parametrize("tables", [0, -1, 7])
def test_a_number_of_tables_that_cannot_be(tables: int) -> None:
    with pytest.raises(InvalidInput, match="can have 1 to 6 hash tables"):
        HashIndex(CODES, tables=tables)


def test_a_radius_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="radius must be at least 0"):
        Tables.build(CODES, radius=-1)


# ── what it refuses, and when it ends early ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("questions", "l", "says"),
    [
        (np.zeros((1, 4), np.uint8), 5, "the questions have 32 bits, the index has 64"),
        (np.zeros(8, np.uint8), 5, "codes must be uint8"),
        (CODES[:1], 0, "l must be at least 1"),
    ],
)
def test_questions_that_do_not_fit(questions, l: int, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        HashIndex(CODES).candidates(questions, l)


def test_a_mask_that_does_not_fit() -> None:
    with pytest.raises(InvalidInput, match=r"a mask must be bool\[3000\]"):
        HashIndex(CODES).candidates(CODES[:1], 1, mask=np.ones(5, np.bool_))


def test_planes_that_do_not_fit() -> None:
    with pytest.raises(InvalidInput, match="magnitudes and levels come together"):
        HashIndex(CODES, LARGE)


@pytest.mark.parametrize("costs", [MEASURED, NEVER_SCAN])
def test_deadline_and_cancel(costs) -> None:
    index, cancel = HashIndex(CODES, costs=costs), Cancel()
    with pytest.raises(DeadlineExceeded):
        index.candidates(CODES[:3], 5, deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        index.duplicates(3, deadline=time.monotonic() - 1)
    cancel.set()
    with pytest.raises(Cancelled):
        index.candidates(CODES[:3], 5, cancel=cancel)
    with pytest.raises(Cancelled):
        index.duplicates(3, cancel=cancel)
    with pytest.raises(Cancelled):
        Tables.build(CODES, limits=Limits(cancel=cancel))


# ── duplicates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_of_near_duplicates() -> None:
    codes = MANY[:5000].copy()
    codes[100], codes[4000] = flipped(codes[7:8], 2)[0], codes[7]
    codes[9:10] = flipped(codes[4999:], 3)
    assert [group.tolist() for group in duplicates(codes, 0)] == [[7, 4000]]
    assert [group.tolist() for group in duplicates(codes, 2)] == [[7, 100, 4000]]
    groups = HashIndex(codes, tables=1).duplicates(3)
    assert [group.tolist() for group in groups] == [[7, 100, 4000], [9, 4999]]
    assert groups[0].dtype == np.int64


def test_a_chain_is_one_group() -> None:
    bits = np.zeros((65, 64), np.uint8)
    for row in range(65):
        bits[row, :row] = 1  # each differs from the next in one bit, the first from the last in all
    order = RANDOM.permutation(65)
    groups = duplicates(np.packbits(bits, axis=1)[order], 1)
    assert [group.tolist() for group in groups] == [list(range(65))]


def test_a_row_that_is_masked_joins_nothing() -> None:
    bits = np.zeros((3, 16), np.uint8)
    bits[1, :2], bits[2, :4] = 1, 1
    codes = np.packbits(bits, axis=1)
    assert [group.tolist() for group in duplicates(codes, 2)] == [[0, 1, 2]]
    assert duplicates(codes, 2, mask=np.array([True, False, True])) == []
    assert duplicates(codes[:0], 2) == []


def test_a_million_copies_and_their_neighbours() -> None:
    """Equal codes count once, so this is not quadratic."""
    codes = np.tile(MANY[:2], (500_000, 1))
    codes[10::1000] = flipped(codes[10::1000], 1)
    groups = duplicates(codes, 2)
    assert sorted(map(len, groups)) == [500_000, 500_000]
    assert [int(group[0]) for group in groups] == [0, 1]


def test_all_bits_are_a_radius_too() -> None:
    assert [group.tolist() for group in duplicates(CODES[:40], 64)] == [list(range(40))]
    assert [group.tolist() for group in duplicates(CODES[:40], 10**9)] == [list(range(40))]


@pytest.mark.parametrize("radius", [-1, -(10**9)])
def test_no_such_radius(radius: int) -> None:
    with pytest.raises(InvalidInput, match="radius must be at least 0"):
        duplicates(CODES, radius)
