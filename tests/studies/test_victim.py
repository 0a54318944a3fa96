"""The network that is trained for the study of TIP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keyhole.models import build
from keyhole_studies.resident_data import ResidentData, load_resident_data, measure_accuracy
from keyhole_studies.training import TrainingSettings, train_network
from keyhole_studies.victim import prepare_victim

CPU = torch.device("cpu")
SMALL = "keyhole.models.shallow_convnet:shallow_convnet"
QUICK = TrainingSettings(
    epochs=15,
    batch_size=64,
    lr=0.05,
    optimiser="sgd",
    weight_decay=5e-4,
    decay_all=True,
    warm_up=3,
    decay="linear",
    smoothing=0.05,
)


@pytest.fixture(scope="module")
def digits() -> ResidentData:
    return load_resident_data("digits", None, 0, CPU)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return prepare_victim("digits", QUICK, seed=0, device=CPU, network=SMALL)


def accuracy_of(model: nn.Module, data: ResidentData) -> float:
    return measure_accuracy(model, data.test, data.test_indices)


def test_it_learns_what_it_was_not_shown(model: nn.Module, digits: ResidentData) -> None:
    fresh = build(SMALL, classes=10, channels=1, image_size=8, seed=0)
    assert accuracy_of(fresh, digits) < 0.3
    assert accuracy_of(model, digits) > 0.75
    assert not model.training


def test_a_part_is_held_out_where_a_set_has_no_test_part(digits: ResidentData) -> None:
    assert not set(digits.train_indices) & set(digits.test_indices)
    assert len(digits.train_indices) + len(digits.test_indices) == len(digits.data) == 1797
    assert len(digits.test_indices) == 359


def test_a_set_is_tested_on_its_own_test_part(data_dir: Path) -> None:
    found = load_resident_data("cifar100", str(data_dir), 0, CPU)
    assert (len(found.train_indices), len(found.test_indices)) == (1117, 916)
    assert found.test is not found.data


def test_training_is_repeatable_and_follows_its_seed(digits: ResidentData) -> None:
    settings = replace(QUICK, epochs=2, batch_size=32, lr=0.1, warm_up=0.4)
    states = []
    for seed in (1, 1, 2):
        made = build(SMALL, classes=10, channels=1, image_size=8, seed=0)
        train_network(made, digits.data, digits.train_indices[:128], settings, seed=seed)
        states.append(torch.cat([p.detach().flatten() for p in made.parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.allclose(states[0], states[2], atol=1e-3)


def test_draws_of_others_are_left_alone(digits: ResidentData) -> None:
    before = torch.get_rng_state()
    made = build("resnet18", classes=10, channels=1, image_size=8, seed=0)
    settings = replace(QUICK, epochs=1, warm_up=0.2)
    train_network(made, digits.data, digits.train_indices[:4], settings, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.backends.cudnn.benchmark is False


def test_earlier_weights_of_half_precision_take_the_place_of_training(
    model: nn.Module, digits: ResidentData, tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)
    found = prepare_victim("digits", None, seed=5, device=CPU, network=SMALL, weights=path)
    assert next(found.parameters()).dtype == torch.float32
    assert accuracy_of(found, digits) == pytest.approx(accuracy_of(model, digits), abs=0.01)
