"""`bpr mcp` as programs for language models use it: the official client, a real process, real stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import bpr

ROOT = Path(__file__).parents[2]
PASSAGES = [
    {"id": "p0", "title": "Iliad", "text": "homer wrote the iliad , a greek epic poem", "year": 1},
    {"id": "p1", "title": "Paris", "text": "paris is the capital of france", "year": 2},
    {"id": "p2", "title": "", "text": "the moon is no planet", "year": 3},
]
SECONDS = 60


@pytest.fixture
def path(tmp_path: Path, tiny_model: Path) -> Path:
    bpr.build(PASSAGES, tmp_path / "poems.bpr", model=tiny_model, words=True)
    return tmp_path / "poems.bpr"


def asked(path: Path, reader: Path, talk: Callable[[Client], Coroutine[Any, Any, None]], **how: Any) -> str:
    """Run a conversation with `bpr mcp`; what it said on stderr."""
    arguments = ["-m", "bpr.cli", "mcp", str(path), "--reader", str(reader), "-k", "2"]
    told = path.parent / "stderr.txt"

    async def run() -> None:
        from mcp.client.stdio import stdio_client

        with told.open("w") as errors:
            server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
            async with Client(stdio_client(server, errlog=errors), read_timeout_seconds=SECONDS, **how) as client:
                await talk(client)

    asyncio.run(run())
    return told.read_text()


def text(result: Any) -> str:
    assert [block.type for block in result.content] == ["text"]
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_server_says_who_it_is_and_what_its_tools_take_and_give(path: Path, tiny_reader: Path, mode: str) -> None:
    async def talk(client: Client) -> None:
        assert client.server_info.name == "bpr" and client.server_info.version == bpr.__version__
        assert "3 passages of poems.bpr" in client.instructions
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["search", "answer", "passage"]
        takes = tools["search"].input_schema["properties"]
        assert set(takes) == {"question", "k", "where", "hybrid"}
        assert takes["question"]["maxLength"] == 2000
        assert (takes["k"]["minimum"], takes["k"]["maximum"], takes["k"]["default"]) == (1, 100, 2)
        gives = {name: list(tool.output_schema["properties"]) for name, tool in tools.items()}
        assert gives == {"search": ["hits"], "answer": ["answers"], "passage": ["passage"]}
        assert all(tool.annotations.read_only_hint and tool.description for tool in tools.values())

    said = asked(path, tiny_reader, talk, mode=mode)
    assert said == f"{path}: 3 passages, waiting for an MCP client on stdin\n"


def test_what_the_tools_find_is_what_the_retriever_finds(path: Path, tiny_reader: Path) -> None:
    question = "who wrote the iliad ?"
    with bpr.open(path, reader=tiny_reader) as retriever:
        hits = retriever.search(question, k=2)
        hybrid = retriever.search(question, k=3, hybrid=True, where={"year": {">=": 2}})
        answers = retriever.answer(question, n=3)

    async def talk(client: Client) -> None:
        found = await client.call_tool("search", {"question": question})
        assert not found.is_error
        assert found.structured_content == {"hits": [hit.to_dict() for hit in hits]}
        assert text(found) == "\n\n".join(
            f"[{hit.id}] {hit.title + ' ' if hit.title else ''}(score {hit.score:.1f})\n{hit.text}" for hit in hits
        )
        how = {"question": question, "k": 3, "hybrid": True, "where": {"year": {">=": 2}}}
        found = await client.call_tool("search", how)
        assert found.structured_content == {"hits": [hit.to_dict() for hit in hybrid]} and len(hybrid) == 2
        found = await client.call_tool("search", {**how, "where": {"year": 99}})
        assert found.structured_content == {"hits": []} and text(found) == "No passage fulfils these conditions."
        given = await client.call_tool("answer", {"question": question, "n": 3})
        assert given.structured_content == {"answers": [answer.to_dict() for answer in answers]}
        assert all(f"{answer.text} (confidence" in text(given) for answer in answers)
        assert all(f"[{answer.passage.id}]" in text(given) for answer in answers)
        whole = await client.call_tool("passage", {"id": "p1"})
        assert text(whole) == "[p1] Paris\nparis is the capital of france"
        assert whole.structured_content["passage"]["meta"] == {"year": 2}

    asked(path, tiny_reader, talk)


def test_what_is_wrong_is_an_error_in_words_and_the_server_lives_on(path: Path, tiny_reader: Path) -> None:
    async def talk(client: Client) -> None:
        for name, arguments, message in [
            ("search", {"question": "x", "k": 101}, "less than or equal to 100"),
            ("search", {"question": "x" * 2001}, "at most 2000 characters"),
            ("search", {"question": ""}, "at least 1 character"),
            ("search", {}, "question\n  Field required"),
            ("search", {"question": "x", "where": {"year": {"~": 1}}}, "there is no operator '~'"),
            ("answer", {"question": "x", "n": 11}, "less than or equal to 10"),
            ("passage", {"id": "p9"}, "there is no passage with the id 'p9'"),
            ("delete", {"id": "p1"}, "Unknown tool"),
        ]:
            result = await client.call_tool(name, arguments)
            assert result.is_error and message in text(result), (name, arguments)
            assert "Traceback" not in text(result)
        assert not (await client.call_tool("search", {"question": "x"})).is_error

    assert "Traceback" not in asked(path, tiny_reader, talk)


def test_passages_that_are_added_while_it_runs_are_found(path: Path, tiny_reader: Path, tiny_model: Path) -> None:
    async def talk(client: Client) -> None:
        assert (await client.call_tool("passage", {"id": "new"})).is_error
        bpr.add(path, [{"id": "new", "title": "", "text": "a red house"}])
        assert text(await client.call_tool("passage", {"id": "new"})) == "[new]\na red house"
        (path / "manifest.json").write_text("{}")
        assert not (await client.call_tool("search", {"question": "red house"})).is_error

    assert "still on the passages from before" in asked(path, tiny_reader, talk)


def test_a_bundle_without_a_reader_has_no_tool_that_answers(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from bpr.integrations.mcp import server

    monkeypatch.setattr("bpr.model.MINI", path.parent / "nowhere")

    async def names() -> list[str]:
        with bpr.open(path) as retriever:
            async with Client(server(retriever, "poems")) as client:
                return [tool.name for tool in (await client.list_tools()).tools]

    assert asyncio.run(names()) == ["search", "passage"]
    assert "there is no tool `answer`" in caplog.text


def started(path: Path) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "bpr.cli", "mcp", str(path)], text=True, **pipes)


GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a test", "version": "1"},
    },
}


@pytest.mark.parametrize("end", ["stdin", "interrupt"])
def test_it_ends_quietly_when_nobody_asks_any_more(path: Path, end: str) -> None:
    with started(path) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(GREETING) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "bpr"
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)  # while its stdin is still open
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert out == ""  # nothing but the protocol
    assert err.count("\n") == 1 and "waiting for an MCP client" in err


def test_a_bundle_that_is_not_there_is_one_line_and_status_1(tmp_path: Path) -> None:
    with started(tmp_path / "none.bpr") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1 and out == ""
    assert err.count("\n") == 1 and "none.bpr" in err


def test_a_bundle_that_cannot_read_text_is_refused_at_once(tmp_path: Path) -> None:
    bpr.build(PASSAGES, tmp_path / "v.bpr", vectors=[[1.0] * 8, [-1.0] * 8, [0.5] * 8])
    with started(tmp_path / "v.bpr") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1 and out == "" and "was built from vectors" in err


def test_without_the_sdk_one_line_names_the_extra(path: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; sys.argv[0] = 'bpr'; import bpr.cli; bpr.cli.main()"
    done = subprocess.run([sys.executable, "-c", code, "mcp", str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "pip install 'binary-passage-retriever[mcp]'" in done.stderr


def test_the_example_runs(path: Path) -> None:
    file = ROOT / "examples" / "mcp_client.py"
    assert len(file.read_text().splitlines()) <= 15
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(file), str(path), "who wrote the iliad ?"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.count("(score ") == 2 and "[p" in done.stdout
