"""Trains a class-conditional generator on public images against a discriminator.

Two networks learn in turns, neither of them to classify, and the augmentation must pass gradients:
of :mod:`keyhole_studies.training` only the single step fits.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from itertools import count
from typing import Annotated

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from keyhole.attacks.generative import ConditionalBatchNorm, ConditionalGenerator
from keyhole.attacks.matching import use_precision
from keyhole.errors import BadValue
from keyhole.seeds import derive, seeded_globally
from keyhole_studies.generator_training.augmentation import augment_images, flip_some
from keyhole_studies.generator_training.discriminator import Discriminator
from keyhole_studies.training import set_rate, take_gradient_step

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Progress = Callable[[int, float, str], None]
"""Told the steps done, the share of the budget used, and the losses."""

MOMENTS = (0.0, 0.9)
REPORT_EVERY = 100
"""Steps between two reports of the losses, for which the loop waits for the device."""
STATISTICS_BATCHES = 32
"""Batches that the normalisations' final statistics are taken over."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GeneratorSettings:
    """How a generator is trained: by hinge losses (Lim and Ye 2017) on augmented images.

        discriminator:  mean max(0, 1 - D(true)) + mean max(0, 1 + D(drawn))
        generator:      - mean D(drawn)

    Both learn by Adam, whose rates fall to 0 over the second half of the training.

    Args:
        steps: Steps of the generator.
        seconds: The training ends after so long, if that comes first; None: it may last.
        batch: Images in a batch.
        lr: The generator's learning rate.
        discriminator_lr: The discriminator's learning rate.
        discriminator_steps: Steps of the discriminator before each step of the generator.
        latent: Length of the generator's codes.
        features: Of the generator's stages.
        discriminator_features: Of the discriminator's blocks.
        average: What is handed over has the mean of the generator's weights; by this factor old
            weights fade in each step (Yazici et al. 2019).
        seed: Of weights, batches and augmentation.
    """

    steps: Count = 20_000
    seconds: Rate | None = None
    batch: Annotated[int, Field(ge=2)] = 256
    lr: Rate = 3e-4
    discriminator_lr: Rate = 4e-4
    discriminator_steps: Count = 2
    latent: Count = 128
    features: tuple[Count, ...] = (320, 256, 160, 96)
    discriminator_features: tuple[Count, ...] = (128, 192, 256, 256)
    average: Annotated[float, Field(ge=0, lt=1)] = 0.999
    seed: int = 0


@plain_dataclass(frozen=True)
class TrainedGenerator:
    """A generator, and how its training went.

    Args:
        generator: In evaluation mode.
        steps: Steps that were taken.
        seconds: How long it took.
        losses: Step, the discriminator's loss, the generator's loss, every hundred steps.
    """

    generator: ConditionalGenerator
    steps: int
    seconds: float
    losses: tuple[tuple[int, float, float], ...]


def train_generator(
    images: Tensor,
    labels: Tensor,
    settings: GeneratorSettings | None = None,
    *,
    classes: int,
    progress: Progress | None = None,
) -> TrainedGenerator:
    """Trains a generator on the device where the images are.

    Args:
        images: ``[n, C, H, W]``, uint8 or in [0, 1].
        labels: ``[n]``.
        settings: How.
        classes: How many there are.
        progress: Told the steps done, the share of the budget used, and the losses.
    """
    if len(images) != len(labels) or not len(images):
        raise BadValue(f"{len(images)} images have {len(labels)} labels: give one label per image")
    trainer = GanTrainer(images, labels, settings or GeneratorSettings(), classes)
    with torch.enable_grad(), use_precision("tf32"):
        losses = list(trainer.run_steps(progress))
        trainer.set_statistics()
    if images.is_cuda:
        torch.cuda.synchronize()
    taken = time.perf_counter() - trainer.began
    done = trainer.averaged.to(memory_format=torch.contiguous_format)
    return TrainedGenerator(done.eval().requires_grad_(False), trainer.steps, taken, tuple(losses))


