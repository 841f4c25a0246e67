"""Codes and results of other software: into bundles and out of them, from one layout to another, measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import bpr
from bpr.errors import EmptyBundle, InvalidInput, ModelMismatch
from bpr.interchange import arrays, codes, faissfile, jsonpieces, results, scores, writing
from bpr.interchange.results import Context, Result
from bpr.questions import Question

ROWS, BITS = 50, 64
VECTORS = np.random.default_rng(3).standard_normal((ROWS, BITS)).astype(np.float32)
ASKED = np.random.default_rng(4).standard_normal((5, BITS)).astype(np.float32)
CODES = bpr.pack(VECTORS)
NUMBERS = np.random.default_rng(5).permutation(900)[:ROWS]  # ids, in the order of the passages


def passages(ids=NUMBERS) -> list[dict]:
    return [{"id": str(each), "title": f"T{each}", "text": f"passage number {each}"} for each in ids]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A bundle of the vectors themselves."""
    path = tmp_path / "built.bpr"
    bpr.build(passages(), path, vectors=VECTORS)
    return path


def found(path: Path) -> list[list[tuple[str, float]]]:
    with bpr.open(path) as opened:
        return [[(hit.id, hit.score) for hit in hits] for hits in opened.search(vectors=ASKED, k=10)]


# ── Ready codes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["scan", "hash", "cells"])
def test_a_bundle_of_given_codes_finds_what_one_of_the_vectors_finds(tmp_path, built, kind):
    assert bpr.build(passages(), tmp_path / "a.bpr", codes=CODES, kind=kind) == ROWS
    if kind != "cells":
        assert found(tmp_path / "a.bpr") == found(built)
    np.save(tmp_path / "c.npy", CODES)
    bpr.build(passages(), tmp_path / "b.bpr", codes=tmp_path / "c.npy", kind=kind)
    assert found(tmp_path / "a.bpr") == found(tmp_path / "b.bpr")
    with bpr.open(tmp_path / "a.bpr") as opened:
        assert (opened.info["bits"], opened.info["planes"], opened.info["model"]) == (BITS, 1, None)


def test_vectors_can_be_added_to_a_bundle_of_given_codes(tmp_path, built):
    bpr.build(passages()[:40], tmp_path / "a.bpr", codes=CODES[:40])
    bpr.add(tmp_path / "a.bpr", passages()[40:], vectors=VECTORS[40:])
    assert found(tmp_path / "a.bpr") == found(built)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"codes": CODES[:-1]}, "50 passages but 49 codes"),
        ({"source": passages()[:-1]}, "49 passages but 50 codes"),
        ({"codes": CODES[0]}, "codes must be uint8"),
        ({"codes": CODES.astype(int)}, "codes must be uint8"),
        ({"vectors": VECTORS}, "leave out vectors"),
        ({"keep_vectors": "int8"}, "leave out vectors and keep_vectors"),
        ({"planes": 2}, "are for vectors of yours"),
        ({"codes": "nothing.npy"}, "nothing.npy"),
    ],
)
def test_codes_that_do_not_fit_leave_what_was_there(tmp_path, built, change, says):
    before = found(built)
    with pytest.raises(bpr.BprError, match=says):
        bpr.build(**{"source": passages(), "path": built, "codes": CODES, **change})
    assert found(built) == before


def test_codes_with_the_model_that_is_said_to_have_made_them_are_asked_in_words(tmp_path, tiny_model):
    bpr.build(passages(), tmp_path / "text.bpr", model=tiny_model)
    codes.out_of_bundle(tmp_path / "text.bpr", tmp_path / "c.npy")
    stored = arrays.read(tmp_path / "c.npy", tmp_path / "c.ids.txt")
    codes.into_bundle(stored, passages(), tmp_path / "given.bpr", model=tiny_model)
    for rows in (ROWS, ROWS + 1):
        if rows > ROWS:
            for name in ("text.bpr", "given.bpr"):  # of the model's two planes, each gets those that it has
                bpr.add(tmp_path / name, [{"id": "more", "text": "one passage more"}])
        with bpr.open(tmp_path / "text.bpr") as text, bpr.open(tmp_path / "given.bpr") as given:
            assert given.info["model"]["fingerprint"] == text.info["model"]["fingerprint"]
            assert (given.info["planes"], text.info["planes"]) == (1, 2)
            ours, theirs = (each.search("which passage?", k=rows, rerank=False) for each in (given, text))
            assert [hit.to_dict() for hit in ours] == [hit.to_dict() for hit in theirs]
            assert len(given) == rows


