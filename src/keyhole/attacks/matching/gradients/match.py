"""Compares the gradients of dummy batches with the target gradients, per victim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.fused import SquaredNorms
from keyhole.attacks.matching.gradients.gradient_weights import (
    GradientWeights,
    WeightsByName,
    stack_weights,
)
from keyhole.attacks.matching.gradients.intervals import (
    IntervalsByName,
    share_known,
    shows_values,
    stack_intervals,
)
from keyhole.attacks.matching.gradients.layer_call import BatchStatistics
from keyhole.defenses.capabilities import Interval


class Targets:
    """The target gradients of N victims, stacked: ``tensors[name]`` is ``[N, *shape]``.

    Where a parameter has gradient weights, its target is stored weighted, and so are its bounds
    where a defense declares some.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        squares: dict[str, Tensor] | None = None,
        gradient_weights: Mapping[str, GradientWeights] | None = None,
        intervals: IntervalsByName | None = None,
        *,
        shown: bool | None = None,
        known_share: Tensor | None = None,
    ) -> None:
        self.tensors = tensors
        self.squares = squares or {n: squared_norms(t) for n, t in tensors.items()}
        self.gradient_weights = gradient_weights or {}
        self.intervals = intervals or {}
        if shown is None:
            shown = not self.intervals or shows_values(tensors, self.intervals)
        self.shows_values = shown
        """Whether each victim's targets have values that are known, and not only bounds."""
        if known_share is None:
            some = next(iter(self.squares.values()), torch.ones(0))
            known_share = share_known(tensors, intervals) if intervals else torch.ones_like(some)
        self.known_share = known_share
        """The share of each victim's values that are known, ``[N]``."""
        self._weighted_twice: dict[str, Tensor] = {}

    @classmethod
    def stack(
        cls,
        gradients: Sequence[Mapping[str, Tensor]],
        like: Tensor,
        *,
        unit: bool = False,
        gradient_weights: Sequence[WeightsByName] = (),
        intervals: Sequence[IntervalsByName] = (),
    ) -> Targets:
        """Stacks one gradient per victim; parameters that any victim did not report are left out.

        ``gradient_weights`` and ``intervals`` have one entry per victim; empty: nothing is
        weighted, and all values are known. ``unit`` scales each victim's whole weighted gradient
        to length 1.
        """
        shared = [n for n in gradients[0] if all(n in g for g in gradients)]
        weighted = [{n: g[n].double() for n in shared} for g in gradients]
        for gradient, own_weights in zip(weighted, gradient_weights, strict=False):
            gradient.update(
                {n: weights(gradient[n]) for n, weights in own_weights.items() if n in gradient}
            )
        scales = [1 / gradient_norm(g, shared) if unit else 1.0 for g in weighted]
        pairs = list(zip(weighted, scales, strict=True))
        tensors = {n: torch.stack([(g[n] * s).to(like) for g, s in pairs]) for n in shared}
        stacked = stack_weights(gradient_weights, like) if gradient_weights else None
        bounds = {}
        if any(intervals):
            bounds = stack_intervals(intervals, weighted, gradient_weights, scales, like)
        return cls(tensors, gradient_weights=stacked, intervals=bounds)

    def weighted_twice(self, name: str) -> Tensor:
        """A target with its weights applied once more.

        Its product with the unweighted G equals the product of weighted G and weighted T.
        """
        if name not in self._weighted_twice:
            self._weighted_twice[name] = self.gradient_weights[name](self.tensors[name])
        return self._weighted_twice[name]

    def select(self, victims: Tensor) -> Targets:
        """The targets of some of the victims."""
        return Targets(
            {n: t[victims] for n, t in self.tensors.items()},
            {n: s[victims] for n, s in self.squares.items()},
            {n: weights.select(victims) for n, weights in self.gradient_weights.items()},
            {n: bounds.map(lambda b: b[victims]) for n, bounds in self.intervals.items()},
            shown=self.shows_values,
            known_share=self.known_share[victims],
        )


class GradientMatch(ABC):
    """Dummy gradients G beside targets T. Everything is differentiable; ``[N]`` is per victim."""

    names: Sequence[str]
    """The parameters whose gradients are compared."""
    statistics: Sequence[BatchStatistics]
    """Batch statistics of each BatchNorm, if they were asked for."""
    others: Sequence[GradientMatch] = ()
    """The matches of other rounds of the same victims."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets

    @abstractmethod
    def gradient(self, name: str) -> Tensor:
        """G of one parameter, ``[N, *shape]``."""

    @abstractmethod
    def products(self, name: str) -> tuple[Tensor, Tensor]:
        """``<G, T>`` and ``|G|^2`` of one parameter, both weighted, ``[N]`` each."""

    def is_built(self, name: str) -> bool:
        """Whether the gradient exists already, or costs no more to build than its products."""
        return True

    def weighted_gradient(self, name: str) -> Tensor:
        """G of one parameter, weighted if its target is."""
        gradient = self.gradient(name)
        weights = self.targets.gradient_weights.get(name)
        return gradient if weights is None else weights(gradient)

    def target(self, name: str) -> Tensor:
        """T of one parameter, ``[N, *shape]``."""
        return self.targets.tensors[name]

    def interval(self, name: str) -> Interval | None:
        """The bounds of one parameter's target, ``[N, *shape]`` each; None: T is known."""
        return self.targets.intervals.get(name)

    def target_square(self, name: str) -> Tensor:
        """``|T|^2`` of one parameter."""
        return self.targets.squares[name]


class BuiltMatch(GradientMatch):
    """A match in which every gradient exists as a tensor."""

    def __init__(
        self,
        gradients: Mapping[str, Tensor],
        targets: Targets,
        statistics: Sequence[BatchStatistics] = (),
    ) -> None:
        super().__init__(targets)
        self.gradients = gradients
        self.names = [n for n in gradients if n in targets.tensors]
        self.statistics = statistics

    def gradient(self, name: str) -> Tensor:
        return self.gradients[name]

    def products(self, name: str) -> tuple[Tensor, Tensor]:
        gradient = self.weighted_gradient(name)
        return (gradient * self.target(name)).flatten(1).sum(1), squared_norms(gradient)


def gradient_norm(gradient: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """The norm over some parameters; 1 if all of them are 0."""
    norms = [gradient[n].double().norm() for n in names]
    return float(torch.stack(norms).norm()) or 1.0


def squared_norms(x: Tensor) -> Tensor:
    """``|x|^2`` of each victim, ``[N]``."""
    found: Tensor = SquaredNorms.apply(x.flatten(1))
    return found
