"""What images are like, before any gradient is seen: terms added to the objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.match import Match
from keyhole.models.dropout_sites import Site


@dataclass(frozen=True)
class Guess:
    """The state of all victims that a prior judges."""

    images: Tensor
    """``[N, B, C, H, W]``, normalised as the model wants them."""
    masks: tuple[Tensor, ...] | None
    """Dropout masks, ``[N, samples, ...]`` a site."""
    match: Match
    progress: Tensor
    """How far each victim is, from 0 to 1: ``[N]``."""


class Prior(ABC):
    """One term, ``[N]``."""

    statistics: ClassVar[bool] = False
    """Whether it needs to see what the BatchNorms saw."""

    whole: ClassVar[bool] = False
    """Whether it needs whole gradients."""

    @abstractmethod
    def __call__(self, guess: Guess) -> Tensor: ...


@dataclass(frozen=True)
class TotalVariation(Prior):
    """Differences of neighbouring pixels.

    Anisotropic: mean absolute differences, down plus across (Geiping et al. 2020). Isotropic: the
    mean length of the gradient vector. ``block``: differences across the borders of blocks of so
    many pixels do not count, for images whose blocks were shuffled.
    """

    weight: float
    isotropic: bool = False
    block: int | None = None

    def __call__(self, guess: Guess) -> Tensor:
        x = guess.images
        down, across = x.diff(dim=-2), x.diff(dim=-1)
        if self.block is not None:
            down = down * inside(down.shape[-2], self.block, x)[:, None]
            across = across * inside(across.shape[-1], self.block, x)
        if self.isotropic:
            squares = down[..., :, :-1].square() + across[..., :-1, :].square()
            return self.weight * (squares + 1e-12).sqrt().flatten(1).mean(1)
        return self.weight * (down.abs().flatten(1).mean(1) + across.abs().flatten(1).mean(1))


def inside(count: int, block: int, like: Tensor) -> Tensor:
    """1 for each of ``count`` differences along an axis inside a block, 0 across a border."""
    return (torch.arange(1, count + 1, device=like.device) % block != 0).to(like)


@dataclass(frozen=True)
class Magnitude(Prior):
    """The mean squared pixel (Yin et al. 2021)."""

    weight: float

    def __call__(self, guess: Guess) -> Tensor:
        return self.weight * guess.images.square().flatten(1).mean(1)


@dataclass(frozen=True)
class BatchNormStatistics(Prior):
    """Distance of each BatchNorm's batch statistics to its running ones (Yin et al. 2021).

    ``sum over layers |mean - running mean| + |var - running var|``.
    """

    weight: float
    statistics: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        total = guess.images.new_zeros(len(guess.images))
        for seen in guess.match.statistics:
            mean = (seen.mean - seen.running_mean).square().sum(1)
            var = (seen.var - seen.running_var).square().sum(1)
            total = total + (mean + 1e-12).sqrt() + (var + 1e-12).sqrt()
        return self.weight * total


@dataclass(frozen=True)
class PositionCosine(Prior):
    """``1 - cos`` of the position embedding's gradients (Lu et al. 2022, APRIL).

    The embedding's gradient is the gradient at the patches: it carries where what is.
    """

    weight: float
    parameter: str
    whole: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        gradient = guess.match.gradient(self.parameter).flatten(1)
        target = guess.match.target(self.parameter).flatten(1)
        return self.weight * (1 - torch.cosine_similarity(gradient, target, dim=1))


@dataclass(frozen=True)
class LastFeatures(Prior):
    """The relative squared distance of the last layer's inputs, for one image a client.

    Its weight gradient is ``b f^T``, b being the bias' gradient: ``f = W^T b / |b|^2`` can be read
    off the dummy's gradient and off the observed one alike, and that exactly.
    """

    weight: float
    layer: str
    whole: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        match = guess.match
        weight, bias = f"{self.layer}.weight", f"{self.layer}.bias"
        dummy = last_features(match.gradient(weight), match.gradient(bias))
        wanted = last_features(match.target(weight), match.target(bias))
        apart = (dummy - wanted).square().sum(1)
        return self.weight * apart / wanted.square().sum(1).clamp(min=1e-20)


def last_features(weight: Tensor, bias: Tensor) -> Tensor:
    """``W^T b / |b|^2`` of gradients ``[N, C, F]`` and ``[N, C]``: the inputs ``[N, F]``."""
    square = bias.square().sum(1, keepdim=True).clamp(min=1e-20)
    return torch.einsum("ncf,nc->nf", weight, bias) / square


@dataclass(frozen=True)
class PatchSeams(Prior):
    """Jumps across the borders of patches (Hatamizadeh et al. 2022, GradViT).

    ``sum over seams |pixels before the seam - pixels after it|``, down and across; it begins when
    the victim is ``after`` of its way.
    """

    weight: float
    patch: tuple[int, int]
    after: float = 0.0

    def __call__(self, guess: Guess) -> Tensor:
        x = guess.images
        rows, columns = self.patch
        down = x[..., rows::rows, :] - x[..., rows - 1 : -1 : rows, :]
        across = x[..., :, columns::columns] - x[..., :, columns - 1 : -1 : columns]
        seams = (down.square().sum((-1, -3)) + 1e-12).sqrt().flatten(1).sum(1)
        seams = seams + (across.square().sum((-2, -3)) + 1e-12).sqrt().flatten(1).sum(1)
        return self.weight * seams * (guess.progress >= self.after)


@dataclass(frozen=True)
class DropRate(Prior):
    """Masks should drop what the rate says: ``sum over sites |(1 - mean mask) - p|`` (DIA)."""

    weight: float
    sites: tuple[Site, ...]

    def __call__(self, guess: Guess) -> Tensor:
        assert guess.masks is not None
        means = [mask.flatten(1).mean(1) for mask in guess.masks]
        terms = [(1 - m - s.p).abs() for m, s in zip(means, self.sites, strict=True)]
        return self.weight * torch.stack(terms).sum(0)
