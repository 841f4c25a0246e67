"""Training data as arrays: every text cut into tokens once, every example as numbers. Training reads nothing else.

`bpr train` makes it from passages and examples, as a folder (arrays.py); batches.py, building.py and run.py read it.
Knows tokens and examples; nothing of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import model as models
from ..errors import InvalidInput
from ..pieces import Cutter
from ..records import Progress
from .arrays import ArrayFolder, Ragged, numbered, row_of
from .data import Example, hold_out

FACTS = "prepared.json"
LONGEST = 512  # tokens of a text that are kept: what BERT's positions allow
BLOCK = 8192  # texts that are tokenised together


@dataclass(frozen=True)
class Prepared(ArrayFolder):
    """Passages and examples as numbers.

    titles, texts, questions: tokens without special ones. positives, negatives: rows of passages, of each question.
    held: questions kept for validation. trainable: rows that training may look at (no positive of a held or reserved
    question). facts: the special tokens, how much there is of what, and which tokenizer cut it.
    """

    titles: Ragged
    texts: Ragged
    questions: Ragged
    positives: Ragged
    negatives: Ragged
    held: NDArray[np.bool_]
    trainable: NDArray[np.bool_]
    facts: dict[str, Any]

    RAGGED = ("titles", "texts", "questions", "positives", "negatives")
    PLAIN = ("held", "trainable")
    FACTS_FILE, REFUSAL = FACTS, "training data that `bpr train` prepared"

    def passage(self, row: int, longest: int, titled: bool = True) -> NDArray[np.int64]:
        """[CLS] title [SEP] text [SEP], as encoder.py makes it."""
        title = self.titles[row] if titled else ()
        return self.joined(title, self.texts[row], longest)

    def question(self, i: int, longest: int) -> NDArray[np.int64]:
        """[CLS] question [SEP]"""
        return self.joined((), self.questions[i], longest)

    def joined(
        self, title: Sequence[int] | NDArray[Any], text: Sequence[int] | NDArray[Any], longest: int
    ) -> NDArray[np.int64]:
        """Special tokens around a title (where there is one) and a text; the longer of both is cut first.

        Exactly as tokenizers' longest_first does it: if both are longer than half, the longer one gets the odd token.
        """
        cls, sep = self.facts["cls"], self.facts["sep"]
        room = longest - (3 if len(title) else 2)
        if len(title) and len(title) + len(text) > room:
            half = room // 2 if len(title) <= len(text) else room - room // 2
            title = title[: max(room - len(text), half)]
        text = text[: room - len(title)]
        parts = ([cls], title, [sep], text, [sep]) if len(title) else ([cls], text, [sep])
        return np.concatenate([np.asarray(part, np.int64) for part in parts])


def prepare(
    passages: str | Path,
    examples: Iterable[Example],
    tokenizer: str | Path,
    *,
    reserved: Iterable[Example] = (),
    held_share: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Prepared:
    """Tokenise a passages file and number the examples' passages.

    held_share: of the groups (articles), kept out of training for validation. reserved: examples of test sets, whose
    positives training must not see at all.
    """
    say = progress or (lambda what, done, total: None)
    cutter = Cutter(Path(tokenizer))
    every = list(examples)
    train, held = hold_out(every, held_share, seed) if held_share else (every, [])
    every = [*train, *held]
    rows, titles, texts = _passages(passages, cutter, say)
    for example in every:
        if not example.positives:
            raise InvalidInput(f"the example {example.question[:60]!r} has no positives: nothing to learn from it")
    trainable = np.ones(len(rows), bool)
    for example in [*held, *reserved]:
        trainable[[row_of(rows, each, example) for each in example.positives]] = False
    positives = [[row_of(rows, each, example) for each in example.positives] for example in every]
    negatives = [[row_of(rows, each, example) for each in example.negatives] for example in every]
    questions: list[list[int]] = []
    for some in _blocks(every, BLOCK):
        questions += cutter.ids([example.question for example in some], LONGEST)
        say("cutting questions into tokens", len(questions), len(every))
    ends = [token for token in map(cutter.id_of, ".!?") if token is not None]
    special = {"cls": cutter.cls, "sep": cutter.sep, "pad": cutter.pad, "ends": ends}
    counts = {"passages": len(rows), "train": len(train), "held": len(held)}
    source = {"tokenizer": models.sha256(Path(tokenizer))}
    return Prepared(
        titles,
        texts,
        Ragged.of(questions, _width(cutter)),
        Ragged.of(positives, np.int32),
        Ragged.of(negatives, np.int32),
        np.arange(len(every)) >= len(train),
        trainable,
        {**special, **counts, **source},
    )


def _passages(source: str | Path, cutter: Cutter, say: Progress) -> tuple[dict[str, int], Ragged, Ragged]:
    """The row of each id; titles and texts."""
    rows: dict[str, int] = {}
    titles: list[list[int]] = []
    texts: list[list[int]] = []
    for block in _blocks(numbered(source, rows), BLOCK):
        titles += cutter.ids([passage.title for passage in block], LONGEST)
        texts += cutter.ids([passage.text for passage in block], LONGEST)
        say("cutting passages into tokens", len(rows), None)
    return rows, Ragged.of(titles, _width(cutter)), Ragged.of(texts, _width(cutter))


def _width(cutter: Cutter) -> type[np.generic]:
    return np.uint16 if cutter.size < 1 << 16 else np.int32


def _blocks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
