"""What a defense that acted leaves in an update, and how it is looked for.

A defense declares its traces by :meth:`keyhole.defenses.Defense.expected_traces`; the audit looks
for them in what the server got.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from keyhole.defenses.magnitudes import Scope
from keyhole.update import Update, kind_of

SLACK = 1e-3
"""By how much a bound may be exceeded, relative to it."""
ROUNDING = 4
"""Rounding errors, in steps between neighbouring numbers, of an update that is a difference."""


SCALED = frozenset({"zeros", "columns", "norm", "bound", "levels"})
"""The kinds of traces that hold of a scaled-down update, too."""
THINNED = frozenset({"zeros", "columns", "norm", "bound", "precision"})
"""The kinds of traces that hold where further values become zero, too."""


@dataclass(frozen=True)
class Sighting:
    """What is known of one client's update where its defense is checked.

    Args:
        update: The update that the server got.
        model: The global model.
        reference: The same client's update without the defense; None: nobody knows it.
        exact: Whether the values are those that the defense returned. False: they are differences
            of weights, and rounded.
        training_known: Whether ``update`` tells steps, rate and batch as they were.
    """

    update: Update
    model: nn.Module
    reference: Update | None = None
    exact: bool = True
    training_known: bool = True

    def parameters(self) -> dict[str, Tensor]:
        """The floating tensors of the update that are parameters of the model."""
        own = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        floats = ((n, t) for n, t in self.update.change.items() if t.is_floating_point())
        return {name: tensor for name, tensor in floats if name in own}

    def rounding(self, name: str, tensor: Tensor) -> Tensor:
        """How far rounding may have moved each value of a tensor; zeros where values are exact.

        Args:
            name: The tensor's name.
            tensor: Its values in the update.
        """
        if self.exact:
            return torch.zeros_like(tensor)
        weight = self.model.state_dict().get(name)
        size = tensor.abs() if weight is None else tensor.abs() + weight.to(tensor).abs()
        return ROUNDING * torch.finfo(tensor.dtype).eps * size


@dataclass(frozen=True)
class TraceCheck:
    """What was found of one trace in one client's update.

    Args:
        trace: What was looked for: ``noise``, ``norm``, ``zeros``, ``levels``, ``precision``, ....
        expected: The size that the defense declares.
        found: The size that was found.
        passed: Whether it is as declared; None: this update cannot tell.
        words: The same in words.
    """

    trace: str
    expected: float
    found: float
    passed: bool | None
    words: str


class Trace(ABC):
    """Something that an update must show if its defense acted as declared."""

    kind: ClassVar[str]
    of_training: bool = False
    """Whether what is expected depends on the client's steps, rate or batch."""
    needs_reference: ClassVar[bool] = False
    """Whether it compares with the update without any defense: beside another it cannot tell."""

    @abstractmethod
    def check(self, seen: Sighting) -> TraceCheck:
        """Looks for the trace.

        Args:
            seen: The update, and what else is known of the client.
        """


@dataclass(frozen=True)
class NormTrace(Trace):
    """The change of all parameters together is no longer than ``limit``, noise apart.

    With noise of standard deviation ``sigma`` on each of n values the bound is
    ``limit + sigma * (sqrt(n) + 6)``, which chance exceeds less than once in a million updates.

    Args:
        limit: The largest norm, in the units of the update's change.
        sigma: The standard deviation of the noise that was added after clipping.
        of_training: Whether ``limit`` depends on how the client trained.
    """

    limit: float
    sigma: float = 0.0
    of_training: bool = False

    kind: ClassVar[str] = "norm"

    def check(self, seen: Sighting) -> TraceCheck:
        tensors = seen.parameters()
        norm, count = Update(tensors).norm(), sum(t.numel() for t in tensors.values())
        bound = self.limit + self.sigma * (math.sqrt(count) + 6)
        rounded = Update({n: seen.rounding(n, t) for n, t in tensors.items()}).norm()
        passed = norm <= bound * (1 + SLACK) + rounded
        than = "at most" if passed else "more than the declared"
        return TraceCheck(self.kind, bound, norm, passed, f"norm {norm:.3g}, {than} {bound:.3g}")


