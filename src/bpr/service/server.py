"""Sockets and signals: what turns an engine and its routes into a process that serves. `bpr serve` calls `serve`.

SIGTERM and SIGINT: no new requests, those in flight are finished, then the end. SIGHUP: look for a newer generation of
the bundle now; it is also looked for every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import BprError, InvalidInput, StorageError
from ..retriever import Retriever
from .app import make_app
from .engine import Engine
from .guard import CLOSE, HEADERS, Gate, Guard, error_body
from .metrics import Metrics
from .settings import Settings

log = logging.getLogger("bpr.service")

HEAD_BYTES = 32 << 10  # of a request's line and headers
BACKLOG = 2048
FAREWELL = 0.3  # seconds


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything that takes long; port 0: a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"{host!r} with port {port} is no address to serve on: {error}") from error
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StorageError(f"cannot serve on {host} port {port}: {error.strerror}; --port takes another") from error
    return bound


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    address = str(bound.getsockname()[0])
    return address == "::1" or address.startswith("127.")


def serve(retriever: Retriever, bound: socket.socket, settings: Settings, started: Callable[[], None]) -> None:
    """Serve until a signal says stop. started: is called when the first request can be answered."""
    metrics = Metrics()
    engine, gate = Engine(retriever, settings, metrics), Gate(settings, metrics)
    try:
        service = _Service(engine, gate, settings, metrics, started)
        service.run([bound])
        if service.failure is not None:
            raise service.failure
    finally:
        engine.close()


class _Service(uvicorn.Server):
    """uvicorn with our signals, our warm-up and our drain."""

    def __init__(
        self, engine: Engine, gate: Gate, settings: Settings, metrics: Metrics, started: Callable[[], None]
    ) -> None:
        self._engine, self._gate, self._settings, self._metrics = engine, gate, settings, metrics
        self._tell_started = started
        self.failure: Exception | None = None
        super().__init__(
            uvicorn.Config(
                Guard(make_app(engine, gate), gate, settings, metrics),
                http=_connection(settings.header_time),
                ws="none",
                loop="uvloop",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=settings.keep_alive,
                timeout_graceful_shutdown=settings.drain,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours: a signal ends the loop, and with it the process, in peace."""
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._warm_up()), loop.create_task(self._watch())}
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: tasks.add(loop.create_task(self._drain())))
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(loop.create_task(self._reload())))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def _warm_up(self) -> None:
        """Check the whole before anybody relies on it; what fails here ends the process."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._engine.warm_up)
        except Exception as error:
            self.failure, self.should_exit = error, True
            return
        self._gate.ready = True
        self._metrics.ready.set(1)
        self._tell_started()

    async def _drain(self) -> None:
        """For a moment every reply says that its connection closes; then no more come, and the rest is finished."""
        if self._gate.draining:  # told twice: at once
            self.force_exit = True
            return
        log.info("stopping: %d requests in flight", self._gate.inside)
        self._gate.draining = True
        self._metrics.ready.set(0)
        await asyncio.sleep(FAREWELL)
        self.should_exit = True

    async def _watch(self) -> None:
        while self._settings.watch:
            await asyncio.sleep(self._settings.watch)
            await self._reload()

    async def _reload(self) -> None:
        """The newest generation; if it cannot be had, the old one goes on."""
        try:
            if await asyncio.get_running_loop().run_in_executor(None, self._engine.reload):
                log.info("now on generation %d", self._engine.facts()["generation"])
        except BprError as error:
            log.error("the newest generation cannot be used, the old one goes on: %s", error)


def _connection(header_time: float) -> type[HttpToolsProtocol]:
    """uvicorn's connection, which waits for ever for a request's head and takes one of any size: this does neither."""

    class Connection(HttpToolsProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head: asyncio.TimerHandle | None = None
            self._await_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._head_is_here()
            super().connection_lost(error)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head_bytes = 0
            self._await_head()

        def on_url(self, url: bytes) -> None:
            self._count(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(name + value)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._head_is_here()
            super().on_headers_complete()

        def send_400_response(self, message: str) -> None:
            """In the one shape of errors."""
            body = error_body("-", "invalid_input", "this is not an HTTP request that can be read")
            fields = [*HEADERS, *CLOSE, (b"content-type", b"application/json")]
            fields.append((b"content-length", str(len(body)).encode()))
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + lines + b"\r\n" + body)
            self.transport.close()

        def _await_head(self) -> None:
            if self._head is None:
                self._head = self.loop.call_later(header_time, self.transport.close)

        def _head_is_here(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _count(self, part: bytes) -> None:
            self._head_bytes += len(part)
            if self._head_bytes > HEAD_BYTES:
                raise ValueError("the head is too large")  # httptools stops at it, and a 400 follows

    return Connection
