"""What the OpenAPI description promises, the service keeps: schemathesis makes up requests, right and wrong ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from bpr.encoder import Encoder
from bpr.reader import Reader
from bpr.service import settings as limits
from bpr.service.settings import Settings
from calling import Service

EXAMPLES = 2000 if os.environ.get("BPR_CAMPAIGN") == "full" else 40  # for each route, beside those at the edges


@pytest.fixture(scope="module")
def described(small: Path, encoder: Encoder, reader: Reader) -> Iterator[Any]:
    """The description, with the service that it is of."""
    service = Service(small, encoder, reader, Settings(any_host=True, threads=1, deadline=60, answer_deadline=60))
    service.warm_up()
    yield schemathesis.openapi.from_asgi("/openapi.json", service.guard)
    service.engine.close()


ROUTES = [
    ("POST", "/v1/search"),
    ("POST", "/v1/answer"),
    ("GET", "/v1/passages/{id}"),
    ("GET", "/v1/info"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]
routes = pytest.mark.parametrize(("method", "path"), ROUTES)
modes = pytest.mark.parametrize("mode", list(GenerationMode))


def check(case: Any) -> None:
    """Ask, and hold the reply against the description; no reply is an error of the service."""
    reply = case.call()
    assert reply.status_code < 500 or (reply.status_code == 504 and case.body["timeout_ms"] < 1000), reply.text
    # What fields exclude each other cannot be said there, so a request may be as described and refused all the same.
    case.validate_response(reply, excluded_checks=[not_a_server_error, positive_data_acceptance])


@routes
@modes
def test_every_route_keeps_what_the_description_promises(
    described: Any, method: str, path: str, mode: GenerationMode
) -> None:
    operation = described[path][method]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(mode))
    def ask(case: Any) -> None:
        check(case)

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE and method == "GET"  # without anything to be wrong


@routes
def test_every_route_keeps_it_at_the_edges(described: Any, method: str, path: str) -> None:
    operation = described[path][method]
    config = described.config.generation_for(operation=operation, phase="coverage")
    asked = 0
    for case in described.iter_coverage_cases(
        operation, generation_modes=list(GenerationMode), generation_config=config
    ):
        check(case)
        asked += 1
    assert asked


def test_no_route_is_left_out(described: Any) -> None:
    assert sorted(each.ok().label for each in described.get_all_operations()) == sorted(
        f"{method} {path}" for method, path in ROUTES
    )


# ── the description itself ───────────────────────────────────────────────────────────────────────────────────────────


def references(value: Any) -> Iterator[str]:
    """Every $ref in it."""
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_description_is_valid_openapi(described: Any) -> None:
    assert described.raw_schema["openapi"].startswith("3.1")
    described.validate()


def test_it_has_all_that_it_refers_to_and_nothing_else(described: Any) -> None:
    own = {f"#/components/schemas/{name}" for name in described.raw_schema["components"]["schemas"]}
    assert set(references(described.raw_schema)) == own


def test_it_promises_the_one_shape_for_every_error_and_no_422(described: Any) -> None:
    for operations in described.raw_schema["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            for status, reply in operation["responses"].items():
                if status != "200":
                    assert reply["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorReply")


def test_it_says_the_limits(described: Any) -> None:
    fields = described.raw_schema["components"]["schemas"]["SearchRequest"]["properties"]
    assert fields["k"]["maximum"] == limits.K and fields["k"]["default"] == 20
    assert fields["questions"]["anyOf"][0]["maxItems"] == limits.QUESTIONS
    assert fields["question"]["anyOf"][0]["maxLength"] == limits.QUESTION_LENGTH
    assert described.raw_schema["components"]["schemas"]["SearchRequest"]["additionalProperties"] is False


@pytest.mark.parametrize("name", ["SearchRequest", "AnswerRequest"])
def test_its_examples_are_answered(described: Any, name: str) -> None:
    for example in described.raw_schema["components"]["schemas"][name]["examples"]:
        path = "/v1/search" if name == "SearchRequest" else "/v1/answer"
        case = described[path]["POST"].Case(body=example, media_type="application/json")
        assert case.call_and_validate().status_code == 200
