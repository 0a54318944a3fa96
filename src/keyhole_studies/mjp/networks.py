"""The networks of the study: DeiT, ResNet and Swin, cut to CIFAR's 32 pixels."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from keyhole.models import build
from keyhole.seeds import derive, seeded_globally

CLASSES, SIDE, PATCH = 10, 32, 4


def build_deit(
    width: int = 256, depth: int = 6, heads: int = 4, *, side: int = SIDE, classes: int = CLASSES
) -> nn.Module:
    """A DeiT of 4.8 million weights with patches of 4 pixels, 64 of them; stochastic depth."""
    from timm.models.vision_transformer import VisionTransformer

    network: nn.Module = VisionTransformer(
        img_size=side,
        patch_size=PATCH,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        num_classes=classes,
        drop_path_rate=0.1,
    )
    return network


def build_swin() -> nn.Module:
    """A small Swin transformer: patches of 2 pixels, windows of 4, two stages."""
    from timm.models.swin_transformer import SwinTransformer

    network: nn.Module = SwinTransformer(
        img_size=SIDE,
        patch_size=2,
        window_size=4,
        embed_dim=96,
        depths=(2, 6),
        num_heads=(3, 6),
        num_classes=CLASSES,
        drop_path_rate=0.1,
    )
    return network


def build_resnet() -> nn.Module:
    """ResNet-18 for small images."""
    return build("resnet18", classes=CLASSES, channels=3, image_size=SIDE)


def build_large_deit() -> nn.Module:
    """The same DeiT for Tiny-ImageNet: 64 px, 256 patches, 200 classes."""
    return build_deit(side=64, classes=200)


def cifar_deit(classes: int) -> nn.Module:
    """The study's DeiT by the name that an audit's model has."""
    return build_deit(classes=classes)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "deit": build_deit,
    "deit-64": build_large_deit,
    "swin": build_swin,
    "resnet": build_resnet,
}


def build_network(name: str, seed: int) -> nn.Module:
    """Builds a network by name, initialised from ``seed``."""
    with seeded_globally(derive(seed, "weights")):
        return NETWORKS[name]()
