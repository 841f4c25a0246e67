"""An encoder whose passages are encoded by a pool of Ray actors, part by part; `bpr index --ray` builds with it.

The builder cuts passages into parts, keeps a few of them in flight here (`parts_ahead`, which bounds memory), and
writes what comes back in their order: the same bytes as without Ray, and a killed run goes on as always, from
NAME.bpr.parts. An actor that is lost is started again by Ray, and its part done again. Questions are encoded here, on
this machine.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from .. import __version__, builder, kernels
from .. import model as models
from ..builder import Coded
from ..codes import pack
from ..encoder import Encoder, Encodes, Vectors
from ..errors import BprError, InvalidInput, ModelMismatch, StorageError
from ..kernels import Cancel
from ..transform import Transform
from . import rays

RETRIES = 3  # of a part whose worker was lost; one that loses worker after worker is too large for them, or poisoned
AHEAD = 3  # parts in flight for each worker: one is encoded, one waits, one may be done out of turn
COMPARED = 64  # passages that every worker encodes at first, to see whether it gives the bits of this machine
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Kind:
    """What a worker is, and on how many of `bits` sign bits it differs from this machine's CPU."""

    name: str
    differing: int
    bits: int

    @property
    def share(self) -> float:
        """Of the bits."""
        return self.differing / self.bits if self.bits else 0.0


class _Work:
    """In a process of its own: the encoder of a model folder, and what makes codes of its vectors."""

    def __init__(self, folder: str, device: str, threads: int | None) -> None:
        self._given, self._threads = (folder, device), threads
        self._opened: Encodes | None = None

    @property
    def _encoder(self) -> Encodes:
        """Opened with the first call: an error in a call comes back as what it is, one in __init__ would not."""
        if self._opened is None:
            self._opened = open_encoder(*self._given)
        return self._opened

    def about(self, pairs: Pairs) -> tuple[str, str, str, Any]:
        """Version, fingerprint, kind of machine, and the signs of some passages."""
        kind = f"{self._encoder.engine.split()[0]} {platform.machine()} {kernels.simd_level()}"
        signs = pack(self._encoder.passages(pairs, threads=self._threads))
        return __version__, self._encoder.model.fingerprint, kind, signs

    def code(self, pairs: Pairs, first_row: int, transform: tuple[Any, Any, Any], keep: bool) -> Coded:
        """As builder.coded, of texts."""
        vectors = builder.vectors_of(pairs, self._encoder, self._threads, lambda rows: None)
        return builder.coded(vectors, first_row, self._encoder.model, Transform(*transform), keep)


