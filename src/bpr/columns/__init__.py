"""The metadata of passages by column: which rows hold which value of a field, so that a filter is answered at once.

    out = ColumnsOut()                                  # the builder, while passages stream
    out.add(row, passage.meta)
    out.write(new, prefix)                              # new: a bundle.Writer

    columns = Columns(opened, prefix)                   # the retriever; if stored(opened, prefix)
    check(condition, [columns])                         # all segments of a bundle at once; InvalidInput for the user
    mask = columns.rows(condition)                      # what kernels.scan and kernels.scan_scores take

It knows bundles and rows; it must not know texts, codes or questions. layout.py says what is stored, and the limits.
"""

from __future__ import annotations

from .layout import FIELDS, FILES, Field, Layout, stored
from .reader import Columns, check
from .writer import ColumnsOut

__all__ = ["FIELDS", "FILES", "Columns", "ColumnsOut", "Field", "Layout", "check", "stored"]
