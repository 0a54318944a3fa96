"""How the batch of a step is made of the images that are sought, as a known defense makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.parts.unknowns import Unknown
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.defenses.batch_augmentation import Augmentation, augment_batch
from keyhole.defenses.capabilities import AugmentedBatch, Capability, MixedBatch

OWN_SCORE = 3.0
"""The first guess of an image's score in its own mixture; that of all others is 0."""
UNMIX_RCOND = 0.1
"""Directions in which mixtures differ by less than this share of the most are not amplified."""


class Batch(ABC):
    """Makes the samples and targets of a step from images and their targets."""

    unknown: Unknown | None = None
    """What else is searched for."""
    flips: bool = False
    """Whether the images that are sought have flipped pixels, and are not smooth."""

    @abstractmethod
    def form(
        self,
        images: Tensor,
        targets: Tensor,
        values: Mapping[str, Tensor],
        problem: MatchingProblem,
    ) -> tuple[Tensor, Tensor]:
        """The samples ``[N, S, C, H, W]`` and their targets ``[N, S, classes]``.

        Args:
            images: ``[N, B, C, H, W]``.
            targets: ``[N, B, classes]``.
            values: The unknowns by name, ``[N, ...]``.
            problem: What the victims have in common.
        """

    def restore(
        self, images: Tensor, best: Mapping[str, Tensor], problem: MatchingProblem
    ) -> Tensor:
        """The client's images, from what was found for one victim.

        Args:
            images: ``[B, C, H, W]``.
            best: The victim's unknowns at the least loss.
            problem: What the victims have in common.
        """
        return images


@dataclass(frozen=True)
class AugmentedSamples(Batch):
    """Images followed by their changed copies (OASIS)."""

    augmentations: tuple[Augmentation, ...]

    def form(
        self,
        images: Tensor,
        targets: Tensor,
        values: Mapping[str, Tensor],
        problem: MatchingProblem,
    ) -> tuple[Tensor, Tensor]:
        copies = 1 + len(self.augmentations)
        augmented = augment_batch(images.flatten(0, 1), self.augmentations)
        by_copy = augmented.unflatten(0, (copies, *images.shape[:2]))  # type: ignore[no-untyped-call]
        return by_copy.transpose(0, 1).flatten(1, 2), targets.repeat(1, copies, 1)


@dataclass(frozen=True)
class MixingWeights(Unknown):
    """Scores ``[N, B, B]`` whose softmax is the share of every image in every mixture."""

    name: ClassVar[str] = "mixing"

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        return OWN_SCORE * torch.eye(problem.local_batch)

    def render(self, value: Tensor) -> Tensor:
        """The shares, ``[..., B, B]``.

        Args:
            value: The scores.
        """
        return value.softmax(-1)


@dataclass(frozen=True)
class MixedSamples(Batch):
    """Mixtures of images with unknown weights (mixup).

    With ``flips`` (InstaHide) what is sought are the mixtures themselves, whose pixels were flipped
    around middle grey. Only their labels follow from the weights. The absolute value undoes the
    flips up to one sign per pixel, and the weights tell the images apart.
    """

    flips: bool = False
    unknown: MixingWeights = MixingWeights()

    def form(
        self,
        images: Tensor,
        targets: Tensor,
        values: Mapping[str, Tensor],
        problem: MatchingProblem,
    ) -> tuple[Tensor, Tensor]:
        weights = self.unknown.render(values[self.unknown.name])
        mixed = images if self.flips else torch.einsum("nij,njchw->nichw", weights, images)
        return mixed, weights @ targets

    def restore(
        self, images: Tensor, best: Mapping[str, Tensor], problem: MatchingProblem
    ) -> Tensor:
        if not self.flips:
            return images
        low, high = (bound.to(images) for bound in problem.box)
        middle, half = (low + high) / 2, (high - low) / 2
        size = ((images - middle) / half).abs()
        weights = self.unknown.render(best[self.unknown.name]).to(images)
        inverse = torch.linalg.pinv(weights, rtol=UNMIX_RCOND)
        apart = (inverse @ size.flatten(1)).view_as(size).clamp(0, 1)
        restored: Tensor = middle + half * apart
        return restored


def make_batch(problem: MatchingProblem) -> Batch | None:
    """The batch as a known defense declares it; None where it declares nothing."""
    defense = problem.knowledge.defense_with(Capability.BATCH_CHANGE)
    change = None if defense is None else defense.batch_change()
    if isinstance(change, AugmentedBatch) and change.augmentations:
        return AugmentedSamples(change.augmentations)
    if isinstance(change, MixedBatch) and problem.steps == 1:
        return MixedSamples(change.flips)
    return None
