"""A run: all questions asked of a bundle, where the right passages stood, and the files that tell of it.

`bpr evaluate` calls it. It composes the retriever with the measures; what is measured stands in evaluation.py.

A folder of a run holds

    results.json    the summary and each question's ranks: what `--against` reads
    retrieved.json  DPR's results, an array of {"question", "answers", "ctxs"}: what readers read
    run.trec        a TREC run, for trec_eval and its kin
    recall.png/svg  recall@k, drawn by plots.py
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from . import __version__, evaluation
from .codes import Floats
from .disk import OutputFile, made_folder, replacing, storage_error
from .errors import InvalidInput
from .evaluation import DEPTH, AnswerFinder, Ranks, Values
from .layouts import list_of, string_of
from .questions import Question
from .records import Hit, Progress
from .retriever import Retriever

TOP = (1, 5, 20, 100)  # k, where nobody says which
QUESTIONS_AT_ONCE = 256  # bounds the memory for the texts of hits
FORMAT = "bpr-evaluation"
RESULTS, RETRIEVED, TREC = "results.json", "retrieved.json", "run.trec"

Watch: TypeAlias = Callable[[Question, list[Hit], list[bool]], None]  # a question, its hits, which of them answer it


@dataclass(frozen=True, slots=True)
class Run:
    """Where the right passages stood: of each question the rank of the first, among the first `depth`; 0: not there."""

    depth: int
    answer: Ranks  # int64[q]
    gold: Ranks  # int64[q]
    ndcg: Values | None  # float64[q]
    read: Mapping[str, Values] = field(default_factory=dict)  # float64[q]: EM and F1 of a reader's answers, by name

    def measures(self, questions: Sequence[Question], ks: Sequence[int]) -> dict[str, Values]:
        """Each measure's values; a k beyond the depth is refused, since nobody looked there."""
        if ks and max(ks) > self.depth:
            raise InvalidInput(f"top {max(ks)} cannot be told from the first {self.depth} passages of each question")
        found = evaluation.measures(questions, ks, answer=self.answer, gold=self.gold, ndcg=self.ndcg)
        return {**found, **self.read}

    def summary(self, questions: Sequence[Question], ks: Sequence[int], other: Run | None = None) -> dict[str, Any]:
        """Each measure's mean and interval, JSON-able, and how much more it is than in another run that has it."""
        theirs = {} if other is None else other.measures(questions, [k for k in ks if k <= other.depth])
        found: dict[str, Any] = {}
        for name, values in self.measures(questions, ks).items():
            found[name] = evaluation.interval(values).to_dict()
            if name in theirs:
                found[name]["difference"] = evaluation.paired(values, theirs[name]).to_dict()
        return found

    def curves(self, questions: Sequence[Question]) -> dict[str, Values]:
        """recall@k of the questions that have answers, and of those that have gold: float[depth], in percent."""
        judged = {"answer": [bool(each.answers) for each in questions], "gold": [bool(each.gold) for each in questions]}
        ranks = {"answer": self.answer, "gold": self.gold}
        some = {name: np.array(which) for name, which in judged.items() if any(which)}
        return {name: evaluation.recall_curve(ranks[name][which], self.depth) for name, which in some.items()}


# ── Ask ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def depth_for(ks: Sequence[int], rows: int, candidates: int | Literal["all"] | None) -> int:
    """How many passages of each question must be looked at for these k, and for MRR and nDCG."""
    if max(ks) > rows:
        raise InvalidInput(f"there are {rows:,} passages, so top {max(ks)} means nothing: choose k up to {rows}")
    depth = min(max(*ks, DEPTH), rows)
    if isinstance(candidates, int) and candidates < depth:
        raise InvalidInput(f"{candidates} candidates cannot give the first {depth} passages, which are measured")
    return depth


def missing_gold(questions: Sequence[Question], opened: Retriever) -> str | None:
    """What is to be said of gold passages that the bundle does not have; if it has none of them, it is another one."""
    wanted = {passage_id for question in questions for passage_id in question.gold}
    missing = {passage_id for passage_id in wanted if passage_id not in opened.passages}
    if not missing:
        return None
    example, bundle = min(missing), opened.bundle.path
    if missing == wanted:
        raise InvalidInput(
            f"{bundle} has none of the {len(wanted):,} gold passages, such as {example!r}, and ids like "
            f"{opened.passages[0].id!r}: it is of other passages, or --prefix must say what its ids begin with"
        )
    lost = sum(question.gold.keys() <= missing for question in questions if question.gold)
    return (
        f"{len(missing):,} of {len(wanted):,} gold passages, such as {example!r}, are not in {bundle}: "
        f"{lost:,} questions cannot be found by gold"
    )


