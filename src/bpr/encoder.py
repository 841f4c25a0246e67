"""Text to vectors on the CPU, without torch. The only importer of onnxruntime.

The builder and the retriever call `Encoder`; training uses `Tokens`, so that a model is trained on the very ids that it
is served with. Knows a model folder (model.py) and its two graphs:

    input_ids int64[1, n] (and token_type_ids, where the model has segments) → vector float32[1, bits]

Pooling, normalisation, projection and the division by σ are inside the graph. A BERT of bpr's own export is computed by
bert.py, any other graph by ONNX Runtime. One text is one run on one thread, and threads share the work text by text:
dynamic int8 scales its activations by what it is given, so with several texts in one run of ONNX Runtime a text's bits
would depend on its neighbours. It also needs no padding, and costs nothing on a CPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import model as models
from .bert import has_fast_kernel, open_bert
from .errors import Cancelled, DeadlineExceeded, InvalidInput
from .kernels import Cancel, Limits
from .model import Model
from .pieces import beginning, check_text, open_tokenizer, words_of

AT_ONCE = 64

Ids: TypeAlias = NDArray[np.int64]
Vectors: TypeAlias = NDArray[np.float32]
Engine: TypeAlias = Literal["bpr", "onnxruntime"]


class Encodes(Protocol):
    """What the builder and the retriever ask of an encoder; `Encoder` and training's `TorchEncoder` are two.

    One whose vectors were not trained for bits also has `fit`, which makes a transform for them (builder.py); then
    vectors have as many dimensions as it likes, and codes have model.bits. One that works on other machines has `begin`
    and `parts_ahead`: a part is begun there, and waited for when its turn has come (cluster/encoding.py).
    """

    @property
    def model(self) -> Model:
        """What it encodes with."""
        ...

    @property
    def engine(self) -> str:
        """What computes the model: two engines may differ in bits that are within rounding of a threshold."""
        ...

    @property
    def at_once(self) -> int:
        """Texts that a call should have to use the machine well; work is reported as often."""
        ...

    def questions(
        self,
        texts: Sequence[str],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """float32[n, bits]."""
        ...

    def passages(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """(title, text) pairs → float32[n, bits]."""
        ...


class Tokenized(NamedTuple):
    """A text as a model reads it: ids int64[n], and the segment of each, int64[n]."""

    ids: Ids
    segments: Ids


class Tokens:
    """Text to token ids: [CLS] question [SEP], [CLS] title [SEP] text [SEP], or [CLS] text [SEP] without a title.

    What is longer than the model's limit is cut, the longer part of a pair first. Threads may share one.
    """

    def __init__(self, folder: str | Path) -> None:
        """Read what a model folder says of itself, and its tokenizer. files: sizes and sums, of all of them."""
        folder = models.resolve(folder)
        self.model, self.files = models.load(folder)
        path = models.check_file(folder, models.TOKENIZER, self.files)
        self._questions = open_tokenizer(path, self.model.question_length)
        self._passages = open_tokenizer(path, self.model.passage_length)

    def question(self, text: str, row: int = 0) -> Tokenized:
        """`row` is for the message if the text is none."""
        return self._tokenized(self._questions.encode(self._question_part(text, row)))

    def passage(self, pair: tuple[str, str], row: int = 0) -> Tokenized:
        """pair: title (may be empty) and text."""
        return self._tokenized(self._passages.encode(*self._passage_parts(pair, row)))

    def questions(self, texts: Sequence[str]) -> list[Tokenized]:
        """Many at once, on all cores: for those whose encoder does not keep the cores busy itself."""
        parts = [self._question_part(text, row) for row, text in enumerate(texts)]
        return [self._tokenized(found) for found in self._questions.encode_batch_fast(parts)]

    def passages(self, pairs: Sequence[tuple[str, str]]) -> list[Tokenized]:
        """Many at once, on all cores."""
        parts = [self._passage_parts(pair, row) for row, pair in enumerate(pairs)]
        alone_or_both = [part[0] if len(part) == 1 else (part[0], part[1]) for part in parts]
        return [self._tokenized(found) for found in self._passages.encode_batch_fast(alone_or_both)]

    def words(self) -> list[str]:
        """The vocabulary in the order of its ids."""
        return words_of(self._passages)

    def _question_part(self, text: str, row: int) -> str:
        check_text(text, f"question {row}")
        return text[beginning(text, self.model.question_length)]

    def _passage_parts(self, pair: tuple[str, str], row: int) -> list[str]:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidInput(f"passage {row} must be a pair of title and text, not {type(pair).__name__}")
        check_text(pair[0], f"the title of passage {row}")
        check_text(pair[1], f"the text of passage {row}")
        length = self.model.passage_length
        return [part[beginning(part, length)] for part in (pair if pair[0] else pair[1:])]

    def _tokenized(self, found: Any) -> Tokenized:
        ids = np.array(found.ids, np.int64)
        return Tokenized(ids, np.array(found.type_ids, np.int64) if self.model.token_types else np.zeros_like(ids))


class Runs(Protocol):
    """What computes a graph: bert.py's `Bert`, or ONNX Runtime."""

    name: str
    inputs: set[str]
    outputs: list[str]

    def run(self, output: str, ids: Ids, segments: Ids) -> Vectors:
        """ids, segments: int64[n] → float32[bits]; a reader's logits are float32[n, 3]."""
        ...


