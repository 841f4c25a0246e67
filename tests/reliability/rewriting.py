"""A process that writes one generation after the other, for readers to be disturbed by.

python rewriting.py BUNDLE TIMES
"""

from __future__ import annotations

import sys
from pathlib import Path

from samples import write

if __name__ == "__main__":
    for stamp in range(1, int(sys.argv[2]) + 1):
        write(Path(sys.argv[1]), stamp)
