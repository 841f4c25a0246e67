"""Sockets and signals: what turns an engine and its routes into a process that serves. `bpr serve` calls `serve`.

SIGTERM and SIGINT: no new requests, those in flight are finished, then the end. SIGHUP: look for a newer generation of
the bundle now; it is also looked for every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from ..errors import BprError, InvalidInput, StorageError
from ..retriever import Retriever
from .app import make_app
from .connection import connection_class
from .engine import Engine
from .guard import Gate, Guard
from .metrics import Metrics
from .settings import Settings

log = logging.getLogger("bpr.service")

BACKLOG = 2048
FAREWELL = 0.3  # seconds
SWITCH = 0.0005  # seconds that a thread may keep the interpreter from the others: the network must not wait longer


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything that takes long; port 0: a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, OverflowError, UnicodeError) as error:  # the last: a name that no name can be
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
    sys.setswitchinterval(SWITCH)
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
        self._trouble = ""  # with the newest generation, as it was last logged
        super().__init__(
            uvicorn.Config(
                Guard(make_app(engine, gate), gate, settings, metrics),
                http=connection_class(gate, settings, metrics),
                ws="none",
                proxy_headers=False,  # who asks is not looked at: nothing to believe a header about
                loop="uvloop",
                lifespan="off",
                log_config=None,
                log_level="error",  # a stranger's nonsense is answered, and not logged line by line
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
        gc.collect()
        gc.freeze()  # what is here now stays: or the collector would walk through all of it, and requests would wait
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
            self._trouble = ""
        except BprError as error:
            if str(error) != self._trouble:  # once, not every few seconds
                log.error("the newest generation cannot be used, the old one goes on: %s", error)
            self._trouble = str(error)
        except Exception:  # whoever watches must not stop for it
            log.exception("looking for a newer generation failed, the old one goes on")
