"""Model folders to and from the hub: local folders, the hub's cache as it lies on disk, and a hub on this machine."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpr
from bpr import model as models
from bpr.errors import InvalidInput
from bpr.integrations.huggingface import NAMES, download, from_pretrained, push_to_hub, save_pretrained, verified
from tiny_models import make_reader

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAIRS = [("iliad", "homer wrote the epic poem"), ("", "the capital of france is paris")]


@pytest.fixture
def copy(tmp_path: Path, tiny_model: Path) -> Path:
    """A model folder that a test may damage."""
    return save_pretrained(tiny_model, tmp_path / "copy")


def cached(cache: Path, model: Path) -> Path:
    """The hub's cache after this model was fetched from nobody/tiny; its snapshot."""
    repository = cache / "models--nobody--tiny"
    snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
    blobs.mkdir(parents=True)
    for file in filter(Path.is_file, model.rglob("*")):
        name = file.relative_to(model)
        blob = blobs / models.sha256(file)
        shutil.copyfile(file, blob)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(Path(*[".."] * (len(name.parts) + 1)) / "blobs" / blob.name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mini_is_the_same_model_after_it_was_saved_and_opened_again(tmp_path: Path) -> None:
    before = bpr.Encoder.open("mini")
    assert save_pretrained(before, tmp_path / "saved") == tmp_path / "saved"
    after = from_pretrained(tmp_path / "saved")
    assert after.fingerprint == before.fingerprint == from_pretrained("mini").fingerprint
    np.testing.assert_array_equal(after.passages(PAIRS), before.passages(PAIRS))
    assert {file.name for file in (tmp_path / "saved").iterdir()} >= {"reader.json", "reader.onnx", "README.md"}


def test_only_what_belongs_to_a_model_is_saved(copy: Path, tmp_path: Path) -> None:
    make_reader(copy)
    (copy / "ledger.jsonl").write_text("{}\n")
    (copy / "checkpoint.pt").write_bytes(b"a pickle")
    save_pretrained(copy, tmp_path / "saved")
    saved = {file.relative_to(tmp_path / "saved").as_posix() for file in tmp_path.glob("saved/**/*") if file.is_file()}
    assert saved <= set(NAMES) and {"reader_encoder/head.safetensors", "passage_encoder/model.safetensors"} <= saved
    with pytest.raises(InvalidInput, match="is not empty"):
        save_pretrained(copy, tmp_path / "saved")
    with pytest.raises(InvalidInput, match="is no model in a folder"):
        save_pretrained(object(), tmp_path / "other")


def test_a_model_from_elsewhere_with_a_stranger_in_it_is_refused(copy: Path) -> None:
    for name in ("LICENSE", ".gitattributes", ".cache/huggingface/x.lock"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("")
    assert verified(copy) == copy
    for name in ("pytorch_model.bin", "passage_encoder/modeling.py", "passage_encoder/adapter_config.json"):
        (copy / name).write_text("{}")
        with pytest.raises(InvalidInput, match=f"{re.escape(name)} belongs to no bpr model"):
            from_pretrained(copy)
        (copy / name).unlink()


@pytest.mark.parametrize("name", ["passage.onnx", "tokenizer.json", "question_encoder/model.safetensors"])
def test_a_changed_or_missing_file_is_refused_before_it_is_opened(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[-1] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=r"not the file that bpr\.json describes"):
        from_pretrained(copy)
    (copy / name).unlink()
    with pytest.raises(InvalidInput, match="is missing"):
        from_pretrained(copy)


def test_a_card_may_be_written_by_people(copy: Path) -> None:
    (copy / "README.md").write_text("---\nlicense: mit\n---\nMine.\n")
    assert from_pretrained(copy).fingerprint == models.load(copy)[0].fingerprint


@pytest.mark.parametrize("name", ["../outside.json", "/etc/hostname", "passage_encoder/pytorch_model.bin"])
def test_a_bpr_json_that_names_other_files_is_refused(copy: Path, name: str) -> None:
    facts = json.loads((copy / "bpr.json").read_text())
    facts["files"][name] = {"bytes": 1, "sha256": "0"}
    (copy / "bpr.json").write_text(json.dumps(facts))
    for take in (from_pretrained, lambda folder: save_pretrained(folder, copy.parent / "out")):
        with pytest.raises(InvalidInput, match="which no bpr model has"):
            take(copy)


def test_links_out_of_the_folder_are_refused(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "passage.onnx", tmp_path / "elsewhere.onnx")
    (copy / "passage.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(InvalidInput, match=r"passage\.onnx is a link"):
        from_pretrained(copy)
    (copy / "passage.onnx").unlink()
    shutil.move(tmp_path / "elsewhere.onnx", copy / "passage.onnx")
    shutil.move(copy / "passage_encoder", tmp_path / "encoder")
    (copy / "passage_encoder").symlink_to(tmp_path / "encoder")
    with pytest.raises(InvalidInput, match="passage_encoder is a link"):
        from_pretrained(copy)


# ── The hub's cache ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_in_the_hubs_cache_is_opened_without_the_network(tmp_path: Path, tiny_model: Path) -> None:
    snapshot = cached(tmp_path / "cache", tiny_model)
    how: dict[str, Any] = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    assert download("nobody/tiny", **how) == download("nobody/tiny", revision=COMMIT, **how) == snapshot
    encoder, ours = from_pretrained("nobody/tiny", **how), bpr.Encoder.open(tiny_model)
    np.testing.assert_array_equal(encoder.passages(PAIRS), ours.passages(PAIRS))
    bpr.build([{"id": "a", "text": "the moon"}], tmp_path / "x.bpr", model=encoder)
    with bpr.open(tmp_path / "x.bpr") as opened:  # the bundle finds its model in the cache
        assert opened.search("moon", k=1)[0].id == "a"
    for name, revision in (("nobody/other", None), ("nobody/tiny", "v2"), ("not a name", None)):
        with pytest.raises(InvalidInput, match="the hub's client says"):
            download(name, revision=revision, **how)


def test_a_link_of_the_cache_that_leads_out_of_it_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    snapshot = cached(tmp_path / "cache", tiny_model)
    (snapshot / "passage.onnx").unlink()
    (snapshot / "passage.onnx").symlink_to(tiny_model / "passage.onnx")
    with pytest.raises(InvalidInput, match=r"passage\.onnx is a link"):
        from_pretrained("nobody/tiny", cache_dir=tmp_path / "cache", local_files_only=True)


# ── A hub on this machine ────────────────────────────────────────────────────────────────────────────────────────────


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as an upload of small files needs."""

    files: dict[str, bytes]
    refuses = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.refuses:
            self._reply({"error": "no"}, 403)
        elif self.path == "/api/repos/create":
            assert json.loads(body)["name"] == "tiny" and json.loads(body)["organization"] == "nobody"
            self._reply({"url": self._address(), "name": "nobody/tiny"})
        elif self.path == "/api/models/nobody/tiny/preupload/main":
            paths = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            self._reply({"files": modes})
        elif self.path == "/api/models/nobody/tiny/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._reply({"success": True, "commitOid": COMMIT, "commitUrl": f"{self._address()}/commit/{COMMIT}"})
        else:
            self._reply({}, 200 if self.path == "/api/validate-yaml" else 404)

    def do_GET(self) -> None:
        self._reply({"error": "not here"}, 404)

    def _address(self) -> str:
        return f"http://{self.headers['host']}/nobody/tiny"

    def _reply(self, answer: Any, status: int = 200) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[type[Hub], str]]:
    handler = type("OneHub", (Hub,), {"files": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_is_pushed_is_the_model_and_nothing_else(
    hub: tuple[type[Hub], str], copy: Path, tmp_path: Path, tiny_model: Path
) -> None:
    (copy / "optimizer.pt").write_bytes(b"a pickle")
    handler, address = hub
    commit = push_to_hub(copy, "nobody/tiny", token="hf_a", endpoint=address)
    assert commit == f"{address}/nobody/tiny/commit/{COMMIT}"
    assert {"bpr.json", "passage.onnx", "question_encoder/model.safetensors"} <= set(handler.files) <= set(NAMES)
    for name, content in handler.files.items():
        (tmp_path / "got" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "got" / name).write_bytes(content)
    assert from_pretrained(tmp_path / "got").fingerprint == models.load(tiny_model)[0].fingerprint


def test_a_hub_that_says_no_is_one_line(hub: tuple[type[Hub], str], copy: Path, tmp_path: Path) -> None:
    handler, address = hub
    handler.refuses = True
    with pytest.raises(InvalidInput, match="nobody/tiny could not be written: the hub's client says") as refused:
        push_to_hub(copy, "nobody/tiny", token="hf_a", endpoint=address)
    assert "\n" not in str(refused.value)
    with pytest.raises(InvalidInput, match="there is no folder nobody/tiny, and the hub's client says"):
        download("nobody/tiny", cache_dir=tmp_path, token=False, endpoint=address)


def test_without_the_package_the_message_names_the_extra() -> None:
    code = "import sys; sys.modules['huggingface_hub'] = None; import bpr.integrations.huggingface"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'binary-passage-retriever[huggingface]'" in done.stderr
