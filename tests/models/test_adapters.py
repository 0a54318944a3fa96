"""Adapters in vision transformers: nothing changes before training, and little is trained."""

from __future__ import annotations

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from keyhole.errors import DoesNotFit
from keyhole.models import add_adapters, build, is_user_model
from keyhole.models.adapters import find_adapters
from keyhole.models.modes import find_trained_parameters, is_partly_frozen


def timm_vit(**options: object) -> nn.Module:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return VisionTransformer(**{**sizes, **options}, num_classes=10)


@pytest.mark.parametrize(
    "model",
    [
        timm_vit(),
        timm_vit(init_values=0.1, drop_path_rate=0.1, global_pool="avg"),
        build("vit-small", classes=10, channels=3, image_size=16),
    ],
    ids=["timm", "timm-scaled", "vit-small"],
)
def test_new_adapters_leave_the_logits_as_they_were(model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = add_adapters(model.eval(), width=5)
    images = torch.randn(2, 3, 16, 16)
    assert torch.allclose(adapted(images), model(images), atol=1e-5)
    assert all(torch.equal(before[name], adapted.state_dict()[name]) for name in before)
    assert len(find_adapters(adapted)) == 2 * len(model.blocks)
    assert not find_adapters(model)
    assert not is_partly_frozen(model)


def test_only_adapters_and_the_head_are_trained() -> None:
    adapted = build("adapters:vit-small", classes=10, channels=1, image_size=8)
    trained = set(find_trained_parameters(adapted))
    assert trained == {n for n, _ in adapted.named_parameters() if "adapter" in n or "head" in n}
    assert is_partly_frozen(adapted)
    assert adapted.blocks[0].adapter1.down.weight.shape == (64, 256)


def test_adapters_come_by_name() -> None:
    model = build("adapters:timm:vit_tiny_patch16_224", classes=10, channels=3, image_size=32)
    assert len(find_adapters(model)) == 24
    assert not is_user_model("adapters:vit-small")
    assert is_user_model("adapters:my.package:build")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: build("lenet", classes=10, channels=1, image_size=8), "need a ViT"),
        (lambda: add_adapters(timm_vit()), "already"),
        (lambda: timm_vit(block_fn=post_norm()), "not a plain pre-norm block"),
    ],
)
def test_other_networks_are_refused(model: object, why: str) -> None:
    with pytest.raises(DoesNotFit, match=why):
        add_adapters(model())  # type: ignore[operator]


def post_norm() -> type[nn.Module]:
    from timm.models.vision_transformer import ResPostBlock

    return ResPostBlock
