"""The two walks of docs/architecture.md are those that a passage and a question take: both are sent, and watched."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import pytest
import uvicorn

import bpr
from bpr.encoder import Encoder
from bpr.reader import Reader
from bpr.service.connection import connection_class
from bpr.service.settings import Settings
from calling import ASKED, Service, eventually, passages

ROOT = Path(__file__).parent.parent
SOURCE = str(ROOT / "src" / "bpr")
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def walk(title: str) -> list[str]:
    """The names in the second column of a walk's table, in their order."""
    section = MAP.split(f"### {title}")[1].split("\n#")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if re.match(r"\| \d+ \|", line)]
    return [name for row in rows for name in re.findall(r"`((?:\w+\.)+\w+)`", row)]


def found(name: str) -> Any:
    """What stands under a name of the walk, below `bpr`."""
    thing: Any = bpr
    for part in name.split("."):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"{getattr(thing, '__name__', '-')}.{part}")
        thing = inspect.getattr_static(thing, part) if inspect.isclass(thing) else getattr(thing, part)
    return thing


def code_of(thing: Any) -> list[CodeType]:
    """What runs when it is called; of a class, any of its own methods."""
    if inspect.isclass(thing):
        return [code for each in vars(thing).values() for code in code_of(each) if not inspect.isclass(each)]
    called = (
        inspect.unwrap(getattr(thing, "__func__", thing)) if callable(thing) or hasattr(thing, "__func__") else None
    )
    return [called.__code__] if hasattr(called, "__code__") else []


class Watch:
    """When each function of bpr was first called, and when it first gave something, in this thread and later ones."""

    def __init__(self) -> None:
        self.calls: dict[CodeType, int] = {}
        self.gives: dict[CodeType, int] = {}
        self.on = False
        self._events = 0

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Of sys.setprofile; what a generator yields is a return, too."""
        if not self.on or event not in ("call", "return") or not frame.f_code.co_filename.startswith(SOURCE):
            return
        self._events += 1
        (self.calls if event == "call" else self.gives).setdefault(frame.f_code, self._events)


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    threading.setprofile(made)
    sys.setprofile(made)
    yield made
    sys.setprofile(None)
    threading.setprofile(None)


def times(names: list[str], seen: dict[CodeType, int]) -> list[int]:
    """When each of the names was first seen."""
    first = {name: min((seen[code] for code in code_of(found(name)) if code in seen), default=None) for name in names}
    never = [name for name, when in first.items() if when is None]
    assert not never, f"docs/architecture.md leads through {never}, where nothing comes by"
    return [when for when in first.values() if when is not None]


def in_order(names: list[str], when: list[int]) -> None:
    order = [name for _, name in sorted(zip(when, names, strict=True))]
    assert order == names, "docs/architecture.md has the steps in another order than they are taken in"


def test_a_passage_takes_the_walk_that_is_drawn(watch: Watch, tmp_path: Path, tiny_model: Path) -> None:
    names = walk("One passage,")
    assert len(names) > 10
    lines = (json.dumps(each) for each in passages())
    (tmp_path / "passages.jsonl").write_text("\n".join(lines), encoding="utf-8")
    watch.on = True
    bpr.build(tmp_path / "passages.jsonl", tmp_path / "p.bpr", model=tiny_model, threads=1)
    watch.on = False
    in_order(names, times(names, watch.gives))


@pytest.fixture
def server(watch: Watch, tmp_path: Path, tiny_model: Path, tiny_reader: Path) -> Iterator[str]:
    """The service behind its own connections, on a port of this machine; nothing is watched until it is warm."""
    bpr.build(passages(), tmp_path / "p.bpr", model=tiny_model)
    settings = Settings(deadline=60.0, answer_deadline=60.0, threads=1)
    encoder, reader = Encoder.open(tiny_model, threads=1), Reader.open(tiny_reader, threads=1)
    service = Service(tmp_path / "p.bpr", encoder, reader, settings)
    service.warm_up()
    protocol = connection_class(service.gate, settings, service.metrics)
    running = uvicorn.Server(
        uvicorn.Config(service.guard, port=0, http=protocol, ws="none", lifespan="off", log_config=None)
    )
    thread = threading.Thread(target=running.run)
    thread.start()
    eventually(lambda: running.started, "the start of the server")
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join()
    service.engine.close()


def test_a_question_takes_the_walk_that_is_drawn(watch: Watch, server: str) -> None:
    names = walk("One question,")
    assert len(names) > 15
    watch.on = True
    hits = httpx.post(f"{server}/v1/search", json={"question": ASKED}, timeout=60)
    answers = httpx.post(f"{server}/v1/answer", json={"question": ASKED, "least": 0}, timeout=60)
    watch.on = False
    assert hits.json()["results"][0]["hits"] and answers.json()["results"][0]["answers"]
    in_order(names, times(names, watch.calls))
