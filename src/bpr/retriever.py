"""An opened bundle that finds passages, and answers: encoder + index + passages + reader. Composes; computes nothing.

The edges (bpr.open, the command line, the service) call it. A retriever sees one generation of its bundle, a
`Snapshot`, which is swapped as a whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import bundle, fusion, kernels
from . import model as models
from .bundlemodel import encoder_of
from .codes import Mask, Questions, as_array
from .encoder import Encodes, checked_texts
from .errors import InvalidInput, ModelMismatch
from .filters import Where
from .index import SegmentedIndex
from .kernels import Cancel, Limits
from .kinds import SegmentIndex
from .passages import ROWS_AT_ONCE, Passages
from .reader import Reader, has_reader
from .records import Answer, Hit, Hits, Passage, passages_of
from .segments import load_transform
from .snapshot import Seen, Snapshot

CHECKED_ROWS = 512  # that the kernel is compared with numpy on
REFINED = 100  # passages that kept vectors score once more
FUSIONS = ("weighted", "reciprocal")


class Timings(NamedTuple):
    """Milliseconds that the parts of a search took, for all its questions together.

    encode: text to vectors; candidates: the first stage; rerank: the second (with candidates="all" that is all of it)
    and third; words: BM25 and the fusion with it; texts: fetching the passages.
    """

    encode: float
    candidates: float
    rerank: float
    texts: float
    words: float = 0.0


def open(
    path: str | Path,
    *,
    model: str | Path | Encodes | None = None,
    reader: str | Path | Reader | None = None,
    verify: Literal["auto", "all", "size"] = "auto",
) -> Retriever:
    """Open a bundle for searching; its files are memory-mapped.

    model: where the model of the bundle is (a folder, or an opened encoder), to search with text. By default it is
    looked for where it was when the bundle was built, and inside bpr; another model is refused (ModelMismatch).
    reader: what answers questions (a folder, or an opened reader). By default that in the model's folder, or in bpr.
    verify: "auto" checks every byte of a bundle up to 4 GB now, and of a larger one the signs now and the rest when it
    is first read; "all" checks every byte now; "size" checks sizes only.
    """
    retriever = Retriever(bundle.open(path, verify=verify))
    if model is not None:
        retriever.use(model)
    if reader is not None:
        retriever.use_reader(reader)
    return retriever


class Retriever:
    """Finds passages. Threads may share one; it stays on its snapshot when the bundle is changed, until `reload`.

    index: the codes; passages: the texts; candidates: how many are reranked unless a search says otherwise.
    """

    def __init__(self, opened: bundle.Opened) -> None:
        """Made by `bpr.open`."""
        self._snapshot = self._seen(opened)
        self._candidates: int | None = None  # what the user has set
        self._encoder: Encodes | None = None
        self._reader: Reader | None = None
        self._finding, self._reloading = threading.Lock(), threading.Lock()

    def _seen(self, opened: bundle.Opened) -> Seen:
        """What belongs to an opened generation."""
        return Snapshot.of(opened)

    @property
    def bundle(self) -> bundle.Opened:
        """The generation of the bundle that is searched."""
        return self._snapshot.opened

    @property
    def info(self) -> dict[str, Any]:
        """What was published with it."""
        return self._snapshot.info

    @property
    def index(self) -> SegmentIndex | SegmentedIndex:
        """The codes."""
        return self._snapshot.index

    @property
    def passages(self) -> Passages:
        """The texts."""
        return self._snapshot.passages

    @property
    def candidates(self) -> int:
        """How many are reranked unless a search says otherwise: the bundle's own number, or what was set here."""
        return self._candidates or self._snapshot.candidates

    @candidates.setter
    def candidates(self, number: int) -> None:
        self._candidates = number

    def reload(self) -> bool:
        """Go over to the bundle's newest generation; False if this is it.

        Searches that are running keep the generation that they began with, and rows that `rank` gave belong to theirs.
        Files that have not changed are not read again; encoder and reader stay. A bundle that is empty now, damaged,
        or of another model is an error, and the retriever stays on what it has.
        """
        with self._reloading:
            newest = self.bundle.newest()
            if newest is None:
                return False
            snapshot = self._seen(newest)
            old, new = (each["model"] and each["model"]["fingerprint"] for each in (self.info, snapshot.info))
            if old != new:
                raise ModelMismatch(
                    f"{newest.path} was built again with another model, or with none: open it anew (bpr.open)"
                )
            self._snapshot = snapshot
            return True

    def __enter__(self) -> Retriever:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Let go of the bundle. Its mapped files are given back with the last thing that refers to them."""
        self.bundle.close()

    def __len__(self) -> int:
        """How many passages."""
        return int(self.info["rows"])

    def use(self, model: str | Path | Encodes) -> None:
        """Encode questions with this model; one that did not make the bundle is refused."""
        self._encoder = encoder_of(self.bundle, model)

    def use_reader(self, reader: str | Path | Reader) -> None:
        """Answer questions with this reader; any will do, whatever made the bundle."""
        self._reader = Reader.open(reader) if isinstance(reader, str | Path) else reader

    @overload
    def search(self, question: str, **how: Any) -> list[Hit]: ...
    @overload
    def search(self, question: Sequence[str], **how: Any) -> list[list[Hit]]: ...
    @overload
    def search(self, *, vectors: ArrayLike, **how: Any) -> list[Hit] | list[list[Hit]]: ...

    def search(self, question: Any = None, *, vectors: Any = None, **how: Any) -> Any:
        """The best passages as Hits with their texts: list[Hit] for one question, a list of lists for several.

        question: text or texts, encoded with the bundle's model. vectors: instead of it, float[dimensions] or
        float[q, dimensions], of the same model as the passages' vectors. hybrid: also find by words (BM25), and join
        both rankings: True or "weighted" by their scores, "reciprocal" by their ranks; needs text, and a bundle that
        keeps words. The rest is as for `rank`.
        """
        return self._search(question, vectors, lambda part: None, how)

    @overload
    def answer(self, question: str, *, n: None = None, **how: Any) -> Answer | None: ...
    @overload
    def answer(self, question: str, *, n: int, **how: Any) -> list[Answer]: ...
    @overload
    def answer(self, question: Sequence[str], *, n: None = None, **how: Any) -> list[Answer | None]: ...
    @overload
    def answer(self, question: Sequence[str], *, n: int, **how: Any) -> list[list[Answer]]: ...

    def answer(
        self, question: Any, *, n: int | None = None, k: int | None = None, least: float | None = None, **how: Any
    ) -> Any:
        """What the best passages answer: an Answer, or None where there is none; for several questions a list of them.

        n: as a list of the n best different answers instead. k: how many passages are read (default: the reader's own,
        which its confidence is fitted for). least: the confidence below which an answer is none (default: the
        reader's). The rest is as for `rank`.
        """
        reader, limits = self.reader, {name: how[name] for name in ("threads", "deadline", "cancel") if name in how}
        alone = isinstance(question, str)
        asked = [question] if alone else checked_texts(question, "questions")
        found = self.search(asked, k=min(k or reader.model.passages, len(self)), **how)
        given = []
        for text, hits in zip(asked, found, strict=True):
            answers = reader.answer(text, passages_of(hits), n or 1, least=least, **limits)
            given.append(answers if n is not None else answers[0] if answers else None)
        return given[0] if alone else given

    def search_timed(self, question: Any = None, *, vectors: Any = None, **how: Any) -> tuple[Any, Timings]:
        """As `search`, and what each part of it took."""
        times, last = dict.fromkeys(Timings._fields, 0.0), time.perf_counter()

        def lap(part: str) -> None:
            nonlocal last
            now = time.perf_counter()
            times[part], last = times[part] + 1000 * (now - last), now

        return self._search(question, vectors, lap, how), Timings(**times)

    def search_covered(self, question: Any = None, *, vectors: Any = None, **how: Any) -> tuple[Any, Timings, float]:
        """As `search_timed`, and the share of the passages that was searched: 1, but for a cluster's (cluster/)."""
        return *self.search_timed(question, vectors=vectors, **how), 1.0

    def _search(self, question: Any, vectors: Any, lap: Callable[[str], None], how: dict[str, Any]) -> Any:
        if (question is None) == (vectors is None):
            raise InvalidInput("a search takes either text, search('who …?'), or vectors=… of your own encoder")
        if vectors is None:
            limits = {name: how[name] for name in ("threads", "deadline", "cancel") if name in how}
            asked = self.encoder.questions([question] if isinstance(question, str) else question, **limits)
            alone = isinstance(question, str)
        else:
            asked = as_array(vectors)
            alone = asked.ndim == 1
            asked = asked[None] if alone else asked
        lap("encode")
        snapshot = self._snapshot  # rows and texts of one generation, whatever is reloaded meanwhile
        hybrid = how.pop("hybrid", None)
        if hybrid:
            texts = None if vectors is not None else [question] if alone else question
            ranked: Any = self._fused(snapshot, asked, texts, hybrid, lap, how)
        else:
            ranked = zip(*self._rank(snapshot, asked, lap=lap, **how), strict=True)
            lap("rerank")
        hits = [_hits(snapshot.passages, rows, scores) for rows, scores in ranked]
        lap("texts")
        return hits[0] if alone else hits

    def filtered(self, where: Where | None = None) -> Iterator[Passage]:
        """Every passage whose metadata fulfil the filter, in the order of the bundle; without one: all of them."""
        snapshot = self._snapshot
        if where is None:
            return iter(snapshot.passages)
        rows = np.flatnonzero(np.asarray(snapshot.mask(where, None)))
        parts = (rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE))
        return (passage for part in parts for passage in snapshot.passages.get(part))

    def fields(self) -> dict[str, set[str]]:
        """What filters can ask for: each field of the metadata, and which kinds of values (filters.KINDS) it holds."""
        return self._snapshot.fields()

    def grouped(self, hits: Sequence[Hit], neighbours: int = 0) -> list[fusion.Group]:
        """The hits of one question by document, each with so many passages around its best hit (see `fusion`)."""
        texts = self.passages

        def find(outside_id: str) -> Passage | None:
            row = texts.find(outside_id)
            return None if row is None else texts[row]

        return fusion.grouped(hits, neighbours=neighbours, find=find)

    def _fused(
        self,
        snapshot: Seen,
        vectors: ArrayLike,
        texts: Sequence[str] | None,
        hybrid: Any,
        lap: Callable[[str], None],
        how: dict[str, Any],
    ) -> list[fusion.Ranked]:
        """Of each question the k best rows by codes and words together."""
        if texts is None:
            raise InvalidInput("hybrid search needs the questions in words: vectors alone have none")
        if hybrid not in (True, *FUSIONS):
            raise InvalidInput(f"hybrid must be True, False, {' or '.join(map(repr, FUSIONS))}, not {hybrid!r}")
        k = how.pop("k", 20)
        given = how.get("candidates")
        depth = max(k, fusion.LISTED if given in (None, "all") else min(fusion.LISTED, given))
        by_codes = self._rank(snapshot, vectors, k=depth, lap=lap, **how)
        lap("rerank")
        limits = Limits(how.get("threads"), how.get("deadline"), how.get("cancel"))
        by_words = snapshot.by_words(texts, depth, how.get("where"), how.get("mask"), limits)
        found = []
        for codes, words in zip(zip(*by_codes, strict=True), by_words, strict=True):
            if hybrid == "reciprocal":
                rows, scores = fusion.reciprocal([codes[0], words[0]])
            else:
                rows, scores = fusion.weighted([codes, words], fusion.WEIGHTS)
            found.append((rows[:k], scores[:k]))
        lap("words")
        return found

    @property
    def encoder(self) -> Encodes:
        """What encodes questions: the bundle's own model, looked for when it is first needed."""
        with self._finding:
            if self._encoder is None:
                self._encoder = encoder_of(self.bundle)
            return self._encoder

    @property
    def reader(self) -> Reader:
        """What answers questions, looked for when it is first needed: beside the bundle's model, or inside bpr."""
        encoder = self.encoder
        with self._finding:
            if self._reader is None:
                places = [getattr(encoder, "folder", models.MINI), models.MINI]
                place = next(filter(has_reader, places), None)
                if place is None:
                    raise InvalidInput(
                        f"neither {' nor '.join(dict.fromkeys(map(str, places)))} has a reader: say where one is "
                        "(reader=…, --reader DIR)"
                    )
                self.use_reader(place)
            assert self._reader is not None
            return self._reader

    def rank(
        self,
        vectors: ArrayLike,
        *,
        k: int = 20,
        candidates: int | Literal["all"] | None = None,
        rerank: bool = True,
        where: Where | None = None,
        mask: Mask | None = None,
        probes: float | None = None,
        target_recall: float | None = None,
        refine: int | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        lap: Callable[[str], None] | None = None,
    ) -> Hits:
        """The best rows without their texts: Hits(rows int64[q, k], scores float32[q, k]).

        vectors: float[q, dimensions]. candidates: how many are reranked (default: this bundle's; at least k), "all":
        every passage is scored. where: only passages whose metadata fulfil it, {"year": {">=": 2010}, "lang": "en"}
        (docs/filters.md). probes: the share of the codes that an index of cells looks at, or target_recall: as many as
        `bpr tune` found that recall to take (default: the bundle's own). refine: how many of the best are scored once
        more by kept vectors (default: 100 where the bundle keeps them; 0: none). The rest is as for `bpr.search`.
        """
        how: dict[str, Any] = {"mask": mask, "threads": threads, "deadline": deadline, "cancel": cancel, "lap": lap}
        how |= {"where": where, "probes": probes, "target_recall": target_recall, "refine": refine}
        return self._rank(self._snapshot, vectors, k=k, candidates=candidates, rerank=rerank, **how)

    def _rank(
        self,
        snapshot: Seen,
        vectors: ArrayLike,
        k: int = 20,
        candidates: int | Literal["all"] | None = None,
        rerank: bool = True,
        where: Where | None = None,
        mask: Mask | None = None,
        probes: float | None = None,
        target_recall: float | None = None,
        refine: int | None = None,
        **how: Any,
    ) -> Hits:
        default = self._candidates or snapshot.candidates
        last = refine if refine is not None else REFINED if snapshot.keeps_vectors else 0
        last = last if rerank else 0
        depth = max(k, last if candidates in (None, "all") else min(last, int(candidates)))
        wanted = None if candidates == "all" else max(default, depth) if candidates is None else candidates
        how |= {"where": where, "mask": mask, "probes": probes, "target_recall": target_recall}
        return snapshot.ranked(vectors, k, depth, wanted, rerank, refined=bool(last), **how)

    def check_kernel(self) -> None:
        """CorruptBundle where the kernel does not compute on the first codes what the numpy reference does."""
        kernels.check(self.index.planes.take(np.arange(min(CHECKED_ROWS, len(self)))).signs)

    def questions(self, vectors: ArrayLike) -> Questions:
        """Question vectors as this bundle's index needs them: centred, rotated and scaled as its passages were."""
        return load_transform(self.bundle).questions(vectors)


def _hits(found: Passages, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[Hit]:
    hits = zip(found.get(rows), scores, strict=True)
    return [Hit(p.id, p.title, p.text, float(score), rank, p.meta) for rank, (p, score) in enumerate(hits, 1)]
