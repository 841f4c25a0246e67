"""bpr and Sentence Transformers, both ways: a model of bpr there, and any of their models here.

Users call it. `load` makes a SentenceTransformer of a bpr model's float weights, out of modules of theirs alone, so
that what it saves is read without bpr. `STEncoder` is an encoder for `bpr.build` and `bpr.open`; the builder makes bits
of its vectors. Knows their modules and training/tower.py; nothing of bundles.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import model as models
from ..encoder import Vectors, checked_texts
from ..errors import Cancelled, DeadlineExceeded, InvalidInput
from ..kernels import Cancel, Limits
from ..model import Model
from ..pieces import beginning, check_text
from ..transform import Transform

try:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        Module,
        Normalize,
        Pooling,
        Router,
        Transformer,
    )

    from ..training.tower import CONFIG, HEAD, WEIGHTS, Head, Side, home, load_head, quiet_bars
except ImportError as error:
    raise ImportError(
        "bpr.integrations.sentence_transformers needs sentence-transformers, version 6: "
        f"pip install 'binary-passage-retriever[sentence-transformers]' ({error})",
        name="sentence_transformers",
    ) from error

# What a transformer computes beside what the shapes of its weights say.
ARCHITECTURE = (
    "model_type", "num_attention_heads", "num_key_value_heads", "n_heads", "hidden_act", "activation",
    "layer_norm_eps", "rope_theta",
)  # fmt: skip
UNUSED = ".pooler."  # of BERT, in no sentence's vector; where a file lacks it, it is drawn anew with every opening
BATCHES_AT_ONCE = 16
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # their names, in the order that encode_document looks for them


# ── A model of bpr there ─────────────────────────────────────────────────────────────────────────────────────────────


def load(folder: str | Path, device: str | None = None) -> SentenceTransformer:
    """The model in a bpr model folder, from its float weights: a SentenceTransformer with a route for each side.

    encode_query(text) is bpr's vector of a question, encode_document(text) that of a passage without a title, and
    encode_document([(title, text)]) that of one with a title. Vectors are compared by their dot product. device: as
    Sentence Transformers names it; None for what it would choose.
    """
    where = models.resolve(folder)
    model, files = models.load(where)
    models.check_file(where, models.TOKENIZER, files)
    passage = _side(where, "passage", model, files)
    question = passage if model.shared else _side(where, "question", model, files)
    router = Router.for_query_document(
        query_modules=[*question[0], *_last(question[1], "question")],
        document_modules=[*passage[0], *_last(passage[1], "passage")],
    )
    return SentenceTransformer(modules=[router], similarity_fn_name="dot", device=device)


def _side(where: Path, side: Side, model: Model, files: Any) -> tuple[list[Module], Head]:
    """A side's modules up to its pooled vector, and its head. A shared model's passage side reads questions too."""
    encoder = home(where, side, model)
    config, weights = (models.check_file(where, f"{encoder.name}/{name}", files) for name in (CONFIG, WEIGHTS))
    length = model.passage_length if side == "passage" else model.question_length
    with _staged(config, weights, where / models.TOKENIZER, model) as folder, quiet_bars():
        # As training loads it: neither code nor weights that are not safetensors, and nothing from the network.
        safe = {"trust_remote_code": False, "local_files_only": True}
        transformer = Transformer(
            str(folder),
            model_kwargs={"use_safetensors": True, "dtype": "float32", **safe, **_bare(config)},
            processor_kwargs=dict(safe),
            config_kwargs=dict(safe),
            max_seq_length=length,
            query_length=model.question_length if model.shared else None,
        )
    transformer.config._name_or_path = str(where)
    name = f"{encoder.name}/{HEAD}"
    head = load_head(models.check_file(where, name, files) if name in files else None, transformer.model, model)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=model.pooling)
    return [transformer, pooling, *([Normalize()] if model.normalize else [])], head


def _bare(config: Path) -> dict[str, bool]:
    """BERT's own pooler is in no sentence's vector, and not in the file; other architectures know no such option."""
    kind = json.loads(config.read_bytes()).get("model_type")
    return {"add_pooling_layer": False} if kind in ("bert", "roberta", "xlm-roberta", "camembert", "electra") else {}


def _last(head: Head, side: Side) -> list[Module]:
    """The projection, where there is one; a passage's in units of σ: (Wx + b) / σ = (W / σ)x + b / σ."""
    sigma, projection = head.sigma.detach(), head.projection
    if projection is not None:
        weight, bias = projection.weight.detach().clone(), projection.bias.detach().clone()
        if side == "passage":
            weight, bias = weight / sigma[:, None], bias / sigma
        outputs, inputs = weight.shape
        return [Dense(inputs, outputs, activation_function=None, init_weight=weight, init_bias=bias)]
    if side == "question" or bool((sigma == 1).all()):
        return []
    bits = len(sigma)
    return [Dense(bits, bits, bias=False, activation_function=None, init_weight=sigma.reciprocal().diag())]


