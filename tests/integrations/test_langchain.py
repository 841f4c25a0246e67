"""LangChain's own standard tests, and what they do not ask: metadata, filters, deadlines, cancelling, other writers."""

from __future__ import annotations

import asyncio
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests.retrievers import RetrieversIntegrationTests
from langchain_tests.integration_tests.vectorstores import VectorStoreIntegrationTests

import bpr
from bpr.errors import Cancelled, DeadlineExceeded, InvalidInput
from bpr.integrations.langchain import BprRetriever, BprVectorStore

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def mini() -> bpr.Encoder:
    """The model that ships with bpr, loaded once."""
    return bpr.Encoder.open("mini")


class TestStandardRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def four(self, bundle: Path) -> None:
        self.bundle = bundle

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return BprRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"bundle": self.bundle}

    @property
    def retriever_query_example(self) -> str:
        return "who wrote the Iliad?"


class TestStandardVectorStore(VectorStoreIntegrationTests):
    """All of it. The suite's fake embeddings (6 numbers) are not used: the store encodes with bpr's own model."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path, mini: bpr.Encoder) -> VectorStore:
        return BprVectorStore(tmp_path / "docs.bpr", model=mini)


# ── The retriever ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_document_has_the_passages_id_text_title_and_fields_and_its_score_and_rank(bundle: Path) -> None:
    found = BprRetriever(bundle=str(bundle), k=2).invoke("who wrote the Iliad?")
    hits = bpr.open(bundle).search("who wrote the Iliad?", k=2)
    assert found[0].id == "homer"
    assert found[0].page_content == "Homer wrote the Iliad, an epic poem of the war at Troy."
    assert found[0].metadata == {"title": "Homer", "year": -750, "score": hits[0].score, "rank": 1}
    assert [(each.id, each.metadata["rank"]) for each in found] == [(hit.id, hit.rank) for hit in hits]


def test_fields_of_the_passage_are_not_overwritten(tmp_path: Path, tiny_model: Path) -> None:
    meta = {"score": "A+", "rank": "captain", "title": "Sir"}
    bpr.build([{"id": "1", "title": "T", "text": "the king", "meta": meta}], tmp_path / "x.bpr", model=tiny_model)
    opened = bpr.open(tmp_path / "x.bpr")
    found = BprRetriever(bundle=opened).invoke("king")[0].metadata
    assert found == {**meta, "bpr_score": opened.search("king")[0].score, "bpr_rank": 1}


def test_settings_hold_for_all_calls_and_a_call_may_change_them(bundle: Path) -> None:
    retriever = BprRetriever(bundle=bundle, k=4, where={"year": {">": 1900}}, refine=0)
    assert {each.id for each in retriever.invoke("who wrote the Iliad?")} == {"paris", "moon"}
    assert [each.id for each in retriever.invoke("who wrote the Iliad?", where=None, k=1, candidates=2)] == ["homer"]
    assert [each.id for each in retriever.invoke("engine", where={"year": 1776}, hybrid=True)] == ["steam"]
    with pytest.raises(InvalidInput, match="a search has no option 'top'; it has k, where"):
        retriever.invoke("who?", top=3)


def test_a_bundle_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(bpr.MissingBundle, match=r"nothing\.bpr"):
        BprRetriever(bundle=tmp_path / "nothing.bpr")


def test_one_opened_bundle_serves_configured_copies(bundle: Path) -> None:
    retriever = BprRetriever(bundle=bundle, k=1)
    free = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert len(free.invoke("the Moon", config={"configurable": {"k": 3}})) == 3
    assert isinstance(retriever.bundle, bpr.Retriever)
    assert BprRetriever(**retriever.__dict__).bundle is retriever.bundle


def test_a_timeout_ends_the_search(bundle: Path) -> None:
    retriever = BprRetriever(bundle=bundle, timeout=60)
    assert retriever.invoke("the Moon")
    with pytest.raises(DeadlineExceeded):
        retriever.invoke("the Moon", timeout=0)


async def test_asynchronous_calls_find_the_same_and_leave_the_loop_free(bundle: Path) -> None:
    retriever = BprRetriever(bundle=bundle)
    questions = ["who wrote the Iliad?", "capital of France", "James Watt", "what circles the Earth?"]
    found = await asyncio.gather(*(retriever.ainvoke(each, k=2) for each in questions))
    assert found == [retriever.invoke(each, k=2) for each in questions]
    assert await retriever.abatch(questions) == retriever.batch(questions)


async def test_a_cancelled_task_stops_its_search(bundle: Path, tiny_model: Path, tmp_path: Path) -> None:
    bpr.build([{"id": "1", "text": "the king"}], tmp_path / "x.bpr", model=tiny_model)
    opened = bpr.open(tmp_path / "x.bpr", model=Endless(bpr.Encoder.open(tiny_model)))
    task = asyncio.create_task(BprRetriever(bundle=opened).ainvoke("king"))
    while not opened.encoder.running:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(opened.encoder.ended(), 5)


class Endless:
    """An encoder that encodes the same question again and again, until it is told to stop."""

    def __init__(self, encoder: bpr.Encoder) -> None:
        self.real, self.model, self.engine, self.at_once = encoder, encoder.model, encoder.engine, encoder.at_once
        self.running = self.stopped = False

    def questions(self, texts: list[str], **limits: Any) -> Any:
        self.running = True
        try:
            while True:
                self.real.questions(texts, **limits)
        except Cancelled:
            self.stopped = True
            raise

    def passages(self, pairs: Any, **limits: Any) -> Any:
        return self.real.passages(pairs, **limits)

    async def ended(self) -> None:
        while not self.stopped:
            await asyncio.sleep(0.001)


def test_tracing_is_told_what_searches(bundle: Path) -> None:
    assert BprRetriever(bundle=bundle)._get_ls_params() == {
        "ls_retriever_name": "bpr",
        "ls_vector_store_provider": "bpr",
        "ls_embedding_model": bpr.open(bundle).info["model"]["name"],
    }


# ── The vector store ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, tiny_model: Path) -> BprVectorStore:
    texts, metadatas = ["the red house", "a green tree", "blue water"], [{"n": 1}, {"n": 2}, {"n": 3, "title": "Sea"}]
    return BprVectorStore.from_texts(
        texts, metadatas=metadatas, ids=["a", "b", "c"], path=tmp_path / "x.bpr", model=tiny_model, words=True
    )


def test_documents_are_found_as_they_were_given_and_a_title_is_encoded(store: BprVectorStore) -> None:
    found = store.similarity_search_with_score("blue water", k=3)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert Document(id="c", page_content="blue water", metadata={"n": 3, "title": "Sea"}) in [each for each, _ in found]
    assert bpr.open(store.store.path).passages.get([2])[0].title == "Sea"


def test_a_search_takes_a_filter_and_every_option_of_bpr(store: BprVectorStore) -> None:
    assert [each.id for each in store.similarity_search("tree", filter={"n": {">=": 2}}, hybrid=True)] == ["b", "c"]
    with pytest.raises(InvalidInput, match="no option 'depth'"):
        store.similarity_search("tree", depth=3)
    assert [each.id for each in store.as_retriever(search_kwargs={"filter": {"n": 1}}).invoke("tree")] == ["a"]


def test_a_vector_of_the_bundles_model_finds_what_its_text_finds(store: BprVectorStore, tiny_model: Path) -> None:
    vector = bpr.Encoder.open(tiny_model).questions(["green tree"])[0]
    by_vector = store.similarity_search_by_vector(np.asarray(vector).tolist(), k=2)
    assert by_vector == store.similarity_search("green tree", k=2)


def test_a_bundle_of_ones_own_vectors_is_searched_by_vector(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((50, 60)).astype(np.float32)
    passages = [{"id": str(row), "text": f"passage {row}"} for row in range(50)]
    bpr.build(passages, tmp_path / "x.bpr", vectors=vectors, center=True, rotate=True, bits=128)
    store = BprVectorStore(tmp_path / "x.bpr")
    assert store.similarity_search_by_vector(vectors[7].tolist(), k=1)[0].id == "7"
    for refused in (lambda: store.similarity_search("passage 7"), lambda: store.add_texts(["passage 50"])):
        with pytest.raises(InvalidInput, match="built from vectors of yours and cannot read text"):
            refused()


def test_two_stores_of_one_path_see_each_others_writes(store: BprVectorStore) -> None:
    other = BprVectorStore(store.store.path)  # the bundle knows its model
    assert len(other.get_by_ids(["a", "b", "c", "a", "x"])) == 3
    store.add_texts(["a silver ship"], ids=["d"])
    assert {each.id for each in other.similarity_search("ship", k=10)} == {"a", "b", "c", "d"}
    other.delete()
    assert store.similarity_search("ship") == []
    store.add_texts(["a gold ship"])
    assert [each.page_content for each in other.similarity_search("ship")] == ["a gold ship"]


async def test_threads_that_write_wait_for_each_other(store: BprVectorStore) -> None:
    await asyncio.gather(*(store.aadd_texts([f"ship {each}"], ids=[str(each)]) for each in range(6)))
    assert len(store.similarity_search("ship", k=20)) == 9


def test_langchains_indexing_keeps_a_store_in_step(tmp_path: Path, tiny_model: Path) -> None:
    store, records = BprVectorStore(tmp_path / "x.bpr", model=tiny_model), InMemoryRecordManager("x")
    records.create_schema()
    told = {"cleanup": "full", "source_id_key": "from", "key_encoder": "sha256"}
    one, two = (Document(page_content=word, metadata={"from": word}) for word in ("sun", "moon"))
    assert index([one, two], records, store, **told)["num_added"] == 2
    assert index([two], records, store, **told) == {
        "num_added": 0, "num_updated": 0, "num_skipped": 1, "num_deleted": 1,
    }  # fmt: skip
    assert [each.page_content for each in store.similarity_search("sun")] == ["moon"]


def test_what_the_store_cannot_do_it_says(tmp_path: Path, store: BprVectorStore) -> None:
    with pytest.raises(InvalidInput, match="encodes texts itself: pass embedding=None"):
        BprVectorStore.from_texts(["a"], DeterministicFakeEmbedding(size=6), path=tmp_path / "y.bpr")
    with pytest.raises(InvalidInput, match="say where the bundle is to be"):
        BprVectorStore.from_texts(["a"])
    with pytest.raises(NotImplementedError, match="scores have no bounds"):
        store.similarity_search_with_relevance_scores("tree")
    with pytest.raises(ValueError, match="there are 2 texts and 1 ids"):
        store.add_texts(["a", "b"], ids=["1"])
    with pytest.raises(InvalidInput, match='"meta" cannot be stored as JSON'):
        store.add_texts(["a"], [{"when": time}])
    assert not (tmp_path / "y.bpr").exists() and len(store.store) == 3


# ── The package ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "langchain_rag.py"))
    assert capsys.readouterr().out.startswith("Human: Answer from this alone: Homer wrote the Iliad.\n")


@pytest.mark.parametrize(
    ("module", "package", "name"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("haystack", "haystack", "haystack"),
    ],
)
def test_without_its_package_a_module_names_its_extra(module: str, package: str, name: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; import bpr.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    wanted = f"bpr.integrations.{module} needs more than bpr: pip install 'binary-passage-retriever[{name}]'"
    assert wanted in done.stderr.splitlines()[-1]
