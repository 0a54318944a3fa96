"""ATS: images are changed by a policy that was searched to make gradients hard to invert."""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import ChosenSteps
from keyhole.defenses.image_steps import ImageStep, apply_steps

Policy = Literal["none", "3-1-7", "43-18-18", "3-1-7+43-18-18", "19-15-45", "2-43-21"]
FARTHEST = 150 / 331
"""The share of an image's side by which the strongest move goes."""
STRONGEST = 0.5
"""By how much the strongest change of contrast, brightness or sharpness differs from none."""
STEPS = {
    1: ImageStep("contrast", STRONGEST * 6 / 9),
    2: ImageStep("rotate", 30 * 2 / 9),
    3: ImageStep("move-x", FARTHEST),
    7: ImageStep("move-y", FARTHEST * 2 / 9),
    15: ImageStep("brightness", STRONGEST),
    18: ImageStep("contrast", STRONGEST * 7 / 9),
    19: ImageStep("sharpness", STRONGEST * 5 / 9),
    21: ImageStep("move-x", FARTHEST * 5 / 9),
    43: ImageStep("move-y", FARTHEST * 3 / 9),
    45: ImageStep("solarise", 256 / 255 * 8 / 9),
}
"""The changes of the published policies, by their number in the search."""
ONE_WAY = ("rotate", "solarise")
"""The kinds that have one direction. Others go up or down at random."""


@dataclass(frozen=True, kw_only=True)
class Ats(Defense):
    """Changes each image by one of the policy's sequences of changes, drawn anew in every epoch.

    A policy is written as in the paper: numbers of changes joined by ``-``, alternatives by ``+``.
    The published ones are ``3-1-7+43-18-18`` for CIFAR-100, and ``19-15-45`` and ``2-43-21`` for
    Fashion-MNIST. As in the authors' code, every change of a sequence is made: the alternative and
    the directions of the changes are all that is random.

    Args:
        policy: The policy.
    """

    policy: Policy = "3-1-7+43-18-18"

    name: ClassVar[str] = "ats"
    summary: ClassVar[str] = "changes images by a searched policy of augmentations"
    paper: ClassVar[str] = "Gao et al. 2021 (ATS)"
    headline: ClassVar[tuple[str, ...]] = ("policy",)
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig",)

    @property
    def sequences(self) -> list[list[ImageStep]]:
        """The policy's alternatives, each change in its positive direction."""
        if self.policy == "none":
            return []
        written = (alternative.split("-") for alternative in self.policy.split("+"))
        return [[STEPS[int(number)] for number in numbers] for numbers in written]

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        if self.policy == "none" or not len(images):
            return images
        draw = (side or ClientSide()).generator
        return torch.stack([apply_steps(image, self._draw_steps(draw)) for image in images])

    def _draw_steps(self, draw: torch.Generator) -> tuple[ImageStep, ...]:
        """The changes of one image."""
        sequences = self.sequences
        ways = spell_out(sequences[int(torch.randint(len(sequences), (), generator=draw))])
        return ways[int(torch.randint(len(ways), (), generator=draw))]

    def image_change(self) -> ChosenSteps:
        """All ways in which the policy can have changed an image."""
        return ChosenSteps(tuple(way for steps in self.sequences for way in spell_out(steps)))


def spell_out(steps: list[ImageStep]) -> list[tuple[ImageStep, ...]]:
    """The changes with each choice of directions.

    >>> [[step.size for step in way] for way in spell_out([STEPS[2], STEPS[15]])]
    [[6.666666666666667, 0.5], [6.666666666666667, -0.5]]
    """
    directions = [
        (step,) if step.kind in ONE_WAY else (step, ImageStep(step.kind, -step.size))
        for step in steps
    ]
    return list(itertools.product(*directions))
