"""Keeps glibc from giving memory back between steps.

Every step allocates and frees the same large tensors. By default glibc maps and unmaps each, and
the page faults cost more than the mathematics. The settings hold for this process alone and are
made at run time: nothing is asked of the user.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


@cache
def keep_memory() -> bool:
    """Makes malloc reuse large blocks; whether that was possible on this system."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 1 << 28))
    accepted = [mallopt(option, value) == 1 for option, value in settings]
    return all(accepted)
