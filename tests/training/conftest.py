"""The toy world, made once for all tests of training."""

from __future__ import annotations

import gc

import pytest
from reader_toys import ReaderToy, make_reader_toy
from toys import Toy, make_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Not to be changed."""
    from bpr.training import run as run

    made = make_toy(tmp_path_factory.mktemp("toy"))
    gc.freeze()  # the Trainer collects garbage before every run: half of a short run would be looking at modules
    return made


@pytest.fixture(scope="session")
def reader_toy(tmp_path_factory: pytest.TempPathFactory) -> ReaderToy:
    """Not to be changed."""
    from bpr.training import readerrun as readerrun

    made = make_reader_toy(tmp_path_factory.mktemp("reader_toy"))
    gc.freeze()
    return made
