"""Training data as arrays: every text cut into tokens once, every example as numbers. Training reads nothing else.

A folder of .npy files, so that it can be made on one machine and trained with on another. `bpr train` makes it from
passages and examples; batches.py, building.py and run.py read it. Knows tokenizers; nothing of torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .. import model as models
from ..disk import storage_error
from ..errors import InvalidInput
from ..passages import DuplicateId, read
from ..pieces import CHARACTERS_PER_TOKEN
from ..records import Progress
from .data import Example, hold_out

FACTS = "prepared.json"
LONGEST = 512  # tokens of a text that are kept: what BERT's positions allow
BLOCK = 8192  # texts that are tokenised together


@dataclass(frozen=True)
class Ragged:
    """Many short arrays in one: the i-th is flat[starts[i]:starts[i + 1]]."""

    flat: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Iterable[Sequence[int] | NDArray[Any]], dtype: type[np.generic]) -> Ragged:
        """Join them."""
        arrays = [np.asarray(part, dtype) for part in parts]
        starts = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(part) for part in arrays], out=starts[1:])
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), starts)

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray[Any]:
        """The i-th."""
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """One after the other."""
        return map(self.__getitem__, range(len(self)))

    def save(self, folder: Path, name: str) -> None:
        """As two .npy files."""
        np.save(folder / f"{name}.npy", self.flat, allow_pickle=False)
        np.save(folder / f"{name}.starts.npy", self.starts, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, name: str) -> Ragged:
        """What `save` wrote; read when it is needed."""
        return cls(
            *(np.load(folder / f, mmap_mode="r", allow_pickle=False) for f in (f"{name}.npy", f"{name}.starts.npy"))
        )


@dataclass(frozen=True)
class Prepared:
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

    def save(self, folder: Path) -> None:
        """Write the folder; the facts last, so that a folder that has them is whole."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FACTS).unlink(missing_ok=True)
            for name in self.RAGGED:
                getattr(self, name).save(folder, name)
            np.save(folder / "held.npy", self.held, allow_pickle=False)
            np.save(folder / "trainable.npy", self.trainable, allow_pickle=False)
            (folder / FACTS).write_text(json.dumps(self.facts, indent=2) + "\n")
        except OSError as error:
            raise storage_error("write", folder, error) from error

    @classmethod
    def load(cls, folder: str | Path) -> Prepared:
        """Read what `save` wrote."""
        home = Path(folder)
        try:
            parts: dict[str, Any] = {"facts": json.loads((home / FACTS).read_text())}
            parts |= {name: Ragged.load(home, name) for name in cls.RAGGED}
            parts |= {name: np.load(home / f"{name}.npy", allow_pickle=False) for name in ("held", "trainable")}
            return cls(**parts)
        except (OSError, EOFError, ValueError) as error:
            raise InvalidInput(f"{home} is not training data that `bpr train` prepared: {error}") from error

    def fingerprint(self) -> str:
        """sha256 of all arrays: what a ledger remembers of its data."""
        total = hashlib.sha256()
        for name in self.RAGGED:
            ragged: Ragged = getattr(self, name)
            total.update(np.ascontiguousarray(ragged.flat).data)
            total.update(np.ascontiguousarray(ragged.starts).data)
        total.update(self.held.tobytes() + self.trainable.tobytes())
        return total.hexdigest()

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
    cut = _cutter(tokenizer)
    special = _special(cut)
    every = list(examples)
    train, held = hold_out(every, held_share, seed) if held_share else (every, [])
    every = [*train, *held]
    rows, titles, texts = _passages(passages, cut, say)
    for example in every:
        if not example.positives:
            raise InvalidInput(f"the example {example.question[:60]!r} has no positives: nothing to learn from it")
    trainable = np.ones(len(rows), bool)
    for example in [*held, *reserved]:
        trainable[[_row(rows, each, example) for each in example.positives]] = False
    positives = [[_row(rows, each, example) for each in example.positives] for example in every]
    negatives = [[_row(rows, each, example) for each in example.negatives] for example in every]
    questions: list[list[int]] = []
    for some in _blocks(every, BLOCK):
        questions += _tokens(cut, [example.question for example in some])
        say("cutting questions into tokens", len(questions), len(every))
    counts = {"passages": len(rows), "train": len(train), "held": len(held)}
    source = {"tokenizer": models.sha256(Path(tokenizer))}
    return Prepared(
        titles,
        texts,
        Ragged.of(questions, _width(cut)),
        Ragged.of(positives, np.int32),
        Ragged.of(negatives, np.int32),
        np.arange(len(every)) >= len(train),
        trainable,
        {**special, **counts, **source},
    )


def _cutter(path: str | Path) -> Tokenizer:
    """A tokenizer that cuts texts into tokens and does nothing else to them."""
    try:
        cut = Tokenizer.from_file(str(path))
    except Exception as error:  # what the library raises has no type of its own
        raise InvalidInput(f"{path} is not a tokenizer.json: {error}") from error
    cut.no_truncation()
    cut.no_padding()
    return cut


def _passages(source: str | Path, cut: Tokenizer, say: Progress) -> tuple[dict[str, int], Ragged, Ragged]:
    """The row of each id; titles and texts."""
    rows: dict[str, int] = {}
    titles: list[list[int]] = []
    texts: list[list[int]] = []
    for block in _blocks(read(source), BLOCK):
        for passage in block:
            row = len(rows)
            if rows.setdefault(passage.id, row) != row:
                raise DuplicateId(passage.id, rows[passage.id], row).in_file(Path(source))
        titles += _tokens(cut, [passage.title for passage in block])
        texts += _tokens(cut, [passage.text for passage in block])
        say("cutting passages into tokens", len(rows), None)
    return rows, Ragged.of(titles, _width(cut)), Ragged.of(texts, _width(cut))


def _special(cut: Tokenizer) -> dict[str, Any]:
    """The tokens that training knows by number."""
    special = {name: cut.token_to_id(token) for name, token in (("cls", "[CLS]"), ("sep", "[SEP]"), ("pad", "[PAD]"))}
    if None in special.values():
        raise InvalidInput("the tokenizer has no [CLS], [SEP] and [PAD]: bpr trains BERT-like encoders")
    ends = [cut.token_to_id(mark) for mark in ".!?"]
    return {**special, "ends": [end for end in ends if end is not None]}


def _tokens(cut: Tokenizer, texts: list[str]) -> list[list[int]]:
    # Characters are cut first, as encoder.py does it: a text of megabytes would be tokenised for nothing.
    short = [text[: LONGEST * CHARACTERS_PER_TOKEN] for text in texts]
    return [encoding.ids[:LONGEST] for encoding in cut.encode_batch(short, add_special_tokens=False)]


def _width(cut: Tokenizer) -> type[np.generic]:
    return np.uint16 if cut.get_vocab_size() < 1 << 16 else np.int32


def _row(rows: dict[str, int], id: str, example: Example) -> int:
    try:
        return rows[id]
    except KeyError:
        raise InvalidInput(
            f"the example {example.question[:60]!r} names the passage {id!r}, which the passages lack"
        ) from None


def _blocks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
