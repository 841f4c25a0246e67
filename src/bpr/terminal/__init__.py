"""What a person sees: messages, progress bars, hits, tables, the health report. The only room that knows rich.

The command line calls it. It turns values into lines and must not know how they came about. Whatever stems from files
or names passes `plain` on its way, so that no passage can take over a terminal.
"""

from __future__ import annotations

from .found import print_answered, print_answers, print_groups, print_hits
from .lines import bars, count, log_to_stderr, message, plain, print_json, print_table, size
from .reports import (
    print_bench,
    print_calibration,
    print_evaluation,
    print_export,
    print_facts,
    print_health,
    print_indexed,
    print_recall,
    print_validation,
    saving,
    shape,
)

__all__ = [
    "bars",
    "count",
    "log_to_stderr",
    "message",
    "plain",
    "print_answered",
    "print_answers",
    "print_bench",
    "print_calibration",
    "print_evaluation",
    "print_export",
    "print_facts",
    "print_groups",
    "print_health",
    "print_hits",
    "print_indexed",
    "print_json",
    "print_recall",
    "print_table",
    "print_validation",
    "saving",
    "shape",
    "size",
]
