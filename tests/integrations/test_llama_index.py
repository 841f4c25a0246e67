"""A bundle behind LlamaIndex's retriever: nodes, filters, vectors of one's own, asynchronous calls, query engines."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import MetadataMode, QueryBundle

import bpr
from bpr.errors import DeadlineExceeded, InvalidInput
from bpr.integrations.llama_index import BprRetriever

ROOT = Path(__file__).parent.parent.parent


def test_a_node_has_the_passages_id_text_title_and_fields_and_its_score(bundle: Path) -> None:
    found = BprRetriever(bundle, k=2).retrieve("who wrote the Iliad?")
    hits = bpr.open(bundle).search("who wrote the Iliad?", k=2)
    assert [(each.node_id, each.score) for each in found] == [(hit.id, hit.score) for hit in hits]
    assert found[0].node_id == "homer"
    assert found[0].text == "Homer wrote the Iliad, an epic poem of the war at Troy."
    assert found[0].metadata == {"title": "Homer", "year": -750}
    assert found[0].get_content(MetadataMode.LLM).startswith("title: Homer\nyear: -750\n\nHomer wrote")


def test_settings_are_those_of_a_search(bundle: Path) -> None:
    opened = bpr.open(bundle)
    after = BprRetriever(opened, where={"year": {">": 1900}}, hybrid=True)
    assert {each.node_id for each in after.retrieve("who wrote the Iliad?")} == {"paris", "moon"}
    assert after.retriever is opened
    with pytest.raises(InvalidInput, match="a search has no option 'top_k'"):
        BprRetriever(opened, top_k=3)
    with pytest.raises(DeadlineExceeded):
        BprRetriever(opened, timeout=0).retrieve("the Moon")


async def test_asynchronous_calls_find_the_same(bundle: Path) -> None:
    retriever = BprRetriever(bundle, k=3)
    assert await retriever.aretrieve("the Moon") == retriever.retrieve("the Moon")


def test_a_bundle_of_vectors_is_asked_with_the_embedding_of_the_question(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    bpr.build([{"id": str(row), "text": f"passage {row}"} for row in range(50)], tmp_path / "x.bpr", vectors=vectors)
    retriever = BprRetriever(tmp_path / "x.bpr", k=1, use_embedding=True)
    asked = QueryBundle("which?", embedding=vectors[7].tolist())
    assert [each.node_id for each in retriever.retrieve(asked)] == ["7"]
    with pytest.raises(InvalidInput, match=r"ask with QueryBundle\(…, embedding="):
        retriever.retrieve("which?")
    with pytest.raises(InvalidInput, match="built from vectors of yours and cannot read text"):
        BprRetriever(tmp_path / "x.bpr").retrieve(asked)


def test_the_embedding_is_left_alone_unless_it_is_asked_for(bundle: Path) -> None:
    asked = QueryBundle("the Moon", embedding=[1.0, 2.0])  # of some other model
    assert BprRetriever(bundle, k=1).retrieve(asked)[0].node_id == "moon"


def test_llama_index_sees_every_retrieval(bundle: Path) -> None:
    seen = LlamaDebugHandler(print_trace_on_end=False)
    BprRetriever(bundle, k=1, callback_manager=CallbackManager([seen])).retrieve("the Moon")
    assert len(seen.get_event_pairs(CBEventType.RETRIEVE)) == 1


def test_it_can_be_one_of_several_retrievers(bundle: Path) -> None:
    both = [BprRetriever(bundle, k=2), BprRetriever(bundle, k=2, hybrid=True)]
    fused = QueryFusionRetriever(both, num_queries=1, similarity_top_k=1, use_async=False, llm=MockLLM())
    assert [each.node_id for each in fused.retrieve("who wrote the Iliad?")] == ["homer"]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "llama_index_rag.py"))
    assert "year: 1900\n\nHomer wrote the Iliad." in capsys.readouterr().out
