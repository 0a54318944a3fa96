"""The network that is trained for the study of TIP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keyhole.models import build
from keyhole.studies.tip.heatmaps import TABLE_2
from keyhole.studies.tip.victim import (
    RECIPES,
    Parts,
    Recipe,
    accuracy_of,
    batches,
    parts,
    train,
    trained,
)

CPU = torch.device("cpu")
SMALL = "keyhole.models.shallow_convnet:shallow_convnet"
QUICK = Recipe(epochs=15, batch_size=64, lr=0.05)


@pytest.fixture(scope="module")
def digits() -> Parts:
    return parts("digits", None, 0, CPU)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained("digits", seed=0, device=CPU, network=SMALL, recipe=QUICK)


def test_it_learns_what_it_was_not_shown(model: nn.Module, digits: Parts) -> None:
    fresh = build(SMALL, classes=10, channels=1, image_size=8, seed=0)
    assert accuracy_of(fresh, digits) < 0.3
    assert accuracy_of(model, digits) > 0.75
    assert not model.training


def test_a_part_is_held_out_where_a_set_has_no_test_part(digits: Parts) -> None:
    assert not set(digits.train) & set(digits.tested)
    assert len(digits.train) + len(digits.tested) == len(digits.data) == 1797
    assert len(digits.tested) == 359


def test_a_set_is_tested_on_its_own_test_part(data_dir: Path) -> None:
    found = parts("cifar100", str(data_dir), 0, CPU)
    assert (len(found.train), len(found.tested)) == (1117, 916)
    assert found.test is not found.data


def test_training_is_repeatable_and_follows_its_seed(digits: Parts) -> None:
    few = replace(digits, train=digits.train[:128])
    states = []
    for seed in (1, 1, 2):
        made = build(SMALL, classes=10, channels=1, image_size=8, seed=0)
        train(made, few, Recipe(epochs=2, batch_size=32, lr=0.1), seed=seed)
        states.append(torch.cat([p.detach().flatten() for p in made.parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.allclose(states[0], states[2], atol=1e-3)


def test_draws_of_others_are_left_alone(digits: Parts) -> None:
    few = replace(digits, train=digits.train[:64])
    before = torch.get_rng_state()
    made = build("resnet18", classes=10, channels=1, image_size=8, seed=0)
    train(made, replace(few, train=few.train[:4]), Recipe(epochs=1), seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.backends.cudnn.benchmark is False


def test_batches_are_full_and_cover_the_images() -> None:
    indices = list(range(100, 110))
    recipe = Recipe(epochs=2, batch_size=4)
    found = list(batches(indices, recipe, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in found] == [4, 4, 4, 4]
    assert len(set(torch.cat(found[:2]).tolist())) == 8
    assert set(torch.cat(found).tolist()) <= set(indices)
    few = batches(indices[:3], recipe, torch.Generator().manual_seed(0))
    assert [len(batch) for batch in few] == [3, 3]


def test_the_rate_rises_and_falls_to_nought() -> None:
    recipe = Recipe(epochs=1, lr=0.4)
    rates = [recipe.rate(share / 100) for share in range(101)]
    assert rates[0] == rates[-1] == 0
    assert max(rates) == pytest.approx(0.4)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_earlier_weights_of_half_precision_take_the_place_of_training(
    model: nn.Module, digits: Parts, tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)
    found = trained("digits", seed=5, device=CPU, network=SMALL, weights=path)
    assert next(found.parameters()).dtype == torch.float32
    assert accuracy_of(found, digits) == pytest.approx(accuracy_of(model, digits), abs=0.01)


def test_every_data_set_of_the_table_has_a_recipe() -> None:
    assert set(RECIPES) == set(TABLE_2)
