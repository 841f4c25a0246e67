"""The walls between the rooms of src/bpr and native/, read from the sources."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bpr"
NATIVE = ROOT / "native"

# A module imports only from those that stand before it (docs/architecture.md draws it).
ORDER = [
    "errors",
    "records",
    "answers",
    "codes",
    "filters",
    "kernels",
    "transform",
    "disk",
    "parts",
    "model",
    "bundle",
    "columns",
    "lexical",
    "fusion",
    "vectors",
    "textfiles",
    "idmap",
    "layouts",
    "questions",
    "evaluation",
    "passages",
    "documents",
    "index",
    "kinds",
    "stages",
    "segments",
    "pieces",
    "spans",
    "onnxfile",
    "bert",
    "encoder",
    "reader",
    "given",
    "bundlemodel",
    "builder",
    "live",
    "snapshot",
    "retriever",
    "shards",
    "tuning",
    "answering",
    "runs",
    "interchange",
    "plots",
    "health",
    "peers",
    "baselines",
    "bench",
    "demo",
    "training",
    "compare",
    "service",
    "integrations",
    "cluster",
    "terminal",
    "cli",
]
# Foreign package → all rooms, or single files, that know it. numpy is everybody's.
OWNERS = {
    "faiss": {"peers"},
    "usearch": {"peers"},
    "ir_measures": {"evaluation"},
    "matplotlib": {"plots"},
    "zstandard": {"textfiles"},
    "typer": {"cli"},
    "rich": {"terminal"},
    "bpr._native": {"kernels"},
    "onnxruntime": {"encoder", "training/export.py"},
    "tokenizers": {"pieces", "training/foreign.py"},
    "torch": {"training"},
    "transformers": {"training"},
    "triton": {"training/shorttexts.py"},
    "safetensors": {"training"},
    "onnx": {"training"},
    "bm25s": {"training/negatives.py"},
    "numba": {"training/negatives.py"},
    "tomli": {"training/recipe.py"},
    "bpr.training": {
        "training",
        "cli",
        "cluster/encoding.py",
        "compare/ablations.py",
        "integrations/sentence_transformers.py",
    },
    "fastapi": {"service/app.py"},
    "starlette": {"service/app.py"},
    "pydantic": {"service/schemas.py", "integrations/mcp.py"},
    "uvicorn": {"service/connection.py", "service/server.py"},
    "prometheus_client": {"service/metrics.py"},
    "mcp": {"integrations/mcp.py"},
    "langchain_core": {"integrations/langchain.py"},
    "llama_index": {"integrations/llama_index.py"},
    "haystack": {"integrations/haystack.py"},
    "sentence_transformers": {"integrations/sentence_transformers.py"},
    "ray": {"cluster/encoding.py", "cluster/fleet.py", "cluster/rays.py"},
    "huggingface_hub": {"integrations/huggingface.py", "training/run.py", "cli/training.py"},
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.hub.load", "torch.jit.load", "torch.package"}

FILES = sorted(SOURCE.rglob("*.py"))
in_every_file = pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(SOURCE)) for file in FILES])


def room_of(file: Path) -> str:
    """bundle/view.py and bundle/__init__.py → bundle; the package's own __init__.py → bpr."""
    first = file.relative_to(SOURCE).parts[0]
    return "bpr" if first == "__init__.py" else first.removesuffix(".py")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, as an absolute name, wherever in the file it does."""
    package = ["bpr", *file.relative_to(SOURCE).parts[:-1]] if file.is_relative_to(SOURCE) else []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*home, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


def own_rooms(file: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports(file) if name.startswith("bpr.")}
    return {name for name in names if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()}


@in_every_file
def test_every_module_is_on_the_map(file: Path) -> None:
    room = room_of(file)
    assert room in [*ORDER, "bpr"], (
        f"{file} is a new room. Put '{room}' into ORDER above, behind all that it imports and before all that import "
        "it, and into docs/architecture.md"
    )


@in_every_file
def test_imports_go_one_way(file: Path) -> None:
    room = room_of(file)
    if room == "bpr":  # lazily all of them; eagerly only the errors
        eager = [node for node in parsed(file).body if isinstance(node, ast.ImportFrom) and node.level]
        assert {node.module for node in eager} == {"errors"}
        return
    allowed = {*ORDER[: ORDER.index(room) + 1]}
    wrong = own_rooms(file) - allowed
    assert not wrong, f"{room} may not import {wrong}: they stand behind it in ORDER"


def of_package(name: str) -> str | None:
    """The package of OWNERS that a module belongs to."""
    return next((each for each in OWNERS if name == each or name.startswith(each + ".")), None)


@in_every_file
def test_foreign_packages_stay_in_their_rooms(file: Path) -> None:
    known = {room_of(file), file.relative_to(SOURCE).as_posix()}
    for name in imports(file):
        package = of_package(name)
        if package is not None:
            assert known & OWNERS[package], f"only {OWNERS[package]} may import {package}"
        else:
            top = name.split(".")[0]
            assert top in {"bpr", "numpy", *sys.stdlib_module_names}, (
                f"{top} is new here: say in OWNERS who may know it"
            )


def test_every_owner_of_a_package_needs_it() -> None:
    importing: dict[str, set[str]] = {package: set() for package in OWNERS}
    for file in FILES:
        for package in filter(None, map(of_package, imports(file))):
            importing[package] |= {room_of(file), file.relative_to(SOURCE).as_posix()}
    idle = {package: owners - importing[package] for package, owners in OWNERS.items() if owners - importing[package]}
    assert not idle, f"these have no import to own: {idle}"


@in_every_file
def test_nothing_that_can_run_data_as_code(file: Path) -> None:
    for name in imports(file):
        assert name.split(".")[0] not in FORBIDDEN_MODULES, f"{file} imports {name}"
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS, f"{file}:{node.lineno} calls {called}"
            keywords = {each.arg: each.value for each in node.keywords}
            if called in ("np.load", "numpy.load", "np.lib.format.read_array"):
                assert "allow_pickle" in keywords, f"{file}:{node.lineno}: say allow_pickle=False"
            if "allow_pickle" in keywords:
                assert ast.unparse(keywords["allow_pickle"]) == "False", f"{file}:{node.lineno}"


@in_every_file
def test_checkpoints_are_unpickled_in_one_place_and_weights_only(file: Path) -> None:
    """torch.load reads pickles: `bpr convert checkpoint` alone may, and even it takes nothing but tensors."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            assert file.relative_to(SOURCE).as_posix() == "training/convert.py", f"{file}:{node.lineno}"
            keywords = {each.arg: ast.unparse(each.value) for each in node.keywords}
            assert keywords.get("weights_only") == "True", f"{file}:{node.lineno}: say weights_only=True"
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            assert "load" not in {each.name for each in node.names}, f"{file}:{node.lineno}: call it torch.load"


