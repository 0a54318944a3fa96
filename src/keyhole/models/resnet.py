"""ResNet-18 for small images."""

from __future__ import annotations

from torch import nn

from keyhole.data.image_set import Size


def resnet18(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """torchvision's ResNet-18 in CIFAR form: 3x3 stem, no max-pooling; dropout before the head."""
    from torchvision.models import resnet18 as torchvision_resnet18

    del image_size  # pooled at the end: any size works
    model: nn.Module = torchvision_resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    model.fc = nn.Sequential(nn.Dropout(0.0), nn.Linear(512, classes))
    return model
