"""Randomness by name: every random draw comes from a generator that its place in the work names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for one place in the work, independent of the order in which places are met.

    >>> derive(0, "victim", 3) == derive(0, "victim", 3) != derive(0, "victim", 4)
    True
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator for one place in the work (see :func:`derive`)."""
    return torch.Generator().manual_seed(derive(seed, *path))


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seeds torch's global generators inside the block and puts their state back after it.

    For code that takes no generator: weight initialisation and ``nn.Dropout``.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
