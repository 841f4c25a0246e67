"""uvicorn's connection, mended for the open sea: it waits only so long for a request's head, takes none of any size,
says in our one shape what it cannot read, and refuses on the spot when there is no room.

A refusal here is a few microseconds of parsing and a write; through uvicorn's tasks and the guard it would be ten times
that, and at five times the load that the service can bear, refusing would take half of its time. For the same reason a
full service looks at the network only every few milliseconds, and refuses all who came meanwhile in one go: each look
takes the core from a search, with all that its caches hold. server.py hands it to uvicorn; it knows the gate, and no
route.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .guard import ASKED, CLOSE, HEADERS, Gate, Refused, error_body, identity_of
from .metrics import Metrics
from .settings import Settings

HEAD_BYTES = 32 << 10  # of a request's line and headers
PAUSE = 0.006  # seconds between two looks at the network, while there is no room
FULL = b"HTTP/1.1 429 Too Many Requests\r\n"
# One whole request as almost every client writes it; what reads it otherwise goes through the parser.
_OTHER = rb"(?:(?!(?i:transfer-encoding|content-length|connection|expect|upgrade|x-request-id))[!-9;-~]+:[\t -~]*\r\n)*"
_PLAIN = re.compile(
    rb"POST (/v1/(?:search|answer)) HTTP/1\.1\r\n"
    + _OTHER
    + rb"(?i:content-length): ?(\d{1,9})\r\n"
    + _OTHER
    + rb"\r\n"
)
_FIXED = b"".join(name + b": " + value + b"\r\n" for name, value in HEADERS)


class Connection(HttpToolsProtocol):
    """One client's connection; what all of them share are attributes of the class (see `connection_class`)."""

    gate: Gate
    settings: Settings
    refusals: dict[str, Any]  # by route, the counters of those that are refused
    unread: Any  # the counter of what is no request at all
    refusal: tuple[bytes, ...]  # the reply to one more, in the parts between which its id stands
    pausing = False  # whether the next look at the network is put off

    def connection_made(self, transport: Any) -> None:
        """A client is there; its first request must follow."""
        super().connection_made(transport)
        self._refusing, self._between = False, True
        self._timer: asyncio.TimerHandle | None = None
        self._missing: float | None = self.settings.header_time  # seconds for what must still come
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """It has gone."""
        self._stop_waiting()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Bytes came, of which most often nothing is missing: then no clock needs to be set."""
        if not (self._between and self._refuses() and self._refuse_plain(data)):
            super().data_received(data)
            self._watch()

    def shutdown(self) -> None:
        """The service stops: a client that has just come, and whose request is on its way, is still told so."""
        if self._timer is None or self.cycle is not None:
            super().shutdown()

    # ── The head ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._head_bytes, self._refusing, self._between = 0, False, False
        self._missing = self.settings.header_time

    def on_url(self, url: bytes) -> None:
        """A part of its line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The whole head: the request begins, or is refused."""
        self._stop_waiting()
        is_question = self._is_question()
        if is_question and self._refuses():
            self._refuse()
            return
        super().on_headers_complete()
        if is_question:
            self.gate.expect(self.loop)

    def _watch(self) -> None:
        if self._missing is not None and self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self._missing, self.transport.close)

    def _stop_waiting(self) -> None:
        self._missing = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("the head is too large")  # httptools stops at it, and a 400 follows

    # ── Refusing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _refuses(self) -> bool:
        """Whether a question would be refused; who comes while the service stops is told that, by the guard."""
        free = self.cycle is None or self.cycle.response_complete  # replies go out in the order of the requests
        return free and self.gate.is_full and not self.gate.draining

    def _is_question(self) -> bool:
        return bool(self.parser.get_method() == b"POST") and self.url.decode("latin-1") in self.refusals

    def _refuse_plain(self, data: bytes) -> bool:
        """Refuse what is one whole question of the common kind, without taking it apart: half of the cost is saved."""
        found = _PLAIN.match(data)
        if not found or len(data) != found.end() + int(found[2]):
            return False
        self._stop_waiting()
        self._say_full(found[1].decode(), None)
        self._stay()
        return True

    def _refuse(self) -> None:
        """Answer before the body is here; what comes of it, in its time, is read and dropped."""
        self._refusing, self._missing = True, self.settings.body_time
        given = next((value for name, value in self.headers if name == b"x-request-id"), None)
        self._say_full(self.url.decode("latin-1"), given)
        if not self.parser.should_keep_alive():
            self.transport.close()

    def _say_full(self, route: str, given: bytes | None) -> None:
        if given is None:
            self.transport.write(os.urandom(8).hex().encode().join(self.refusal))
        else:
            self.transport.write(_reply(FULL, self.gate.full(), identity_of(given)))
        self.refusals[route].inc()
        if not self.pausing:
            type(self).pausing = True
            self.loop.call_soon(self._pause)

    def _stay(self) -> None:
        """As uvicorn does after a reply of its own."""
        if not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    @classmethod
    def _pause(cls) -> None:
        """Let the searches have the core; whoever asks meanwhile waits so long for a refusal."""
        if cls.gate.is_full:
            time.sleep(PAUSE)
        cls.pausing = False

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if not self._refusing:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of the body."""
        self._between = True
        if self._refusing:
            self._stop_waiting()
            self._stay()
        else:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What httptools cannot read, in our one shape of errors."""
        why = Refused(400, "invalid_input", "this is not an HTTP request that can be read", CLOSE)
        self.transport.write(_reply(b"HTTP/1.1 400 Bad Request\r\n", why, identity_of(None)))
        self.unread.inc()
        self.transport.close()


def _reply(line: bytes, refused: Refused, identity: str) -> bytes:
    body = error_body(identity, refused.code, refused.message)
    own = b"".join(name + b": " + value + b"\r\n" for name, value in refused.headers)
    head = (line, _FIXED, own, b"x-request-id: ", identity.encode(), b"\r\ncontent-type: application/json")
    return b"".join((*head, b"\r\ncontent-length: %d\r\n\r\n" % len(body), body))


def connection_class(gate: Gate, settings: Settings, metrics: Metrics) -> type[Connection]:
    """The class that uvicorn makes its connections of."""
    identity = identity_of(None)
    shared = {
        "gate": gate,
        "settings": settings,
        "refusals": {route: metrics.requests.labels(route, "429") for route in ASKED},
        "unread": metrics.requests.labels("other", "400"),
        "refusal": tuple(_reply(FULL, gate.full(), identity).split(identity.encode())),
    }
    return type("Connection", (Connection,), shared)
