"""`python -m bpr.cli` is `bpr`: for tests, and where the script is not on the path. Nothing else lives here."""

from . import main

main()
