"""Bare sockets against a real service: what is slow, too large, out of order, or no HTTP at all."""

from __future__ import annotations

import json
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bpr.service import connection as connections
from bpr.service.connection import Connection
from bpr.service.guard import HEADERS
from calling import ASKED, Process, eventually, exchange, launching, one_reply, posted, refused, until_closed

QUESTION = {"question": ASKED, "k": 1}
SHORT = 0.8  # seconds
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def process(
    small: Path, tiny_model: Path, tiny_reader: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A service with little room, but patience."""
    settings = {"header_time": 60, "body_time": 60, "keep_alive": 60, "in_flight": 1, "body": 5000}
    with launching(small, tiny_model, tiny_reader, tmp_path_factory.mktemp("go"), **settings) as started:
        yield started


@pytest.fixture(scope="module")
def hasty_process(
    small: Path, tiny_model: Path, tiny_reader: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A service with little room and little patience."""
    settings = {"header_time": SHORT, "body_time": SHORT, "keep_alive": 1, "in_flight": 1, "body": 5000}
    with launching(small, tiny_model, tiny_reader, tmp_path_factory.mktemp("go"), **settings) as started:
        yield started


@pytest.fixture
def connection(process: Process) -> Iterator[socket.socket]:
    with process.connect() as made:
        yield made


@pytest.fixture
def hasty(hasty_process: Process) -> Iterator[socket.socket]:
    """A connection to the one that has no patience."""
    with hasty_process.connect() as made:
        yield made


@contextmanager
def filled(process: Process) -> Iterator[Callable[[], None]]:
    """While it has no room; calling what it gives makes room again."""
    name, in_flight = secrets.token_hex(8), "bpr_in_flight 1.0"
    replies: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: replies.append(process.search(f"hold {name}")))
    asking.start()
    with process.client() as client:
        eventually(lambda: in_flight in client.get("metrics").text, "a request is in flight")

        def let_go() -> None:
            process.let_go(name)
            asking.join()
            eventually(lambda: in_flight not in client.get("metrics").text, "none is in flight")

        yield let_go
        let_go()
    assert replies[0].status_code == 200


@pytest.fixture
def full(process: Process) -> Iterator[Callable[[], None]]:
    with filled(process) as let_go:
        yield let_go


@pytest.fixture
def hasty_full(hasty_process: Process) -> Iterator[Callable[[], None]]:
    with filled(hasty_process) as let_go:
        yield let_go


