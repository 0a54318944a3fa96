"""How far a dummy gradient is from the observed one: one number a victim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.match import Match

TINY = 1e-30
"""Keeps norms of vanishing gradients away from 0."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A distance of gradients.

    ``weights`` gives parameters a weight of their own (others have 1; 0 leaves one out). Gradients
    are compared as seen through their lenses.
    """

    weights: Mapping[str, float] = field(default_factory=dict)

    whole: ClassVar[bool] = True
    """Whether whole gradients are compared, not only their products with the targets."""

    scale_free: ClassVar[bool] = False
    """Whether only directions count, so that targets may be scaled."""

    @abstractmethod
    def __call__(self, match: Match) -> Tensor:
        """``[N]``."""

    def compared(self, match: Match) -> list[tuple[str, float]]:
        """The parameters that take part, with their weights."""
        weighted = [(name, self.weights.get(name, 1.0)) for name in match.names]
        return [(name, weight) for name, weight in weighted if weight != 0]

    def pair(self, match: Match, name: str) -> tuple[Tensor, Tensor]:
        """Dummy and observed gradient of one parameter, as they are seen."""
        return match.seen(name), match.target(name)


@dataclass(frozen=True, kw_only=True)
class Cosine(Objective):
    """``1 - <G, T> / (|G| |T|)`` over all parameters together (Geiping et al. 2020).

    Computed as half the squared distance of the two directions, which is the same and does not
    cancel where they nearly agree; products are used only for gradients too large to build.
    """

    whole: ClassVar[bool] = False
    scale_free: ClassVar[bool] = True

    def __call__(self, match: Match) -> Tensor:
        built: list[tuple[float, Tensor, Tensor]] = []
        dots, squares, wanted, apart = [], [], [], []
        for name, weight in self.compared(match):
            if match.is_built(name):
                gradient, target = self.pair(match, name)
                built.append((weight, gradient.flatten(1), target.flatten(1)))
                squares.append(weight * gradient.square().flatten(1).sum(1))
                wanted.append(weight * target.square().flatten(1).sum(1))
            else:
                dot, square = match.products(name)
                dots.append(weight * dot)
                apart.append((weight * square, weight * match.target_square(name)))
                squares.append(apart[-1][0])
                wanted.append(apart[-1][1])
        scale = (_total(squares).clamp(min=0) + TINY).rsqrt()
        unit = _total(wanted).clamp(min=TINY).rsqrt()
        terms = [
            weight * (g * scale[:, None] - t * unit[:, None]).square().sum(1) / 2
            for weight, g, t in built
        ]
        if apart:
            mine, theirs = (_total([pair[i] for pair in apart]) for i in (0, 1))
            cross = _total(dots) * scale * unit
            terms.append((mine * scale.square() + theirs * unit.square()) / 2 - cross)
        return _total(terms)


@dataclass(frozen=True, kw_only=True)
class SquaredError(Objective):
    """``sum |G - T|^2`` (Zhu et al. 2019), as a share of ``sum |T|^2`` if ``relative``.

    Differences are taken entry by entry: near the solution products would cancel.
    """

    relative: bool = False

    def __call__(self, match: Match) -> Tensor:
        terms, wanted = [], []
        for name, weight in self.compared(match):
            gradient, target = self.pair(match, name)
            terms.append(weight * (gradient - target).square().flatten(1).sum(1))
            wanted.append(weight * target.square().flatten(1).sum(1))
        total = _total(terms)
        return total / (_total(wanted) + TINY) if self.relative else total


@dataclass(frozen=True, kw_only=True)
class LayerNorms(Objective):
    """``sum over parameters |G - T|`` without the square (Yin et al. 2021)."""

    def __call__(self, match: Match) -> Tensor:
        terms = []
        for name, weight in self.compared(match):
            gradient, target = self.pair(match, name)
            square = (gradient - target).square().flatten(1).sum(1)
            terms.append(weight * (square + 1e-20).sqrt())
        return _total(terms)


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(Objective):
    """``sum |G - T|`` entry by entry (Deng et al. 2021)."""

    def __call__(self, match: Match) -> Tensor:
        terms = []
        for name, weight in self.compared(match):
            gradient, target = self.pair(match, name)
            terms.append(weight * (gradient - target).abs().flatten(1).sum(1))
        return _total(terms)


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0)
