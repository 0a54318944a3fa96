"""Networks that the paper may have meant where the built-in ones leave its figures far off."""

from __future__ import annotations

import torch
from torch import nn

from keyhole.data import Size
from keyhole.models import build

VIT_B = "timm:vit_base_patch16_224"


def tanh_lenet(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """LeNet with tanh in place of sigmoids."""
    model = build_alike("lenet", classes, channels, image_size)
    assert isinstance(model, nn.Sequential)
    layers = [nn.Tanh() if isinstance(layer, nn.Sigmoid) else layer for layer in model]
    return nn.Sequential(*layers)


def stock_resnet18(*, classes: int, channels: int, image_size: Size) -> nn.Module:
    """torchvision's ResNet-18: 7x7 stem of stride 2, max-pooling; dropout before the head."""
    model = build_alike("torchvision:resnet18", classes, 3, image_size)
    if channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    model.fc = nn.Sequential(nn.Dropout(0.0), nn.Linear(512, classes))
    return model


def wide_vit_b16(*, classes: int, image_size: Size) -> nn.Module:
    """ViT-B/16 whose position embeddings and class token start from N(0, 1), as ``vit-small``'s do.

    timm starts them from deviations of .02 and 1e-6. There is no dropout before the head: one site
    after the positions and four in each of 12 blocks are 49.
    """
    model = build_alike(VIT_B, classes, 3, image_size)
    model.head_drop = nn.Identity()
    with torch.no_grad():
        for name in ("pos_embed", "cls_token"):
            model.get_parameter(name).normal_()
    return model


def build_alike(name: str, classes: int, channels: int, image_size: Size) -> nn.Module:
    """A built-in network whose weights go by the seed that the caller's go by."""
    seed = torch.initial_seed()
    return build(name, classes=classes, channels=channels, image_size=image_size, seed=seed)
