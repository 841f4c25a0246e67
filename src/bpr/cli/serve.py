"""The verb serve: a bundle over HTTP. Registered by being imported (cli/__init__.py).

It turns options into Settings, opens the bundle (or its shards, through onray.py) and binds the port; service/ does the
rest, and is imported only then.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..disk import storage_error
from ..errors import InvalidInput
from .bundles import SameModel
from .common import Bundle, Quiet, ReaderFolder, Threads, needs_extra, verb
from .onray import RayAddress, ReplicaCpus, Replicas, RequireAll, opened_on_ray

if TYPE_CHECKING:
    from ..retriever import Retriever


def _finite(seconds: float) -> float:
    """NaN is below no minimum, and infinity above no maximum."""
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is no number of seconds")
    return seconds


Host = Annotated[str, typer.Option("--host", help="The address to serve on; another than loopback needs a token.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="The token that requests must bring; or in BPR_TOKEN."),
]
Anonymous = Annotated[bool, typer.Option("--allow-anonymous", help="Serve other machines without a token.")]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, help="Requests at once; one more is refused (429).")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Questions that share one search; 1: none do.")]
Deadline = Annotated[
    float, typer.Option("--deadline", min=0.001, callback=_finite, help="Seconds that a search may take (504).")
]
AnswerDeadline = Annotated[
    float, typer.Option("--answer-deadline", min=0.001, callback=_finite, help="Seconds that an answer may take.")
]
Watch = Annotated[
    float,
    typer.Option(
        "--watch", min=0, callback=_finite, help="Seconds between looks for a newer generation of the bundle; 0: none."
    ),
]


@verb(
    "serve docs.bpr",
    "serve docs.bpr --host 0.0.0.0 --token-file token.txt",
    "serve shards/ --ray 10.0.0.1:6379 --replicas 2",
)
def serve(
    path: Bundle,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token_file: TokenFile = None,
    allow_anonymous: Anonymous = False,
    model: SameModel = None,
    reader: ReaderFolder = None,
    in_flight: InFlight = 64,
    batch: Batch = 64,
    deadline: Deadline = 2.0,
    answer_deadline: AnswerDeadline = 10.0,
    watch: Watch = 2.0,
    threads: Threads = None,
    ray: RayAddress = None,
    replicas: Replicas = 1,
    replica_cpus: ReplicaCpus = 1.0,
    require_all: RequireAll = True,
    quiet: Quiet = False,
) -> None:
    """Serve a bundle over HTTP: a page for people at /, an API for programs (docs/http.md).

    With --ray it is a bundle of shards (`bpr shard`), which the machines of a Ray cluster search (docs/cluster.md).

    SIGTERM ends it when the requests in flight are answered; SIGHUP looks for a newer generation of the bundle now.
    """
    options: dict[str, Any] = {"in_flight": in_flight, "batch": batch, "threads": threads, "watch": watch}
    options |= {"deadline": deadline, "answer_deadline": answer_deadline, "any_host": allow_anonymous}

    def opened() -> Retriever:
        if ray is not None:
            return opened_on_ray(path, ray, model, reader, replicas, replica_cpus, not require_all)
        from .. import retriever

        return retriever.open(path, model=model, reader=reader)

    run(path, host, port, token_of(token_file), opened, quiet, options)


def run(
    path: Path,
    host: str,
    port: int,
    token: str | None,
    opened: Callable[[], Retriever],
    quiet: bool,
    options: dict[str, Any],
) -> None:
    """Bind, open the bundle, serve; the URL goes to stdout when the service is ready."""
    from .. import terminal

    with needs_extra("serve", "fastapi", "uvicorn", "httptools", "uvloop", "prometheus_client", "pydantic"):
        from ..service import server
        from ..service.settings import Settings

    with server.bind(host, port) as bound:
        if not (server.is_loopback(bound) or token or options.get("any_host")):
            raise InvalidInput(
                f"{host} can be reached from other machines: give a token (BPR_TOKEN, --token-file), or say that "
                "anybody may ask (--allow-anonymous)"
            )
        terminal.log_to_stderr("bpr.service", quiet)
        served = opened()
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{bound.getsockname()[1]}/"

        def started() -> None:
            print(f"{path} is served on {url}", flush=True)

        server.serve(served, bound, Settings(token=token, **options), started)


def token_of(file: Path | None) -> str | None:
    """The token, from a file or BPR_TOKEN: never from the command line, which others can see."""
    given, place = os.environ.get("BPR_TOKEN", ""), "BPR_TOKEN"
    if file is not None:
        try:
            given, place = file.read_text(encoding="utf-8"), str(file)
        except OSError as error:
            raise storage_error("read", file, error) from error
        except UnicodeDecodeError:
            given, place = "", str(file)
    token = given.strip()
    if file is None and not token:
        return None
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidInput(f"{place} holds no token: one line of plain characters is one")
    return token
