"""The networks of Table I: ResNet-50, MobileNet (v1) and ShuffleNet, fitted to small images."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from keyhole.data import Size
from keyhole.seeds import derive, seeded_globally

SMALL = 64
"""The first layer does not halve images of fewer pixels per side."""


def build_resnet(classes: int, channels: int) -> nn.Module:
    """ResNet-50, 23.5 million weights."""
    import timm

    network: nn.Module = timm.create_model("resnet50", num_classes=classes, in_chans=channels)
    return network


def build_mobilenet(classes: int, channels: int) -> nn.Module:
    """MobileNet v1, 3.2 million weights without the paper's classifier of 1,000 classes."""
    import timm

    network: nn.Module = timm.create_model(
        "mobilenetv1_100", num_classes=classes, in_chans=channels
    )
    # timm draws it for a thousand classes; for ten, logits would begin ten times larger.
    head = network.get_submodule("classifier")
    assert isinstance(head, nn.Linear)
    head.reset_parameters()
    return network


def build_shufflenet(classes: int, channels: int) -> nn.Module:
    """ShuffleNet v2, 1.3 million weights."""
    from torchvision.models import shufflenet_v2_x1_0

    network: nn.Module = shufflenet_v2_x1_0(num_classes=classes)
    if channels != 3:
        stem = network.get_submodule("conv1")
        assert isinstance(stem, nn.Sequential)
        stem[0] = nn.Conv2d(channels, 24, 3, stride=2, padding=1, bias=False)
    return network


def build_wide_shufflenet(classes: int, channels: int) -> nn.Module:
    """ShuffleNet v2 of twice the width, 5.4 million weights."""
    from torchvision.models import shufflenet_v2_x2_0

    network: nn.Module = shufflenet_v2_x2_0(num_classes=classes)
    if channels != 3:
        stem = network.get_submodule("conv1")
        assert isinstance(stem, nn.Sequential)
        stem[0] = nn.Conv2d(channels, 24, 3, stride=2, padding=1, bias=False)
    return network


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet": build_resnet,
    "shufflenet": build_shufflenet,
    "shufflenet-x2": build_wide_shufflenet,
    "mobilenet": build_mobilenet,
}


def build_network(name: str, *, classes: int, channels: int, size: Size, seed: int) -> nn.Module:
    """Builds a network, its weights drawn by ``seed``, its stem fitted to ``size``."""
    with seeded_globally(derive(seed, "model")):
        network = NETWORKS[name](classes, channels)
    if min(size) < SMALL:
        first = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
        first.stride = (1, 1)
    return network
