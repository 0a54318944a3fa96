"""The variants of MJP's Table 2: their parameters and positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from jigsaw_models import (
    CELLS,
    EITHER,
    PATCH,
    compute_gradients,
    draw_seeded_puzzle,
    make_batch,
    plain_model,
    reference_logits,
)
from keyhole.defenses import Mjp
from mjp_variants import VARIANTS

HEAD = {"puzzle.head.0.weight", "puzzle.head.0.bias", "puzzle.head.2.weight", "puzzle.head.2.bias"}
ADDED: dict[str, set[str]] = {
    **{letter: set() for letter in "ABCE"},
    "D": HEAD,
    "F": {"puzzle.index"},
    **{letter: {"puzzle.unknown"} for letter in "GH"},
    "I": {"puzzle.unknown", "puzzle.head.weight", "puzzle.head.bias"},
    "J": {"puzzle.unknown", *HEAD},
}


def test_the_papers_ten_variants_are_there() -> None:
    assert list(VARIANTS) == list("ABCDEFGHIJ") == sorted(ADDED)
    assert VARIANTS["J"] == Mjp()


def enough(letter: str) -> Mjp:
    """A variant that, if it covers anything, covers more than one of so few patches."""
    variant = VARIANTS[letter]
    return replace(variant, gamma=0.4) if variant.gamma else variant


@EITHER
@pytest.mark.parametrize("letter", VARIANTS)
def test_a_variant_has_the_parameters_it_should_and_trains_them(name: str, letter: str) -> None:
    defense, base = enough(letter), plain_model(name)
    model: Any = defense.prepare_model(base).train()
    assert set(model.state_dict()) - set(base.state_dict()) == ADDED[letter]
    images, labels = make_batch()
    found = defense.on_step(model, images, labels)
    assert (found is None) == (defense.dal == "none")
    names = [name for name, _ in model.named_parameters()]
    step = compute_gradients(model) if found is None else dict(zip(names, found, strict=True))
    assert all(gradient.isfinite().all() for gradient in step.values())
    assert all(gradient.any() for gradient in step.values())
    moves = letter not in "ABD"
    assert torch.equal(model(images), model(images)) != moves
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.sub_(step[key], alpha=0.1)
    assert model(images).isfinite().all()


@EITHER
def test_without_positions_the_order_of_patches_does_not_matter(name: str) -> None:
    model, (images, _) = VARIANTS["B"].prepare_model(plain_model(name)), make_batch()
    turned = images.roll(PATCH, 2)
    for training in (True, False):
        torch.testing.assert_close(model.train(training)(images), model(turned))
    assert not torch.allclose(plain_model(name)(images), plain_model(name)(turned), atol=1e-4)
    assert compute_gradients(model)["pos_embed"].any()  # shared all the same


@EITHER
def test_an_index_tells_which_patch_lies_in_a_slot(name: str) -> None:
    model, (images, _) = enough("F").prepare_model(plain_model(name)), make_batch()
    own, index = model.pos_embed.detach(), model.puzzle.index.detach()
    straight = torch.arange(CELLS).expand(3, -1)
    table = own + F.pad(index, (0, 0, 1, 0))
    expected = reference_logits(model, images, straight, table)
    torch.testing.assert_close(model.eval()(images), expected)
    puzzle = draw_seeded_puzzle(model, images)
    assert puzzle.order is not None
    moved = torch.stack([index[0][places] for places in puzzle.order])
    table = own + F.pad(moved, (0, 0, 1, 0))
    torch.manual_seed(0)
    torch.testing.assert_close(
        model.train()(images), reference_logits(model, images, puzzle.order, table)
    )


@EITHER
def test_own_positions_stay_those_of_the_slots(name: str) -> None:
    model, (images, _) = enough("E").prepare_model(plain_model(name)).train(), make_batch()
    puzzle = draw_seeded_puzzle(model, images)
    assert puzzle.order is not None
    torch.manual_seed(0)
    torch.testing.assert_close(
        model(images), reference_logits(model, images, puzzle.order, model.pos_embed)
    )
