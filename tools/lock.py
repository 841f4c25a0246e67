"""Pin what the container is made of, each file by its sha256: `python tools/lock.py` writes requirements-serve.txt.

Asks the package index for the wheels that pip would install for Python 3.12 on x86-64 and on ARM, at the versions of
constraints.txt. Run it after a change of either; the Dockerfile takes nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements-serve.txt"
EXTRAS = ("serve", "zstd")
PYTHON = "3.12"
MACHINES = ("x86_64", "aarch64")
GLIBC = ("2_28", "2_17")
HEAD = "# Written by tools/lock.py: what the Dockerfile installs, and the sums of the files that may be taken.\n"


def wanted() -> list[str]:
    """What bpr needs to serve, as pyproject.toml says it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(need for extra in EXTRAS for need in project["optional-dependencies"][extra])]


def resolved(machine: str) -> list[dict[str, Any]]:
    """The wheels that pip would install there."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        platforms = [f"--platform=manylinux_{each}_{machine}" for each in GLIBC]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += [f"--report={report}", f"--python-version={PYTHON}", "--only-binary=:all:", f"--target={folder}"]
        command += ["--constraint", str(ROOT / "constraints.txt"), *platforms, *wanted()]
        subprocess.run(command, check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
        return found


def lines(installs: Iterable[dict[str, Any]]) -> str:
    """name==version with a hash for each machine, in the order of names."""
    sums: dict[str, set[str]] = {}
    for each in installs:
        name = f"{each['metadata']['name'].lower().replace('_', '-')}=={each['metadata']['version']}"
        sums.setdefault(name, set()).add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    return "".join(
        f"{name}" + "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(found)) + "\n"
        for name, found in sorted(sums.items())
    )


if __name__ == "__main__":
    LOCK.write_text(HEAD + lines(each for machine in MACHINES for each in resolved(machine)), encoding="utf-8")
    print(f"wrote {LOCK.name}")
