"""uvicorn's connection, mended for the open sea: it waits only so long for a request's head, takes none of any size,
says in our one shape what it cannot read, and refuses on the spot when there is no room.

A refusal here is a few microseconds of parsing and a write; through uvicorn's tasks and the guard it would be ten times
that, and at five times the load that the service can bear, refusing would take half of its time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .guard import ASKED, CLOSE, HEADERS, Gate, Refused, error_body, identity_of
from .metrics import Metrics
from .settings import Settings

HEAD_BYTES = 32 << 10  # of a request's line and headers
_FIXED = b"".join(name + b": " + value + b"\r\n" for name, value in HEADERS)


class Connection(HttpToolsProtocol):
    """One client's connection; what all of them share are attributes of the class (see `connection_class`)."""

    gate: Gate
    settings: Settings
    refusals: dict[str, Any]  # by route, the counters of those that are refused
    unread: Any  # the counter of what is no request at all

    def connection_made(self, transport: Any) -> None:
        """A client is there; its first request must follow."""
        super().connection_made(transport)
        self._refusing = False
        self._timer: asyncio.TimerHandle | None = None
        self._await_head()

    def connection_lost(self, error: Exception | None) -> None:
        """It has gone."""
        self._stop_waiting()
        super().connection_lost(error)

    def shutdown(self) -> None:
        """The service stops: a client that has just come, and whose request is on its way, is still told so."""
        if self._timer is None or self.cycle is not None:
            super().shutdown()

    # ── The head ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._head_bytes, self._refusing = 0, False
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """A part of its line."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The whole head: the request begins, or is refused."""
        self._stop_waiting()
        room = not self.gate.is_full or self.gate.draining  # who comes while it stops is told that, by the guard
        if not room and self._is_question() and (self.cycle is None or self.cycle.response_complete):
            self._refuse()
        else:
            super().on_headers_complete()

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.settings.header_time, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("the head is too large")  # httptools stops at it, and a 400 follows

    # ── Refusing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_question(self) -> bool:
        return bool(self.parser.get_method() == b"POST") and self.url.decode("latin-1") in self.refusals

    def _refuse(self) -> None:
        """Answer before the body is here; what comes of it, in its time, is read and dropped."""
        self._refusing = True
        full = self.gate.full()
        given = next((value for name, value in self.headers if name == b"x-request-id"), None)
        self._reply(b"HTTP/1.1 429 Too Many Requests\r\n", full, identity_of(given))
        self.refusals[self.url.decode("latin-1")].inc()
        if not self.parser.should_keep_alive():
            self.transport.close()
        self._timer = self.loop.call_later(self.settings.body_time, self.transport.close)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if not self._refusing:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of the body."""
        if not self._refusing:
            super().on_message_complete()
            return
        self._stop_waiting()
        if not self.transport.is_closing():  # as uvicorn does after a reply of its own
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        """What httptools cannot read, in our one shape of errors."""
        why = Refused(400, "invalid_input", "this is not an HTTP request that can be read", CLOSE)
        self._reply(b"HTTP/1.1 400 Bad Request\r\n", why, identity_of(None))
        self.unread.inc()
        self.transport.close()

    def _reply(self, line: bytes, refused: Refused, identity: str) -> None:
        body = error_body(identity, refused.code, refused.message)
        own = b"".join(name + b": " + value + b"\r\n" for name, value in refused.headers)
        head = (line, _FIXED, own, b"x-request-id: ", identity.encode(), b"\r\ncontent-type: application/json")
        self.transport.write(b"".join((*head, b"\r\ncontent-length: %d\r\n\r\n" % len(body), body)))


def connection_class(gate: Gate, settings: Settings, metrics: Metrics) -> type[Connection]:
    """The class that uvicorn makes its connections of."""
    refusals = {route: metrics.requests.labels(route, "429") for route in ASKED}
    unread = metrics.requests.labels("other", "400")
    shared = {"gate": gate, "settings": settings, "refusals": refusals, "unread": unread}
    return type("Connection", (Connection,), shared)
