"""What GIFD searches: the input features of one stage of a generator.

Values are ``[N, B, D + classes]``: an image's features, flat and in units of their usual scale,
followed by its class shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.generative.conditional import ConditionalGenerator, Shape
from keyhole.attacks.matching.parts.unknowns import ImageUnknown, KnownValues
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.seeds import generator as seeded

CENTRE = "centre"
"""Name of the known values from which a stage's features start, ``[N, B, D]``."""


@dataclass(frozen=True)
class StageFeatures(ImageUnknown):
    """The input of one stage of a generator: codes (stage 0), or the features of a grid.

    Args:
        generator: The generator.
        stage: The number of the stage.
        scales: The usual scale of each stage's input (see :func:`measure_scales`).
        classes_match: Whether the generator's classes are the client's. If so, known labels are
            the classes; otherwise class shares are searched for.
        radius: The greatest change of an image's features since the stage began: in the L1 norm,
            as a share of the norm at the start. None: no bound.
    """

    generator: ConditionalGenerator
    stage: int
    scales: tuple[float, ...]
    classes_match: bool
    radius: float | None = None

    name: ClassVar[str] = "features"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image's features."""
        return self.generator.stage_shapes[self.stage]

    def split(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``[..., D]`` and shares ``[..., classes]``."""
        count = math.prod(self.shape)
        return value[..., :count], value[..., count:]

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        """Standard normal codes with equal shares of all classes."""
        count = problem.knowledge.batch_size
        codes = torch.randn(count, math.prod(self.shape), generator=generator)
        equal = torch.full((count, self.generator.classes), 1 / self.generator.classes)
        return torch.cat([codes, equal], -1)

    def project(self, value: Tensor, problem: MatchingProblem, known: KnownValues) -> Tensor:
        features, shares = self.split(value)
        if self.radius is not None:
            centre = known[CENTRE]
            bound = self.radius * centre.abs().sum(-1, keepdim=True)
            features = centre + project_to_l1_ball(features - centre, bound)
        if self.classes_match and "labels" in known:
            shares = known["labels"][..., : self.generator.classes]
        else:
            shares = project_to_simplex(shares, torch.ones_like(shares[..., :1]))
        return torch.cat([features, shares], -1)

    def render(self, value: Tensor, problem: MatchingProblem) -> Tensor:
        features, shares = self.stage_input(value.to(problem.like))
        generated = self.generator.run_from_stage(self.stage, features, shares)
        black, white = problem.box
        inputs = black + (white - black) * fit_to_shape(generated, problem.knowledge.shape)
        return torch.unflatten(inputs, 0, value.shape[:2])

    def stage_input(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the stage, ``[N * B, *shape]``, and the class shares."""
        features, shares = self.split(value.flatten(0, 1))
        return torch.unflatten(features * self.scales[self.stage], 1, self.shape), shares

    def next_stage(self, radius: float) -> StageFeatures:
        """The features of the following stage."""
        return replace(self, stage=self.stage + 1, radius=radius)

    @torch.no_grad()
    def advance(self, value: Tensor) -> Tensor:
        """Converts a value to the following stage's, for the same images."""
        features, shares = self.stage_input(value.to(next(self.generator.parameters())))
        output = self.generator.run_stage(self.stage, features, shares)
        scaled = output.flatten(1) / self.scales[self.stage + 1]
        return torch.unflatten(torch.cat([scaled, shares], -1), 0, value.shape[:2])


@torch.no_grad()
def measure_scales(generator: ConditionalGenerator, *, codes: int = 64) -> tuple[float, ...]:
    """The root mean square of each stage's input, over random codes of all classes in turn."""
    features = generator.sample_codes(codes, seeded(0, "usual sizes"))
    classes = (torch.arange(codes) % generator.classes).to(features.device)
    scales = [1.0]
    for number in range(len(generator.stage_shapes) - 1):
        features = generator.run_stage(number, features, classes)
        scales.append(float(features.square().mean().sqrt().clamp(min=1e-6)))
    return tuple(scales)


def fit_to_shape(images: Tensor, shape: Shape) -> Tensor:
    """Generated images with the client's channels and size: averaged to grey, and resized."""
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True)
    if images.shape[2:] != shape[1:]:
        images = F.interpolate(images, shape[1:], mode="bilinear", antialias=True)
    return images


def project_to_simplex(value: Tensor, total: Tensor) -> Tensor:
    """The nearest ``w >= 0`` whose sum over the last axis is ``total [..., 1]``.

    ``w = max(v - t, 0)`` with ``t = (v_(1) + ... + v_(k) - total) / k`` over the k largest, for the
    greatest k whose smallest is still above t (Duchi et al. 2008).
    """
    largest = value.sort(-1, descending=True).values
    counts = torch.arange(1, value.shape[-1] + 1, device=value.device)
    thresholds = (largest.cumsum(-1, dtype=torch.double) - total) / counts
    count = (largest > thresholds).sum(-1, keepdim=True).clamp(min=1)
    return (value - thresholds.gather(-1, count - 1).to(value)).clamp(min=0)


def project_to_l1_ball(value: Tensor, radius: Tensor) -> Tensor:
    """The nearest ``w`` whose L1 norm over the last axis is at most ``radius [..., 1]``."""
    lengths = value.abs()
    inside = lengths.sum(-1, keepdim=True) <= radius
    return torch.where(inside, value, project_to_simplex(lengths, radius) * value.sign())
