"""`bpr compare` on a tiny corpus: the tables, the files, what a second run does again, and what it refuses.

Real Faiss, real encoders, a real process for the memory; no time is asserted.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bpr
from bpr import baselines, bench, cli, compare, plots
from bpr.compare import BITS, FLOAT, ONE, How, Source, inputs, measure, rows
from bpr.compare.report import markdown, tables
from bpr.compare.resident import resident
from bpr.encoder import Encoder
from bpr.errors import InvalidInput, StorageError
from bpr.index import Planes
from bpr.passages import DuplicateId
from bpr.questions import Question, read_questions
from bpr.stages import search
from tiny_models import WORDS, backbone, make_model, write_tokenizer

ROWS, ASKED = 520, 30
QUIET: Callable[..., None] = lambda what, done, total: None  # noqa: E731
FLOAT_ROWS = [
    "DPR", "DPR + HNSW", "DPR + LSH", "DPR + PQ", "DPR, rotated signs", "DPR, 2 bits afterwards", "DPR, RaBitQ 1 bit",
    "DPR, RaBitQ 2 bits",
]  # fmt: skip


@pytest.fixture(autouse=True)
def hurry(monkeypatch, request):
    monkeypatch.setattr(bench, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(measure, "ROUNDS", 1)
    if not {"tables", "dies"} & {*request.function.__name__.split("_")}:  # a process for each index takes a second
        monkeypatch.setattr(measure._Work, "_resident", lambda *given: None)
    for name in ("BPR_DEBUG", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny_model) -> SimpleNamespace:
    """Passages, questions, three models and the vectors of all; not to be changed."""
    folder = tmp_path_factory.mktemp("world")
    dice = random.Random(1)
    passages = [
        {"id": f"p{row}", "title": dice.choice(WORDS), "text": " ".join(dice.choices(WORDS, k=12))}
        for row in range(ROWS)
    ]
    lines = [json.dumps(each) for each in passages]
    (folder / "p.jsonl").write_text("\n".join(lines) + "\n")
    asked = [
        {"question": " ".join(each["text"].split()[:6]), "answers": [" ".join(each["text"].split()[2:6])],
         "positives": [each["id"]]}
        for each in passages[:: ROWS // ASKED][:ASKED]
    ]  # fmt: skip
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, asked)) + "\n")
    for name, seed in (("float", 5), ("one", 7)):
        make_model(folder / name, seed=seed, planes=1)
    found = SimpleNamespace(
        folder=folder, passages=folder / "p.jsonl", questions=folder / "q.jsonl", bits=tiny_model,
        float=folder / "float", one=folder / "one",
    )  # fmt: skip
    for name, model in (("bits", tiny_model), ("float", found.float), ("one", found.one)):
        encoder = Encoder.open(model)
        np.save(folder / f"{name}-p.npy", encoder.passages([(each["title"], each["text"]) for each in passages]))
        np.save(folder / f"{name}-q.npy", encoder.questions([each["question"] for each in asked]))
        setattr(found, f"{name}_vectors", (folder / f"{name}-p.npy", folder / f"{name}-q.npy"))
    bpr.build(folder / "p.jsonl", folder / "p.bpr", model=tiny_model)
    found.bundle = folder / "p.bpr"
    return found


@pytest.fixture
def run(monkeypatch, capsys):
    """`bpr compare` in this process: exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bpr", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def ready(world: SimpleNamespace) -> list[object]:
    """The arguments of a run whose vectors are all there."""
    given = ["--float-vectors", *world.float_vectors, "--model", world.bits, "--model-vectors", *world.bits_vectors]
    return [world.passages, world.questions, *given]


def sides_of(world: SimpleNamespace, corpus: compare.Corpus, folder: Path, **more: Source) -> dict[str, compare.Side]:
    sources = {FLOAT: Source(vectors=world.float_vectors), BITS: Source(world.bits, world.bits_vectors), **more}
    return {name: compare.side(each, corpus, folder, name, say=QUIET) for name, each in sources.items()}


@pytest.fixture
def watched(monkeypatch) -> list[str]:
    """The rows that were measured, not taken from an earlier run."""
    seen: list[str] = []
    real = measure._Work._ranks

    def ranks(self, row, index, questions):
        seen.append(row.name)
        return real(self, row, index, questions)

    monkeypatch.setattr(measure._Work, "_ranks", ranks)
    return seen


