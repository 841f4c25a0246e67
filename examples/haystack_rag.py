"""Haystack: documents into a bundle, and a pipeline from a question to the prompt for a generator."""

from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder

from bpr.integrations.haystack import BprDocumentStore, BprRetriever

store = BprDocumentStore("docs.bpr")
texts = ["Homer wrote the Iliad.", "Paris is the capital of France.", "The Moon circles the Earth."]
store.write_documents([Document(content=text, meta={"year": 1900 + i}) for i, text in enumerate(texts)])
pipeline = Pipeline()
pipeline.add_component("retriever", BprRetriever(store, top_k=1))
pipeline.add_component("prompt", PromptBuilder("Answer from this alone: {{ documents[0].content }}\n\n{{ question }}"))
pipeline.connect("retriever.documents", "prompt.documents")  # and "prompt" to your generator
print(pipeline.run({"retriever": {"query": "the Iliad's author"}, "prompt": {"question": "Who?"}})["prompt"]["prompt"])
