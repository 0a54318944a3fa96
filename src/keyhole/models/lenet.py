"""The small convolutional network of iDLG, as the DIA paper attacks it."""

from __future__ import annotations

from torch import nn

from keyhole.data.image_set import Size

WIDTH = 12
SPREAD = 0.5
STRIDES = (2, 2, 1)


def lenet(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """Three 5x5 convolutions of 12 channels with sigmoids, dropout, one linear layer.

    The linear layer sees 588 features of a 28 px image and 768 of a 32 px one.
    """
    height, width = image_size
    layers: list[nn.Module] = []
    for stride in STRIDES:
        layers += [nn.Conv2d(channels, WIDTH, 5, stride=stride, padding=2), nn.Sigmoid()]
        channels = WIDTH
        height, width = -(-height // stride), -(-width // stride)
    head = nn.Linear(WIDTH * height * width, classes)
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.0), head)


def wide_lenet(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """LeNet with weights uniform in [-0.5, 0.5], as in DLG and iDLG: there sigmoids are curved."""
    model = lenet(classes=classes, channels=channels, image_size=image_size)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -SPREAD, SPREAD)
    return model