def test_a_model_of_another_width_is_refused(tmp_path, tiny_model):
    with pytest.raises(ModelMismatch, match=r"the codes have 32 bits, and the model .* makes 64"):
        bpr.build(passages(), tmp_path / "a.bpr", codes=CODES[:, :4], model=tiny_model)
    with pytest.raises(ModelMismatch, match="makes 64"):
        bpr.build(passages(), tmp_path / "a.bpr", codes=CODES[:, :4], model=bpr.Encoder.open(tiny_model))
    assert not (tmp_path / "a.bpr").exists()


# ── Faiss ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_index_of_the_authors_kind_becomes_a_bundle_that_finds_the_same(tmp_path, built):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(BITS))
    order = sorted(range(ROWS), key=lambda row: str(NUMBERS[row]))  # theirs: by id, as LMDB sorts it
    index.add_with_ids(CODES[order], NUMBERS[order])
    faiss.write_index_binary(index, str(tmp_path / "a.idx"))
    stored = faissfile.read(tmp_path / "a.idx")
    assert codes.into_bundle(stored, passages(), tmp_path / "a.bpr") == ROWS
    assert found(tmp_path / "a.bpr") == found(built)


def test_ids_that_count_passages(tmp_path, built):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(BITS))
    order = np.random.default_rng(6).permutation(ROWS)
    index.add_with_ids(CODES[order], order)
    faiss.write_index_binary(index, str(tmp_path / "a.faiss"))
    stored = faissfile.read(tmp_path / "a.faiss")
    with pytest.raises(InvalidInput, match=r"no code for the passage '\d+', but ids like '\d+'.*--rows"):
        codes.into_bundle(stored, passages(), tmp_path / "a.bpr")
    codes.into_bundle(stored, passages(), tmp_path / "a.bpr", by_row=True)
    assert found(tmp_path / "a.bpr") == found(built)
    with pytest.raises(InvalidInput, match="no code for the passage number '50'"):
        codes.PairedCodes(stored, by_row=True).codes_of([bpr.Passage("x", "", "")], 50)


def test_faiss_finds_in_an_exported_bundle_what_bpr_finds_by_hamming_distance(tmp_path, built):
    faiss = pytest.importorskip("faiss")
    bpr.delete(built, [str(NUMBERS[3]), str(NUMBERS[30])])
    bpr.add(built, [{"id": "1000", "text": "new"}], vectors=VECTORS[:1])
    flat = codes.out_of_bundle(built, tmp_path / "flat.faiss")
    assert flat.files == (tmp_path / "flat.faiss", tmp_path / "flat.ids.txt") and flat.rows == ROWS - 1
    mapped = codes.out_of_bundle(built, tmp_path / "map.index", id_map=True)
    assert mapped.files == (tmp_path / "map.index",) and mapped.left_out is None
    ids = (tmp_path / "flat.ids.txt").read_text().splitlines()
    by_row, by_id = (faiss.read_index_binary(str(tmp_path / name)) for name in ("flat.faiss", "map.index"))
    with bpr.open(built) as opened:
        questions = opened.questions(ASKED)
        rows, distances = opened.index.candidates(questions, 10)
        assert [passage.id for passage in opened.passages] == ids
    theirs, numbers = by_row.search(questions.codes, 10)
    np.testing.assert_array_equal(theirs, distances)
    np.testing.assert_array_equal(numbers[:, 0], rows[:, 0])
    outside, inside = by_id.search(questions.codes, 1)[1][:, 0], numbers[:, 0]
    assert [str(each) for each in outside] == [ids[row] for row in inside]


def test_a_bundle_of_cells_is_exported_row_by_row(tmp_path):
    bpr.build(passages(), tmp_path / "a.bpr", vectors=VECTORS, kind="cells")
    codes.out_of_bundle(tmp_path / "a.bpr", tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), CODES)


