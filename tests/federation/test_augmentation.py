from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.federation.augmentation import Augmentation, augment_images


def flip_pad_and_cut(images: Tensor, draw: torch.Generator) -> Tensor:
    """The same by a copy for each step, image after image."""
    count, _, height, width = images.shape
    mirrored = torch.rand(count, generator=draw) < 0.5
    down, across = height // 8, width // 8
    rows = torch.randint(2 * down + 1, (count,), generator=draw)
    columns = torch.randint(2 * across + 1, (count,), generator=draw)
    found = []
    for image, flip, row, column in zip(images, mirrored, rows, columns, strict=True):
        turned = image.flip(-1) if flip else image
        padded = F.pad(turned[None], (across, across, down, down), mode="reflect")[0]
        found.append(padded[:, row : row + height, column : column + width])
    return torch.stack(found)


@pytest.mark.parametrize("shape", [(20, 3, 16, 24), (5, 1, 8, 8), (4, 2, 5, 7)], ids=str)
def test_one_gather_does_what_flip_pad_and_cut_do(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    ours = augment_images(images, torch.Generator().manual_seed(1))
    assert torch.equal(ours, flip_pad_and_cut(images, torch.Generator().manual_seed(1)))


def test_the_draws_of_batches_are_those_of_their_epoch() -> None:
    images = torch.rand(6, 3, 16, 16)
    order, one, other = (
        torch.tensor([4, 1, 0, 5, 3]),
        *(torch.Generator().manual_seed(2) for _ in range(2)),
    )
    parts = [Augmentation.draw(n, 16, 16, images.device, one) for n in (2, 3)]
    whole = Augmentation.concatenate(parts).apply(images, order)
    batches = [augment_images(images[batch], other) for batch in order.split([2, 3])]
    assert torch.equal(whole, torch.cat(batches))
