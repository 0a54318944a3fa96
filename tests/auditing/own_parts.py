"""Parts that a stranger wrote, for tests: an attack, a defense, a model and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from keyhole import Observation, Update
from keyhole.attacks import Attack, Reconstruction
from keyhole.attacks.membership import MembershipAttack, MembershipProblem
from keyhole.defenses import ClientSide, Defense
from keyhole.metrics import ImageMetric


class MyAttack(Attack):
    """Shows a grey image, however strong."""

    def __init__(self, strength: float = 1.0, window: Any = None) -> None:
        self.strength, self.window = strength, window

    def incompatibilities(self, observation: Observation) -> list[str]:
        return [] if self.strength else ["it has no strength"]

    def reads(self, observation: Observation) -> set[str]:
        return set()

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return Reconstruction(images=torch.zeros(1, *observation.knowledge.shape))


@dataclass(frozen=True)
class MyDefense(Defense):
    """Shrinks the update."""

    p: float = 0.5

    paper_attacks = ("ig",)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        return update.map(lambda name, tensor: tensor * (1 - self.p))


class Flat(MembershipAttack):
    """Believes in the last image most."""

    def score(self, problem: MembershipProblem, report: Any) -> Tensor:
        return torch.arange(len(problem.candidates))


def net(classes: int, channels: int, image_size: tuple[int, int], width: int = 8) -> nn.Module:
    inputs = channels * image_size[0] * image_size[1]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes)
    )


def power_of(found: Tensor, truth: Tensor, *, data_range: float, power: float) -> Tensor:
    return ((found - truth).abs() / data_range).pow(power).flatten(1).mean(1)


def error(power: float = 1.0) -> ImageMetric:
    return ImageMetric(
        name=f"error{power:g}",
        label=f"Error {power:g}",
        summary="mean error of pixels",
        leaks_high=False,
        low=0.0,
        high=1.0,
        digits=2,
        function=partial(power_of, power=power),
    )


ERROR = error()
