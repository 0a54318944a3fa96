"""Adapters of a frozen vision transformer give away the patches of the images they train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from keyhole.attacks import PeftImprint
from keyhole.attacks.malicious.patch_groups import group_patches
from keyhole.data import ImageSet, load
from keyhole.defenses import Gaussian
from keyhole.errors import DoesNotFit
from keyhole.models import add_adapters, build
from keyhole.threat import PublicKnowledge


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits", image_size=16)


def know(data: ImageSet, **facts: int) -> PublicKnowledge:
    """What a server knows: the last hundred images are public."""
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    return PublicKnowledge(data.shape, len(data.classes), public, **facts)


def timm_vit(**options: Any) -> nn.Module:
    """Four patches of 64 pixels; 64 values per token are exactly enough."""
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
    return VisionTransformer(**{**sizes, "in_chans": 1, "num_classes": 10, **options})


VITS = {
    "class token": timm_vit(),
    "mean of tokens, normalised after": timm_vit(global_pool="avg"),
    "mean of tokens, normalised before": timm_vit(global_pool="avg", fc_norm=False),
    "no class token": timm_vit(global_pool="avg", class_token=False),
    "layer scale": timm_vit(init_values=1e-4),
    "room for more": timm_vit(embed_dim=80),
    "position of no class token": timm_vit(no_embed_class=True),
    "vit-small": build("vit-small", classes=10, channels=1, image_size=16),
}


@pytest.mark.parametrize("model", VITS.values(), ids=VITS.keys())
def test_a_single_image_is_read_whole(observe, digits, model):
    attack = PeftImprint()
    victim = observe(attack.alter(add_adapters(model), know(digits)), digits, [3])
    found = attack(victim.observation)
    assert victim.decibels(found) > 70
    assert float(found.confidence) > 0.99


def test_patches_of_a_small_batch_are_put_together_by_image(observe, data_dir: Path):
    """A share of (1 - 1/23)^3 = 87% of the patches is alone in its bin."""
    cifar = load("cifar10", data_dir=data_dir)
    vit = timm_vit(img_size=32, embed_dim=192, depth=4, num_heads=3, in_chans=3)
    attack = PeftImprint()
    model = attack.alter(add_adapters(vit), know(cifar, batch_size=4))
    victim = observe(model, cifar, range(4))
    found = victim.pixels(attack(victim.observation))
    assert len(found) == 4
    cells = found.unfold(2, 8, 8).unfold(3, 8, 8)
    wanted = victim.images.unfold(2, 8, 8).unfold(3, 8, 8)
    errors = (cells[:, None] - wanted[None]).square().mean((2, 5, 6))
    exact = (errors < 1e-4).sum((2, 3))  # patches of 16, found image by true image
    assert exact.max(0).values.sum() >= 48
    assert exact.max(1).indices.sort().values.tolist() == [0, 1, 2, 3]


def test_only_adapters_and_the_head_change(observe, digits):
    attack = PeftImprint()
    victim = observe(attack.alter(add_adapters(timm_vit()), know(digits)), digits, [3])
    change = victim.observation.update.change
    assert all(".adapter" in name or name.startswith("head.") for name in change)
    assert attack.reads(victim.observation) < set(change)


def test_the_model_keeps_its_architecture(digits):
    plain = add_adapters(timm_vit())
    changed = PeftImprint().alter(plain, know(digits))
    shapes = {name: tensor.shape for name, tensor in plain.state_dict().items()}
    assert {name: tensor.shape for name, tensor in changed.state_dict().items()} == shapes
    assert type(changed) is type(plain)
    frozen = {name for name, p in plain.named_parameters() if not p.requires_grad}
    assert {name for name, p in changed.named_parameters() if not p.requires_grad} == frozen


def test_knowing_the_noise_helps(observe, digits):
    attack = PeftImprint()
    model = attack.alter(add_adapters(timm_vit()), know(digits))
    victim = observe(model, digits, [3], Gaussian(sigma=1e-5))
    unaware = victim.decibels(attack(victim.unaware))
    assert victim.decibels(attack(victim.observation)) > unaware + 5


def test_dropout_behind_the_adapters_does_not_help(observe, digits):
    attack = PeftImprint()
    model = attack.alter(add_adapters(timm_vit(proj_drop_rate=0.3)), know(digits))
    victim = observe(model, digits, [3])
    assert victim.decibels(attack(victim.observation)) > 40


def test_slopes_tell_images_apart():
    slopes = torch.tensor([0.5, -0.7, 0.50001, -0.7, -0.2, 0.3])
    owners = group_patches(slopes, torch.tensor([0, 0, 1, 1, 2, 3]), images=2)
    assert owners.tolist() in ([0, 1, 0, 1, -1, -1], [1, 0, 1, 0, -1, -1])


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (timm_vit(), "no adapters"),
        (add_adapters(timm_vit(embed_dim=60)), "tokens of 60 values cannot carry patches of 64"),
        (add_adapters(timm_vit(), width=2), "2 bins for 4 patches"),
        (add_adapters(timm_vit(depth=1)), "no adapter stands before the attention"),
        (add_adapters(timm_vit(pre_norm=True)), "normalises tokens"),
        (add_adapters(timm_vit(reg_tokens=2)), "one class token at most"),
        (add_adapters(timm_vit(global_pool="max")), "pools tokens by 'max'"),
    ],
)
def test_refusals_say_what_is_missing(observe, digits, model, why):
    with pytest.raises(DoesNotFit, match=why):
        PeftImprint().alter(model, know(digits))


def test_an_honest_server_reads_nothing(observe, digits):
    with pytest.raises(DoesNotFit, match="public images"):
        PeftImprint().alter(add_adapters(timm_vit()))
    victim = observe(add_adapters(timm_vit()), digits, [0])
    with pytest.raises(DoesNotFit, match="threshold rows"):
        PeftImprint()(victim.observation)
