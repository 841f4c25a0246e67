"""The bench measures what it says: the peers give our results, the ratios are ratios. No time is asserted."""

import builtins
import sys
import time

import numpy as np
import pytest

from bpr import bench, kernels
from bpr.codes import hamming_reference
from bpr.errors import InvalidInput
from bpr.index import ScanIndex
from bpr.peers import FaissFlat, faiss, usearch_exact
from bpr.stages import search


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(bench, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(bench, "WAKE_SECONDS", 0)


@pytest.fixture(scope="module")
def data():
    return bench.Data.random(3000, 256)


def test_the_same_seed_gives_the_same_data(data):
    again, other = bench.Data.random(3000, 256), bench.Data.random(3000, 256, seed=1)
    assert (again.codes == data.codes).all() and (again.vectors == data.vectors).all()
    assert (other.codes != data.codes).any()
    assert data.codes.shape == (3000, 32) and data.vectors.shape == (512, 256)


@pytest.mark.parametrize("heap", [True, False])
def test_faiss_finds_our_distances(data, heap):
    asked = np.packbits(data.vectors[:7] > 0, axis=1)
    _, ours = kernels.scan(data.codes, asked, 50)
    rows, theirs = FaissFlat(data.codes).candidates(asked, 50, threads=2, heap=heap)
    assert (ours == theirs).all()
    assert (np.take_along_axis(hamming_reference(data.codes, asked), rows, axis=1) == theirs).all()


def test_usearch_finds_our_distances(data):
    for questions in (1, 5):
        asked = np.packbits(data.vectors[:questions] > 0, axis=1)
        _, ours = kernels.scan(data.codes, asked, 20)
        rows, theirs = usearch_exact(data.codes, asked, 20, threads=1)
        assert (ours == theirs).all() and rows.shape == (questions, 20)


def test_the_authors_path_gives_our_hits_up_to_ties(data):
    vectors = data.vectors[:5]
    ours = search(ScanIndex(data.codes), vectors, k=10, candidates=len(data.codes))
    theirs = FaissFlat(data.codes).two_stages(vectors, len(data.codes), 10, threads=1, heap=True)
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-5)
    assert (ours.rows == theirs.rows).mean() > 0.9


def test_everything_is_measured_in_turns():
    timings = list(bench.run(2000, 64, [1, 2], [1, 3], rounds=2))
    systems = {(t.what, t.system) for t in timings}
    assert {("candidates", "bpr"), ("candidates", "read once"), ("candidates", "faiss heap")} <= systems
    assert {
        ("two stages", "bpr"),
        ("two stages", "authors' path, counting"),
        ("candidates", bench.SLOW_PEER),
    } <= systems
    assert {(t.threads, t.questions) for t in timings} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert all(0 < t.best <= t.middle for t in timings)
    # one question's rerank is so short that it takes more rounds to have a median
    assert all(t.rounds == (20 if t.system == bench.RERANK_ALONE and t.questions == 1 else 2) for t in timings)
    assert timings[0].to_dict()["system"] == "bpr"


def test_settings_are_compared():
    timings = list(bench.run(2000, 64, [1], [1, 3], rounds=1))
    rows = bench.compared(timings)
    assert [(row.what, row.questions) for row in rows] == [
        ("candidates", 1),
        ("two stages", 1),
        ("candidates", 3),
        ("two stages", 3),
    ]
    assert set(rows[0].times) == {"faiss", "usearch exact", "read once"} and set(rows[1].times) == {"authors' path"}
    slowest = max(t.best for t in timings[:5] if t.system.startswith("faiss"))
    assert rows[0].times["faiss"] <= slowest / rows[0].ours


def test_after_a_peer_the_cores_are_woken_before_anyone_is_timed(monkeypatch):
    calls = []
    monkeypatch.setattr(bench, "settle", lambda threads: calls.append(f"settle {threads}"))
    systems = {name: lambda name=name: calls.append(name) for name in ("bpr", "faiss heap")}
    bench.Setting(threads=3, rounds=2).take_turns("candidates", systems)
    assert calls == ["bpr", "faiss heap", "settle 3"] * 2
    monkeypatch.undo()
    monkeypatch.setattr(bench, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(bench, "WAKE_SECONDS", 0.02)
    monkeypatch.setattr(kernels, "read_all", lambda codes, limits: calls.append(limits.threads))
    begun = time.perf_counter()
    bench.settle(2)
    assert time.perf_counter() - begun >= 0.03 and calls[6:] and {*calls[6:]} == {2}


def test_without_peers_only_we_are_measured(data):
    setting = bench.Setting(3000, 256, questions=2, rounds=1)
    alone = bench.compare_candidates(data, None, setting, slow_peers=False)
    assert [t.system for t in alone] == ["bpr", "read once"]
    assert [t.system for t in bench.compare_two_stages(data, None, setting)] == ["bpr", "bpr, rerank alone"]


@pytest.mark.parametrize("planes", [1, 2])
def test_each_rerank_comes_after_a_scan_and_takes_other_questions(data, monkeypatch, planes):
    calls, scan, rerank = [], kernels.scan, kernels.rerank

    def scanned(codes, asked, l, **how):
        found = scan(codes, asked, l, **how)
        calls.append(("scan", found[0]))
        return found

    def reranked(codes, magnitudes, levels, asked, rows, k, **how):
        assert (magnitudes is not None) == (levels is not None) == (planes == 2)
        calls.append(("rerank", rows))
        return rerank(codes, magnitudes, levels, asked, rows, k, **how)

    monkeypatch.setattr(kernels, "scan", scanned)
    monkeypatch.setattr(kernels, "rerank", reranked)
    large = bench.Data.random(3000, 256, seed=1).codes if planes == 2 else None
    [timing] = bench.rerank_alone("two stages", data, bench.Setting(3000, 256, questions=200, rounds=3), large)
    assert (timing.system, timing.rounds, timing.questions) == (bench.RERANK_ALONE, 3, 200)
    assert [name for name, _ in calls] == ["scan", "rerank"] * 3
    found, taken = [rows for _, rows in calls[::2]], [rows for _, rows in calls[1::2]]
    assert all((one == other).all() for one, other in zip(found, taken, strict=True))
    assert (taken[0] != taken[1]).any() and (taken[0] == taken[2]).all()  # 512 vectors are two such batches


def test_a_ratio_takes_the_best_of_the_other_side():
    def timing(system, best):
        return bench.Timing("candidates", system, 1, 8, 1, 1, best, best, 1)

    timings = [timing("bpr", 2.0), timing("faiss heap", 9.0), timing("faiss counting", 8.0)]
    assert bench.ratio(timings, "bpr", "faiss") == 4.0


def test_the_machine_is_described(monkeypatch):
    facts = bench.machine()
    assert facts["simd"] in kernels.simd_levels() and facts["numpy"] == np.__version__ and facts["processor"]
    monkeypatch.setattr(bench, "version", lambda name: (_ for _ in ()).throw(bench.PackageNotFoundError(name)))
    assert bench.machine()["faiss-cpu"] is None


def test_a_system_without_cpuinfo_is_described_too(monkeypatch):
    def no_file(path, *args, **how):
        raise FileNotFoundError(path)

    monkeypatch.setattr(builtins, "open", no_file)
    assert bench.machine()["processor"]


@pytest.mark.parametrize(("module", "call"), [("faiss", faiss), ("usearch.index", None)])
def test_a_missing_peer_says_what_to_install(monkeypatch, data, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    run = call or (lambda: usearch_exact(data.codes, data.codes[:1], 1, threads=1))
    with pytest.raises(InvalidInput, match=r"pip install .*\[baselines\]"):
        run()