@contextmanager
def _staged(config: Path, weights: Path, tokenizer: Path, model: Model) -> Iterator[Path]:
    """A folder as transformers wants it, with the tokenizer beside the weights; links, for weights may be large."""
    words = json.loads(tokenizer.read_bytes())["model"]["vocab"]
    padding = min(words, key=words.__getitem__) if isinstance(words, dict) else words[0][0]  # masked: any would do
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # as the file says, not as transformers thinks a BERT's to be
        "pad_token": padding,
        "model_input_names": ["input_ids", "attention_mask", *(["token_type_ids"] if model.token_types else [])],
    }
    with tempfile.TemporaryDirectory() as name:
        for file, role in ((config, CONFIG), (weights, WEIGHTS), (tokenizer, models.TOKENIZER)):
            os.symlink(file.resolve(), Path(name) / role)
        (Path(name) / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")
        yield Path(name)


# ── Any of their models here ─────────────────────────────────────────────────────────────────────────────────────────


class STEncoder:
    """A SentenceTransformer as the encoder of a bundle.

    encoder = STEncoder(SentenceTransformer("…"))
    bpr.build("passages.tsv", "wiki.bpr", model=encoder)
    bpr.open("wiki.bpr", model=encoder).search("who wrote the Iliad?")

    Prompts are the model's own, for queries and for documents. The bundle remembers a fingerprint of the weights, the
    tokenizer, the prompts and the settings below, and refuses another model.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        bits: Literal["posthoc", "trained"] = "posthoc",
        planes: Literal[1, 2] = 2,
        width: int | None = None,
        between: str | None = " ",
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        """bits: "posthoc" for vectors that nobody trained for bits: the bundle centres, rotates and scales them.

        "trained" for those whose signs are codes as they are, as of a model that bpr trained. planes: 2 for a magnitude
        bit beside each sign. width: bits of a code, with "posthoc" (default: as many as dimensions). between: stands
        between a title and its text; None: the tokenizer is given both as a pair, as bpr's own models are. seed: of the
        rotation.
        """
        if bits not in ("posthoc", "trained"):
            raise InvalidInput(f"bits must be 'posthoc' or 'trained', not {bits!r}")
        if width is not None and bits == "trained":
            raise InvalidInput("a trained model has settled its bits: leave width out")
        dimensions = model.get_embedding_dimension()
        if dimensions is None:
            raise InvalidInput("this SentenceTransformer does not say how many dimensions its vectors have")
        self._st, self._between, self._batch, self._seed = model, between, batch_size, seed
        self._dimensions = min(dimensions, model.truncate_dim or dimensions)
        # Not left to encode_document: every model has an empty prompt "document", which hides one named "passage".
        self._prompt = next(filter(None, map(model.prompts.get, DOCUMENT_PROMPTS)), "")
        length = model.max_seq_length
        self._length = length if isinstance(length, int) else None  # None and infinity: no limit
        plain = Model(
            name=_name(model),
            bits=width or self._dimensions,
            weights=_weights(model, {"bits": bits, "between": between, "dimensions": self._dimensions}),
            tokenizer=_tokenizer(model),
        )
        self.model: Model = models.two_planes(plain) if planes == 2 else plain
        # What the builder asks an encoder whose vectors were not trained for bits.
        self.fit: Callable[[Vectors], Transform] | None = self._fit if bits == "posthoc" else None

    @property
    def fingerprint(self) -> str:
        """What a bundle remembers of its model."""
        return self.model.fingerprint

    @property
    def engine(self) -> str:
        """Sentence Transformers, and where it runs."""
        return f"sentence-transformers {self._st.device.type} {self._st.dtype}"

    @property
    def at_once(self) -> int:
        """Batches are of texts of like length: the more there are to choose from, the less is padded."""
        return self._batch * BATCHES_AT_ONCE

    def questions(
        self,
        texts: Sequence[str],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """float32[n, dimensions]. threads: torch has its own."""
        for row, text in enumerate(checked_texts(texts, "questions")):
            check_text(text, f"question {row}")
        asked = list(map(self._short, texts))
        return self._encoded(self._st.encode_query, asked, Limits(threads, deadline, cancel))

    def passages(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """(title, text) pairs → float32[n, dimensions]; an empty title is none."""
        for row, pair in enumerate(checked_texts(pairs, "passages")):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InvalidInput(f"passage {row} must be a pair of title and text, not {type(pair).__name__}")
            for part, what in zip(pair, ("title", "text"), strict=True):
                check_text(part, f"the {what} of passage {row}")
        limits = Limits(threads, deadline, cancel)
        short = [(self._short(title), self._short(text)) for title, text in pairs]
        if self._between is not None:
            joined = [f"{title}{self._between}{text}" if title else text for title, text in short]
            return self._documents(joined, limits)
        vectors = np.empty((len(pairs), self._dimensions), np.float32)
        titled = np.array([bool(title) for title, _ in short], bool)
        vectors[titled] = self._documents([pair for pair in short if pair[0]], limits)
        vectors[~titled] = self._documents([text for title, text in short if not title], limits)
        return vectors

    def _short(self, text: str) -> str:
        return text if self._length is None else text[beginning(text, self._length)]

    def _documents(self, texts: Sequence[Any], limits: Limits) -> Vectors:
        return self._encoded(partial(self._st.encode_document, prompt=self._prompt), texts, limits)

    def _encoded(self, encode: Callable[..., Any], texts: Sequence[Any], limits: Limits) -> Vectors:
        """float32[n, dimensions], some at a time, so that a deadline is seen."""
        vectors = np.empty((len(texts), self._dimensions), np.float32)
        for first in range(0, len(texts), self.at_once):
            if limits.cancel is not None and limits.cancel.flag[0]:
                raise Cancelled("encoding was cancelled")
            if limits.deadline is not None and limits.seconds() <= 0:
                raise DeadlineExceeded("encoding did not end before its deadline")
            some = slice(first, first + self.at_once)
            found = encode(list(texts[some]), batch_size=self._batch, show_progress_bar=False, convert_to_numpy=True)
            vectors[some] = found
        return vectors

    def _fit(self, vectors: Vectors) -> Transform:
        """How these vectors become bits, measured on a sample of them: float32[n, dimensions]."""
        return Transform.fit(vectors, center=True, rotate=True, bits=self.model.bits, seed=self._seed)


# ── What decides the vectors of a SentenceTransformer ────────────────────────────────────────────────────────────────


def _weights(model: SentenceTransformer, settings: dict[str, Any]) -> str:
    """sha256 of all weights, of how the modules compute with them, and of prompts and settings."""
    facts = {
        **settings,
        "prompts": {name: text for name, text in model.prompts.items() if text},
        "modules": [_facts(name, module) for name, module in model.named_modules() if isinstance(module, Module)],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if UNUSED not in name:
            plain = tensor.detach().cpu().float().contiguous().numpy()
            digest.update(f"{name} {plain.shape}\n".encode())
            digest.update(plain.tobytes())
    return digest.hexdigest()


def _facts(name: str, module: Module) -> list[Any]:
    """What a module computes; of those that every model has only what matters, for versions write ever more."""
    if isinstance(module, Transformer):
        known = {each: getattr(module.config, each, None) for each in ARCHITECTURE}
        lengths = [module.max_seq_length, module.query_length, module.document_length]
        return [name, "Transformer", known, lengths]
    if isinstance(module, Pooling):
        return [name, "Pooling", module.pooling_mode, module.include_prompt]
    return [name, type(module).__name__, module.get_config_dict()]


def _tokenizer(model: SentenceTransformer) -> str:
    """sha256 of the tokenizer, but for what it was last told to cut and to pad."""
    backend = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    if not hasattr(backend, "to_str"):
        raise InvalidInput("this model's tokenizer is not one of the tokenizers library, so it cannot be recognised")
    facts = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _name(model: SentenceTransformer) -> str:
    """For people: where the transformer was loaded from."""
    config = getattr(model.transformers_model, "config", None)
    return Path(getattr(config, "_name_or_path", None) or "sentence-transformers").name
