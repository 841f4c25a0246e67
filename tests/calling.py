"""What the tests of the service share: the passages they ask for, a service inside this process, and one beside it."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import bpr
from bpr.encoder import Encoder
from bpr.errors import Cancelled
from bpr.kernels import Cancel
from bpr.reader import Reader
from bpr.service.app import make_app
from bpr.service.engine import Engine
from bpr.service.guard import Gate, Guard
from bpr.service.metrics import Metrics
from bpr.service.schemas import ErrorReply
from bpr.service.settings import Settings
from tiny_models import WORDS

ROWS = 60
PATIENCE = 60.0  # seconds until a test that waits for a state gives up
STRANGE_IDS = ["a/b/c", "50%", "100%25", "sn☃w ß", "a?b#c", "a+b&c=d", "//"]
ASKED = "who wrote the greek epic poem iliad?"
HOLD = "hold"  # a question that begins so waits until it is let go


def passages(rows: int = ROWS) -> list[dict[str, Any]]:
    """Words in random order; the first few have ids that a URL must not mistake for anything else."""
    random = np.random.default_rng(5)
    return [
        {
            "id": STRANGE_IDS[row] if row < len(STRANGE_IDS) else f"p{row}",
            "title": f"title {row}",
            "text": " ".join(random.choice(WORDS, 20)) + (" 🗼 ünïcode" if row % 7 == 0 else ""),
            "meta": {"year": 2000 + row, "lang": "en" if row % 2 else "de"},
        }
        for row in range(rows)
    ]


class Held:
    """The encoder, but a question that begins with HOLD is encoded when it is let go (or never, if it is cancelled)."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.entered, self.go = threading.Event(), threading.Event()
        self.cancelled = threading.Event()
        self.seen: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def questions(self, texts: Sequence[str], *, cancel: Cancel | None = None, **how: Any) -> Any:
        self.seen.append(list(texts))
        if texts[0].startswith(HOLD):
            self.entered.set()
            while not self.go.wait(0.005):
                if cancel is not None and cancel.flag[0]:
                    self.cancelled.set()
                    raise Cancelled("nobody waits for it")
        return self._encoder.questions(texts, cancel=cancel, **how)


class Service:
    """The application around an opened bundle, without a socket: Guard, routes, engine."""

    def __init__(self, path: Path, encoder: Any, reader: Reader | None, settings: Settings) -> None:
        self.retriever = bpr.open(path, model=encoder, reader=reader)
        self.metrics = Metrics()
        self.engine = Engine(self.retriever, settings, self.metrics)
        self.gate = Gate(settings, self.metrics)
        self.app = make_app(self.engine, self.gate)
        self.guard = Guard(self.app, self.gate, settings, self.metrics)

    def warm_up(self) -> None:
        """As the server does before it accepts anything."""
        self.engine.warm_up()
        self.gate.ready = True

    def client(self, **how: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.guard), **{"base_url": "http://localhost", **how}
        )

    async def get(self, path: str, **how: Any) -> httpx.Response:
        return await self.request("GET", path, **how)

    async def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        """A body as JSON, whatever JSON of Python's it is (NaN and half characters too)."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **how.pop("headers", {})}
        return await self.request("POST", path, content=content, headers=headers, **how)

    async def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.request(method, path, **how)


def refused(reply: httpx.Response, status: int, code: str) -> str:
    """The message of an error, after a look at all that every error must have."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = ErrorReply.model_validate_json(reply.content, strict=True)
    assert set(reply.json()) == {"error", "request_id"} and set(reply.json()["error"]) == {"code", "message"}
    assert body.error.code == code and body.error.message
    assert body.request_id == reply.headers["x-request-id"]
    assert "Traceback" not in reply.text and 'File "' not in reply.text
    return body.error.message


def eventually(holds: Callable[[], Any], what: str = "it") -> Any:
    """What `holds` gives as soon as it gives anything."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen within {PATIENCE:g} s")


# ── A service that is a process of its own ───────────────────────────────────────────────────────────────────────────

LAUNCHER = """
import json, sys, time
from pathlib import Path
import bpr
from bpr import terminal
from bpr.encoder import Encoder
from bpr.errors import Cancelled
from bpr.service import server
from bpr.service.settings import Settings

given = json.loads(sys.argv[1])

class Held(Encoder):
    # "hold NAME" is encoded when the file NAME is there, or never if it is cancelled; so is the warm-up, if asked.
    def questions(self, texts, cancel=None, **how):
        name = given["start"] if texts[0].startswith("What is") else texts[0].removeprefix("hold ")
        while name != texts[0] and name and not (Path(given["go"]) / name).exists():
            if cancel is not None and cancel.flag[0]:
                raise Cancelled("nobody waits for it")
            time.sleep(0.005)
        return super().questions(texts, cancel=cancel, **how)

