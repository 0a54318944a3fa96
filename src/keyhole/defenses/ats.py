"""ATS: images are changed by a policy that was searched to make gradients hard to invert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass as plain_dataclass
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Translation

Policy = Literal["none", "3-1-7", "43-18-18", "3-1-7+43-18-18", "19-15-45", "2-43-21"]
FILL = 128 / 255
"""The grey of what moves in from outside."""


@plain_dataclass(frozen=True)
class Step:
    """One change of a policy.

    Args:
        chance: The probability with which it is made.
        kind: What it is.
        size: How strong it is; moves and changes of contrast, brightness and sharpness go up or
            down at random.
    """

    chance: float
    kind: str
    size: float


STEPS = {
    1: Step(0.2, "contrast", 0.6),
    2: Step(0.7, "rotate", 20 / 3),
    3: Step(0.3, "move-x", 150 / 331),
    7: Step(0.7, "move-y", 150 / 331 * 2 / 9),
    15: Step(0.7, "brightness", 0.9),
    18: Step(0.6, "contrast", 0.7),
    19: Step(0.6, "sharpness", 0.5),
    21: Step(0.5, "move-x", 150 / 331 * 5 / 9),
    43: Step(0.7, "move-y", 150 / 331 * 3 / 9),
    45: Step(0.8, "solarise", 8 / 9),
}
"""The changes of the published policies, by their number in the search."""


@dataclass(frozen=True, kw_only=True)
class Ats(Defense):
    """Changes each image by one of the policy's sequences of changes, drawn anew in every epoch.

    A policy is written as in the paper: numbers of changes joined by ``-``, alternatives by ``+``.
    The published ones are ``3-1-7+43-18-18`` for CIFAR-100, and ``19-15-45`` and ``2-43-21`` for
    Fashion-MNIST.

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
    def sequences(self) -> list[list[Step]]:
        """The policy's alternatives."""
        if self.policy == "none":
            return []
        written = (alternative.split("-") for alternative in self.policy.split("+"))
        return [[STEPS[int(number)] for number in numbers] for numbers in written]

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        if self.policy == "none":
            return images
        draw = (side or ClientSide()).generator
        return torch.stack([self._change(image, draw) for image in images])

    def _change(self, image: Tensor, draw: torch.Generator) -> Tensor:
        sequences = self.sequences
        number = int(torch.randint(len(sequences), (), generator=draw))
        for step in sequences[number]:
            chance, direction = torch.rand(2, generator=draw).tolist()
            if chance < step.chance:
                image = CHANGES[step.kind](image, step.size * (1 if direction < 0.5 else -1))
        return image

    def image_change(self) -> Translation:
        """How far images can have moved; other changes of the policies cannot be undone."""
        moves = [s.size for steps in self.sequences for s in steps if s.kind.startswith("move")]
        return Translation(max(moves, default=0.0), FILL)


def move(image: Tensor, down: float, across: float) -> Tensor:
    """An image ``[C, H, W]`` moved by whole pixels; the gap becomes grey.

    Args:
        image: The image.
        down: How far down, as a share of its height.
        across: How far to the right, as a share of its width.
    """
    height, width = image.shape[-2:]
    rows, columns = round(down * height), round(across * width)
    moved = torch.full_like(image, FILL)
    target = moved[:, max(rows, 0) : height + min(rows, 0), max(columns, 0) :][
        :, :, : width - abs(columns)
    ]
    source = image[:, max(-rows, 0) : height - max(rows, 0), max(-columns, 0) :]
    target.copy_(source[:, :, : width - abs(columns)])
    return moved


CHANGES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "move-x": lambda image, size: move(image, 0, size),
    "move-y": lambda image, size: move(image, size, 0),
    "rotate": lambda image, size: tvf.rotate(image, abs(size), fill=[FILL] * len(image)),
    "contrast": lambda image, size: tvf.adjust_contrast(image, 1 + size),
    "brightness": lambda image, size: tvf.adjust_brightness(image, 1 + size),
    "sharpness": lambda image, size: tvf.adjust_sharpness(image, 1 + size),
    "solarise": lambda image, size: tvf.solarize(image, abs(size)),
}