# ── The whole command ────────────────────────────────────────────────────────────────────────────────────────────────


def test_tables_files_and_a_second_run(run, world, tmp_path, watched):
    out = tmp_path / "out"
    status, shown, err = run(*ready(world), "--one-plane", world.one, "-o", out)
    assert status == 0, err
    two, one = "BPR, two planes", "BPR, one plane"
    assert watched == [
        *FLOAT_ROWS,
        one, f"{one}, no rerank", f"{one}, no candidates", f"{one}, l = 200", f"{one}, l = 500",
        "BPR, Faiss binary flat",
        two, f"{two}, no rerank", f"{two}, no candidates", f"{two}, l = 200", f"{two}, l = 500",
    ]  # fmt: skip
    for title in ("Table 1", f"{two}, against each row", "Table 2", "l: candidates"):
        assert re.search(rf"^{re.escape(title)}", shown, re.M)
    report = json.loads((out / "compare.json").read_text())
    assert [row["name"] for row in report["rows"]] == watched
    assert (report["passages"], report["questions"], report["right"]) == (ROWS, ASKED, "a gold passage")
    text = (out / "compare.md").read_text()
    assert text.count("\n## ") == 4 and "recall-bytes.svg" in text
    for name in ("recall", "recall-bytes", "recall-time"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (out / f"{name}.svg").read_bytes()
    assert all(row["resident"] is None or abs(row["resident"]) < 1 << 28 for row in report["rows"])
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"rows", "vectors"}  # no index is left behind
    assert len(list((out / "rows").iterdir())) == len(watched)

    first = [row["ms_alone"] for row in report["rows"]]
    watched.clear()
    status, again, err = run(*ready(world), "--one-plane", world.one, "-o", out)
    assert (status, again, watched) == (0, shown, []), err
    assert [row["ms_alone"] for row in json.loads((out / "compare.json").read_text())["rows"]] == first


def test_without_a_one_plane_model_the_signs_are_a_row(run, world, tmp_path):
    status, shown, err = run(*ready(world), "-o", tmp_path / "out", "--top", 1, "--top", 5, "--json")
    assert status == 0, err
    report = json.loads(shown)
    names = [row["name"] for row in report["rows"]]
    assert "BPR, signs only" in names and "BPR, one plane" not in names
    assert any(note.startswith("signs only: the first plane") for note in report["notes"])
    assert report["top"] == [1, 5] and len(report["rows"][0]["recall"]) == 5
    status, quiet, err = run(*ready(world), "-o", tmp_path / "out", "--top", 1, "--top", 5, "--quiet")
    assert (status, err) == (0, "") and "Table 1" in quiet