# ── What modules say of themselves ───────────────────────────────────────────────────────────────────────────────────

SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tools").glob("*.py")])
SPEAKING = [*FILES, *SCRIPTS, *sorted(NATIVE.glob("*.cpp")), *sorted(NATIVE.glob("*.h"))]
of_every_head = pytest.mark.parametrize("file", SPEAKING, ids=[str(file.relative_to(ROOT)) for file in SPEAKING])


def head(file: Path) -> str:
    """What a file says of itself: a module's docstring, or the comment that a file of C++ begins with."""
    if file.suffix == ".py":
        return ast.get_docstring(parsed(file)) or ""
    return re.match(r"(//.*\n)*", file.read_text(encoding="utf-8"))[0].replace("//", " ")


@of_every_head
def test_every_module_says_what_it_is(file: Path) -> None:
    said = " ".join(head(file).split())
    assert len(said) > 70, f"{file} must begin with what lives there, who calls it and what it must not know"


@of_every_head
def test_every_file_that_a_head_names_is_there(file: Path) -> None:
    rooms = [each for each in SOURCE.iterdir() if each.is_dir()]
    homes = [file.parent, SOURCE, *rooms, SOURCE.parent, NATIVE, ROOT / "benchmarks", ROOT / "docs", ROOT]
    for name in re.findall(r"(?<![\w/.*<>])((?:\w+/)*\w+\.(?:py|cpp|h|md))\b", head(file)):
        assert any((home / name).is_file() for home in homes), f"{file.name} speaks of {name}: where is it?"