def evaluate(
    opened: Retriever,
    questions: Sequence[Question],
    depth: int,
    *,
    vectors: Floats | None = None,
    regex: bool = False,
    watch: Watch | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> Run:
    """Ask all questions. vectors: float[q, dimensions], instead of encoding them; how: as for Retriever.rank.

    watch: called with each question, its hits and which of them hold an answer, in the order of the questions.
    """
    if vectors is not None and len(vectors) != len(questions):
        raise InvalidInput(f"there are {len(vectors):,} vectors for {len(questions):,} questions: each needs its own")
    tally, say = Tally(regex, watch), progress or (lambda what, done, total: None)
    for question, hits in zip(questions, _ask(opened, questions, depth, vectors, say, how), strict=True):
        tally.add(question, hits)
    return tally.run(depth)


class Tally:
    """Where the right passages stand in what was found, question by question, whoever found it."""

    def __init__(self, regex: bool = False, watch: Watch | None = None) -> None:
        """regex: answers are regular expressions. watch: called with each question that is added."""
        self._finder, self._watch = AnswerFinder(regex), watch
        self.questions: list[Question] = []
        self._ids: list[list[str]] = []
        self._ranks: list[int] = []

    def add(self, question: Question, hits: list[Hit], known: list[bool] | None = None) -> None:
        """known: which of the hits hold an answer, where their texts are not at hand to look."""
        right = known
        if right is None and self._watch is not None:
            right = self._finder.holds(question, [hit.text for hit in hits])
        if right is None:
            self._ranks.append(self._finder.rank(question, (hit.text for hit in hits)))
        else:
            self._ranks.append(evaluation.first(right))
        if self._watch is not None and right is not None:
            self._watch(question, hits, right)
        self.questions.append(question)
        self._ids.append([hit.id for hit in hits])

    def run(self, depth: int) -> Run:
        """Of all questions, in the order in which they were added. depth: how many hits each had, at most."""
        asked, ranks = self.questions, np.array(self._ranks, np.int64)
        return Run(depth, ranks, evaluation.gold_ranks(asked, self._ids), _ndcg(asked, self._ids))


def _ask(
    opened: Retriever,
    questions: Sequence[Question],
    depth: int,
    vectors: Floats | None,
    say: Progress,
    how: dict[str, Any],
) -> Iterator[list[Hit]]:
    for first in range(0, len(questions), QUESTIONS_AT_ONCE):
        some = slice(first, first + QUESTIONS_AT_ONCE)
        if vectors is None:
            given: dict[str, Any] = {"question": [question.text for question in questions[some]]}
        else:
            given = {"vectors": vectors[some]}
        yield from cast("list[list[Hit]]", opened.search(**given, k=depth, **how))
        say("evaluating", min(some.stop, len(questions)), len(questions))


def _ndcg(questions: Sequence[Question], ids: Sequence[Sequence[str]]) -> Values | None:
    if not evaluation.has_ndcg() or not any(question.gold for question in questions):
        return None
    return evaluation.ndcg(questions, ids)


# ── Keep ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def to_dict(run: Run, questions: Sequence[Question], regex: bool) -> dict[str, Any]:
    """What another run needs to be compared with this one."""
    return {
        "format": FORMAT,
        "version": 1,
        "bpr": __version__,
        "depth": run.depth,
        "digest": digest(questions, regex),
        "ids": [question.id for question in questions],
        "answer": run.answer.tolist(),
        "gold": run.gold.tolist(),
        "ndcg": None if run.ndcg is None else run.ndcg.tolist(),
        "read": {name: [None if np.isnan(each) else each for each in some] for name, some in run.read.items()},
    }


def digest(questions: Sequence[Question], regex: bool) -> str:
    """Of all that decides what is right: texts, answers, gold passages, and how answers are looked for."""
    facts = [(each.id, each.text, each.answers, sorted(each.gold.items())) for each in questions]
    return hashlib.sha256(json.dumps([regex, facts]).encode()).hexdigest()


def load(path: Path, questions: Sequence[Question], regex: bool) -> Run:
    """The run in a folder or a results.json, which must be of the same questions."""
    source = path / RESULTS if path.is_dir() else path
    try:
        record = json.loads(source.read_text(encoding="utf-8"))
        if string_of(record, "format") != FORMAT or record.get("version") != 1:
            raise ValueError(f'"format" is not {FORMAT!r} in version 1')
        ids, theirs = [question.id for question in questions], list_of(record, "ids")
        _check_same(source, ids, theirs, string_of(record, "digest") == digest(questions, regex))
        answer, gold = (_column(record, key, len(ids), np.int64) for key in ("answer", "gold"))
        ndcg = None if record.get("ndcg") is None else _column(record, "ndcg", len(ids), np.float64)
        known = record.get("read", {})  # runs of older versions have none
        read = {name: _column(known, name, len(ids), np.float64) for name in known}
        return Run(int(record["depth"]), answer, gold, ndcg, read)
    except FileNotFoundError:
        raise InvalidInput(f"there is no {source}: name a folder that bpr evaluate --output wrote") from None
    except OSError as error:
        raise storage_error("read", source, error) from error
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as flaw:
        raise InvalidInput(f"{source} is not what bpr evaluate --output writes: {flaw}") from None


def _check_same(source: Path, ours: list[str], theirs: list[Any], same: bool) -> None:
    """Values of different questions cannot be compared one by one."""
    advice = "only runs of the same questions can be compared"
    if len(ours) != len(theirs):
        raise InvalidInput(f"{source} is of {len(theirs):,} questions, and these are {len(ours):,}; {advice}")
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True), 1):
        if our != their:
            raise InvalidInput(f"question {number:,} is {our!r} here and {their!r} in {source}; {advice}")
    if not same:
        raise InvalidInput(
            f"{source} has questions of the same ids, but with other texts, answers or gold passages, or other "
            f"settings of prefix or regex; {advice}"
        )


