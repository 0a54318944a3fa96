"""Random mirrors and shifts of images: drawn first, applied by one gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """What happens to each of n images.

    Args:
        mirrored: Whether the image is mirrored ``[n]``.
        down: By how many pixels the window starts below the top of the padded image ``[n]``.
        across: The same from the left ``[n]``.
    """

    mirrored: Tensor
    down: Tensor
    across: Tensor

    @classmethod
    def draw(
        cls,
        count: int,
        height: int,
        width: int,
        device: torch.device,
        draw: torch.Generator | None = None,
    ) -> Augmentation:
        """Draws for ``count`` images: a mirror by a coin, shifts up to an eighth of the side.

        Args:
            count: The number of images.
            height: Their height.
            width: Their width.
            device: Where to draw.
            draw: A generator on this device; None: torch's global generator.
        """
        mirrored = torch.rand(count, device=device, generator=draw) < 0.5
        down = torch.randint(2 * (height // 8) + 1, (count,), device=device, generator=draw)
        across = torch.randint(2 * (width // 8) + 1, (count,), device=device, generator=draw)
        return cls(mirrored, down, across)

    @classmethod
    def concatenate(cls, parts: Sequence[Augmentation]) -> Augmentation:
        """Returns the draws of several batches as those of one.

        Args:
            parts: The draws of each batch.
        """
        return cls(
            torch.cat([part.mirrored for part in parts]),
            torch.cat([part.down for part in parts]),
            torch.cat([part.across for part in parts]),
        )

    def apply(self, images: Tensor, which: Tensor) -> Tensor:
        """Returns some of the images, mirrored and shifted; borders are reflected.

        The result has the channels-last layout.

        Args:
            images: ``[N, C, H, W]``.
            which: The index of each image ``[n]``.
        """
        height, width = images.shape[-2:]
        rows = self.down[:, None] + torch.arange(height, device=images.device)
        columns = self.across[:, None] + torch.arange(width, device=images.device)
        rows = reflect(rows - height // 8, height)
        columns = reflect(columns - width // 8, width)
        columns = torch.where(self.mirrored[:, None], width - 1 - columns, columns)
        places = (which[:, None, None], rows[:, :, None], columns[:, None, :])
        return images.permute(0, 2, 3, 1)[places].permute(0, 3, 1, 2)


def reflect(places: Tensor, size: int) -> Tensor:
    """Returns indices that lie beyond either end of ``size`` entries reflected into them.

    >>> reflect(torch.tensor([-2, -1, 0, 3, 4]), 4).tolist()
    [2, 1, 0, 3, 2]
    """
    last = size - 1
    return last - (last - places.abs()).abs()


def augment_images(images: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """Mirrors each image at random and shifts it by up to an eighth of its side.

    Borders are reflected.

    Args:
        images: ``[n, C, H, W]``.
        draw: A generator on the images' device; None: torch's global generator.
    """
    count, _, height, width = images.shape
    drawn = Augmentation.draw(count, height, width, images.device, draw)
    return drawn.apply(images, torch.arange(count, device=images.device))
