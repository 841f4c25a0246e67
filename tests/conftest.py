"""How hard the property tests look: BPR_CAMPAIGN=full (`make reliability`) draws 10,000 examples each, and new ones.

The quick profile draws the same examples every time, so that a red test means a change of ours.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from bpr import cli, kernels
from tiny_models import make_model, make_reader

# Threads that wait for each other cost a tiny model a hundred times what they save, with tests beside tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PROFILE = "nightly" if os.environ.get("BPR_CAMPAIGN") == "full" else "quick"

hypothesis.settings.register_profile("quick", max_examples=150, deadline=None, derandomize=True)
hypothesis.settings.register_profile(
    "nightly",
    max_examples=10_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    examples = hypothesis.settings.get_profile(PROFILE).max_examples
    return f"bpr: SIMD levels {', '.join(kernels.simd_levels())}; hypothesis profile {PROFILE}, {examples:,} examples"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own settings must not change what a test sees."""
    monkeypatch.delenv("BPR_THREADS", raising=False)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with float weights and int8 ONNX: 64 bits, two planes, two encoders. Not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_model(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder with float weights and int8 ONNX, and windows of 96 tokens. Not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "tiny-reader"
    make_reader(folder)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `bpr` in this process: exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bpr", *map(str, arguments)])
        handler, status = signal.getsignal(signal.SIGINT), None
        try:
            cli.main()
        except SystemExit as end:  # not pytest.raises: what it keeps keeps the files that were open where it ended
            status = int(end.code or 0)
        finally:
            signal.signal(signal.SIGINT, handler)  # one that was interrupted listens no more
        assert status is not None, "bpr did not end"
        return status, *capsys.readouterr()

    return call
