"""What a float reader reads: the best spans of each retrieved passage, as arrays; and EM and F1 from them.

Training validates with it; on a GPU it evaluates whole test sets, whose readings are saved as .npz for calibration.
Texts are put together from tokens and their marks, so they are what stands in the passage but for case and accents,
which is all that EM and F1 look at once the answers' accents are taken off too. Knows prepared data and a float reader;
nothing of folders.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..disk import storage_error
from ..errors import InvalidInput
from ..evaluation import exact_match, f1
from ..pieces import Cutter
from ..records import Progress
from ..spans import MOST_TOKENS, MOST_WORDS, SPANS, Calibration, Candidate, Mix, features, fitted, merged
from .reader import Logits, Reader, in_texts
from .readerbatches import Inputs, Ints, Window, pairs
from .readerdata import GLUED, INSIDE, ReaderData

TOKENS_A_BATCH = {"cuda": 1 << 18, "cpu": 1 << 13}


@dataclass(frozen=True)
class Readings:
    """Of each question and each of its passages, best first, the best spans; −1 where there are fewer.

    spans: first and last token in the stored passage; logits: start + end, −inf where there is no span.
    """

    questions: NDArray[np.int64]  # [q]
    passages: NDArray[np.int32]  # [q, k]
    scores: NDArray[np.float32]  # [q, k]
    norms: NDArray[np.float32]  # [q, k]
    spans: NDArray[np.int32]  # [q, k, n, 2]
    logits: NDArray[np.float32]  # [q, k, n]

    def save(self, path: str | Path) -> None:
        """As .npz."""
        try:
            with open(path, "wb") as file:
                np.savez_compressed(file, **{each.name: getattr(self, each.name) for each in fields(self)})
        except OSError as error:
            raise storage_error("write", path, error) from error

    @classmethod
    def load(cls, path: str | Path) -> Readings:
        """What `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(**{each.name: arrays[each.name] for each in fields(cls)})
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise InvalidInput(f"{path} holds no readings: {error}") from error


def read(
    reader: Reader,
    data: ReaderData,
    questions: Ints,
    passages: NDArray[np.int32],
    window: Window,
    progress: Progress | None = None,
) -> Readings:
    """Read passages int32[q, k] (numbers of stored ones, −1 for none) for questions int64[q], on the reader's device.

    In bfloat16 on a GPU, as it is trained.
    """
    say = progress or (lambda what, done, total: None)
    device, training = next(reader.parameters()).device, reader.training
    rows, columns = np.nonzero(passages >= 0)
    asked, shown = questions[rows], passages[rows, columns].astype(np.int64)
    lengths = np.diff(data.passages.starts)[shown] + np.diff(data.questions.starts)[asked]
    order = np.argsort(-lengths, kind="stable")  # texts of like length together: little is padded where it must be
    shape = passages.shape
    found = Readings(
        np.asarray(questions, np.int64),
        passages,
        np.full(shape, -np.inf, np.float32),
        np.zeros(shape, np.float32),
        np.full((*shape, SPANS, 2), -1, np.int32),
        np.full((*shape, SPANS), -np.inf, np.float32),
    )
    reader.eval()
    first = 0
    while first < len(order):
        longest = min(int(lengths[order[first]]) + 3, window.length)
        some = order[first : first + max(1, TOKENS_A_BATCH[device.type] // longest)]
        batch = _on(pairs(data, asked[some], shown[some], window), device)
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            parts = _best(reader(batch), batch, _borders(data, shown[some], batch))
        scores, norms, spans, logits = (part.float().cpu().numpy() for part in parts)
        at = (rows[some], columns[some])
        found.scores[at], found.norms[at], found.spans[at], found.logits[at] = scores, norms, spans, logits
        first += len(some)
        say("reading", first, len(order))
    reader.train(training)
    return found


def retrieved(data: ReaderData, questions: Ints, k: int) -> NDArray[np.int32]:
    """The first k passages of each question: int32[q, k], −1 where there are fewer."""
    return _table([data.retrieved[int(i)] for i in questions], k)


def gold(data: ReaderData, questions: Ints) -> NDArray[np.int32]:
    """The first gold passage of each question: int32[q, 1]."""
    return _table([data.gold[int(i)] for i in questions], 1)


def _table(parts: Sequence[NDArray[Any]], k: int) -> NDArray[np.int32]:
    table = np.full((len(parts), k), -1, np.int32)
    for row, part in zip(table, parts, strict=True):
        row[: min(k, len(part))] = part[:k]
    return table


def _on(batch: Inputs, device: torch.device) -> Inputs:
    return {
        name: each.to(device, non_blocking=True) if isinstance(each, Tensor) else each for name, each in batch.items()
    }


def _borders(data: ReaderData, shown: Ints, batch: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Where spans may begin and end, and the words before each token: [t, longest] each, in the sequence's places."""
    size = int(batch["longest"])
    firsts = data.passages.starts[shown]
    lengths = data.passages.starts[shown + 1] - firsts
    columns = np.arange(size + 1) - batch["offsets"].cpu().numpy()[:, None]  # places in the passage
    real = (columns >= 0) & (columns < lengths[:, None])
    marks = np.where(real, data.marks[np.where(real, firsts[:, None] + columns, 0)], 0)  # [t, longest + 1]
    inside, glued = (marks & INSIDE) > 0, (marks & GLUED) > 0
    values = (~inside[:, :-1], ~inside[:, 1:], np.cumsum(~glued[:, :-1], axis=1))
    begins, ends, words = (torch.from_numpy(np.ascontiguousarray(value)).to(batch["ids"].device) for value in values)
    return begins, ends, words


def _best(found: Logits, batch: Inputs, borders: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """spans.best_spans for many texts at once: scores [t], norms [t], spans [t, n, 2] in the passage, logits [t, n]."""
    every = torch.arange(len(found.score), device=found.score.device)
    start, end = (in_texts(each.float(), batch, every, -torch.inf) for each in (found.start, found.end))  # [t, longest]
    norms = start.logsumexp(1) + end.logsumexp(1)
    begins, ends, words = borders
    width = min(MOST_TOKENS, start.shape[1])
    start = start.masked_fill(~begins, -torch.inf)
    end = end.masked_fill(~ends, -torch.inf)
    wide = torch.nn.functional.pad(end, (0, width - 1), value=-torch.inf).unfold(1, width, 1)  # [t, longest, width]
    many = torch.nn.functional.pad(words, (0, width - 1), value=1 << 30).unfold(1, width, 1)
    joint = (start.unsqueeze(2) + wide).masked_fill(many - words.unsqueeze(2) >= MOST_WORDS, -torch.inf)
    logits, best = joint.flatten(1).topk(min(SPANS, joint.shape[1] * width), dim=1)  # [t, n]
    firsts = best // width
    spans = torch.stack([firsts, firsts + best % width], 2) - batch["offsets"][:, None, None]
    spans = spans.masked_fill(logits.isinf().unsqueeze(2), -1)
    norms = norms.nan_to_num(0.0, 0.0, 0.0)  # a passage without a text
    return found.score, norms, spans, logits


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Texts:
    """The texts of spans, from the tokens of stored passages."""

    def __init__(self, data: ReaderData, tokenizer: str | Path) -> None:
        """tokenizer: the tokenizer.json that cut the data."""
        self._data = data
        self._words = [word.removeprefix("##") for word in Cutter(Path(tokenizer)).words()]

    def text(self, passage: int, first: int, last: int) -> str:
        """In the tokenizer's case, without accents."""
        begin = int(self._data.passages.starts[passage])
        some = slice(begin + first, begin + last + 1)
        glued = (self._data.marks[some] & (GLUED | INSIDE)) > 0
        words = [self._words[token] for token in self._data.passages.flat[some].tolist()]
        return "".join(word if near else f" {word}" for word, near in zip(words, glued.tolist(), strict=True)).strip()

    def answers(self, found: Readings, row: int, k: int, mix: Mix) -> list[Candidate]:
        """The different answers to a question, best first, of its first k passages."""
        real = np.isfinite(found.logits[row, :k])  # [k, n]
        place, _ = np.nonzero(real)
        spans = found.spans[row, :k][real]
        texts = [
            self.text(passage, *span)
            for passage, span in zip(found.passages[row, place].tolist(), spans.tolist(), strict=True)
        ]
        z = mix(found.scores[row, place], found.logits[row, :k][real], found.norms[row, place])
        return merged(texts, z)


def plain(text: str) -> str:
    """In lower case, without accents: what a tokenizer for uncased models leaves of a text."""
    return "".join(each for each in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(each) != "Mn")


@dataclass(frozen=True)
class Judged:
    """How right the best answers are, one value a question: exact match, F1, and what a calibration weighs."""

    exact: NDArray[np.bool_]  # [q]
    f1: NDArray[np.float64]  # [q]
    known: NDArray[np.float64]  # [q, 4]

    def summary(self) -> dict[str, float]:
        """In percent."""
        return {"em": 100 * float(self.exact.mean()), "f1": 100 * float(self.f1.mean())}

    def calibration(self) -> Calibration:
        """Fitted to these questions."""
        return fitted(self.known, self.exact)


def judge(found: Readings, data: ReaderData, texts: Texts, k: int, mix: Mix | None = None) -> Judged:
    """The best answer of the first k passages against those that people gave."""
    mix = mix or Mix()
    exact, overlap, known = [], [], []
    for row, question in enumerate(found.questions.tolist()):
        wanted = [plain(answer) for answer in data.answers[question]]
        ranked = texts.answers(found, row, k, mix)
        text = plain(ranked[0].text) if ranked else ""
        exact.append(exact_match(text, wanted))
        overlap.append(f1(text, wanted))
        known.append(_known(found, row, k, ranked))
    return Judged(np.array(exact, bool), np.array(overlap), features(*zip(*known, strict=True)))


def _known(found: Readings, row: int, k: int, ranked: Sequence[Candidate]) -> tuple[float, float, float]:
    """As reader.Reader has them: the answer's probability, the best passage's score, the best span's log P."""
    if not ranked:
        return 0.0, 0.0, 0.0
    real = np.isfinite(found.logits[row, :k])
    place, _ = np.nonzero(real)
    span = found.logits[row, :k][real] - found.norms[row, place]
    return ranked[0].probability, float(found.scores[row, place].max()), float(span[ranked[0].span])