def _column(record: Any, key: str, length: int, dtype: type[np.generic]) -> NDArray[Any]:
    values = np.array(list_of(record, key), dtype)
    if values.shape != (length,):
        raise ValueError(f'"{key}" must have {length:,} values')
    return values


# ── Files for others ─────────────────────────────────────────────────────────────────────────────────────────────────


class Folder:
    """The files of a run while they are written. What is found goes into them as it comes, in flat memory."""

    def __init__(self, files: Mapping[str, OutputFile], contexts: int | None) -> None:
        """contexts: how many passages of each question DPR's results have; None: all that were found."""
        self._files, self._contexts = files, contexts
        self._before = b"[\n"

    def watch(self, question: Question, hits: list[Hit], right: list[bool]) -> None:
        """A `Watch` that adds a question to DPR's results and to the TREC run."""
        entry = dpr_entry(question, hits[: self._contexts], right[: self._contexts])
        self._files[RETRIEVED].write(self._before + json.dumps(entry, ensure_ascii=False).encode())
        self._files[TREC].write("".join(trec_lines(question, hits)).encode())
        self._before = b",\n"

    def finish(self, results: Mapping[str, Any], others: Mapping[str, bytes]) -> None:
        """Close the array, and add the other files as wholes."""
        self._files[RETRIEVED].write(b"\n]\n")
        self._files[RESULTS].write((json.dumps(results, ensure_ascii=False) + "\n").encode())
        for name, content in others.items():
            self._files[name].write(content)


@contextmanager
def writing(folder: Path, others: Iterable[str] = (), contexts: int | None = None) -> Iterator[Folder]:
    """A folder, made if need be, whose files take their places together when the block ends well."""
    names = (RESULTS, RETRIEVED, TREC, *others)
    with made_folder(folder), replacing(*(folder / name for name in names)) as files:
        yield Folder(dict(zip(names, files, strict=True)), contexts)


def dpr_entry(question: Question, hits: Sequence[Hit], right: Sequence[bool]) -> dict[str, Any]:
    """A question in DPR's results, JSON-able. right: which of the hits hold an answer."""
    passages = [
        {"id": hit.id, "title": hit.title, "text": hit.text, "score": f"{hit.score:.9g}", "has_answer": yes}
        for hit, yes in zip(hits, right, strict=True)
    ]
    return {"question": question.text, "answers": question.answers, "ctxs": passages}


def trec_lines(question: Question, hits: Iterable[Hit]) -> Iterator[str]:
    """Lines of a TREC run: question, Q0, passage, rank, score, name.

    Tools sort by score and part ties by id, so a tie is written as the next smaller float32: the order stays ours.
    White space, which parts the columns, is written in ids as in URLs: %20.
    """
    last = np.float32(np.inf)
    for hit in hits:
        last = min(np.float32(hit.score), np.nextafter(last, np.float32(-np.inf)))
        yield f"{_one_word(question.id)} Q0 {_one_word(hit.id)} {hit.rank} {last:.9g} bpr\n"


def _one_word(name: str) -> str:
    return re.sub(r"\s", lambda space: quote(space[0]), name)
