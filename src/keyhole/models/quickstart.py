"""The small convolutional network of Flower's PyTorch quickstart."""

from __future__ import annotations

from torch import nn

from keyhole.data.image_set import Size

KERNEL = 5
WIDTHS = (6, 16)
HIDDEN = (120, 84)


def quickstart(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """Two 5x5 convolutions of 6 and 16 channels with max-pools, and three linear layers, with ReLU.

    On CIFAR-10 it has 62,006 parameters. Images have at least 16 x 16 pixels.
    """
    height, width = image_size
    layers: list[nn.Module] = []
    for features in WIDTHS:
        layers += [nn.Conv2d(channels, features, KERNEL), nn.ReLU(), nn.MaxPool2d(2, 2)]
        channels = features
        height, width = (height - KERNEL + 1) // 2, (width - KERNEL + 1) // 2
    if min(height, width) < 1:
        raise ValueError("it needs images of 16 x 16 pixels or more")
    layers.append(nn.Flatten())
    seen = channels * height * width
    for features in HIDDEN:
        layers += [nn.Linear(seen, features), nn.ReLU()]
        seen = features
    return nn.Sequential(*layers, nn.Linear(seen, classes))
