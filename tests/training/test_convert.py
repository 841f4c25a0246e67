"""Foreign checkpoints become model folders that give the same vectors; nothing unknown, hostile or partial is taken."""

from __future__ import annotations

import argparse
import json
import os
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from bpr import model as models  # noqa: E402
from bpr.errors import InvalidInput, StorageError  # noqa: E402
from bpr.training import convert  # noqa: E402
from bpr.training.tower import load_tower  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "wrote", "iliad", "homer", "##ic"]
TINY = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
}
IDS = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "base" / "vocab.txt"
    path.parent.mkdir()
    path.write_text("\n".join(WORDS))
    (path.parent / "config.json").write_text(json.dumps({"model_type": "bert", **TINY}))
    return path


def bert(seed: int, **changes: Any) -> Any:
    torch.manual_seed(seed)
    made = transformers.BertModel(transformers.BertConfig(**{**TINY, **changes})).eval()
    for value in made.parameters():  # LayerNorms and biases that differ from their start, so that a lost one shows
        value.data += 0.1 * torch.randn_like(value)
    return made


class AttributeDict(dict):
    """As Lightning's own."""


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> type[AttributeDict]:
    """Lightning's module, as far as a checkpoint names it."""
    module = types.ModuleType("pytorch_lightning.utilities.parsing")
    module.AttributeDict = AttributeDict
    for name in ("pytorch_lightning", "pytorch_lightning.utilities"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(AttributeDict, "__module__", module.__name__)
    return AttributeDict


def authors(path: Path, settings: Any = None, extra: dict[str, Any] | None = None, **changes: Any) -> tuple[Any, Any]:
    """A checkpoint as Lightning 0.9 leaves it; the two encoders in it."""
    question, passage = bert(1, **changes), bert(2, **changes)
    state = {f"query_encoder.{key}": value for key, value in question.state_dict().items()}
    state |= {f"passage_encoder.{key}": value for key, value in passage.state_dict().items()}
    state["query_encoder.embeddings.position_ids"] = torch.arange(40)[None]
    whole = {
        "epoch": 39,
        "global_step": 18400,
        "pytorch-lightning_version": "0.9.0",
        "checkpoint_callback_best_model_score": torch.tensor(1.5),
        "optimizer_states": [{"state": {0: {"step": 7, "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 2e-5}]}],
        "state_dict": {**state, **(extra or {})},
    }
    torch.save(whole if settings is None else {**whole, "hyper_parameters": settings}, path)
    return question, passage


def folder(path: Path, side: str, seed: int, projection: int = 0, old: bool = False) -> Any:
    """A folder as facebook/dpr-* and castorini/bpr-nq-* are; the encoder in it."""
    torch.manual_seed(seed)
    kind = {"question": transformers.DPRQuestionEncoder, "passage": transformers.DPRContextEncoder}[side]
    made = kind(transformers.DPRConfig(**TINY, projection_dim=projection)).eval()
    for value in made.parameters():
        value.data += 0.1 * torch.randn_like(value)
    made.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    if old:
        state = load_file(path / "model.safetensors")
        prefix = "question_encoder" if side == "question" else "ctx_encoder"
        state[f"{prefix}.bert_model.pooler.dense.weight"] = torch.zeros(32, 32)
        state[f"{prefix}.bert_model.embeddings.position_ids"] = torch.arange(40)[None]
        torch.save(state, path / "pytorch_model.bin")
        (path / "model.safetensors").unlink()
    return made


def vectors(out: Path, side: str) -> Any:
    with torch.no_grad():
        return load_tower(out, side)(IDS, MASK)


def first_tokens(encoder: Any) -> Any:
    with torch.no_grad():
        return encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state[:, 0]


def refusal(call, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        call(*arguments, **options)
    return str(caught.value)


# ── The authors' checkpoints ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("settings", ["namespace", "dict", "lightning", "none"])
def test_a_checkpoint_gives_the_vectors_that_it_gave(tmp_path, vocabulary, lightning, settings):
    given = {"max_query_length": 20, "max_passage_length": 30, "binary": True, "train_file": ["a"], "projection": None}
    made = {"namespace": argparse.Namespace(**given), "dict": given, "lightning": lightning(given), "none": None}
    question, passage = authors(tmp_path / "nq.ckpt", made[settings])
    out = tmp_path / "model"
    model = convert.checkpoint(tmp_path / "nq.ckpt", out, tokenizer=vocabulary, config=vocabulary.parent)
    assert (model.name, model.bits, model.planes, model.pooling, model.token_types) == ("nq", 32, 1, "cls", True)
    assert (model.question_length, model.passage_length) == ((256, 256) if settings == "none" else (20, 30))
    assert models.load(out)[0] == model
    assert torch.allclose(vectors(out, "question"), first_tokens(question), atol=1e-6)
    assert torch.allclose(vectors(out, "passage"), first_tokens(passage), atol=1e-6)
    assert not torch.allclose(vectors(out, "passage"), first_tokens(question), atol=1e-2)


def test_the_folder_is_as_model_py_says_and_every_file_is_in_bpr_json(tmp_path, vocabulary):
    authors(tmp_path / "nq.ckpt")
    said: list[str] = []
    out = tmp_path / "model"
    model = convert.checkpoint(
        tmp_path / "nq.ckpt",
        out,
        tokenizer=vocabulary,
        config=vocabulary.parent / "config.json",
        name="mine",
        progress=lambda what, done, total: said.append(what),
    )
    sides = [
        f"{side}_encoder/{name}" for side in ("question", "passage") for name in ("config.json", "model.safetensors")
    ]
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert there == {*sides, "bpr.json", "tokenizer.json", "README.md"}
    _, files = models.load(out)
    assert {*files} == there - {"bpr.json"}
    for name in files:
        models.check_file(out, name, files)
    assert (model.name, len(model.weights), model.tokenizer) == ("mine", 64, files["tokenizer.json"]["sha256"])
    assert "nq.ckpt" in (out / "README.md").read_text()
    assert said == ["reading the checkpoint", "writing the question encoder", "writing the passage encoder"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "model", "nq.ckpt"]


def test_without_a_config_heads_are_64_wide(tmp_path, vocabulary):
    question, _ = authors(tmp_path / "a.ckpt", hidden_size=128)
    convert.checkpoint(tmp_path / "a.ckpt", tmp_path / "a", tokenizer=vocabulary)
    assert torch.allclose(vectors(tmp_path / "a", "question"), first_tokens(question), atol=1e-6)
    authors(tmp_path / "b.ckpt")
    message = refusal(convert.checkpoint, tmp_path / "b.ckpt", tmp_path / "b", tokenizer=vocabulary)
    assert "a BERT 32 wide; give the config.json of its base model" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reader.weight", torch.zeros(1)),
        ("query_encoder.encoder.layer.0.adapter.weight", torch.zeros(1)),
        ("query_encoder.cls.weight", torch.zeros(1)),
        ("query_encoder.note", "text"),
        ("query_encoder.embeddings.word_embeddings.weight ", torch.zeros(1)),
        (7, torch.zeros(1)),
    ],
)
def test_an_unknown_weight_is_refused_by_name(tmp_path, vocabulary, key, value):
    authors(tmp_path / "nq.ckpt", extra={key: value})
    message = refusal(convert.checkpoint, tmp_path / "nq.ckpt", tmp_path / "model", tokenizer=vocabulary)
    assert f"{tmp_path / 'nq.ckpt'} holds what is no weight" in message
    assert str(key).removeprefix("query_encoder.") in message
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["dense.weight", "layer_norm.bias"])
def test_a_head_that_bpr_does_not_have_is_refused(tmp_path, vocabulary, name):
    authors(tmp_path / "nq.ckpt", extra={f"passage_encoder.{name}": torch.zeros(8)})
    options = {"tokenizer": vocabulary, "config": vocabulary.parent}
    message = refusal(convert.checkpoint, tmp_path / "nq.ckpt", tmp_path / "model", **options)
    assert "projection_dim_size" in message


def damage(kind: str) -> dict[str, Any]:
    word = "query_encoder.embeddings.word_embeddings.weight"
    return {
        "nan": {word: torch.full((10, 32), float("nan"))},
        "whole numbers": {word: torch.zeros(10, 32, dtype=torch.int64)},
        "sparse": {word: torch.zeros(10, 32).to_sparse()},
        "flat": {word: torch.zeros(10)},
        "inner": {"query_encoder.encoder.layer.1.output.dense.weight": torch.zeros(32, 47)},
        "far layer": {"query_encoder.encoder.layer.900.output.dense.weight": torch.zeros(32, 48)},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("nan", "is not a dense tensor of finite numbers"),
        ("whole numbers", "is not a dense tensor of finite numbers"),
        ("sparse", "is not a dense tensor of finite numbers"),
        ("flat", "lacks a weight of BERT, or it has another shape"),
        ("inner", "the question encoder's weights do not fit its configuration"),
        ("far layer", "num_hidden_layers 2, but 3"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, vocabulary, kind, complaint):
    authors(tmp_path / "nq.ckpt", extra=damage(kind))
    options = {"tokenizer": vocabulary, "config": vocabulary.parent}
    assert complaint in refusal(convert.checkpoint, tmp_path / "nq.ckpt", tmp_path / "model", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "nq.ckpt"]


def test_a_missing_weight_is_refused(tmp_path, vocabulary):
    authors(tmp_path / "nq.ckpt")
    whole = torch.load(tmp_path / "nq.ckpt", weights_only=True)
    options = {"tokenizer": vocabulary, "config": vocabulary.parent}
    for lost, complaint in (
        ("query_encoder.encoder.layer.1.output.dense.bias", "encoder.layer.1.output.dense.bias"),
        ("passage_encoder.", "has no weights that begin with passage_encoder."),
        ("query_encoder.embeddings.token_type", "lacks a weight of BERT"),
    ):
        kept = {key: value for key, value in whole["state_dict"].items() if not key.startswith(lost)}
        torch.save({"state_dict": kept}, tmp_path / "part.ckpt")
        assert complaint in refusal(convert.checkpoint, tmp_path / "part.ckpt", tmp_path / "model", **options)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_file_that_would_run_code_is_refused_and_does_not_run(tmp_path, vocabulary, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {}, "hyper_parameters": Bomb()}, "bomb.ckpt")
    message = refusal(convert.checkpoint, "bomb.ckpt", "model", tokenizer=vocabulary)
    assert f"bomb.ckpt cannot be read as plain weights: it names {os.mkdir.__module__}.mkdir, which is code;" in message
    assert "weights_only" not in message
    assert "save its state_dict alone" in message
    assert not Path("exploded").exists()
    torch.load("bomb.ckpt", weights_only=False)  # the bomb is a real one
    assert Path("exploded").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"text", b"\x80\x02]q\x00."])
def test_what_is_no_checkpoint_is_refused(tmp_path, vocabulary, content):
    (tmp_path / "x.ckpt").write_bytes(content)
    message = refusal(convert.checkpoint, tmp_path / "x.ckpt", tmp_path / "model", tokenizer=vocabulary)
    assert f"{tmp_path / 'x.ckpt'} cannot be read as plain weights: " in message


def test_torchs_advice_to_read_a_file_unsafely_is_not_passed_on():
    advice = "Weights only load failed. Re-running `torch.load` with `weights_only` set to `False` will likely succeed"
    assert convert._reason(RuntimeError(advice)) == "it holds other things than weights and settings"


def test_settings_that_are_no_plain_values_are_refused_by_name(tmp_path, vocabulary):
    path = tmp_path / "x.ckpt"
    torch.save({"hyper_parameters": Decimal(1)}, path)
    assert "it names decimal.Decimal, which" in refusal(convert.checkpoint, path, tmp_path / "m", tokenizer=vocabulary)
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read" in refusal(convert.checkpoint, path, tmp_path / "m", tokenizer=vocabulary)


def test_a_checkpoint_without_what_lightning_writes_is_refused(tmp_path, vocabulary):
    path, options = tmp_path / "x.ckpt", {"tokenizer": vocabulary, "config": vocabulary.parent}
    for whole, complaint in (
        ({"weights": 1}, "has no state_dict"),
        ([torch.zeros(1)], "holds no named weights but one list"),
        ({"state_dict": {"query_encoder.a": 1}, "hyper_parameters": [1]}, "is no table of settings"),
    ):
        torch.save(whole, path)
        assert complaint in refusal(convert.checkpoint, path, tmp_path / "model", **options)
    authors(path, {"max_query_length": "256"})
    assert "max_query_length is '256'" in refusal(convert.checkpoint, path, tmp_path / "model", **options)
    assert "there is no such file" in refusal(convert.checkpoint, tmp_path / "no.ckpt", tmp_path / "model", **options)
    with pytest.raises(StorageError):
        convert.checkpoint(tmp_path, tmp_path / "model", **options)


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("projection", [0, 16])
@pytest.mark.parametrize("family", ["bpr", "dpr"])
def test_folders_give_the_vectors_that_they_gave(tmp_path, family, projection, old):
    question = folder(tmp_path / "q", "question", 1, projection, old)
    passage = folder(tmp_path / "p", "passage", 2, projection, old)
    out = tmp_path / "model"
    model = convert.folders(tmp_path / "q", tmp_path / "p", out, family=family)
    assert (model.name, model.bits, model.token_types) == ("model", projection or 32, family == "bpr")
    assert (out / "question_encoder" / "head.safetensors").exists() == (projection > 0)
    assert models.load(out)[0] == model
    for side, encoder in (("question", question), ("passage", passage)):
        with torch.no_grad():
            wanted = encoder(input_ids=IDS, attention_mask=MASK).pooler_output
        assert torch.allclose(vectors(out, side), wanted, atol=1e-6)
    assert ("trained for floats" in (out / "README.md").read_text()) == (family == "dpr")


def test_half_precision_becomes_float32(tmp_path):
    for side in ("question", "passage"):
        folder(tmp_path / side, side, 1)
        path = tmp_path / side / "model.safetensors"
        save_file({key: value.half() for key, value in load_file(path).items()}, path)
    convert.folders(tmp_path / "question", tmp_path / "passage", tmp_path / "model", family="bpr")
    kept = load_file(tmp_path / "model" / "question_encoder" / "model.safetensors")
    assert {value.dtype for value in kept.values()} == {torch.float32}


def test_folders_that_are_no_pair_are_refused(tmp_path):
    folder(tmp_path / "q", "question", 1)
    folder(tmp_path / "p", "passage", 2, projection=16)
    out = tmp_path / "model"
    assert "32 values and passages 16" in refusal(convert.folders, tmp_path / "q", tmp_path / "p", out, family="dpr")
    message = refusal(convert.folders, tmp_path / "p", tmp_path / "q", out, family="dpr")
    assert "has no weights that begin with question_encoder." in message
    assert 'must be "bpr" or "dpr"' in refusal(convert.folders, tmp_path / "q", tmp_path / "p", out, family="x")
    assert "has neither model.safetensors nor" in refusal(convert.folders, tmp_path, tmp_path, out, family="dpr")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"question_encoder.encode_proj.bias": None}, "question_encoder.encode_proj only in part"),
        ({"question_encoder.encode_proj.weight": torch.zeros(16, 31)}, "does not lead from 32 values to 16"),
        (
            {"question_encoder.extra": torch.zeros(1)},
            "no weight of a BPR or DPR encoder on BERT: question_encoder.extra",
        ),
        ({"question_encoder.pooler.dense.weight": torch.zeros(1)}, "question_encoder.pooler.dense.weight"),
        ({f"lm.{number}": torch.zeros(1) for number in range(9)}, "and 4 more"),
    ],
)
def test_weights_of_a_folder_that_cannot_be_are_refused(tmp_path, change, complaint):
    folder(tmp_path / "q", "question", 1, projection=16)
    folder(tmp_path / "p", "passage", 2, projection=16)
    path = tmp_path / "q" / "model.safetensors"
    state = {**load_file(path), **change}
    save_file({key: value for key, value in state.items() if value is not None}, path)
    message = refusal(convert.folders, tmp_path / "q", tmp_path / "p", tmp_path / "model", family="dpr")
    assert complaint in message
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_type": "roberta"}, "does not describe a BERT or DPR encoder"),
        ({"position_embedding_type": "relative_key"}, "only absolute position embeddings"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, but 2"),
        ({"hidden_size": "32"}, "hidden_size is '32', not int"),
        ({"layer_norm_eps": True}, "layer_norm_eps is True, not float"),
        ({"num_attention_heads": 5}, "a BERT 32 wide"),
        ({"num_attention_heads": 0}, "a BERT 32 wide"),
        ({"hidden_act": "os.system"}, "do not fit its configuration"),
    ],
)
def test_a_config_that_cannot_be_is_refused(tmp_path, change, complaint):
    folder(tmp_path / "q", "question", 1)
    folder(tmp_path / "p", "passage", 2)
    path = tmp_path / "q" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert complaint in refusal(convert.folders, tmp_path / "q", tmp_path / "p", tmp_path / "m", family="dpr")


