from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import InvertingGradients
from keyhole.attacks.matching.problem import MatchingProblem, take_as_one_step
from keyhole.attacks.matching.uploaded_statistics import find_norm_layers, read_statistics
from keyhole.data import load
from keyhole.federation import LocalTraining

Observe = Callable[..., Any]


def network(momentum: float | None = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6, momentum=momentum),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(384, 10),
    )


def first_moments(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance behind the first layer, whose weights do not change."""
    return torch.var_mean(model[0](images), (0, 2, 3), correction=0)[::-1]


@pytest.mark.parametrize("momentum", [0.1, 0.4, None])
def test_several_steps_give_the_mean_that_the_buffers_weighted(momentum: float | None) -> None:
    model = network(momentum).double()
    layers = find_norm_layers(model, (1, 8, 8))
    assert layers is not None
    batches = torch.randn(3, 5, 1, 8, 8, dtype=torch.double)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for batch in batches:
        model(batch)
    change = {name: buffer - before[name] for name, buffer in model.named_buffers()}
    read = read_statistics(layers, change, steps=3, batch=5)
    assert read is not None
    moments = [first_moments(model, batch) for batch in batches]
    shares = layers[0].shares(3)
    for found, own in ((read[0].mean, 0), (read[0].var, 1)):
        expected = sum(s * each[own] for s, each in zip(shares, moments, strict=True))
        assert torch.allclose(found[0], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (LocalTraining(lr=0.1), True),
        (LocalTraining(lr=0.1, steps=3), True),
        (LocalTraining(), False),  # a gradient alone, without buffers
        (LocalTraining(lr=0.1, mode="frozen-norm"), False),
        (LocalTraining(lr=0.1, mode="eval"), False),
    ],
)
def test_statistics_are_used_where_train_mode_clients_shared_buffers(
    observe: Observe, training: LocalTraining, told: bool
) -> None:
    seen = observe(network(), load("digits"), [0, 1, 2], training=training).observation
    seen = replace(seen, knowledge=replace(seen.knowledge, client_mode=training.mode))
    assert bool(MatchingProblem.from_observation(seen).norms) == told


def test_buffers_that_no_batch_can_have_left_are_not_used(observe: Observe) -> None:
    seen = observe(network(), load("digits"), [0, 1], training=LocalTraining(lr=0.1)).observation
    change = {n: t - 1 if n.endswith("running_var") else t for n, t in seen.update.change.items()}
    noisy = replace(seen, update=replace(seen.update, change=change))
    assert not MatchingProblem.from_observation(noisy).norms


def test_a_secure_sum_and_a_layer_that_runs_twice_tell_no_batch(observe: Observe) -> None:
    seen = observe(network(), load("digits"), [0, 1], training=LocalTraining(lr=0.1)).observation
    summed = replace(seen, knowledge=replace(seen.knowledge, clients=2))
    assert not MatchingProblem.from_observation(summed).norms
    norm = nn.BatchNorm2d(1)
    assert find_norm_layers(nn.Sequential(norm, norm), (1, 8, 8)) is None


def test_who_asks_for_statistics_that_nobody_sent_is_told(observe: Observe) -> None:
    victim = observe(network(), load("digits"), [0, 1]).telling("labels")
    assert not InvertingGradients().incompatibilities(victim.observation)
    reasons = InvertingGradients(batch_statistics="both").incompatibilities(victim.observation)
    assert any("batch statistics" in reason for reason in reasons)


def test_steps_taken_for_one_leave_the_statistics_out(observe: Observe) -> None:
    training = LocalTraining(lr=0.1, epochs=1, batch_size=2)
    seen = observe(network(), load("digits"), [0, 1, 2, 3], training=training).observation
    assert MatchingProblem.from_observation(seen).norms
    one = take_as_one_step(seen)
    assert not MatchingProblem.from_observation(one).norms
    assert "0.weight" in one.update.change


def test_anchored_matching_reads_a_batch_where_plain_train_mode_matching_does_not(
    observe: Observe,
) -> None:
    training = LocalTraining(lr=0.1)
    victim = observe(network(), load("digits"), [0, 5], training=training).telling("labels")
    found = {
        use: InvertingGradients(iterations=150, batch_statistics=use)(victim.observation)
        for use in ("ignored", "both")
    }
    decibels = {use: sum(victim.best_decibels(each)) / 2 for use, each in found.items()}
    assert decibels["both"] > decibels["ignored"] + 2, decibels
    assert any("statistics" in note for note in found["both"].notes)
    assert not any("statistics" in note for note in found["ignored"].notes)
