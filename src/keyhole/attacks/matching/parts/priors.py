"""Priors: terms added to the objective that say what images and dropout masks are usually like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from keyhole.attacks.analytic.probes import capture_early_input
from keyhole.attacks.matching.gradients.match import GradientMatch
from keyhole.models.dropout_sites import Site


@dataclass(frozen=True)
class Guess:
    """The current guesses for all victims."""

    images: Tensor
    """Model inputs ``[N, B, C, H, W]``."""
    masks: tuple[Tensor, ...] | None
    """Dropout masks, one tensor ``[N, samples, ...]`` per site."""
    match: GradientMatch
    progress: Tensor
    """The share of its iterations that each victim has had, ``[N]``."""
    known: Mapping[str, Tensor] = field(default_factory=dict)
    """What is known about the victims from the start, by name, ``[N, ...]``."""


class Prior(ABC):
    """One term of the loss."""

    needs_statistics: ClassVar[bool] = False
    """Whether it needs the BatchNorms' batch statistics."""

    needs_full_gradients: ClassVar[bool] = False
    """Whether it needs whole gradients, and not only their products with the targets."""

    @abstractmethod
    def __call__(self, guess: Guess) -> Tensor:
        """The term of each victim, ``[N]``."""


@dataclass(frozen=True)
class TotalVariation(Prior):
    """Differences of neighbouring pixels.

    By default the mean absolute difference down plus the one across (Geiping et al. 2020).

    Args:
        weight: Weight of the term.
        isotropic: Whether to take the mean length of the gradient vector instead.
        block: Side of blocks across whose borders differences do not count, for images whose
            blocks were shuffled; None: all differences count.
    """

    weight: float
    isotropic: bool = False
    block: int | None = None

    def __call__(self, guess: Guess) -> Tensor:
        x = guess.images
        down, across = x.diff(dim=-2), x.diff(dim=-1)
        if self.block is not None:
            down = down * inside_blocks(down.shape[-2], self.block, x)[:, None]
            across = across * inside_blocks(across.shape[-1], self.block, x)
        if self.isotropic:
            squares = down[..., :, :-1].square() + across[..., :-1, :].square()
            return self.weight * (squares + 1e-12).sqrt().flatten(1).mean(1)
        return self.weight * (down.abs().flatten(1).mean(1) + across.abs().flatten(1).mean(1))


def inside_blocks(count: int, block: int, like: Tensor) -> Tensor:
    """For ``count`` differences along an axis: 1 inside a block, 0 across a border. ``[count]``."""
    return (torch.arange(1, count + 1, device=like.device) % block != 0).to(like)


@dataclass(frozen=True)
class Magnitude(Prior):
    """The mean squared pixel (Yin et al. 2021).

    Args:
        weight: Weight of the term.
    """

    weight: float

    def __call__(self, guess: Guess) -> Tensor:
        return self.weight * guess.images.square().flatten(1).mean(1)


@dataclass(frozen=True)
class BatchNormStatistics(Prior):
    """The distance of each BatchNorm's batch statistics to its running ones (Yin et al. 2021).

    ``sum over layers |mean - running mean| + |var - running var|``.

    Args:
        weight: Weight of the term.
    """

    weight: float
    needs_statistics: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        total = guess.images.new_zeros(len(guess.images))
        for layer in guess.match.statistics:
            mean = (layer.mean - layer.running_mean).square().sum(1)
            var = (layer.var - layer.running_var).square().sum(1)
            total = total + (mean + 1e-12).sqrt() + (var + 1e-12).sqrt()
        return self.weight * total


@dataclass(frozen=True)
class UploadedStatistics(Prior):
    """The distance of each BatchNorm's batch statistics to those that uploaded buffers tell.

    The mean over layers and channels of ``((mean - m)^2 + (sd - s)^2) / (s^2 + v)``, where m and s
    are the known mean and standard deviation, and v is the mean of ``s^2`` over the layer's
    channels, so that flat channels do not count more than others.

    Args:
        weight: Weight of the term.
    """

    weight: float
    needs_statistics: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        terms = [guess.images.new_zeros(len(guess.images))]
        for layer in guess.match.statistics:
            if layer.known is None:
                continue
            known, var = layer.known, layer.var.clamp(min=0)
            means = (layer.mean - known.mean).square()
            deviations = ((var + 1e-8).sqrt() - (known.var + 1e-8).sqrt()).square()
            scale = known.var + known.var.mean(1, keepdim=True) + 1e-8
            terms.append(((means + deviations) / scale).mean(1))
        return self.weight * torch.stack(terms).sum(0) / max(1, len(terms) - 1)


