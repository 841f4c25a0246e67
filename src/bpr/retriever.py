"""An opened bundle that finds passages, and answers: encoder + index + passages + reader. Composes; computes nothing.

The edges (bpr.open, the command line, the service) call it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import bundle
from . import model as models
from .builder import MAGNITUDES, SIGNS, load_transform
from .codes import Mask, Questions, as_array
from .encoder import Encoder, Encodes, checked_texts
from .errors import BprError, EmptyBundle, InvalidInput, ModelMismatch, UnsupportedFormat
from .index import ScanIndex
from .kernels import Cancel
from .passages import Passages
from .reader import Reader, has_reader
from .records import Answer, Hit, Hits, Passage
from .stages import CANDIDATES, search

TWO_PLANE_CANDIDATES = 2000  # the sign plane has half of the bits, so the best passages lie somewhat deeper


class Timings(NamedTuple):
    """Milliseconds that the parts of a search took, for all its questions together.

    encode: text to vectors; candidates: the first stage; rerank: the second (with candidates="all" that is all of it);
    texts: fetching the passages.
    """

    encode: float
    candidates: float
    rerank: float
    texts: float


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
    """Finds passages. Threads may share one; it stays on its snapshot when the bundle is rewritten.

    index: the codes; passages: the texts; candidates: how many are reranked unless a search says otherwise.
    """

    def __init__(self, opened: bundle.Opened) -> None:
        """Made by `bpr.open`."""
        if opened.info.get("kind") != "scan":
            raise UnsupportedFormat(f"{opened.path} is of kind {opened.info.get('kind')!r}: a newer bpr may know it")
        if not opened.info["rows"]:
            raise EmptyBundle(f"{opened.path} holds no passages: build it again from a file that has some")
        self.bundle = opened
        self.info = opened.info
        self.passages = Passages(opened)
        self.index = _index(opened)
        default = CANDIDATES if self.info["planes"] == 1 else TWO_PLANE_CANDIDATES
        self.candidates: int = self.info.get("candidates") or default
        self._transform = load_transform(opened)
        self._encoder: Encodes | None = None
        self._reader: Reader | None = None
        self._finding = threading.Lock()

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
        known = self._known_model()
        encoder = Encoder.open(model) if isinstance(model, str | Path) else model
        if encoder.model.fingerprint != known["fingerprint"]:
            raise ModelMismatch(
                f"{self.bundle.path} was built with the model {known['name']!r} ({known['fingerprint'][:12]}…), and "
                f"{encoder.model.name!r} ({encoder.model.fingerprint[:12]}…) is another one: open the bundle with its "
                "own model, or build it again"
            )
        self._encoder = encoder

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
        float[q, dimensions], of the same model as the passages' vectors. The rest is as for `rank`.
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
            passages = [Passage(hit.id, hit.title, hit.text, hit.meta) for hit in hits]
            answers = reader.answer(text, passages, n or 1, least=least, **limits)
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
        ranked = self.rank(asked, lap=lap, **how)
        lap("rerank")
        hits = [self._hits(rows, scores) for rows, scores in zip(*ranked, strict=True)]
        lap("texts")
        return hits[0] if alone else hits

    @property
    def encoder(self) -> Encodes:
        """What encodes questions: the bundle's own model, looked for when it is first needed."""
        with self._finding:
            if self._encoder is None:
                self.use(self._find_model())
            assert self._encoder is not None
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

    def _known_model(self) -> dict[str, Any]:
        known = self.info["model"]
        if not isinstance(known, dict):
            raise InvalidInput(
                f"{self.bundle.path} was built from vectors of yours and cannot read text: pass vectors=… of your own "
                "encoder"
            )
        return known

    def _find_model(self) -> Path:
        """The folder that the bundle's model was in, seen from beside the bundle, or the model that ships with bpr."""
        known = self._known_model()
        folder = known.get("folder")
        places: list[Path] = [Path(self.bundle.path).resolve().parent / folder] if folder else []
        for place in [*places, models.MINI]:
            try:
                if models.load(place)[0].fingerprint == known["fingerprint"]:
                    return place
            except BprError:
                continue  # nothing there, or not a model: the next place may have it
        raise ModelMismatch(
            f"{self.bundle.path} was built with the model {known['name']!r} ({known['fingerprint'][:12]}…), which is "
            f"not in {' and not in '.join(map(str, [*places, 'bpr itself']))}: say where it is (model=…, --model DIR)"
        )

    def rank(
        self,
        vectors: ArrayLike,
        *,
        k: int = 20,
        candidates: int | Literal["all"] | None = None,
        rerank: bool = True,
        mask: Mask | None = None,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        lap: Callable[[str], None] | None = None,
    ) -> Hits:
        """The best rows without their texts: Hits(rows int64[q, k], scores float32[q, k]).

        vectors: float[q, dimensions]. candidates: how many are reranked (default: this bundle's; at least k), "all":
        every passage is scored. The rest is as for `bpr.search`.
        """
        l = self.candidates if candidates is None else candidates
        return search(
            self.index,
            self.questions(vectors),
            k,
            None if l == "all" else max(l, k) if candidates is None else l,
            rerank,
            mask=mask,
            threads=threads,
            deadline=deadline,
            cancel=cancel,
            lap=lap,
        )

    def questions(self, vectors: ArrayLike) -> Questions:
        """Question vectors as this bundle's index needs them: centred, rotated and scaled as its passages were."""
        return self._transform.questions(vectors)

    def _hits(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[Hit]:
        found = zip(self.passages.get(rows), scores, strict=True)
        return [Hit(p.id, p.title, p.text, float(score), rank, p.meta) for rank, (p, score) in enumerate(found, 1)]


def _index(opened: bundle.Opened) -> ScanIndex:
    signs = opened.array(SIGNS)
    if opened.info["planes"] == 1:
        return ScanIndex(signs)
    view = opened.view(MAGNITUDES)
    view.advise_random()  # candidates are scattered: reading ahead would fetch what nobody asked for

    def touch(rows: NDArray[np.int64] | None) -> None:
        if rows is None:
            view.require_all()
        else:
            view.require_rows(rows)

    low, high = opened.info["levels"]
    return ScanIndex(signs, view.array, (low, high), touch)
