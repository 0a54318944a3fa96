"""Named randomness: the seed and a name, such as "client 3", determine every random draw."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["derive", "generator", "seeded_globally"]


def derive(seed: int, *path: str | int) -> int:
    """Derives a 63-bit seed for one purpose; the order of calls does not matter.

    Args:
        seed: The seed of the whole run.
        path: What the seed is for: ``"victim", 3``.

    >>> derive(0, "victim", 3) == derive(0, "victim", 3) != derive(0, "victim", 4)
    True
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *path: str | int) -> torch.Generator:
    """Returns a CPU generator for one purpose.

    Args:
        seed: The seed of the whole run.
        path: What it is for; see :func:`derive`.
    """
    return torch.Generator().manual_seed(derive(seed, *path))


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seeds torch's global generators inside the block, and restores their state after it.

    For code that takes no generator: weight initialisation and ``nn.Dropout``.

    Args:
        seed: The seed.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
