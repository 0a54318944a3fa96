"""What GIFD searches: the features that enter one stage of a generator.

Values are ``[N, B, D + classes]``: an image's features, flat and in units of their usual size, and
beside them its classes' shares, which the generator is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.generative.conditional import ConditionalGenerator, Shape
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.unknowns import Known, Picture
from keyhole.seeds import generator as seeded

CENTRE = "centre"
"""What is known as the place a stage's features started from, ``[N, B, D]``."""


@dataclass(frozen=True)
class Features(Picture):
    """What enters ``stage`` of a generator: its codes (stage 0), or features of one of its grids.

    ``radius`` bounds the change of each image's features since the stage began: in the L1 norm,
    as a share of the norm that they began with. ``told`` says that the generator's classes are the
    client's: then the labels are the classes, wherever they are known; else shares are sought.
    """

    generator: ConditionalGenerator
    stage: int
    sizes: tuple[float, ...]
    """The usual size of what enters each stage."""
    told: bool
    radius: float | None = None

    name: ClassVar[str] = "features"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.generator.entries[self.stage]

    def split(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``[..., D]`` and shares ``[..., classes]``."""
        count = math.prod(self.shape)
        return value[..., :count], value[..., count:]

    def start(self, problem: Problem, draw: torch.Generator) -> Tensor:
        """Standard normal codes, of all classes alike."""
        count = problem.knowledge.batch_size
        codes = torch.randn(count, math.prod(self.shape), generator=draw)
        alike = torch.full((count, self.generator.classes), 1 / self.generator.classes)
        return torch.cat([codes, alike], -1)

    def project(self, value: Tensor, problem: Problem, known: Known) -> Tensor:
        features, shares = self.split(value)
        if self.radius is not None:
            centre = known[CENTRE]
            bound = self.radius * centre.abs().sum(-1, keepdim=True)
            features = centre + onto_ball(features - centre, bound)
        if self.told and "labels" in known:
            shares = known["labels"][..., : self.generator.classes]
        else:
            shares = onto_simplex(shares, torch.ones_like(shares[..., :1]))
        return torch.cat([features, shares], -1)

    def render(self, value: Tensor, problem: Problem) -> Tensor:
        entering, shares = self.entering(value.to(problem.like))
        drawn = self.generator.from_stage(self.stage, entering, shares)
        black, white = problem.box
        inputs = black + (white - black) * fitted(drawn, problem.knowledge.shape)
        return torch.unflatten(inputs, 0, value.shape[:2])

    def entering(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """What the stage takes, ``[N * B, *shape]``, and the shares of classes."""
        features, shares = self.split(value.flatten(0, 1))
        return torch.unflatten(features * self.sizes[self.stage], 1, self.shape), shares

    def next(self, radius: float) -> Features:
        """The domain of the stage after this one."""
        return replace(self, stage=self.stage + 1, radius=radius)

    @torch.no_grad()
    def advanced(self, value: Tensor) -> Tensor:
        """A value of this domain as the next one's: the same images."""
        entering, shares = self.entering(value.to(next(self.generator.parameters())))
        made = self.generator.stage(self.stage, entering, shares)
        features = made.flatten(1) / self.sizes[self.stage + 1]
        return torch.unflatten(torch.cat([features, shares], -1), 0, value.shape[:2])


@torch.no_grad()
def usual_sizes(generator: ConditionalGenerator, *, codes: int = 64) -> tuple[float, ...]:
    """The root mean square of what enters each stage, over some codes of every class in turn."""
    features = generator.codes(codes, seeded(0, "usual sizes"))
    classes = (torch.arange(codes) % generator.classes).to(features.device)
    sizes = [1.0]
    for number in range(len(generator.entries) - 1):
        features = generator.stage(number, features, classes)
        sizes.append(float(features.square().mean().sqrt().clamp(min=1e-6)))
    return tuple(sizes)


def fitted(images: Tensor, shape: Shape) -> Tensor:
    """Drawn images as the client's are: grey where those are, resized where their size differs."""
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True)
    if images.shape[2:] != shape[1:]:
        images = F.interpolate(images, shape[1:], mode="bilinear", antialias=True)
    return images


def onto_simplex(value: Tensor, total: Tensor) -> Tensor:
    """The nearest ``w >= 0`` whose sum over the last axis is ``total [..., 1]``.

    ``w = max(v - t, 0)`` with ``t = (v_(1) + ... + v_(k) - total) / k`` over the k largest, for the
    greatest k whose smallest is still above t (Duchi et al. 2008).
    """
    largest = value.sort(-1, descending=True).values
    places = torch.arange(1, value.shape[-1] + 1, device=value.device)
    cuts = (largest.cumsum(-1, dtype=torch.double) - total) / places
    count = (largest > cuts).sum(-1, keepdim=True).clamp(min=1)
    return (value - cuts.gather(-1, count - 1).to(value)).clamp(min=0)


def onto_ball(value: Tensor, radius: Tensor) -> Tensor:
    """The nearest ``w`` whose L1 norm over the last axis is at most ``radius [..., 1]``."""
    lengths = value.abs()
    inside = lengths.sum(-1, keepdim=True) <= radius
    return torch.where(inside, value, onto_simplex(lengths, radius) * value.sign())
