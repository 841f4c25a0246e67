"""Haystack's own tests of a document store, and what they do not ask: titles, filters as bpr has them, pipelines."""

from __future__ import annotations

import asyncio
import runpy
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.testing.document_store import CountDocumentsByFilterTest, DocumentStoreBaseExtendedTests
from haystack.utils.filters import document_matches_filter

import bpr
from bpr.errors import InvalidInput
from bpr.integrations.haystack import BprDocumentStore, BprRetriever

ROOT = Path(__file__).parent.parent.parent


class TestHaystacksOwn(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    @pytest.fixture
    def document_store(self, tmp_path: Path, tiny_model: Path) -> BprDocumentStore:
        return BprDocumentStore(tmp_path / "docs.bpr", model=tiny_model)

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """But for embeddings, which are not kept: bpr makes its own codes."""
        assert received == [replace(each, embedding=None) for each in expected]

    def test_write_documents(self, document_store: BprDocumentStore) -> None:
        """Haystack leaves the default to each store: here an id that is there already is an error."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError, match=f"{document.id}' already"):
            document_store.write_documents([document])
        self.assert_documents_are_equal(document_store.filter_documents(), [document])

    def test_delete_all_documents_without_recreate_index(self, document_store: BprDocumentStore) -> None:
        """Haystack asks what a parameter recreate_index=False does; bpr always does that: the bundle stays."""
        document_store.write_documents([Document(content="first")])
        made = bpr.open(document_store.store.path).info["model"]
        document_store.delete_all_documents()
        another = BprDocumentStore(document_store.store.path)  # is not told the model: the bundle knows it
        another.write_documents([Document(content="second")])
        assert bpr.open(document_store.store.path).info["model"] == made
        assert document_store.count_documents() == 1

    def test_delete_all_documents_with_recreate_index(self, document_store: BprDocumentStore) -> None:
        """And what recreate_index=True does; bpr has no such parameter."""
        with pytest.raises(TypeError, match="recreate_index"):
            document_store.delete_all_documents(recreate_index=True)


@pytest.fixture
def store(tmp_path: Path, tiny_model: Path) -> BprDocumentStore:
    return filled(BprDocumentStore(tmp_path / "x.bpr", model=tiny_model, words=True))


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> BprDocumentStore:
    """The same, for those who only read."""
    return filled(BprDocumentStore(tmp_path_factory.mktemp("settled") / "x.bpr", model=tiny_model))


def filled(store: BprDocumentStore) -> BprDocumentStore:
    store.write_documents(
        [
            Document(id="a", content="the red house", meta={"n": 1, "on": "2020-01-05", "tags": ["x", "y"]}),
            Document(id="b", content="a green tree", meta={"n": 2.5, "on": "2021-01-05", "by": {"name": "Ann"}}),
            Document(id="c", content="blue water", meta={"n": None, "title": "Sea", "and": True}),
        ]
    )
    return store


def ids(documents: list[Document]) -> str:
    return "".join(each.id for each in documents)


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_documents_come_back_as_they_were_written_and_a_title_is_encoded(store: BprDocumentStore) -> None:
    assert store.filter_documents()[2] == Document(
        id="c", content="blue water", meta={"n": None, "title": "Sea", "and": True}
    )
    assert bpr.open(store.store.path).passages.get([2])[0].title == "Sea"


@pytest.mark.parametrize(
    ("document", "flaw"),
    [
        (Document(id="e", embedding=[0.1] * 768), "document 'e' has no content"),
        (Document(id="f", content="text", blob=ByteStream(b"bytes")), "document 'f' has a blob"),
    ],
)
def test_what_is_no_text_is_refused_and_nothing_is_written(
    store: BprDocumentStore, document: Document, flaw: str
) -> None:
    with pytest.raises(ValueError, match=flaw):
        store.write_documents([Document(content="fine"), document])
    assert store.count_documents() == 3


def test_policies_hold_for_twins_in_one_call_too(store: BprDocumentStore) -> None:
    twins = [Document(id="d", content="one"), Document(id="d", content="two"), Document(id="a", content="new")]
    with pytest.raises(DuplicateDocumentError, match="'d' stands twice"):
        store.write_documents(twins, policy=DuplicatePolicy.FAIL)
    assert store.write_documents(twins, policy=DuplicatePolicy.SKIP) == 1
    assert [each.content for each in store.filter_documents()][-1] == "one"
    assert store.write_documents(twins, policy=DuplicatePolicy.OVERWRITE) == 3
    assert [each.content for each in store.filter_documents()][-2:] == ["two", "new"]
    assert store.write_documents([]) == 0


def test_two_stores_of_one_path_see_each_others_writes(store: BprDocumentStore) -> None:
    other = BprDocumentStore(store.store.path)  # the bundle knows its model
    assert other.count_documents() == 3
    store.delete_documents(["a", "b", "c", "nobody"])
    assert other.count_documents() == 0
    assert other.filter_documents({"field": "meta.n", "operator": "==", "value": 1}) == []
    assert BprRetriever(other).run("house") == {"documents": []}
    store.write_documents([Document(id="z", content="gold")])
    assert ids(BprRetriever(other).run("gold")["documents"]) == "z"


# ── Filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "operator", "value", "found"),
    [
        ("meta.n", "==", 2.5, "b"),
        ("n", "==", 1, "a"),
        ("meta.n", "==", None, "c"),
        ("meta.n", "!=", None, "ab"),
        ("meta.n", "in", [1, None, "one"], "ac"),
        ("meta.n", "not in", [1, "one"], "bc"),
        ("meta.n", "==", "1", ""),
        ("meta.n", "!=", "1", "abc"),
        ("meta.on", ">", "2020-06-01", "b"),
        ("meta.on", "<=", date(2020, 1, 5), "a"),
        ("meta.on", "in", [date(2021, 1, 5)], "b"),
        ("meta.by.name", "==", "Ann", "b"),
        ("meta.by.name", "!=", "Ann", "ac"),
        ("meta.by", "==", None, "ac"),
        ("meta.and", "==", True, "c"),
        ("meta.archived", "==", True, ""),
        ("meta.archived", "!=", True, "abc"),
        ("meta.archived", "==", None, "abc"),
        ("meta.archived", "in", [], ""),
        ("meta.archived", ">", 3, ""),
    ],
)
def test_filters_mean_what_haystack_says(
    settled: BprDocumentStore, field: str, operator: str, value: Any, found: str
) -> None:
    test = {"field": field, "operator": operator, "value": value}
    everything = settled.filter_documents()
    assert ids(settled.filter_documents(test)) == found
    assert ids(settled.filter_documents({"operator": "NOT", "conditions": [test]})) == ids(
        [each for each in everything if each.id not in found]
    )
    assert sorted(ids(BprRetriever(settled).run("house", filters=test)["documents"])) == list(found)
    if not any(isinstance(each, date) for each in (value if isinstance(value, list) else [value])):
        assert ids([each for each in everything if document_matches_filter(test, each)]) == found


def test_a_list_holds_each_of_its_values(settled: BprDocumentStore) -> None:
    """Haystack compares the list as a whole; bpr's filters look into it."""
    assert ids(settled.filter_documents({"field": "meta.tags", "operator": "==", "value": "y"})) == "a"


@pytest.mark.parametrize(
    ("filters", "flaw"),
    [
        ({"field": "id", "operator": "==", "value": "a"}, "bpr filters on the meta of documents, and 'id' is none"),
        ({"field": "meta.n", "operator": "like", "value": "a"}, "there is no operator 'like'"),
        ({"field": "meta.n", "operator": "<", "value": "2020-01-01"}, "'n' holds numbers: '<' cannot compare it"),
        ({"field": "meta.on", "operator": "<", "value": "soon"}, "compares numbers and dates"),
        ({"field": "meta.n", "operator": "==", "value": {"a": 1}}, "compares with a string, number"),
        ({"operator": "XOR", "conditions": []}, "'XOR' does not join conditions"),
        ({"operator": "AND", "conditions": ["n"]}, "a filter is a dict, not str"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_an_error(
    settled: BprDocumentStore, filters: dict[str, Any], flaw: str
) -> None:
    with pytest.raises(FilterError, match=flaw):
        settled.filter_documents(filters)


# ── The retriever ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_found_documents_have_their_scores_best_first(tmp_path: Path, bundle: Path) -> None:
    found = BprRetriever(BprDocumentStore(bundle), top_k=2).run("who wrote the Iliad?")["documents"]
    hits = bpr.open(bundle).search("who wrote the Iliad?", k=2)
    assert [(each.id, each.score) for each in found] == [(hit.id, hit.score) for hit in hits]
    assert found[0].id == "homer"
    assert found[0].meta == {"title": "Homer", "year": -750}


def test_a_run_changes_top_k_and_filters_as_the_policy_says(store: BprDocumentStore) -> None:
    first, second = ({"field": "meta.n", "operator": operator, "value": 1} for operator in (">", ">="))
    assert ids(BprRetriever(store, filters=first).run("house")["documents"]) == "b"
    assert len(BprRetriever(store, filters=first).run("house", filters=second)["documents"]) == 2
    merging = BprRetriever(store, filters=first, filter_policy=FilterPolicy.MERGE)
    other = {"field": "meta.on", "operator": "==", "value": "2020-01-05"}
    assert merging.run("house", filters=other) == {"documents": []}
    assert len(merging.run("house", top_k=0)["documents"]) == 0


def test_settings_are_those_of_a_search(store: BprDocumentStore) -> None:
    by_words_too = BprRetriever(store, top_k=1, settings={"hybrid": "reciprocal", "timeout": 60})
    assert ids(by_words_too.run("green tree")["documents"]) == "b"
    with pytest.raises(InvalidInput, match="no option 'scale_score'"):
        BprRetriever(store, settings={"scale_score": True})
    with pytest.raises(TypeError, match="searches a BprDocumentStore, not str"):
        BprRetriever("x.bpr")


async def test_asynchronous_runs_find_the_same(store: BprDocumentStore) -> None:
    retriever = BprRetriever(store)
    found = await asyncio.gather(*(retriever.run_async(each, top_k=2) for each in ("house", "tree")))
    assert list(found) == [retriever.run(each, top_k=2) for each in ("house", "tree")]


def test_pipelines_are_written_to_a_file_and_read_again(store: BprDocumentStore) -> None:
    pipeline = Pipeline()
    settings = {"candidates": 50}
    filters = {"field": "meta.n", "operator": ">", "value": 1}
    pipeline.add_component("retriever", BprRetriever(store, filters=filters, top_k=2, settings=settings))
    pipeline.add_component("writer", DocumentWriter(store, policy=DuplicatePolicy.OVERWRITE))
    pipeline.connect("retriever.documents", "writer.documents")
    written = pipeline.dumps()
    again = Pipeline.loads(written, allowed_modules=["bpr.integrations.haystack"])
    assert again.dumps() == written
    assert again.run({"retriever": {"query": "house"}})["writer"]["documents_written"] == 1
    assert again.get_component("retriever").settings == settings
    assert ids(store.filter_documents()) == "acb"  # what is overwritten stands at the end


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "haystack_rag.py"))
    assert capsys.readouterr().out.splitlines()[0] == "Answer from this alone: Homer wrote the Iliad."
