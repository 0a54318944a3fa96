"""Trains a class-conditional generator on public images against a discriminator."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from itertools import count
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from keyhole.attacks.generative.augmentation import augmented, flipped
from keyhole.attacks.generative.conditional import FEATURES, ClassNorm, ConditionalGenerator
from keyhole.attacks.generative.discriminator import Discriminator
from keyhole.attacks.matching.precision import computing_in
from keyhole.errors import BadValue
from keyhole.seeds import derive, seeded_globally

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Progress = Callable[[int, float, str], None]
"""Told the steps done, the share of the budget used, and how it goes."""

MOMENTS = (0.0, 0.9)
LOOK = 100
"""Steps between two looks at the losses, for which the device is waited for."""
SETTLING = 32
"""Batches that the normalisations' final statistics are taken over."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """How a generator is trained: hinge losses (Lim and Ye 2017) on augmented images.

        discriminator:  mean max(0, 1 - D(true)) + mean max(0, 1 + D(drawn)),  ``judging`` times
        generator:      - mean D(drawn)

    by Adam on batches of ``batch``, rates falling to 0 over the second half. It ends after
    ``steps``, or ``seconds`` where that comes first. What is handed over has the mean of the
    generator's weights, old ones fading by ``average`` a step (Yazici et al. 2019).
    """

    steps: Count = 20_000
    seconds: Rate | None = None
    batch: Annotated[int, Field(ge=2)] = 256
    lr: Rate = 3e-4
    judge_lr: Rate = 4e-4
    judging: Count = 2
    latent: Count = 128
    features: tuple[Count, ...] = FEATURES
    judge_features: tuple[Count, ...] = (128, 192, 256, 256)
    average: Annotated[float, Field(ge=0, lt=1)] = 0.999
    seed: int = 0


@plain_dataclass(frozen=True)
class Trained:
    """A generator in evaluation mode, and how its training went."""

    generator: ConditionalGenerator
    steps: int
    seconds: float
    losses: tuple[tuple[int, float, float], ...]
    """Step, the discriminator's loss, the generator's."""


def train(
    images: Tensor,
    labels: Tensor,
    lesson: Lesson | None = None,
    *,
    classes: int,
    progress: Progress | None = None,
) -> Trained:
    """Trains on ``images [n, C, H, W]``, uint8 or in [0, 1], where they and ``labels [n]`` are."""
    if len(images) != len(labels) or not len(images):
        raise BadValue(f"{len(images)} images have {len(labels)} labels: give one each, and some")
    school = School(images, labels, lesson or Lesson(), classes)
    with torch.enable_grad(), computing_in("tf32"):
        losses = list(school.taught(progress))
        school.settle()
    if images.is_cuda:
        torch.cuda.synchronize()
    taken = time.perf_counter() - school.began
    done = school.averaged.to(memory_format=torch.contiguous_format)
    return Trained(done.eval().requires_grad_(False), school.steps, taken, tuple(losses))


class School:
    """The two networks, their optimisers, and the images they learn from."""

    def __init__(self, images: Tensor, labels: Tensor, lesson: Lesson, classes: int) -> None:
        self.images, self.labels, self.lesson = images, labels.long(), lesson
        channels, height, width = images.shape[1:]
        with seeded_globally(derive(lesson.seed, "networks")):
            generator = ConditionalGenerator(
                (channels, height, width),
                latent=lesson.latent,
                classes=classes,
                features=lesson.features,
            )
            judge = Discriminator(channels, (height, width), classes, lesson.judge_features)
        place = images.device
        self.generator = generator.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.judge = judge.to(place)
        self.averaged = copy.deepcopy(self.generator).requires_grad_(False)
        self.painting = optimiser(self.generator, lesson.lr)
        self.judging = optimiser(self.judge, lesson.judge_lr)
        self.draw = torch.Generator(place).manual_seed(derive(lesson.seed, "training"))
        self.steps, self.began = 0, time.perf_counter()

    def taught(self, progress: Progress | None) -> Iterator[tuple[int, float, float]]:
        """Steps until the budget is used up; the losses now and then."""
        for self.steps in count(1):
            used = self.used()
            self.set_rates(min(1.0, 2 * (1 - used)))
            for _ in range(self.lesson.judging):
                judged = self.judge_step()
            painted = self.paint_step()
            self.remember()
            last = self.used() >= 1
            if self.steps % LOOK == 0 or last:
                yield self.steps, float(judged), float(painted)
                if progress is not None:
                    text = f"losses {float(judged):.3f} and {float(painted):.3f}"
                    progress(self.steps, min(1.0, self.used()), text)
            if last:
                return

    def used(self) -> float:
        """The share of the budget that is used: of steps or seconds, whichever is more."""
        share = self.steps / self.lesson.steps
        if self.lesson.seconds is None:
            return share
        return max(share, (time.perf_counter() - self.began) / self.lesson.seconds)

    def set_rates(self, factor: float) -> None:
        pairs = ((self.painting, self.lesson.lr), (self.judging, self.lesson.judge_lr))
        for adam, rate in pairs:
            for group in adam.param_groups:
                group["lr"] = rate * factor

    def judge_step(self) -> Tensor:
        """The discriminator learns to tell true images from drawn ones; its loss."""
        true, labels = self.batch()
        with torch.no_grad():
            drawn = self.drawn(labels)
        scores = self.scores(torch.cat([true, drawn]), labels.repeat(2))
        real, fake = scores.chunk(2)
        loss = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        return self.learn(loss, self.judging)

    def paint_step(self) -> Tensor:
        """The generator learns to draw what scores high; its loss."""
        self.judge.requires_grad_(False)
        labels = self.batch_labels()
        loss = -self.scores(self.drawn(labels), labels).mean()
        self.learn(loss, self.painting)
        self.judge.requires_grad_(True)
        return loss.detach()

    def learn(self, loss: Tensor, adam: torch.optim.Adam) -> Tensor:
        adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        return loss.detach()

    def remember(self) -> None:
        """Takes the generator's weights into their mean, which the first steps enter quickly."""
        fade = min(self.lesson.average, self.steps / (self.steps + 10))
        parts = (list(network.parameters()) for network in (self.averaged, self.generator))
        get_ema_multi_avg_fn(fade)(*parts, None)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def settle(self) -> None:
        """Gives the averaged weights statistics of their own (Brock et al. 2019)."""
        norms = [m for m in self.averaged.modules() if isinstance(m, ClassNorm)]
        self.averaged.train()
        for number in range(SETTLING):
            for norm in norms:
                norm.momentum = 1 / (number + 1)
            self.averaged(self.averaged.codes(self.lesson.batch, self.draw), self.batch_labels())
        self.averaged.eval()

    def indices(self) -> Tensor:
        place = self.images.device
        size = (self.lesson.batch,)
        return torch.randint(len(self.images), size, generator=self.draw, device=place)

    def batch_labels(self) -> Tensor:
        """Classes as often as the images have them."""
        return self.labels[self.indices()]

    def batch(self) -> tuple[Tensor, Tensor]:
        """Some true images, ``[batch, C, H, W]`` in [0, 1], half of them mirrored."""
        chosen = self.indices()
        images = self.images[chosen]
        images = images.float() if images.is_floating_point() else images.float() / 255
        return flipped(images, self.draw), self.labels[chosen]

    def drawn(self, labels: Tensor) -> Tensor:
        with self.half():
            images: Tensor = self.generator(self.generator.codes(len(labels), self.draw), labels)
        return images

    def scores(self, images: Tensor, labels: Tensor) -> Tensor:
        """What the discriminator makes of images in [0, 1], each augmented in its own way."""
        shown = augmented(2 * images - 1, self.draw)
        with self.half():
            scores: Tensor = self.judge(shown, labels)
        return scores

    def half(self) -> torch.autocast:
        """bfloat16 on a GPU."""
        place = self.images.device.type
        return torch.autocast(place, dtype=torch.bfloat16, enabled=place == "cuda")


def optimiser(network: nn.Module, lr: float) -> torch.optim.Adam:
    weights = list(network.parameters())
    return torch.optim.Adam(weights, lr, MOMENTS, fused=weights[0].is_cuda)
