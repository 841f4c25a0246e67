"""docs/tutorial.md, done as it stands: its files are written, its commands run, and they print what it shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "tutorial.md").read_text(encoding="utf-8")
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "BPR_TOKEN")},
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "COLUMNS": "80",
    "NO_COLOR": "1",
}


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Every command of a console block, and the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(shown: str, printed: str) -> bool:
    """Whether a line is as shown; … stands for anything, also for itself."""
    return re.fullmatch(".*".join(map(re.escape, shown.rstrip().split("…"))), printed.rstrip()) is not None


def check(command: str, shown: list[str], printed: str) -> None:
    lines = [line for line in printed.splitlines() if line.strip()]
    assert len(lines) == len(shown), f"$ {command}\n{printed}"
    left = list(lines)  # results and messages come from two streams, which keep no order between them
    for line in shown:
        own = next((each for each in left if matches(line, each)), None)
        assert own is not None, f"$ {command}\ndoes not print {line!r}, but\n{printed}"
        left.remove(own)


def blocks(part: str) -> list[tuple[str, str, str]]:
    """Language, title and text of every fenced block."""
    return FENCE.findall(part)


def walk(folder: Path) -> None:
    """All of the page but its last section, every command checked."""
    for language, title, text in blocks(PAGE[: PAGE.index("## Serve")]):
        if title:
            (folder / title).parent.mkdir(exist_ok=True)
            (folder / title).write_text(text, encoding="utf-8")
        elif language == "console":
            for command, shown in commands(text):
                streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
                run = subprocess.run(shlex.split(command), cwd=folder, env=ENVIRONMENT, **streams)
                assert run.returncode == 0, f"$ {command}\n{run.stdout}"
                check(command, shown, run.stdout)


def ask(url: str, curl: str) -> str:
    """What a service on another address than the page's replies to the page's curl."""
    words = shlex.split(curl)
    assert words[:2] == ["curl", "-s"] and words[words.index("-H") + 1] == "content-type: application/json"
    body, kind = words[words.index("-d") + 1].encode(), {"content-type": "application/json"}
    request = urllib.request.Request(url + words[2].partition("/")[2], body, kind)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def test_every_command_of_the_tutorial_prints_what_it_shows(tmp_path):
    walk(tmp_path)

    start, curl = (commands(text)[0] for kind, _, text in blocks(PAGE[PAGE.index("## Serve") :]) if kind == "console")
    command = [*shlex.split(start[0]), "--port", "0"]
    server = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    try:
        said = server.stdout.readline().strip()
        assert matches(start[1][0].replace("127.0.0.1:8080", "…"), said)
        body = ask(re.search(r"http://[\d.:]+/", said)[0], curl[0])
        assert matches(curl[1][0], body)
        assert json.loads(body)["results"][0]["answers"][0]["text"] == "Agnes Thorvald"
    finally:
        server.terminate()
        assert server.wait(30) == 0
        server.stdout.close()


def test_the_tutorial_shows_the_verbs_of_a_bundles_life():
    shown = set(re.findall(r"^\$ bpr (\w+)", PAGE, re.MULTILINE))
    assert {"passages", "index", "search", "answer", "add", "delete", "tune", "evaluate", "serve"} <= shown


def test_a_line_that_is_not_as_shown_is_noticed():
    check("x", ["took … s", "b"], "b\ntook 0.3 s\n")
    for printed in ("took 0.3 s\n", "took 0.3 s\nb\nc\n", "took 0.3 ms\nb\n"):
        with pytest.raises(AssertionError):
            check("x", ["took … s", "b"], printed)
