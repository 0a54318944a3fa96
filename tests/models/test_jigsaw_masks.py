"""The masks of a puzzle are dropout sites: recorded, replaced and learnt."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from jigsaw_models import (
    CELLS,
    EITHER,
    draw_seeded_puzzle,
    make_batch,
    plain_model,
    reference_logits,
    with_puzzle,
)
from keyhole.models.dropout_sites import FixedMasks, MaskRecorder, SiteFinder
from keyhole.seeds import generator


@EITHER
def test_masks_are_sites_that_can_be_surveyed_and_recorded(name: str) -> None:
    model, (images, _) = with_puzzle(plain_model(name), gamma=0.4).train(), make_batch()
    survey, record = SiteFinder(), MaskRecorder()
    with survey:
        model(images)
    (site,) = survey.sites
    assert (site.p, site.shape, site.hides) == (0.4, (CELLS,), "pos_embed")
    record.begin()
    torch.manual_seed(0)
    with record:
        expected = copy.deepcopy(model)(images)
    assert torch.equal(record.masks_by_site()[0], draw_seeded_puzzle(model, images).kept != 0)
    torch.manual_seed(0)
    assert torch.equal(model(images), expected)


@EITHER
def test_driven_networks_see_the_image_as_it_lies_and_hide_what_the_mask_says(name: str) -> None:
    model, (images, _) = with_puzzle(plain_model(name)).train(), make_batch()
    kept = (torch.rand(3, CELLS, generator=generator(1)) < 0.6).float()
    table = model.pos_embed.detach().repeat(3, 1, 1)
    table[:, 1:][kept == 0] = model.puzzle.unknown.detach()[0, 0]
    order = torch.arange(CELLS).expand(3, -1)
    with FixedMasks([kept]):
        torch.testing.assert_close(model(images), reference_logits(model, images, order, table))
    with FixedMasks():
        torch.testing.assert_close(model(images), plain_model(name)(images))


@pytest.mark.parametrize("positions", ["own", "index", "none"])
def test_where_no_position_is_hidden_there_is_no_mask_to_know(positions: Any) -> None:
    """An attacker takes the image as the network saw it: shuffled or not, it is the same to it."""
    model, (images, _) = (
        with_puzzle(plain_model("vit-small"), positions=positions).train(),
        make_batch(),
    )
    survey, record = SiteFinder(), MaskRecorder()
    with survey:
        model(images)
    assert survey.sites == []
    record.begin()
    torch.manual_seed(0)
    with record:
        found = copy.deepcopy(model)(images)
    assert record.masks_by_site() == ()
    torch.manual_seed(0)
    assert torch.equal(copy.deepcopy(model)(images), found)
    with FixedMasks():
        straight = model(images)
    assert torch.equal(straight, model.eval()(images))


def test_masks_between_zero_and_one_can_be_learnt() -> None:
    model, (images, _) = with_puzzle(plain_model("vit-small")).train(), make_batch()
    kept = torch.rand(3, CELLS, generator=generator(1)).requires_grad_()
    with FixedMasks([kept]):
        found = model(images)
    (gradient,) = torch.autograd.grad(found.square().sum(), kept)
    assert (gradient != 0).all()


@EITHER
def test_several_victims_are_differentiated_at_once(name: str) -> None:
    """vmap over grad of a functional call, as an attack and a federation do."""
    model = with_puzzle(plain_model(name)).train().requires_grad_(False)
    images, labels = make_batch(4)
    kept = (torch.rand(4, CELLS, generator=generator(1)) < 0.6).float()
    weights = dict(model.named_parameters())

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        with FixedMasks([mask[None]]):
            return F.cross_entropy(functional_call(model, own, (x[None],)), y[None])

    together = vmap(grad(loss), in_dims=(None, 0, 0, 0))(weights, images, labels, kept)
    for victim in range(4):
        alone = grad(loss)(weights, images[victim], labels[victim], kept[victim])
        for key, gradient in alone.items():
            torch.testing.assert_close(together[key][victim], gradient, atol=1e-5, rtol=1e-4)
        hidden = together["pos_embed"][victim, 0, 1:][kept[victim] == 0]
        assert (hidden == 0).all()
        assert together["puzzle.unknown"][victim].any()
    assert all(weights[n] is p for n, p in model.named_parameters())
