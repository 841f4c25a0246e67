"""What every request passes, and what every reply gets on its way out."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bpr.service import guard
from bpr.service.guard import HEADERS, PUBLIC, ROUTES, Gate, Guard, identity_of
from bpr.service.metrics import Metrics
from bpr.service.settings import Settings
from calling import ASKED, Held, Service, refused

Make = Callable[..., Service]
QUESTION = {"question": ASKED, "k": 2}


class Sent:
    """What a guard sends; and what it is sent."""

    def __init__(self, *incoming: Any) -> None:
        self.messages: list[Any] = []
        self._incoming = list(incoming)

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    async def receive(self) -> Any:
        return self._incoming.pop(0)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def error(self) -> Any:
        return json.loads(self.messages[1]["body"])["error"]


def scope(path: str = "/v1/search", method: str = "POST", **headers: str) -> dict[str, Any]:
    given = {"host": "localhost", "content_type": "application/json", **headers}
    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return {"type": "http", "method": method, "path": path, "headers": listed}


def guarding(routes: Callable[..., Awaitable[None]], **settings: Any) -> tuple[Guard, Gate]:
    chosen, metrics = Settings(**settings), Metrics()
    gate = Gate(chosen, metrics)
    gate.ready = True
    return Guard(routes, gate, chosen, metrics), gate


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Routes that give back what they get."""
    got = await receive()
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": got["body"]})
    after = await receive()
    assert after["type"] == "http.disconnect"


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


# ── identity ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", ["a", "7c0f-AB.c_d", "0" * 64])
async def test_a_request_may_bring_its_own_id(service: Service, given: str) -> None:
    reply = await service.post("/v1/search", QUESTION, headers={"x-request-id": given})
    assert reply.headers["x-request-id"] == reply.json()["request_id"] == given
    missing = await service.get("/nowhere", headers={"x-request-id": given})
    assert missing.headers["x-request-id"] == missing.json()["request_id"] == given


@pytest.mark.parametrize("given", ["", "0" * 65, "a b", "a\tb", "<script>", "ä", 'a"b', "a,b"])
async def test_a_strange_id_is_replaced(service: Service, given: str) -> None:
    reply = await service.post("/v1/search", QUESTION, headers={"x-request-id": given.encode("latin-1")})
    identity = reply.headers["x-request-id"]
    assert identity == reply.json()["request_id"] != given and len(identity) == 16 and int(identity, 16) >= 0


def test_ids_are_not_given_twice() -> None:
    assert len({identity_of(None) for _ in range(1000)}) == 1000
    assert identity_of(b"a\n") != "a\n"


# ── headers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", each) for each in sorted(ROUTES)),
        ("GET", "/page/app.js"),
        ("GET", "/page/none.js"),
        ("GET", "/nowhere"),
        ("GET", "/v1/passages/p9"),
        ("DELETE", "/v1/search"),
        ("POST", "/v1/search"),
    ],
)
async def test_every_reply_has_the_headers_that_keep_it_safe(service: Service, method: str, path: str) -> None:
    reply = await service.request(method, path)
    for name, value in HEADERS:
        assert reply.headers.get_list(name.decode()) == [value.decode()]
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert len(reply.headers.get_list("x-request-id")) == 1
    assert "server" not in reply.headers and "access-control-allow-origin" not in reply.headers


async def test_a_header_that_a_route_has_set_itself_stays() -> None:
    async def routes(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"max-age=1")]})

    sent = Sent()
    await guarding(routes)[0](scope("/", "GET"), sent.receive, sent)
    assert [value for name, value in sent.messages[0]["headers"] if name == b"cache-control"] == [b"max-age=1"]


async def test_while_draining_every_reply_says_that_its_connection_closes(make: Make) -> None:
    service = make()
    assert "connection" not in (await service.get("/healthz")).headers
    service.gate.draining = True
    for path in ("/healthz", "/", "/nowhere", "/readyz"):
        assert (await service.get(path)).headers["connection"] == "close"
    reply = await service.post("/v1/search", QUESTION)
    assert reply.headers["connection"] == "close" and reply.headers["retry-after"] == "1"


