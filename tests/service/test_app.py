"""The routes: what they give is what the retriever gives, and what they refuse they refuse in one shape."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import bpr
from bpr.errors import BprError, CorruptBundle, StorageError
from bpr.records import Answer, Hit
from bpr.service import settings as limits
from bpr.service.app import PAGE
from bpr.service.schemas import AnswerReply, InfoReply, PassageReply, SearchReply, StatusReply
from calling import ASKED, ROWS, STRANGE_IDS, Held, Service, passages, refused

Make = Callable[..., Service]
QUESTIONS = [ASKED, "where is the capital of france", "blue 🗼 ünïcode", "q" * 2000, "'; -- \u0000 \u202e <b>"]
VECTORS = np.random.default_rng(8).standard_normal((3, 64)).round(3)


async def searched(service: Service, **body: Any) -> SearchReply:
    reply = await service.post("/v1/search", body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    return SearchReply.model_validate_json(reply.content, strict=True)


async def answered(service: Service, **body: Any) -> AnswerReply:
    reply = await service.post("/v1/answer", body)
    assert reply.status_code == 200, reply.text
    return AnswerReply.model_validate_json(reply.content, strict=True)


def shown(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [{**each.to_dict(), "score": round(each.score, 4)} for each in hits]


def shown_answers(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [{**each.to_dict(), "confidence": round(each.confidence, 4)} for each in answers]


# ── searching ────────────────────────────────────────────────────────────────────────────────────────────────────────

HOWS: list[dict[str, Any]] = [
    {},
    {"k": 1},
    {"k": 1000},
    {"k": 5, "candidates": 7},
    {"rerank": False},
    {"hybrid": True},
    {"hybrid": "weighted", "k": 4},
    {"hybrid": "reciprocal", "candidates": 30},
    {"refine": 0},
    {"refine": 50, "k": 3},
    {"where": {"year": {">=": 2030}, "lang": "en"}},
    {"where": {}},
    {"where": {"lang": "none"}},
    {"where": {"not": {"lang": "de"}}, "hybrid": True},
    {"probes": 0.5},
    {"probes": 1},
]


@pytest.mark.parametrize("how", HOWS, ids=json.dumps)
async def test_a_search_gives_what_the_retriever_gives(service: Service, how: dict[str, Any]) -> None:
    found = await searched(service, question=ASKED, **how)
    assert [each.question for each in found.results] == [ASKED]
    hits = [each.model_dump() for each in found.results[0].hits]
    assert hits == shown(service.retriever.search(ASKED, **{"k": 20, **how}))
    assert found.batch == 1 and found.generation == 1
    assert set(found.timings_ms) == {"queue", "encode", "candidates", "rerank", "words", "texts", "total"}
    assert found.timings_ms["total"] >= found.timings_ms["queue"] >= 0


async def test_an_index_of_cells_looks_at_the_share_that_is_asked_for(
    make: Make, tmp_path: Path, tiny_model: Path
) -> None:
    bpr.build(passages(), tmp_path / "cells.bpr", model=tiny_model, kind="cells")
    service = make(tmp_path / "cells.bpr")
    for probes in (0.1, 0.5, 1.0):
        found = await searched(service, question=ASKED, probes=probes)
        wanted = shown(service.retriever.search(ASKED, k=20, probes=probes))
        assert [each.model_dump() for each in found.results[0].hits] == wanted
    assert (await service.get("/v1/info")).json()["kind"] == "cells"


async def test_several_questions_keep_their_order(service: Service) -> None:
    found = await searched(service, questions=QUESTIONS, k=4)
    assert [each.question for each in found.results] == QUESTIONS and found.batch == len(QUESTIONS)
    wanted = [shown(each) for each in service.retriever.search(QUESTIONS, k=4)]
    assert [[hit.model_dump() for hit in each.hits] for each in found.results] == wanted


@pytest.mark.parametrize("how", [{}, {"k": 3, "rerank": False}, {"where": {"lang": "de"}}], ids=json.dumps)
async def test_vectors_instead_of_questions(service: Service, how: dict[str, Any]) -> None:
    found = await searched(service, vectors=VECTORS.tolist(), **how)
    wanted = service.retriever.search(vectors=VECTORS.astype(np.float32), **{"k": 20, **how})
    assert [each.question for each in found.results] == [None] * 3
    assert [[hit.model_dump() for hit in each.hits] for each in found.results] == [shown(each) for each in wanted]


async def test_requests_at_the_same_time_get_their_own_replies(service: Service) -> None:
    questions = [f"{ASKED} {number}" for number in range(30)]
    found = await asyncio.gather(
        *(searched(service, question=each, k=1 + number % 2) for number, each in enumerate(questions))
    )
    for number, (question, reply) in enumerate(zip(questions, found, strict=True)):
        wanted = shown(service.retriever.search(question, k=1 + number % 2))
        assert [each.model_dump() for each in reply.results[0].hits] == wanted
    assert max(each.batch for each in found) > 1


async def test_a_bundle_of_vectors_takes_vectors_and_refuses_text(make: Make, tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).standard_normal((ROWS, 64), np.float32)
    path = tmp_path / "vectors.bpr"
    bpr.build(passages(), path, vectors=vectors)
    service = make(path, encoder=None, reader=None)
    found = await searched(service, vectors=[vectors[7].tolist()], k=1)
    assert found.results[0].hits[0].id == passages()[7]["id"]
    for route in ("/v1/search", "/v1/answer"):
        message = refused(await service.post(route, {"question": "who?"}), 400, "invalid_input")
        assert str(tmp_path) not in message and "vectors.bpr" not in message
    assert "the bundle was built from vectors" in refused(
        await service.post("/v1/search", {"question": "who?"}), 400, "invalid_input"
    )
    assert InfoReply.model_validate((await service.get("/v1/info")).json(), strict=True).model is None


async def test_what_the_bundle_lacks_is_the_callers_mistake_and_names_no_path(
    make: Make, own: Path, tmp_path: Path
) -> None:
    service = make(own)  # without words
    message = refused(await service.post("/v1/search", {"question": "who?", "hybrid": True}), 400, "invalid_input")
    assert "keeps no words" in message and str(tmp_path) not in message


# ── answering ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "how",
    [
        {"least": 0},
        {"n": 3, "least": 0.0, "k": 10},
        {"n": 10, "least": 0.02},
        {"least": 1},
        {"k": 2, "least": 0.0, "hybrid": True},
        {"k": 100, "n": 2, "least": 0.0, "where": {"lang": "en"}},
        {"k": 3, "candidates": 3, "rerank": False, "least": 0.0},
        {},
    ],
    ids=json.dumps,
)
async def test_answers_are_what_the_retriever_answers(service: Service, how: dict[str, Any]) -> None:
    found = await answered(service, question=ASKED, **how)
    wanted = service.retriever.answer(ASKED, **{"n": 1, **how})
    assert [each.model_dump() for each in found.results[0].answers] == shown_answers(wanted)
    for each in found.results[0].answers:
        assert each.text == each.passage.text[each.start : each.end]
    assert found.timings_ms["read"] > 0 and found.results[0].question == ASKED


async def test_answers_to_several_questions(service: Service) -> None:
    questions = [ASKED, "blue 🗼 ünïcode", "where is the bridge"]
    found = await answered(service, questions=questions, n=2, least=0.0, k=5)
    wanted = service.retriever.answer(questions, n=2, least=0.0, k=5)
    assert [each.question for each in found.results] == questions
    assert [[one.model_dump() for one in each.answers] for each in found.results] == list(map(shown_answers, wanted))


async def test_a_question_without_words_has_no_answer_and_that_is_said(service: Service) -> None:
    message = refused(await service.post("/v1/answer", {"question": " \t "}), 400, "invalid_input")
    assert "holds no words" in message
    both = {"questions": [ASKED, "  "]}
    refused(await service.post("/v1/answer", both), 400, "invalid_input")


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────

NESTED: dict[str, Any] = {"year": 1}
for _ in range(300):
    NESTED = {"not": NESTED}
WRONG: dict[str, Any] = {
    "nothing": {},
    "no object": [1],
    "null": None,
    "empty question": {"question": ""},
    "no question": {"question": None},
    "no questions": {"questions": []},
    "both": {"question": "a", "questions": ["b"]},
    "question and vectors": {"question": "a", "vectors": [[1.0] * 64]},
    "number": {"question": 1},
    "list": {"question": ["a"]},
    "too long": {"question": "q" * 2001},
    "one too long": {"questions": ["a", "q" * 2001]},
    "too many": {"questions": ["a"] * 33},
    "too many vectors": {"vectors": [[1.0] * 64] * 33},
    "half a character": {"question": "a\ud800b"},
    "half a character in a list": {"questions": ["a", "\udfff"]},
    "half a character in a key": {"question": "a", "\ud800": 1},
    "half a character in a filter's field": {"question": "a", "where": {"\ud800": 1}},
    "half a character in a filter's value": {"question": "a", "where": {"lang": "\ud800"}},
    "unknown field": {"question": "a", "paht": "/etc/passwd"},
    "k none": {"question": "a", "k": None},
    "k 0": {"question": "a", "k": 0},
    "k negative": {"question": "a", "k": -5},
    "k large": {"question": "a", "k": 1001},
    "k huge": {"question": "a", "k": 10**30},
    "k float": {"question": "a", "k": 5.0},
    "k text": {"question": "a", "k": "5"},
    "k true": {"question": "a", "k": True},
    "k NaN": {"question": "a", "k": float("nan")},
    "too many passages": {"questions": ["a"] * 32, "k": 251},
    "candidates below k": {"question": "a", "k": 10, "candidates": 9},
    "candidates large": {"question": "a", "candidates": 10_001},
    "rerank text": {"question": "a", "rerank": "no"},
    "hybrid": {"question": "a", "hybrid": "both"},
    "hybrid vectors": {"vectors": [[1.0] * 64], "hybrid": True},
    "refine": {"question": "a", "refine": -1},
    "probes 0": {"question": "a", "probes": 0},
    "probes above 1": {"question": "a", "probes": 1.01},
    "probes NaN": {"question": "a", "probes": float("nan")},
    "probes infinite": {"question": "a", "probes": float("inf")},
    "timeout 0": {"question": "a", "timeout_ms": 0},
    "timeout large": {"question": "a", "timeout_ms": 600_001},
    "where list": {"question": "a", "where": [1]},
    "where unknown": {"question": "a", "where": {"nobody": 1}},
    "where NaN": {"question": "a", "where": {"year": float("nan")}},
    "where sign": {"question": "a", "where": {"year": {"~": 1}}},
    "where nested": {"question": "a", "where": NESTED},
    "vectors narrow": {"vectors": [[1.0] * 8]},
    "vectors ragged": {"vectors": [[1.0] * 64, [1.0] * 63]},
    "vectors empty": {"vectors": [[]]},
    "vectors wide": {"vectors": [[1.0] * 8193]},
    "vectors NaN": {"vectors": [[float("nan")] * 64]},
    "vectors infinite": {"vectors": [[float("-inf")] * 64]},
    "vectors beyond float32": {"vectors": [[1e300] * 64]},
    "vectors astronomic": {"vectors": [[3e38] * 64]},
    "vectors text": {"vectors": [["1"] * 64]},
    "vectors flat": {"vectors": [1.0] * 64},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
async def test_wrong_searches_are_refused_and_the_message_says_why(service: Service, body: Any) -> None:
    reply = await service.post("/v1/search", body)
    message = refused(reply, 400, "invalid_input")
    assert len(message) < 1000 and str(service.retriever.bundle.path) not in message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"question": "a", "vectors": [[1.0] * 64]},
        {"vectors": [[1.0] * 64]},
        {"question": "a", "questions": ["a"]},
        {"question": "a", "n": 0},
        {"question": "a", "n": 11},
        {"question": "a", "k": 101},
        {"question": "a", "least": -0.1},
        {"question": "a", "least": 1.5},
        {"question": "a", "least": float("nan")},
        {"question": "a", "k": 5, "candidates": 4},
        {"question": "a", "candidates": 1},
        {"question": "\ud800"},
    ],
    ids=json.dumps,
)
async def test_wrong_questions_are_refused(service: Service, body: Any) -> None:
    refused(await service.post("/v1/answer", body), 400, "invalid_input")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"question": "a"} trailing',
        b'{"question": "\xff\xfe"}',
        b'{"question": "a\\ud8"}',
        b"[" * 100_000,
        b'{"question": "a", "where": ' + b'{"a": ' * 30_000 + b"1" + b"}" * 30_001,
        b'{"question": "a", "k": ' + b"9" * 5000 + b"}",
        b'{"question": "a", "k": 1e400}',
        b'{"vectors": [[' + b"9" * 400 + b"]]}",
        b"\x00" * 100,
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_what_is_not_json_or_hardly_is_refused(service: Service, body: bytes) -> None:
    refused(await service.post("/v1/search", body), 400, "invalid_input")


async def test_messages_name_the_field_and_the_limit_and_not_what_was_sent(service: Service) -> None:
    async def message(**body: Any) -> str:
        return refused(await service.post("/v1/search", body), 400, "invalid_input")

    assert await message(question="a", k=1001) == "k: Input should be less than or equal to 1000"
    assert "32" in await message(questions=["a"] * 33) and "2000" in await message(question="q" * 2001)
    assert "8,000 passages" in await message(questions=["a"] * 32, k=251)
    assert "exactly one of" in await message()
    assert "one width" in await message(vectors=[[1.0], [1.0, 2.0]])
    assert "zebra" not in await message(question="a", hybrid="zebra")
    assert (await message(vectors=[[None] * 64])).count(";") == 2  # the first few mistakes, not all of them


async def test_of_two_equal_keys_the_last_counts_as_in_most_of_the_world(service: Service) -> None:
    reply = await service.post("/v1/search", b'{"question": "a", "k": 1, "question": "b"}')
    assert SearchReply.model_validate(reply.json()).results[0].question == "b"


async def test_limits_themselves_are_allowed(service: Service) -> None:
    await searched(service, questions=["a"] * limits.QUESTIONS, k=limits.PASSAGES // limits.QUESTIONS)
    await searched(service, question="q" * limits.QUESTION_LENGTH, k=limits.K, candidates=limits.CANDIDATES)
    await searched(service, question="a", timeout_ms=600_000, probes=1.0, refine=limits.K)
    found = await searched(service, question="a", where={"year": {">": int("9" * 400)}})
    assert found.results[0].hits == []


# ── time, and mistakes of ours ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("route", ["/v1/search", "/v1/answer"])
async def test_what_is_not_done_in_time_is_not_waited_for(make: Make, held: Held, route: str) -> None:
    service = make(encoder=held)
    reply = await service.post(route, {"question": "hold on", "timeout_ms": 30})
    assert "not done in time" in refused(reply, 504, "deadline_exceeded")
    if held.entered.is_set():  # and was not too late for that, too
        assert await asyncio.to_thread(held.cancelled.wait, 60)  # the work was stopped
    assert (await service.post("/v1/search", {"question": "who?"})).status_code == 200


@pytest.mark.parametrize(("route", "limit"), [("/v1/search", "deadline"), ("/v1/answer", "answer_deadline")])
async def test_nobody_gets_more_time_than_the_service_gives(make: Make, held: Held, route: str, limit: str) -> None:
    service = make(encoder=held, **{limit: 0.03})
    reply = await service.post(route, {"question": "hold on", "timeout_ms": 600_000})
    refused(reply, 504, "deadline_exceeded")


@pytest.mark.parametrize("error", [ValueError("secret 123"), CorruptBundle("secret 123"), StorageError("secret 123")])
async def test_a_mistake_of_ours_tells_the_caller_nothing_and_the_log_everything(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    service = make()

    def broken(*given: Any, **how: Any) -> Any:
        raise error

    monkeypatch.setattr(service.retriever, "search_timed", broken)
    for route in ("/v1/search", "/v1/answer"):
        caplog.clear()
        reply = await service.post(route, {"question": ASKED}, headers={"x-request-id": "the-id"})
        assert refused(reply, 500, "internal") == "a mistake of ours: the log has this id"
        assert "secret" not in reply.text and type(error).__name__ not in reply.text
        assert "the-id" in caplog.text and "secret 123" in caplog.text
    monkeypatch.undo()
    assert (await service.post("/v1/search", {"question": ASKED})).status_code == 200


async def test_a_mistake_beside_the_questions_tells_nothing_either(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = make()

    def broken(*_: Any) -> Any:
        raise BprError("secret 123")

    monkeypatch.setattr(service.engine, "info", broken)
    monkeypatch.setattr(service.engine, "passage", broken)
    for path in ("/v1/info", "/v1/passages/p9"):
        reply = await service.get(path)
        refused(reply, 500, "internal")
        assert "secret" not in reply.text
    assert caplog.text.count("secret 123") >= 2


# ── what is not a question ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("id", [*STRANGE_IDS, "p9"])
async def test_passages_by_whatever_id_they_have(service: Service, id: str) -> None:
    wanted = next(each for each in passages() if each["id"] == id)
    reply = await service.get(f"/v1/passages/{quote(id, safe='')}")
    assert reply.status_code == 200 and PassageReply.model_validate(reply.json(), strict=True).model_dump() == wanted
    if "//" not in id:
        assert (await service.get(f"/v1/passages/{quote(id)}")).json() == wanted


@pytest.mark.parametrize(
    "id", ["nobody", "", "%FF%FE", "%00", "p9/", "P9", "x" * 1025, "%ED%A0%80", "p9%20", "a%2Fb", "%2e%2e%2f%2e%2e"]
)
async def test_ids_that_nobody_has(service: Service, id: str) -> None:
    refused(await service.get(f"/v1/passages/{id}"), 404, "not_found")


async def test_info_is_what_is_searched_and_allowed(service: Service) -> None:
    reply = await service.get("/v1/info")
    found = InfoReply.model_validate_json(reply.content, strict=True)
    assert found.model_dump() == service.engine.info() and found.rows == ROWS
    assert str(service.retriever.bundle.path.parent) not in reply.text


async def test_the_process_says_how_it_is(service: Service) -> None:
    for path, status in (("/healthz", "alive"), ("/readyz", "ready")):
        reply = await service.get(path)
        assert StatusReply.model_validate_json(reply.content).status == status


@pytest.mark.parametrize(
    ("path", "kind", "file"),
    [
        ("/", "text/html", "index.html"),
        ("/docs", "text/html", "docs.html"),
        *(
            (f"/page/{name}", kind, name)
            for name, kind in [("app.js", "text/javascript"), ("style.css", "text/css"), ("icon.svg", "image/svg+xml")]
        ),
    ],
)
async def test_the_page_and_its_files(service: Service, path: str, kind: str, file: str) -> None:
    for headers in ({}, {"range": "bytes=5-1"}, {"range": "nonsense"}, {"if-none-match": "*"}):
        reply = await service.get(path, headers=headers)
        assert reply.status_code == 200 and reply.headers["content-type"].split(";")[0] == kind
        assert reply.content == (PAGE / file).read_bytes()


def test_every_file_that_the_page_names_is_served(service: Service) -> None:
    for html in ("index.html", "docs.html"):
        for name in re.findall(r'(?:src|href)="page/([^"]+)"', (PAGE / html).read_text()):
            assert asyncio.run(service.get(f"/page/{name}")).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/index.html", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/app.js/", "/page//etc/passwd"],
)
async def test_nothing_else_is_a_file(service: Service, path: str) -> None:
    refused(await service.get(path), 404, "not_found")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/v1", "/v1/search/", "/v1/passages", "/docs/", "/healthz/", "/V1/info", "/redoc"]
)
async def test_what_is_not_there_is_not_there_and_leads_nowhere_else(service: Service, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        refused(await service.request(method, path), 404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"])
async def test_methods_that_are_not_there(service: Service, method: str) -> None:
    for path, allowed in (("/v1/search", "POST"), ("/v1/info", "GET"), ("/", "GET"), ("/page/app.js", "GET")):
        reply = await service.request(method, path)
        refused(reply, 405, "method_not_allowed")
        assert reply.headers["allow"] == allowed
    refused(await service.get("/v1/search"), 405, "method_not_allowed")


# ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────────────


async def metrics_of(service: Service) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reply = await service.get("/metrics")
    assert reply.status_code == 200 and reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


async def test_metrics_count(make: Make) -> None:
    service = make()
    before = await metrics_of(service)
    assert before[("bpr_index_rows", ())] == ROWS and before[("bpr_index_generation", ())] == 1
    assert before[("process_open_fds", ())] > 0 and before[("bpr_index_bytes", ())] > 0
    await searched(service, questions=["a", "b", "c"])
    await answered(service, question=ASKED)
    await service.get("/nowhere?secret=iliad")
    await service.get("/v1/passages/p9")
    await service.post("/v1/search", {"question": ""})
    found = await metrics_of(service)

    def counted(route: str, status: str) -> float:
        return found[("bpr_requests_total", (("route", route), ("status", status)))]

    assert counted("/v1/search", "200") == counted("/v1/answer", "200") == counted("/v1/search", "400") == 1
    assert counted("other", "404") == counted("/v1/passages", "200") == counted("/metrics", "200") == 1
    assert found[("bpr_batch_questions_sum", ())] == 4 and found[("bpr_batch_questions_count", ())] == 2
    assert found[("bpr_request_seconds_count", (("route", "/v1/search"),))] == 2
    assert found[("bpr_stage_seconds_count", (("stage", "encode"),))] == 2
    assert found[("bpr_stage_seconds_count", (("stage", "read"),))] == 1
    assert not any("iliad" in str(each) for each in found)
