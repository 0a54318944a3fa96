"""Distances to gradients of which a defense shows bounds and not values: one value per victim.

Every value g_j of the client's gradient lay in an interval ``[lo_j, hi_j]`` (pruned, quantised,
clipped, signed: :meth:`keyhole.defenses.Defense.possible_values`). The distance of a dummy gradient
G to these intervals is ``d_j = max(lo_j - G_j, G_j - hi_j, 0)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.fused import TINY
from keyhole.attacks.matching.gradients.intervals import find_known
from keyhole.attacks.matching.gradients.match import GradientMatch, squared_norms
from keyhole.attacks.matching.parts.objectives import Objective, sum_terms
from keyhole.defenses.capabilities import Interval

EXCESS_WEIGHT = 10.0
"""Weight of the distance to the bounds beside the cosine of the values that are known.

It was chosen on four images of CIFAR-10 and LeNet under pruning, without the division by
1 + 2 w k^2: 1 gives 24.0 dB, 10 gives 27.3."""


@dataclass(frozen=True, kw_only=True)
class BoundedError(Objective):
    """``sum d_j^2``, which is ``sum |G - T|^2`` where all values are known.

    Args:
        weights: Weights of single parameters by name. Others count 1; 0 leaves a parameter out.
        relative: Whether the sum is divided by ``sum |T|^2`` of the values shown.
    """

    relative: bool = False

    def __call__(self, match: GradientMatch) -> Tensor:
        terms, target_squares = [], []
        for name, weight in self.weighted_names(match):
            gradient, target = self.gradient_pair(match, name)
            terms.append(weight * squared_norms(excess(gradient, target, match.interval(name))))
            target_squares.append(weight * squared_norms(target))
        total = sum_terms(terms)
        return total / (sum_terms(target_squares) + TINY) if self.relative else total


@dataclass(frozen=True, kw_only=True)
class BoundedCosine(Objective):
    """The cosine distance, for any length of G, to gradients that lie between the bounds.

    Where values are known (K), as of a pruned gradient, G is scaled to fit them best,
    ``s = <G, T>_K / |G|_K^2``, and the distance is

        (1 - cos(G_K, T_K) + w sum d_j(s G)^2 / |T|^2) / (1 + 2 w k^2),   w = EXCESS_WEIGHT.

    The sum is over all values; d_j of one that is known is its error. k is the share of values that
    are known. Near the images the sum over the known ones is ``2 (1 - cos)``: where nearly all are
    known, the distance is as long as the cosine alone, and priors weigh as they do there. Where
    few are, priors weigh up to 21 times less, since what is left to match is little: on LeNet under
    pruning of 90% the square gives 27.1 dB, no division 27.3, and k = 1 21.9 (four images). Without
    any bounds only the cosine counts. Where no value is known, as of quantised gradients and signs,
    the distance is the mean over the parameters p of ``1 - cos(s G_p, B_p)``. B is the gradient
    between the bounds that is nearest to s G, and s fits all values shown. Parameters count alike,
    or the last layers alone would: bounds are wide, so that the large gradients of the last layers
    meet theirs soon.

    Args:
        weights: Weights of single parameters by name. Others count 1; 0 leaves a parameter out.
    """

    needs_full_gradients: ClassVar[bool] = False
    scale_free: ClassVar[bool] = True

    def __call__(self, match: GradientMatch) -> Tensor:
        if match.targets.shows_values:
            return self._compare_values(match)
        return self._compare_directions(match)

    def _compare_values(self, match: GradientMatch) -> Tensor:
        """The distance where at least some values are known."""
        known = KnownPart()
        built: list[tuple[float, Tensor, Tensor, Interval | None]] = []
        target_squares = []
        for name, weight in self.weighted_names(match):
            target_squares.append(weight * match.target_square(name))
            bounds = match.interval(name)
            if bounds is None and not match.is_built(name):
                dot, square = match.products(name)
                known.add_products(weight, dot, square, match.target_square(name))
                continue
            gradient, target = self.gradient_pair(match, name)
            built.append((weight, gradient, target, bounds))
            if bounds is not None:
                shown = find_known(bounds, target)
                gradient, target = gradient * shown, target * shown
            known.add(weight, gradient, target)
        distance = known.cosine_distance()
        if all(bounds is None for *_, bounds in built):
            return distance
        scale = known.best_scale()
        beyond = [
            w * squared_norms(excess(scale_rows(g, scale), t, bounds)) for w, g, t, bounds in built
        ]
        beyond += [
            scale.square() * square - 2 * scale * dot + target_square
            for dot, square, target_square in known.unbuilt
        ]
        whole = sum_terms(target_squares) + TINY
        length = 1 + 2 * EXCESS_WEIGHT * match.targets.known_share.square()
        return (distance + EXCESS_WEIGHT * sum_terms(beyond) / whole) / length

    def _compare_directions(self, match: GradientMatch) -> Tensor:
        """The distance where only bounds are known."""
        whole, parts = KnownPart(), []
        bounded: list[tuple[float, Tensor, Tensor, Interval]] = []
        for name, weight in self.weighted_names(match):
            bounds, part = match.interval(name), KnownPart()
            if bounds is None and not match.is_built(name):
                dot, square = match.products(name)
                part.add_products(weight, dot, square, match.target_square(name))
            else:
                gradient, target = self.gradient_pair(match, name)
                part.add(weight, gradient, target)
                if bounds is not None:
                    bounded.append((weight, gradient, target, bounds))
            whole.join(part)
            parts += [weight * part.cosine_distance()] if bounds is None else []
        scale = whole.best_scale()
        for weight, gradient, target, bounds in bounded:
            scaled = scale_rows(gradient, scale)
            nearest = scaled - excess(scaled, target, bounds)
            parts.append(weight * direction_distance(scaled, nearest))
        return sum_terms(parts) / sum(weight for _, weight in self.weighted_names(match))


@dataclass
class KnownPart:
    """Sums over the values that are known: of G and T, and their inner product, ``[N]`` each."""

    pairs: list[tuple[float, Tensor, Tensor]] = field(default_factory=list)
    dots: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    target_squares: list[Tensor] = field(default_factory=list)
    unbuilt: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, weight: float, gradient: Tensor, target: Tensor) -> None:
        """Adds a parameter whose gradient is built."""
        self.pairs.append((weight, gradient, target))
        self.dots.append(weight * (gradient * target).flatten(1).sum(1))
        self.squares.append(weight * squared_norms(gradient))
        self.target_squares.append(weight * squared_norms(target))

    def add_products(
        self, weight: float, dot: Tensor, square: Tensor, target_square: Tensor
    ) -> None:
        """Adds a parameter of which only products are known."""
        self.unbuilt.append((weight * dot, weight * square, weight * target_square))
        self.dots.append(weight * dot)
        self.squares.append(weight * square)
        self.target_squares.append(weight * target_square)

    def join(self, other: KnownPart) -> None:
        """Adds what another part holds."""
        self.pairs += other.pairs
        self.unbuilt += other.unbuilt
        self.dots += other.dots
        self.squares += other.squares
        self.target_squares += other.target_squares

    def best_scale(self) -> Tensor:
        """``<G, T> / |G|^2``, or ``|T| / |G|`` where G points away from T: ``[N]``."""
        square = sum_terms(self.squares).clamp(min=0) + TINY
        fit = sum_terms(self.dots) / square
        lengths = (sum_terms(self.target_squares) / square).sqrt()
        return torch.where(fit > 0, fit, lengths)

    def cosine_distance(self) -> Tensor:
        """``1 - cos(G, T)``, as half the squared distance of the directions: ``[N]``."""
        scale = (sum_terms(self.squares).clamp(min=0) + TINY).rsqrt()
        target_scale = sum_terms(self.target_squares).clamp(min=TINY).rsqrt()
        terms = [
            w * squared_norms(scale_rows(g, scale) - scale_rows(t, target_scale)) / 2
            for w, g, t in self.pairs
        ]
        for dot, square, target_square in self.unbuilt:
            lengths = square * scale.square() + target_square * target_scale.square()
            terms.append(lengths / 2 - dot * scale * target_scale)
        return sum_terms(terms)


def excess(gradient: Tensor, target: Tensor, bounds: Interval | None) -> Tensor:
    """By how much values leave their bounds, with its sign; ``G - T`` where bounds are None."""
    if bounds is None:
        return gradient - target
    return torch.relu(gradient - bounds.high) - torch.relu(bounds.low - gradient)


def scale_rows(tensor: Tensor, scale: Tensor) -> Tensor:
    """``tensor [N, ...]``, each victim's times its own ``scale [N]``."""
    return tensor * scale.to(tensor).view(-1, *[1] * (tensor.dim() - 1))


def direction_distance(one: Tensor, other: Tensor) -> Tensor:
    """``1 - cos`` of two tensors ``[N, ...]``; 1/2 where one of them is zero: ``[N]``."""
    scales = [(squared_norms(t) + TINY).rsqrt() for t in (one, other)]
    return squared_norms(scale_rows(one, scales[0]) - scale_rows(other, scales[1])) / 2
