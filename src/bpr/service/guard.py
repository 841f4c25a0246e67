"""What every request passes before anything of it is believed: identity, host, token, size, time, and whether there is
room for it. Plain ASGI around the routes, so that a request that is refused costs next to nothing.

It also gives every reply its headers and its id, counts it and logs it, and turns whatever the routes let escape into
the one shape of errors. Questions and tokens are never logged. server.py puts it around the routes; it must not know
what they do.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .metrics import Metrics
from .settings import Settings

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("bpr.service")

PUBLIC = {
    "/",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/readyz",
}  # without a token: none of them tells anything of the texts
LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
ROUTES = {"/v1/search", "/v1/answer", "/v1/info", "/healthz", "/readyz", "/metrics", "/", "/docs", "/openapi.json"}
ASKED = {"/v1/search", "/v1/answer"}  # what is sent a body, takes long, and may be refused for want of room
INTERNAL = "a mistake of ours: the log has this id"
DIGITS = 18  # of a content-length: Python refuses to read a number of thousands
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# Nothing comes from elsewhere, nothing frames the page; /docs loads nothing but its own files either.
HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Refused(Exception):
    """A request that goes no further: status, code, message, and headers of its own."""

    def __init__(self, status: int, code: str, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """What the reply will say."""
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, tuple(headers)


class Gate:
    """Whether requests are accepted, and how many are in."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Closed until the engine is warm."""
        self.ready, self.draining = False, False
        self.inside, self.buffered = 0, 0
        self._coming = 0  # let through by their connections, and not seen by the guard yet
        self._settings, self._metrics = settings, metrics

    def check(self) -> None:
        """Refused, if there is no room for one more."""
        if self.draining or not self.ready:
            raise _unavailable("stopping" if self.draining else "starting")
        if self.inside >= self._settings.in_flight:
            raise self.full()

    @property
    def is_full(self) -> bool:
        """Whether as many are in, or on their way, as may be: whoever comes now would be refused by the guard."""
        return self.inside + self._coming >= self._settings.in_flight

    def expect(self, loop: asyncio.AbstractEventLoop) -> None:
        """One more is on its way, in a task that was begun just now; after its first step it is in, or it is not."""
        self._coming += 1
        loop.call_soon(self._seen)

    def _seen(self) -> None:
        self._coming -= 1

    def full(self) -> Refused:
        """What one more is told."""
        message = f"{self._settings.in_flight} requests are in flight already: try again in a second"
        return Refused(429, "overloaded", message, ((b"retry-after", b"1"),))

    def __enter__(self) -> None:
        """One more is in."""
        self.inside += 1
        self._metrics.in_flight.set(self.inside)

    def __exit__(self, *_: object) -> None:
        """It is done."""
        self.inside -= 1
        self._metrics.in_flight.set(self.inside)


def _unavailable(why: str) -> Refused:
    return Refused(503, "unavailable", f"the service is {why}: try again", ((b"retry-after", b"1"),))


