"""What is compared: passages, questions, and how each model sees them (its Side).

Vectors come from files, codes from a bundle, or a model makes them here: into FOLDER/vectors, part by part, so that a
killed run goes on where it was. compare/__init__.py calls it; it must not know which rows the tables have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import passages as files
from .. import retriever
from ..builder import PART_ROWS, part_key
from ..codes import Codes, Floats, finite, pack, pack_largest
from ..disk import make_folders, replacing
from ..encoder import Encoder, Encodes, Vectors
from ..errors import InvalidInput
from ..given import load_vectors
from ..index import Planes
from ..model import Model
from ..parts import Parts
from ..questions import Question
from ..records import Passage, Progress
from ..stages import CANDIDATES

SEED = 0  # of --sample
FLOAT, BITS, ONE = "float", "bits", "one plane"  # the sides
By: TypeAlias = Literal["gold", "answer"]
Rows: TypeAlias = NDArray[np.int64]


# ── Passages and questions ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Corpus:
    """Passages and questions that are looked at. rows, asked: which of the files' passages and questions they are.

    by: what makes a passage right, that it is a question's gold passage or that it holds an answer. regex: answers are
    regular expressions. total: passages and questions of the files. notes: what a reader of the figures should know.
    """

    passages: Sequence[Passage]
    questions: Sequence[Question]
    rows: Rows
    asked: Rows
    total: tuple[int, int]
    by: By
    regex: bool = False
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Of all that decides which passages are right for a question."""
        gold = self.by == "gold"
        each = [[q.id, q.text, sorted(q.gold) if gold else list(q.answers)] for q in self.questions]
        pile = [[p.id] if gold else [p.id, p.title, p.text] for p in self.passages]
        return hashlib.sha256(json.dumps([self.by, self.regex, each, pile]).encode()).hexdigest()


def corpus(
    passages: str | Path,
    questions: Sequence[Question],
    *,
    by: By | None = None,
    regex: bool = False,
    sample: int | None = None,
) -> Corpus:
    """The passages of a file and the questions; sample: so many questions, their gold passages, and so many others."""
    pile, asked = list(files.read(passages)), list(questions)
    where: dict[str, int] = {}
    for number, passage in enumerate(pile):
        if where.setdefault(passage.id, number) != number:
            raise files.DuplicateId(passage.id, where[passage.id], number)
    by, notes = by or _by(asked), []
    gold = {row for q in asked for each in q.gold if (row := where.get(each)) is not None}
    if by == "gold":
        lost = sum(not any(each in where for each in q.gold) for q in asked)
        if lost == len(asked):
            raise InvalidInput(
                f"no gold passage of the {lost:,} questions is in {passages}: are these the passages that they were "
                "asked about, and the ids those of `bpr convert` (--prefix)?"
            )
        if lost:
            notes.append(f"{lost:,} of {len(asked):,} questions have no gold passage among the passages: never found")
    rows, which = np.arange(len(pile)), np.arange(len(asked))
    if sample is not None:
        rows, which = _sampled(sample, where, asked, len(pile))
        notes.append(f"a sample: {len(rows):,} of {len(pile):,} passages, {len(which):,} of {len(asked):,} questions")
    elif by == "answer" and gold:
        notes.append("passages count as right if an answer stands in them, not only gold ones")
    some = [asked[i] for i in which], [pile[i] for i in rows]
    return Corpus(some[1], some[0], rows, which, (len(pile), len(asked)), by, regex, tuple(notes))


def _by(questions: Sequence[Question]) -> By:
    """Gold passages where all questions have them, as in the reports of this project; answers where all have those."""
    if all(question.gold for question in questions):
        return "gold"
    if all(question.answers for question in questions):
        return "answer"
    raise InvalidInput("some questions have no gold passages and some no answers: say by which to judge (--by)")


