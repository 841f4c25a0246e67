"""The public surface is this list; whoever changes it changes this test."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bpr

ROOT = Path(__file__).parent.parent

ERRORS = [
    "BprError",
    "BundleLocked",
    "Cancelled",
    "CorruptBundle",
    "DeadlineExceeded",
    "EmptyBundle",
    "InvalidInput",
    "MissingBundle",
    "ModelMismatch",
    "Overloaded",
    "StorageError",
    "UnsupportedFormat",
]
LAZY = {
    "Answer": "bpr.records",
    "Cancel": "bpr.kernels",
    "Encoder": "bpr.encoder",
    "CellIndex": "bpr.index.cells",
    "HashIndex": "bpr.index.hash",
    "Hit": "bpr.records",
    "Hits": "bpr.records",
    "Passage": "bpr.records",
    "Questions": "bpr.codes",
    "Reader": "bpr.reader",
    "Retriever": "bpr.retriever",
    "ScanIndex": "bpr.index.scan",
    "Transform": "bpr.transform",
    "add": "bpr.live",
    "build": "bpr.builder",
    "compact": "bpr.live",
    "delete": "bpr.live",
    "open": "bpr.retriever",
    "pack": "bpr.codes",
    "pack_magnitudes": "bpr.codes",
    "search": "bpr.stages",
    "tune": "bpr.tuning",
    "unpack": "bpr.codes",
}


def test_the_public_names() -> None:
    assert sorted(bpr.__all__) == sorted([*ERRORS, *LAZY, "__version__"])
    assert dir(bpr) == sorted(bpr.__all__)


@pytest.mark.parametrize("name", sorted([*ERRORS, *LAZY]))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(bpr, name)
    assert value.__name__ == name
    assert value.__module__ == LAZY.get(name, "bpr.errors")
    assert len(inspect.getdoc(value) or "") > 20
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and inspect.isroutine(member):
                assert inspect.getdoc(member), f"{name}.{attribute} has no docstring"


def test_a_lazy_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = bpr.pack
    monkeypatch.setitem(bpr._HOMES, "pack", "nowhere")
    assert bpr.pack is first


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'bpr' has no attribute 'fly'"):
        _ = bpr.fly
    assert not hasattr(bpr, "_native_something")


def test_a_star_import_gives_every_public_name() -> None:
    script = "from bpr import *\nprint(sorted(set(globals()) & set(__import__('bpr').__all__)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sorted(bpr.__all__))


def test_the_version_is_the_one_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', project, re.MULTILINE)[1] == bpr.__version__


def test_importing_bpr_imports_nothing_heavy() -> None:
    script = """
import sys
import bpr
heavy = {"numpy", "faiss", "torch", "onnxruntime", "tokenizers", "typer", "rich"}
heavy |= {"bpr._native", "bpr.kernels", "bpr.bundle"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
dir(bpr), bpr.InvalidInput
assert "numpy" not in sys.modules
bpr.pack
assert "numpy" in sys.modules
assert "bpr._native" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_serving_needs_no_torch(tiny_model: Path, tmp_path: Path) -> None:
    """Text in, hits out, with what the plain install brings: torch and the like are made impossible to import."""
    script = f"""
import sys
for name in ("torch", "transformers", "safetensors", "onnx", "faiss", "bm25s"):
    sys.modules[name] = None
import bpr
path, texts = {str(tmp_path / "a.bpr")!r}, ["homer wrote", "the moon"]
bpr.build([{{"id": text, "text": text}} for text in texts], path, model={str(tiny_model)!r})
print(len(bpr.open(path).search("who wrote")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_vectors_of_yours_need_no_onnxruntime(tmp_path: Path) -> None:
    script = f"""
import sys
import numpy as np
import bpr
bpr.build([{{"id": "a", "text": "x"}}], {str(tmp_path / "a.bpr")!r}, vectors=np.ones((1, 8)))
bpr.open({str(tmp_path / "a.bpr")!r}).search(vectors=np.ones(8))
assert not {{"onnxruntime", "tokenizers", "torch"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