def reply_of(raw: bytes) -> httpx.Response:
    """What was sent before the connection closed: one whole reply."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)


def is_safe(reply: httpx.Response) -> bool:
    return all(reply.headers[name.decode()] == value.decode() for name, value in HEADERS)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: "])
def test_a_head_that_does_not_come_is_not_waited_for(hasty_process: Process, sent: bytes) -> None:
    began = time.monotonic()
    with hasty_process.connect() as connection:
        assert exchange(connection, sent) == b""
    assert time.monotonic() - began >= SHORT / 2


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_either(hasty: socket.socket) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-" + b"x" * 10_000
    began = time.monotonic()
    with pytest.raises(OSError):  # the other side has closed
        for byte in head:
            hasty.sendall(bytes([byte]))
            time.sleep(SHORT / 40)
    assert time.monotonic() - began < 30 * SHORT


def test_nor_is_the_second_head_of_a_connection(hasty: socket.socket) -> None:
    hasty.sendall(GET)
    assert one_reply(hasty).status_code == 200
    assert exchange(hasty, b"GET /healthz HTTP/1.1\r\nhost:") == b""


def test_a_quiet_connection_is_closed_after_a_while(hasty: socket.socket) -> None:
    began = time.monotonic()
    hasty.sendall(GET + GET)
    assert exchange(hasty).count(b"HTTP/1.1 200 OK") == 2
    assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize("sent", [b"", b'{"question": "who', b"x" * 4999])
def test_half_a_body_is_a_408(hasty_process: Process, hasty: socket.socket, sent: bytes) -> None:
    head = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    reply = reply_of(exchange(hasty, head + b"content-length: 5000\r\n\r\n" + sent))
    refused(reply, 408, "request_timeout")
    assert reply.headers["connection"] == "close" and is_safe(reply)
    assert hasty_process.search().status_code == 200


def test_a_chunked_body_that_never_ends_is_a_408(hasty: socket.socket) -> None:
    head = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    reply = reply_of(exchange(hasty, head + b"transfer-encoding: chunked\r\n\r\n5\r\n12345\r\n"))
    refused(reply, 408, "request_timeout")


# ── size, and sense ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x-many: 12345678\r\n" * 3000 + b"\r\n",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS
        b"\x00\x00\x00\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost : localhost\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + b"9" * 30 + b"\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
    ids=lambda sent: repr(sent[:50]),
)
def test_what_cannot_be_read_is_a_400_in_the_one_shape_of_errors(
    process: Process, connection: socket.socket, sent: bytes
) -> None:
    reply = reply_of(exchange(connection, sent))
    assert "not an HTTP request" in refused(reply, 400, "invalid_input")
    assert reply.headers["connection"] == "close" and is_safe(reply)
    assert process.search().status_code == 200
    with process.client() as client:
        assert 'bpr_requests_total{route="other",status="400"}' in client.get("metrics").text


def test_a_bad_chunk_is_a_400(connection: socket.socket) -> None:
    head = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    raw = exchange(connection, head + b"transfer-encoding: chunked\r\n\r\nnonsense\r\n")
    refused(reply_of(raw), 400, "invalid_input")


def test_a_large_head_within_the_limit_is_read(connection: socket.socket) -> None:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"a" * 30_000 + b"\r\n\r\n")
    assert one_reply(connection).status_code == 200


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(connection: socket.socket) -> None:
    head = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    reply = reply_of(exchange(connection, head + b"content-length: 5001\r\n\r\n"))
    refused(reply, 413, "too_large")
    assert reply.headers["connection"] == "close"


def test_a_chunked_body_that_grows_too_large_is_refused(connection: socket.socket) -> None:
    head = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunk = b"5dc\r\n" + b" " * 1500 + b"\r\n"
    reply = reply_of(exchange(connection, head + b"transfer-encoding: chunked\r\n\r\n" + chunk * 4))
    refused(reply, 413, "too_large")


# ── HTTP as it should be ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_connection_serves_one_request_after_the_other(connection: socket.socket) -> None:
    for number in range(5):
        connection.sendall(posted(QUESTION, "/v1/search", f"x-request-id: {number}"))
        reply = one_reply(connection)
        assert reply.status_code == 200 and reply.json()["request_id"] == str(number)


def test_pipelined_requests_are_answered_in_order(connection: socket.socket) -> None:
    requests = [posted({**QUESTION, "k": number}, "/v1/search", f"x-request-id: {number}") for number in range(1, 5)]
    raw = exchange(
        connection, b"".join(requests) + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    bodies = [json.loads(each.split(b"\r\n\r\n", 1)[1]) for each in raw.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [each["request_id"] for each in bodies[:4]] == ["1", "2", "3", "4"]
    assert [len(each["results"][0]["hits"]) for each in bodies[:4]] == [1, 2, 3, 4]
    assert bodies[4] == {"status": "alive"}


def test_head_has_no_body_and_leaves_the_connection_usable(connection: socket.socket) -> None:
    connection.sendall(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(1 << 16)
    assert raw.startswith(b"HTTP/1.1 405 ") and raw.endswith(b"\r\n\r\n") and b"allow: GET" in raw
    connection.sendall(b"OPTIONS /v1/search HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n\r\n")
    reply = one_reply(connection)
    refused(reply, 405, "method_not_allowed")
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(connection: socket.socket) -> None:
    head, _, body = posted(QUESTION, "/v1/search", "expect: 100-continue").partition(b"\r\n\r\n")
    connection.sendall(head + b"\r\n\r\n")
    assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    assert one_reply(connection).status_code == 200


def test_a_chunked_body_is_a_body(connection: socket.socket) -> None:
    body = json.dumps(QUESTION).encode()
    head = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    parts = b"".join(b"1\r\n%c\r\n" % each for each in body)
    connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n")
    assert one_reply(connection).status_code == 200


def test_an_old_client_is_answered_and_its_connection_closed(connection: socket.socket) -> None:
    raw = exchange(connection, b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n")
    assert reply_of(raw).json() == {"status": "alive"}


def test_there_are_no_websockets(connection: socket.socket) -> None:
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: YQ==\r\n"
    connection.sendall(f"GET /v1/info HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n".encode())
    assert one_reply(connection).status_code == 200  # as if it had asked for nothing else


@pytest.mark.parametrize("id", ["..", "%2e%2e", "%2e%2e/%2e%2e/etc/passwd", "../../etc/passwd"])
def test_paths_are_ids_and_never_files(connection: socket.socket, id: str) -> None:
    connection.sendall(f"GET /v1/passages/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    refused(one_reply(connection), 404, "not_found")


# ── no room ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def count_of(process: Process, route: str) -> float:
    with process.client() as client:
        lines = client.get("metrics").text.splitlines()
    name = f'bpr_requests_total{{route="{route}",status="429"}} '
    return float(next((line.removeprefix(name) for line in lines if line.startswith(name)), "0"))


def is_overloaded(reply: httpx.Response) -> str:
    assert "in flight" in refused(reply, 429, "overloaded")
    assert reply.headers["retry-after"] == "1" and is_safe(reply)
    return reply.headers["x-request-id"]


def test_a_refused_request_costs_a_line_and_its_connection_stays(
    process: Process, full: Any, connection: socket.socket
) -> None:
    before = count_of(process, "/v1/search"), count_of(process, "/v1/answer")
    connection.sendall(posted(QUESTION, "/v1/search", "x-request-id: mine"))
    assert is_overloaded(one_reply(connection)) == "mine"
    connection.sendall(posted(QUESTION, "/v1/answer", "x-request-id: not mine"))
    assert len(is_overloaded(one_reply(connection))) == 16
    assert (count_of(process, "/v1/search"), count_of(process, "/v1/answer")) == (before[0] + 1, before[1] + 1)
    connection.sendall(GET)
    assert one_reply(connection).status_code == 200
    connection.sendall(b"GET /v1/passages/p9 HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert one_reply(connection).json()["id"] == "p9"
    full()
    connection.sendall(posted(QUESTION))
    assert one_reply(connection).status_code == 200


def test_what_comes_of_a_refused_body_is_dropped(full: Any, connection: socket.socket) -> None:
    whole = posted({"question": "GET / HTTP/1.1\r\n\r\n" * 50})
    connection.sendall(whole[:300])
    is_overloaded(one_reply(connection))  # before the body is there
    connection.sendall(whole[300:] + GET)
    assert one_reply(connection).json() == {"status": "alive"}


def test_pipelined_refusals(full: Any, connection: socket.socket) -> None:
    raw = exchange(connection, posted(QUESTION) * 3 + posted(QUESTION, "/v1/search", "connection: close"))
    assert raw.count(b"HTTP/1.1 429 Too Many Requests\r\n") == 4
    for each in raw.split(b"HTTP/1.1 429")[1:]:
        is_overloaded(reply_of(b"HTTP/1.1 429" + each))


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ((b"content-length", b"CONTENT-Length"), 429),
        ((b"host: localhost", b"host: localhost\r\nX-Request-ID: mine"), 429),
        ((b"host: localhost", b"host: localhost\r\nexpect: 100-continue"), 429),
        ((b"host: localhost", b"content-length: 3\r\nhost: localhost"), 400),
        ((b"host: localhost", b"host: localhost\r\ntransfer-encoding: chunked"), 400),
        ((b"host: localhost", b"host\x00: localhost"), 400),
        ((b"POST", b"post"), 400),
        ((b"HTTP/1.1", b"HTTQ/1.1"), 400),
    ],
)
def test_how_a_refused_request_is_written(
    full: Any, connection: socket.socket, changed: tuple[bytes, bytes], status: int
) -> None:
    request = posted(QUESTION).replace(*changed, 1)
    assert request != posted(QUESTION)
    connection.sendall(request)
    reply = one_reply(connection)
    assert reply.status_code == status
    if status == 429:  # and its connection is left where the next request begins
        connection.sendall(GET)
        assert one_reply(connection).json() == {"status": "alive"}


def test_a_refused_request_that_comes_byte_by_byte(full: Any, connection: socket.socket) -> None:
    for byte in posted(QUESTION):
        connection.sendall(bytes([byte]))
        time.sleep(0.0005)
    is_overloaded(one_reply(connection))
    connection.sendall(posted(QUESTION) + posted(QUESTION)[:50])
    is_overloaded(one_reply(connection))
    connection.sendall(posted(QUESTION)[50:])
    is_overloaded(one_reply(connection))


def test_a_refused_body_that_never_comes_is_not_waited_for(hasty_full: Any, hasty: socket.socket) -> None:
    began = time.monotonic()
    raw = exchange(hasty, posted(QUESTION)[:-5])
    is_overloaded(reply_of(raw))
    assert time.monotonic() - began >= SHORT / 2


def test_a_refused_connection_that_stays_quiet_is_closed(hasty_full: Any, hasty: socket.socket) -> None:
    hasty.sendall(posted(QUESTION))
    is_overloaded(one_reply(hasty))
    assert until_closed(hasty) == b""


def test_an_old_client_is_refused_and_its_connection_closed(full: Any, connection: socket.socket) -> None:
    raw = exchange(connection, posted(QUESTION).replace(b"HTTP/1.1", b"HTTP/1.0"))
    is_overloaded(reply_of(raw))


def test_a_question_with_an_address_of_its_own_is_refused_by_the_guard(full: Any, connection: socket.socket) -> None:
    connection.sendall(posted(QUESTION, "/v1/search?a=b"))
    is_overloaded(one_reply(connection))


def test_whoever_comes_with_the_one_that_there_is_room_for_is_refused_before_the_guard(process: Process) -> None:
    """Eight requests are there at one look: the guard, which takes ten times as long, puts other headers first."""
    name = secrets.token_hex(8)
    with ExitStack() as stack, selectors.DefaultSelector() as waiting:
        many = [stack.enter_context(process.connect()) for _ in range(8)]
        for each in many:
            waiting.register(each, selectors.EVENT_READ)
            each.sendall(GET)
            assert one_reply(each).status_code == 200  # it was accepted
        process.popen.send_signal(signal.SIGSTOP)
        for each in many:
            each.sendall(posted({"question": f"hold {name}", "k": 1}))
        process.popen.send_signal(signal.SIGCONT)
        replied = eventually(lambda: len(found := waiting.select(0)) >= 7 and found, "seven replies")
        seen = [key.fileobj for key, _ in replied]
        refusals = [one_reply(each) for each in seen]
        process.let_go(name)
        (last,) = set(many) - set(seen)
        assert one_reply(last).status_code == 200
    for each in refusals:
        is_overloaded(each)
        assert next(iter(each.headers)) == HEADERS[0][0].decode()


def test_who_asks_twice_on_one_connection_waits_for_himself(process: Process, connection: socket.socket) -> None:
    connection.sendall(posted({"question": "hold twice", "k": 1}, "/v1/search", "x-request-id: one"))
    with process.client() as client:
        eventually(lambda: "bpr_in_flight 1.0" in client.get("metrics").text)
    connection.sendall(posted(QUESTION, "/v1/search", "x-request-id: two", "connection: close"))
    process.let_go("twice")
    raw = until_closed(connection)
    found = [reply_of(b"HTTP/1.1" + each) for each in raw.split(b"HTTP/1.1")[1:]]
    assert [(each.status_code, each.headers["x-request-id"]) for each in found] == [(200, "one"), (200, "two")]


class Wire:
    """What a connection writes to; remembers whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_stop_closes_a_connection_unless_its_first_request_is_on_its_way() -> None:
    made: Any = object.__new__(Connection)
    made.transport, made.cycle, made._timer = Wire(), None, object()  # a clock runs until its request has come
    made.shutdown()
    assert not made.transport.closed
    made._timer = None
    made.shutdown()
    assert made.transport.closed


@pytest.mark.parametrize("is_full", [True, False])
def test_the_next_look_at_the_network_is_put_off_only_while_there_is_no_room(
    is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(Connection):
        gate: Any = SimpleNamespace(is_full=is_full)
        pausing = True

    slept: list[float] = []
    monkeypatch.setattr(connections.time, "sleep", slept.append)
    Shared._pause()
    assert (slept, Shared.pausing) == ([connections.PAUSE] * is_full, False)
