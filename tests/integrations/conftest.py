"""No test of an integration reaches the network: other hosts are refused, and the frameworks' telemetry is off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import pytest_socket

import bpr

# Read when the frameworks are imported. Haystack would post to PostHog, LangChain to LangSmith.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

PASSAGES = [
    {"id": "homer", "title": "Homer", "text": "Homer wrote the Iliad, an epic poem of the war at Troy.", "year": -750},
    {"id": "paris", "title": "Paris", "text": "Paris is the capital of France, on the river Seine.", "year": 2020},
    {"id": "moon", "title": "The Moon", "text": "The Moon is the only natural satellite of the Earth.", "year": 1969},
    {"id": "steam", "title": "Steam", "text": "The steam engine was made useful by James Watt.", "year": 1776},
]


@pytest.fixture(autouse=True)
def no_network() -> None:
    # A test may run a hub of its own. pytest-socket lifts this when the test ends.
    pytest_socket.socket_allow_hosts(["127.0.0.1"], allow_unix_socket=True)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four passages, encoded with the model that ships with bpr, with their words. Not to be changed."""
    path = tmp_path_factory.mktemp("bundles") / "four.bpr"
    bpr.build(PASSAGES, path, words=True)
    return path
