"""Services on a tiny bundle with everything in it: a model, a reader, words, kept vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import bpr
from bpr.encoder import Encoder
from bpr.reader import Reader
from bpr.service.settings import Settings
from calling import Held, Process, Service, launching, passages


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A bundle. Not to be changed."""
    path = tmp_path_factory.mktemp("service") / "small.bpr"
    bpr.build(passages(), path, model=tiny_model, words=True, keep_vectors="int8")
    return path


@pytest.fixture
def own(tmp_path: Path, tiny_model: Path) -> Path:
    """A bundle that a test may change."""
    path = tmp_path / "own.bpr"
    bpr.build(passages(), path, model=tiny_model)
    return path


@pytest.fixture(scope="session")
def encoder(tiny_model: Path) -> Encoder:
    return Encoder.open(tiny_model, threads=1)


@pytest.fixture(scope="session")
def reader(tiny_reader: Path) -> Reader:
    return Reader.open(tiny_reader, threads=1)


@pytest.fixture
def held(encoder: Encoder) -> Iterator[Held]:
    """An encoder that can be made to wait; whatever still waits at the end is let go."""
    made = Held(encoder)
    yield made
    made.go.set()


PATIENT = {"deadline": 60.0, "answer_deadline": 60.0, "threads": 1}  # this machine may be slow


@pytest.fixture
def make(small: Path, encoder: Encoder, reader: Reader) -> Iterator[Callable[..., Service]]:
    """Services inside this process: make(in_flight=1, …), with any of Settings."""
    made: list[Service] = []

    def call(
        path: Path = small, encoder: Any = encoder, reader: Reader | None = reader, warm: bool = True, **settings: Any
    ) -> Service:
        made.append(Service(path, encoder, reader, Settings(**{**PATIENT, **settings})))
        if warm:
            made[-1].warm_up()
        return made[-1]

    yield call
    for each in made:
        each.engine.close()


@pytest.fixture(scope="session")
def service(small: Path, encoder: Encoder, reader: Reader) -> Iterator[Service]:
    """One for all who change nothing in it."""
    made = Service(small, encoder, reader, Settings(**PATIENT))
    made.warm_up()
    yield made
    made.engine.close()


@pytest.fixture
def launch(small: Path, tiny_model: Path, tiny_reader: Path, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Services that are processes: launch(header_time=0.3, …), with any of Settings."""
    with ExitStack() as stack:

        def call(path: Path = small, **how: Any) -> Process:
            return stack.enter_context(launching(path, tiny_model, tiny_reader, tmp_path / "go", **how))

        yield call
