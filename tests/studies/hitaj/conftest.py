"""A small federation of digits 8x8 one client of which may turn malicious."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
import torch

from keyhole.data import ImageSet, load
from keyhole.defenses import Defense, NoDefense
from keyhole.federation import Federation, LocalTraining
from keyhole.models.shallow_convnet import shallow_convnet
from keyhole.seeds import derive, seeded_globally
from keyhole_studies.hitaj import DifferentiableDefense, Hitaj, Infiltration

TARGET = 3
ADVERSARY = 1

Infiltrate = Callable[..., Infiltration]


@pytest.fixture(scope="session")
def digits() -> ImageSet:
    return load("digits")


@pytest.fixture(scope="session")
def federation(digits: ImageSet) -> Callable[..., Federation]:
    """Two clients: the first has digits 0 to 4, the second, to be malicious, 5 to 9."""

    def make(defense: Defense | None = None, *, seed: int = 0) -> Federation:
        labels = digits.labels
        by_class = [torch.nonzero(labels == c).flatten()[:30].tolist() for c in range(10)]
        shares = [list(chain(*by_class[:5])), list(chain(*by_class[5:]))]
        with seeded_globally(derive(seed, "weights")):
            model = shallow_convnet(classes=11, channels=1, image_size=digits.size)
        return Federation(
            model,
            digits,
            shares,
            (digits, range(1000, 1200)),
            LocalTraining(lr=5e-3, epochs=1, batch_size=16, optimiser="adam"),
            defense or NoDefense(),
            seed=seed,
        )

    return make


@pytest.fixture(scope="session")
def infiltrate(federation: Callable[..., Federation]) -> Infiltrate:
    """The federation with its adversary in place."""

    def make(
        *,
        rounds: int = 3,
        steps: int = 4,
        seed: int = 0,
        defense: Defense | None = None,
        known_defense: DifferentiableDefense | None = None,
        tv: float = 0.05,
        fakes: int = 30,
        begin: int = 1,
    ) -> Infiltration:
        attack = Hitaj(
            target=TARGET,
            rounds=rounds,
            steps=steps,
            batch=16,
            fakes=fakes,
            begin=begin,
            tv=tv,
            lr=5e-3,
            average=0.8,
            latent=16,
        )
        made = federation(defense, seed=seed)
        return Infiltration(made, attack, client=ADVERSARY, known_defense=known_defense)

    return make
