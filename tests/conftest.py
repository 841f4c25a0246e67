"""How hard the property tests look: BPR_CAMPAIGN=full (`make reliability`) draws 10,000 examples each, and new ones.

The quick profile draws the same examples every time, so that a red test means a change of ours.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

from bpr import kernels

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
