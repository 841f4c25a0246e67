"""Model folders small enough to be made while testing: a BERT of two layers and random weights, real file formats.

torch and transformers are imported when a folder is made, so that tests that need none do not wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpr.model import Model, two_planes
from bpr.reader import ReaderModel

_WORDS = """
    the a of and in is was who what when where wrote greek epic poem iliad odyssey homer war troy achilles city river
    paris france capital light water moon earth sun planet star red green blue house tree king queen year first last
    iron steel bridge built engine steam train sea ship island mountain snow rain wind fire stone gold silver
    """
WORDS = _WORDS.split()
PIECES = [
    *"abcdefghijklmnopqrstuvwxyz0123456789.,?!-'",
    "##s",
    "##ing",
    *(f"##{each}" for each in "abcdefghijklmnopqrstuvwxyz"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3
HIDDEN, BITS, LENGTH = 32, 64, 48
# Settings of `make_model`: every kind of network that bpr's own engine knows.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cls": {"pooling": "cls"},
    "long": {"normalize": True, "seed": 3},
    "segments": {"token_types": True},
    "shared": {"shared": True},
    "bare": {"projected": False, "bits": HIDDEN},
}


def write_tokenizer(path: Path) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL, *PIECES, *WORDS]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tokenizer.enable_padding(length=16)  # as in many published files: what is served must undo it
    tokenizer.enable_truncation(8)
    tokenizer.save(str(path))
    return path


def backbone(seed: int = 0, kind: str = "bert", places: int = 64) -> Any:
    """Large random weights: with the small ones of a fresh BERT every text would get nearly the same vector."""
    import torch
    import transformers

    torch.manual_seed(seed)
    size = len(dict.fromkeys([*SPECIAL, *PIECES, *WORDS]))
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=size,
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=places,
            initializer_range=0.2,
        )
        return transformers.BertModel(config, add_pooling_layer=False).eval()
    config = transformers.DistilBertConfig(
        vocab_size=size, dim=HIDDEN, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64,
        initializer_range=0.2,
    )  # fmt: skip
    return transformers.DistilBertModel(config).eval()


def make_model(
    folder: Path,
    *,
    seed: int = 0,
    kind: str = "bert",
    bits: int = BITS,
    planes: int = 2,
    projected: bool = True,
    onnx: bool = True,
    int8: bool = True,
    **settings: Any,
) -> Model:
    """A whole model folder; settings: as for Model."""
    import torch

    from bpr.training.export import export_onnx
    from bpr.training.tower import Head, Tower, save_model

    given = {"pooling": "mean", "question_length": 16, "passage_length": LENGTH, **settings}
    model = Model("tiny", bits, **given)
    model = two_planes(model) if planes == 2 else model
    towers = []
    for side in ("passage",) if model.shared else ("question", "passage"):
        body = backbone(seed + (side == "question"), kind)
        head = Head(HIDDEN, bits, projected)
        with torch.no_grad():
            head.sigma.uniform_(0.3, 1.2)
            if head.projection is not None:
                head.projection.weight.normal_(std=0.3)
                head.projection.bias.normal_(std=0.1)
        towers.append(Tower(body, head, model, side))
    folder.mkdir(parents=True, exist_ok=True)
    model = save_model(folder, model, towers, write_tokenizer(folder / "tokenizer.json"))
    if onnx:
        export_onnx(folder, int8=int8)
    return model


def make_reader(
    folder: Path, *, seed: int = 0, onnx: bool = True, int8: bool = True, kind: str = "bert", **settings: Any
) -> ReaderModel:
    """A whole folder of a reader with random weights; settings: as for ReaderModel."""
    import torch

    from bpr.training.reader import Reader, save
    from bpr.training.readerexport import export_reader

    model = ReaderModel("tiny reader", **{"length": 96, "question_length": 16, **settings})
    reader = Reader(backbone(seed, kind, places=128))
    with torch.no_grad():
        reader.head.weight.normal_(std=0.5)
    folder.mkdir(parents=True, exist_ok=True)
    model = save(folder, reader, model, write_tokenizer(folder / "tokenizer.json"))
    if onnx:
        export_reader(folder, int8=int8)
    return model
