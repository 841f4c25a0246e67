"""What a request becomes, without any HTTP: searches in batches, answers, passages, facts, reload.

The routes call it. It knows a retriever, and nothing of HTTP. Two worker threads: one searches, one reads, so that a
search does not wait behind answers. Both use all cores.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import __version__
from ..bundlemodel import WARM_UP, warm_up_code
from ..errors import BprError, CorruptBundle, InvalidInput
from ..kernels import Cancel
from ..records import Answer, Hit, Passage, passages_of
from ..retriever import Retriever
from . import settings as limits
from .batching import Batcher, Done
from .metrics import Metrics
from .settings import Settings

READ_AT_ONCE = 1  # questions: reading one uses all cores already
MOST_DIFFERING = 0.05  # of the bits of a code that is computed on another processor


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, of a request that has been checked; how: the options of Retriever.search, and k."""

    questions: list[Any]  # texts, or vectors
    is_text: bool
    how: dict[str, Any] = field(default_factory=dict)

    def key(self) -> tuple[bool, str]:
        """What two requests must have in common to share a search."""
        return self.is_text, json.dumps(self.how, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """For each question its hits or answers; times in milliseconds by stage."""

    results: list[Any]
    times: dict[str, float]
    batch: int
    generation: int
    coverage: float = 1.0  # of the passages, the share that was searched


class Engine:
    """A retriever behind two batchers."""

    def __init__(self, retriever: Retriever, settings: Settings, metrics: Metrics) -> None:
        """Starts its threads; nothing is read yet (see `warm_up`)."""
        self.retriever, self.settings, self.metrics = retriever, settings, metrics
        self._searches = Batcher(self._search, settings.batch, "bpr-search")
        self._readings = Batcher(self._read, READ_AT_ONCE, "bpr-read")
        self._reloading = threading.Lock()
        self._facts: tuple[Any, dict[str, Any]] | None = None
        self._count_index()

    async def search(self, asked: Asked, deadline: float) -> Reply:
        """The hits of each question. deadline: of time.monotonic()."""
        done = await self._searches.do(asked.key(), asked.questions, deadline)
        times, generation, coverage = done.shared
        return Reply(done.results, {"queue": 1000 * done.waited, **times}, done.batch, generation, coverage)

    async def answer(self, asked: Asked, n: int, least: float | None, deadline: float) -> Reply:
        """Up to n answers of each question."""
        if not self.has_reader():
            raise InvalidInput("this service has no reader: it can search, not answer")
        reader = self.retriever.reader
        k = asked.how.get("k") or reader.model.passages
        found = await self.search(Asked(asked.questions, True, {**asked.how, "k": k}), deadline)
        started = time.monotonic()
        pairs = zip(asked.questions, found.results, strict=True)
        read: list[Done[Any]] = await asyncio.gather(
            *(self._readings.do((n, least), [pair], deadline) for pair in pairs)
        )
        times = {**found.times, "read": 1000 * (time.monotonic() - started)}
        return Reply([each.results[0] for each in read], times, found.batch, found.generation, found.coverage)

    def without_paths(self, message: str) -> str:
        """A message of ours for somebody who need not know where things lie on this machine."""
        return message.replace(str(self.retriever.bundle.path), "the bundle")

    def passage(self, outside_id: str) -> Passage | None:
        """The passage with this id."""
        texts = self.retriever.passages
        row = texts.find(outside_id)
        return None if row is None else texts[row]

    def close(self) -> None:
        """Finish what waits, and let go of the bundle."""
        self._searches.close()
        self._readings.close()
        self.retriever.close()

    # ── Work, on the two threads ─────────────────────────────────────────────────────────────────────────────────────

    def _search(self, key: Any, items: list[Any], deadline: float, cancel: Cancel) -> tuple[list[list[Hit]], Any]:
        is_text, options = key
        how = {**json.loads(options), "deadline": deadline, "cancel": cancel, "threads": self.settings.threads}
        generation = number_of(self.retriever)
        if is_text:
            found, timings, coverage = self.retriever.search_covered(items, **how)
        else:
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity, which is refused
                vectors = np.array(items, np.float32)
            found, timings, coverage = self.retriever.search_covered(vectors=vectors, **how)
        times = timings._asdict()
        self.metrics.stage_times(times)
        self.metrics.batches.observe(len(items))
        return found, (times, generation, coverage)

    def _read(self, key: Any, items: list[Any], deadline: float, cancel: Cancel) -> tuple[list[list[Answer]], Any]:
        (n, least), started = key, time.monotonic()
        limited: dict[str, Any] = {"deadline": deadline, "cancel": cancel, "threads": self.settings.threads}
        given = []
        for question, hits in items:
            given.append(self.retriever.reader.answer(question, passages_of(hits), n, least=least, **limited))
        self.metrics.stage_times({"read": 1000 * (time.monotonic() - started)})
        return given, None

    # ── The bundle ───────────────────────────────────────────────────────────────────────────────────────────────────

    def warm_up(self) -> None:
        """Load the models, and check what they and the kernel compute; CorruptBundle if it is not what it must be.

        The encoder must give the code of a question that was stored when the bundle was built; the kernel, what the
        numpy reference gives on the first rows.
        """
        retriever = self.retriever
        if retriever.info["model"]:
            stored = retriever.info.get("warm_up")
            if stored is not None:
                _check_encoder(warm_up_code(retriever.encoder), stored)
            retriever.search(WARM_UP, k=1)
            if self.has_reader():
                retriever.reader.answer(WARM_UP, [retriever.passages[0]])
        retriever.check_kernel()

    def has_reader(self) -> bool:
        """Whether questions can be answered. The reader is loaded by now: `warm_up` has asked."""
        try:
            return bool(self.retriever.info["model"]) and self.retriever.reader is not None
        except InvalidInput:
            return False

    def reload(self) -> bool:
        """Go over to the newest generation, if there is one; requests that are running keep theirs."""
        with self._reloading:
            try:
                changed = self.retriever.reload()
            except BprError:
                self.metrics.reloads.labels("failed").inc()
                raise
            if changed:
                self.metrics.reloads.labels("done").inc()
                self._count_index()
            return changed

    def _count_index(self) -> None:
        facts = self.facts()
        self.metrics.rows.set(facts["rows"])
        self.metrics.bytes.set(facts["bytes"]["total"])
        self.metrics.generation.set(facts["generation"])

    def facts(self) -> dict[str, Any]:
        """What /v1/info says, of the generation that is searched now."""
        opened, info = self.retriever.bundle, self.retriever.info
        if self._facts is None or self._facts[0] is not opened:
            stored = [entry.bytes for entry in opened.manifest.files.values()]
            stored += [shard["bytes"] for shard in info.get("shards", [])]
            self._facts = (
                opened,
                {
                    "version": __version__,
                    "rows": info["rows"],
                    "bits": info["bits"],
                    "planes": info["planes"],
                    "kind": info.get("kind", "scan"),
                    "bytes": {
                        "codes": info["rows"] * info["planes"] * info["bits"] // 8,
                        "total": sum(stored),
                        "float32": info["rows"] * info["dimensions"] * 4,
                    },
                    "model": info["model"] and info["model"]["name"],
                    "words": bool(info.get("index", {}).get("words")),
                    "vectors": info.get("index", {}).get("vectors"),
                    "candidates": self.retriever.candidates,
                    "generation": number_of(self.retriever),
                },
            )
        return self._facts[1]

    def info(self) -> dict[str, Any]:
        """`facts`, and what the service allows."""
        own = self.settings
        allowed = {
            "questions": limits.QUESTIONS,
            "question_length": limits.QUESTION_LENGTH,
            "k": limits.K,
            "passages": limits.PASSAGES,
            "candidates": limits.CANDIDATES,
            "read": limits.READ,
            "answers": limits.ANSWERS,
            "body": own.body,
            "in_flight": own.in_flight,
            "deadline_ms": round(1000 * own.deadline),
            "answer_deadline_ms": round(1000 * own.answer_deadline),
        }
        return {**self.facts(), "reader": self.has_reader(), "limits": allowed}


def number_of(retriever: Retriever) -> int:
    """The number of the generation that a retriever is on."""
    return int(retriever.bundle.generation.removeprefix("gen-"))


def _check_encoder(code: str, stored: str) -> None:
    """Two processors may round a value to either side of a threshold: a few bits may differ, not more."""
    bits = len(stored) * 4
    differing = (int(code, 16) ^ int(stored, 16)).bit_count() if len(code) == len(stored) else bits
    if differing > bits * MOST_DIFFERING:
        raise CorruptBundle(
            f"the model gives another code than when the bundle was built ({differing} of {bits} bits differ): one of "
            "them is damaged; build the bundle again, or restore the model"
        )
