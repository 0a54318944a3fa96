"""The fully connected network of the DIA paper."""

from __future__ import annotations

from torch import nn

from keyhole.data.image_set import Size

WIDTH = 512
DEPTH = 3


def mlp(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """Flatten, three times [Linear 512 without bias, GELU, dropout], Linear without bias."""
    features = channels * image_size[0] * image_size[1]
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(DEPTH):
        layers += [nn.Linear(features, WIDTH, bias=False), nn.GELU(), nn.Dropout(0.0)]
        features = WIDTH
    return nn.Sequential(*layers, nn.Linear(features, classes, bias=False))
