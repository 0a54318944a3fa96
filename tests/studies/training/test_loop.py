"""The loop that trains the studies' networks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from keyhole.data import ImageSet
from keyhole.defenses import Mjp
from keyhole.errors import DoesNotFit
from keyhole_studies.mjp.experiments import train_on_curve
from keyhole_studies.mjp.networks import build_deit
from keyhole_studies.resident_data import ResidentData, measure_accuracy
from keyhole_studies.training import TrainingSettings, take_step, train_network
from keyhole_studies.training.optimisers import group_parameters, make_optimiser

EVERYTHING = TrainingSettings(
    epochs=1,
    batch_size=16,
    warm_up=0.5,
    smoothing=0.1,
    mixed=0.5,
    erasing=0.25,
    rand_augment="rand-m9-mstd0.5-inc1",
    clip=5.0,
)


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_deit(width=32, depth=1, heads=2)


@pytest.fixture
def resident(shades: ImageSet) -> ResidentData:
    every = list(range(len(shades)))
    return ResidentData(shades, every, shades, every)


def test_a_network_learns_and_its_curve_is_kept(resident: ResidentData) -> None:
    defense = Mjp()
    model = defense.prepare_model(small())
    settings = TrainingSettings(
        epochs=10, batch_size=16, lr=5e-3, warm_up=1, smoothing=0.1, clip=5.0
    )

    def accuracy() -> float:
        return measure_accuracy(model, resident.test, resident.test_indices)

    before = accuracy()
    found = train_on_curve(model, resident, settings, defense, seed=0)
    assert [epoch for epoch, _, _ in found["curve"]] == [5, 10]
    assert found["curve"][-1][1] == accuracy() > before + 0.2
    assert found["recipe"]["epochs"] == 10


def test_training_is_repeatable(resident: ResidentData) -> None:
    twins = [Mjp().prepare_model(small()) for _ in range(3)]
    for model, seed in zip(twins, (3, 3, 4), strict=True):
        train_network(model, resident.data, resident.train_indices, EVERYTHING, seed=seed)
    first, second, other = (model.state_dict() for model in twins)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_global_generators_are_left_where_they_were(resident: ResidentData) -> None:
    model = small()
    numpy_state, python_state = np.random.get_state()[1].tolist(), random.getstate()
    before = torch.get_rng_state()
    train_network(model, resident.data, resident.train_indices, EVERYTHING, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_state
    assert random.getstate() == python_state
    assert torch.backends.cudnn.benchmark is False


def test_epochs_are_counted_and_a_callback_may_evaluate(resident: ResidentData) -> None:
    model, epochs = small(), []

    def note(epoch: int, loss: float) -> None:
        epochs.append(epoch)
        assert loss > 0
        assert model.training
        model.eval()

    settings = TrainingSettings(epochs=3, batch_size=32)
    train_network(model, resident.data, resident.train_indices, settings, seed=0, after_epoch=note)
    assert epochs == [1, 2, 3]
    assert model.training


def test_a_penalty_is_part_of_the_loss() -> None:
    model = torch.nn.Linear(2, 3)
    settings = TrainingSettings(epochs=1, optimiser="sgd", lr=1e-6, weight_decay=0.0)
    x, labels = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    plain, penalised = (
        take_step(model, x, labels, make_optimiser(model, settings), penalty=penalty)
        for penalty in (None, lambda: 5 + 0 * model.weight.sum())
    )
    assert float(penalised - plain) == pytest.approx(5.0, abs=1e-4)


def test_a_step_clips_its_gradient() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    settings = TrainingSettings(
        epochs=1, optimiser="sgd", lr=1.0, momentum=0.5, weight_decay=0.0, clip=1e-3
    )
    x = torch.full((1, 2), 1e4)
    take_step(model, x, torch.tensor([0]), make_optimiser(model, settings), clip=settings.clip)
    by_nesterov = 1.5 * 1e-3  # the gradient, and its momentum once more
    assert float(model.weight.detach().norm()) == pytest.approx(by_nesterov, rel=1e-3)


def test_positions_and_what_mjp_adds_are_not_decayed() -> None:
    model = Mjp().prepare_model(small())
    plain, decayed = group_parameters(model, TrainingSettings(epochs=1))
    assert (plain["weight_decay"], decayed["weight_decay"]) == (0.0, 0.05)
    free = {id(parameter) for parameter in plain["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in free}
    assert {"pos_embed", "cls_token", "puzzle.unknown", "puzzle.head.0.weight"} <= names
    assert "patch_embed.proj.weight" not in names
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


def test_all_weights_decay_where_it_is_asked_for() -> None:
    model = small()
    (group,) = group_parameters(model, TrainingSettings(epochs=1, decay_all=True))
    assert len(group["params"]) == len(list(model.parameters()))


def test_the_rate_rises_then_falls_to_nought() -> None:
    settings = TrainingSettings(epochs=10, lr=1.0, warm_up=1)
    rates = [settings.rate(step / 100) for step in range(101)]
    assert rates[1] == pytest.approx(0.1)
    assert max(rates) == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)


def test_the_rate_may_fall_in_a_line() -> None:
    settings = TrainingSettings(epochs=1, lr=0.4, warm_up=0.2, decay="linear")
    rates = [settings.rate(share / 100) for share in range(101)]
    assert rates[0] == rates[-1] == 0
    assert max(rates) == pytest.approx(0.4)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_an_odd_batch_cannot_be_mixed(resident: ResidentData) -> None:
    settings = TrainingSettings(epochs=1, batch_size=5, mixed=1.0)
    with pytest.raises(DoesNotFit, match="a batch of 5 images cannot be mixed"):
        train_network(small(), resident.data, resident.train_indices, settings, seed=0)
