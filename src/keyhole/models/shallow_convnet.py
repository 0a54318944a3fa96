"""A network of the kind that Hitaj et al. 2017 attack: few convolutions, then one linear layer."""

from __future__ import annotations

from torch import nn

from keyhole.data.image_set import Size

LAYERS = 2
FEATURES = 16
SLOPE = 0.2


def shallow_convnet(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """Two 3x3 convolutions of 16 and 32 features, each followed by a leaky ReLU and a mean pool.

    It has no batch norm, whose statistics would mix true and generated images. Mean pools pass a
    smoother gradient to the pixels than strides do. Its name for ``--model`` is
    ``keyhole.models.shallow_convnet:shallow_convnet``.
    """
    height, width = image_size
    layers: list[nn.Module] = []
    features = FEATURES
    for _ in range(LAYERS):
        layers += [nn.Conv2d(channels, features, 3, padding=1), nn.LeakyReLU(SLOPE)]
        layers.append(nn.AvgPool2d(2, ceil_mode=True))
        channels, features = features, 2 * features
        height, width = -(-height // 2), -(-width // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))