class PoolEncoder:
    """An encoder for the builder. A context manager, which ends the workers."""

    def __init__(self, model: str | Path, device: str = "cpu", workers: int | None = None, threads: int | None = None):
        """Ray is connected. workers: how many (None: what the cluster has room for); threads: of each CPU worker."""
        self._own: Encodes = open_encoder(model, "cpu")
        folder = models.resolve(model)
        name = "mini" if folder == models.MINI else str(folder)  # mini lies where bpr does, on every machine
        cpus, gpus, fit = _sized(device, threads)
        if not fit:
            raise InvalidInput(f"no machine of the cluster has {'a GPU' if gpus else f'{cpus} CPUs'} for a worker")
        if workers is not None and workers > fit:
            raise InvalidInput(f"the cluster has room for {fit} workers, not {workers}")
        # Ray restarts a lost actor, and gives it its parts again.
        actor = ray.remote(_Work).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES, scheduling_strategy="SPREAD"
        )
        self._workers: list[Any] = [
            actor.remote(name, device, cpus if device == "cpu" else None) for _ in range(workers or fit)
        ]
        self._busy: list[list[Any]] = [[] for _ in self._workers]
        self._device = device
        self._transform: tuple[Transform, Any] | None = None
        self.parts_ahead = AHEAD * len(self._workers)
        self.kinds: list[Kind] = []  # of the workers, once the first passages have come

    @property
    def model(self) -> models.Model:
        """What it encodes with."""
        return self._own.model

    @property
    def folder(self) -> Path:
        """Where the model is."""
        return Path(getattr(self._own, "folder", models.MINI))

    @property
    def engine(self) -> str:
        """That of this machine where the workers have CPUs, so that work begun without Ray goes on with it."""
        return self._own.engine if self._device == "cpu" else f"torch {self._device} on ray"

    @property
    def at_once(self) -> int:
        """Of texts that are encoded here."""
        return self._own.at_once

    def questions(
        self,
        texts: Sequence[str],
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """float32[n, bits], here."""
        return self._own.questions(texts, threads=threads, deadline=deadline, cancel=cancel)

    def passages(
        self,
        pairs: Pairs,
        *,
        threads: int | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
    ) -> Vectors:
        """float32[n, bits], here: for a few of them."""
        return self._own.passages(pairs, threads=threads, deadline=deadline, cancel=cancel)

    def begin(self, pairs: Pairs, first_row: int, transform: Transform, keep: bool) -> Callable[[], Coded]:
        """Give a part to the worker that has least to do; what waits for its codes."""
        if not self.kinds:
            self.kinds = self._compared(pairs[:COMPARED])
        number = self._least_busy()
        work = self._workers[number].code.remote(pairs, first_row, self._sent(transform), keep)
        self._busy[number].append(work)
        return lambda: _awaited(work)

    def _least_busy(self) -> int:
        for number, works in enumerate(self._busy):
            if works:
                self._busy[number] = ray.wait(works, num_returns=len(works), timeout=0, fetch_local=False)[1]
        return min(range(len(self._busy)), key=lambda number: len(self._busy[number]))

    def _sent(self, transform: Transform) -> Any:
        """It is the same for all parts, and may be large: it is sent to each machine once."""
        if self._transform is None or self._transform[0] is not transform:
            self._transform = transform, ray.put((transform.mean, transform.rotation, transform.scales))
        return self._transform[1]

    def _compared(self, pairs: Pairs) -> list[Kind]:
        """Every worker's version and model are checked, and its bits compared with this machine's."""
        wanted = pack(self._own.passages(pairs))
        kinds = []
        for number, work in enumerate([each.about.remote(list(pairs)) for each in self._workers]):
            version, fingerprint, kind, signs = _awaited(work)
            rays.same_version(version, f"worker {number}")
            if fingerprint != self.model.fingerprint:
                raise ModelMismatch(
                    f"worker {number} has another model in {self.folder} than this machine: copy it there"
                )
            kinds.append(Kind(kind, int(np.unpackbits(signs ^ wanted).sum()), wanted.size * 8))
        return kinds

    def report(self) -> str:
        """One line for people: how many workers, and whether their bits are this machine's."""
        most = max(self.kinds, key=lambda kind: kind.share, default=None)
        workers = f"{len(self._workers)} worker{'s' * (len(self._workers) != 1)} ({', '.join(sorted(self._names()))})"
        if most is None or not most.differing:
            return f"{workers}; bits as on this machine's CPU"
        return f"{workers}; up to {most.share:.3%} of the bits differ from this machine's CPU ({most.name})"

    def _names(self) -> set[str]:
        return {kind.name for kind in self.kinds} or {"everything was encoded already"}

    def __enter__(self) -> PoolEncoder:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers, whatever they do."""
        for worker in self._workers:
            ray.kill(worker)


def open_encoder(model: str | Path, device: str) -> Encodes:
    """bpr's own on a CPU; with torch on any other device."""
    if device == "cpu":
        return Encoder.open(model)
    from ..training.encode import TorchEncoder

    return TorchEncoder.open(model, device)


def _sized(device: str, threads: int | None) -> tuple[int, int, int]:
    """CPUs and GPUs of a worker, and how many of them the cluster has room for.

    A CPU worker has `threads`, or else as many as the smallest machine has: one worker a machine, or several.
    """
    if device != "cpu":
        return 1, 1, int(sum(rays.room("GPU")))
    machines = [int(each) for each in rays.room("CPU") if each >= 1]
    cpus = threads or min(machines, default=1)
    return cpus, 0, sum(each // cpus for each in machines)


def _awaited(work: Any) -> Any:
    """What a worker gives; its errors in our words."""
    try:
        return ray.get(work)
    except RayTaskError as error:
        if isinstance(error.cause, BprError):
            raise error.cause from None
        raise StorageError(f"a worker of the cluster failed: {error.cause!r}") from error
    except RayActorError as error:
        raise StorageError(
            f"workers of the cluster were lost {RETRIES + 1} times with the same part (is their memory enough?); run "
            "it again to go on"
        ) from error
    except RayError as error:
        raise StorageError(f"the cluster failed ({type(error).__name__}); run it again to go on") from error
