"""The rules that matter for an image others build, checked on the Dockerfile as it stands."""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORED = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def instructions() -> list[tuple[str, str]]:
    """Every instruction and what follows it, without comments, lines joined."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def of(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def test_there_are_two_stages_on_a_base_of_one_version():
    bases = [rest.split()[0] for rest in of("FROM")]
    assert len(bases) == 2
    for base in bases:
        name, _, tag = base.partition(":")
        assert name == "python" and re.fullmatch(r"3\.\d+-slim", tag), base


def test_the_compiler_stays_in_the_first_stage_and_leaves_no_cache():
    last = TEXT[TEXT.rindex("\nFROM ") :]
    assert "apt-get" not in last and "pip " not in last
    for run in of("RUN"):
        if "apt-get install" in run:
            assert "--no-install-recommends" in run and run.rstrip().endswith("rm -rf /var/lib/apt/lists/*")
        for pip in re.findall(r"pip (?:install|wheel)[^&]*", run):
            assert "--no-cache-dir" in pip


def test_it_runs_as_a_user_without_rights():
    last = TEXT[TEXT.rindex("\nFROM ") :]
    (user,) = re.findall(r"^USER (.+)$", last, re.MULTILINE)
    number = int(user.split(":")[0])  # a number, so that an orchestrator can see that it is not root
    assert number >= 10_000
    assert f"--uid {number}" in last
    assert last.index("USER ") < last.index("ENTRYPOINT ")


def test_nothing_is_fetched_by_the_image_itself():
    assert not of("ADD")
    assert not re.search(r"\b(curl|wget|git)\b", TEXT)


def test_it_serves_and_says_whether_it_lives():
    assert json.loads(of("ENTRYPOINT")[0]) == ["bpr"]
    assert json.loads(of("CMD")[0]) == ["serve", "/data/index.bpr", "--host", "0.0.0.0"]
    assert of("EXPOSE") == ["8080"]
    probe = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    assert probe[:2] == ["python", "-c"] and "http://127.0.0.1:8080/healthz" in probe[2]


def test_no_secret_is_baked_in():
    for given in (*of("ENV"), *of("ARG")):
        assert not re.search(r"token|secret|password", given, re.IGNORECASE)


def test_what_is_copied_is_there_and_reaches_the_builder():
    copied = [name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]]
    assert {"pyproject.toml", "CMakeLists.txt", "native", "src", "requirements-serve.txt"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in IGNORED, f".dockerignore hides {name}"


def test_nothing_else_reaches_the_builder():
    assert IGNORED[0] == "*"  # so .git, .venv, build and docs stay here, whatever there is
    let_in = {line[1:] for line in IGNORED if line.startswith("!")}
    assert not let_in & {".git", ".venv", "build", "dist", "tests", "docs", "."}
    hidden = IGNORED[max(i for i, line in enumerate(IGNORED) if line.startswith("!")) + 1 :]
    for built_here in ("src/bpr/__pycache__", "src/bpr/_native.cpython-312-x86_64-linux-gnu.so"):
        assert any(fnmatch.fnmatch(built_here, pattern) for pattern in hidden), built_here


def test_every_file_that_the_package_is_built_of_is_copied():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    files = re.findall(r'^readme = "([^"]+)"|license-files = \[([^\]]+)\]', project, re.MULTILINE)
    named = [name for readme, licences in files for name in [readme, *re.findall(r'"([^"]+)"', licences)] if name]
    copied = [name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]]
    assert len(named) >= 3
    for name in named:
        assert name in copied or name.split("/")[0] in copied, name


# ── What is installed in it ──────────────────────────────────────────────────────────────────────────────────────────


def locked() -> dict[str, tuple[str, list[str]]]:
    """Name → version and sums of requirements-serve.txt."""
    text = (ROOT / "requirements-serve.txt").read_text(encoding="utf-8").replace("\\\n", "")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pinned, *sums = line.split()
            name, version = pinned.split("==")
            found[name] = (version, [each.removeprefix("--hash=sha256:") for each in sums])
    return found


def test_every_package_of_the_image_is_taken_by_its_sum():
    (install,) = [run for run in of("RUN") if "pip install" in run]
    assert "--require-hashes -r requirements-serve.txt" in install
    assert "--no-deps /wheels/*.whl" in install
    for name, (_, sums) in locked().items():
        assert sums and all(re.fullmatch(r"[0-9a-f]{64}", each) for each in sums), name


def test_the_image_has_what_serving_needs_at_the_versions_of_the_tests():
    sys.path.append(str(ROOT / "tools"))
    import lock

    found = locked()
    for need in lock.wanted():
        assert re.split(r"[<>=!~;\[ ]", need)[0].lower() in found, f"{need}: run python tools/lock.py"
    pins = re.findall(r"^([\w.-]+)==([^;\s]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    for name, version in pins:
        if name in found:
            assert found[name][0] == version, f"{name}: run python tools/lock.py"
