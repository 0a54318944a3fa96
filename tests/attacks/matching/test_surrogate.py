from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from keyhole.attacks import InvertingGradients, SurrogateInversion
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.gradients.matchers import LoopMatcher, VmapMatcher
from keyhole.attacks.matching.parts.unknowns import Surrogate
from keyhole.attacks.matching.problem import MatchingProblem, take_as_one_step
from keyhole.attacks.matching.surrogate import SurrogateMatcher
from keyhole.data import load
from keyhole.federation import LocalTraining

Observe = Callable[..., Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 10))


@pytest.mark.parametrize("kind", [VmapMatcher, LoopMatcher])
def test_gradients_are_those_at_the_place_and_with_the_weights(
    observe: Observe, kind: type[VmapMatcher]
) -> None:
    digits = load("digits")
    training = LocalTraining(lr=0.5, epochs=1, batch_size=1)
    seen = observe(network(), digits, [0, 1, 2], training=training).observation
    problem = MatchingProblem.from_observation(take_as_one_step(seen))
    targets = Targets.stack([seen.update.gradient()], problem.like)
    changes = {name: change[None] for name, change in seen.update.change.items()}
    value = torch.tensor([[0.3, 0.0, 1.0, -1.0]])
    matcher = SurrogateMatcher(kind(problem, targets), changes, None).at(value)
    images, labels = torch.randn(1, 3, 1, 8, 8), torch.tensor([[4, 4, 2]])
    found = matcher(images, F.one_hot(labels, 10).float(), None)
    place, share = Surrogate.split(value)
    assert share.sum() == pytest.approx(3)
    moved = network()
    for name, parameter in moved.named_parameters():
        parameter.data += place[0] * seen.update.change[name]
    losses = F.cross_entropy(moved(images[0]), labels[0], reduction="none")
    expected = torch.autograd.grad((share[0] * losses).mean(), list(moved.parameters()))
    for (name, _), gradient in zip(moved.named_parameters(), expected, strict=True):
        assert torch.allclose(found.gradient(name)[0], gradient, atol=1e-6)


def test_a_surrogate_reads_more_of_long_training_than_one_large_step(observe: Observe) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.Tanh(), nn.Linear(60, 10))
    training = LocalTraining(lr=0.1, epochs=6, batch_size=1)
    victim = observe(model, load("digits"), [0, 1], training=training).telling("labels")
    one = take_as_one_step(victim.observation)
    plain, moved = (
        attack(one)
        for attack in (InvertingGradients(iterations=400), SurrogateInversion(iterations=400))
    )
    assert moved.diagnostics["loss"] < 0.5 * plain.diagnostics["loss"]
    assert sum(victim.best_decibels(moved)) / 2 > sum(victim.best_decibels(plain)) / 2 + 3