def test_the_figures_are_those_of_bpr_search(world, tmp_path):
    """Top 1 and 20 of three rows, computed here from scratch; sizes that add up."""
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path)
    how, planned = How(20), rows.all_rows(sides, 20)
    results = compare.run(planned, sides, corpus, tmp_path, how, QUIET)
    report = compare.summary(results, corpus, sides, how, [1, 20], rows.main_row(sides))
    of = {row["name"]: row for row in report["rows"]}
    gold = np.arange(ROWS)[:: ROWS // ASKED][:ASKED, None]
    passages, asked = (np.load(path).astype(np.float64) for path in world.float_vectors)
    flat = np.argsort(-(asked @ passages.T), axis=1, kind="stable")
    with bpr.open(world.bundle, model=world.bits) as opened:
        vectors = np.load(world.bits_vectors[1])
        two = opened.rank(vectors, k=20).rows
        hamming = opened.rank(vectors, k=20, rerank=False).rows
    for name, found in (("DPR", flat), ("BPR, two planes", two), ("BPR, two planes, no rerank", hamming)):
        for k in (1, 20):
            assert of[name]["top"][str(k)]["mean"] == pytest.approx(100 * (found[:, :k] == gold).any(axis=1).mean())
    by = of["DPR"]["bpr_is_better_by"]["20"]["mean"]
    assert by == pytest.approx(of["BPR, two planes"]["top"]["20"]["mean"] - of["DPR"]["top"]["20"]["mean"])
    assert of["BPR, two planes"]["times_bpr_alone"] == 1
    assert of["BPR, two planes"]["bytes_a_passage"] == 16 and of["BPR, signs only"]["bytes_a_passage"] == 8
    assert of["DPR"]["bytes"] == pytest.approx(4 * 64 * ROWS, abs=200) and of["DPR"]["disk"] > of["DPR"]["bytes"]
    codes = {name: row["bytes"] - _overhead(row) for name, row in of.items() if name in ("DPR + LSH", "DPR + PQ")}
    assert codes == {"DPR + LSH": 16 * ROWS, "DPR + PQ": pytest.approx(16 * ROWS, abs=300)}  # at the code's size


def _overhead(row: dict) -> int:
    """What is there once, whatever the number of passages: the projection, the centroids."""
    return 4 * (65 + 65 * 128 + 128) if row["settings"]["index"] == "lsh" else 256 * 64 * 4


def test_only_what_changed_is_measured_again(world, tmp_path, watched):
    corpus = compare.corpus(world.passages, read_questions(world.questions))

    def go(folder: Path = tmp_path, depth: int = 20, links: int = 32, **more: Source) -> None:
        sides = sides_of(world, corpus, tmp_path, **more)
        watched.clear()
        compare.run(rows.all_rows(sides, depth, links=links), sides, corpus, folder, How(depth), QUIET)

    go()
    assert len(watched) == 8 + 2 + 1 + 2 + 2
    go()
    assert watched == []
    go(links=16)
    assert watched == ["DPR + HNSW"]
    go(depth=10)
    assert len(watched) == 15  # all of them look at other passages
    changed = tmp_path / "changed.npy"
    vectors = np.load(world.float_vectors[0])
    vectors[3, 5] += 0.25
    np.save(changed, vectors)
    go(depth=10, **{FLOAT: Source(vectors=(changed, world.float_vectors[1]))})
    assert watched == FLOAT_ROWS
    broken = tmp_path / "rows" / "table-1-dpr.json"
    broken.write_text(broken.read_text()[:100])  # as a full disk would leave it
    go(depth=10, **{FLOAT: Source(vectors=(changed, world.float_vectors[1]))})
    assert watched == ["DPR"]


def test_a_run_that_was_stopped_goes_on(world, tmp_path, watched, monkeypatch):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path)
    real = baselines.pq

    def stop(*given, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(baselines, "pq", stop)
    stopped = rows.all_rows(sides, 20)
    with pytest.raises(KeyboardInterrupt):
        compare.run(stopped, sides, corpus, tmp_path, How(20), QUIET)
    assert watched == ["DPR", "DPR + HNSW", "DPR + LSH"] and not list(tmp_path.glob(".index-*"))
    monkeypatch.setattr(baselines, "pq", real)
    (tmp_path / ".index-killed" / "index").mkdir(parents=True)  # a kill that Python does not see leaves it behind
    watched.clear()
    results = compare.run(rows.all_rows(sides, 20), sides, corpus, tmp_path, How(20), QUIET)
    assert not list(tmp_path.glob(".index-*"))
    assert watched[0] == "DPR + PQ" and [each["name"] for each in results[:4]] == FLOAT_ROWS[:4]


# ── Where vectors come from ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_encodes_once_and_goes_on_after_a_kill(world, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "PART_ROWS", 200)
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    calls, real = [], Encoder.passages

    def encode(self, pairs, **how):
        if len(calls) == 2:
            calls.append("killed")
            raise KeyboardInterrupt
        calls.append(len(pairs))
        return real(self, pairs, **how)

    monkeypatch.setattr(Encoder, "passages", encode)
    with pytest.raises(KeyboardInterrupt):
        compare.side(Source(world.float), corpus, tmp_path, FLOAT, say=QUIET)
    made = compare.side(Source(world.float), corpus, tmp_path, FLOAT, say=QUIET)
    assert calls == [200, 200, "killed", 120]  # the first two parts were kept
    np.testing.assert_array_equal(made.data, np.load(world.float_vectors[0]))
    np.testing.assert_array_equal(made.questions, np.load(world.float_vectors[1]))
    again = compare.side(Source(world.float), corpus, tmp_path, FLOAT, say=QUIET)
    assert len(calls) == 4 and again.fingerprint == made.fingerprint
    assert sorted(path.suffix for path in (tmp_path / "vectors").iterdir()) == [".npy", ".npy"]


def test_a_bundle_has_the_codes_already(world, tmp_path):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    ours = compare.side(Source(world.bits, world.bits_vectors), corpus, tmp_path, BITS, say=QUIET)
    theirs = compare.side(Source(world.bits, bundle=world.bundle), corpus, tmp_path, BITS, say=QUIET)
    assert ours.fingerprint == theirs.fingerprint and theirs.candidates == 2000
    np.testing.assert_array_equal(ours.planes.signs, theirs.planes.signs)


def test_the_bundle_goes_with_the_sample(run, world, tmp_path):
    how = ["--bundle", world.bundle, "--model", world.bits, "--float", world.float, "--sample", 25, "-k", 5, "--json"]
    status, out, err = run(world.passages, world.questions, *how, "-o", tmp_path / "out")
    assert status == 0, err
    report = json.loads(out)
    assert (report["passages"], report["questions"]) == (50, 25)
    assert "a sample: 50 of 520 passages, 25 of 30 questions" in report["notes"]
    assert [row["name"] for row in report["rows"] if "problem" in row] == ["DPR + PQ"]  # 256 centroids of 50 passages
    pq = next(line for line in (tmp_path / "out" / "compare.md").read_text().splitlines() if "| DPR + PQ |" in line)
    assert set(pq.split(" | ")[1:]) <= {"–", "– |"}
    status, again, _ = run(world.passages, world.questions, *how, "-o", tmp_path / "out")
    assert json.loads(again)["rows"] == report["rows"]


def test_a_sample_has_the_gold_passages_and_is_always_the_same(world):
    asked = read_questions(world.questions)
    one, two = (compare.corpus(world.passages, asked, sample=10) for _ in range(2))
    assert (one.rows == two.rows).all() and one.fingerprint == two.fingerprint
    assert len(one.questions) == 10 and len(one.passages) == 20
    ids = {passage.id for passage in one.passages}
    assert all({*question.gold} <= ids for question in one.questions)
    assert len(compare.corpus(world.passages, asked, sample=10_000).passages) == ROWS


# ── What is right ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_answers_count_where_they_are_asked_for(world, tmp_path):
    asked = read_questions(world.questions)
    gold, answer = (compare.corpus(world.passages, asked, by=by) for by in ("gold", "answer"))
    assert gold.fingerprint != answer.fingerprint and any("an answer stands" in note for note in answer.notes)
    sides = sides_of(world, answer, tmp_path)
    one = [row for row in rows.all_rows(sides, 20) if row.name in ("DPR", "BPR, two planes")]
    by_gold = compare.run(one, sides, gold, tmp_path / "gold", How(20), QUIET)
    by_answer = compare.run(one, sides, answer, tmp_path / "answer", How(20), QUIET)
    for ours, theirs in zip(by_gold, by_answer, strict=True):  # a gold passage holds its answer
        both = [(a, b) for a, b in zip(ours["ranks"], theirs["ranks"], strict=True) if a]
        assert all(0 < b <= a for a, b in both)


def test_questions_that_cannot_be_judged_alike_are_refused(world):
    mixed = [Question("1", "who?", ("homer",)), Question("2", "what?", (), {"p1": 1})]
    with pytest.raises(InvalidInput, match="--by"):
        compare.corpus(world.passages, mixed)
    with pytest.raises(InvalidInput, match="no gold passage of the 1 questions"):
        compare.corpus(world.passages, [Question("1", "who?", (), {"elsewhere": 1})])
    some = [Question("1", "who?", (), {"elsewhere": 1}), Question("2", "who?", (), {"p1": 1})]
    assert "1 of 2 questions have no gold passage" in compare.corpus(world.passages, some).notes[0]


def test_two_passages_with_one_id_are_refused(tmp_path):
    path = tmp_path / "twins.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b", "text": "x"}\n{"id": "a", "text": "y"}\n')
    with pytest.raises(DuplicateId):
        compare.corpus(path, [Question("1", "who?", ("homer",))])


