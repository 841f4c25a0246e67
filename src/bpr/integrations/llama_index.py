"""bpr for LlamaIndex: `BprRetriever` over a bundle.

Called by users of LlamaIndex. It knows LlamaIndex's retriever and nodes, and bpr through asking.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..encoder import Encodes
from ..errors import InvalidInput
from ..filters import Where
from ..records import Hit
from ..retriever import Retriever
from .asking import beside_the_loop, extra, metadata, opened, options

with extra("llama-index"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode


class BprRetriever(BaseRetriever):
    """Finds the passages of a bundle, as text nodes that have the passages' ids.

    BprRetriever("wiki.bpr", k=5, where={"lang": "en"}).retrieve("who wrote the Iliad?")
    """

    def __init__(
        self,
        bundle: str | Path | Retriever,
        *,
        model: str | Path | Encodes | None = None,
        k: int = 10,
        where: Where | None = None,
        use_embedding: bool = False,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        """bundle: its path, or an opened bpr.Retriever. k, where, settings: as for `bpr.Retriever.search`, and timeout.

        use_embedding: search with the embedding of a QueryBundle instead of its text, for bundles of your own vectors.
        """
        super().__init__(callback_manager=callback_manager, verbose=verbose)
        self.retriever = opened(bundle, model)
        self.settings = {"k": k, "where": where, **settings}
        self.use_embedding = use_embedding
        options(self.settings)  # a name that no search has is an error now

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [_node(hit) for hit in self._search(query_bundle)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = await beside_the_loop(lambda cancel: self._search(query_bundle, cancel=cancel))
        return [_node(hit) for hit in hits]

    def _search(self, asked: QueryBundle, **limits: Any) -> list[Hit]:
        how = options(self.settings) | limits
        if not self.use_embedding:
            return self.retriever.search(asked.query_str, **how)
        if asked.embedding is None:
            raise InvalidInput("this retriever searches with embeddings: ask with QueryBundle(…, embedding=[…])")
        found: Any = self.retriever.search(vectors=asked.embedding, **how)
        return list(found)


def _node(hit: Hit) -> NodeWithScore:
    return NodeWithScore(node=TextNode(id_=hit.id, text=hit.text, metadata=metadata(hit)), score=hit.score)