terminal.log_to_stderr("bpr.service", False)
opened = bpr.open(given["path"], model=Held.open(given["model"]), reader=given["reader"])
bound = server.bind(given["host"], 0)
url = "http://%s:%d/" % bound.getsockname()[:2]
print("bound to", url, flush=True)
server.serve(opened, bound, Settings(**given["settings"]), lambda: print("serves on", url, flush=True))
"""


class Process:
    """A service in a process: where it is, what it logs, and how it ends."""

    go: Path  # a folder; see LAUNCHER

    def __init__(self, command: list[str]) -> None:
        self.popen = subprocess.Popen(
            command,
            env={**os.environ, "BPR_TOKEN": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._printed: queue.Queue[str] = queue.Queue()
        self.log: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.popen.stdout, self._printed.put), daemon=True),
            threading.Thread(target=self._read, args=(self.popen.stderr, self.log.append), daemon=True),
        ]
        for each in self._threads:
            each.start()

    @staticmethod
    def _read(stream: Any, take: Callable[[str], None]) -> None:
        for line in stream:
            take(line.rstrip("\n"))
        take("")  # the end

    def printed(self, words: str) -> str:
        """The URL in the next line that it prints, which has these words."""
        line = self._printed.get(timeout=PATIENCE)
        assert words in line, "\n".join([line, *self.log])
        self.url = line.split()[-1]
        self.host, _, port = self.url.removeprefix("http://").rstrip("/").rpartition(":")
        self.port = int(port)
        return self.url

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def ended(self) -> int:
        """Its exit status, when it has ended."""
        status = self.popen.wait(PATIENCE)
        for each in self._threads:
            each.join(PATIENCE)
        return status

    def logged(self, text: str) -> str:
        """The first line of its log with this text, when it is there."""
        return eventually(lambda: next((line for line in list(self.log) if text in line), None), f"{text!r} in the log")

    def close(self) -> None:
        if self.popen.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.ended()
        self.popen.stdout.close()
        self.popen.stderr.close()

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection((self.host.strip("[]"), self.port), PATIENCE)

    def listens(self) -> bool:
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return False
        return True

    def client(self, **how: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **how)

    def let_go(self, name: str) -> None:
        """The question "hold NAME" waits no longer."""
        (self.go / name).touch()

    def search(self, question: str = ASKED, **more: Any) -> httpx.Response:
        with self.client() as client:
            return client.post("v1/search", json={"question": question, "k": 3, **more})


@contextmanager
def running(command: list[str]) -> Iterator[Process]:
    """A process that is over when the test is."""
    process = Process(command)
    try:
        yield process
    finally:
        process.close()


@contextmanager
def launching(
    path: Path, model: Path, reader: Path, go: Path, host: str = "127.0.0.1", start: str = "", **settings: Any
) -> Iterator[Process]:
    """A service with any Settings, whose questions can be held. start: what holds the warm-up."""
    given = {"path": str(path), "model": str(model), "reader": str(reader), "host": host, "start": start, "go": str(go)}
    given["settings"] = {"deadline": 60.0, "answer_deadline": 60.0, "threads": 1, "watch": 0, **settings}
    go.mkdir(exist_ok=True)
    with running([sys.executable, "-c", LAUNCHER, json.dumps(given)]) as process:
        process.go = go
        process.printed("bound to")
        if start:
            eventually(process.listens, "it listens")
        else:
            process.printed("serves on")
        yield process


def verb(*arguments: object) -> list[str]:
    """`bpr serve …` as a command."""
    return [sys.executable, "-m", "bpr.cli", "serve", *map(str, arguments)]


def exchange(connection: socket.socket, *parts: bytes) -> bytes:
    """Send, then read until the other side closes."""
    for part in parts:
        connection.sendall(part)
    return until_closed(connection)


def until_closed(connection: socket.socket) -> bytes:
    found = []
    try:
        while part := connection.recv(1 << 16):
            found.append(part)
    except ConnectionResetError:
        pass
    return b"".join(found)


def one_reply(connection: socket.socket) -> httpx.Response:
    """The next reply on a connection that stays open."""
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(1 << 16)
        assert part, f"closed after {read!r}"
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
    length = int(dict(headers)["content-length"])
    while len(body) < length:
        part = connection.recv(length - len(body))
        assert part, f"closed after {read!r}"
        body += part
    assert len(body) == length, "more than one reply came"
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)


def posted(body: Any, path: str = "/v1/search", *extra: str) -> bytes:
    """A whole request, as bytes."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *extra]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode() + content
