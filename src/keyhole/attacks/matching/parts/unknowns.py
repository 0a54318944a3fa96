"""What an attack searches for: each unknown is one tensor per victim, with a start and bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.models.dropout_sites import Site

KnownValues = Mapping[str, Tensor]
"""What the attacker knows about some victims, by name: ``[N, ...]``."""


class Unknown(ABC):
    """Declared once for all victims; values have the victim axis first."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        """One victim's first guess."""

    def project(self, value: Tensor, problem: MatchingProblem, known: KnownValues) -> Tensor:
        """The nearest allowed value, given what is known about these victims."""
        return value


class ImageUnknown(Unknown):
    """An unknown from which the batch's images are rendered."""

    @abstractmethod
    def render(self, value: Tensor, problem: MatchingProblem) -> Tensor:
        """Model inputs, ``[N, B, C, H, W]``."""


@dataclass(frozen=True)
class Pixels(ImageUnknown):
    """The images themselves, ``[N, B, C, H, W]``, starting from N(0, 1).

    Args:
        clamped: Whether pixels are kept between black and white.
    """

    clamped: bool = True

    name: ClassVar[str] = "pixels"

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        knowledge = problem.knowledge
        return torch.randn(knowledge.batch_size, *knowledge.shape, generator=generator)

    def project(self, value: Tensor, problem: MatchingProblem, known: KnownValues) -> Tensor:
        if not self.clamped:
            return value
        return value.clamp(*problem.box)

    def render(self, value: Tensor, problem: MatchingProblem) -> Tensor:
        return value


@dataclass(frozen=True, kw_only=True)
class ConfinedPixels(Pixels):
    """Pixels of one image whose patches are known except for their part in a subspace.

    ``patch_i = rest_i + (a vector in the space)``, where ``known["rest"]`` is ``[N, T, F]`` and
    ``known["space"]`` is ``[N, k, F]`` with orthonormal rows or rows of 0.

    Args:
        layout: Pixel numbers of each patch, ``[T, F]``.
        layout_cache: The layout and its inverse by device, because a CUDA graph cannot copy them.
    """

    layout: Tensor
    layout_cache: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def project(self, value: Tensor, problem: MatchingProblem, known: KnownValues) -> Tensor:
        if value.device not in self.layout_cache:
            layout = self.layout.to(value.device)
            self.layout_cache[value.device] = (layout, layout.flatten().argsort())
        layout, inverse = self.layout_cache[value.device]
        patches = super().project(value, problem, known).flatten(1)[:, layout]
        confined = known["rest"] + (patches @ known["space"].mT) @ known["space"]
        return confined.flatten(1)[:, inverse].view_as(value)


@dataclass(frozen=True)
class SoftLabels(Unknown):
    """Label scores whose softmax is the target of the cross-entropy (Zhu et al. 2019)."""

    name: ClassVar[str] = "labels"

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        return torch.randn(problem.knowledge.batch_size, problem.outputs, generator=generator)


@dataclass(frozen=True)
class DropoutMasks(Unknown):
    """The clients' dropout masks, all sites concatenated: ``[N, samples, elements]`` in [0, 1].

    They start as draws from the client's own distribution and stay continuous (DIA). Noise that
    the clients' model draws is searched for in the same way, without bounds.

    Args:
        sites: The model's dropouts.
    """

    sites: tuple[Site, ...]

    name: ClassVar[str] = "masks"

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        drawn = []
        for site in self.sites:
            shape = (problem.masked_samples, site.size)
            if site.is_noise:
                drawn.append(torch.randn(shape, generator=generator))
            else:
                drawn.append((torch.rand(shape, generator=generator) >= site.p).float())
        return torch.cat(drawn, dim=1)

    def project(self, value: Tensor, problem: MatchingProblem, known: KnownValues) -> Tensor:
        if not any(site.is_noise for site in self.sites):
            return value.clamp(0, 1)
        parts = torch.split(value, [site.size for site in self.sites], dim=-1)
        pairs = zip(parts, self.sites, strict=True)
        return torch.cat([v if site.is_noise else v.clamp(0, 1) for v, site in pairs], dim=-1)

    def render(self, value: Tensor) -> tuple[Tensor, ...]:
        """One mask per site, ``[N, samples, *shape]``."""
        return split_sites(value, self.sites)


@dataclass(frozen=True)
class Surrogate(Unknown):
    """Where on the line from the first to the last weights gradients match, ``[N, 1 + B]``.

    The first value's sigmoid is the place a in (0, 1); the softmax of the others, times B, says how
    much each image counts.

    Args:
        place: The first guess of a.
        weighted: Whether images count differently.
    """

    place: float
    weighted: bool

    name: ClassVar[str] = "surrogate"

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        images = problem.knowledge.batch_size
        first = torch.logit(torch.tensor(self.place, dtype=torch.double)).view(1)
        return torch.cat([first, torch.zeros(images, dtype=torch.double)]).float()

    def project(self, value: Tensor, problem: MatchingProblem, known: KnownValues) -> Tensor:
        return value if self.weighted else torch.cat([value[:, :1], value[:, 1:] * 0], 1)

    @staticmethod
    def split(value: Tensor) -> tuple[Tensor, Tensor]:
        """The place ``[N]``, and how much each image counts ``[N, B]``, 1 on average."""
        return value[:, 0].sigmoid(), value[:, 1:].softmax(1) * (value.shape[1] - 1)


def split_sites(masks: Tensor, sites: Sequence[Site]) -> tuple[Tensor, ...]:
    """Splits concatenated masks ``[..., elements]`` into one ``[..., *shape]`` per site."""
    parts = torch.split(masks, [site.size for site in sites], dim=-1)
    return tuple(
        torch.unflatten(part, -1, site.shape) for part, site in zip(parts, sites, strict=True)
    )
