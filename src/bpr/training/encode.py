"""Text to vectors in torch, for GPUs: the same interface as encoder.Encoder.

`bpr index --device cuda`, mining and validation call it. Of a model folder with float weights, the network runs in
bfloat16 on a GPU, so a value within rounding of a threshold may get another bit than on a CPU; how often is measured in
the tests. Of one that has graphs alone, as the model that ships, it runs in whole numbers (bytebert.py), and vectors
are the CPU's. Knows towers, graphs and tokens; nothing of bundles or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .. import model as models
from ..bert import Bert, open_constants
from ..encoder import Tokenized, Tokens, Vectors, checked_texts
from ..errors import Cancelled, DeadlineExceeded, InvalidInput
from ..kernels import Cancel, Limits
from ..model import Model
from . import packed
from .bytebert import ByteBert
from .tower import Side, Tower, home, load_tower, projected

# Tokens in a batch, padding included: enough to fill the device, little enough for its memory.
BATCH_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 12}
AT_ONCE = 4096
# Texts after which torch.compile is worth its 12 s: it saves some 4 µs of each that is still to come.
COMPILE_FROM = 1 << 21
ROUND_LENGTH = 8  # a batch's length is a multiple of it, as the tensor cores like it


class TorchEncoder:
    """A model folder's two encoders in torch, on one device. Texts of like length go together."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Made by `open`."""
        self.folder = folder
        self.tokens = Tokens(folder)
        self.model: Model = self.tokens.model
        self._device = device
        self._type = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._towers: dict[Side, Tower] = {}
        self.compile_from, self._encoded = COMPILE_FROM, 0

    @classmethod
    def open(cls, folder: str | Path, device: str = "cuda") -> TorchEncoder:
        """device: "cuda", "cuda:1", "cpu"; bfloat16 on a GPU, float32 on a CPU, and bytes where there are no floats."""
        try:
            chosen = torch.device(device)
        except RuntimeError as error:
            raise InvalidInput(f"{device!r} is no device of torch: {str(error).splitlines()[0]}") from error
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise InvalidInput("torch sees no CUDA device on this machine: leave --device out to encode on the CPU")
        if chosen.type not in BATCH_TOKENS:
            raise InvalidInput(f"{device!r} is not supported: use cpu or cuda")
        folder = models.resolve(folder)
        found = cls(folder, chosen)
        if f"{home(folder, 'passage', found.model).name}/config.json" not in found.tokens.files:
            found = GraphEncoder(folder, chosen)
        return found

    @property
    def fingerprint(self) -> str:
        """What a bundle remembers of its model."""
        return self.model.fingerprint

    @property
    def engine(self) -> str:
        """Torch, and where it runs."""
        return f"torch {self._device.type} {self._type}"

    @property
    def at_once(self) -> int:
        """Batches are of texts of like length: the more there are to choose from, the less is padded."""
        return AT_ONCE

    def questions(
        self,
        texts: Sequence[str],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """float32[n, bits], not in units of σ."""
        found = self.tokens.questions(checked_texts(texts, "questions"))
        return self.encode(found, "question", Limits(threads, deadline, cancel))

    def passages(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """(title, text) pairs → float32[n, bits] in units of σ; an empty title is none."""
        found = self.tokens.passages(checked_texts(pairs, "passages"))
        return self.encode(found, "passage", Limits(threads, deadline, cancel))

    @torch.inference_mode()
    def encode(self, texts: Sequence[Tokenized], side: Side, limits: Limits | None = None) -> Vectors:
        """From token ids: float32[n, bits]."""
        limits = limits or Limits()
        run = self._network(side)
        vectors = np.empty((len(texts), self.model.bits), np.float32)
        # Results are fetched two batches late, so that the device computes while the host prepares.
        waiting: list[tuple[NDArray[np.int64], torch.Tensor, torch.cuda.Event | None]] = []
        for rows in self._batches(texts):
            if limits.cancel is not None and limits.cancel.flag[0]:
                raise Cancelled("encoding was cancelled")
            if limits.deadline is not None and limits.seconds() <= 0:
                raise DeadlineExceeded("encoding did not end before its deadline")
            waiting.append((rows, *_on_its_way(run([texts[row] for row in rows]))))
            if len(waiting) > 2:
                _arrived(*waiting.pop(0), vectors)
        for each in waiting:
            _arrived(*each, vectors)
        self._encoded += len(texts)
        return vectors

    def _network(self, side: Side) -> Callable[[Sequence[Tokenized]], torch.Tensor]:
        """Texts → float[n, bits]."""
        tower = self._tower(side)
        tower.compiled = self._encoded >= self.compile_from
        return partial(self._vectors, tower)

    def _vectors(self, tower: Tower, texts: Sequence[Tokenized]) -> torch.Tensor:
        """float[n, bits]: without padding where that is possible."""
        if not packed.fits(tower.backbone):
            found: torch.Tensor = tower(*self._padded(texts))
            return found
        segments = [text.segments for text in texts] if self.model.token_types else None
        batch = packed.Packed.end_to_end([text.ids for text in texts], segments, self._device)
        return tower.scaled(projected(tower.pooled_texts(batch), tower.head))

    def _batches(self, texts: Sequence[Tokenized]) -> Iterator[NDArray[np.int64]]:
        """Rows of similar length, the longest first, as many as BATCH_TOKENS allows."""
        lengths = np.array([len(text.ids) for text in texts], np.int64)
        order = np.argsort(-lengths, kind="stable")
        first = 0
        while first < len(order):
            count = max(1, BATCH_TOKENS[self._device.type] // _rounded(int(lengths[order[first]])))
            yield order[first : first + count]
            first += count

    def _padded(self, texts: Sequence[Tokenized]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Ids, mask and segments: int64[n, length] each."""
        longest = _rounded(max(len(text.ids) for text in texts))
        ids, mask, segments = (np.zeros((len(texts), longest), np.int64) for _ in range(3))
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = text.ids
            mask[row, : len(text.ids)] = 1
            segments[row, : len(text.ids)] = text.segments
        on_device = [torch.from_numpy(each).to(self._device) for each in (ids, mask, segments)]
        return on_device[0], on_device[1], on_device[2] if self.model.token_types else None

    def _tower(self, side: Side) -> Tower:
        if side not in self._towers:
            tower = load_tower(self.folder, side)
            # The head decides the bits, and costs next to nothing: it stays in float32 (Tower casts what it is given).
            tower.backbone.to(self._device, self._type)
            tower.head.to(self._device)
            self._towers[side] = tower
        return self._towers[side]


class GraphEncoder(TorchEncoder):
    """The same of a model folder that has graphs alone: the vectors of encoder.Encoder, bit for bit."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Made by `TorchEncoder.open`."""
        super().__init__(folder, device)
        self._graphs: dict[str, ByteBert] = {}

    @property
    def engine(self) -> str:
        """That of the CPU: what was begun there may go on here."""
        return f"{Bert.name} {self.tokens.files['passage.onnx']['sha256']}"

    def _network(self, side: Side) -> Callable[[Sequence[Tokenized]], torch.Tensor]:
        shared = side == "question" and self.model.shared
        name = f"{'passage' if shared else side}.onnx"
        if name not in self._graphs:
            path = models.check_file(self.folder, name, self.tokens.files)
            try:
                self._graphs[name] = ByteBert(*open_constants(path), self._device)
            except (KeyError, ValueError, IndexError, RuntimeError) as error:
                raise InvalidInput(f"{path} is not a graph as `bpr export` makes it: {error!r}") from error
        graph, output = self._graphs[name], "question" if shared else "vector"
        return lambda texts: graph.vectors(*self._padded(texts), output)


def _on_its_way(found: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """To the host, without waiting; and what tells when it is there."""
    if not found.is_cuda:
        return found.float(), None
    there = torch.empty(found.shape, dtype=torch.float32, pin_memory=True)
    there.copy_(found, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return there, event


def _arrived(
    rows: NDArray[np.int64], found: torch.Tensor, event: torch.cuda.Event | None, vectors: NDArray[np.float32]
) -> None:
    if event is not None:
        event.synchronize()
    vectors[rows] = found.numpy()


def _rounded(length: int) -> int:
    return -(-length // ROUND_LENGTH) * ROUND_LENGTH
