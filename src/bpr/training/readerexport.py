"""From a reader's float weights to the ONNX graph that bpr/reader.py runs, in int8 or in float32.

`bpr export` calls it for a folder with a reader. The graph is bertgraph.py's, with a head for every token; the engine's
products are eight outputs wide, so the three of a reader (start, end, score) are followed by five that are 0. Knows a
reader's folder and graphs; nothing of questions or losses.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import model as models
from .. import reader as readers
from ..disk import replacing, storage_error
from ..encoder import Tokenized, open_graph
from ..errors import InvalidInput
from ..model import Model
from ..pieces import Cutter
from ..reader import TITLE, ReaderModel
from . import bertgraph
from .export import SAMPLE_TEXTS, sample_texts, split
from .reader import HOME, Reader, load
from .tower import Head, Tower, width

if TYPE_CHECKING:
    from ..records import Progress

BITS = 8  # outputs of the graph
QUESTION_WORDS = 12
LEAST_AGREEMENT = 0.9  # of logits with float32; below it the export is broken, not merely rounded


@dataclass(frozen=True)
class ExportedReader:
    """What an export made: where, its bytes, and how its logits correlate with float32's."""

    folder: Path
    bytes: int
    agreement: float


def export_reader(
    folder: str | Path,
    out: str | Path | None = None,
    int8: bool = True,
    texts: Sequence[tuple[str, str, str]] | None = None,
    progress: Progress | None = None,
) -> ExportedReader:
    """Write reader.onnx and enter it into reader.json.

    out: another folder, which gets the graph, the tokenizer and reader.json, but not the float weights; it may be that
    of a retrieval model with the same tokenizer. None: the same folder. texts: (question, title, text) triples by which
    int8 weights are rounded, as export.export_onnx does it; None: each to the nearest byte.
    """
    source = models.resolve(folder)
    target = source if out is None else Path(out)
    reader, model = load(source)
    cutter = Cutter(source / models.TOKENIZER)
    shown = [_sequence(cutter, model, triple) for triple in (_random(cutter) if texts is None else texts)]
    kept, seen = (shown, shown) if texts is None else split(shown, "pairs of question and passage")
    tower = _tower(reader, model)
    if not bertgraph.fits(tower):
        kind = getattr(reader.backbone.config, "model_type", "?")
        raise InvalidInput(f"{source} is a reader of the kind {kind!r}, and bpr exports readers of the kind 'bert'")
    sizes = [each.ids[None] for each in seen[:SAMPLE_TEXTS]] if int8 else None
    graph = bertgraph.bert(tower, sizes, seen if int8 and texts is not None else (), progress, tokens=True)
    path = target / readers.GRAPH
    try:
        target.mkdir(parents=True, exist_ok=True)
        if target != source:
            _take_tokenizer(source, target)
        with replacing(path) as [file]:
            file.write(graph.SerializeToString())
    except OSError as error:
        raise storage_error("write", path, error) from error
    floats = [name for name in readers.load_model(source)[1] if target == source and name.startswith(HOME)]
    readers.save_model(target, model, [*floats, models.TOKENIZER, readers.GRAPH])
    return ExportedReader(target, path.stat().st_size, _agreement(reader, model, path, kept))


def triples(passages: Sequence[tuple[str, str]], questions: Sequence[str] | None) -> list[tuple[str, str, str]]:
    """Question, title and text: passages (title, text) with questions, as many as there are; None: their beginnings."""
    asked = [" ".join(text.split()[:QUESTION_WORDS]) for _, text in passages] if questions is None else questions
    return [(question, *passage) for question, passage in zip(asked, passages, strict=False)]


def _random(cutter: Cutter) -> list[tuple[str, str, str]]:
    """Random words, to see which channels are large."""
    return triples(sample_texts(cutter), None)


def _take_tokenizer(source: Path, target: Path) -> None:
    """The reader's tokenizer; one that a retrieval model has there already must be the same."""
    theirs = target / models.TOKENIZER
    if theirs.exists() and models.sha256(theirs) != models.sha256(source / models.TOKENIZER):
        raise InvalidInput(f"{theirs} is another tokenizer than the reader's: choose another folder")
    shutil.copyfile(source / models.TOKENIZER, theirs)


def _tower(reader: Reader, model: ReaderModel) -> Tower:
    """The reader as bertgraph.py knows networks."""
    head = Head(width(reader.backbone), BITS)
    assert head.projection is not None
    with torch.no_grad():
        head.projection.weight.zero_()
        head.projection.bias.zero_()
        head.projection.weight[:3] = reader.head.weight
        head.projection.bias[:3] = reader.head.bias
    known = Model(
        "reader", BITS, token_types=model.token_types, question_length=model.length, passage_length=model.length
    )
    return Tower(reader.backbone, head, known, "passage")


def _sequence(cutter: Cutter, model: ReaderModel, triple: tuple[str, str, str]) -> Tokenized:
    """One window, as bpr/reader.py makes them."""
    question, title, text = (
        piece.ids[:most]
        for piece, most in zip(
            cutter.cut(triple, model.length), (model.question_length, TITLE, model.length), strict=True
        )
    )
    text = text[: model.room(len(question), len(title))]
    head = [[cutter.cls], question, [cutter.sep]]
    tail = [*([title, [cutter.sep]] if len(title) else []), text, [cutter.sep]]
    ids = np.concatenate([*head, *tail]).astype(np.int64)
    return Tokenized(ids, (np.arange(len(ids)) >= len(question) + 2).astype(np.int64))


@torch.inference_mode()
def _agreement(reader: Reader, model: ReaderModel, path: Path, samples: Sequence[Tokenized]) -> float:
    """How the logits of the exported graph correlate with torch's."""
    graph = open_graph(path)
    ours, theirs = [], []
    for ids, segments in samples:
        given = {"token_type_ids": torch.from_numpy(segments[None])} if model.token_types else {}
        states: Tensor = reader.backbone(input_ids=torch.from_numpy(ids[None]), **given).last_hidden_state
        expected: NDArray[np.float32] = nn.functional.linear(states[0], reader.head.weight, reader.head.bias).numpy()
        found = graph.run("logits", ids, segments)[:, :3]
        ours.append(found - found.mean(0))
        theirs.append(expected - expected.mean(0))
    same = float(np.corrcoef(np.concatenate(ours).ravel(), np.concatenate(theirs).ravel())[0, 1])
    if not same >= LEAST_AGREEMENT:
        raise InvalidInput(
            f"the exported reader's logits correlate only by {same:.2f} with float32's: export it with int8 off "
            "(--float32), and report it"
        )
    return same
