"""Every error that leaves bpr, as one tree. No foreign exception crosses the public surface.

BprError
├── InvalidInput        an argument, array or input file is wrong; the message names where and what to do
├── MissingBundle       there is no bundle at that path
├── EmptyBundle         the bundle holds no passages, so there is nothing to search
├── CorruptBundle       bytes on disk are not the ones that were published
├── UnsupportedFormat   the bundle needs a newer (or other) bpr
├── ModelMismatch       the question's model is not the one that made the codes
├── BundleLocked        another process is writing this bundle
├── StorageError        the disk said no: full, read-only, no permission, I/O error
├── Overloaded          too much work is in flight already
├── DeadlineExceeded    the time given for the call has passed
└── Cancelled           the caller's cancel handle was set
"""


class BprError(Exception):
    """The root of all errors of bpr: `except bpr.BprError` catches every one of them."""


class InvalidInput(BprError):
    """An argument, array or input file is wrong; the message names where and what to do."""


class MissingBundle(BprError):
    """There is no bundle at that path."""


class EmptyBundle(BprError):
    """The bundle holds no passages, so there is nothing to search."""


class CorruptBundle(BprError):
    """Bytes on disk are not the ones that were published: restore or rebuild the bundle."""


class UnsupportedFormat(BprError):
    """The bundle was written by a newer bpr, or uses a feature that this one does not know."""


class ModelMismatch(BprError):
    """The question's vectors do not come from the model that made the codes."""


class BundleLocked(BprError):
    """Another process is writing this bundle."""


class StorageError(BprError):
    """The disk said no: full, read-only, no permission, I/O error. Names the file and the reason."""


class Overloaded(BprError):
    """Too much work is in flight already; try again later."""


class DeadlineExceeded(BprError):
    """The time given for the call has passed."""


class Cancelled(BprError):
    """The caller's cancel handle was set."""