CALLERS = re.compile(r"((?:[\w/]+\.py(?:, | and )?)+) calls? it\b")


@in_every_file
def test_who_is_said_to_call_a_module_imports_it(file: Path) -> None:
    inside = ["bpr", *file.relative_to(SOURCE).with_suffix("").parts]
    names = {".".join(inside).removesuffix(".__init__"), ".".join(inside[:-1])} - {"bpr"}  # it, or through its package
    for said in CALLERS.findall(" ".join(head(file).split())):
        for name in re.findall(r"[\w/]+\.py", said):
            caller = next(each for each in (file.parent / name, SOURCE / name, ROOT / name) if each.is_file())
            assert names & {*imports(caller)}, f"{name} is said to call {inside}, and does not import it"


# ── docs/architecture.md ─────────────────────────────────────────────────────────────────────────────────────────────

MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = MAP.split("### One passage,")[1].split("## The rooms")[0]
NAMES = sorted(set(re.findall(r"`((?:\w+\.)+\w+)`", WALKS)))


def test_the_rooms_on_the_map_are_the_rooms_there_are() -> None:
    rows = re.findall(r"^\| `([a-z]+)/?` \|", MAP.split("## The rooms")[1].split("## ")[0], re.MULTILINE)
    assert rows == ORDER


@pytest.mark.parametrize("name", NAMES)
def test_every_name_on_the_walks_exists(name: str) -> None:
    found: Any = importlib.import_module("bpr")
    for part in name.split("."):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"{getattr(found, '__name__', '-')}.{part}")
        found = getattr(found, part)


def test_the_walks_name_most_of_their_steps() -> None:
    assert len(NAMES) > 30 and {name.split(".")[0] for name in NAMES} <= {*ORDER}
    pages = re.findall(r"`(page/[\w.]+)`", WALKS)
    assert pages and all((SOURCE / "service" / page).is_file() for page in pages)


# ── native/ ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CPP = sorted([*NATIVE.glob("*.cpp"), *NATIVE.glob("*.h")])
CMAKE = (ROOT / "CMakeLists.txt").read_text()


@pytest.mark.parametrize("file", CPP, ids=[file.name for file in CPP])
def test_only_the_bindings_know_python(file: Path) -> None:
    python = re.findall(r'#\s*include\s*[<"](Python\.h|nanobind/[^>"]+)[>"]', file.read_text())
    assert bool(python) == (file.name == "bindings.cpp")


@pytest.mark.parametrize("file", CPP, ids=[file.name for file in CPP])
def test_only_the_file_of_an_instruction_set_knows_its_intrinsics(file: Path) -> None:
    wide = re.search(r"#\s*include\s*<(\w*intrin|arm_neon)\.h>|\b_mm\w+\(", file.read_text())
    assert wide is None or file.stem.endswith(("_avx2", "_avx512", "_neon"))


OF_ONE_SET = [file for file in NATIVE.glob("*_*.cpp") if file.stem.endswith(("_portable", "_avx2", "_avx512", "_neon"))]


@pytest.mark.parametrize("file", OF_ONE_SET, ids=lambda file: file.name)
def test_every_instruction_set_is_compiled_with_its_own_flags(file: Path) -> None:
    source = f"native/{file.name}"
    assert source in CMAKE, f"{source} is not built"
    flags = re.search(rf'set_source_files_properties\({source} PROPERTIES\s+COMPILE_OPTIONS "([^"]+)"', CMAKE)
    level = file.stem.rpartition("_")[2]
    if level in ("portable", "neon"):  # what every processor of the architecture has: none of its flags
        assert flags is None or "-m" not in flags[1]
    else:
        assert f"-m{level}" in flags[1]


def test_no_flag_of_one_instruction_set_reaches_the_others() -> None:
    shared = re.sub(r"set_source_files_properties\(native/\w+_(avx2|avx512)\.cpp[^)]*\)", "", CMAKE)
    assert not re.search(r"-march|-mavx|-msse|-mpopcnt|-mtune|-mcpu", shared)
    assert not re.search(r"-ffast-math|-Ofast|-funsafe-math", re.sub(r"#.*", "", CMAKE))
    assert "-ffp-contract=off" in CMAKE