class Encoder:
    """A model folder's two encoders on the CPU. Threads may share one.

    encoder = Encoder.open("mini")
    encoder.questions(["who wrote the Iliad?"])                      # float32[1, bits]
    encoder.passages([("Iliad", "The Iliad is an epic …")])          # float32[1, bits]
    """

    def __init__(self, folder: str | Path, threads: int | None = None, engine: Engine | None = None) -> None:
        """Made by `open`."""
        if engine not in (None, "bpr", "onnxruntime"):
            raise InvalidInput(f"engine must be 'bpr', 'onnxruntime' or None, not {engine!r}")
        self.folder = models.resolve(folder)
        self.tokens = Tokens(self.folder)
        self.model, self._files = self.tokens.model, self.tokens.files
        self._threads = threads
        self._wanted = engine
        self._graphs: dict[str, Runs] = {}
        self._opening = threading.Lock()

    @classmethod
    def open(cls, folder: str | Path = "mini", threads: int | None = None, engine: Engine | None = None) -> Encoder:
        """A model folder, or "mini", the model that ships with bpr; a side's graph is read when it is first used.

        threads: the default of the calls below; None for BPR_THREADS, or else all cores. engine: "onnxruntime" or
        "bpr", to compare; None for bpr's own where it knows the graph and has a kernel for this processor.
        """
        return cls(folder, threads, engine)

    @property
    def fingerprint(self) -> str:
        """What a bundle remembers of its model."""
        return self.model.fingerprint

    @property
    def engine(self) -> str:
        """What computes passages, and the very graph that they go through."""
        return f"{self._graph('passage', 'vector').name} {self._files['passage.onnx']['sha256']}"

    @property
    def at_once(self) -> int:
        """One text is one call on one thread: a few for each thread will do."""
        return AT_ONCE

    def questions(
        self,
        texts: Sequence[str],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """float32[n, bits], not in units of σ. deadline: a value of time.monotonic()."""
        output = "question" if self.model.shared else "vector"
        graph = self._graph("passage" if self.model.shared else "question", output)
        limits = Limits(self._threads if threads is None else threads, deadline, cancel)
        return self._encode(checked_texts(texts, "questions"), self.tokens.question, graph, output, limits)

    def passages(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """(title, text) pairs → float32[n, bits] in units of σ; an empty title is none."""
        limits = Limits(self._threads if threads is None else threads, deadline, cancel)
        graph = self._graph("passage", "vector")
        return self._encode(checked_texts(pairs, "passages"), self.tokens.passage, graph, "vector", limits)

    def _encode(
        self, texts: Sequence[Any], tokenize: Callable[[Any, int], Tokenized], graph: Runs, output: str, limits: Limits
    ) -> Vectors:
        """Each text on its own; the threads take the next one as they come free."""
        vectors = np.empty((len(texts), self.model.bits), np.float32)

        def encode(row: int) -> None:
            vectors[row] = graph.run(output, *tokenize(texts[row], row))

        each_text(len(texts), encode, limits)
        return vectors

    def _graph(self, side: str, output: str) -> Runs:
        name = f"{side}.onnx"
        with self._opening:
            if name not in self._graphs:
                path = models.check_file(self.folder, name, self._files)
                self._graphs[name] = open_graph(path, self._wanted)
            graph = self._graphs[name]
        wanted = {"input_ids", *(["token_type_ids"] if self.model.token_types else [])}
        if graph.inputs != wanted or output not in graph.outputs:
            raise InvalidInput(
                f"{self.folder / name} takes {sorted(graph.inputs)} where {sorted(wanted)} are needed, or lacks the "
                f"output {output!r}: make it with `bpr export`"
            )
        return graph


def each_text(count: int, run: Callable[[int], None], limits: Limits) -> None:
    """run(0) … run(count − 1); the threads take the next one as they come free."""
    rows = _Rows(count, limits)

    def work() -> None:
        for row in rows:
            run(row)

    threads = min(limits.thread_count(), count)
    if threads <= 1:
        work()
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            for future in as_completed([pool.submit(work) for _ in range(threads)]):
                future.result()
        except BaseException:  # Ctrl-C among them: the pool waits for its threads, each of which ends its text
            rows.stop()
            raise


class _Rows:
    """The numbers 0 to count − 1, each for one of the threads that iterate over it, until the limits are reached."""

    def __init__(self, count: int, limits: Limits) -> None:
        self._next, self._count = 0, count
        self._limits = limits
        self._taking = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        limits = self._limits
        with self._taking:
            if self._next >= self._count:
                raise StopIteration
            if limits.cancel is not None and limits.cancel.flag[0]:
                raise Cancelled("encoding was cancelled")
            if limits.deadline is not None and limits.seconds() <= 0:
                raise DeadlineExceeded("encoding did not end before its deadline")
            self._next += 1
            return self._next - 1

    def stop(self) -> None:
        """No thread gets another one."""
        with self._taking:
            self._count = 0


def checked_texts(texts: Any, what: str) -> Sequence[Any]:
    """The same, if it is a sequence; one text alone is not."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidInput(f"{what} must be a list, not {type(texts).__name__}; one of them is [one]")
    return texts


def open_graph(path: Path, engine: Engine | None = None) -> Runs:
    """bpr's own engine for a graph that it knows, where it has a kernel for this processor; else ONNX Runtime."""
    ours = open_bert(path) if engine == "bpr" or (engine is None and has_fast_kernel()) else None
    if ours is None and engine == "bpr":
        raise InvalidInput(
            f"{path} is not a graph that bpr's own engine knows; leave the engine out, or `bpr export` it"
        )
    return ours or _OnnxRuntime(path)


class _OnnxRuntime:
    """A graph on ONNX Runtime, which is imported here and not before: that takes longer than to open one of ours."""

    name = "onnxruntime"

    def __init__(self, path: Path) -> None:
        self._session = _open_session(path)
        self.inputs = {each.name for each in self._session.get_inputs()}
        self.outputs = [each.name for each in self._session.get_outputs()]

    def run(self, output: str, ids: Ids, segments: Ids) -> Vectors:
        given = {"input_ids": ids[None], "token_type_ids": segments[None]}
        found: Vectors = self._session.run([output], {name: given[name] for name in self.inputs})[0][0]
        return found


def _open_session(path: Path) -> Any:
    # Its telemetry leaves a file in the temporary folder as soon as it is imported, before it can be told not to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # threads are ours: one text each
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The graph is final when it is exported. What a later ONNX Runtime would fuse in it would change bits, and today's
    # fusions make it slower (bertgraph.py).
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_pattern = False  # it remembers one plan for every length of text
    # Not session.set_denormal_as_zero: it would change how the caller's own threads compute.
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common class but this
        raise InvalidInput(f"{path} cannot be run by ONNX Runtime {onnxruntime.__version__}: {error}") from error
