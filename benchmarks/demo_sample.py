"""Makes the sample that `bpr demo` indexes: every paragraph of SQuAD v1.1's dev set, and some of its questions.

python benchmarks/demo_sample.py dev-v1.1.json    (from https://rajpurkar.github.io/SQuAD-explorer/, also packed)

Writes src/bpr/demo/passages.jsonl.xz and questions.jsonl.xz, the same bytes every time (with the same liblzma). What is
changed of SQuAD stands in src/bpr/demo/ATTRIBUTION.md.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bpr.training.data import collect
from bpr.training.formats import squad

HOME = Path(__file__).parent.parent / "src" / "bpr" / "demo"
QUESTIONS, SEED = 1000, 20160616  # the day of SQuAD's paper


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in records)
    path.write_bytes(lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size:,} bytes, {lines.count(chr(10)):,} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    passages, examples = collect(squad(parser.parse_args().source))
    rows = {passage.id: row for row, passage in enumerate(passages)}
    drawn = sorted(random.Random(SEED).sample(range(len(examples)), QUESTIONS))
    write(HOME / "passages.jsonl.xz", ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
    write(
        HOME / "questions.jsonl.xz",
        (
            {
                "question": " ".join(example.question.split()),
                "answers": list(example.answers),
                "passage": rows[example.positives[0]],
            }
            for example in (examples[number] for number in drawn)
        ),
    )


if __name__ == "__main__":
    main()
