"""Distances between dummy gradients and target gradients: one value per victim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.fused import TINY, DirectionGaps
from keyhole.attacks.matching.gradients.match import GradientMatch, squared_norms


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A distance between gradients, which are compared with their gradient weights applied.

    Args:
        weights: Weights of single parameters by name. Others count 1; 0 leaves a parameter out.
    """

    weights: Mapping[str, float] = field(default_factory=dict)

    needs_full_gradients: ClassVar[bool] = True
    """Whether whole gradients are compared, and not only their products with the targets."""

    scale_free: ClassVar[bool] = False
    """Whether only directions count, so that targets may be scaled."""

    @abstractmethod
    def __call__(self, match: GradientMatch) -> Tensor:
        """The distance of each victim, ``[N]``."""

    def bounded(self) -> Objective:
        """The same distance where a defense shows bounds of targets; itself if there is none."""
        return self

    def weighted_names(self, match: GradientMatch) -> list[tuple[str, float]]:
        """The parameters that are compared, with their weights."""
        weighted = [(name, self.weights.get(name, 1.0)) for name in match.names]
        return [(name, weight) for name, weight in weighted if weight != 0]

    def gradient_pair(self, match: GradientMatch, name: str) -> tuple[Tensor, Tensor]:
        """Dummy gradient and target of one parameter, both weighted."""
        return match.weighted_gradient(name), match.target(name)


@dataclass(frozen=True, kw_only=True)
class Cosine(Objective):
    """``1 - <G, T> / (|G| |T|)`` over all parameters together (Geiping et al. 2020).

    It is computed as half the squared distance of the two directions, which is the same value and
    does not cancel where they nearly agree. Only gradients too large to build use products.
    """

    needs_full_gradients: ClassVar[bool] = False
    scale_free: ClassVar[bool] = True

    def bounded(self) -> Objective:
        from keyhole.attacks.matching.parts.bounded_objectives import BoundedCosine

        return BoundedCosine(weights=self.weights)

    def __call__(self, match: GradientMatch) -> Tensor:
        gradients, targets, weights = [], [], []
        dots, squares, factored_squares, target_squares = [], [], [], []
        for name, weight in self.weighted_names(match):
            target_squares.append(weight * match.target_square(name))
            if match.is_built(name):
                gradient, target = self.gradient_pair(match, name)
                gradients.append(gradient.flatten(1))
                targets.append(target.flatten(1))
                weights.append(weight)
            else:
                dot, square = match.products(name)
                dots.append(weight * dot)
                squares.append(weight * square)
                factored_squares.append(target_squares[-1])
        whole = sum_terms(target_squares)
        products = (sum_or_zeros(terms, whole) for terms in (dots, squares, factored_squares))
        target_scale = whole.clamp(min=TINY).rsqrt()
        gaps: Tensor = DirectionGaps.apply(*products, target_scale, targets, weights, *gradients)
        return gaps


@dataclass(frozen=True, kw_only=True)
class SquaredError(Objective):
    """``sum |G - T|^2`` (Zhu et al. 2019).

    Differences are taken entry by entry, because products would cancel near the solution.

    Args:
        relative: Whether the sum is divided by ``sum |T|^2``.
    """

    relative: bool = False

    def bounded(self) -> Objective:
        from keyhole.attacks.matching.parts.bounded_objectives import BoundedError

        return BoundedError(weights=self.weights, relative=self.relative)

    def __call__(self, match: GradientMatch) -> Tensor:
        terms, target_squares = [], []
        for name, weight in self.weighted_names(match):
            gradient, target = self.gradient_pair(match, name)
            terms.append(weight * squared_norms(gradient - target))
            target_squares.append(weight * squared_norms(target))
        total = sum_terms(terms)
        return total / (sum_terms(target_squares) + TINY) if self.relative else total


@dataclass(frozen=True, kw_only=True)
class NormsAndRightAngles(Objective):
    """``mean of (|G| / |T| - 1)^2 + cos(G, T)^2`` over parameters.

    For a defense that replaces each parameter's gradient by an orthogonal one of the same norm
    (CENSOR). An update then shows two numbers per parameter, and nothing else.
    """

    needs_full_gradients: ClassVar[bool] = False

    def __call__(self, match: GradientMatch) -> Tensor:
        terms = []
        for name, weight in self.weighted_names(match):
            dot, square = match.products(name)
            target = match.target_square(name).clamp(min=TINY)
            square = square.clamp(min=0) + TINY
            ratio = (square / target).sqrt()
            terms.append(weight * ((ratio - 1).square() + dot.square() / (square * target)))
        return torch.stack(terms).mean(0)


def sum_terms(terms: list[Tensor]) -> Tensor:
    """The sum of tensors ``[N]``, one per parameter."""
    return torch.stack(terms).sum(0)


def sum_or_zeros(terms: list[Tensor], like: Tensor) -> Tensor:
    """Their sum, or zeros if there are none."""
    return sum_terms(terms) if terms else torch.zeros_like(like)
