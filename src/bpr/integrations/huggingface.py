"""Model folders to and from the Hugging Face hub, and its cache. Users call it.

    encoder = from_pretrained("someone/a-bpr-model", revision="v1")     # or a folder, or "mini"
    bpr.build("passages.tsv", "wiki.bpr", model=encoder)
    save_pretrained(encoder, "folder"); push_to_hub(encoder, "me/my-model")

What comes from elsewhere is taken only if it is a bpr model and nothing else: JSON, ONNX and safetensors by their
names, each with the sum that bpr.json or reader.json gives, and no link but the cache's own. Nothing of it is run as
code. Knows model folders as model.py and reader.py describe them; fetching is the hub's own client's.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from .. import model as models
from .. import reader as readers
from ..disk import storage_error
from ..encoder import Encoder
from ..errors import InvalidInput

try:
    from huggingface_hub import HfApi
except ImportError as error:
    raise ImportError(
        "bpr.integrations.huggingface needs huggingface_hub: "
        f"pip install 'binary-passage-retriever[huggingface]' ({error})",
        name="huggingface_hub",
    ) from error

_SIDES = ("question", "passage", "reader")
# All that a model folder may hold.
NAMES = [
    models.CONFIG, models.TOKENIZER, models.CARD, readers.CONFIG,
    *(f"{side}.onnx" for side in _SIDES),
    *(f"{side}_encoder/{file}" for side in _SIDES for file in ("config.json", "model.safetensors", "head.safetensors")),
]  # fmt: skip
# What lies beside it without being read: for people, or the hub's and git's own.
BESIDE = re.compile(r"LICENSE(\.txt|\.md)?|\.gitattributes|\.cache/huggingface/.*")


def from_pretrained(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    endpoint: str | None = None,
    threads: int | None = None,
) -> Encoder:
    """The encoder of a model: from a folder, or from the hub (owner/name), checked as `download` says."""
    how: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "local_files_only": local_files_only}
    return Encoder.open(download(name, token=token, endpoint=endpoint, **how), threads)


def download(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> Path:
    """The folder of a model, every byte of it checked: `name` itself if it is one, else fetched from the hub.

    revision: a branch, tag or commit. local_files_only: only what is in the cache already; nothing is asked of the
    network. cache_dir, token, endpoint: as for huggingface_hub, whose defaults they have.
    """
    folder = models.resolve(name)
    if folder.exists():
        return verified(folder)
    try:
        found = HfApi(endpoint=endpoint, library_name="bpr", library_version=__version__).snapshot_download(
            str(name),
            revision=revision,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            token=token,
            allow_patterns=NAMES,
        )
    except Exception as error:  # the client's and its HTTP library's errors have no common class but this
        raise InvalidInput(f"there is no folder {name}, and the hub's client says: {_first(error)}") from error
    return verified(Path(found))


def save_pretrained(model: str | Path | Encoder, folder: str | Path) -> Path:
    """Copy a model to a new folder: the files that belong to it, checked, and no others."""
    source = _folder(model)
    target = Path(folder)
    files = _files(source)
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise InvalidInput(f"{target} is not empty: name a new folder for the model")
        for name in sorted(files, key=models.CONFIG.__eq__):  # bpr.json last: without it the folder is no model
            _check(source, name, files)
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise storage_error("write", target, error) from error
    return verified(target)


def push_to_hub(
    model: str | Path | Encoder,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Upload a model of bpr",
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload a model, as `save_pretrained` would copy it, to a repository on the hub; the address of the commit.

    A repository that is not there is made (private: only for you). What else is in it stays.
    """
    api = HfApi(endpoint=endpoint, token=token, library_name="bpr", library_version=__version__)
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_pretrained(model, Path(scratch) / "model")
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo_id, folder_path=folder, revision=revision, commit_message=message, allow_patterns=NAMES
            )
        except Exception as error:  # as above
            raise InvalidInput(f"{repo_id} could not be written: the hub's client says: {_first(error)}") from error
    return str(done.commit_url)


def verified(folder: str | Path) -> Path:
    """The same folder, if it is a bpr model and nothing else, and every file has its sum; else InvalidInput."""
    home = Path(folder)
    files = _files(home)
    for root, folders, names in os.walk(home):
        for each in (*folders, *names):
            path = Path(root) / each
            name = path.relative_to(home).as_posix()
            if path.is_symlink() and not _cached(home, path):
                raise InvalidInput(f"{path} is a link: a model from elsewhere must be a folder of files")
            if each in names and name not in files and not BESIDE.fullmatch(name):
                raise InvalidInput(f"{path} belongs to no bpr model: take it away, or do not trust this folder")
    for name in files:
        _check(home, name, files)
    return home


def _folder(model: str | Path | Encoder) -> Path:
    if isinstance(model, str | Path):
        return models.resolve(model)
    if not isinstance(getattr(model, "folder", None), Path):
        raise InvalidInput(f"{type(model).__name__} is no model in a folder: give the folder, or a bpr.Encoder")
    return model.folder


def _files(folder: Path) -> dict[str, Mapping[str, Any] | None]:
    """The files of a model (and of a reader beside it) with their sums; None where there is none to compare with.

    The card is for people, who change it: the hub asks them to.
    """
    files: dict[str, Mapping[str, Any] | None] = {models.CONFIG: None, **models.load(folder)[1]}
    if (folder / readers.CONFIG).exists():
        files |= {readers.CONFIG: None, **readers.load_model(folder)[1]}
    for name in files:
        if name not in NAMES:
            raise InvalidInput(f"{folder} names the file {name!r}, which no bpr model has")
    files.pop(models.CARD, None)
    return {**files, **({models.CARD: None} if (folder / models.CARD).is_file() else {})}


def _check(folder: Path, name: str, files: Mapping[str, Mapping[str, Any] | None]) -> None:
    """InvalidInput unless the file is there, with its sum."""
    facts = files[name]
    if facts is not None:
        models.check_file(folder, name, {name: facts})


def _cached(folder: Path, path: Path) -> bool:
    """Whether a link is one that the hub's cache makes: snapshots/COMMIT/NAME → blobs/SUM of the same repository."""
    blobs = folder.parent.parent / "blobs"
    return folder.parent.name == "snapshots" and path.resolve().parent == blobs.resolve() and path.is_file()


def _first(error: Exception) -> str:
    """Its first line, which says what is wrong; the others advise."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
