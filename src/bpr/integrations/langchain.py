"""bpr for LangChain: `BprRetriever` over a bundle, and `BprVectorStore`, a bundle that grows.

Called by users of LangChain. It knows LangChain's base classes, and bpr through asking.py and store.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..encoder import Encodes
from ..errors import InvalidInput
from ..filters import Where
from ..records import Hit, Passage
from ..retriever import Retriever
from .asking import beside_the_loop, extra, metadata, opened, options, passage
from .store import Store

with extra("langchain"):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
    from langchain_core.vectorstores import VectorStore

SETTINGS = ("k", "where", "candidates", "hybrid", "refine", "probes", "timeout")


class BprRetriever(BaseRetriever):
    """Finds the documents of a bundle.

    BprRetriever(bundle="wiki.bpr", k=5).invoke("who wrote the Iliad?", where={"lang": "en"})

    bundle: its path, or an opened bpr.Retriever (which it is from then on). Everything else is as for
    `bpr.Retriever.search`, None being the bundle's own; timeout: seconds for one search. A call may change any of them.
    """

    bundle: str | Path | Retriever
    model: str | Path | None = None
    k: int = 4
    where: dict[str, Any] | None = None
    candidates: int | None = None
    hybrid: bool | str | None = None
    refine: int | None = None
    probes: float | None = None
    timeout: float | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Open the bundle now: what is wrong with it is no surprise of the first question."""
        super().model_post_init(context)
        self.bundle = opened(self.bundle, self.model)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun | None = None, **changes: Any
    ) -> list[Document]:
        return [_found(hit) for hit in self._search(query, changes)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun | None = None, **changes: Any
    ) -> list[Document]:
        hits = await beside_the_loop(lambda cancel: self._search(query, changes, cancel=cancel))
        return [_found(hit) for hit in hits]

    def _search(self, query: str, changes: dict[str, Any], **limits: Any) -> list[Hit]:
        how = options({name: getattr(self, name) for name in SETTINGS}, changes)
        return opened(self.bundle).search(query, **how, **limits)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        known = opened(self.bundle).info["model"] or {}
        found = super()._get_ls_params(**kwargs)
        return {**found, "ls_vector_store_provider": "bpr", "ls_embedding_model": known.get("name")}


class BprVectorStore(VectorStore):
    """Documents in a bundle, which the first of them makes; they are encoded by bpr itself.

    A LangChain `Embeddings` is refused: bits of other vectors need the mean and the spread of the whole collection,
    which a store that grows document by document has not (bpr.build makes them, with vectors=…, center, rotate).

    path: of the bundle. model: as for `bpr.open` (None: the bundle's own; for a new one "mini"). words, keep_vectors:
    as for `bpr.build`, where the bundle is made here. A search sees what any process has written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: str | Path | Encodes | None = None,
        words: bool = False,
        keep_vectors: Any = None,
    ) -> None:
        """Nothing is read or written yet."""
        self.store = Store(path, model=model, words=words, keep_vectors=keep_vectors)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path | None = None,
        **settings: Any,
    ) -> BprVectorStore:
        """A store at `path` with these texts; what is there already stays. settings: as for the class."""
        if embedding is not None:
            raise InvalidInput(
                "BprVectorStore encodes texts itself: pass embedding=None, or model=… (a folder of bpr's); for vectors "
                "of your own build a bundle with bpr.build(…, vectors=…)"
            )
        if path is None:
            raise InvalidInput("say where the bundle is to be: BprVectorStore.from_texts(texts, path='docs.bpr')")
        made = cls(path, **settings)
        made.add_texts(texts, metadatas, ids=ids)
        return made

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, all or none, and return their ids; those whose ids are there already are replaced."""
        given = list(texts)
        for name, other in (("metadatas", metadatas), ("ids", ids)):
            if other is not None and len(other) != len(given):
                raise ValueError(f"there are {len(given)} texts and {len(other)} {name}")
        known = [each or str(uuid.uuid4()) for each in ids or [None] * len(given)]
        metas = metadatas or [{}] * len(given)
        passages = [passage(*each) for each in zip(known, given, metas, strict=True)]
        self.store.add(passages, upsert=True)
        return known

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete these documents, or all of them; ids that no document has are passed over."""
        self.store.delete([each.id for each in self.store.passages()] if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in their order, without those that there are not."""
        return [_document(each) for each in self.store.get(ids)]

    def similarity_search(self, query: str, k: int = 4, filter: Where | None = None, **changes: Any) -> list[Document]:
        """The k best documents. filter: docs/filters.md; changes: as for `bpr.Retriever.search`."""
        return [found for found, _ in self.similarity_search_with_score(query, k, filter, **changes)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Where | None = None, **changes: Any
    ) -> list[tuple[Document, float]]:
        """The k best documents and their scores: the higher the better, without bounds."""
        found = self._search(lambda now, how: now.search(query, **how), k, filter, changes)
        return [(_document(hit), hit.score) for hit in found]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Where | None = None, **changes: Any
    ) -> list[Document]:
        """The k best documents for a vector of the bundle's own model."""
        found = self._search(lambda now, how: now.search(vectors=embedding, **how), k, filter, changes)
        return [_document(hit) for hit in found]

    def _search(
        self, call: Callable[[Retriever, dict[str, Any]], Any], k: int, where: Where | None, changes: dict[str, Any]
    ) -> list[Hit]:
        how, now = options({"k": k, "where": where}, changes), self.store.retriever()
        return [] if now is None else list(call(now, how))

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        raise NotImplementedError("bpr's scores have no bounds to be scaled by: use similarity_search_with_score")


def _document(found: Passage | Hit) -> Document:
    return Document(id=found.id, page_content=found.text, metadata=metadata(found))


def _found(hit: Hit) -> Document:
    """With score and rank in its metadata, as "bpr_score" and "bpr_rank" where the passage has fields called so."""
    own = metadata(hit)
    added = {name if name not in own else f"bpr_{name}": getattr(hit, name) for name in ("score", "rank")}
    return Document(id=hit.id, page_content=hit.text, metadata={**own, **added})