def test_files_that_are_damaged_are_refused(tmp_path):
    folder(tmp_path / "q", "question", 1)
    folder(tmp_path / "p", "passage", 2)
    arguments = tmp_path / "q", tmp_path / "p", tmp_path / "m"
    config, weights = tmp_path / "q" / "config.json", tmp_path / "p" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert "model.safetensors is damaged" in refusal(convert.folders, *arguments, family="dpr")
    config.write_text("{")
    assert "config.json is not JSON" in refusal(convert.folders, *arguments, family="dpr")
    config.write_text("[]")
    assert "does not describe" in refusal(convert.folders, *arguments, family="dpr")
    config.unlink()
    config.mkdir()
    (config / "config.json").mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        convert.folders(*arguments, family="dpr")
    (config / "config.json").rmdir()
    assert "config.json: there is no such file" in refusal(convert.folders, *arguments, family="dpr")


# ── Tokenizer and folder ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "unknown"), [(None, False), ("{}", False), ('{"do_lower_case": false}', True), ("{", False)]
)
def test_a_tokenizer_is_made_of_a_vocabulary(tmp_path, said, unknown):
    folder(tmp_path / "q", "question", 1)
    folder(tmp_path / "p", "passage", 2)
    if said is not None:
        (tmp_path / "q" / "tokenizer_config.json").write_text(said)
    convert.folders(tmp_path / "q", tmp_path / "p", tmp_path / "m", family="bpr")
    made = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    pair = made.encode("Homer", "homeric")
    assert pair.tokens == ["[CLS]", "[UNK]" if unknown else "homer", "[SEP]", "homer", "##ic", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1, 1]


