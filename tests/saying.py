"""What the tests of the command line share: how to read what a verb says."""

from __future__ import annotations

import re


def examples(shown: str) -> list[str]:
    """The commands in a --help, without `bpr` and what a pipe or a file gets; those that go on in a next line whole."""
    return re.findall(r"^ +\$ bpr ([^|>\n]+)", re.sub(r" \\\n +", " ", shown), re.M)
