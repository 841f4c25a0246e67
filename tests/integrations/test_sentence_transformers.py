"""bpr's models in Sentence Transformers, and theirs in bpr: small random models, real files, no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer

import bpr
from bpr import model as models
from bpr.encoder import Encodes
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput, ModelMismatch
from bpr.integrations.sentence_transformers import STEncoder, load
from bpr.kernels import Cancel
from bpr.training.encode import TorchEncoder
from tiny_models import HIDDEN, WORDS, backbone, make_model, write_tokenizer

ROOT = Path(__file__).parents[2]
RANDOM = np.random.default_rng(11)
PAIRS = [("" if row % 2 else "iliad homer", " ".join(RANDOM.choice(WORDS, row % 60 + 1))) for row in range(40)]
TITLED = [pair for pair in PAIRS if pair[0]]
TEXTS = [text for _, text in PAIRS]
PASSAGES = [{"id": f"p{row}", "title": title, "text": text} for row, (title, text) in enumerate(PAIRS)]
PROMPTS = {"query": "who wrote ", "passage": "poem "}


def make_st(folder: Path, seed: int = 0, prompts: dict[str, str] | None = None) -> SentenceTransformer:
    """As those that people publish: BERT, mean pooling, length 1."""
    backbone(seed).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 48}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    modules = [Transformer(str(folder)), Pooling(HIDDEN, pooling_mode="mean"), Normalize()]
    return SentenceTransformer(modules=modules, prompts=prompts, device="cpu")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return make_st(tmp_path_factory.mktemp("theirs"), prompts=PROMPTS)


# ── A model of bpr there ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared": True},
        {"token_types": True, "pooling": "cls"},
        {"shared": True, "projected": False, "bits": HIDDEN, "normalize": True},
        {"kind": "distilbert", "planes": 1, "normalize": True},
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)
def test_a_model_of_bpr_gives_the_same_vectors_there_and_after_it_was_saved(tmp_path: Path, settings: Any) -> None:
    make_model(tmp_path / "ours", onnx=False, **settings)
    ours = TorchEncoder.open(tmp_path / "ours", "cpu")
    made = load(tmp_path / "ours")
    made.save(str(tmp_path / "saved"))
    for each in (made, SentenceTransformer(str(tmp_path / "saved"), device="cpu")):
        np.testing.assert_allclose(each.encode_query(TEXTS), ours.questions(TEXTS), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(each.encode_document(TITLED), ours.passages(TITLED), rtol=1e-5, atol=1e-5)
        untitled = ours.passages([("", text) for text in TEXTS])
        np.testing.assert_allclose(each.encode_document(TEXTS), untitled, rtol=1e-5, atol=1e-5)
        assert each.similarity_fn_name == "dot"


def test_what_is_saved_needs_no_bpr_to_be_read(tmp_path: Path, tiny_model: Path) -> None:
    load(tiny_model).save(str(tmp_path))
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    kinds = [json.loads((tmp_path / name).read_text()) for name in ("modules.json", "router_config.json")]
    types = [kinds[0][0]["type"], *kinds[1]["types"].values()]
    assert len(types) == 7 and all(each.startswith("sentence_transformers.") for each in types)
    assert {Path(file).suffix for file in files} <= {".json", ".safetensors", ".md"}


def test_a_shared_encoder_is_there_once(tmp_path: Path) -> None:
    make_model(tmp_path / "ours", onnx=False, shared=True)
    load(tmp_path / "ours").save(str(tmp_path / "saved"))
    backbones = [file for file in tmp_path.glob("saved/**/model.safetensors") if "Transformer" in file.parent.name]
    assert len(backbones) == 1


def test_weights_that_were_changed_or_are_not_there_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(tiny_model, changed)
    with (changed / "passage_encoder" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(InvalidInput, match=r"not the file that bpr\.json describes"):
        load(changed)
    with pytest.raises(InvalidInput, match=r"has no passage_encoder/config\.json: .* `bpr train` the float weights"):
        load("mini")  # ONNX alone


# ── Any of their models here ─────────────────────────────────────────────────────────────────────────────────────────


def signs(path: Path) -> Any:
    with bpr.open(path) as opened:
        return np.array(opened.index.planes.signs)


def test_posthoc_bits_are_those_of_vectors_of_yours(tmp_path: Path, theirs: SentenceTransformer) -> None:
    encoder = STEncoder(theirs)
    assert bpr.build(PASSAGES, tmp_path / "text.bpr", model=encoder) == len(PASSAGES)
    bpr.build(iter(PASSAGES), tmp_path / "pipe.bpr", model=encoder)  # passages that can be read only once
    how: dict[str, Any] = {"center": True, "rotate": True, "planes": 2}
    bpr.build(PASSAGES, tmp_path / "vectors.bpr", vectors=encoder.passages(PAIRS), **how)
    expected = signs(tmp_path / "vectors.bpr")
    for name in ("text", "pipe"):
        np.testing.assert_array_equal(signs(tmp_path / f"{name}.bpr"), expected)
    with bpr.open(tmp_path / "text.bpr", model=encoder) as opened:
        assert opened.info["centered"] and opened.info["rotated"] and opened.info["planes"] == 2
        assert opened.info["bits"] == opened.info["dimensions"] == HIDDEN


def test_the_transform_is_measured_on_passages_from_the_whole_file(
    tmp_path: Path, theirs: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpr.builder.FIT_ROWS", 10)
    encoder = STEncoder(theirs, seed=3)
    floats = encoder.passages(PAIRS)
    bpr.build(PASSAGES, tmp_path / "list.bpr", model=encoder)
    bpr.build(iter(PASSAGES), tmp_path / "pipe.bpr", model=encoder)
    for name, sample in (("list", floats[::4]), ("pipe", floats[:10])):
        with bpr.open(tmp_path / f"{name}.bpr") as opened:
            np.testing.assert_allclose(opened.bundle.array("mean.npy"), sample.mean(axis=0), atol=1e-6)
            assert len(opened) == len(PASSAGES)


def test_a_bundle_of_their_vectors_is_searched_and_added_to(tmp_path: Path, theirs: SentenceTransformer) -> None:
    path, encoder = tmp_path / "x.bpr", STEncoder(theirs, width=256)
    bpr.build(PASSAGES[:30], path, model=encoder, keep_vectors="float16")
    bpr.add(path, PASSAGES[30:], model=encoder)
    floats = encoder.passages(PAIRS)
    with bpr.open(path, model=encoder) as opened:
        assert opened.info["bits"] == 256 and opened.info["dimensions"] == HIDDEN
        right = 0
        for text in TEXTS:
            scores = floats @ encoder.questions([text])[0]
            found = opened.search(text, k=3)
            right += found[0].id == f"p{np.argmax(scores)}"
            assert found[0].score == pytest.approx(scores.max(), abs=0.05)  # by kept vectors
        assert right >= 0.9 * len(TEXTS)


def test_their_prompts_go_before_questions_and_passages(theirs: SentenceTransformer) -> None:
    encoder = STEncoder(theirs, between=" is ")
    asked = theirs.encode([f"who wrote {text}" for text in TEXTS])
    np.testing.assert_allclose(encoder.questions(TEXTS), asked, atol=1e-5)
    given = theirs.encode([f"poem {title} is {text}" if title else f"poem {text}" for title, text in PAIRS])
    np.testing.assert_allclose(encoder.passages(PAIRS), given, atol=1e-5)


def test_another_model_is_refused(tmp_path: Path, theirs: SentenceTransformer) -> None:
    path = tmp_path / "x.bpr"
    bpr.build(PASSAGES, path, model=STEncoder(theirs))
    others = {
        "other weights": STEncoder(make_st(tmp_path / "a", seed=5, prompts=PROMPTS)),
        "other prompts": STEncoder(make_st(tmp_path / "b", prompts={"query": "?"})),
        "joined otherwise": STEncoder(theirs, between=". "),
        "one plane": STEncoder(theirs, planes=1),
        "trained": STEncoder(theirs, bits="trained"),
    }
    assert len({STEncoder(theirs).fingerprint, *(each.fingerprint for each in others.values())}) == 6
    for other in others.values():
        with pytest.raises(ModelMismatch, match="is another one"):
            bpr.open(path, model=other)
    with bpr.open(path) as opened, pytest.raises(ModelMismatch, match="say where it is"):
        opened.search("who wrote the iliad ?")


def test_the_same_model_is_recognised_after_it_was_saved(tmp_path: Path, theirs: SentenceTransformer) -> None:
    before = STEncoder(theirs)
    before.passages(PAIRS)  # a tokenizer remembers how it last cut and padded
    theirs.save(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert STEncoder(again).fingerprint == before.fingerprint == STEncoder(theirs).fingerprint


def test_trained_bits_are_those_of_bprs_own_encoder(tmp_path: Path, tiny_model: Path) -> None:
    encoder, ours = STEncoder(load(tiny_model), bits="trained", between=None), TorchEncoder.open(tiny_model, "cpu")
    np.testing.assert_allclose(encoder.passages(PAIRS), ours.passages(PAIRS), rtol=1e-5, atol=1e-5)
    bpr.build(PASSAGES, tmp_path / "a.bpr", model=encoder)
    bpr.build(PASSAGES, tmp_path / "b.bpr", model=ours)
    assert (np.unpackbits(signs(tmp_path / "a.bpr") ^ signs(tmp_path / "b.bpr"))).mean() < 0.001
    with bpr.open(tmp_path / "a.bpr", model=encoder) as a, bpr.open(tmp_path / "b.bpr", model=ours) as b:
        assert not a.info["rotated"]
        asked = "who wrote the iliad ?"
        assert [hit.id for hit in a.search(asked, k=5)] == [hit.id for hit in b.search(asked, k=5)]


def test_it_is_an_encoder_with_limits(theirs: SentenceTransformer) -> None:
    def takes(one: Encodes) -> str:
        return one.model.fingerprint

    encoder = STEncoder(theirs, batch_size=2)
    assert takes(encoder) == encoder.fingerprint
    assert encoder.engine == "sentence-transformers cpu torch.float32" and encoder.at_once == 32
    assert encoder.questions([]).shape == encoder.passages([]).shape == (0, HIDDEN)
    assert np.isfinite(encoder.passages([("", ""), ("😀", "word " * 100_000)])).all()
    assert encoder.questions(["https://example.org/a.png"]).shape == (1, HIDDEN)
    with pytest.raises(DeadlineExceeded):
        encoder.passages(PAIRS, deadline=time.monotonic() - 1)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        encoder.questions(["a"], cancel=cancel)
    with pytest.raises(InvalidInput, match="question 1 must be a string"):
        encoder.questions(["a", 3])
    with pytest.raises(InvalidInput, match="the text of passage 0 must be a string"):
        encoder.passages([("a", None)])
    with pytest.raises(InvalidInput, match="passage 0 must be a pair"):
        encoder.passages(["a"])


def test_settings_that_cannot_be_are_refused(theirs: SentenceTransformer) -> None:
    with pytest.raises(InvalidInput, match="bits must be 'posthoc' or 'trained'"):
        STEncoder(theirs, bits="both")
    with pytest.raises(InvalidInput, match="leave width out"):
        STEncoder(theirs, bits="trained", width=64)
    tokenizer = Tokenizer.from_file(str(models.MINI / "tokenizer.json"))
    odd = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=12)], device="cpu")
    with pytest.raises(InvalidInput, match="multiple of 8 bits"):
        STEncoder(odd)
    assert STEncoder(odd, width=16).model.bits == 16


def test_the_example_runs(tmp_path: Path) -> None:
    file = ROOT / "examples" / "sentence_transformers_bits.py"
    assert len(file.read_text().splitlines()) <= 15
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('Hit(id="Homer\'s Iliad"')


def test_without_the_package_the_message_names_the_extra() -> None:
    code = "import sys; sys.modules['sentence_transformers'] = None; import bpr.integrations.sentence_transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search(r"pip install 'binary-passage-retriever\[sentence-transformers\]'", done.stderr)
