"""A question and passages to answers on the CPU, without torch: where the answer stands, and how sure that is.

The retriever calls it. Knows a reader's folder, which may be that of a retrieval model too:

    NAME/reader.json        how texts are read, and how confidence is computed; size and sha256 of the other files
    NAME/reader.onnx        input_ids int64[1, n] (and token_type_ids) → logits float32[1, n, 3]: start, end, score
    NAME/tokenizer.json
    NAME/reader_encoder/    the same in float32, Hugging Face's layout, for training and GPUs; not in the wheel

What is read is [CLS] question [SEP] title [SEP] text [SEP]. A text that is longer than the window is read in several
windows that overlap, so that no answer is cut; of one that is longer than MOST_WINDOWS of them the rest is not read.
The graph runs on bpr's own engine or on ONNX Runtime, as the encoder's do (encoder.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import model as models
from .encoder import Engine, each_text, open_graph
from .errors import InvalidInput
from .kernels import Cancel, Limits
from .onnxfile import OnnxFile
from .pieces import Cutter, Ids, Pieces, check_text
from .records import Answer, Passage
from .spans import Borders, Calibration, Candidate, Mix, best_spans, log_sum, merged

CONFIG, GRAPH = "reader.json", "reader.onnx"
FORMAT, VERSION = "bpr-reader", 1
TITLE = 32  # tokens of a title, at most
LEAST_ROOM = 16  # tokens that a window must leave for the text
OVERLAP = 64  # tokens that two windows share: longer than any answer
MOST_WINDOWS = 8
START, END, SCORE = range(3)


@dataclass(frozen=True)
class ReaderModel:
    """How a reader reads.

    length: tokens of a window; question_length: of a question. token_types: title and text are segment 1.
    passages: how many it reads for a question unless told otherwise; its confidence is fitted for that number.
    threshold: below this confidence there is no answer. weights, tokenizer: sha256, as in model.Model.
    """

    name: str
    length: int = 350
    question_length: int = 64
    token_types: bool = False
    passages: int = 20
    threshold: float = 0.0
    mix: Mix = field(default_factory=Mix)
    calibration: Calibration = field(default_factory=Calibration)
    weights: str = ""
    tokenizer: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.question_length < 1 or self.room(self.question_length, TITLE) < LEAST_ROOM:
            raise InvalidInput(
                f"a window of {self.length} tokens is too short for questions of {self.question_length}, titles of "
                f"{TITLE} and some text"
            )
        if self.passages < 1 or not 0 <= self.threshold <= 1:
            raise InvalidInput("passages must be at least 1, and the threshold from 0 to 1")

    def room(self, question: int, title: int) -> int:
        """Tokens of a text that fit beside a question and a title of so many."""
        return self.length - question - 3 - (title + 1 if title else 0)


def save_model(folder: Path, model: ReaderModel, files: Iterable[str]) -> None:
    """Write reader.json over the files (relative to the folder) that belong to the reader."""
    models.write_facts(folder / CONFIG, {"format": FORMAT, "version": VERSION, **asdict(model)}, files)


def has_reader(folder: str | Path) -> bool:
    """Whether there is a reader in this folder that can be run."""
    home = models.resolve(folder)
    return (home / CONFIG).is_file() and (home / GRAPH).is_file()


def load_model(folder: str | Path) -> tuple[ReaderModel, Mapping[str, Mapping[str, Any]]]:
    """A folder's reader, and its files with their sizes and sums."""
    path = models.resolve(folder) / CONFIG
    missing = f"{path.parent} has no reader: there is no {CONFIG} (`bpr train-reader` and `bpr export` write one)"
    facts = models.read_facts(path, FORMAT, VERSION, "a reader of bpr", missing)
    try:
        values = {each.name: facts[each.name] for each in fields(ReaderModel)}
        made = {"mix": Mix(**values["mix"]), "calibration": Calibration(**values["calibration"])}
        files = {
            name: {"bytes": int(entry["bytes"]), "sha256": entry["sha256"]} for name, entry in facts["files"].items()
        }
        return ReaderModel(**{**values, **made}), files
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise InvalidInput(f"{path} is not what `bpr train-reader` writes: {error}") from error


class Found(NamedTuple):
    """A span that may be an answer. passage: its place in the list; start, end: characters of the passage's text."""

    passage: int
    start: int
    end: int
    score: float  # of its window
    logit: float  # start + end
    norm: float  # of its window


class _Window(NamedTuple):
    """What the network reads at once: a question, and a passage's text from its token `first` on."""

    passage: int
    first: int
    ids: Ids
    title: int  # where the title begins, or the text without one
    begin: int  # where the text lies among the ids
    end: int


