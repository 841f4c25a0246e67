"""Bundles of every format version that was ever written open for ever and give what they gave then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bpr

GOLDEN = Path(__file__).parent / "golden"
BUNDLES = sorted(GOLDEN.glob("*.bpr"))


def test_there_is_one_of_each_kind():
    assert {path.stem for path in BUNDLES} >= {
        "v1-one-plane",
        "v1-two-planes",
        "v1-live-one-plane",
        "v1-live-two-planes",
    }


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.stem)
def test_an_old_bundle_gives_what_it_gave(path, tmp_path):
    shutil.copytree(path, tmp_path / path.name)
    expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with bpr.open(tmp_path / path.name, verify="all") as retriever:
        found = retriever.search(vectors=np.array(expected["question"], np.float32), k=5)
        assert retriever.passages.row("passage 7") == 7
    for hits, then in zip(found, expected["hits"], strict=True):
        assert [hit.id for hit in hits] == [hit["id"] for hit in then]
        assert [hit.to_dict() | {"score": 0} for hit in hits] == [hit | {"score": 0} for hit in then]
        np.testing.assert_allclose([hit.score for hit in hits], [hit["score"] for hit in then], rtol=1e-5)