def test_both_planes_go_to_numpy_and_faiss_gets_the_signs_alone(tmp_path):
    bpr.build(passages(), tmp_path / "a.bpr", vectors=VECTORS, planes=2)
    done = codes.out_of_bundle(tmp_path / "a.bpr", tmp_path / "a.npy")
    assert [each.name for each in done.files] == ["a.npy", "a.magnitudes.npy", "a.ids.txt"]
    with bpr.open(tmp_path / "a.bpr") as opened:
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), opened.index.planes.signs)
        np.testing.assert_array_equal(np.load(tmp_path / "a.magnitudes.npy"), opened.index.planes.magnitudes)
    assert "magnitudes" in codes.out_of_bundle(tmp_path / "a.bpr", tmp_path / "a.faiss").left_out


def test_exports_that_cannot_be_are_refused_and_leave_nothing(tmp_path, built):
    bpr.build([{"id": "x", "text": "a"}], tmp_path / "named.bpr", vectors=VECTORS[:1])
    bpr.build([{"id": "a\nb", "text": "a"}], tmp_path / "lines.bpr", vectors=VECTORS[:1])
    bpr.build([{"id": "9" * 19, "text": "a"}], tmp_path / "large.bpr", vectors=VECTORS[:1])
    for name, target, how, says in (
        ("built.bpr", "a.txt", {}, "the suffix says what to write"),
        ("built.bpr", "a.npy", {"id_map": True}, "an array has no map of ids"),
        ("named.bpr", "a.faiss", {"id_map": True}, "'x' has an id that is no whole number"),
        ("large.bpr", "a.faiss", {"id_map": True}, "no whole number of 64 bits"),
        ("lines.bpr", "a.npy", {}, "holds a line end"),
    ):
        with pytest.raises(InvalidInput, match=says):
            codes.out_of_bundle(tmp_path / name, tmp_path / target, **how)
    bpr.delete(tmp_path / "named.bpr", "x")
    with pytest.raises(EmptyBundle, match="no passages, so it has no codes"):
        codes.out_of_bundle(tmp_path / "named.bpr", tmp_path / "a.npy")
    assert not list(tmp_path.glob("*a.*"))


def test_blocks_change_nothing(tmp_path, built, monkeypatch):
    monkeypatch.setattr("bpr.codes.BLOCK_ROWS", 7)
    monkeypatch.setattr("bpr.given.BLOCK_ROWS", 7)
    for name, how in (("a.npy", {}), ("a.faiss", {}), ("b.faiss", {"id_map": True})):
        codes.out_of_bundle(built, tmp_path / name, **how)
        is_array = name.endswith(".npy")
        stored = arrays.read(tmp_path / name, tmp_path / "a.ids.txt") if is_array else faissfile.read(tmp_path / name)
        np.testing.assert_array_equal(stored.take(np.arange(ROWS)), CODES)
        told: list[tuple[str, int, int | None]] = []
        codes.into_bundle(stored, passages(), tmp_path / "again.bpr", progress=lambda *said, to=told: to.append(said))
        assert found(tmp_path / "again.bpr") == found(built)
        assert {("reading passages", 7, ROWS), ("reading passages", ROWS, ROWS)} <= {*told}


# ── numpy and sentence-transformers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("precision", ["ubinary", "binary"])
def test_both_of_sentence_transformers_kinds_of_codes(tmp_path, built, precision):
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    np.save(tmp_path / "c.npy", quantization.quantize_embeddings(VECTORS, precision=precision))
    stored = arrays.read(tmp_path / "c.npy")
    assert (stored.kind, len(stored), stored.bits) == (precision, ROWS, BITS)
    np.testing.assert_array_equal(stored.take(np.arange(ROWS)), CODES)
    codes.into_bundle(stored, passages(), tmp_path / "c.bpr")
    assert found(tmp_path / "c.bpr") == found(built)


@pytest.mark.parametrize("prefix", ["", "p"])
def test_codes_in_any_order_find_their_passages_by_id(tmp_path, built, prefix):
    order = np.random.default_rng(6).permutation(ROWS)
    np.save(tmp_path / "c.npy", np.asfortranarray(CODES[order]))
    (tmp_path / "ids.txt").write_text("".join(f"{prefix}{NUMBERS[row]}\r\n" for row in order))
    stored = arrays.read(tmp_path / "c.npy", tmp_path / "ids.txt")
    assert isinstance(stored.ids, list if prefix else np.ndarray)
    codes.into_bundle(stored, passages([f"{prefix}{each}" for each in NUMBERS]), tmp_path / "c.bpr")
    assert [[each.removeprefix("p") for each, _ in hits] for hits in found(tmp_path / "c.bpr")] == [
        [each for each, _ in hits] for hits in found(built)
    ]
    with pytest.raises(InvalidInput, match="has no code for the passage 'x'"):
        codes.into_bundle(stored, [*passages()[:0], {"id": "x", "text": "a"}], tmp_path / "d.bpr")


