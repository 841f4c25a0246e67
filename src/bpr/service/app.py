"""The routes: from JSON to the engine, and back. The only importer of fastapi.

server.py puts the guard around them. What every request must pass stands in guard.py, what a request may say in
schemas.py, and what becomes of it in engine.py: here is only the way between them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from .. import __version__
from ..errors import BprError, Cancelled, DeadlineExceeded, InvalidInput
from ..records import Answer, Hit, Passage
from . import schemas
from . import settings as limits
from .engine import Engine, Reply
from .guard import INTERNAL, Gate, Refused, error_body
from .metrics import CONTENT_TYPE

PAGE = Path(__file__).parent / "page"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}  # of the page's own files
CODES = {400: "invalid_input", 404: "not_found", 405: "method_not_allowed"}
# What a client may have to handle, by route.
_ALL = (400, 401, 421, 500)
_POST = (*_ALL, 408, 413, 415, 429, 503, 504)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schemas.ErrorReply} for status in sorted(statuses)}


def make_app(engine: Engine, gate: Gate) -> FastAPI:
    """The routes around an engine."""
    app = FastAPI(
        title="bpr",
        version=__version__,
        description="Passage retrieval and question answering with learned binary codes.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a path is a route or it is not; a redirect would repeat the Host that was sent
    )
    _add_questions(app, engine)
    _add_facts(app, engine, gate)
    _add_page(app)
    _add_errors(app, engine)
    _mend_description(app)
    return app


def _add_questions(app: FastAPI, engine: Engine) -> None:
    @app.post("/v1/search", response_model=schemas.SearchReply, responses=_errors(*_POST))
    async def search(wanted: schemas.SearchRequest, request: Request) -> Response:
        """The best passages for each question."""
        asked, started = wanted.asked(), time.monotonic()
        deadline = started + _seconds(wanted.timeout_ms, engine.settings.deadline)
        found = await engine.search(asked, deadline)
        texts = asked.questions if asked.is_text else [None] * len(asked.questions)
        results = [
            {"question": text, "hits": [_hit(hit) for hit in hits]}
            for text, hits in zip(texts, found.results, strict=True)
        ]
        return _reply(found, results, started, request)

    @app.post("/v1/answer", response_model=schemas.AnswerReply, responses=_errors(*_POST))
    async def answer(wanted: schemas.AnswerRequest, request: Request) -> Response:
        """What the best passages answer to each question."""
        asked, started = wanted.asked(), time.monotonic()
        deadline = started + _seconds(wanted.timeout_ms, engine.settings.answer_deadline)
        found = await engine.answer(asked, wanted.n, wanted.least, deadline)
        results = [
            {"question": text, "answers": [_answer(each) for each in answers]}
            for text, answers in zip(asked.questions, found.results, strict=True)
        ]
        return _reply(found, results, started, request)


def _add_facts(app: FastAPI, engine: Engine, gate: Gate) -> None:
    async def aside(call: Any, *arguments: Any) -> Any:
        """What touches the disk must not hold up the others."""
        return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)

    @app.get("/v1/passages/{id:path}", response_model=schemas.PassageReply, responses=_errors(*_ALL, 404))
    async def passage(id: str) -> Response:
        """One passage, by its id."""
        found = await aside(engine.passage, id) if len(id) <= limits.ID_LENGTH else None
        if found is None:
            raise Refused(404, "not_found", "there is no passage with this id")
        return _json(_passage(found))

    @app.get("/v1/info", response_model=schemas.InfoReply, responses=_errors(*_ALL))
    async def info() -> Response:
        """What is searched, and what is allowed."""
        return _json(await aside(engine.info))

    @app.get("/healthz", response_model=schemas.StatusReply, responses=_errors(500))
    async def healthz() -> Response:
        """200 while the process runs."""
        return _json({"status": "alive"})

    @app.get("/readyz", response_model=schemas.StatusReply, responses=_errors(500, 503))
    async def readyz() -> Response:
        """200 when the bundle is verified and the warm-up question gave what it must."""
        if gate.draining or not gate.ready:
            raise Refused(503, "unavailable", "stopping" if gate.draining else "starting")
        return _json({"status": "ready"})

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **_errors(*_ALL)}, response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(engine.metrics.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    front, reference = ((PAGE / name).read_bytes() for name in ("index.html", "docs.html"))
    files = {each.name: (each.read_bytes(), KINDS[each.suffix]) for each in PAGE.iterdir() if each.suffix in KINDS}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(front, media_type="text/html")

    @app.get("/docs", include_in_schema=False)
    async def description() -> Response:
        return Response(reference, media_type="text/html")

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in files:  # a name in a list, never a path
            raise Refused(404, "not_found", "there is nothing here")
        content, kind = files[name]
        return Response(content, media_type=kind)


def _add_errors(app: FastAPI, engine: Engine) -> None:
    """Whatever a route raises leaves in the one shape of errors."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return _refusal(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _refusal(request, Refused(400, "invalid_input", _explained(error.errors())))

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> Response:
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        code = CODES.get(error.status_code, "invalid_input")
        return _refusal(request, Refused(error.status_code, code, str(error.detail), headers))

    @app.exception_handler(BprError)
    async def ours(request: Request, error: BprError) -> Response:
        return _refusal(request, _as_refused(error, engine))

    @app.exception_handler(Exception)  # the guard logs it
    async def unexpected(request: Request, error: Exception) -> Response:
        return _refusal(request, Refused(500, "internal", INTERNAL))