# ── What cannot be right ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--float-vectors": ("bits-q", "float-q")}, "has 30 vectors, and there are 520 passages"),
        ({"--float-vectors": ("float-p", "float-p")}, "has 520 vectors, and there are 30 questions"),
        ({"--float-vectors": ("float-p", "narrow")}, "they must come from one model"),
        ({"--model-vectors": ("narrow-p", "narrow")}, "32 dimensions, and the model 'tiny' 64"),
        ({"--float-vectors": ("float-p", "nan")}, "contains NaN"),
        ({"--float-vectors": ("float-p", "none")}, "No such file"),
        ({"--top": (600,)}, "there are 520 passages: top 600 cannot be told"),
        ({"--one-plane": ("bits-model",)}, "has two planes"),
        ({"--kind": ("squad",)}, "SQuAD"),
    ],
)
def test_inputs_that_cannot_be_right(run, world, tmp_path, change, message):
    narrow = np.load(world.float_vectors[1])[:, :32]
    bad = np.load(world.float_vectors[1])
    bad[2, 2] = np.nan
    for name, array in (("narrow", narrow), ("nan", bad), ("narrow-p", np.load(world.float_vectors[0])[:, :32])):
        np.save(tmp_path / f"{name}.npy", array)

    def place(name: object) -> object:
        here = tmp_path / f"{name}.npy"
        return here if here.exists() else (world.folder / f"{name}.npy" if "vectors" in option else name)

    given = ready(world)
    for option, values in change.items():
        if option in given:
            at = given.index(option)
            given[at + 1 : at + 1 + len(values)] = map(place, values)
        else:
            given += [option, *(world.bits if value == "bits-model" else value for value in values)]
    status, out, err = run(*given, "-o", tmp_path / "out")
    assert (status, out) == (1, "") and message in err and err.count("\n") == 1


