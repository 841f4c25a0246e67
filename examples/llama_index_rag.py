"""LlamaIndex: a bundle, and a query engine over it. MockLLM stands for your model: it repeats its prompt."""

from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

import bpr
from bpr.integrations.llama_index import BprRetriever

texts = ["Homer wrote the Iliad.", "Paris is the capital of France.", "The Moon circles the Earth."]
bpr.build([{"id": f"p{i}", "text": text, "year": 1900 + i} for i, text in enumerate(texts)], "docs.bpr")
retriever = BprRetriever("docs.bpr", k=1, where={"year": {"<": 1902}})
engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
print(engine.query("Who is the author of the Iliad?"))
