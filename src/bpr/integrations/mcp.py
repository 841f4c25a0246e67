"""A bundle as tools for language models: an MCP server (Model Context Protocol) on stdin and stdout.

`bpr mcp` starts it. It opens nothing itself: `server` is given a retriever, and asks it. The tools take no path and no
URL, and change nothing. Texts are shown with the ids of their passages, so that a model can cite them.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Annotated, Any

from .. import __version__
from ..errors import BprError, InvalidInput
from ..records import Answer, Hit, Passage
from ..retriever import Retriever

try:
    from mcp.server import MCPServer
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
    from pydantic import Field
except ImportError as error:
    raise ImportError(
        f"bpr.integrations.mcp needs the MCP SDK, version 2: pip install 'binary-passage-retriever[mcp]' ({error})",
        name="mcp",
    ) from error

PASSAGES, MOST_PASSAGES = 5, 100  # of a search: by default, and at most
MOST_ANSWERS = 10
LONGEST_QUESTION, LONGEST_ID = 2_000, 1_000  # characters
SECONDS = 60.0  # that a call may take

INSTRUCTIONS = """Searches the {rows:,} passages of {name}. Every passage is shown as [id] title, and its text below: \
when you use one, cite its id. Ask in full questions, as one would ask a person; `search` finds by meaning."""

Question = Annotated[str, Field(min_length=1, max_length=LONGEST_QUESTION, description="A question in plain words.")]
K = Annotated[int, Field(ge=1, le=MOST_PASSAGES, description="How many passages.")]
Conditions = Annotated[
    dict[str, Any] | None,
    Field(description='Only passages with this metadata, such as {"lang": "en", "year": {">=": 2010}}.'),
]
Hybrid = Annotated[bool, Field(description="Also find by words (BM25): for names, numbers and codes.")]
N = Annotated[int, Field(ge=1, le=MOST_ANSWERS, description="How many different answers.")]
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, description="The id of a passage, without brackets.")]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What `search` gives: the best passage first."""

    hits: list[Hit]


@dataclass(frozen=True)
class Answered:
    """What `answer` gives: the best answer first, and none where no passage answers."""

    answers: list[Answer]


@dataclass(frozen=True)
class Read:
    """What `passage` gives."""

    passage: Passage


def server(retriever: Retriever, name: str, k: int = PASSAGES) -> MCPServer[Any]:
    """The MCP server of an opened bundle. name: of the bundle, for the model; k: passages of a search by default.

    A bundle whose model cannot be found is an error here, not at the first question. Without a reader there is no
    `answer`.
    """
    _ = retriever.encoder
    tools = _Tools(retriever, k)
    about = INSTRUCTIONS.format(rows=len(retriever), name=name)
    made: MCPServer[Any] = MCPServer("bpr", version=__version__, instructions=about, log_level="WARNING")
    looks = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    made.add_tool(tools.search(), annotations=looks)
    try:
        _ = retriever.reader
    except InvalidInput as error:
        logger.warning("there is no tool `answer`: %s", error)
    else:
        made.add_tool(tools.answer, annotations=looks)
    made.add_tool(tools.passage, annotations=looks)
    return made


def serve(retriever: Retriever, name: str, k: int = PASSAGES) -> None:
    """Answer on stdin and stdout until stdin is closed, or until Ctrl-C; both are the ordinary end."""
    made = server(retriever, name, k)
    # A thread waits for the next line of stdin, and nothing but that line wakes it: the program would outlive Ctrl-C.
    # It writes nothing but replies, so there is nothing to bring to an end first.
    signal.signal(signal.SIGINT, _leave)
    made.run("stdio")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)


class _Tools:
    """The tools. The SDK runs each call on a thread of its own, and reads its types for what a call may say."""

    def __init__(self, retriever: Retriever, k: int) -> None:
        self._retriever, self._k = retriever, k

    def search(self) -> Callable[..., CallToolResult]:
        """The tool, with the default that was asked for."""

        def search(
            question: Question, k: K = self._k, where: Conditions = None, hybrid: Hybrid = False
        ) -> Annotated[CallToolResult, Found]:
            """Find the passages that best fit a question, best first, with their ids, titles and texts."""

            def find() -> CallToolResult:
                how = {"k": k, "where": where, "hybrid": hybrid, "deadline": time.monotonic() + SECONDS}
                hits = self._retriever.search(question, **how)
                shown = [_shown(hit, f"score {hit.score:.1f}") for hit in hits]
                return _result(shown or ["No passage fulfils these conditions."], Found(hits))

            return self._called(find)

        return search

    def answer(self, question: Question, n: N = 1) -> Annotated[CallToolResult, Answered]:
        """Answer a question with words out of the passages; each answer with its confidence and its passage."""

        def find() -> CallToolResult:
            answers = self._retriever.answer(question, n=n, deadline=time.monotonic() + SECONDS)
            shown = [f"{each.text} (confidence {each.confidence:.2f})\n{_shown(each.passage)}" for each in answers]
            return _result(shown or ["No passage answers this question."], Answered(answers))

        return self._called(find)

    def passage(self, id: Id) -> Annotated[CallToolResult, Read]:
        """The whole passage with this id, as search and answer show it in brackets."""

        def find() -> CallToolResult:
            passages = self._retriever.passages
            row = passages.find(id)
            if row is None:
                raise InvalidInput(f"there is no passage with the id {id!r}: take ids as `search` shows them")
            whole = passages[row]
            return _result([_shown(whole)], Read(whole))

        return self._called(find)

    def _called(self, find: Callable[[], CallToolResult]) -> CallToolResult:
        """On the bundle's newest generation; what goes wrong is told in words, for the model to do it better."""
        try:
            self._retriever.reload()
        except BprError as error:  # a bundle that is being repaired, or is of another model now
            logger.warning("still on the passages from before: %s", error)
        try:
            return find()
        except BprError as error:
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)


def _shown(passage: Passage | Hit, more: str = "") -> str:
    """As a model reads it: [id] title (more), and the text below."""
    head = " ".join(part for part in (f"[{passage.id}]", passage.title, more and f"({more})") if part)
    return f"{head}\n{passage.text}"


def _result(shown: list[str], found: Found | Answered | Read) -> CallToolResult:
    """For people and models as text, for programs as JSON."""
    return CallToolResult(content=[TextContent(text="\n\n".join(shown))], structured_content=asdict(found))
