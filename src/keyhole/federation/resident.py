"""Images that stay on the training device once they were read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from keyhole.data.image_set import ImageSet, Pixels

SHARE_OF_MEMORY = 8
"""Images may take one part in so many of a GPU's memory."""


class ResidentPixels:
    """Reads images by index; every image is read, and sent to the device, only once.

    Args:
        read: Reads images that are not there yet: uint8 ``[n, C, H, W]``.
        count: How many images there are.
        shape: Channels, height and width of one.
        device: Where they stay.
    """

    def __init__(
        self, read: Pixels, count: int, shape: tuple[int, int, int], device: torch.device
    ) -> None:
        self.read, self.device = read, device
        self.pixels = torch.empty(count, *shape, dtype=torch.uint8, device=device)
        self.present = torch.zeros(count, dtype=torch.bool)

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Returns uint8 ``[n, C, H, W]`` on the device.

        Args:
            indices: Which images.
        """
        wanted = torch.as_tensor(indices, dtype=torch.long)
        missing = torch.unique(wanted[~self.present[wanted]])
        if len(missing):
            self.pixels[missing.to(self.device)] = self.read(missing.tolist()).to(self.device)
            self.present[missing] = True
        return self.pixels[wanted.to(self.device)]


def keep_on_device(data: ImageSet, device: torch.device) -> ImageSet:
    """Returns the data set with images that stay on a GPU; the same set where they do not fit.

    Sets with several versions of their images, and sets on a CPU, stay as they are.

    Args:
        data: The data set.
        device: The training device.
    """
    if device.type != "cuda" or data.versions:
        return data
    room = torch.cuda.get_device_properties(device).total_memory // SHARE_OF_MEMORY
    if len(data) * math.prod(data.shape) > room:
        return data
    return replace(data, pixels=ResidentPixels(data.pixels, len(data), data.shape, device))