@dataclass(frozen=True)
class ZerosTrace(Trace):
    """At least this share of the parameters' values is zero.

    Args:
        share: The share, rounded down to a whole number of values.
        scope: Whether in each ``tensor`` or over the whole ``update``.
        ties: Whether values of the smallest magnitude that is not zero count, too, because the
            defense cannot choose among equal ones.
    """

    share: float
    scope: Scope = "tensor"
    ties: bool = False

    kind: ClassVar[str] = "zeros"

    def check(self, seen: Sighting) -> TraceCheck:
        sizes = [t.numel() for t in seen.parameters().values()]
        reach = self._find_reach(seen)
        zeros = sum(int((t.abs() <= reach).sum()) for t in seen.parameters().values())
        total = max(1, sum(sizes))
        if self.scope == "tensor":
            wanted = sum(int(self.share * size) for size in sizes) / total
        else:  # buffers, which are ranked too, may have taken places among the largest
            wanted = int(self.share * sum(sizes)) / total
        passed = zeros / total >= wanted - (0 if self.scope == "tensor" else 0.01)
        words = f"{zeros / total:.1%} zeros, {wanted:.1%} declared"
        return TraceCheck(self.kind, wanted, zeros / total, passed, words)

    def _find_reach(self, seen: Sighting) -> float:
        """The largest magnitude that counts as zero."""
        if not self.ties:
            return 0.0
        sizes = [(t[t != 0].abs(), seen.rounding(n, t).max()) for n, t in every_filled(seen)]
        return min((float(s.min() + r) for s, r in sizes if len(s)), default=0.0)


@dataclass(frozen=True)
class BoundTrace(Trace):
    """No value of a parameter is larger than ``limit``; those of parameters of one number may be.

    Args:
        limit: The largest magnitude, in the units of the update's change.
        of_training: Whether ``limit`` depends on how the client trained.
    """

    limit: float
    of_training: bool = False

    kind: ClassVar[str] = "bound"

    def check(self, seen: Sighting) -> TraceCheck:
        arrays = [(t.abs(), seen.rounding(n, t)) for n, t in every_filled(seen) if t.dim()]
        largest = max((float(size.max()) for size, _ in arrays), default=0.0)
        limit = self.limit * (1 + SLACK)
        passed = all(bool((size <= limit + rounded).all()) for size, rounded in arrays)
        than = "at most" if passed else "more than the declared"
        words = f"values up to {largest:.3g}, {than} {self.limit:.3g}"
        return TraceCheck(self.kind, self.limit, largest, passed, words)


def every_filled(seen: Sighting) -> list[tuple[str, Tensor]]:
    """The parameters' tensors that have a value, by name."""
    return [(name, tensor) for name, tensor in seen.parameters().items() if tensor.numel()]


@dataclass(frozen=True)
class LevelsTrace(Trace):
    """Each parameter's tensor has no more than so many different values.

    Where values were rounded after the defense, those that rounding may have told apart count once.
    Tensors that would have as few values without the defense tell nothing.

    Args:
        levels: The largest number of values.
    """

    levels: int

    kind: ClassVar[str] = "levels"

    def check(self, seen: Sighting) -> TraceCheck:
        counts = [count for n, t in seen.parameters().items() for count in self._count(seen, n, t)]
        if not counts:
            words = "the tensors are too small, or rounded too much, to count their values"
            return TraceCheck(self.kind, self.levels, 0, None, words)
        most = max(counts)
        words = f"up to {most} values a tensor, {self.levels} declared"
        return TraceCheck(self.kind, self.levels, most, most <= self.levels, words)

    def _count(self, seen: Sighting, name: str, tensor: Tensor) -> Iterator[int]:
        """How many values a tensor has; nothing where it cannot tell."""
        values = tensor.flatten().double()
        if len(values) <= self.levels:
            return
        width = 2 * float(seen.rounding(name, tensor).max())
        if width == 0:
            yield len(torch.unique(values))
            return
        least, most = float(values.min()), float(values.max())
        if (most - least) / width > 16 * self.levels:
            ordered = torch.unique(values)
            gaps = ordered.diff() > width
            spread = ordered[-1] - ordered[0] - ordered.diff()[gaps].sum()
            yield 1 + int(gaps.sum()) + int(spread / (4 * width))  # a run of values is no level


@dataclass(frozen=True)
class PrecisionTrace(Trace):
    """Each parameter's values can be written in a shorter floating type.

    Args:
        dtype: That type.
    """

    dtype: torch.dtype

    kind: ClassVar[str] = "precision"

    def check(self, seen: Sighting) -> TraceCheck:
        fits = total = 0
        for name, tensor in seen.parameters().items():
            distance = (tensor.to(self.dtype).to(tensor.dtype) - tensor).abs()
            fits += int((distance <= seen.rounding(name, tensor)).sum())
            total += tensor.numel()
        share = fits / max(1, total)
        short = kind_of(torch.empty(0, dtype=self.dtype))
        words = f"{share:.1%} of the values fit {short}, all declared"
        return TraceCheck(self.kind, 1.0, share, fits == total, words)
