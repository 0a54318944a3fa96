"""Rounds that a server recorded, for tests of captured folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.federation import CaptureWriter, Reply

Tensors = dict[str, Tensor]


def tensors(seed: int, size: int = 50) -> Tensors:
    drawn = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(size, generator=drawn), "seen": torch.tensor(seed)}


def replies(number: int, nodes: Sequence[str] = ("7", "9")) -> list[Reply]:
    return [Reply(n, tensors(10 * number + i), examples=i + 1) for i, n in enumerate(nodes)]


def record(root: Path, rounds: Sequence[int] = (1, 2), **values: Any) -> CaptureWriter:
    writer = CaptureWriter(root, **values)
    for number in rounds:
        writer.write_round(number, tensors(number), replies(number), config={"lr": 0.1})
    return writer


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