class Guard:
    """The ASGI application that is served: the routes inside, the checks around them."""

    def __init__(self, routes: App, gate: Gate, settings: Settings, metrics: Metrics) -> None:
        """Nothing starts."""
        self._routes, self._gate, self._settings, self._metrics = routes, gate, settings, metrics
        self._token = None if settings.token is None else f"Bearer {settings.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":  # no websockets, no lifespan: what is asked for is not here
            return
        started, headers = time.perf_counter(), dict(scope["headers"])
        identity = identity_of(headers.get(b"x-request-id"))
        scope["state"] = {**scope.get("state", {}), "request_id": identity}
        seen = _Seen(send, identity, self._gate)
        try:
            await self._pass(scope, headers, receive, seen)
        except Refused as refused:
            await refuse(seen, identity, refused)
        except asyncio.CancelledError:  # the service stops, and has waited for it as long as it may
            if not seen.status:
                await refuse(seen, identity, _unavailable("stopping"))
        except Exception:
            log.exception("request %s failed", identity)
            if not seen.status:
                await refuse(seen, identity, Refused(500, "internal", INTERNAL))
        finally:
            self._count(scope, seen.status, identity, time.perf_counter() - started)

    async def _pass(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        self._check_caller(scope["path"], headers)
        if scope["method"] != "POST" or scope["path"] not in ASKED:
            await self._routes(scope, receive, send)
            return
        self._gate.check()
        self._check_body(headers)
        body = await self._body(receive)
        self._gate.check()  # others came in while the body did
        with self._gate:
            await self._routes(scope, _given(body, receive), send)

    def _check_caller(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._token is not None:
            given = headers.get(b"authorization", b"")
            if path not in PUBLIC and not path.startswith("/page/") and not hmac.compare_digest(given, self._token):
                ask = ((b"www-authenticate", b"Bearer"),)
                raise Refused(401, "unauthorized", "send the service's token: Authorization: Bearer …", ask)
        elif not self._settings.any_host:
            name = headers.get(b"host", b"").decode("latin-1").lower()
            if re.sub(r":\d+$", "", name) not in LOOPBACK:  # a page elsewhere may have given its name to this address
                raise Refused(421, "wrong_host", "this service answers to localhost alone")

    def _check_body(self, headers: dict[bytes, bytes]) -> None:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refused(415, "unsupported_media_type", "send JSON, with content-type: application/json")
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and (len(size) > DIGITS or int(size) > self._settings.body):
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"a request may have {self._settings.body:,} bytes: ask in parts", CLOSE)

    async def _body(self, receive: Receive) -> bytes:
        """All of it, in so much time.

        Not by wait_for, which before Python 3.12 is a task of its own: a body that is here is read in the first step.
        """
        reading, late = asyncio.current_task(), False

        def give_up() -> None:
            nonlocal late
            late = reading is not None and reading.cancel()

        timer = asyncio.get_running_loop().call_later(self._settings.body_time, give_up)
        try:
            return await self._whole_body(receive)
        except asyncio.CancelledError:
            if not late:
                raise  # the service stops
            message = f"the body did not arrive within {self._settings.body_time:g} s"
            raise Refused(408, "request_timeout", message, CLOSE) from None
        finally:
            timer.cancel()

    async def _whole_body(self, receive: Receive) -> bytes:
        """All of it, if there is room for it beside those of others."""
        parts, size = [], 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "invalid_input", "the body ended too early")
                part = message.get("body", b"")
                size += len(part)
                self._gate.buffered += len(part)
                if size > self._settings.body:
                    raise self._too_large()
                if self._gate.buffered > self._settings.buffered:
                    raise Refused(429, "overloaded", "too many bodies arrive at once", ((b"retry-after", b"1"),))
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
        finally:
            self._gate.buffered -= size

    def _count(self, scope: Scope, status: int, identity: str, seconds: float) -> None:
        path = scope["path"]
        route = path if path in ROUTES else "/v1/passages" if path.startswith("/v1/passages/") else "other"
        self._metrics.requests.labels(route, str(status)).inc()
        if status == 429:
            return  # by the thousand, when they come: they are counted
        self._metrics.seconds.labels(route).observe(seconds)
        log.info("%s %s %s %d %.1f ms", identity, scope["method"], route, status, 1000 * seconds)


CLOSE = ((b"connection", b"close"),)


class _Seen:
    """A send that adds the headers of every reply, and remembers its status."""

    def __init__(self, send: Send, identity: str, gate: Gate) -> None:
        self._send, self._identity, self._gate = send, identity, gate
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = [*HEADERS, (b"x-request-id", self._identity.encode())]
            if self._gate.draining:
                extra += CLOSE
            own = {name for name, _ in message.get("headers", ())}
            added = [(name, value) for name, value in extra if name not in own]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await self._send(message)


def error_body(identity: str, code: str, message: str) -> bytes:
    """The one shape of errors."""
    shown = {"error": {"code": code, "message": message}, "request_id": identity}
    return json.dumps(shown, ensure_ascii=False).encode()


async def refuse(send: Send, identity: str, refused: Refused) -> None:
    """Say so."""
    body = error_body(identity, refused.code, refused.message)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *refused.headers,
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def identity_of(given: bytes | None) -> str:
    """The request's own id, if it is a plain one."""
    if given is not None and _ID.fullmatch(given):
        return given.decode()
    return secrets.token_hex(8)


def _given(body: bytes, receive: Receive) -> Receive:
    """A receive that gives a body that is here already, and then whatever comes."""
    sent = False

    async def give() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give
