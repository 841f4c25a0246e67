"""Text to vectors on either engine: the same bits alone, in any company, order and number of threads."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bpr import model as models
from bpr.encoder import Encoder, Tokens
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.kernels import Cancel
from bpr.pieces import CHARACTERS_PER_TOKEN
from tiny_models import BITS, CLS, LENGTH, SEP, WORDS, make_model

RANDOM = np.random.default_rng(5)


def some_text(words: int) -> str:
    return " ".join(RANDOM.choice(WORDS, words))


PAIRS = [(some_text(2) if row % 3 else "", some_text(int(RANDOM.integers(1, 60)))) for row in range(40)]
QUESTIONS = [some_text(int(RANDOM.integers(1, 20))) for _ in range(20)]


@pytest.fixture(scope="module", params=["bpr", "onnxruntime"])
def encoder(tiny_model: Path, request: pytest.FixtureRequest) -> Encoder:
    return Encoder.open(tiny_model, engine=request.param)


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    """A model folder to be changed."""
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def same(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype == np.float32
    np.testing.assert_array_equal(one, other)


# ── vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_gets_the_same_bits_alone_and_in_any_company(encoder: Encoder) -> None:
    for encode, texts in ((encoder.passages, PAIRS), (encoder.questions, QUESTIONS)):
        together = encode(texts)
        assert together.shape == (len(texts), BITS)
        same(np.concatenate([encode([text]) for text in texts]), together)
        same(encode(texts[::-1])[::-1], together)
        order = RANDOM.permutation(len(texts))
        same(encode([texts[row] for row in order]), together[order])
        for threads in (1, 2, 3, 7):
            same(encode(texts, threads=threads), together)
        assert len(np.unique(together > 0, axis=0)) > len(texts) // 2  # and it is not the same for all


def test_many_threads_share_an_encoder(tiny_model: Path) -> None:
    shared = Encoder.open(tiny_model, threads=2)
    expected, found = Encoder.open(tiny_model).passages(PAIRS), []
    threads = [threading.Thread(target=lambda: found.append(shared.passages(PAIRS))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        same(each, expected)
    assert len(found) == 5


def test_the_two_sides_differ(encoder: Encoder) -> None:
    assert not np.allclose(encoder.questions(["homer wrote"]), encoder.passages([("", "homer wrote")]))


def test_a_title_counts_and_an_empty_one_is_none(encoder: Encoder) -> None:
    with_title, without = encoder.passages([("iliad", "homer wrote"), ("", "homer wrote")])
    assert not np.allclose(with_title, without)


def test_nothing_to_encode(encoder: Encoder) -> None:
    assert encoder.questions([]).shape == encoder.passages([]).shape == (0, BITS)


def test_a_shared_model_has_one_graph_for_both_sides(tmp_path: Path) -> None:
    from bpr.training.tower import load_tower

    model = make_model(tmp_path / "m", shared=True, int8=False)
    assert sorted(each.name for each in (tmp_path / "m").glob("*.onnx")) == ["passage.onnx"]
    encoder = Encoder.open(tmp_path / "m")
    sigma = load_tower(tmp_path / "m", "passage").head.sigma.numpy()
    text = "homer wrote the iliad"
    np.testing.assert_allclose(encoder.questions([text]), encoder.passages([("", text)]) * sigma, rtol=1e-4, atol=1e-5)
    assert encoder.fingerprint == model.fingerprint


def test_segments_where_the_model_has_them(tmp_path: Path) -> None:
    from bpr.training.encode import TorchEncoder

    make_model(tmp_path / "m", token_types=True, int8=False)
    found = Encoder.open(tmp_path / "m").passages(PAIRS)
    np.testing.assert_allclose(found, TorchEncoder.open(tmp_path / "m", "cpu").passages(PAIRS), rtol=1e-3, atol=1e-4)


# ── engines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_two_engines_agree_but_for_rounding(tiny_model: Path) -> None:
    ours, theirs = (Encoder.open(tiny_model, engine=engine) for engine in ("bpr", "onnxruntime"))
    assert ours.engine.startswith("bpr ") and theirs.engine.startswith("onnxruntime ")
    for one, other in (
        (ours.passages(PAIRS), theirs.passages(PAIRS)),
        (ours.questions(QUESTIONS), theirs.questions(QUESTIONS)),
    ):
        assert not np.array_equal(one, other)
        assert ((one > 0) == (other > 0)).mean() > 0.95


def test_the_engine_is_our_own_where_there_is_a_kernel(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, name in ((True, "bpr 1"), (False, "onnxruntime")):
        monkeypatch.setattr("bpr.encoder.has_fast_kernel", lambda fast=fast: fast)
        assert Encoder.open(tiny_model).engine.rpartition(" ")[0] == name


def test_graphs_of_others_are_onnx_runtimes(tmp_path: Path) -> None:
    make_model(tmp_path / "float", int8=False)
    make_model(tmp_path / "other", kind="distilbert")
    for name in ("float", "other"):
        encoder = Encoder.open(tmp_path / name)
        assert encoder.engine.startswith("onnxruntime ")
        assert np.isfinite(encoder.questions(QUESTIONS)).all()
        with pytest.raises(InvalidInput, match="is not a graph that bpr's own engine knows"):
            Encoder.open(tmp_path / name, engine="bpr").questions(QUESTIONS)
    with pytest.raises(InvalidInput, match="engine must be 'bpr', 'onnxruntime' or None, not 'torch'"):
        Encoder.open(tmp_path / "float", engine="torch")


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_are_framed_cut_and_not_padded(tiny_model: Path) -> None:
    tokens = Tokens(tiny_model)
    words = tokens.words()

    def read(*pair: str) -> str:
        return " ".join(words[each] for each in tokens.passage(pair).ids)

    assert read("Iliad", "Homer wrote") == "[CLS] iliad [SEP] homer wrote [SEP]"
    assert read("", "Homer wrote") == "[CLS] homer wrote [SEP]"
    assert read("iliad", "") == "[CLS] iliad [SEP] [SEP]"
    assert read("", "") == "[CLS] [SEP]"
    assert tokens.passage(("iliad", "homer wrote")).segments.tolist() == [0] * 6  # this model has no segments
    long = tokens.passage(("iliad", "homer " * 100)).ids.tolist()
    assert len(long) == LENGTH
    assert (long[0], long[2], long[-1]) == (CLS, SEP, SEP)  # the longer part is cut
    assert len(tokens.question("homer " * 100).ids) == 16
    assert tokens.question("homer").ids.tolist() == [CLS, words.index("homer"), SEP]


def test_tokens_are_those_of_transformers(tiny_model: Path) -> None:
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tiny_model / "tokenizer.json"))
    tokens = Tokens(tiny_model)
    for title, text in PAIRS:
        parts = (title, text) if title else (text,)
        expected = theirs(*parts, truncation="longest_first", max_length=LENGTH, padding=False)["input_ids"]
        assert tokens.passage((title, text)).ids.tolist() == expected


def test_many_at_once_are_tokenised_as_one_by_one(tiny_model: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "m", token_types=True, onnx=False)
    odd = [("", ""), ("moon", ""), ("", "😀"), ("a " * 100, "b " * 100)]
    for tokens in (Tokens(tiny_model), Tokens(tmp_path / "m")):
        for found, pair in zip(tokens.passages([*PAIRS, *odd]), [*PAIRS, *odd], strict=True):
            expected = tokens.passage(pair)
            assert (found.ids.tolist(), found.segments.tolist()) == (expected.ids.tolist(), expected.segments.tolist())
        for found, text in zip(tokens.questions(QUESTIONS), QUESTIONS, strict=True):
            assert found.ids.tolist() == tokens.question(text).ids.tolist()
    assert tokens.passages([]) == tokens.questions([]) == []
    with pytest.raises(InvalidInput, match="the text of passage 1 must be a string"):
        tokens.passages([("a", "b"), ("a", 3)])


# ── odd texts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\n ",
        "😀🏳️‍🌈👩‍👩‍👧",
        "\x00\x01\x1b[2J\x7f\x9b",
        "\u202e\ufeff\u200b",
        "中文 日本語 ไทย العربية",
        "e\u0301" * 50,
        "x" * 5000,
        "[CLS] [SEP] [MASK] [PAD]",
        "\U0010ffff\ue000",
    ],
)
def test_odd_texts_get_finite_vectors(encoder: Encoder, text: str) -> None:
    assert np.isfinite(encoder.questions([text])).all()
    assert np.isfinite(encoder.passages([(text, text), ("", text)])).all()


@pytest.mark.parametrize(
    "text", ["word " * 100_000, "x" * 2_000_000, "😀" * 500_000, " " * 2_000_000, "\x00" * 500_000]
)
def test_of_a_giant_text_only_the_beginning_is_tokenised(tiny_model: Path, text: str) -> None:
    encoder = Encoder.open(tiny_model)
    real, seen = encoder.tokens._passages, []

    class Spy:
        def encode(self, *parts: str) -> object:
            seen.extend(map(len, parts))
            return real.encode(*parts)

    encoder.tokens._passages = Spy()
    found = encoder.passages([("", text), (text, text)])
    assert seen == [0 if text.isspace() else LENGTH * CHARACTERS_PER_TOKEN] * 3
    assert np.isfinite(found).all()
    assert np.isfinite(encoder.questions([text])).all()


def test_blanks_before_a_text_are_not_what_is_read(encoder: Encoder) -> None:
    blanks = "\n " * LENGTH * CHARACTERS_PER_TOKEN
    same(encoder.questions(["who is homer"]), encoder.questions([blanks + "who is homer"]))
    same(encoder.passages([("troy", "homer")]), encoder.passages([(blanks + "troy", blanks + "homer" + blanks)]))


def test_cutting_does_not_change_ordinary_text(encoder: Encoder) -> None:
    same(encoder.passages([("", "homer " * 50)]), encoder.passages([("", "homer " * 5000)]))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["fine", None], "question 1 must be a string, not NoneType"),
        (["fine", b"bytes"], "question 1 must be a string, not bytes"),
        ([3], "question 0 must be a string, not int"),
        (["fine", "half \ud800"], "question 1 has half a surrogate pair at character 5"),
        ("one question", r"questions must be a list, not str; one of them is \[one\]"),
        (None, "questions must be a list, not NoneType"),
        (iter(["a"]), "questions must be a list"),
    ],
)
def test_what_is_no_question(encoder: Encoder, texts, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        encoder.questions(texts)


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([("a", "b"), "text"], "passage 1 must be a pair of title and text, not str"),
        ([("a", "b", "c")], "passage 0 must be a pair"),
        ([(None, "b")], "the title of passage 0 must be a string"),
        ([("a", "b"), ("a", 3)], "the text of passage 1 must be a string, not int"),
        ([("\udfff", "b")], "the title of passage 0 has half a surrogate"),
        ("text", "passages must be a list"),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_no_passage(encoder: Encoder, pairs, says: str, threads: int) -> None:
    with pytest.raises(InvalidInput, match=says):
        encoder.passages(pairs, threads=threads)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("threads", [1, 2])
def test_a_deadline_and_a_cancel_handle_end_it(encoder: Encoder, threads: int) -> None:
    with pytest.raises(DeadlineExceeded):
        encoder.passages(PAIRS, threads=threads, deadline=time.monotonic() - 1)
    assert len(encoder.passages(PAIRS, threads=threads, deadline=time.monotonic() + 60)) == len(PAIRS)
    cancel = Cancel()
    assert len(encoder.questions(QUESTIONS, threads=threads, cancel=cancel)) == len(QUESTIONS)
    cancel.set()
    with pytest.raises(Cancelled):
        encoder.questions(QUESTIONS, threads=threads, cancel=cancel)


def test_work_under_way_is_cancelled(encoder: Encoder) -> None:
    cancel = Cancel()
    timer = threading.Timer(0.2, cancel.set)
    timer.start()
    with pytest.raises(Cancelled):
        encoder.passages([PAIRS[0]] * 5_000_000, cancel=cancel)
    timer.join()


def test_bpr_threads_is_heeded(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPR_THREADS", "none")
    with pytest.raises(InvalidInput, match="BPR_THREADS"):
        encoder.passages(PAIRS)


# ── folders that are not as they were ────────────────────────────────────────────────────────────────────────────────


def test_the_fingerprint_is_the_models(encoder: Encoder, tiny_model: Path) -> None:
    model, files = models.load(tiny_model)
    assert encoder.model == model
    assert encoder.fingerprint == model.fingerprint
    assert files["passage.onnx"]["sha256"] in encoder.engine


@pytest.mark.parametrize("name", ["tokenizer.json", "question.onnx", "passage.onnx"])
def test_a_missing_or_changed_file_is_named(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()

    def use() -> None:
        encoder = Encoder.open(copy)
        encoder.questions(["homer"])
        encoder.passages([("", "homer")])

    use()
    (copy / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InvalidInput, match=rf"{name} is not the file that bpr\.json describes"):
        use()
    (copy / name).unlink()
    with pytest.raises(InvalidInput, match=rf"{name} is missing"):
        use()


def test_a_side_is_opened_when_it_is_needed(copy: Path) -> None:
    (copy / "passage.onnx").unlink()
    encoder = Encoder.open(copy)
    assert encoder.questions(["homer"]).shape == (1, BITS)
    with pytest.raises(InvalidInput, match=r"passage\.onnx is missing"):
        encoder.passages([("", "homer")])


def forged(folder: Path, name: str, content: bytes) -> None:
    """Put another file in the place of one, and its sum into bpr.json."""
    (folder / name).write_bytes(content)
    model, files = models.load(folder)
    models.save(folder, model, files)


def test_files_that_are_not_what_their_names_say(copy: Path) -> None:
    forged(copy, "question.onnx", b"no graph")
    with pytest.raises(InvalidInput, match=r"question\.onnx is not an ONNX file"):
        Encoder.open(copy, engine="bpr").questions(["homer"])
    with pytest.raises(InvalidInput, match=r"question\.onnx cannot be run by ONNX Runtime"):
        Encoder.open(copy, engine="onnxruntime").questions(["homer"])
    forged(copy, "tokenizer.json", b"{}")
    with pytest.raises(InvalidInput, match=r"tokenizer\.json is not a tokenizer"):
        Encoder.open(copy)


def test_a_graph_of_another_make_is_refused(copy: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "other", token_types=True)
    forged(copy, "passage.onnx", (tmp_path / "other" / "passage.onnx").read_bytes())
    for engine in ("bpr", "onnxruntime"):
        with pytest.raises(InvalidInput, match=r"passage\.onnx takes \['input_ids', 'token_type_ids'\]"):
            Encoder.open(copy, engine=engine).passages(PAIRS)


def test_a_folder_without_onnx_says_what_to_do(tmp_path: Path) -> None:
    make_model(tmp_path / "m", onnx=False)
    with pytest.raises(InvalidInput, match=r"has no question\.onnx: `bpr export` makes"):
        Encoder.open(tmp_path / "m").questions(["homer"])
    facts = json.loads((tmp_path / "m" / "bpr.json").read_text())
    assert "passage_encoder/model.safetensors" in facts["files"]
