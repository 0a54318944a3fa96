"""Batches of a training: which images, how they are augmented and mixed. Most of it is timm's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from timm.data import Mixup
from timm.data.auto_augment import rand_augment_transform
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.federation import augment_images
from keyhole.seeds import derive
from keyhole_studies.training.settings import TrainingSettings

LARGEST_HOLE = 0.25
"""The share of an image that is erased at most."""


def draw_batches(
    indices: Sequence[int], settings: TrainingSettings, draw: torch.Generator
) -> Iterator[Tensor]:
    """The images of every step: full batches in a new order each epoch."""
    every = torch.tensor(indices)
    size = min(settings.batch_size, len(every))
    for _ in range(settings.epochs):
        order = every[torch.randperm(len(every), generator=draw)]
        yield from torch.split(order[: len(order) // size * size], size)


class BatchMaker:
    """Makes a step's inputs and targets of images' indices.

    Args:
        data: The images.
        settings: How they are augmented and mixed.
        like: A tensor of the type and on the device of what is made.
        seed: Of flips and shifts. All other draws come from global generators.
    """

    def __init__(self, data: ImageSet, settings: TrainingSettings, like: Tensor, seed: int) -> None:
        self.data, self.like = data, like
        self.labels = data.labels.to(like.device)
        self.draw = torch.Generator(like.device).manual_seed(derive(seed, "augmentation"))
        self.mixer = make_mixer(settings, len(data.classes))
        self.eraser = make_eraser(settings, like.device)
        self.augment = make_rand_augment(settings)

    def make(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``[n, C, H, W]`` and targets: labels ``[n]``, or their shares ``[n, classes]``."""
        images = self.read(batch.tolist()).to(self.like)
        inputs = self.data.normalise(augment_images(images, self.draw))
        if self.eraser is not None:
            inputs = self.eraser(inputs)
        targets = self.labels[batch]
        if self.mixer is None:
            return inputs, targets
        if len(batch) % 2:
            raise DoesNotFit(f"a batch of {len(batch)} images cannot be mixed: make it even")
        mixed: tuple[Tensor, Tensor] = self.mixer(inputs, targets)
        return mixed

    def read(self, indices: list[int]) -> Tensor:
        """Images in [0, 1], after RandAugment where it is asked for."""
        if self.augment is None:
            return self.data.images(indices)
        pictures = [self.augment(to_pil_image(pixels)) for pixels in self.data.pixels(indices)]
        return torch.stack([pil_to_tensor(picture) for picture in pictures]).float() / 255


def make_mixer(settings: TrainingSettings, classes: int) -> Mixup | None:
    """Mixes a batch with itself in reverse, and smooths its targets; None: nothing is mixed."""
    if not settings.mixed:
        return None
    return Mixup(
        mixup_alpha=settings.mixup,
        cutmix_alpha=settings.cutmix,
        prob=settings.mixed,
        label_smoothing=settings.smoothing,
        num_classes=classes,
    )


def make_eraser(settings: TrainingSettings, device: torch.device) -> RandomErasing | None:
    """Replaces a rectangle by noise in a share of the images; None: in none of them."""
    if not settings.erasing:
        return None
    return RandomErasing(settings.erasing, max_area=LARGEST_HOLE, mode="pixel", device=device.type)


def make_rand_augment(settings: TrainingSettings) -> Callable[[Any], Any] | None:
    if not settings.rand_augment:
        return None
    transform: Callable[[Any], Any] = rand_augment_transform(settings.rand_augment, {})
    return transform