def test_a_number_with_zeros_before_it_is_another_id():
    assert [arrays.whole_number(each) for each in ("7", "-7", "0")] == [7, -7, 0]
    for each in ("007", "+7", "-0", "", "7.0", "٧", "9223372036854775808", "1" * 30):
        assert arrays.whole_number(each) is None
    assert arrays.whole_number("-9223372036854775808") == -(2**63)


@pytest.mark.parametrize(
    ("array", "ids", "says"),
    [
        (VECTORS, None, r"has float32\[50, 64\]; codes are uint8"),
        (CODES[0], None, r"has uint8\[8\]"),
        (np.zeros((2, 600), np.uint8), None, "1 to 512"),
        (CODES, "1\n2\n", "has 2 ids, and .* 50 codes"),
        (CODES[:2], "1\n\n", "line 2: an empty line where the id of row 1"),
        (CODES[:2], "1\n1\n", "two codes have the id '1'"),
        (CODES[:2], "a\na\n", "two codes have the id 'a'"),
    ],
)
def test_arrays_that_are_no_codes_and_ids_that_do_not_fit(tmp_path, array, ids, says):
    np.save(tmp_path / "c.npy", array)
    if ids is not None:
        (tmp_path / "ids.txt").write_text(ids)
    with pytest.raises(InvalidInput, match=says):
        codes.PairedCodes(arrays.read(tmp_path / "c.npy", None if ids is None else tmp_path / "ids.txt"))


def test_names_do_not_count_passages(tmp_path):
    np.save(tmp_path / "c.npy", CODES[:2])
    (tmp_path / "ids.txt").write_text("a\nb\n")
    with pytest.raises(InvalidInput, match="are no numbers"):
        codes.PairedCodes(arrays.read(tmp_path / "c.npy", tmp_path / "ids.txt"), by_row=True)


# ── Results ──────────────────────────────────────────────────────────────────────────────────────────────────────────

DPR = [
    {
        "question": "who wrote the Iliad?",
        "answers": ["Homer"],
        "ctxs": [
            {"id": "7", "title": "Troy", "text": "Troy burned.", "score": "81.5", "has_answer": False},
            {"id": "wiki:8", "title": "Homer", "text": "Homer wrote the Iliad.", "score": "80.25", "has_answer": True},
        ],
    },
    {"question": "what burned?", "answers": ["Troy"], "ctxs": [{"id": 7, "title": "Troy", "text": "Troy burned."}]},
]
# As its convert_trec_run_to_dpr_retrieval_run writes it, with and without --store-raw.
PYSERINI = {
    "0": {
        "question": "who wrote the Iliad?",
        "answers": ["Homer"],
        "contexts": [
            {"docid": "7", "score": "81.5", "text": '"Troy"\nTroy burned.', "has_answer": False},
            {"docid": "wiki:8", "score": "80.25", "text": "Homer\nHomer wrote the Iliad.", "has_answer": True},
        ],
    },
    "1": {
        "question": "what burned?",
        "answers": ["Troy"],
        "contexts": [{"docid": "7", "score": "3", "has_answer": True}],
    },
}
TREC = "q1 Q0 7 1 81.5 name\nq1 Q0 wiki:8 2 80.25 name\n\nq2 Q0 7 1 3 name\n"
HOMER = (
    Context("7", 81.5, "Troy", "Troy burned.", False),
    Context("wiki:8", 80.25, "Homer", "Homer wrote the Iliad.", True),
)


def put(path: Path, value: object, **how) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, **how), encoding="utf-8")
    return path


@pytest.mark.parametrize("indent", [None, 4])
def test_results_of_dpr(tmp_path, indent):
    first, second = results.read(put(tmp_path / "r.json", DPR, indent=indent))
    assert first == Result("1", "who wrote the Iliad?", ("Homer",), HOMER, True)
    assert second.contexts == (Context("7", 1.0, "Troy", "Troy burned."),)


