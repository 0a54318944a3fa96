"""The localiser: what it learns from which positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jigsaw_models import (
    CELLS,
    PATCH,
    draw_seeded_puzzle,
    make_batch,
    plain_model,
    with_puzzle,
)
from keyhole.models.puzzle import PuzzleRules


def by_hand(model: Any, kept: Tensor) -> float:
    """The localisation loss, position by position."""
    table = model.pos_embed.detach()[0, 1:].double()
    layers = [m for m in model.puzzle.head.modules() if isinstance(m, nn.Linear)]
    total, count = 0.0, 0
    for image in kept:
        for place in range(CELLS):
            if image[place] == 0:
                continue
            value = table[place]
            for number, layer in enumerate(layers):
                value = value.relu() if number else value
                value = layer.weight.detach().double() @ value + layer.bias.detach().double()
            total += abs(float(value[0]) - place // 4) + abs(float(value[1]) - place % 4)
            count += 2
    return total / count


@pytest.mark.parametrize("localiser", ["ln", "nln"])
def test_the_localisation_loss_is_the_mean_distance_over_known_positions(localiser: Any) -> None:
    model, (images, _) = with_puzzle(plain_model("timm"), localiser=localiser).train(), make_batch()
    puzzle = draw_seeded_puzzle(model, images)
    torch.manual_seed(0)
    model(images)
    found = float(model.localisation_loss().detach())
    assert found == pytest.approx(by_hand(model, puzzle.kept), rel=1e-5)
    assert found != pytest.approx(by_hand(model, torch.ones(1, CELLS)), rel=1e-3)


@pytest.mark.parametrize("localiser", ["ln", "nln"])
def test_where_there_is_no_mask_all_positions_are_localised(localiser: Any) -> None:
    model, (images, _) = (
        with_puzzle(plain_model("timm"), gamma=0.0, localiser=localiser).train(),
        make_batch(),
    )
    everything = pytest.approx(by_hand(model, torch.ones(1, CELLS)), rel=1e-5)
    assert float(model.localisation_loss().detach()) == everything
    model(images)
    assert float(model.localisation_loss().detach()) == everything


def test_a_batch_that_is_no_puzzle_does_not_remember_the_mask_before_it() -> None:
    model, (images, _) = with_puzzle(plain_model("timm"), localiser="ln").train(), make_batch()
    model(images)
    masked = float(model.localisation_loss().detach())
    model.puzzle.rules = PuzzleRules(0.4, (PATCH, PATCH), share=1e-9)
    model(images)
    found = float(model.localisation_loss().detach())
    assert found == pytest.approx(by_hand(model, torch.ones(1, CELLS)), rel=1e-5)
    assert found != pytest.approx(masked, rel=1e-3)


@pytest.mark.parametrize("localiser", ["ln", "nln", "pca"])
def test_covered_positions_have_no_part_in_localisation(localiser: Any) -> None:
    model, (images, _) = (
        with_puzzle(plain_model("timm"), localiser=localiser).train(),
        make_batch(1),
    )
    puzzle = draw_seeded_puzzle(model, images)
    torch.manual_seed(0)
    model(images)
    (gradient,) = torch.autograd.grad(model.localisation_loss(), [model.pos_embed])
    assert not gradient[0, 0].any()
    assert torch.equal(gradient[0, 1:].any(1), puzzle.kept[0] != 0)


def test_two_directions_of_positions_on_a_plane_localise_them() -> None:
    """PCA needs no weights: rows and columns on orthogonal axes are found, but for their signs."""
    model = with_puzzle(plain_model("timm"), gamma=0.0, localiser="pca")
    rows, columns = model.puzzle.coordinates.T.double() - 1.5
    plane = torch.zeros(1, 17, 32)
    plane[0, 1:, 3], plane[0, 1:, 7] = 1.2 * rows.float(), columns.float()
    with torch.no_grad():
        model.pos_embed.copy_(plane)
    found = float(model.localisation_loss().detach())
    true = model.puzzle.coordinates
    signs = [
        float((torch.stack([a * 1.2 * rows, b * columns], 1) - true).abs().mean())
        for a in (-1, 1)
        for b in (-1, 1)
    ]
    assert min(abs(found - value) for value in signs) < 1e-4
    assert set(model.state_dict()) - set(plain_model("timm").state_dict()) == {"puzzle.unknown"}


@pytest.mark.parametrize("localiser", ["ln", "pca"])
def test_where_all_is_covered_nothing_is_localised(localiser: Any) -> None:
    model = with_puzzle(plain_model("timm"), localiser=localiser)
    model.puzzle.known_counts = torch.zeros(CELLS)
    loss = model.localisation_loss()
    (gradient,) = torch.autograd.grad(loss, [model.pos_embed])
    assert float(loss.detach()) == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_without_a_localiser_the_loss_is_zero() -> None:
    assert with_puzzle(plain_model("timm")).localisation_loss().tolist() == 0
