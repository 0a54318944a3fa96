"""Looking past noise: gradient_weights alone, in a match, and in an attack on a noisy update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import ATTACKS, InvertingGradients
from keyhole.attacks.matching.gradients.factored import FactoredMatch
from keyhole.attacks.matching.gradients.factors import Factors
from keyhole.attacks.matching.gradients.gradient_weights import (
    GradientWeights,
    stack_weights,
    weights_from_noise,
)
from keyhole.attacks.matching.gradients.low_rank import factor_targets
from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets
from keyhole.attacks.matching.presets import FEATURES, choose_feature_weight
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.data import denormalise
from keyhole.defenses import DEFENSES, ClientSide, Defense, Noise
from keyhole.defenses.noise_model import build_projection
from keyhole.defenses.spectra import find_high_bins
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Observation

Clients = Callable[..., list[Any]]

DC = build_projection(find_high_bins(3, 3, 0.5))


def test_a_dimmed_row_keeps_the_sum_of_each_kernel() -> None:
    gradient = torch.randn(2, 4, 5, 3, 3, dtype=torch.double)
    keep = torch.tensor([[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 1.0, 1.0]], dtype=torch.double)
    through = GradientWeights(keep, DC)(gradient)
    torch.testing.assert_close(through.sum((-1, -2)), gradient.sum((-1, -2)))
    torch.testing.assert_close(through[0, 0], gradient[0, 0])
    flat = gradient[0, 1].mean((-1, -2), keepdim=True).expand(5, 3, 3)
    torch.testing.assert_close(through[0, 1], flat)
    torch.testing.assert_close(
        through[0, 2], (gradient[0, 2] + gradient[0, 2].mean((-1, -2), True)) / 2
    )


def test_without_bins_whole_rows_are_dimmed() -> None:
    gradient = torch.ones(3, 2, 2)
    assert GradientWeights(torch.tensor([0.0, 0.5, 1.0]))(gradient).sum((1, 2)).tolist() == [
        0.0,
        2.0,
        4.0,
    ]


def test_inner_products_weigh_values_by_their_trust() -> None:
    gradient = {"w": torch.randn(4, 200, dtype=torch.double)}
    belief = Noise(torch.tensor([0.0, 0.0, 1.0, 4.0], dtype=torch.double))
    weighting = weights_from_noise(gradient, {"w": belief})["w"]
    other = torch.randn(4, 200, dtype=torch.double)
    weighed = (gradient["w"] * other).sum(1) @ belief.trust(gradient["w"])
    torch.testing.assert_close((weighting(gradient["w"]) * weighting(other)).sum(), weighed)


@pytest.mark.parametrize(("variance", "sums"), [([0.0, 1e6], False), ([1e6, 1e6], True)])
def test_clean_frequencies_of_noisy_rows_count_where_no_row_is_clean(
    variance: list[float], sums: bool
) -> None:
    gradient = {"w": torch.randn(2, 5, 3, 3, dtype=torch.double)}
    belief = Noise(torch.tensor(variance, dtype=torch.double), DC)
    seen = weights_from_noise(gradient, {"w": belief})["w"](gradient["w"])
    assert seen[1].sum((-1, -2)).norm() > 1 if sums else seen[1].norm() < 0.1
    assert sums or torch.equal(seen[0], gradient["w"][0])


def test_each_victim_is_seen_through_its_own_lens() -> None:
    gradients = [{"w": torch.randn(3, 2)} for _ in range(2)]
    gradient_weights = [
        {"w": GradientWeights(torch.tensor(k))} for k in ([1.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    ]
    targets = Targets.stack(gradients, torch.zeros(()), gradient_weights=gradient_weights)
    assert targets.tensors["w"][0, 1].abs().sum() == 0
    assert targets.tensors["w"][1, 0].abs().sum() == 0
    match = BuiltMatch({"w": torch.ones(1, 3, 2)}, targets.select(torch.tensor([1])))
    assert match.weighted_gradient("w")[0].sum(1).tolist() == [0.0, 2.0, 2.0]


@pytest.mark.parametrize("bins", [DC, None], ids=["frequencies", "rows"])
def test_products_of_factors_are_those_of_what_is_seen(bins: torch.Tensor | None) -> None:
    """Without building the gradient: some rows dimmed, more of them for one victim."""
    victims, columns, channels, taps = 3, 4, 40, 70 * 9
    factors = Factors(
        torch.randn(victims, columns, taps, dtype=torch.double),
        torch.randn(victims, columns, channels, dtype=torch.double),
        torch.Size((channels, 70, 3, 3)),
    )
    keep = torch.rand(victims, channels, dtype=torch.double)
    keep[:, 10:] = 1
    keep[1, 3:] = 1
    observed = [{"w": torch.randn(channels, 70, 3, 3, dtype=torch.double)} for _ in range(victims)]
    gradient_weights = [{"w": GradientWeights(k, bins)} for k in keep]
    targets = Targets.stack(
        observed, torch.zeros((), dtype=torch.double), gradient_weights=gradient_weights
    )
    match = FactoredMatch(
        {}, {"w": factors}, factor_targets(targets, {"w": 4}, needs_full_gradients=False)
    )
    assert not match.is_built("w")
    seen, target = match.weighted_gradient("w"), match.target("w")
    dot, square = match.products("w")
    torch.testing.assert_close(dot, (seen * target).flatten(1).sum(1))
    torch.testing.assert_close(square, seen.square().flatten(1).sum(1))


def test_rows_are_dimmed_whole_for_all_where_they_are_for_one() -> None:
    gradient, keep = torch.ones(2, 2, 1, 3, 3), torch.zeros(2)
    both = stack_weights(
        [{"a": GradientWeights(keep, DC)}, {"a": GradientWeights(torch.tensor([1.0, 0.0]))}], keep
    )["a"]
    assert both(gradient).sum((2, 3, 4)).tolist() == [[0.0, 0.0], [9.0, 0.0]]


def test_a_parameter_without_a_lens_somewhere_has_none() -> None:
    keep = torch.ones(2)
    assert set(
        stack_weights(
            [
                {"a": GradientWeights(keep), "b": GradientWeights(keep)},
                {"a": GradientWeights(keep)},
            ],
            keep,
        )
    ) == {"a"}


def noisy(client: Any, defense: Defense, *, told: bool) -> Observation:
    """What the server sees of a client whose update got noise."""
    seen = client.observation
    truth = denormalise(client.inputs, client.data.mean, client.data.std)
    side = ClientSide(generator(0), seen.model, truth, client.labels)
    return dataclasses.replace(
        seen,
        update=defense.on_update(seen.update, side),
        knowledge=dataclasses.replace(seen.knowledge, defense=defense if told else None),
    )


def test_noise_that_is_known_hides_little(clients: Clients) -> None:
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    attack, defense = InvertingGradients(iterations=150), DEFENSES.parse("tip(beta=10, ratio=0.3)")
    [client] = clients(model, [[0]])
    none = client.decibels(attack(client.observation).images)
    naive = client.decibels(attack(noisy(client, defense, told=False)).images)
    adaptive = client.decibels(attack(noisy(client, defense, told=True)).images)
    assert naive < none - 5
    assert adaptive > none - 2


def test_a_clean_last_layer_gives_blurred_filters_away(clients: Clients) -> None:
    """With noise in every filter: what enters the last layer leaves exactly."""
    name = "keyhole.models.shallow_convnet:shallow_convnet"
    model = build(name, classes=10, channels=1, image_size=(8, 8), seed=0)
    defense = DEFENSES.parse("tip(beta=10, ratio=1.0)")
    [client] = clients(model, [[0]])
    seen = noisy(client, defense, told=True)
    without, with_features = (
        client.decibels(InvertingGradients(iterations=200, features=weight)(seen).images)
        for weight in (0.0, None)
    )
    assert with_features > without + 3


@pytest.mark.parametrize(
    ("inputs", "text", "weight"),
    [
        (64, "tip(ratio=1.0)", FEATURES),
        (16, "tip(ratio=1.0)", FEATURES / 4),
        (256, "tip(ratio=1.0)", FEATURES),
        (64, "tip(ratio=0.1)", FEATURES / 100),
        (64, "dp", 0.0),
    ],
)
def test_the_last_layers_inputs_weigh_by_what_they_can_tell(
    clients: Clients, inputs: int, text: str, weight: float
) -> None:
    """Images have 64 pixels."""
    layers = nn.Conv2d(1, inputs // 16, 3, padding=1), nn.AvgPool2d(2), nn.Flatten()
    [client] = clients(nn.Sequential(*layers, nn.Linear(inputs, 10)), [[0]])
    problem = MatchingProblem.from_observation(noisy(client, DEFENSES.parse(text), told=True))
    assert choose_feature_weight(problem) == pytest.approx(weight)


def test_a_last_layer_without_a_weight_of_its_own_tells_nothing(clients: Clients) -> None:
    head = nn.utils.parametrizations.weight_norm(nn.Linear(64, 10))
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.AvgPool2d(2), nn.Flatten()
    [client] = clients(nn.Sequential(*layers, head), [[0]])
    problem = MatchingProblem.from_observation(
        noisy(client, DEFENSES.parse("tip(ratio=1.0)"), told=True)
    )
    assert choose_feature_weight(problem) == 0


def test_the_uploaded_model_shows_less(clients: Clients) -> None:
    """Away from the model at which the gradient was taken."""
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    defense = DEFENSES.parse("tip(beta=10, ratio=0.3)")
    [client] = clients(model, [[0]], lr=0.5)
    seen = noisy(client, defense, told=True)
    there = ATTACKS.parse("ig-uploaded(iterations=100)")(seen)
    here = ATTACKS.parse("ig(iterations=100)")(seen)
    assert client.decibels(here.images) > client.decibels(there.images) + 3