class GanTrainer:
    """The two networks, their optimisers, and the images they learn from.

    Args:
        images: ``[n, C, H, W]``, uint8 or in [0, 1].
        labels: ``[n]``.
        settings: How they learn.
        classes: How many there are.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, settings: GeneratorSettings, classes: int
    ) -> None:
        self.images, self.labels, self.settings = images, labels.long(), settings
        channels, height, width = images.shape[1:]
        with seeded_globally(derive(settings.seed, "networks")):
            generator = ConditionalGenerator(
                (channels, height, width),
                latent=settings.latent,
                classes=classes,
                features=settings.features,
            )
            discriminator = Discriminator(
                channels, (height, width), classes, settings.discriminator_features
            )
        place = images.device
        self.generator = generator.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.discriminator = discriminator.to(place)
        self.averaged = copy.deepcopy(self.generator).requires_grad_(False)
        self.generator_adam = make_adam(self.generator, settings.lr)
        self.discriminator_adam = make_adam(self.discriminator, settings.discriminator_lr)
        self.draw = torch.Generator(place).manual_seed(derive(settings.seed, "training"))
        self.steps, self.began = 0, time.perf_counter()

    def run_steps(self, progress: Progress | None) -> Iterator[tuple[int, float, float]]:
        """Takes steps until the budget is used up; yields the losses now and then."""
        for self.steps in count(1):
            used = self.used_share()
            self.set_rates(min(1.0, 2 * (1 - used)))
            for _ in range(self.settings.discriminator_steps):
                discriminator_loss = self.step_discriminator()
            generator_loss = self.step_generator()
            self.average_weights()
            last = self.used_share() >= 1
            if self.steps % REPORT_EVERY == 0 or last:
                yield self.steps, float(discriminator_loss), float(generator_loss)
                if progress is not None:
                    text = f"losses {float(discriminator_loss):.3f} and {float(generator_loss):.3f}"
                    progress(self.steps, min(1.0, self.used_share()), text)
            if last:
                return

    def used_share(self) -> float:
        """The share of the budget that is used: of steps or seconds, whichever is more."""
        share = self.steps / self.settings.steps
        if self.settings.seconds is None:
            return share
        return max(share, (time.perf_counter() - self.began) / self.settings.seconds)

    def set_rates(self, factor: float) -> None:
        pairs = (
            (self.generator_adam, self.settings.lr),
            (self.discriminator_adam, self.settings.discriminator_lr),
        )
        for adam, rate in pairs:
            set_rate(adam, rate * factor)

    def step_discriminator(self) -> Tensor:
        """Trains the discriminator to tell true images from drawn ones; returns its loss."""
        true, labels = self.draw_batch()
        with torch.no_grad():
            drawn = self.draw_images(labels)
        scores = self.score(torch.cat([true, drawn]), labels.repeat(2))
        real, fake = scores.chunk(2)
        loss = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        return take_gradient_step(loss, self.discriminator, self.discriminator_adam)

    def step_generator(self) -> Tensor:
        """Trains the generator to draw what scores high; returns its loss."""
        self.discriminator.requires_grad_(False)
        labels = self.draw_labels()
        loss = -self.score(self.draw_images(labels), labels).mean()
        take_gradient_step(loss, self.generator, self.generator_adam)
        self.discriminator.requires_grad_(True)
        return loss.detach()

    def average_weights(self) -> None:
        """Takes the generator's weights into their mean, which the first steps enter quickly."""
        fade = min(self.settings.average, self.steps / (self.steps + 10))
        parts = (list(network.parameters()) for network in (self.averaged, self.generator))
        get_ema_multi_avg_fn(fade)(*parts, None)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def set_statistics(self) -> None:
        """Gives the averaged weights statistics of their own (Brock et al. 2019)."""
        norms = [m for m in self.averaged.modules() if isinstance(m, ConditionalBatchNorm)]
        self.averaged.train()
        for number in range(STATISTICS_BATCHES):
            for norm in norms:
                norm.momentum = 1 / (number + 1)
            self.averaged(
                self.averaged.sample_codes(self.settings.batch, self.draw), self.draw_labels()
            )
        self.averaged.eval()

    def draw_indices(self) -> Tensor:
        place = self.images.device
        size = (self.settings.batch,)
        return torch.randint(len(self.images), size, generator=self.draw, device=place)

    def draw_labels(self) -> Tensor:
        """Labels, each class as often as the images have it."""
        return self.labels[self.draw_indices()]

    def draw_batch(self) -> tuple[Tensor, Tensor]:
        """Some true images, ``[batch, C, H, W]`` in [0, 1], half of them mirrored."""
        chosen = self.draw_indices()
        images = self.images[chosen]
        images = images.float() if images.is_floating_point() else images.float() / 255
        return flip_some(images, self.draw), self.labels[chosen]

    def draw_images(self, labels: Tensor) -> Tensor:
        with self.autocast():
            images: Tensor = self.generator(
                self.generator.sample_codes(len(labels), self.draw), labels
            )
        return images

    def score(self, images: Tensor, labels: Tensor) -> Tensor:
        """The discriminator's scores of images in [0, 1], each augmented in its own way."""
        shown = augment_images(2 * images - 1, self.draw)
        with self.autocast():
            scores: Tensor = self.discriminator(shown, labels)
        return scores

    def autocast(self) -> torch.autocast:
        """Computes in bfloat16 on a GPU."""
        place = self.images.device.type
        return torch.autocast(place, dtype=torch.bfloat16, enabled=place == "cuda")


def make_adam(network: nn.Module, lr: float) -> torch.optim.Adam:
    weights = list(network.parameters())
    return torch.optim.Adam(weights, lr, MOMENTS, fused=weights[0].is_cuda)
