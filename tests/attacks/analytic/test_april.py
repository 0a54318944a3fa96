from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from statistics import mean
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from keyhole.attacks import April
from keyhole.attacks.analytic import strip_first_block
from keyhole.data import ImageSet, load
from keyhole.errors import DoesNotFit
from keyhole.models import build

Observe = Callable[..., Any]


@cache
def photos(size: int) -> ImageSet:
    return load("photos", image_size=size)


@cache
def small_vit() -> nn.Module:
    return build("vit-small", classes=10, image_size=32)


def timm_vit(size: int, patch: int, dim: int, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return VisionTransformer(
        img_size=size,
        patch_size=patch,
        embed_dim=dim,
        depth=2,
        num_heads=4,
        num_classes=10,
        **options,
    )


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_wide_embedding_gives_the_image_back(observe: Observe, index: int) -> None:
    victim = observe(April().alter(small_vit()), photos(32), [index])
    found = April()(victim.observation)
    assert victim.decibels(found) >= 60
    assert found.confidence.item() > 0.99


def test_the_changed_block_is_what_april_says() -> None:
    changed = strip_first_block(small_vit()).eval()
    x = torch.randn(2, 5, 256)
    block = small_vit().blocks[0].eval()
    expected = block.mlp(block.norm2(block.attn(x)))
    assert torch.equal(changed.blocks[0](x), expected)
    assert not torch.allclose(block(x), expected, atol=1e-2)


def test_altering_leaves_the_given_model_alone() -> None:
    given = copy.deepcopy(small_vit())
    before = copy.deepcopy(given.state_dict())
    altered = April().alter(given)
    with torch.no_grad():
        for parameter in altered.parameters():
            parameter.zero_()
    assert type(given.blocks[0]).__name__ == "Block"
    assert given.state_dict().keys() == before.keys()
    assert all(torch.equal(before[n], t) for n, t in given.state_dict().items())


def test_altering_twice_changes_nothing_more() -> None:
    once = strip_first_block(small_vit())
    twice = strip_first_block(once)
    assert once.state_dict().keys() == twice.state_dict().keys()
    image = torch.rand(1, 3, 32, 32)
    assert torch.equal(once.eval()(image), twice.eval()(image))


def test_the_unchanged_model_is_refused(observe: Observe) -> None:
    with pytest.raises(DoesNotFit, match="the model's first block must be stripped"):
        April()(observe(small_vit(), photos(32), [0]).observation)


def test_a_batch_of_two_is_refused(observe: Observe) -> None:
    victim = observe(April().alter(small_vit()), photos(32), [0, 1])
    with pytest.raises(DoesNotFit, match="it needs one image per client"):
        April()(victim.observation)


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18"])
def test_a_model_without_blocks_cannot_be_altered(name: str) -> None:
    with pytest.raises(DoesNotFit, match="cannot change the model as it needs: it has no `blocks`"):
        April().alter(build(name, classes=10, image_size=32))


def test_the_reason_names_what_a_block_lacks() -> None:
    with pytest.raises(DoesNotFit, match="its first block has no attn, norm2, mlp"):
        April().alter(nn.ModuleDict({"blocks": nn.Sequential(nn.Linear(2, 2))}))


def test_knowing_the_rounding_error_helps_where_the_embedding_is_square(observe: Observe) -> None:
    model = April().alter(timm_vit(24, 4, 48))
    victims = [observe(model, photos(24), [i]) for i in range(4)]
    shrunk = mean(v.decibels(April()(v.observation)) for v in victims)
    plain = mean(v.decibels(April(shrink=False)(v.observation)) for v in victims)
    published = mean(v.decibels(April(shrink=False, rcond=0)(v.observation)) for v in victims)
    assert shrunk > plain + 2 > published + 2


def test_the_embedding_that_is_too_narrow_loses_the_rest(observe: Observe) -> None:
    victims = [observe(April().alter(timm_vit(32, 8, 96)), photos(32), [i]) for i in range(3)]
    assert 5 < mean(v.decibels(April()(v.observation)) for v in victims) < 30


@pytest.mark.parametrize(
    "options",
    [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}],
    ids=["class token", "registers", "no class token"],
)
def test_prefix_tokens_of_any_number_are_left_out(
    observe: Observe, options: dict[str, Any]
) -> None:
    victim = observe(April().alter(timm_vit(32, 8, 256, **options)), photos(32), [0])
    assert victim.decibels(April()(victim.observation)) >= 40


def test_positions_without_the_class_token_are_refused(observe: Observe) -> None:
    victim = observe(April().alter(timm_vit(32, 8, 96, no_embed_class=True)), photos(32), [0])
    with pytest.raises(DoesNotFit, match="its position embedding leaves out some of the tokens"):
        April()(victim.observation)


def test_a_norm_before_the_first_block_is_refused_or_undone(observe: Observe) -> None:
    victim = observe(April().alter(timm_vit(32, 8, 256, pre_norm=True)), photos(32), [0])
    if not April().incompatibilities(victim.observation):
        assert victim.decibels(April()(victim.observation)) >= 40


def test_half_a_photo_is_read_from_vit_small(observe: Observe) -> None:
    model = build("timm:vit_small_patch16_224", classes=10, image_size=224)
    victim = observe(April().alter(model), photos(224), [0])
    assert 10 < victim.decibels(April()(victim.observation)) < 20


@pytest.mark.slow
def test_a_photo_is_read_from_vit_base(observe: Observe) -> None:
    model = April().alter(build("timm:vit_base_patch16_224", classes=10, image_size=224))
    victims = [observe(model, photos(224), [i]) for i in range(2)]
    shrunk = mean(v.decibels(April()(v.observation)) for v in victims)
    plain = mean(v.decibels(April(shrink=False)(v.observation)) for v in victims)
    assert shrunk >= 28
    assert shrunk > plain
