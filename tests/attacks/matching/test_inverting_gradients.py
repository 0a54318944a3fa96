"""IG against noise and bounds that it knows, and at the model that the client uploaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from keyhole.attacks import ATTACKS, InvertingGradients
from keyhole.attacks.matching.inverting_gradients import FULL_FEATURE_WEIGHT, choose_feature_weight
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.data import denormalise
from keyhole.defenses import DEFENSES, ClientSide, Defense
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Observation

Clients = Callable[..., list[Any]]


def observe_noisy(client: Any, defense: Defense, *, known: bool) -> Observation:
    """What the server observes of a client whose update got noise."""
    seen = client.observation
    truth = denormalise(client.inputs, client.data.mean, client.data.std)
    side = ClientSide(generator(0), seen.model, truth, client.labels)
    return dataclasses.replace(
        seen,
        update=defense.on_update(seen.update, side),
        knowledge=dataclasses.replace(seen.knowledge, defense=defense if known else None),
    )


def test_noise_that_is_known_hides_little(clients: Clients) -> None:
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    attack, defense = InvertingGradients(iterations=150), DEFENSES.parse("tip(beta=10, ratio=0.3)")
    [client] = clients(model, [[0]])
    none = client.decibels(attack(client.observation).images)
    naive = client.decibels(attack(observe_noisy(client, defense, known=False)).images)
    adaptive = client.decibels(attack(observe_noisy(client, defense, known=True)).images)
    assert naive < none - 5
    assert adaptive > none - 2


def test_a_clean_last_layer_gives_blurred_filters_away(clients: Clients) -> None:
    """With noise in every filter: what enters the last layer leaves exactly."""
    name = "keyhole.models.shallow_convnet:shallow_convnet"
    model = build(name, classes=10, channels=1, image_size=(8, 8), seed=0)
    defense = DEFENSES.parse("tip(beta=10, ratio=1.0)")
    [client] = clients(model, [[0]])
    seen = observe_noisy(client, defense, known=True)
    without, with_features = (
        client.decibels(InvertingGradients(iterations=200, features=weight)(seen).images)
        for weight in (0.0, None)
    )
    assert with_features > without + 3


@pytest.mark.parametrize(
    ("inputs", "text", "weight"),
    [
        (64, "tip(ratio=1.0)", FULL_FEATURE_WEIGHT),
        (16, "tip(ratio=1.0)", FULL_FEATURE_WEIGHT / 4),
        (256, "tip(ratio=1.0)", FULL_FEATURE_WEIGHT),
        (64, "tip(ratio=0.1)", FULL_FEATURE_WEIGHT / 100),
        (64, "dp", 0.0),
    ],
)
def test_the_last_layers_inputs_weigh_by_what_they_can_tell(
    clients: Clients, inputs: int, text: str, weight: float
) -> None:
    """Images have 64 pixels."""
    layers = nn.Conv2d(1, inputs // 16, 3, padding=1), nn.AvgPool2d(2), nn.Flatten()
    [client] = clients(nn.Sequential(*layers, nn.Linear(inputs, 10)), [[0]])
    problem = MatchingProblem.from_observation(
        observe_noisy(client, DEFENSES.parse(text), known=True)
    )
    assert choose_feature_weight(problem) == pytest.approx(weight)


def test_a_last_layer_without_a_weight_of_its_own_tells_nothing(clients: Clients) -> None:
    head = nn.utils.parametrizations.weight_norm(nn.Linear(64, 10))
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.AvgPool2d(2), nn.Flatten()
    [client] = clients(nn.Sequential(*layers, head), [[0]])
    problem = MatchingProblem.from_observation(
        observe_noisy(client, DEFENSES.parse("tip(ratio=1.0)"), known=True)
    )
    assert choose_feature_weight(problem) == 0


def test_the_uploaded_model_shows_less(clients: Clients) -> None:
    """Away from the model at which the gradient was taken."""
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    defense = DEFENSES.parse("tip(beta=10, ratio=0.3)")
    [client] = clients(model, [[0]], lr=0.5)
    seen = observe_noisy(client, defense, known=True)
    there = ATTACKS.parse("ig-uploaded(iterations=100)")(seen)
    here = ATTACKS.parse("ig(iterations=100)")(seen)
    assert client.decibels(here.images) > client.decibels(there.images) + 3


@pytest.mark.parametrize("text", ["pruning(ratio=0.8)", "signsgd", "quantise(bits=3)"])
def test_knowing_the_bounds_of_what_is_not_shown_helps(clients: Clients, text: str) -> None:
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    attack, defense = InvertingGradients(iterations=150), DEFENSES.parse(text)
    [client] = clients(model, [[0]])
    informed = observe_noisy(client, defense, known=True)
    naive = client.decibels(attack(observe_noisy(client, defense, known=False)).images)
    assert client.decibels(attack(informed).images) > naive + 3
    as_published = dataclasses.replace(informed.knowledge, adaptive=False)
    again = attack(dataclasses.replace(informed, knowledge=as_published))
    assert client.decibels(again.images) == pytest.approx(naive)
