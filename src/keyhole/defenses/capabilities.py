"""What a defense may declare about itself, for an attacker who knows the defense.

Attacks ask for a capability, never for a defense's name: a defense that declares one meets every
attack that can use it. Parameters are public, random draws are not: nothing here depends on what a
client drew, except through the update that the server sees anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from torch import Tensor

from keyhole.defenses.batch_augmentation import Augmentation
from keyhole.defenses.regions import split_into_zones
from keyhole.defenses.shuffles import Channels

if TYPE_CHECKING:
    from keyhole.defenses.image_steps import ImageStep  # needs torchvision


class Capability(StrEnum):
    """What an attacker can know of a defense; the value names the attribute that declares it."""

    NOISE = "noise_model"
    """where noise is in the update, and how strong"""
    VALUES = "possible_values"
    """between which bounds values lie that the update does not show"""
    MISLEADING = "misleading_values"
    """which values of the update are not, or not only, the images' own gradient"""
    NORMS = "keeps_norms"
    """that tensors keep their norm while their direction is replaced by an orthogonal one"""
    BATCH_CHANGE = "batch_change"
    """how a step's batch is made of the client's images"""
    IMAGE_CHANGE = "image_change"
    """what was done to the images before training"""
    HIDDEN_MASKS = "hides_masks"
    """that clients drop units, or draw noise inside the network, by masks of their own"""
    HIDDEN_POSITIONS = "hidden_positions"
    """that some patches of an image share one position embedding"""


@dataclass(frozen=True)
class Interval:
    """Bounds of every value of one parameter's gradient, each in the gradient's shape.

    Args:
        low: The least that each value can have been.
        high: The greatest; the same as ``low`` where the value is known.
    """

    low: Tensor
    high: Tensor

    @property
    def known(self) -> Tensor:
        """Which values are known exactly, bool."""
        return self.low == self.high

    def map(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """The interval with a function applied to both bounds.

        Args:
            function: Selects values, or changes their type or device.
        """
        return Interval(function(self.low), function(self.high))


class ImageChange:
    """What was done to images. :func:`keyhole.attacks.jigsaw.undo.undo` undoes the kinds below.

    For another kind, subclass this and register a solver: ``@undo.register``.
    """


@dataclass(frozen=True)
class BlockShuffle(ImageChange):
    """Square blocks changed places within regions, finer ones where the region varies (CSVAR).

    Args:
        channels: Whether colour planes were shuffled ``apart``, ``together`` or ``mixed``.
        block: The side of all blocks in pixels; None: S/4 or S/2 by the region's variance.
    """

    channels: Channels = "apart"
    block: int | None = None

    def finest(self, height: int, width: int) -> int:
        """The side in pixels of the smallest blocks that stay whole.

        Args:
            height: The image's height in pixels.
            width: Its width.
        """
        return split_into_zones(height, width, self.block)[0].fine


@dataclass(frozen=True)
class PixelNoise(ImageChange):
    """Gaussian noise was added to every pixel, drawn again for every version of the image.

    Args:
        sigma: Its standard deviation, pixels being in [0, 1].
    """

    sigma: float


@dataclass(frozen=True)
class HiddenPositions:
    """Some patches take one shared position embedding in place of their own (MJP).

    Args:
        localisation_weight: The factor of the localiser's loss, which the model computes, in the
            sum with the cross-entropy.
    """

    localisation_weight: float = 0.0


@dataclass(frozen=True)
class ChosenSteps(ImageChange):
    """Each image went through one of several sequences of changes, drawn for it alone (ATS).

    Args:
        ways: The sequences.
    """

    ways: tuple[tuple[ImageStep, ...], ...]


class BatchChange:
    """How a step's batch is made of the client's images and labels."""


@dataclass(frozen=True)
class AugmentedBatch(BatchChange):
    """Changed copies of all images are appended to the batch (OASIS).

    Args:
        augmentations: The changes; each appends one copy of every image.
    """

    augmentations: tuple[Augmentation, ...]


@dataclass(frozen=True)
class MixedBatch(BatchChange):
    """Every image is a mixture of images of the batch, and so is its label (mixup, InstaHide).

    Args:
        flips: Whether pixels, scaled to [-1, 1], have their sign flipped at random afterwards.
    """

    flips: bool = False