def test_wrong_usage(run, world, tmp_path):
    plain = [world.passages, world.questions, "-o", tmp_path / "out"]
    for more, message in (
        ([], "name a float model"),
        (["--float", "x", "--bundle", "b", "--model-vectors", "a", "b"], "leave out --model-vectors"),
        (["--float", "x", "--examples", "e"], "it goes with --train-ablations"),
    ):
        status, _, err = run(*plain, *more)
        assert status == 2 and message in " ".join(err.split())


def test_vectors_alone_are_no_bits(world, tmp_path):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    with pytest.raises(InvalidInput, match="how they become bits"):
        compare.side(Source(vectors=world.bits_vectors), corpus, tmp_path, BITS, say=QUIET)
    with pytest.raises(InvalidInput, match="name a model"):
        compare.side(Source(), corpus, tmp_path, FLOAT, say=QUIET)


def test_a_bundle_of_other_passages_is_refused(world, tmp_path):
    lines = world.passages.read_text().splitlines()
    for name, some in (("less", lines[:-1]), ("turned", [lines[1], lines[0], *lines[2:]])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(some) + "\n")
        corpus = compare.corpus(tmp_path / f"{name}.jsonl", read_questions(world.questions))
        with pytest.raises(InvalidInput, match=r"must be the same|another order"):
            compare.side(Source(world.bits, bundle=world.bundle), corpus, tmp_path, BITS, say=QUIET)


def test_sides_that_do_not_fit_the_corpus_are_refused(world, tmp_path):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path)
    planes = sides[BITS].planes
    few = compare.Side(
        "x", Planes(planes.signs[:5], planes.magnitudes[:5], planes.levels), sides[BITS].questions, 9, ""
    )
    wide = compare.Side("x", sides[FLOAT].data, sides[FLOAT].questions[:, :8], 9, "")
    for wrong, message in (({BITS: few}, "vectors of 5 passages"), ({FLOAT: wide}, "questions have 8 dimensions")):
        with pytest.raises(InvalidInput, match=message):
            compare.run(rows.all_rows(sides, 5), {**sides, **wrong}, corpus, tmp_path, How(5), QUIET)


def test_a_folder_that_cannot_be_written_is_a_storage_error(world, tmp_path):
    (tmp_path / "file").write_text("")
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path)
    with pytest.raises(StorageError):
        compare.run(rows.all_rows(sides, 5), sides, corpus, tmp_path / "file", How(5), QUIET)
    with pytest.raises(StorageError):
        compare.side(Source(world.float), corpus, tmp_path / "file", FLOAT, say=QUIET)


# ── Rows and reports ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_of_one_plane_is_the_main_row_if_it_is_all_there_is(world, tmp_path):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path, **{BITS: Source(world.one, world.one_vectors)})
    made = rows.all_rows(sides, 20)
    assert rows.main_row(sides) == "BPR, one plane"
    assert [row.name for row in made][8:10] == ["BPR, Faiss binary flat", "BPR, one plane"]
    assert measure.reference(made).name == "BPR, one plane"
    assert {row.make.keywords.get("size") for row in made} == {None, 8}  # the rivals get 64 bits too