# ── the caller ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "bearer secret", "secret", "Bearer secret ", "Basic secret"],
)
async def test_without_the_token_nothing_is_told(make: Make, given: str | None) -> None:
    service = make(token="secret")
    headers = {} if given is None else {"authorization": given}
    for method, path in (("POST", "/v1/search"), ("GET", "/v1/info"), ("GET", "/metrics"), ("GET", "/v1/passages/p9")):
        reply = await service.request(method, path, headers=headers)
        message = refused(reply, 401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer" and "secret" not in message
    for path in ("/nowhere", "/v1", "/docs/", "/pages/app.js"):
        refused(await service.get(path, headers=headers), 401, "unauthorized")


async def test_with_the_token_everything_is_and_by_any_name(make: Make) -> None:
    service = make(token="secret")
    headers = {"authorization": "Bearer secret", "host": "bpr.example"}
    reply = await service.post("/v1/search", QUESTION, headers=headers)
    assert reply.status_code == 200 and len(reply.json()["results"][0]["hits"]) == 2
    assert (await service.get("/v1/info", headers=headers)).status_code == 200


async def test_what_tells_nothing_needs_no_token(make: Make) -> None:
    service = make(token="secret")
    for path in [*PUBLIC, "/page/app.js", "/page/style.css"]:
        assert (await service.get(path)).status_code == 200
    assert not {"/v1/info", "/metrics", "/v1/search", "/v1/answer"} & PUBLIC


async def test_tokens_are_compared_in_constant_time_and_never_logged(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compared = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    class Watched:
        compare_digest = staticmethod(watched)

    monkeypatch.setattr(guard, "hmac", Watched)
    with caplog.at_level(logging.DEBUG, "bpr.service"):
        refused(
            await make(token="secret").get("/v1/info", headers={"authorization": "Bearer guess"}), 401, "unauthorized"
        )
    assert compared == [(b"Bearer guess", b"Bearer secret")]
    assert "guess" not in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]", "[::1]:8080", "localhost:1"])
async def test_loopback_answers_to_its_own_names(service: Service, host: str) -> None:
    assert (await service.get("/v1/info", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "localhost:80:80", "[::1", "\xe9"],
)
async def test_a_page_elsewhere_cannot_give_its_name_to_this_address(make: Make, service: Service, host: str) -> None:
    headers = {"host": host.encode("latin-1")}
    for path in ("/v1/info", "/", "/healthz", "/nowhere"):
        refused(await service.get(path, headers=headers), 421, "wrong_host")
    assert (await make(any_host=True).get("/v1/info", headers=headers)).status_code == 200


# ── the body ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_a_body_that_is_not_json_is_refused(service: Service, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    reply = await service.request("POST", "/v1/search", content=json.dumps(QUESTION), headers=headers)
    refused(reply, 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;"])
async def test_json_may_say_its_charset(service: Service, kind: str) -> None:
    assert (await service.post("/v1/search", QUESTION, headers={"content-type": kind})).status_code == 200


@pytest.mark.parametrize("length", ["201", "9" * 17, "9" * 5000])
async def test_a_body_that_says_it_is_too_large_is_not_even_read(make: Make, length: str) -> None:
    async def never() -> Any:
        raise AssertionError("it was read")

    sent = Sent()
    await make(body=200).guard(scope(content_length=length), never, sent)
    assert sent.status == 413 and sent.error["code"] == "too_large" and "200 bytes" in sent.error["message"]
    assert (b"connection", b"close") in sent.messages[0]["headers"]


async def test_a_body_that_grows_too_large_is_not_read_to_its_end(make: Make) -> None:
    service, given = make(body=200), []

    async def growing() -> Any:
        for _ in range(1000):
            given.append(1)
            yield b" " * 90

    reply = await service.request("POST", "/v1/search", content=growing(), headers={"content-type": "application/json"})
    refused(reply, 413, "too_large")
    assert reply.headers["connection"] == "close" and len(given) == 3 and service.gate.buffered == 0


async def test_a_body_of_just_the_size_is_read(make: Make) -> None:
    body = json.dumps(QUESTION).encode()
    assert (await make(body=len(body)).post("/v1/search", body)).status_code == 200
    refused(await make(body=len(body) - 1).post("/v1/search", body), 413, "too_large")


async def test_a_body_comes_in_parts_and_is_whole_for_the_routes() -> None:
    guard, gate = guarding(echo)
    sent = Sent(part(b"one ", True), part(b"", True), part(b"two"), GONE)
    await guard(scope(), sent.receive, sent)
    assert sent.status == 200 and sent.messages[1]["body"] == b"one two" and gate.buffered == gate.inside == 0


async def test_a_body_that_does_not_arrive_is_not_waited_for(make: Make) -> None:
    service = make(body_time=0.05)

    async def half() -> Any:
        yield b'{"question":'
        await asyncio.Event().wait()

    reply = await service.request("POST", "/v1/search", content=half(), headers={"content-type": "application/json"})
    assert "0.05 s" in refused(reply, 408, "request_timeout")
    assert reply.headers["connection"] == "close" and service.gate.buffered == 0


async def test_a_caller_that_leaves_in_the_middle_of_its_body() -> None:
    guard, gate = guarding(echo)
    sent = Sent(part(b"half", True), GONE)
    await guard(scope(), sent.receive, sent)
    assert sent.status == 400 and gate.buffered == 0


async def test_bodies_that_arrive_share_their_room() -> None:
    guard, gate = guarding(echo, buffered=10)
    sent = Sent(part(b"12345", True), part(b"67890"), GONE)
    await guard(scope(), sent.receive, sent)
    assert sent.status == 200
    sent = Sent(part(b"12345", True), part(b"678901", True))
    await guard(scope(), sent.receive, sent)
    assert sent.status == 429 and sent.error["code"] == "overloaded" and gate.buffered == 0
    assert (b"retry-after", b"1") in sent.messages[0]["headers"]


# ── room ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_request_too_many_is_refused_at_once_and_the_next_one_is_not(make: Make, held: Held) -> None:
    service = make(encoder=held, in_flight=1)
    first = asyncio.create_task(service.post("/v1/search", {"question": "hold on"}))
    assert await asyncio.to_thread(held.entered.wait, 60)
    for path in ("/v1/search", "/v1/answer"):
        reply = await service.post(path, QUESTION)
        assert "1 requests are in flight" in refused(reply, 429, "overloaded")
        assert reply.headers["retry-after"] == "1"
    assert (await service.get("/v1/info")).status_code == 200  # what is not a question has room
    assert (await service.get("/v1/passages/p9")).status_code == 200
    assert "bpr_in_flight 1.0" in (await service.get("/metrics")).text
    held.go.set()
    assert (await first).status_code == 200
    assert (await service.post("/v1/search", QUESTION)).status_code == 200
    assert "bpr_in_flight 0.0" in (await service.get("/metrics")).text and service.gate.inside == 0


async def test_others_may_have_come_in_while_a_body_arrived(make: Make, held: Held) -> None:
    service = make(encoder=held, in_flight=1)
    go = asyncio.Event()

    async def late() -> Any:
        yield b'{"question": "who", '
        await go.wait()
        yield b'"k": 1}'

    headers = {"content-type": "application/json"}
    slow = asyncio.create_task(service.request("POST", "/v1/search", content=late(), headers=headers))
    while not service.gate.buffered:
        await asyncio.sleep(0)
    first = asyncio.create_task(service.post("/v1/search", {"question": "hold on"}))
    assert await asyncio.to_thread(held.entered.wait, 60)
    go.set()
    refused(await slow, 429, "overloaded")
    held.go.set()
    assert (await first).status_code == 200


async def test_before_it_is_ready_and_while_it_stops_questions_are_refused(make: Make) -> None:
    service = make(warm=False)
    for why in ("starting", "stopping"):
        reply = await service.post("/v1/search", QUESTION)
        assert why in refused(reply, 503, "unavailable") and reply.headers["retry-after"] == "1"
        refused(await service.post("/v1/answer", QUESTION), 503, "unavailable")
        assert refused(await service.get("/readyz"), 503, "unavailable") == why
        assert (await service.get("/healthz")).json() == {"status": "alive"}
        service.gate.ready, service.gate.draining = True, True
    service.gate.draining = False
    assert (await service.get("/readyz")).json() == {"status": "ready"}


async def test_a_post_to_what_takes_none_is_told_so_whatever_it_brings(make: Make) -> None:
    service = make(warm=False)  # nor does it matter whether there is room
    for path in sorted(ROUTES - {"/v1/search", "/v1/answer"}):
        reply = await service.request("POST", path, content=b"anything")
        refused(reply, 405, "method_not_allowed")
        assert "GET" in reply.headers["allow"] and "POST" not in reply.headers["allow"]


# ── what escapes, what is counted, what is logged ────────────────────────────────────────────────────────────────────


async def test_what_the_routes_let_escape_is_an_error_in_the_one_shape(caplog: pytest.LogCaptureFixture) -> None:
    async def routes(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret of ours")

    sent = Sent()
    await guarding(routes)[0](scope("/", "GET", x_request_id="id-7"), sent.receive, sent)
    assert sent.status == 500 and sent.error == {"code": "internal", "message": guard.INTERNAL}
    assert "id-7" in caplog.text and "a secret of ours" in caplog.text
    assert b"secret" not in sent.messages[1]["body"]


async def test_a_reply_that_has_begun_is_not_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    async def routes(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("in the middle")

    sent = Sent()
    await guarding(routes)[0](scope("/", "GET"), sent.receive, sent)
    assert len(sent.messages) == 1 and "in the middle" in caplog.text


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_cancelled_at_the_end_is_told_so_unless_its_reply_has_begun(begun: bool) -> None:
    entered = asyncio.Event()

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        entered.set()
        await asyncio.Event().wait()

    sent = Sent()
    task = asyncio.create_task(guarding(routes)[0](scope("/", "GET"), sent.receive, sent))
    await entered.wait()
    task.cancel()
    await task
    if begun:
        assert len(sent.messages) == 1
    else:
        assert sent.status == 503 and sent.error["code"] == "unavailable"


async def test_a_stop_while_a_body_arrives_is_not_said_to_be_the_body_s_fault() -> None:
    asked, sent = asyncio.Event(), Sent()

    async def never() -> Any:
        asked.set()
        await asyncio.Event().wait()

    serving, gate = guarding(echo)
    task = asyncio.create_task(serving(scope(), never, sent))
    await asked.wait()
    task.cancel()
    await task
    assert sent.status == 503 and sent.error["message"] == "the service is stopping: try again"
    assert (gate.inside, gate.buffered) == (0, 0)


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_what_is_not_http_gets_nothing(kind: str) -> None:
    sent = Sent()
    await guarding(echo)[0]({"type": kind}, sent.receive, sent)
    assert sent.messages == []


async def test_the_log_has_a_line_for_each_request_without_its_question(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "bpr.service"):
        await service.post("/v1/search", QUESTION, headers={"x-request-id": "mine"})
        await service.get("/v1/passages/p9")
        await service.get("/nowhere%0aERROR forged?q=iliad")
    lines = [record.getMessage() for record in caplog.records if record.name == "bpr.service"]
    assert [line.split()[1:4] for line in lines] == [
        ["POST", "/v1/search", "200"],
        ["GET", "/v1/passages", "200"],
        ["GET", "other", "404"],
    ]
    assert lines[0].startswith("mine ") and lines[0].endswith(" ms")
    assert "iliad" not in caplog.text and "forged" not in caplog.text


async def test_refusals_by_the_thousand_are_counted_and_not_logged(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    service = make(in_flight=1)
    with caplog.at_level(logging.INFO, "bpr.service"), service.gate:
        for _ in range(3):
            refused(await service.post("/v1/search", QUESTION), 429, "overloaded")
    assert not [record for record in caplog.records if record.name == "bpr.service"]
    assert 'bpr_requests_total{route="/v1/search",status="429"} 3.0' in service.metrics.text().decode()
