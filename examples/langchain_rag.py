"""LangChain: documents into a bundle, and from a question to the prompt for a chat model."""

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from bpr.integrations.langchain import BprVectorStore

texts = ["Homer wrote the Iliad.", "Paris is the capital of France.", "The Moon circles the Earth."]
store = BprVectorStore.from_texts(texts, metadatas=[{"year": -750}, {"year": 2020}, {"year": 1969}], path="docs.bpr")
prompt = ChatPromptTemplate.from_template("Answer from this alone: {context}\n\nQuestion: {question}")
retriever = store.as_retriever(search_kwargs={"k": 1, "filter": {"year": {"<": 2000}}})
context = retriever | (lambda documents: "\n".join(each.page_content for each in documents))
chain = {"context": context, "question": RunnablePassthrough()} | prompt  # | your chat model
print(chain.invoke("Who is the author of the Iliad?").to_string())
