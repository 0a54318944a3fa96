"""Keeps glibc from returning memory to the system between steps.

Every step allocates and frees the same large tensors. By default glibc maps and unmaps each of
them, and the page faults cost more than the computation. The settings are made at run time and
hold for this process only.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


@cache
def keep_memory() -> bool:
    """Makes malloc reuse large blocks; returns whether this system allows it."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 1 << 28))
    accepted = [mallopt(option, value) == 1 for option, value in settings]
    return all(accepted)
