"""What the service allows, in one place; the routes' schema, the guard and /v1/info read it from here.

Numbers alone: it knows nobody. `bpr serve` fills in what its options say.
"""

from __future__ import annotations

from dataclasses import dataclass

# These are part of the API: they stand in its schema.
QUESTIONS = 32  # of a request
QUESTION_LENGTH = 2000  # characters
VECTOR_LENGTH = 8192  # numbers
K = 1000  # passages for a question
PASSAGES = 8000  # passages in one reply: bounds its memory
CANDIDATES = 10_000
READ = 100  # passages that are read for an answer
ANSWERS = 10  # for a question
ID_LENGTH = 1024  # characters of a passage's id


@dataclass(frozen=True, slots=True)
class Settings:
    """What whoever runs the service may change; times in seconds.

    body: bytes of a request. in_flight: requests that are worked on at once; one more is refused. batch: questions that
    share one search, 1: none do. deadline, answer_deadline: what a search and an answer may take. body_time: until a
    body must be here. header_time: until a request's head must be here. keep_alive: how long a quiet connection stays.
    drain: what requests in flight get when the service is told to stop. watch: how often the bundle is looked at for a
    newer generation, 0: never. buffered: bytes of bodies that are arriving, all together.
    """

    body: int = 1 << 20
    in_flight: int = 64
    batch: int = 64
    deadline: float = 2.0
    answer_deadline: float = 10.0
    body_time: float = 5.0
    header_time: float = 5.0
    keep_alive: int = 5
    drain: int = 10
    watch: float = 2.0
    buffered: int = 64 << 20
    threads: int | None = None
    token: str | None = None
    any_host: bool = False  # loopback without a token answers to the names of loopback alone
