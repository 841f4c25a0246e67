"""bpr for Haystack: `BprDocumentStore`, a bundle that grows, and `BprRetriever`, the component that searches it.

Called by users of Haystack, and by its pipelines. It knows Haystack's protocol, documents and filters, and bpr through
asking.py and store.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ..filters import KINDS, NULL, NUMBER, STRING, Where, spelt, value_of
from ..kernels import Cancel
from ..records import Hit, Passage
from .asking import beside_the_loop, extra, metadata, options, passage
from .store import Store

with extra("haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError

Filters = dict[str, Any]


class BprDocumentStore:
    """Documents in a bundle, which the first of them makes; their content is encoded by bpr itself.

    A document is its id, content and meta. An embedding is not kept: bpr makes its own codes. A document without
    content, or with a blob, is refused. `meta["title"]` is encoded with the content.
    """

    def __init__(
        self, path: str | Path, *, model: str | Path | None = None, words: bool = False, keep_vectors: Any = None
    ) -> None:
        """path: of the bundle. model: a folder, or "mini" (None: the bundle's own; for a new one "mini").

        words (for hybrid search), keep_vectors: as for `bpr.build`, where the bundle is made here.
        """
        self.store = Store(path, model=model, words=words, keep_vectors=keep_vectors)

    def to_dict(self) -> dict[str, Any]:
        """What Haystack writes into the file of a pipeline: paths and settings, not the documents."""
        model = None if self.store.model is None else str(self.store.model)
        return default_to_dict(self, path=str(self.store.path), model=model, **self.store.built)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BprDocumentStore:
        """The store of a pipeline's file."""
        return default_from_dict(cls, data)

    def count_documents(self) -> int:
        """How many documents there are."""
        return len(self.store)

    def filter_documents(self, filters: Filters | None = None) -> list[Document]:
        """The documents that match Haystack's filters (without any: all), in the order in which they were written."""
        return [_document(each) for each in self._matching(filters)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents, all or none; returns how many. NONE is FAIL: an id that is there already is an error."""
        if not isinstance(documents, Iterable) or not all(isinstance(each, Document) for each in documents):
            raise ValueError("write_documents takes a list of Documents")
        chosen: dict[str, Document] = {}
        for each in documents:
            if each.id in chosen and policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
                raise DuplicateDocumentError(f"the id {each.id!r} stands twice among the documents to write")
            if each.id not in chosen or policy is DuplicatePolicy.OVERWRITE:
                chosen[each.id] = each
        if policy is not DuplicatePolicy.OVERWRITE:
            there = [each.id for each in self.store.get(list(chosen))]
            if there and policy is not DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f"{self.store.path} has a document with the id {there[0]!r} already")
            for each_id in there:
                del chosen[each_id]
        self.store.add([_passage(each) for each in chosen.values()], upsert=policy is DuplicatePolicy.OVERWRITE)
        return len(documents) if policy is DuplicatePolicy.OVERWRITE else len(chosen)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents with these ids; those that there are not are passed over."""
        self.store.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete every document. The bundle stays, with its model."""
        self.store.delete([each.id for each in self.store.passages()])

    def delete_by_filter(self, filters: Filters) -> int:
        """Delete the documents that match; returns how many."""
        return self.store.delete([each.id for each in self._matching(filters)])

    def update_by_filter(self, filters: Filters, meta: dict[str, Any]) -> int:
        """Set these fields of the meta of the documents that match, and encode them anew; returns how many."""
        found = [passage(each.id, each.text, {**metadata(each), **meta}) for each in self._matching(filters)]
        return self.store.add(found, upsert=True)

    def count_documents_by_filter(self, filters: Filters) -> int:
        """How many documents match."""
        return sum(1 for _ in self._matching(filters))

    def search(
        self,
        query: str,
        *,
        filters: Filters | None = None,
        top_k: int = 10,
        cancel: Cancel | None = None,
        **settings: Any,
    ) -> list[Document]:
        """The best documents that match, each with its score. settings: as for `bpr.Retriever.search`, and timeout."""
        how, now = options({"k": top_k}, settings), self.store.retriever()
        if now is None or top_k == 0:
            return []
        if filters:
            how["where"] = where_of(filters, now.fields())
        return [_document(hit, hit.score) for hit in now.search(query, cancel=cancel, **how)]

    def _matching(self, filters: Filters | None) -> Iterable[Passage]:
        now = self.store.retriever()
        if now is None:
            return []
        return now.filtered(where_of(filters, now.fields()) if filters else None)


@component
class BprRetriever:
    """Finds the documents of a BprDocumentStore for a question."""

    def __init__(
        self,
        document_store: BprDocumentStore,
        *,
        filters: Filters | None = None,
        top_k: int = 10,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """filters, top_k: where `run` is not told otherwise. filter_policy: whether filters of `run` replace these.

        settings: of the search, {"candidates": 2000, "hybrid": True, "timeout": 0.5}, as for `bpr.Retriever.search`.
        """
        if not isinstance(document_store, BprDocumentStore):
            raise TypeError(f"a BprRetriever searches a BprDocumentStore, not {type(document_store).__name__}")
        options(settings or {})  # a name that no search has is an error now
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy, self.settings = filter_policy, settings or {}

    def to_dict(self) -> dict[str, Any]:
        """What Haystack writes into the file of a pipeline."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            settings=self.settings,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BprRetriever:
        """The component of a pipeline's file."""
        given = dict(data["init_parameters"])
        given["document_store"] = BprDocumentStore.from_dict(given["document_store"])
        given["filter_policy"] = FilterPolicy.from_str(given["filter_policy"])
        return cls(**given)

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: Filters | None = None, top_k: int | None = None) -> dict[str, list[Document]]:
        """The best documents for the question, each with its score."""
        return {"documents": self._search(query, filters, top_k, None)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: Filters | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """As `run`, beside the event loop; the search ends when the task is cancelled."""
        found = await beside_the_loop(lambda cancel: self._search(query, filters, top_k, cancel))
        return {"documents": found}

    def _search(self, query: str, filters: Filters | None, top_k: int | None, cancel: Cancel | None) -> list[Document]:
        wanted = self.top_k if top_k is None else top_k
        both = apply_filter_policy(self.filter_policy, self.filters, filters)
        return self.document_store.search(query, filters=both, top_k=wanted, cancel=cancel, **self.settings)


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _passage(document: Document) -> Passage:
    if document.content is None or document.blob is not None:
        raise ValueError(
            f"document {document.id!r} has {'no content' if document.content is None else 'a blob'}: bpr keeps text "
            "alone, which it encodes itself; write documents with content and without blob"
        )
    return passage(document.id, document.content, document.meta)


def _document(found: Passage | Hit, score: float | None = None) -> Document:
    return Document(id=found.id, content=found.text, meta=metadata(found), score=score)


# ── Filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ORDERED = {KINDS[NUMBER], KINDS[STRING]}
NOTHING: Where = {"or": []}
NOT_META = {each.name for each in fields(Document)} - {"meta"}


def where_of(filters: Mapping[str, Any], known: Mapping[str, set[str]]) -> Where:
    """Haystack's filters in bpr's language. known: the fields that there are and what they hold (Retriever.fields).

    In Haystack a field that is missing is None, and values of different types are unequal, where bpr says that no
    passage has such a field or value: so what the bundle does not know becomes true or false here.
    """
    if not isinstance(filters, Mapping):
        raise FilterError(f"a filter is a dict, not {type(filters).__name__}")
    if "field" in filters:
        field, operator, value = (_given(filters, key) for key in ("field", "operator", "value"))
        return _comparison(_spelt(field), operator, value, known)
    operator, conditions = _given(filters, "operator"), _given(filters, "conditions")
    parts = [where_of(each, known) for each in conditions]
    joined: dict[str, Where] = {"AND": {"and": parts}, "OR": {"or": parts}, "NOT": {"not": {"and": parts}}}
    if operator not in joined:
        raise FilterError(f"{operator!r} does not join conditions: AND, OR and NOT do")
    return joined[operator]


def _given(filters: Mapping[str, Any], key: str) -> Any:
    if key not in filters:
        raise FilterError(f"{key!r} is missing in the filter {dict(filters)}")
    return filters[key]


def _spelt(field: str) -> str:
    if field in NOT_META:
        raise FilterError(f"bpr filters on the meta of documents, and {field!r} is none of it")
    return spelt(tuple(field.removeprefix("meta.").split(".")))


def _comparison(field: str, operator: str, value: Any, known: Mapping[str, set[str]]) -> Where:
    if operator in ("==", "!="):
        found = _one_of(field, [value], known)
    elif operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"{operator!r} takes a list, not {type(value).__name__}")
        found = _one_of(field, value, known)
    elif operator in (">", ">=", "<", "<="):
        return _ordered(field, operator, value, known)
    else:
        raise FilterError(f"there is no operator {operator!r}: ==, !=, >, >=, <, <=, in and not in compare")
    return found if operator in ("==", "in") else {"not": found}


def _one_of(field: str, values: Iterable[Any], known: Mapping[str, set[str]]) -> Where:
    plain = [each for each in map(_plain, values) if each is not None and _kind(each) in known.get(field, ())]
    parts: list[Where] = [{field: {"in": plain}}] if plain else []
    if any(each is None for each in values):
        parts += [{field: None}, {field: {"exists": False}}] if field in known else [{}]
    return {"or": parts}


def _ordered(field: str, operator: str, value: Any, known: Mapping[str, set[str]]) -> Where:
    bound, held = _plain(value), known.get(field, set()) & ORDERED
    if bound is None or not held:
        return NOTHING
    if isinstance(bound, str) and not _is_date(bound):
        raise FilterError(f"{operator!r} compares numbers and dates (ISO 8601), not {bound!r}")
    if _kind(bound) not in held:
        raise FilterError(
            f"{field!r} holds {' and '.join(sorted(held))}: {operator!r} cannot compare it with {bound!r}"
        )
    return {field: {operator: bound}}


def _plain(value: Any) -> Any:
    """A value as bpr's filters take it: dates as ISO strings."""
    found = value.isoformat() if isinstance(value, date) else value
    if value_of(found)[0] < NULL:
        raise FilterError(f"a filter compares with a string, number, date, true, false or None, not {value!r}")
    return found


def _kind(value: Any) -> str:
    return KINDS[value_of(value)[0]]


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True
