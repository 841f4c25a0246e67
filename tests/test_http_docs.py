"""docs/http.md against the program: its routes, fields, limits, errors and metrics are all those of the service."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bpr
from bpr.retriever import Timings
from bpr.service import app, schemas
from bpr.service import settings as limits
from bpr.service.engine import Engine
from bpr.service.guard import PUBLIC, Gate
from bpr.service.metrics import Metrics
from bpr.service.settings import Settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
SERVICE = ROOT / "src" / "bpr" / "service"
# The limits of a JSON schema, and its default: what a field's cell must say in numbers.
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "default")
OWN = Settings()


def section(title: str) -> str:
    """What stands under a heading of the page."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def by_name(title: str) -> dict[str, list[str]]:
    """The rows of a table by the code in their first cell."""
    found = {cells[0].strip("`"): cells[1:] for cells in rows(title)}
    assert len(found) == len(rows(title)) > 0
    return found


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def numbers(text: str) -> set[float]:
    return {float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}


def bounds(schema: Any) -> set[float]:
    """Every limit and default of a field, however deep."""
    if isinstance(schema, list):
        return set().union(*map(bounds, schema))
    if not isinstance(schema, dict):
        return set()
    own = {float(schema[name]) for name in BOUNDS if type(schema.get(name)) in (int, float)}
    return own.union(*map(bounds, schema.values()))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    opened = Engine(bpr.open(ROOT / "tests" / "golden" / "v1-two-planes.bpr"), OWN, Metrics())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def described(engine: Engine) -> dict[str, Any]:
    """The description that /openapi.json gives."""
    return app.make_app(engine, Gate(OWN, engine.metrics)).openapi()


def test_the_routes_of_the_page_are_those_of_the_service(described):
    named = {("post", path) for path in re.findall(r"^## POST (\S+)$", PAGE, re.MULTILINE)}
    named |= {("get", path) for path in by_name("GET")}
    assert named == {(method, path) for path, methods in described["paths"].items() for method in methods}


def test_what_needs_no_token_is_what_the_page_says():
    unauthorized = next(cells[2] for cells in rows("Errors") if cells[0] == "401")
    assert set(re.findall(r"`(/\S*)`", unauthorized)) == PUBLIC
    for path in PUBLIC - set(by_name("GET")):
        assert f"`GET {path}`" in PAGE.split("\n## ")[0]


def test_every_field_of_a_request_is_in_its_table_and_no_other():
    search, answer = set(schemas.SearchRequest.model_fields), set(schemas.AnswerRequest.model_fields)
    assert set(by_name("POST /v1/search")) == search
    assert "The same fields, without `vectors`, and with these:" in section("POST /v1/answer")
    assert set(by_name("POST /v1/answer")) | (search - {"vectors"}) == answer
    assert set(by_name("POST /v1/answer")) == answer - search | {"k"}


@pytest.mark.parametrize("route, request_of", [("search", "SearchRequest"), ("answer", "AnswerRequest")])
def test_the_limits_and_defaults_of_a_field_are_those_that_are_checked(described, route: str, request_of: str):
    fields = described["components"]["schemas"][request_of]["properties"]
    for name, (_, limit) in by_name(f"POST /v1/{route}").items():
        deadlines = {1000 * OWN.deadline, 1000 * OWN.answer_deadline} if name == "timeout_ms" else set()
        assert numbers(limit) == bounds(fields[name]) | deadlines, name
        if isinstance(fields[name].get("default"), bool):
            assert limit == f"`{str(fields[name]['default']).lower()}`"


def test_the_limits_of_the_page_are_the_constants_of_the_service(engine: Engine):
    search, answer, errors = (section(name) for name in ("POST /v1/search", "POST /v1/answer", "Errors"))
    for text, sentence in (
        (search, f"1 to {limits.QUESTIONS} of 1 to {limits.QUESTION_LENGTH:,} characters"),
        (search, f"1 to {limits.QUESTIONS} of 1 to {limits.VECTOR_LENGTH:,} numbers"),
        (search, f"20; 1 to {limits.K:,} |"),
        (search, f"1 to {limits.CANDIDATES:,}, and at least `k`"),
        (search, f"at most {limits.PASSAGES:,} passages"),
        (search, f"{1000 * OWN.deadline:,.0f} for a search, {1000 * OWN.answer_deadline:,.0f} for an answer"),
        (answer, f"the reader's own; 1 to {limits.READ} |"),
        (answer, f"1; 1 to {limits.ANSWERS} |"),
        (errors, f"a body above {OWN.body >> 20} MiB"),
    ):
        assert sentence in text, sentence
    named = re.search(r'"limits": \{([^}]*)\}', PAGE)[1]
    assert re.findall(r'"(\w+)"', named) == list(engine.info()["limits"])


def test_every_field_of_a_reply_is_shown(engine: Engine):
    info = by_name("GET")["/v1/info"][0]
    assert set(re.findall(r'"(\w+)"', info.split('"limits"')[0])) | {"limits"} == set(engine.info()) | set(
        engine.facts()["bytes"]
    )
    for route, reply in (("search", schemas.SearchReply), ("answer", schemas.AnswerReply)):
        assert all(f'"{name}"' in section(f"POST /v1/{route}") for name in reply.model_fields)
    assert all(f'"{name}"' in section("POST /v1/search") for name in ("queue", *Timings._fields, "total"))


def refusals() -> Iterator[tuple[int, str]]:
    """Every status and code that the service is written to refuse with."""
    yield from app.CODES.items()
    for file in SERVICE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refused":
                status, code = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                    yield status.value, code.value
                else:  # what the framework found, by CODES
                    assert ast.unparse(status) == "error.status_code", ast.unparse(node)


def test_every_error_is_in_the_table_with_its_status_and_no_other():
    assert {(int(cells[0]), cells[1].strip("`")) for cells in rows("Errors")} == set(refusals())


def test_every_metric_is_in_the_table_with_its_type_and_labels_and_no_other():
    metrics, table = Metrics(), by_name("Metrics")
    for collector in vars(metrics).values():
        name = next((each.name for each in collector.collect() if hasattr(collector, "labels")), "")
        labels = codes(table.get(f"{name}_total", table.get(name, ["", ""]))[1])
        if labels:  # a metric with labels is shown when they have values; other names of labels are an error
            collector.labels(**dict.fromkeys(labels, "any"))
    text = metrics.text().decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert {name: cells[0] for name, cells in table.items()} == types
    for name, (_, labels, _) in table.items():
        samples = re.findall(rf"^{name}(?:_bucket|_sum|_count)?(?:{{(.*)}})? ", text, re.MULTILINE)
        assert samples, f"{name} has labels that the table does not name"
        shown = {label for each in samples for label in re.findall(r'(\w+)="', each)} - {"le"}
        assert shown == set(codes(labels)), name


def test_the_stages_of_the_metrics_are_those_that_are_timed():
    stages = set(codes(by_name("Metrics")["bpr_stage_seconds"][2]))
    assert stages == {*Timings._fields, "read"}