def _mend_description(app: FastAPI) -> None:
    """FastAPI promises its own 422 where a body is wrong; here that is a 400, in the one shape of errors."""
    description = app.openapi()
    for operations in description["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(name, None)


def _as_refused(error: BprError, engine: Engine) -> Refused:
    if isinstance(error, DeadlineExceeded | Cancelled):
        late = str(error) if "shard" in str(error) else "it was not done in time: ask for less, or later"
        return Refused(504, "deadline_exceeded", late)
    if isinstance(error, InvalidInput):
        return Refused(400, "invalid_input", engine.without_paths(str(error)))
    raise error  # a bundle or a model that is broken is not the caller's mistake


def _refusal(request: Request, refused: Refused) -> Response:
    body = error_body(request.state.request_id, refused.code, refused.message)
    headers = {name.decode(): value.decode() for name, value in refused.headers}
    return Response(body, refused.status, headers, "application/json")


def _explained(errors: Sequence[Any]) -> str:
    """The first few mistakes: where, and what. Never what was sent."""
    found = []
    for each in errors[:3]:
        where = ".".join(str(part) for part in each["loc"] if part != "body")
        text = str(each["msg"]).removeprefix("Value error, ")
        found.append(f"{where}: {text}" if where else text)
    return "; ".join(found)


# ── JSON, by hand: a model of pydantic for every hit would take longer than the search ───────────────────────────────


def _seconds(asked_ms: int | None, most: float) -> float:
    return most if asked_ms is None else min(asked_ms / 1000, most)


def _passage(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "title": passage.title, "text": passage.text, "meta": passage.meta}


def _hit(hit: Hit) -> dict[str, Any]:
    return {
        "rank": hit.rank,
        "score": round(hit.score, 4),
        "id": hit.id,
        "title": hit.title,
        "text": hit.text,
        "meta": hit.meta,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "confidence": round(answer.confidence, 4),
        "start": answer.start,
        "end": answer.end,
        "passage": _passage(answer.passage),
    }


def _reply(found: Reply, results: list[dict[str, Any]], started: float, request: Request) -> Response:
    times = {**found.times, "total": 1000 * (time.monotonic() - started)}
    return _json(
        {
            "results": results,
            "timings_ms": {stage: round(value, 3) for stage, value in times.items()},
            "batch": found.batch,
            "generation": found.generation,
            "coverage": round(found.coverage, 6),
            "request_id": request.state.request_id,
        }
    )


def _json(value: Any) -> Response:
    return Response(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), media_type="application/json")