@pytest.mark.parametrize("indent", [None, 4])
def test_results_of_pyserini(tmp_path, indent):
    path = put(tmp_path / "r.json", PYSERINI, indent=indent)
    assert results.recognised(path) == "pyserini"
    first, second = results.read(path)
    assert first == Result("0", "who wrote the Iliad?", ("Homer",), HOMER)
    assert second == Result("1", "what burned?", ("Troy",), (Context("7", 3.0, has_answer=True),))


@pytest.mark.parametrize("as_lines", [True, False])
def test_results_of_fid(tmp_path, as_lines):
    records = [{**DPR[0], "id": 12, "target": "Homer"}, {"question": "q", "target": "a", "ctxs": [{"text": "t"}]}]
    path = put(tmp_path / "r.jsonl", "".join(json.dumps(each) + "\n" for each in records) if as_lines else records)
    assert results.recognised(path) == ("fid" if as_lines else "dpr")
    first, second = results.read(path)
    assert first == Result("12", "who wrote the Iliad?", ("Homer",), HOMER)
    assert second == Result("2", "q", ("a",), (Context("", 1.0, "", "t"),), True)


def test_a_trec_run_is_ranked_by_score_also_packed(tmp_path):
    (tmp_path / "run.gz").write_bytes(gzip.compress(TREC.replace("81.5", "1e-3").encode()))
    first, second = results.read(tmp_path / "run.gz")
    assert first == Result("q1", "", (), (Context("wiki:8", 80.25), Context("7", 0.001)))
    assert second.id == "q2"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "does not look like results"),
        ("hello", "does not look like results"),
        ("[]", "holds no questions"),
        ("{}", "holds no questions"),
        ("[1]", "character 1: '{' should stand here, not '1'"),
        ("[{} {}]", 'question 1: "ctxs" is missing'),
        ('[{"question": "a", "ctxs": []}, {"a": }]', "not valid JSON"),
        ('[{"question": "a", "ctxs": []}', "']' should stand here, not 'the end of the file'"),
        ('[{"question": "a", "ctxs": []}] x', "something stands behind the end"),
        ('[{"question": 3, "ctxs": []}]', 'question 1: "question" must be a string, not int'),
        ('[{"question": "a", "ctxs": [3]}]', "passage 1 must be a JSON object, not int"),
        ('[{"question": "a", "ctxs": [{"id": []}]}]', '"id" must be a string'),
        ('[{"question": "a", "ctxs": [{"id": "\\ud800"}]}]', "half a surrogate pair"),
        ('[{"question": "a", "ctxs": [{"id": "1", "score": "x"}]}]', "must be a number, not 'x'"),
        ('[{"question": "a", "ctxs": [{"id": "1", "score": true}]}]', "must be a number, not bool"),
        ('[{"question": "a", "ctxs": [{"id": "1", "score": NaN}]}]', "is nan, which ranks nothing"),
        ('[{"question": "a", "ctxs": [{"id": "1", "score": 1' + "0" * 400 + "}]}]", "question 1: "),
        ('[{"question": "a", "ctxs": [{"id": "1", "has_answer": 1}]}]', "must be true or false"),
        ('[{"question": "a", "ctxs": [{"id": "1"}, {"id": "1"}]}]', "'1' stands twice"),
        ('[{"id": 1, "question": "a", "ctxs": []}, {"id": "1", "question": "b", "ctxs": []}]', "that of .* question 1"),
        ('{"1": {"question": "a", "contexts": {}}}', '"contexts" must be a list, not dict'),
        ('{"1": {"contexts": []}, "1": {"contexts": []}}', "the question id '1' is that of"),
        ('{"1": ' + 100_000 * '{"a":', "too deep"),
        ("q Q0 d 1 2 name\nq Q0 d 1", "line 2: must be question id"),
        ("q Q0 d 1 x name", 'line 1: "score" of passage 1 must be a number'),
        ("a Q0 d 1 2 n\nb Q0 d 1 2 n\na Q0 e 1 2 n", "line 3: the question id 'a' is that of .*line 1 already"),
        ("a Q0 d 1 2 n\na Q0 d 2 1 n", "'d' stands twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path, content, says):
    with pytest.raises(InvalidInput, match="results") as error:
        list(results.read(put(tmp_path / "results", content)))
    assert says.split(".*")[0] in str(error.value) and says.split(".*")[-1] in str(error.value)


def test_a_value_without_an_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonpieces, "LONGEST_VALUE", 100)
    monkeypatch.setattr("bpr.textfiles.PIECE_BYTES", 64)
    with pytest.raises(InvalidInput, match="no value ends within 100 characters"):
        list(results.read(put(tmp_path / "r.json", '[{"a": "' + "x" * 1000)))


