from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from keyhole.data import load
from keyhole.federation import resident
from keyhole.federation.resident import ResidentPixels, keep_on_device

CPU = torch.device("cpu")


def test_every_image_is_read_only_once() -> None:
    digits, asked = load("digits"), []

    def read(indices: Sequence[int]) -> Tensor:
        asked.extend(indices)
        return digits.pixels(indices)

    pixels = ResidentPixels(read, len(digits), digits.shape, CPU)
    for indices in ([5, 3, 5], [3], [4, 3, 900]):
        assert torch.equal(pixels(indices), digits.pixels(indices))
    assert sorted(asked) == [3, 4, 5, 900]


def test_a_cpu_reads_as_before() -> None:
    digits = load("digits")
    assert keep_on_device(digits, CPU) is digits


@pytest.mark.parametrize(("memory", "kept"), [(1 << 30, True), (1 << 16, False)])
def test_images_are_kept_where_there_is_room(
    memory: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load("digits")

    class Properties:
        total_memory = memory

    class OnCpu(ResidentPixels):
        def __init__(self, read: object, count: int, shape: object, device: object) -> None:
            super().__init__(read, count, shape, CPU)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    monkeypatch.setattr(resident, "ResidentPixels", OnCpu)
    found = keep_on_device(digits, torch.device("cuda"))
    assert (found is not digits) is kept
    assert torch.equal(found.images([7, 2]), digits.images([7, 2]))
