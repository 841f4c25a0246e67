"""The example of README.md: build a bundle from vectors, open it, search it. Run by the tests."""

import tempfile
from pathlib import Path

import numpy as np

import bpr


def main() -> None:
    """Index a thousand passages and find one of them by a noisy copy of its vector."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((1000, 768), dtype=np.float32)  # stand-in for the output of your encoder
    passages = ({"id": f"p{i}", "title": "Numbers", "text": f"This is passage {i}."} for i in range(1000))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.bpr"
        bpr.build(passages, path, vectors=vectors)
        with bpr.open(path) as retriever:
            question = vectors[42] + 0.5 * random.standard_normal(768)
            for hit in retriever.search(vectors=question, k=3):
                print(hit.rank, hit.id, f"{hit.score:.1f}", hit.text)
            codes = retriever.index.planes.nbytes
            print(f"{codes:,} bytes of codes; the float32 vectors have {vectors.nbytes:,}")


if __name__ == "__main__":
    main()
