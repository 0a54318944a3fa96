"""Several rounds of the same clients, matched together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from keyhole.attacks import InvertingGradients, SurrogateInversion
from keyhole.attacks.matching.gradients.rounds import RoundsMatcher
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.data import load
from keyhole.threat import Observation, SeenRound

Observe = Callable[..., Any]


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    second = copy.deepcopy(first)
    for parameter in second.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return first, second


def in_two_rounds(observe: Observe, images: list[int]) -> tuple[Any, Observation]:
    """The last round of a client alone, and with the one before it."""
    first, second = networks()
    before = observe(first, load("digits"), images).observation
    victim = observe(second, load("digits"), images).telling("labels")
    seen = SeenRound(1, first.state_dict(), before.update)
    return victim, replace(victim.observation, rounds=(seen,))


def test_each_round_is_matched_at_its_own_weights(observe: Observe) -> None:
    victim, both = in_two_rounds(observe, [0, 1])
    group = VictimGroup(InvertingGradients(), [both, both])
    assert group.rounds == [1]
    matcher = group.make_matcher([0, 1])
    assert isinstance(matcher, RoundsMatcher)
    inputs = victim.data.normalise(victim.images)[None].expand(2, -1, -1, -1, -1)
    labels = torch.eye(10)[victim.labels][None].expand(2, -1, -1)
    match = matcher.select(torch.tensor([1]))(inputs[:1].clone().requires_grad_(), labels[:1], None)
    objective = group.parts.objective
    assert objective(match) < 1e-6  # the truth fits both rounds ...
    assert objective(match.others[0]) < 1e-6
    wrong = group.match_observations([victim.observation], group.problem)
    assert len(match.others) == 1
    mixed = wrong(inputs[:1].clone().requires_grad_(), labels[:1], None)
    mixed.targets = match.others[0].targets
    assert objective(mixed) > 1e-3  # ... each only at its own weights


def test_two_rounds_read_more_than_one(observe: Observe) -> None:
    victim, both = in_two_rounds(observe, [0, 1, 2, 3])
    attack = InvertingGradients(iterations=300)
    one, two = attack(victim.observation), attack(both)
    assert any("earlier rounds: 1" in note for note in two.notes)
    assert sum(victim.best_decibels(two)) / 4 > sum(victim.best_decibels(one)) / 4 + 1


def test_only_rounds_that_were_seen_of_all_victims_are_combined(observe: Observe) -> None:
    victim, both = in_two_rounds(observe, [0, 1])
    assert VictimGroup(InvertingGradients(), [both, victim.observation]).rounds == []
    assert VictimGroup(SurrogateInversion(), [both]).rounds == []


def test_masks_that_differ_between_rounds_are_not_combined(observe: Observe) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10))
    seen = observe(model, load("digits"), [0]).observation
    both = replace(seen, rounds=(SeenRound(1, model.state_dict(), seen.update),))
    assert VictimGroup(InvertingGradients(labels="inferred"), [both]).rounds == []
