"""Arrays beside a page that nobody may touch: reading one byte too many is a SIGSEGV, not a lucky guess."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def ends_at_guard(array: NDArray) -> NDArray:
    """A copy whose last byte is the last before a forbidden page."""
    return _placed(array, at_end=True)


def starts_at_guard(array: NDArray) -> NDArray:
    """A copy whose first byte is the first behind a forbidden page."""
    return _placed(array, at_end=False)


def _placed(array: NDArray, at_end: bool) -> NDArray:
    """The array keeps the mapping alive: it is its base."""
    room = -(-max(array.nbytes, 1) // PAGE) * PAGE
    pages = np.frombuffer(mmap.mmap(-1, room + 2 * PAGE), np.uint8)
    first = PAGE + room - array.nbytes if at_end else PAGE
    copy = pages[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    for guard in (pages.ctypes.data, pages.ctypes.data + PAGE + room):
        if _libc.mprotect(guard, PAGE, _PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return copy