def test_all_rows_that_rerank_have_the_same_candidates(world, tmp_path):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path, **{ONE: Source(world.one, world.one_vectors)})
    for given, expected in ((None, 2000), (300, 300), (5, 20)):
        made = [row for row in rows.all_rows(sides, 20, candidates=given) if row.table == rows.MAIN]
        assert {row.candidates for row in made if row.rerank} == {None, expected}
        assert {row.candidates for row in made if not row.rerank} == {20}
    names = [row.file for row in rows.all_rows(sides, 20)]
    assert len({*names}) == len(names) and all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_the_markdown_says_what_it_is_about(world, tmp_path, monkeypatch):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path)
    some = [row for row in rows.all_rows(sides, 20) if row.name in ("DPR", "BPR, two planes")]
    results = compare.run(some, sides, corpus, tmp_path, How(20), QUIET)
    report = compare.summary(results, corpus, sides, How(20), [1, 20], "BPR, two planes", ["a | note"])
    text = markdown(report)
    assert f"{ASKED} questions, {ROWS} passages; right is a gold passage." in text and "- a | note" in text
    first, against = tables(report)  # tables without rows are left out
    assert first.cells[0][:3] == ("", "top 1", "top 20") and "EM" not in first.cells[0]
    assert [row[0] for row in against.cells[1:]] == ["DPR"]
    results[0]["em"] = {"mean": 41.5, "low": 40.0, "high": 43.0}  # a column as soon as one row has it
    later = tables(compare.summary(results, corpus, sides, How(20), [1, 20], "BPR, two planes"))[0].cells
    assert later[0][3] == "EM" and [row[3] for row in later[1:]] == ["41.5 [40.0, 43.0]", "–"]
    monkeypatch.setattr(plots, "available", lambda: False)
    assert {path.suffix for path in compare.write(report, tmp_path)} == {".json", ".md"}


def test_memory_is_measured_where_the_system_tells(monkeypatch):
    grown = resident()
    assert grown is None or grown > 1 << 20
    monkeypatch.setattr(Path, "read_text", lambda *given, **how: (_ for _ in ()).throw(FileNotFoundError()))
    assert resident() is None


def test_a_process_that_dies_is_named(world, tmp_path, monkeypatch):
    corpus = compare.corpus(world.passages, read_questions(world.questions))
    sides = sides_of(world, corpus, tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InvalidInput, match="DPR: the process that measures its memory failed: no reason"):
        compare.run(rows.all_rows(sides, 5), sides, corpus, tmp_path, How(5), QUIET)


def test_a_final_index_and_codes_go_through_one_search(world):
    vectors, asked = (np.load(path) for path in world.float_vectors)
    for index in (baselines.flat(vectors), baselines.two_bits(vectors, 16)):
        assert search(index, index.questions(asked), 5, 50).rows.shape == (ASKED, 5)


# ── Ablations ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_ablation_is_a_recipe():
    from bpr.compare.ablations import BASE, VARIANTS
    from bpr.training.recipe import Recipe, changed

    made = {name: changed(Recipe(), {**BASE, **each}) for some in VARIANTS.values() for name, each in some.items()}
    assert [made[f"γ = {each}"].objective.gamma for each in (0.025, 0.05, 0.1, 0.2)] == [0.025, 0.05, 0.1, 0.2]
    assert [made[f"α = {each}"].objective.margin for each in (0, 1, 2, 4)] == [0, 1, 2, 4]
    losses = [(each.objective.candidates, each.objective.rerank) for each in [*made.values()][-4:]]
    assert losses == [("margin", True), ("cross-entropy", True), ("off", True), ("margin", False)]
    assert made["α = 2"] == made["L_cand by margin, and L_rerank"]  # trained once