class Reader:
    """A reader on the CPU. Threads may share one.

    reader = Reader.open("mini")
    reader.answer("who wrote the Iliad?", passages)                  # list[Answer], the best first
    """

    def __init__(self, folder: str | Path, threads: int | None = None, engine: Engine | None = None) -> None:
        """Made by `open`."""
        self.folder = models.resolve(folder)
        self.model, files = load_model(self.folder)
        self._cutter = Cutter(models.check_file(self.folder, models.TOKENIZER, files, CONFIG))
        self._graph = open_graph(models.check_file(self.folder, GRAPH, files, CONFIG), engine)
        wanted = {"input_ids", *(["token_type_ids"] if self.model.token_types else [])}
        if self._graph.inputs != wanted or "logits" not in self._graph.outputs:
            raise InvalidInput(f"{self.folder / GRAPH} is not the graph of a reader: make it with `bpr export`")
        self._threads = threads

    @classmethod
    def open(cls, folder: str | Path = "mini", threads: int | None = None, engine: Engine | None = None) -> Reader:
        """A folder with a reader. threads, engine: as for Encoder.open."""
        return cls(folder, threads, engine)

    @property
    def parameters(self) -> int:
        """Weights of the network."""
        constants = OnnxFile.open(self.folder / GRAPH).constants()
        return sum(each.size for name, each in constants.items() if not name.endswith(".scales"))

    @property
    def engine(self) -> str:
        """What computes it."""
        return self._graph.name

    def answer(
        self,
        question: str,
        passages: Sequence[Passage],
        n: int = 1,
        *,
        least: float | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> list[Answer]:
        """The n best different answers, best first; fewer where there are fewer, none where there is none.

        least: the confidence below which an answer is none (default: the reader's threshold).
        """
        found = self.read(question, passages, threads=threads, deadline=deadline, cancel=cancel)
        return self.answers(found, passages, n, least)

    def read(
        self,
        question: str,
        passages: Sequence[Passage],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> list[Found]:
        """The best spans of each passage, in the order of the passages. deadline: a value of time.monotonic()."""
        check_text(question, "the question")
        asked = self._cutter.cut([question], self.model.question_length)[0]
        if not len(asked.ids):
            raise InvalidInput(f"the question {question!r:.60} holds no words: ask something")
        for row, passage in enumerate(passages):
            check_text(passage.title, f"the title of passage {row}")
            check_text(passage.text, f"the text of passage {row}")
        titles = self._cutter.cut([passage.title for passage in passages], TITLE)
        most = self.model.length * MOST_WINDOWS
        texts = self._cutter.cut([passage.text for passage in passages], most)
        windows = [each for row in range(len(passages)) for each in self._windows(asked, titles[row], texts[row], row)]
        found: list[list[Found]] = [[] for _ in windows]

        def read(number: int) -> None:
            window = windows[number]
            found[number] = self._read(window, texts[window.passage], passages[window.passage].text)

        limits = Limits(self._threads if threads is None else threads, deadline, cancel)
        each_text(len(windows), read, limits)
        return list(_without_repeats(each for some in found for each in some))

    def answers(
        self, found: Sequence[Found], passages: Sequence[Passage], n: int = 1, least: float | None = None
    ) -> list[Answer]:
        """The n best different answers of what `read` found; see `answer`."""
        if n < 1:
            raise InvalidInput(f"n must be at least 1, not {n}")
        least = self.model.threshold if least is None else least
        ranked, (_, *sureness) = self._ranked(found, passages)
        best = []
        for candidate in ranked[:n]:
            confidence = self.model.calibration.confidence(candidate.probability, *sureness)
            place = found[candidate.span]
            if confidence >= least:
                best.append(Answer(candidate.text, confidence, passages[place.passage], place.start, place.end))
        return best

    def known(self, found: Sequence[Found], passages: Sequence[Passage]) -> tuple[float, float, float]:
        """What a calibration weighs of the best answer (spans.Calibration); zeros where there is none."""
        return self._ranked(found, passages)[1]

    def _ranked(
        self, found: Sequence[Found], passages: Sequence[Passage]
    ) -> tuple[list[Candidate], tuple[float, float, float]]:
        if not found:
            return [], (0.0, 0.0, 0.0)
        texts = [passages[each.passage].text[each.start : each.end] for each in found]
        score, logit, norm = (np.array([getattr(each, name) for each in found]) for name in ("score", "logit", "norm"))
        ranked = merged(texts, self.model.mix(score, logit, norm))
        best = found[ranked[0].span]
        return ranked, (ranked[0].probability, float(score.max()), best.logit - best.norm)

    def _windows(self, asked: Pieces, title: Pieces, text: Pieces, row: int) -> Iterator[_Window]:
        cls, sep = ([getattr(self._cutter, name)] for name in ("cls", "sep"))
        head = np.concatenate([cls, asked.ids, sep, *([title.ids, sep] if len(title.ids) else [])])
        room = self.model.room(len(asked.ids), len(title.ids))
        step = room - min(OVERLAP, room // 2)
        first, count = 0, len(text.ids)
        for _ in range(MOST_WINDOWS):
            part = text.ids[first : first + room]
            ids = np.concatenate([head, part, sep]).astype(np.int64)
            yield _Window(row, first, ids, len(asked.ids) + 2, len(head), len(head) + len(part))
            if first + room >= count:
                return
            first += step

    def _read(self, window: _Window, text: Pieces, characters: str) -> list[Found]:
        """The best spans of a window."""
        segments = (np.arange(len(window.ids)) >= window.title).astype(np.int64)
        logits = self._graph.run("logits", window.ids, segments)  # [n, 3]
        inside = slice(window.begin, window.end)
        start, end = logits[inside, START], logits[inside, END]
        some = slice(window.first, window.first + len(start))
        spans = best_spans(start, end, Borders.of(text.inside, text.glued).part(some))
        norm, score = log_sum(start) + log_sum(end), float(logits[0, SCORE])
        found = []
        for first, last, logit in zip(*spans, strict=True):
            place = (int(text.starts[some.start + first]), _whole(characters, int(text.ends[some.start + last])))
            found.append(Found(window.passage, *place, score, float(logit), norm))
        return found


def _whole(text: str, end: int) -> int:
    """The end of a span, moved behind the accents of its last letter: a tokenizer that drops them stops before."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def _without_repeats(found: Iterable[Found]) -> Iterator[Found]:
    """What two windows of a passage share is found in both: the one whose window is better stays."""
    best: dict[tuple[int, int, int], Found] = {}
    for each in found:
        key = (each.passage, each.start, each.end)
        if key not in best or each.score - each.norm + each.logit > best[key].score - best[key].norm + best[key].logit:
            best[key] = each
    return iter(best.values())
