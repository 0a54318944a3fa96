"""What a dummy batch's gradient has in common with the one that was observed, victim by victim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keyhole.attacks.matching.lens import Lens, Lenses, stacked
from keyhole.attacks.matching.tape import Statistics


class Targets:
    """The observed gradients of N victims, stacked: ``tensors[name]`` is ``[N, *shape]``.

    Those that have a lens are kept as seen through it.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        squares: dict[str, Tensor] | None = None,
        lenses: Mapping[str, Lens] | None = None,
    ) -> None:
        self.tensors = tensors
        self.squares = squares or {n: _square(t) for n, t in tensors.items()}
        self.lenses = lenses or {}
        self.twice_seen: dict[str, Tensor] = {}

    @classmethod
    def stack(
        cls,
        gradients: Sequence[Mapping[str, Tensor]],
        like: Tensor,
        *,
        unit: bool = False,
        lenses: Sequence[Lenses] = (),
    ) -> Targets:
        """From one gradient a victim; parameters that some victim did not report are left out.

        ``lenses``: through which each victim's gradient is seen; none: as it is. ``unit`` scales
        each victim's whole gradient, so seen, to length 1.
        """
        shared = [n for n in gradients[0] if all(n in g for g in gradients)]
        seen = [{n: g[n].double() for n in shared} for g in gradients]
        for gradient, own in zip(seen, lenses, strict=False):
            gradient.update({n: lens(gradient[n]) for n, lens in own.items() if n in gradient})
        scales = [1 / length(g, shared) if unit else 1.0 for g in seen]
        pairs = list(zip(seen, scales, strict=True))
        tensors = {n: torch.stack([(g[n] * s).to(like) for g, s in pairs]) for n in shared}
        return cls(tensors, lenses=stacked(lenses, like) if lenses else None)

    def twice(self, name: str) -> Tensor:
        """A target through its lens once more: its product with G is that of both as seen."""
        if name not in self.twice_seen:
            self.twice_seen[name] = self.lenses[name](self.tensors[name])
        return self.twice_seen[name]

    def select(self, victims: Tensor) -> Targets:
        """Some of the victims."""
        return Targets(
            {n: t[victims] for n, t in self.tensors.items()},
            {n: s[victims] for n, s in self.squares.items()},
            {n: lens.select(victims) for n, lens in self.lenses.items()},
        )


class Match(ABC):
    """Dummy gradients G beside targets T. Everything is differentiable; ``[N]`` is one a victim."""

    names: Sequence[str]
    """The parameters whose gradients are compared."""
    statistics: Sequence[Statistics]
    """What each BatchNorm saw, where that was asked for."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets

    @abstractmethod
    def gradient(self, name: str) -> Tensor:
        """G of one parameter, ``[N, *shape]``."""

    @abstractmethod
    def products(self, name: str) -> tuple[Tensor, Tensor]:
        """``<G, T>`` and ``|G|^2`` of one parameter as it is seen, ``[N]`` each."""

    def is_built(self, name: str) -> bool:
        """Whether the gradient is there, or costs no more to build than its products do."""
        return True

    def seen(self, name: str) -> Tensor:
        """G of one parameter through its lens, if it has one: what stands beside the target."""
        gradient = self.gradient(name)
        lens = self.targets.lenses.get(name)
        return gradient if lens is None else lens(gradient)

    def target(self, name: str) -> Tensor:
        return self.targets.tensors[name]

    def target_square(self, name: str) -> Tensor:
        """``|T|^2`` of one parameter."""
        return self.targets.squares[name]


class BuiltMatch(Match):
    """A match whose gradients are all there already."""

    def __init__(
        self,
        gradients: Mapping[str, Tensor],
        targets: Targets,
        statistics: Sequence[Statistics] = (),
    ) -> None:
        super().__init__(targets)
        self.built = gradients
        self.names = [n for n in gradients if n in targets.tensors]
        self.statistics = statistics

    def gradient(self, name: str) -> Tensor:
        return self.built[name]

    def products(self, name: str) -> tuple[Tensor, Tensor]:
        gradient = self.seen(name)
        return _dot(gradient, self.target(name)), _square(gradient)


def length(gradient: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """The norm over some parameters; 1 where all are 0."""
    norms = [gradient[n].double().norm() for n in names]
    return float(torch.stack(norms).norm()) or 1.0


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _square(a: Tensor) -> Tensor:
    return a.square().flatten(1).sum(1)