def test_ablations_are_trained_once_and_printed(run, world, tmp_path, monkeypatch):
    from transformers.utils import logging

    from bpr.compare import ablations
    from bpr.training import run as training

    logging.disable_progress_bar()
    backbone().save_pretrained(tmp_path / "start")
    write_tokenizer(tmp_path / "start" / "tokenizer.json")
    recipe = ['start = "start"', "bits = 64", "batch = 8", "epochs = 1", "pool = 50", "[diet]", "question_length = 16"]
    (tmp_path / "small.toml").write_text("\n".join([*recipe, "passage_length = 32"]))
    asked = world.questions.read_text().splitlines()
    examples = [{**json.loads(line), "group": str(i % 6)} for i, line in enumerate(asked)]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
    some = {title: dict([*each.items()][-2:]) for title, each in ablations.VARIANTS.items()}
    monkeypatch.setattr(ablations, "VARIANTS", some)
    trained, real = [], training.train
    monkeypatch.setattr(training, "train", lambda *given, **how: trained.append(given[3].name) or real(*given, **how))
    monkeypatch.chdir(tmp_path)
    how = ["--train-ablations", "small.toml", "--examples", "e.jsonl", "-o", "out", "--sample", 10, "-k", 5]
    status, out, err = run(*ready(world), *how)
    assert status == 0, err
    assert trained == ["gamma=0.1,beta_end=none", "gamma=0.2,beta_end=none", "margin=2", "margin=4", "candidates=off",
                       "rerank=false"]  # fmt: skip
    for name in ("γ = 0.2", "α = 4", "without L_rerank", "average rank"):
        assert name in out
    assert "| without L_cand |" in (tmp_path / "out" / "compare.md").read_text()
    trained.clear()
    status, again, err = run(*ready(world), *how, "--json")
    assert (status, trained) == (0, []), err
    assert [len(lines) for lines in json.loads(again)["ablations"].values()] == [2, 2, 2]


def test_ablations_need_questions_that_are_held_out():
    from bpr.compare import ablations

    with pytest.raises(InvalidInput, match="no questions are held out"):
        ablations.train(None, SimpleNamespace(held=np.zeros(3, bool)), Path(), Path(), None)


# ── Readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_fills_the_em_column_and_table_3(world, run, tmp_path, tiny_reader, monkeypatch):
    from bpr.compare import reading
    from bpr.reader import Reader

    seen: list[int] = []
    real = Reader.read

    def read(self, question, passages, **how):
        seen.append(len(passages))
        assert len({each.id for each in passages}) == len(passages)  # each is read once, whichever rows found it
        return real(self, question, passages, **how)

    monkeypatch.setattr(Reader, "read", read)
    given = [*ready(world), "-k", 1, "-k", 20, "--reader", tiny_reader, "--reader", tiny_reader, "--read", 10]
    status, out, err = run(*given, "-o", tmp_path / "out")
    assert status == 0, err
    assert "Table 3: readers of what" in out and "EM: 10 questions, 20 passages read for each" in err
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    main = [row for row in found["rows"] if row["table"] == rows.MAIN and "problem" not in row]
    assert len(main) > 5 and all(0 <= row["em"]["mean"] <= 100 and row["em"]["questions"] == 10 for row in main)
    assert all("em" not in row and "best" not in row for row in found["rows"] if row["table"] != rows.MAIN)
    assert set(found["readers"]) == {"tiny reader", "tiny reader (2)"} == set(found["parameters"])
    assert found["readers"]["tiny reader"] == next(row["em"] for row in main if row["name"] == found["main"])
    count = found["parameters"]["tiny reader"]
    body = sum(each.numel() for each in backbone(places=96).parameters())
    assert body < count < 1.1 * body
    assert len(seen) == 10  # the second reader is the same, and its answers are there already
    seen.clear()
    status, _, _ = run(*given, "-o", tmp_path / "out")
    assert status == 0 and not seen
    assert reading._kept(tmp_path / "none") is None


def test_em_is_that_of_what_a_row_found(world, tmp_path, tiny_reader):
    from bpr.compare import reading
    from bpr.evaluation import exact_match
    from bpr.reader import Reader

    corpus = compare.corpus(world.passages, read_questions(world.questions))
    reader = Reader.open(tiny_reader)
    best = [[(7 * number + step) % ROWS for step in range(5)] for number in range(ASKED)]
    result = {"name": "x", "table": rows.MAIN, "best": best}
    found = reading.exact([result, {"name": "y", "table": rows.L}], corpus, reader, tmp_path)
    wanted = []
    for question, some in zip(corpus.questions, best, strict=True):
        answers = reader.answer(question.text, [corpus.passages[row] for row in some], least=0.0)
        wanted.append(exact_match(answers[0].text, question.answers))
    assert found == {"x": wanted}
    silent = compare.Corpus(
        corpus.passages, [Question("1", "who", (), {"p1": 1})], corpus.rows, corpus.asked, (1, 1), "gold"
    )
    with pytest.raises(InvalidInput, match="none of the questions has answers"):
        reading.exact([result], silent, reader, tmp_path)
