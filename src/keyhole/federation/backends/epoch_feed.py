"""A client's images at fixed addresses, from which recorded steps take their batches."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.federation.augmentation import Augmentation


class EpochFeed:
    """Batches in the order of an epoch.

    A recorded step cannot be told which images to take: it reads that from tensors. These hold the
    order of the images, the random draws of their augmentation, and the place in the order.

    Args:
        inputs: The model's inputs ``[n, C, H, W]`` of the first client: type, size and device.
        labels: Their classes ``[n]``.
        capacity: The largest number of images.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, capacity: int) -> None:
        self.inputs = inputs.new_empty(capacity, *inputs.shape[1:])
        self.labels = labels.new_empty(capacity)
        numbers = torch.arange(capacity, device=inputs.device)
        self.order, self.numbers, self.place = numbers.clone(), numbers, numbers.new_zeros(())
        shifts = Augmentation(numbers > 0, numbers.clone(), numbers.clone())
        self.augmentation, self.augments = shifts, False

    def fits(self, inputs: Tensor) -> bool:
        """Returns whether there is room for these inputs.

        Args:
            inputs: The model's inputs ``[n, C, H, W]``.
        """
        own = self.inputs
        alike = (own.shape[1:], own.dtype, own.device) == (
            *(inputs.shape[1:], inputs.dtype, inputs.device),
        )
        return alike and len(inputs) <= len(own)

    def load(self, inputs: Tensor, labels: Tensor) -> None:
        """Takes over a client's inputs.

        Args:
            inputs: The model's inputs ``[n, C, H, W]``.
            labels: Their classes ``[n]``.
        """
        self.inputs[: len(inputs)].copy_(inputs)
        self.labels[: len(labels)].copy_(labels)

    def begin_epoch(self, order: Tensor, augmentation: Augmentation | None) -> None:
        """Goes to the first batch of an epoch.

        Args:
            order: The indices of the images in the order of the batches.
            augmentation: Draws for the images in this order; None: images stay as they are.
        """
        count = len(order)
        self.order[:count].copy_(order)
        self.place.zero_()
        self.augments = augmentation is not None
        if augmentation is not None:
            own = self.augmentation
            own.mirrored[:count].copy_(augmentation.mirrored)
            own.down[:count].copy_(augmentation.down)
            own.across[:count].copy_(augmentation.across)

    def next_batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Returns the next inputs ``[size, C, H, W]`` and labels, and goes on.

        Args:
            size: The number of images.
        """
        places = self.numbers[:size] + self.place
        which = self.order[places]
        self.place += size
        if not self.augments:
            return self.inputs[which], self.labels[which]
        own = self.augmentation
        drawn = Augmentation(own.mirrored[places], own.down[places], own.across[places])
        return drawn.apply(self.inputs, which), self.labels[which]
