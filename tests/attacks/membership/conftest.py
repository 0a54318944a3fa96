"""A model that has learned noise by heart, and an image defense to look through."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.membership import LabelledImages, MembershipProblem, TargetTraining
from keyhole.defenses import ClientSide, Defense
from keyhole.federation import LocalTraining
from keyhole.seeds import generator, seeded_globally

CLASSES = 4
MEMBERS = 40


@dataclass(frozen=True, kw_only=True)
class Negative(Defense):
    """Light for dark, with a little noise anew for every view: a clean image is a stranger."""

    noise: float = 0.05

    name: ClassVar[str] = "negative"
    summary: ClassVar[str] = "light for dark"
    paper: ClassVar[str] = "none"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        side = side or ClientSide()
        return 1 - images + self.noise * torch.randn(images.shape, generator=side.generator)


def network(seed: int) -> nn.Module:
    with seeded_globally(seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def noise(count: int, name: str) -> LabelledImages:
    """Images and labels that have nothing to do with each other: all that helps is memory."""
    draw = generator(0, "noise", name)
    images = torch.rand(count, 1, 6, 6, generator=draw)
    return LabelledImages(images, torch.randint(CLASSES, (count,), generator=draw))


@pytest.fixture(scope="session")
def negative() -> Defense:
    return Negative()


@pytest.fixture(scope="session")
def training() -> TargetTraining:
    local = LocalTraining(lr=0.01, epochs=25, batch_size=20, optimiser="adam")
    return TargetTraining(network=network, local=local, mean=(0.5,), std=(0.25,))


Ask = Callable[[TargetTraining], MembershipProblem]


@pytest.fixture(scope="session")
def ask() -> Ask:
    """The problem about a model trained on the first half of the candidates."""
    members, others, public = (noise(MEMBERS, n) for n in ("members", "others", "public"))
    public = public.concatenate(noise(2 * MEMBERS, "more"))

    def problem(training: TargetTraining) -> MembershipProblem:
        (model,) = next(training.train_models([members], [1]))
        return MembershipProblem(model, members.concatenate(others), public, training, MEMBERS)

    return problem


@pytest.fixture(scope="session")
def problem(training: TargetTraining, ask: Ask) -> MembershipProblem:
    return ask(training)