def _sampled(count: int, where: dict[str, int], questions: Sequence[Question], rows: int) -> tuple[Rows, Rows]:
    random = np.random.default_rng(SEED)
    asked = np.sort(random.choice(len(questions), min(count, len(questions)), replace=False))
    gold = {where[each] for i in asked for each in questions[i].gold if each in where}
    others = np.setdiff1d(np.arange(rows), np.fromiter(gold, np.int64, len(gold)))
    more = random.choice(others, min(count, len(others)), replace=False)
    return np.sort(np.concatenate([np.fromiter(gold, np.int64, len(gold)), more])), asked


# ── How a model sees them ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Source:
    """Where a side comes from: a model, with its vectors (passages', questions') or its bundle if they are there."""

    model: str | Path | None = None
    vectors: tuple[Path, Path] | None = None
    bundle: Path | None = None


@dataclass(frozen=True)
class Side:
    """What one model makes of the corpus.

    data: float[n, dimensions], or the bits of a model that was trained for them. questions: float[q, dimensions].
    candidates: the model's own l.
    """

    label: str
    data: Floats | Planes
    questions: Floats
    candidates: int
    fingerprint: str

    @property
    def planes(self) -> Planes:
        """The bits; only of a side that has some."""
        assert isinstance(self.data, Planes)
        return self.data

    @property
    def shape(self) -> tuple[int, int]:
        """Passages, and dimensions of their vectors or codes."""
        if isinstance(self.data, Planes):
            return len(self.data.signs), self.data.bits
        return len(self.data), int(self.data.shape[1])


def side(source: Source, found: Corpus, folder: Path, name: str, *, threads: int | None = None, say: Progress) -> Side:
    """One model's view. name: FLOAT takes its vectors as they are, whatever it was trained for; BITS and ONE, as codes.

    folder: where vectors that are made here go, into FOLDER/vectors.
    """
    data: Floats | Planes
    bits = name != FLOAT
    if source.bundle is not None:
        label, data, asked, candidates = _from_bundle(source, found, folder, threads, say)
    else:
        model, vectors, asked = _vectors(source, found, folder, threads, say)
        label, candidates = ("vectors", CANDIDATES) if model is None else (model.name, model.candidates)
        if bits and model is None:
            raise InvalidInput("vectors alone do not say how they become bits: name their model too (--model)")
        data = planes_of(vectors, model) if bits and model is not None else vectors
    if name == ONE and isinstance(data, Planes) and data.magnitudes is not None:
        raise InvalidInput(f"{source.model} has two planes, and --one-plane is for a model of one")
    arrays = [data.signs, data.magnitudes] if isinstance(data, Planes) else [data]
    return Side(label, data, asked, candidates, _sum([*arrays, asked]))


def planes_of(vectors: Floats, model: Model) -> Planes:
    """The codes that the builder would make."""
    if vectors.shape[1] != model.bits:
        raise InvalidInput(f"the vectors have {vectors.shape[1]} dimensions, and the model {model.name!r} {model.bits}")
    if model.large is None:
        return Planes(pack(vectors))
    return Planes(pack(vectors), pack_largest(vectors, model.large), model.levels)


def _from_bundle(
    source: Source, found: Corpus, folder: Path, threads: int | None, say: Progress
) -> tuple[str, Planes, Floats, int]:
    assert source.bundle is not None
    with retriever.open(source.bundle, model=source.model) as opened:
        if len(opened) != found.total[0]:
            raise InvalidInput(
                f"{source.bundle} holds {len(opened):,} passages and the file {found.total[0]:,}: they must be the same"
            )
        for ours, theirs in zip(found.passages, opened.passages.get(found.rows), strict=True):
            if ours.id != theirs.id:
                raise InvalidInput(
                    f"{source.bundle} has {theirs.id!r} where the passages have {ours.id!r}: another order"
                )
        planes = opened.index.planes.take(found.rows)
        asked = encoded_questions(opened.encoder, found, folder, threads, say)
        return opened.encoder.model.name, planes, asked, opened.candidates