def test_a_tokenizer_json_is_taken_as_it_is(tmp_path, vocabulary):
    authors(tmp_path / "nq.ckpt")
    options = {"config": vocabulary.parent}
    convert.checkpoint(tmp_path / "nq.ckpt", tmp_path / "one", tokenizer=vocabulary, **options)
    ready = tmp_path / "one" / "tokenizer.json"
    convert.checkpoint(tmp_path / "nq.ckpt", tmp_path / "two", tokenizer=tmp_path / "one", **options)
    assert (tmp_path / "two" / "tokenizer.json").read_bytes() == ready.read_bytes()
    ready.write_text('{"model": 1}')
    for bad, complaint in (
        (ready, "is no tokenizer"),
        (tmp_path, "has no tokenizer"),
        (tmp_path / "no", "has no tokenizer"),
    ):
        message = refusal(convert.checkpoint, tmp_path / "nq.ckpt", tmp_path / "three", tokenizer=bad, **options)
        assert complaint in message
    assert not (tmp_path / "three").exists()


def test_a_tokenizer_of_another_model_is_refused(tmp_path, vocabulary):
    authors(tmp_path / "nq.ckpt")
    vocabulary.write_text("\n".join([*WORDS, "one more"]))
    options = {"tokenizer": vocabulary, "config": vocabulary.parent}
    message = refusal(convert.checkpoint, tmp_path / "nq.ckpt", tmp_path / "model", **options)
    assert "has 11 words and the encoders 10: it is another model's" in message


def test_nothing_that_is_there_is_replaced(tmp_path, vocabulary):
    authors(tmp_path / "nq.ckpt")
    (tmp_path / "model").mkdir()
    options = {"tokenizer": vocabulary, "config": vocabulary.parent}
    assert "is there already" in refusal(convert.checkpoint, tmp_path / "nq.ckpt", tmp_path / "model", **options)
    with pytest.raises(StorageError, match="create the folder above it first"):
        convert.checkpoint(tmp_path / "nq.ckpt", tmp_path / "no" / "model", **options)


def test_a_disk_that_says_no_leaves_nothing(tmp_path, vocabulary, monkeypatch):
    authors(tmp_path / "nq.ckpt")

    def full(*_: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(models, "save", full)
    with pytest.raises(StorageError, match="free some space"):
        convert.checkpoint(tmp_path / "nq.ckpt", tmp_path / "m", tokenizer=vocabulary, config=vocabulary.parent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "nq.ckpt"]
