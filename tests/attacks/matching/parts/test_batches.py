"""How the batch of a step is made of the images that are sought, and taken apart again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from keyhole.attacks.matching.parts.batches import (
    AugmentedSamples,
    MixedSamples,
    MixingWeights,
    make_batch,
)
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.defenses import DEFENSES
from keyhole.defenses.batch_augmentation import TURNS
from keyhole.models import build

Clients = Callable[..., list[Any]]
VICTIMS, BATCH = 3, 2


def make_problem(clients: Clients, text: str, lr: float | None = None) -> MatchingProblem:
    model = build("mlp", classes=10, channels=1, image_size=8)
    defense = DEFENSES.parse(text)
    steps = {} if lr is None else {"lr": lr, "steps": 2}
    seen = clients(model, [[3, 4]], defense, **steps)[0].observation
    return MatchingProblem.from_observation(seen)


@pytest.fixture
def problem(clients: Clients) -> MatchingProblem:
    return make_problem(clients, "none")


def images() -> torch.Tensor:
    return torch.randn(VICTIMS, BATCH, 1, 8, 8)


def targets() -> torch.Tensor:
    return torch.rand(VICTIMS, BATCH, 10).softmax(-1)


def test_each_victim_s_images_are_followed_by_its_own_copies(problem: MatchingProblem) -> None:
    x, y = images(), targets()
    samples, labels = AugmentedSamples(TURNS).form(x, y, {}, problem)
    assert samples.shape == (VICTIMS, 4 * BATCH, 1, 8, 8)
    for victim in range(VICTIMS):
        for turn in range(4):
            part = slice(turn * BATCH, (turn + 1) * BATCH)
            assert torch.equal(samples[victim, part], x[victim].rot90(turn, (-2, -1)))
            assert torch.equal(labels[victim, part], y[victim])


def test_mixtures_are_weighted_sums_of_images_and_labels(problem: MatchingProblem) -> None:
    x, y, scores = images(), targets(), torch.randn(VICTIMS, BATCH, BATCH)
    samples, labels = MixedSamples().form(x, y, {"mixing": scores}, problem)
    weights = scores.softmax(-1)
    for v in range(VICTIMS):
        for i in range(BATCH):
            mixed = sum(weights[v, i, j] * x[v, j] for j in range(BATCH))
            torch.testing.assert_close(samples[v, i], mixed)
            label = sum(weights[v, i, j] * y[v, j] for j in range(BATCH))
            torch.testing.assert_close(labels[v, i], label)


def test_flipped_images_are_sought_as_they_are(problem: MatchingProblem) -> None:
    x, scores = images(), torch.rand(VICTIMS, BATCH, BATCH)
    samples, _ = MixedSamples(flips=True).form(x, targets(), {"mixing": scores}, problem)
    assert samples is x


def test_flips_are_undone_by_the_absolute_value_and_mixtures_by_their_weights(
    problem: MatchingProblem,
) -> None:
    """Images brighter than middle grey come back exactly."""
    low, high = problem.box
    middle, half = (low + high) / 2, (high - low) / 2
    size = torch.rand(BATCH, 1, 8, 8)
    weights = torch.tensor([[0.6, 0.4], [0.35, 0.65]])
    mixed = torch.einsum("ij,jchw->ichw", weights, size)
    signs = torch.where(torch.rand(mixed.shape) < 0.5, -1.0, 1.0)
    found = MixedSamples(flips=True).restore(
        middle + half * mixed * signs, {"mixing": weights.log()}, problem
    )
    torch.testing.assert_close(found, middle + half * size, atol=1e-4, rtol=1e-4)
    plain = images()[0]
    assert MixedSamples().restore(plain, {"mixing": weights}, problem) is plain


def test_mixtures_are_guessed_to_be_mainly_an_image_of_their_own(problem: MatchingProblem) -> None:
    shares = MixingWeights().render(MixingWeights().start(problem, torch.Generator()))
    torch.testing.assert_close(shares.sum(-1), torch.ones(BATCH))
    assert bool((shares.diagonal() > 0.8).all())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("none", type(None)),
        ("mixup", MixedSamples),
        ("instahide", MixedSamples),
        ("oasis", AugmentedSamples),
        ("oasis(copies='none')", type(None)),
    ],
)
def test_the_batch_is_made_as_the_defense_declares(clients: Clients, text: str, kind: type) -> None:
    assert isinstance(make_batch(make_problem(clients, text)), kind)
