"""What requests and replies look like: validation, and the OpenAPI description.

The routes take requests as these, and describe replies by these; docs/http.md has the same fields (a test compares).
Whether a search is possible at all is the engine's to say: here are only shapes and limits (settings.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from . import settings as limits
from .engine import Asked

Text = Annotated[str, Field(min_length=1, max_length=limits.QUESTION_LENGTH)]
Vector = Annotated[list[float], Field(min_length=1, max_length=limits.VECTOR_LENGTH)]
NOT_SEARCH = {"question", "questions", "vectors", "timeout_ms", "n", "least"}


class _Request(BaseModel):
    """What /v1/search and /v1/answer have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    question: Text | None = Field(None, description="One question; or `questions`.")
    questions: list[Text] | None = Field(
        None, min_length=1, max_length=limits.QUESTIONS, description="Several questions."
    )
    candidates: int | None = Field(
        None, ge=1, le=limits.CANDIDATES, description="How many are reranked. Default: the bundle's own number."
    )
    rerank: bool = Field(True, description="false: Hamming order alone.")
    hybrid: bool | Literal["weighted", "reciprocal"] = Field(False, description="Also find by words (BM25).")
    refine: int | None = Field(None, ge=0, le=limits.K, description="How many are scored once more by kept vectors.")
    where: dict[str, Any] | None = Field(None, description="Only passages with this metadata (docs/filters.md).")
    probes: float | None = Field(None, gt=0, le=1, description="The share of the codes that cells look at.")
    timeout_ms: int | None = Field(None, ge=1, le=600_000, description="At most the server's own deadline.")

    def asked(self) -> Asked:
        """Its questions, and the options of the search that were given."""
        given = self.model_dump(exclude=NOT_SEARCH, exclude_none=True, exclude_defaults=True)
        vectors = getattr(self, "vectors", None)
        if vectors is not None:
            return Asked(vectors, False, given)
        return Asked([self.question] if self.question is not None else list(self.questions or ()), True, given)


class SearchRequest(_Request):
    """Questions (or vectors of an encoder of yours), and how to search."""

    vectors: list[Vector] | None = Field(
        None, min_length=1, max_length=limits.QUESTIONS, description="Instead of questions, of one width."
    )
    k: int = Field(20, ge=1, le=limits.K, description="Passages for each question.")

    model_config = ConfigDict(json_schema_extra={"examples": [{"question": "who wrote the Iliad?", "k": 3}]})

    @model_validator(mode="after")
    def _consistent(self) -> SearchRequest:
        _one_of(self.question, self.questions, self.vectors)
        if self.vectors is not None and len({len(each) for each in self.vectors}) > 1:
            raise ValueError("the vectors must be of one width")
        if self.vectors is not None and self.hybrid:
            raise ValueError("hybrid search needs questions in words: vectors have none")
        count = len(self.vectors or self.questions or [1])
        if count * self.k > limits.PASSAGES:
            raise ValueError(
                f"{count} questions with k = {self.k} ask for more than {limits.PASSAGES:,} passages: ask in parts"
            )
        if self.candidates is not None and self.candidates < self.k:
            raise ValueError(f"candidates must be at least k ({self.k}), not {self.candidates}")
        return self

    def asked(self) -> Asked:
        """Its questions and how to search; k always."""
        found = super().asked()
        return Asked(found.questions, found.is_text, {**found.how, "k": self.k})


class AnswerRequest(_Request):
    """Questions, how to search, and how many answers are wanted."""

    k: int | None = Field(None, ge=1, le=limits.READ, description="Passages that are read. Default: the reader's own.")
    n: int = Field(1, ge=1, le=limits.ANSWERS, description="Different answers for each question.")
    least: float | None = Field(None, ge=0, le=1, description="The confidence below which there is none.")

    model_config = ConfigDict(json_schema_extra={"examples": [{"question": "who wrote the Iliad?", "n": 2}]})

    @model_validator(mode="after")
    def _consistent(self) -> AnswerRequest:
        _one_of(self.question, self.questions)
        if self.candidates is not None and self.candidates < (self.k or 1):
            raise ValueError(f"candidates must be at least k ({self.k}), not {self.candidates}")
        return self


def _one_of(*given: object) -> None:
    if sum(each is not None for each in given) != 1:
        raise ValueError("give exactly one of question, questions and (to search) vectors")


# ── Replies: for the description alone; they are written by hand (app.py) ────────────────────────────────────────────


class PassageReply(BaseModel):
    """A passage."""

    id: str
    title: str
    text: str
    meta: dict[str, Any]


class HitReply(PassageReply):
    """A passage that was found."""

    rank: int
    score: float


class AnswerFound(BaseModel):
    """text is passage.text[start:end], counted in characters (Unicode code points)."""

    text: str
    confidence: float
    start: int
    end: int
    passage: PassageReply


class HitsOfQuestion(BaseModel):
    """The hits of one question; question is null for a vector."""

    question: str | None
    hits: list[HitReply]


class AnswersOfQuestion(BaseModel):
    """The answers of one question; none where no passage answers."""

    question: str
    answers: list[AnswerFound]


class _Reply(BaseModel):
    """What every reply says beside its results; times in milliseconds, by stage.

    coverage: the share of the passages that was searched; below 1 only on a cluster that may leave out shards.
    """

    timings_ms: dict[str, float]
    batch: int
    generation: int
    coverage: float
    request_id: str


class SearchReply(_Reply):
    """For each question its hits."""

    results: list[HitsOfQuestion]


class AnswerReply(_Reply):
    """For each question its answers."""

    results: list[AnswersOfQuestion]


class InfoReply(BaseModel):
    """What is searched, and what is allowed."""

    version: str
    rows: int
    bits: int
    planes: int
    kind: str
    bytes: dict[str, int]
    model: str | None
    words: bool
    vectors: str | None
    candidates: int
    generation: int
    reader: bool
    limits: dict[str, int]


class ErrorBody(BaseModel):
    """What went wrong: a code for programs, a sentence for people."""

    code: str
    message: str


class ErrorReply(BaseModel):
    """The one shape of all errors."""

    error: ErrorBody
    request_id: str


class StatusReply(BaseModel):
    """How the process is."""

    status: str