@dataclass(frozen=True)
class PositionCosine(Prior):
    """``1 - cos`` of the position embedding's gradients (Lu et al. 2022, APRIL).

    The embedding's gradient is the gradient at the patches, so it tells where things are.

    Args:
        weight: Weight of the term.
        parameter: Name of the position embedding.
    """

    weight: float
    parameter: str
    needs_full_gradients: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        gradient = guess.match.gradient(self.parameter).flatten(1)
        target = guess.match.target(self.parameter).flatten(1)
        return self.weight * (1 - torch.cosine_similarity(gradient, target, dim=1))


@dataclass(frozen=True)
class LastFeatures(Prior):
    """The relative squared distance of the last layer's inputs, for one image per client.

    The layer's weight gradient is ``b f^T``, where b is the bias gradient and f the layer's input.
    So ``f = W^T b / |b|^2`` follows exactly from the dummy gradient W and from the target alike.

    Args:
        weight: Weight of the term.
        layer: Name of the last layer.
    """

    weight: float
    layer: str
    needs_full_gradients: ClassVar[bool] = True

    def __call__(self, guess: Guess) -> Tensor:
        match = guess.match
        weight, bias = f"{self.layer}.weight", f"{self.layer}.bias"
        dummy = solve_last_features(match.gradient(weight), match.gradient(bias))
        target = solve_last_features(match.target(weight), match.target(bias))
        distance = (dummy - target).square().sum(1)
        return self.weight * distance / target.square().sum(1).clamp(min=1e-20)


def solve_last_features(weight: Tensor, bias: Tensor) -> Tensor:
    """``W^T b / |b|^2`` of gradients ``[N, C, F]`` and ``[N, C]``: the inputs ``[N, F]``."""
    square = bias.square().sum(1, keepdim=True).clamp(min=1e-20)
    return torch.einsum("ncf,nc->nf", weight, bias) / square


@dataclass(frozen=True)
class KnownInputs(Prior):
    """The relative squared distance of a layer's inputs to known ones, for each image of a batch.

    ``mean_i |phi(x_i) - f_i|^2 / |f_i|^2``, where phi runs the model up to the layer, in evaluation
    mode. The known inputs f are the attack's extra input ``inputs``; images whose extra input
    ``guided`` is 0 do not count.

    Args:
        weight: Weight of the term.
        layer: Name of a linear layer, or of a convolution.
        model: The model, whose parameters take no gradient.
    """

    weight: float
    layer: str
    model: nn.Module

    def __call__(self, guess: Guess) -> Tensor:
        victims, batch = guess.images.shape[:2]
        images = guess.images.flatten(0, 1)
        inputs = capture_early_input(self.model, self.layer, images).flatten(1)
        wanted = guess.known["inputs"].flatten(0, 1)
        distance = (inputs - wanted).square().sum(1) / wanted.square().sum(1).clamp(min=1e-20)
        guided = distance.view(victims, batch) * guess.known["guided"]
        return self.weight * guided.mean(1)


@dataclass(frozen=True)
class PatchSeams(Prior):
    """Jumps across the borders of patches (Hatamizadeh et al. 2022, GradViT).

    ``sum over seams |pixels before the seam - pixels after it|``, down and across.

    Args:
        weight: Weight of the term.
        patch: Rows and columns of a patch.
        after: The share of a victim's iterations after which the term sets in.
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
class Consensus(Prior):
    """The mean squared distance to what several searches agree on (Yin et al. 2021).

    The attack's known values have it as ``consensus``, ``[N, B, C, H, W]``.

    Args:
        weight: Weight of the term.
    """

    weight: float

    def __call__(self, guess: Guess) -> Tensor:
        distance = (guess.images - guess.known["consensus"]).square().flatten(1).mean(1)
        return self.weight * distance


@dataclass(frozen=True)
class DropRate(Prior):
    """The distance of the masks' drop rates to the true ones (Scheliga et al. 2023, DIA).

    ``sum over sites |(1 - mean mask) - p|``; for noise, ``|1 - mean square|``.

    Args:
        weight: Weight of the term.
        sites: The model's dropouts.
    """

    weight: float
    sites: tuple[Site, ...]

    def __call__(self, guess: Guess) -> Tensor:
        assert guess.masks is not None
        terms = []
        for mask, site in zip(guess.masks, self.sites, strict=True):
            values = mask.flatten(1)
            expected = values.square() if site.is_noise else values + site.p
            terms.append((1 - expected.mean(1)).abs())
        return self.weight * torch.stack(terms).sum(0)
