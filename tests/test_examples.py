"""What the documentation shows is run here, and what it names exists."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_quickstart_finds_its_passage(capsys):
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("1 p42 ") and shown[0].endswith("This is passage 42.")
    assert shown[-1] == "96,000 bytes of codes; the float32 vectors have 3,072,000"


def test_the_code_of_the_readme_runs_as_it_stands(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 11
    program = "\n".join([*blocks, "print(rows.shape, distances[0, 0], hits.rows[:, 0].tolist())"])
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("1 p42 ")
    assert done.stdout.splitlines()[-1] == "(2, 10) 0 [0, 1]"


def test_every_target_and_verb_that_the_documents_name_exists():
    from bpr.cli import app

    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    verbs = {command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:`|\$ )make ([a-z]+)\b", text)) <= targets, page
        assert set(re.findall(r"^\$ bpr ([a-z-]+)", text, re.MULTILINE)) <= verbs, page


def test_links_between_the_documents_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"