def test_text_that_is_not_utf8_is_refused_with_the_byte(tmp_path, monkeypatch):
    monkeypatch.setattr("bpr.textfiles.PIECE_BYTES", 5)
    (tmp_path / "r.json").write_bytes('[{"questiön": "'.encode() + b'\xff"}]')
    with pytest.raises(InvalidInput, match="byte 16: 0xff is not UTF-8"):
        list(results.read(tmp_path / "r.json", "dpr"))


def test_kinds_that_there_are_not(tmp_path):
    for call in (lambda: results.read(tmp_path / "a", "word"), lambda: writing.write([], tmp_path / "a", "word")):
        with pytest.raises(InvalidInput, match="'word' is no kind of results"):
            call()


def test_dpr_to_pyserini_and_back_is_the_same(tmp_path):
    count = writing.write(results.read(put(tmp_path / "a.json", DPR)), tmp_path / "b.json", "pyserini")
    assert count == writing.Count(2, 3)
    written = json.loads((tmp_path / "b.json").read_text())
    assert written["1"]["contexts"] == [
        {"docid": "7", "score": "81.5", "text": "Troy\nTroy burned.", "has_answer": False},
        {"docid": "wiki:8", "score": "80.25", "text": "Homer\nHomer wrote the Iliad.", "has_answer": True},
    ]
    for each in written.values():  # how Pyserini's evaluation takes them apart
        assert all(len(context["text"].split("\n")) == 2 for context in each["contexts"])
    assert written["2"]["contexts"][0]["has_answer"] is True  # nobody had said: it is in the text
    writing.write(results.read(tmp_path / "b.json"), tmp_path / "c.json", "dpr")
    assert json.loads((tmp_path / "c.json").read_text())[0] == DPR[0]


def test_line_ends_in_texts_become_spaces_for_pyserini(tmp_path):
    result = Result("1", "q", ("c",), (Context("7", 1.0, "a\nb", "x\r\nc"),))
    writing.write([result], tmp_path / "a.json", "pyserini")
    assert json.loads((tmp_path / "a.json").read_text())["1"]["contexts"][0] == {
        "docid": "7",
        "score": "1",
        "text": "a b\nx c",
        "has_answer": True,
    }


def test_fid_gets_ids_and_scores_that_it_can_sort(tmp_path):
    contexts = tuple(Context(str(score), score, "t", "x") for score in (100.0, 20.0, 3.0))
    writing.write([Result("q7", "q", ("a",), contexts)], tmp_path / "a.json", "fid")
    (entry,) = json.loads((tmp_path / "a.json").read_text())
    assert (entry["id"], entry["answers"], "target" in entry) == ("q7", ["a"], False)
    scores_ = [each["score"] for each in entry["ctxs"]]
    assert scores_ == sorted(scores_, reverse=True) == [100.0, 20.0, 3.0]


def test_pyserini_without_texts_as_its_own_converter_writes_it(tmp_path):
    found_ = [Result("1", "q", ("a",), (Context("7", 1.0, has_answer=True), Context("8", 0.5)))]
    writing.write(found_, tmp_path / "a.json", "pyserini")
    assert json.loads((tmp_path / "a.json").read_text())["1"]["contexts"] == [
        {"docid": "7", "score": "1", "has_answer": True},
        {"docid": "8", "score": "0.5"},
    ]


def test_a_trec_run_with_questions_and_a_bundle_is_all_that_dpr_needs(tmp_path):
    texts = [
        {"id": "7", "title": "Troy", "text": "Troy burned."},
        {"id": "wiki:8", "title": "Homer", "text": HOMER[1].text},
    ]
    bpr.build(texts, tmp_path / "a.bpr", vectors=VECTORS[:2])
    asked = [Question("q2", "what burned?", ("Troy",)), Question("q1", "who wrote the Iliad?", ("Homer",))]
    path = put(tmp_path / "run.trec", TREC)
    with pytest.raises(InvalidInput, match=r"do not say what the question 'q1' is: .*--questions"):
        writing.write(results.read(path), tmp_path / "r.json", "dpr")
    matched = results.Matched(asked)
    with pytest.raises(InvalidInput, match=r"no text of the passage '7': .*--bundle"):
        writing.write((each for _, each in matched.pairs(results.read(path))), tmp_path / "r.json", "dpr")
    assert not (tmp_path / "r.json").exists()
    with bpr.open(tmp_path / "a.bpr") as opened:
        full = results.with_texts(results.read(path), opened.passages)
        writing.write((each for _, each in matched.pairs(full)), tmp_path / "r.json", "dpr")
        assert json.loads((tmp_path / "r.json").read_text())[0] == DPR[0]
        strange = [Result("1", "q", (), (Context("nobody", 1.0),))]
        with pytest.raises(InvalidInput, match="the bundle has no passage 'nobody'"):
            list(results.with_texts(strange, opened.passages))