def _vectors(
    source: Source, found: Corpus, folder: Path, threads: int | None, say: Progress
) -> tuple[Model | None, Floats, Floats]:
    """The model, if it is named, and both kinds of vectors."""
    encoder = None if source.model is None else Encoder.open(source.model)
    if source.vectors is not None:
        both = [_given(path, found, kind) for kind, path in enumerate(source.vectors)]
        if both[0].shape[1] != both[1].shape[1]:
            raise InvalidInput(
                f"{source.vectors[0]} has {both[0].shape[1]} dimensions and {source.vectors[1]} {both[1].shape[1]}: "
                "they must come from one model"
            )
        return None if encoder is None else encoder.model, both[0], both[1]
    if encoder is None:
        raise InvalidInput("name a model, or give the vectors of passages and questions")
    asked = encoded_questions(encoder, found, folder, threads, say)
    return encoder.model, encoded_passages(encoder, found, folder, threads, say), asked


def _given(path: Path, found: Corpus, kind: int) -> Floats:
    """The rows that are looked at, of a file with as many rows as there are passages (kind 0) or questions (1)."""
    vectors, what = load_vectors(path), ("passages", "questions")[kind]
    if len(vectors) != found.total[kind]:
        raise InvalidInput(
            f"{path} has {len(vectors):,} vectors, and there are {found.total[kind]:,} {what}: row i must be of the "
            f"i-th of the {what}"
        )
    rows = (found.rows, found.asked)[kind]
    some = vectors if len(rows) == len(vectors) else vectors[rows]
    finite(some)
    return some


# ── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encoded_passages(encoder: Encodes, found: Corpus, folder: Path, threads: int | None, say: Progress) -> Floats:
    """float32[n, bits], in FOLDER/vectors."""
    pairs = [(passage.title, passage.text) for passage in found.passages]
    return _encoded(encoder, "passages", pairs, lambda some: encoder.passages(some, threads=threads), folder, say)


def encoded_questions(encoder: Encodes, found: Corpus, folder: Path, threads: int | None, say: Progress) -> Floats:
    """float32[q, bits], in FOLDER/vectors."""
    pairs = [("question", question.text) for question in found.questions]
    return _encoded(
        encoder, "questions", pairs, lambda some: encoder.questions([text for _, text in some], threads=threads),
        folder, say,
    )  # fmt: skip


def _encoded(
    encoder: Encodes,
    what: str,
    pairs: Sequence[tuple[str, str]],
    encode: Callable[[list[tuple[str, str]]], Vectors],
    folder: Path,
    say: Progress,
) -> Floats:
    """The vectors in a file of their own, named by what they were made from; what a killed run had made is kept."""
    model = encoder.model
    key = part_key(pairs, encoder)
    path = folder / "vectors" / f"{what}-{model.fingerprint[:8]}-{key.hex()[:16]}.npy"
    if path.exists():
        return load_vectors(path)
    make_folders(path.parent)
    parts = Parts(path)
    with replacing(path) as [file]:
        head = np.lib.format.header_data_from_array_1_0(np.empty((0, model.bits), np.float32))
        np.lib.format.write_array_header_1_0(file, {**head, "shape": (len(pairs), model.bits)})
        for number, first in enumerate(range(0, len(pairs), PART_ROWS)):
            say(f"{model.name}: encoding {what}", first, len(pairs))
            some = list(pairs[first : first + PART_ROWS])
            own = part_key(some, encoder)
            kept = parts.get(number, own, 4 * len(some) * model.bits)
            if kept is None:
                kept = finite(encode(some), first).tobytes()
                parts.put(number, own, kept)
            file.write(kept)
        say(f"{model.name}: encoding {what}", len(pairs), len(pairs))
    parts.remove()
    return load_vectors(path)


def _sum(arrays: Sequence[Floats | Codes | None]) -> str:
    """sha256 of arrays: of their types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype} {array.shape}".encode())
            for first in range(0, len(array), PART_ROWS):
                digest.update(np.ascontiguousarray(array[first : first + PART_ROWS]).data)
    return digest.hexdigest()
