"""bpr serve: what it starts, and what it says when it cannot."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import bpr
from bpr import bundle
from bpr.cli import serve
from calling import ASKED, ROWS, exchange, passages, running, verb

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A bundle. Not to be changed."""
    path = tmp_path_factory.mktemp("cli") / "small.bpr"
    bpr.build(passages(), path, model=tiny_model)
    return path


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BPR_TOKEN", raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def failed(found: tuple[int, str, str]) -> str:
    """The one line that a failure says."""
    status, out, err = found
    assert status == 1 and out == "", err
    line = " ".join(err.split())  # rich may have wrapped it
    assert line.startswith("bpr: ") and "Traceback" not in err
    return line


# ── serving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_serves_and_says_where(small: Path, tiny_model: Path, tiny_reader: Path) -> None:
    options = ["--in-flight", 3, "--batch", 2, "--deadline", 30, "--answer-deadline", 40, "--threads", 1, "--watch", 0]
    with running(verb(small, "--port", 0, "--model", tiny_model, "--reader", tiny_reader, *options)) as process:
        assert process.printed(f"{small} is served on").startswith("http://127.0.0.1:")
        with process.client() as client:
            info = client.get("v1/info").json()
            assert info["rows"] == ROWS and info["reader"] is True and info["limits"]["in_flight"] == 3
            assert info["limits"]["deadline_ms"] == 30_000 and info["limits"]["answer_deadline_ms"] == 40_000
            assert "<title>bpr</title>" in client.get("").text
            found = client.post("v1/answer", json={"question": ASKED, "least": 0}).json()["results"][0]
        with bpr.open(small, reader=tiny_reader) as opened:
            assert found["answers"][0]["text"] == opened.answer(ASKED, least=0.0).text
        process.logged("POST /v1/answer 200")
        process.signal(signal.SIGINT)
        assert process.ended() == 0
    assert not any(ASKED in line for line in process.log)


def test_quiet_is_quiet(small: Path) -> None:
    with running(verb(small, "--port", 0, "--quiet")) as process:
        process.printed("is served on")
        process.search()
        with process.connect() as connection:
            assert b" 400 Bad Request" in exchange(connection, b"nonsense\r\n\r\n")
        with process.client() as client:
            assert client.get("healthz", headers={"connection": "upgrade", "upgrade": "websocket"}).status_code == 200
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
    assert process.log == [""]


def test_with_a_token_other_machines_may_ask(small: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    command = verb(small, "--host", "0.0.0.0", "--port", 0, "--token-file", tmp_path / "token")
    with running(command) as process:
        process.printed("http://0.0.0.0:")
        url = f"http://127.0.0.1:{process.port}/v1/info"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"authorization": "Bearer s3cret", "host": "bpr.example"}).status_code == 200
    assert not any("s3cret" in line for line in process.log)


def test_without_a_token_only_if_that_is_said(small: Path) -> None:
    with running(verb(small, "--host", "0.0.0.0", "--port", 0, "--allow-anonymous")) as process:
        process.printed("http://0.0.0.0:")
        url = f"http://127.0.0.1:{process.port}/v1/info"
        assert httpx.get(url, headers={"host": "bpr.example"}).status_code == 200


# ── what it cannot ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_other_machines_without_a_token_are_refused(run: Run, small: Path) -> None:
    line = failed(run("serve", small, "--host", "0.0.0.0", "--port", 0))
    assert "can be reached from other machines" in line and "--token-file" in line and "--allow-anonymous" in line


def test_a_port_that_is_taken(run: Run, small: Path, taken: int) -> None:
    assert f"cannot serve on 127.0.0.1 port {taken}" in failed(run("serve", small, "--port", taken))


def test_a_missing_bundle(run: Run, tmp_path: Path) -> None:
    assert "none.bpr" in failed(run("serve", tmp_path / "none.bpr", "--port", 0))


def test_an_address_that_is_none(run: Run, small: Path) -> None:
    for host in ("nowhere.invalid", "a" * 300):
        assert "is no address to serve on" in failed(run("serve", small, "--host", host, "--port", 0))


@pytest.mark.parametrize("option", ["--port=70000", "--port=-1", "--in-flight=0", "--batch=0", "--deadline=0"])
def test_numbers_that_make_no_sense(run: Run, small: Path, option: str) -> None:
    status, out, err = run("serve", small, option)
    assert status == 2 and out == "" and option.partition("=")[0] in err


@pytest.mark.parametrize("option", ["--deadline", "--answer-deadline", "--watch"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_times_that_are_no_times(run: Run, small: Path, option: str, number: str) -> None:
    status, out, err = run("serve", small, option, number)
    assert status == 2 and out == "" and option in err


def test_a_bundle_that_does_not_pass_its_own_test(small: Path, tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "odd.bpr"
    bpr.build(passages(9), path, model=tiny_model)
    with bundle.update(path) as (old, new):
        for name in old.manifest.files:
            new.keep(name)
        new.publish({**old.info, "warm_up": "00" * 8}, old.manifest.features)
    done = subprocess.run(verb(path, "--port", 0), capture_output=True, text=True, timeout=60)
    assert "gives another code than when the bundle was built" in " ".join(
        failed((done.returncode, done.stdout, done.stderr)).split()
    )


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve.token_of(None) is None
    monkeypatch.setenv("BPR_TOKEN", " \n")
    assert serve.token_of(None) is None
    monkeypatch.setenv("BPR_TOKEN", "of-the-environment")
    assert serve.token_of(None) == "of-the-environment"
    (tmp_path / "token").write_text("  of-the-file\n")
    assert serve.token_of(tmp_path / "token") == "of-the-file"


@pytest.mark.parametrize("content", [b"", b" \n", "schlüssel".encode(), b"two\nlines", b"a\x00b", b"\xff\xfe"])
def test_a_file_that_holds_no_token(run: Run, small: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    line = failed(run("serve", small, "--token-file", tmp_path / "token", "--port", 0))
    assert "token" in line and "lines" not in line.replace(str(tmp_path), "")


def test_an_environment_that_holds_no_token(run: Run, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPR_TOKEN", "geheimnisträger")
    line = failed(run("serve", small, "--port", 0))
    assert "BPR_TOKEN holds no token" in line and "geheimnis" not in line


def test_a_token_file_that_is_not_there(run: Run, small: Path, tmp_path: Path) -> None:
    nothing = failed(run("serve", small, "--token-file", tmp_path / "none", "--port", 0))
    assert "none: No such file or directory; check the path" in nothing
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "binary holds no token" in failed(run("serve", small, "--token-file", tmp_path / "binary", "--port", 0))