def test_what_has_no_id_cannot_become_a_trec_run(tmp_path):
    for kind in ("trec", "pyserini"):
        with pytest.raises(InvalidInput, match="passage 1 of the question '1' has no id"):
            writing.write([Result("1", "q", (), (Context("", 1.0, "", "t"),))], tmp_path / "a", kind)


# ── Scores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_are_measured_by_the_answers_that_they_have(tmp_path):
    done = scores.score(results.read(put(tmp_path / "a.json", DPR)))
    assert done.run.answer.tolist() == [2, 1] and done.run.depth == 2
    assert done.warnings == ["the results have 2 passages of a question at most: MRR and nDCG@10 see no more"]
    assert done.run.summary(done.questions, [1])["top 1, answer"]["mean"] == 50


def test_texts_are_looked_into_whatever_the_results_say(tmp_path):
    wrong = [{**DPR[0], "ctxs": [{**each, "has_answer": not each["has_answer"]} for each in DPR[0]["ctxs"]]}]
    assert scores.score(results.read(put(tmp_path / "a.json", wrong))).run.answer.tolist() == [2]


def test_without_texts_what_the_results_say_counts_and_a_warning_tells(tmp_path):
    done = scores.score(results.read(put(tmp_path / "a.json", PYSERINI)))
    assert done.run.answer.tolist() == [2, 1]
    assert "of 1 questions the results have no texts: what they say of answers (has_answer) counts" in done.warnings


def test_a_run_is_measured_by_gold_in_the_order_of_the_questions(tmp_path):
    asked = [
        Question("q2", "b", gold={"7": 1}),
        Question("none", "c", gold={"7": 1}),
        Question("q1", "a", gold={"wiki:8": 2}),
    ]
    lines = TREC + "q9 Q0 7 1 3 name\n"
    done = scores.score(results.read(put(tmp_path / "run", lines)), asked)
    assert done.run.gold.tolist() == [1, 0, 2] and done.questions == asked
    assert done.run.ndcg.tolist() == pytest.approx([1, 0, 1 / np.log2(3)])
    assert "1 questions have no results: nothing right was found for them" in done.warnings
    assert "1 results are of questions that are not asked, and are left out" in done.warnings


@pytest.mark.parametrize(
    ("value", "asked", "says"),
    [
        (TREC, None, r"no answers to the question 'q1'.*--questions"),
        (TREC, [Question("q1", "a", ("x",))], r"'q1' have neither texts nor has_answer.*--bundle"),
        (
            TREC,
            [Question("7", "a", ("x",))],
            r"none of the 2 results is of one of the 1 questions, whose ids are like '7'",
        ),
        (DPR, [Question("x", "another?", ("x",))], "is 'who wrote the Iliad[?]' in the results and 'another[?]'"),
        ([{**DPR[0], "ctxs": []}], None, "nothing was found for any of the questions"),
    ],
)
def test_results_that_cannot_be_measured(tmp_path, value, asked, says):
    with pytest.raises(InvalidInput, match=says):
        scores.score(results.read(put(tmp_path / "a", value)), asked)


def test_results_without_ids_are_matched_by_number(tmp_path):
    asked = [Question("x", "who wrote the Iliad?", ("burned",)), Question("y", "what burned?", ("Troy",))]
    assert scores.score(results.read(put(tmp_path / "a", DPR)), asked).run.answer.tolist() == [1, 1]
    one = scores.score(results.read(put(tmp_path / "a", DPR)), asked[:1])
    assert one.run.answer.tolist() == [1] and "1 results are of questions that are not asked" in one.warnings[-1]
