"""Recognises errors that mean that memory ran out."""

from __future__ import annotations

import errno
import sys

SIGNS = (
    "not enough memory",  # torch on Windows and macOS
    "can't allocate memory",  # torch on Linux
    "Cannot allocate memory",  # the kernel, as in "unable to mmap"
    "bad_alloc",  # C++
    "could not create a memory",  # oneDNN
    "could not create a primitive",  # oneDNN, without room for the code that it makes
    "can't start new thread",  # no room for its stack
    "out of memory",  # CUDA, cuBLAS
    "without exception set",  # an extension that had no room for its own error
    "without setting an exception",
    "failed to map segment",  # the loader of a library that is imported late
)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; most libraries say so only in their message.

    >>> ran_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    >>> ran_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    torch = sys.modules.get("torch")  # without torch there is no such error
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    tells = isinstance(error, RuntimeError | ImportError | SystemError)
    return tells and any(sign in str(error) for sign in SIGNS)
