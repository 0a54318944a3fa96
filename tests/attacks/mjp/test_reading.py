"""What is exact: the mask, the localiser's part, the span, and every cell modulo the span."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks.mjp.reading import (
    Reading,
    combine_readings,
    find_covered_cells,
    find_hidden_positions,
    read_update,
    require_embedding,
    subtract_localisation,
)
from keyhole.defenses import Gaussian, HiddenPositions, Mjp
from keyhole.federation import LocalTraining
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Server
from keyhole.update import Update

Puzzle = Callable[..., Any]
QUARTER = Mjp(gamma=0.25)


def off(patches: Tensor, space: Tensor) -> Tensor:
    """What is left of patches ``[N, F]`` off a space ``[k, F]`` of orthonormal rows."""
    return patches - (patches @ space.T) @ space


@pytest.mark.parametrize("dal", ["nln", "ln", "pca", "none"])
@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.9, 1.0])
def test_the_mask_is_read_exactly(puzzle: Puzzle, vit: nn.Module, dal: Any, gamma: float) -> None:
    seen = puzzle(vit, Mjp(gamma=gamma, dal=dal, dal_weight=1.0), 0)
    assert torch.equal(find_covered_cells(seen.observation), seen.covered[0])
    assert seen.covered[0].any()


def test_nothing_covered_is_read_as_such(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, Mjp(gamma=0), 0)
    assert not find_covered_cells(seen.observation).any()
    found = read_update(seen.observation)
    assert found.space.shape == (0, 192)
    torch.testing.assert_close(found.rest, seen.patches, atol=1e-3, rtol=0)


@pytest.mark.parametrize("dal", ["nln", "ln"])
@pytest.mark.parametrize("weight", [0.01, 3.0])
def test_the_localisers_part_is_taken_off(
    puzzle: Puzzle, vit: nn.Module, dal: Any, weight: float
) -> None:
    """What is left is the gradient of the cross-entropy under the same puzzle."""
    seen = puzzle(vit, replace(QUARTER, dal=dal, dal_weight=weight), 0)
    plain = puzzle(vit, replace(QUARTER, dal="none"), 0)
    assert torch.equal(plain.covered[0], seen.covered[0])
    expected, whole = plain.observation.update.gradient(), seen.observation.update.gradient()
    found = subtract_localisation(seen.observation)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=0, atol=1e-7)
    assert not torch.allclose(whole["pos_embed"], expected["pos_embed"], rtol=0, atol=1e-6)
    heads = [name for name in found if name.startswith("puzzle.head")]
    assert len(heads) == {"nln": 4, "ln": 2}[dal]
    assert all(found[name].abs().max() < 1e-6 for name in heads)


def test_the_part_is_that_of_each_updates_own_mask(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, replace(QUARTER, dal_weight=3.0), 1, rounds=3)
    plain = puzzle(vit, replace(QUARTER, dal="none"), 1, rounds=3)
    for update, bare in zip(
        (*seen.observation.earlier, seen.observation.update),
        (*plain.observation.earlier, plain.observation.update),
        strict=True,
    ):
        found = subtract_localisation(seen.observation, update)["pos_embed"]
        assert torch.allclose(found, bare.gradient()["pos_embed"], rtol=0, atol=1e-7)


def test_shared_weights_show_the_same_as_a_shared_gradient(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0, training=LocalTraining(lr=10.0))
    assert seen.observation.update.lr == 10
    assert torch.equal(find_covered_cells(seen.observation), seen.covered[0])
    found = read_update(seen.observation)
    assert off(seen.patches[seen.covered[0]], found.space).norm() < 0.02 * seen.patches.norm()


def test_a_defense_that_is_not_known_takes_nothing_off(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0).observation
    for defense in (None, Gaussian()):
        other = replace(seen, knowledge=replace(seen.knowledge, defense=defense))
        assert find_hidden_positions(other) is None
        found, whole = subtract_localisation(other), seen.update.gradient()
        assert all(torch.equal(found[n], g) for n, g in whole.items())
    assert find_hidden_positions(seen) == HiddenPositions(QUARTER.dal_weight)


def vit_small() -> nn.Module:
    """64 patches of 48 values: more patches than a patch has pixels."""
    model = build("vit-small", classes=10, image_size=32)
    model.blocks = model.blocks[:1]
    return model


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("index", [0, 1])
def test_the_span_of_the_covered_patches_is_read(
    puzzle: Puzzle, vit: nn.Module, gamma: float, index: int
) -> None:
    seen = puzzle(vit, Mjp(gamma=gamma), index)
    found, covered = read_update(seen.observation), seen.covered[0]
    assert found.space.shape == (int(covered.sum()), 192)
    unit = found.space @ found.space.T
    torch.testing.assert_close(unit, torch.eye(len(unit)).double())
    inside = seen.patches[covered]
    assert (off(inside, found.space).norm(dim=1) < 1e-3 * inside.norm(dim=1)).all()
    outside = seen.patches[~covered]
    assert (off(outside, found.space).norm(dim=1) > 0.02 * outside.norm(dim=1)).all()


@pytest.mark.parametrize("make", ["vit", "vit_small"])
@pytest.mark.parametrize("index", [0, 1])
def test_every_cell_is_read_modulo_the_span(
    puzzle: Puzzle, vit: nn.Module, make: str, index: int
) -> None:
    """The truth in its right place, also where cells were covered and shuffled."""
    model = vit if make == "vit" else vit_small()
    seen = puzzle(model, QUARTER, index)
    found = read_update(seen.observation)
    torch.testing.assert_close(found.rest, off(seen.patches, found.space), atol=2e-3, rtol=0)
    assert found.residual < 1e-5
    assert torch.equal(found.covered, seen.covered[0])
    assert found.rest[~found.covered].any(1).all()


def test_reading_in_double_precision_is_exact(puzzle: Puzzle, vit: nn.Module) -> None:
    """Rounding is all that is lost."""
    seen = puzzle(vit, QUARTER, 0)
    model: Any = copy.deepcopy(seen.observation.model).double().train().requires_grad_()
    inputs = seen.data.normalise(seen.images.double())
    found = QUARTER.on_step(model, inputs, seen.observation.knowledge.labels)
    assert found is not None
    names = [name for name, _ in model.named_parameters()]
    update = Update.from_gradient(dict(zip(names, found, strict=True)))
    reading = read_update(Server(model).receive(update, seen.observation.knowledge))
    assert len(reading.space) == 4
    truth = inputs[0].flatten()[require_embedding(seen.observation).input_layer.layout]
    torch.testing.assert_close(reading.rest, off(truth, reading.space), atol=1e-9, rtol=0)
    assert reading.residual < 1e-14


@pytest.mark.parametrize("index", [0, 1, 2])
def test_several_rounds_read_the_image_exactly(puzzle: Puzzle, vit: nn.Module, index: int) -> None:
    """Where no patch was covered in every round, nothing stays hidden."""
    seen = puzzle(vit, QUARTER, index, rounds=5)
    assert not torch.stack(seen.covered).all(0).any()
    updates = (*seen.observation.earlier, seen.observation.update)
    rest, hidden = combine_readings([read_update(seen.observation, update) for update in updates])
    assert len(hidden) == 0
    torch.testing.assert_close(rest, seen.patches, atol=2e-3, rtol=0)


def random_space(size: int, seed: int, width: int = 12) -> Tensor:
    return torch.linalg.qr(torch.randn(width, size, generator=generator(seed)).double())[0].T


def test_what_all_spaces_have_in_common_stays_hidden() -> None:
    truth = torch.randn(5, 12, generator=generator(0)).double()
    shared = random_space(1, 1)
    readings = []
    for number in (2, 3):
        both = torch.cat([shared, random_space(2, number)])
        space = torch.linalg.qr(both.T)[0].T
        covered = torch.zeros(5, dtype=torch.bool)
        readings.append(Reading(covered, space, off(truth, space), 0.0))
    rest, hidden = combine_readings(readings)
    assert hidden.shape == (1, 12)
    torch.testing.assert_close(hidden.T @ hidden, shared.T @ shared)
    torch.testing.assert_close(rest, off(truth, shared))


def test_one_round_alone_is_itself() -> None:
    space = random_space(3, 0)
    one = Reading(torch.zeros(5, dtype=torch.bool), space, torch.ones(5, 12).double(), 0.0)
    assert combine_readings([one]) == (one.rest, one.space)


def test_two_rounds_of_one_mask_show_no_more_than_one() -> None:
    truth, space = torch.randn(5, 12).double(), random_space(3, 0)
    one = Reading(torch.zeros(5, dtype=torch.bool), space, off(truth, space), 0.0)
    rest, hidden = combine_readings([one, one])
    torch.testing.assert_close(rest, one.rest)
    torch.testing.assert_close(hidden.T @ hidden, space.T @ space)


def test_an_empty_update_explains_nothing(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0).observation
    empty = seen.update.map(lambda name, tensor: torch.zeros_like(tensor))
    found = read_update(replace(seen, update=empty))
    assert found.residual == 1
    assert not found.rest.any()
