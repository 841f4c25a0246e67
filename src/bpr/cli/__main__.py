"""`python -m bpr.cli` is `bpr`."""

from . import main

main()
