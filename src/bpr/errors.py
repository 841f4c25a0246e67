"""Every error that leaves bpr, as one tree. No foreign exception crosses the public surface. Everyone raises them; this
file knows nobody.

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
    """An argument, array or input file is wrong; the message names where and what to do.

    Correct what the message names and call again: nothing has been changed.
    """


class MissingBundle(BprError):
    """There is no bundle at that path.

    Check the path; `bpr index` makes a bundle.
    """


class EmptyBundle(BprError):
    """The bundle holds no passages, so there is nothing to search.

    Add some with `bpr add`, or build it again.
    """


class CorruptBundle(BprError):
    """Bytes on disk are not the ones that were published: restore or rebuild the bundle.

    `bpr verify` names the files that are damaged. Look at the disk, too: bpr never writes into a published file.
    """


class UnsupportedFormat(BprError):
    """The bundle was written by a newer bpr, or uses a feature that this one does not know.

    Install that bpr, or build the bundle again with this one.
    """


class ModelMismatch(BprError):
    """The question's vectors do not come from the model that made the codes.

    Open the bundle with its own model (`bpr info` names it; --model DIR, model=…), or index again with the new one.
    """


class BundleLocked(BprError):
    """Another process is writing this bundle.

    Wait until it has ended and call again; readers need not wait. The lock goes with the process that held it.
    """


class StorageError(BprError):
    """The disk said no: full, read-only, no permission, I/O error. Names the file and the reason.

    Make room, or mend the permissions, and call again: the bundle is as it was before.
    """


class Overloaded(BprError):
    """Too much work is in flight already; try again later.

    Ask again after a pause that grows; if it stays, more machines or fewer callers are needed.
    """


class DeadlineExceeded(BprError):
    """The time given for the call has passed.

    Give it more time, or less to do: fewer questions, fewer candidates, fewer passages to read.
    """


class Cancelled(BprError):
    """The caller's cancel handle was set.

    Nothing is to be done: someone wanted it to end.
    """
