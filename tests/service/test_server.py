"""The service as a process: how it starts, how it ends, and how it goes over to a newer bundle while others ask."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import bpr
from bpr import bundle
from bpr.encoder import Encoder
from bpr.errors import CorruptBundle, InvalidInput, StorageError
from bpr.service import server
from bpr.service.settings import Settings
from calling import (
    ASKED,
    ROWS,
    Process,
    eventually,
    exchange,
    one_reply,
    passages,
    posted,
    refused,
    running,
    until_closed,
    verb,
)

Launch = Callable[..., Process]
QUESTION = {"question": ASKED, "k": 2}


class Load:
    """Clients that ask again and again, each on a connection that stays; until they are told to stop, or that the
    connection closes."""

    def __init__(self, process: Process, clients: int) -> None:
        self.replies: list[httpx.Response] = []
        self.errors: list[Exception] = []
        self.told: list[int] = []  # who was told that his connection closes
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(process, each)) for each in range(clients)]
        for each in self._threads:
            each.start()

    def _ask(self, process: Process, number: int) -> None:
        try:
            with process.client() as client:
                while not self._stop.is_set():
                    reply = client.post("v1/search", json=QUESTION)
                    self.replies.append(reply)
                    if reply.headers.get("connection") == "close":
                        self.told.append(number)
                        return
        except Exception as error:
            self.errors.append(error)

    def more(self, replies: int = 20) -> None:
        """Wait until so many more are answered."""
        wanted = len(self.replies) + replies
        eventually(lambda: len(self.replies) >= wanted or self.errors, f"{replies} more replies")

    def join(self) -> None:
        for each in self._threads:
            each.join(60)

    def stop(self) -> None:
        self._stop.set()
        self.join()


@contextmanager
def loading(process: Process, clients: int = 4) -> Iterator[Load]:
    load = Load(process, clients)
    try:
        yield load
    finally:
        load.stop()


@contextmanager
def asking(process: Process, *questions: str) -> Iterator[list[Any]]:
    """Questions that are being worked on, each on its own connection; what became of them is in the list at the end."""
    found: list[Any] = [None] * len(questions)

    def ask(number: int) -> None:
        try:
            found[number] = process.search(questions[number])
        except httpx.HTTPError as error:
            found[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(questions))]
    for each in threads:
        each.start()
    with process.client() as client:
        eventually(lambda: f"bpr_in_flight {len(questions)}.0" in client.get("metrics").text, "all are in flight")
    yield found
    for each in threads:
        each.join(60)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sigterm_under_load_answers_all_that_got_in_and_drops_nobody(launch: Launch) -> None:
    process = launch()
    with loading(process, 6) as load:
        load.more(60)
        process.signal(signal.SIGTERM)
        load.join()
    assert process.ended() == 0
    assert load.errors == [] and sorted(load.told) == list(range(6))
    assert {each.status_code for each in load.replies} <= {200, 503}
    for each in load.replies:
        if each.status_code == 503:
            refused(each, 503, "unavailable")
            assert each.headers["retry-after"] == "1"
    assert "stopping" in process.logged("requests in flight")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_flight_is_finished_first(launch: Launch, number: int) -> None:
    process = launch()
    with asking(process, "hold one", "hold two") as found, process.client() as client:
        assert client.get("readyz").status_code == 200
        process.signal(number)
        process.logged("stopping: 2 requests in flight")
        refused(client.get("readyz"), 503, "unavailable")
        process.let_go("one")
        process.let_go("two")
    assert [each.status_code for each in found] == [200, 200]
    assert all(len(each.json()["results"][0]["hits"]) == 3 for each in found)
    assert process.ended() == 0


def test_told_twice_it_ends_at_once_and_says_so_to_those_who_wait(launch: Launch) -> None:
    process = launch(drain=600)
    with asking(process, "hold for ever") as found:
        process.signal(signal.SIGTERM)
        process.logged("stopping: 1 requests")
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
    refused(found[0], 503, "unavailable")


def test_what_takes_longer_than_the_drain_is_refused_in_the_end(launch: Launch) -> None:
    process = launch(drain=1)
    with asking(process, "hold for ever") as found:
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
    assert "stopping" in refused(found[0], 503, "unavailable")
    assert not any("Traceback" in line for line in process.log)


def test_a_client_that_has_just_come_is_told_that_the_service_stops(launch: Launch) -> None:
    process = launch(in_flight=1)
    with asking(process, "hold one") as found, process.connect() as fresh:
        process.signal(signal.SIGTERM)
        process.logged("stopping: 1 requests")
        fresh.sendall(posted(QUESTION))
        reply = one_reply(fresh)
        assert "stopping" in refused(reply, 503, "unavailable")  # though there is no room either
        assert reply.headers["connection"] == "close" and until_closed(fresh) == b""
        process.let_go("one")
    assert found[0].status_code == 200 and process.ended() == 0


def test_half_a_request_does_not_keep_it_alive(launch: Launch) -> None:
    process = launch(body_time=0.5, header_time=0.5)
    with process.connect() as body, process.connect() as head, process.connect() as idle:
        body.sendall(posted(QUESTION)[:-3])
        head.sendall(b"GET / HT")
        process.search()
        process.signal(signal.SIGTERM)
        assert b" 408 " in exchange(body) and exchange(head) == exchange(idle) == b""
    assert process.ended() == 0


# ── the beginning ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_until_it_is_warm_it_is_alive_and_not_ready(launch: Launch) -> None:
    process = launch(start="warm")
    with process.client() as client:
        assert client.get("healthz").status_code == 200
        assert refused(client.get("readyz"), 503, "unavailable") == "starting"
        refused(client.post("v1/search", json=QUESTION), 503, "unavailable")
        assert "bpr_ready 0.0" in client.get("metrics").text
        process.let_go("warm")
        process.printed("serves on")
        assert client.get("readyz").json() == {"status": "ready"}
        assert "bpr_ready 1.0" in client.get("metrics").text
        assert client.post("v1/search", json=QUESTION).status_code == 200


def test_it_can_be_stopped_while_it_starts(launch: Launch) -> None:
    process = launch(start="warm")
    process.signal(signal.SIGTERM)
    process.logged("stopping")
    process.let_go("warm")
    assert process.ended() == 0


def test_killed_it_can_be_started_again_at_the_same_place(small: Path, tiny_model: Path) -> None:
    command = verb(small, "--model", tiny_model, "--quiet")
    with running([*command, "--port", "0"]) as first:
        first.printed("is served on")
        with first.connect() as left:
            left.sendall(b"GET / HT")
            wanted = first.search().json()["results"]
            first.signal(signal.SIGKILL)
            assert first.ended() == -signal.SIGKILL
        with running([*command, "--port", str(first.port)]) as second:
            second.printed("is served on")
            assert second.url == first.url and second.search().json()["results"] == wanted


def test_with_a_token_only_those_who_have_it_are_answered(launch: Launch) -> None:
    process = launch(token="secret")
    refused(process.search(), 401, "unauthorized")
    with process.client(headers={"authorization": "Bearer secret"}) as client:
        assert client.post("v1/search", json=QUESTION).status_code == 200
    assert not any("secret" in line for line in process.log)


# ── a newer generation ───────────────────────────────────────────────────────────────────────────────────────────────


def generation(process: Process) -> int:
    return int(process.search().json()["generation"])


@pytest.mark.parametrize("watch", [0, 0.05], ids=["SIGHUP", "watching"])
def test_going_over_to_a_newer_generation_fails_no_request(
    launch: Launch, own: Path, encoder: Encoder, watch: float
) -> None:
    process = launch(own, watch=watch)

    def reloaded(number: int) -> None:
        if not watch:
            process.signal(signal.SIGHUP)
        eventually(lambda: generation(process) == number, f"generation {number}")
        load.more()

    with loading(process) as load:
        load.more()
        bpr.add(own, [{"id": "new", "title": "new", "text": "the new moon"}], model=encoder)
        reloaded(2)
        with process.client() as client:
            assert client.get("v1/info").json()["rows"] == ROWS + 1
            assert client.get("v1/passages/new").json()["text"] == "the new moon"
        bpr.delete(own, ["new", "p9"])
        reloaded(3)
        with process.client() as client:
            refused(client.get("v1/passages/p9"), 404, "not_found")
            metrics = client.get("metrics").text
        assert 'bpr_reloads_total{result="done"} 2.0' in metrics and f"bpr_index_rows {ROWS - 1}.0" in metrics
    assert load.errors == [] and {each.status_code for each in load.replies} == {200}
    assert {each.json()["generation"] for each in load.replies} == {1, 2, 3}
    seen = [line for line in process.log if "now on generation" in line]
    assert [line.split()[-1] for line in seen] == ["2", "3"]


def test_a_generation_that_is_broken_leaves_the_old_one_in_place(launch: Launch, own: Path, encoder: Encoder) -> None:
    process = launch(own)
    with loading(process) as load:
        load.more()
        bpr.add(own, [{"id": "new", "text": "the new moon"}], model=encoder)
        with bundle.open(own) as opened:
            added = [name for name in opened.manifest.files if name.endswith("passages.jsonl")][-1]
            damaged = own / opened.generation / added
        damaged.chmod(0o644)
        damaged.write_bytes(damaged.read_bytes().replace(b"moon", b"noon"))
        process.signal(signal.SIGHUP)
        line = process.logged("the newest generation cannot be used, the old one goes on")
        assert "ERROR" in line
        load.more()
        with process.client() as client:
            assert client.get("readyz").status_code == 200
            assert 'bpr_reloads_total{result="failed"} 1.0' in client.get("metrics").text
        assert generation(process) == 1
        bpr.build(passages(30), own, model=encoder)  # built again, and whole
        process.signal(signal.SIGHUP)
        eventually(lambda: generation(process) > 2, "the next generation")
        load.more()
    assert load.errors == [] and {each.status_code for each in load.replies} == {200}


def test_a_bundle_of_another_kind_of_vectors_is_not_gone_over_to(launch: Launch, own: Path) -> None:
    process = launch(own)
    bpr.build(passages(), own, vectors=np.random.default_rng(0).standard_normal((ROWS, 64), np.float32))
    process.signal(signal.SIGHUP)
    assert "another model" in process.logged("the old one goes on")
    assert generation(process) == 1


async def test_whoever_watches_goes_on_after_any_mistake(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, called = make(), []

    def broken() -> bool:
        called.append(1)
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(service.engine, "reload", broken)
    running = server._Service(service.engine, service.gate, Settings(), service.metrics, lambda: None)
    await running._reload()
    assert called and "what nobody thought of" in caplog.text and "the old one goes on" in caplog.text


async def test_the_same_trouble_with_a_generation_is_logged_once(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = make()
    outcomes: list[Any] = [
        CorruptBundle("one"),
        CorruptBundle("one"),
        CorruptBundle("two"),
        False,
        CorruptBundle("two"),
    ]

    def reload() -> bool:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    monkeypatch.setattr(service.engine, "reload", reload)
    running = server._Service(service.engine, service.gate, Settings(), service.metrics, lambda: None)
    for _ in range(5):
        await running._reload()
    told = [each.message.rsplit(": ", 1)[1] for each in caplog.records if "cannot be used" in each.message]
    assert told == ["one", "two", "two"]


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_loopback_is_what_only_this_machine_can_reach() -> None:
    for host, wanted in (("127.0.0.1", True), ("127.1.2.3", True), ("0.0.0.0", False)):
        with server.bind(host, 0) as bound:
            assert server.is_loopback(bound) is wanted


def test_addresses_that_are_none() -> None:
    for host in ("nowhere.invalid", "999.1.1.1", "a" * 300):
        with pytest.raises(InvalidInput, match="is no address to serve on"):
            server.bind(host, 0)
    with pytest.raises(InvalidInput, match="is no address to serve on"):
        server.bind("127.0.0.1", 1 << 70)


def test_a_port_that_is_taken() -> None:
    with server.bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(StorageError, match=r"cannot serve on 127.0.0.1 port \d+: .*; --port takes another"):
            server.bind("127.0.0.1", first.getsockname()[1])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_ipv6(small: Path, tiny_model: Path) -> None:
    with running(verb(small, "--model", tiny_model, "--host", "::1", "--port", "0")) as process:
        assert process.printed("is served on").startswith("http://[::1]:")
        assert process.search().status_code == 200
