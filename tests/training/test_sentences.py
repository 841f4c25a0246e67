"""Sentence encoders become model folders that give the same vectors, and say how they pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import save_file  # noqa: E402
from test_convert import IDS, MASK, TINY, WORDS, bert  # noqa: E402

from bpr import model as models  # noqa: E402
from bpr.errors import InvalidInput, StorageError  # noqa: E402
from bpr.training.sentences import encoder  # noqa: E402
from bpr.training.tower import load_tower  # noqa: E402
from small_disk import files_up_to  # noqa: E402


def sentences(folder: Path, pooling: str = "mean", normalize: bool = True, prefix: str = "", **changes: Any) -> Any:
    """A folder as sentence-transformers leaves it; the encoder in it."""
    made = bert(3, **changes)
    (folder / "1_Pooling").mkdir(parents=True)
    save_file(
        {prefix + key: value.contiguous() for key, value in made.state_dict().items()}, folder / "model.safetensors"
    )
    made.config.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "path": paths[i], "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    pools = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pools}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
    return made


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_sentence_encoder_gives_the_vectors_that_it_gave(tmp_path, pooling, normalize, prefix):
    made = sentences(tmp_path / "base", pooling, normalize, prefix)
    model = encoder(tmp_path / "base", tmp_path / "out")
    assert (model.pooling, model.normalize, model.shared, model.bits) == (pooling, normalize, True, 32)
    assert (model.question_length, model.passage_length, model.name) == (24, 24, "base")
    with torch.no_grad():
        hidden = made(input_ids=IDS, attention_mask=MASK).last_hidden_state
        weights = MASK.unsqueeze(-1).float()
        wanted = hidden[:, 0] if pooling == "cls" else (hidden * weights).sum(1) / weights.sum(1)
        wanted = torch.nn.functional.normalize(wanted, dim=-1) if normalize else wanted
        for side in ("question", "passage"):
            torch.testing.assert_close(load_tower(tmp_path / "out", side)(IDS, MASK), wanted)
    assert "CC BY-NC" not in (tmp_path / "out" / models.CARD).read_text()


def test_a_folder_that_does_not_say_how_it_pools_must_be_told(tmp_path):
    sentences(tmp_path / "base")
    (tmp_path / "base" / "modules.json").unlink()
    with pytest.raises(InvalidInput, match="give the pooling"):
        encoder(tmp_path / "base", tmp_path / "out")
    model = encoder(tmp_path / "base", tmp_path / "out", pooling="cls", normalize=True, length=9, name="mine")
    assert (model.pooling, model.normalize, model.question_length, model.name) == ("cls", True, 9, "mine")


def test_what_is_said_on_top_counts_and_positions_are_the_limit(tmp_path):
    sentences(tmp_path / "base")
    model = encoder(tmp_path / "base", tmp_path / "out", pooling="cls", normalize=False, length=500)
    assert (model.pooling, model.normalize, model.passage_length) == ("cls", False, TINY["max_position_embeddings"])


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("modules.json", json.dumps([{"type": "sentence_transformers.models.Dense", "path": ""}]), "has Dense"),
        ("modules.json", "{", "is not JSON"),
        ("1_Pooling/config.json", json.dumps({"pooling_mode_max_tokens": True}), "give the pooling"),
        ("config.json", json.dumps({"model_type": "t5"}), "does not describe a BERT"),
    ],
)
def test_a_sentence_encoder_of_another_kind_is_refused(tmp_path, name, content, complaint):
    sentences(tmp_path / "base")
    (tmp_path / "base" / name).write_text(content)
    with pytest.raises(InvalidInput, match=complaint):
        encoder(tmp_path / "base", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInput, match=r"nowhere has neither model\.safetensors nor"):
        encoder(tmp_path / "nowhere", tmp_path / "out")


def test_weights_that_the_disk_does_not_take_are_an_error_of_the_disk(tmp_path):
    sentences(tmp_path / "base")
    encoder(tmp_path / "base", tmp_path / "whole")
    size = (tmp_path / "whole" / "passage_encoder" / "model.safetensors").stat().st_size
    assert size > (tmp_path / "whole" / "tokenizer.json").stat().st_size  # which is written before
    with files_up_to(size - 1), pytest.raises(StorageError, match=r"cannot write .*out"):
        encoder(tmp_path / "base", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "whole"]
