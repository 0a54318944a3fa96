"""What an attack looks for. Each unknown is one tensor a victim: how it starts, what bounds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from keyhole.attacks.matching.problem import Problem
from keyhole.models.dropout_sites import Site

Known = Mapping[str, Tensor]


class Unknown(ABC):
    """Declared once for all victims; values always carry the victim axis first."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, problem: Problem, draw: torch.Generator) -> Tensor:
        """One victim's first guess."""

    def project(self, value: Tensor, problem: Problem, known: Known) -> Tensor:
        """The nearest allowed value; ``known`` is what is known of these victims, ``[N, ...]``."""
        return value


class Picture(Unknown):
    """An unknown that is, or is rendered to, the batch's images."""

    @abstractmethod
    def render(self, value: Tensor, problem: Problem) -> Tensor:
        """Model inputs, ``[N, B, C, H, W]``."""


@dataclass(frozen=True)
class Pixels(Picture):
    """The images themselves, ``[N, B, C, H, W]``, starting from N(0, 1)."""

    clamped: bool = True
    """Whether pixels are kept between black and white."""

    name: ClassVar[str] = "pixels"

    def start(self, problem: Problem, draw: torch.Generator) -> Tensor:
        knowledge = problem.knowledge
        return torch.randn(knowledge.batch_size, *knowledge.shape, generator=draw)

    def project(self, value: Tensor, problem: Problem, known: Known) -> Tensor:
        if not self.clamped:
            return value
        return value.clamp(*problem.box)

    def render(self, value: Tensor, problem: Problem) -> Tensor:
        return value


@dataclass(frozen=True, kw_only=True)
class ConfinedPixels(Pixels):
    """Pixels of one image that are known off a space: ``patch_i = rest_i + (its part in space)``.

    ``known["rest"]`` is ``[N, T, F]``, ``known["space"]`` ``[N, k, F]`` with orthonormal rows or
    rows of 0, for patches cut as ``layout [T, F]`` says.
    """

    layout: Tensor
    on_device: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The layout and its inverse where they were needed: a CUDA graph cannot copy them itself."""

    def project(self, value: Tensor, problem: Problem, known: Known) -> Tensor:
        if value.device not in self.on_device:
            layout = self.layout.to(value.device)
            self.on_device[value.device] = (layout, layout.flatten().argsort())
        layout, inverse = self.on_device[value.device]
        patches = super().project(value, problem, known).flatten(1)[:, layout]
        confined = known["rest"] + (patches @ known["space"].mT) @ known["space"]
        return confined.flatten(1)[:, inverse].view_as(value)


@dataclass(frozen=True)
class SoftLabels(Unknown):
    """Label scores whose softmax is the target of the cross-entropy (Zhu et al. 2019)."""

    name: ClassVar[str] = "labels"

    def start(self, problem: Problem, draw: torch.Generator) -> Tensor:
        return torch.randn(problem.knowledge.batch_size, problem.outputs, generator=draw)


@dataclass(frozen=True)
class DropoutMasks(Unknown):
    """The clients' dropout masks, all sites side by side: ``[N, samples, elements]`` in [0, 1].

    They start as draws of the client's own distribution and are never made discrete (DIA).
    """

    sites: tuple[Site, ...]

    name: ClassVar[str] = "masks"

    def start(self, problem: Problem, draw: torch.Generator) -> Tensor:
        kept = [
            torch.rand(problem.masked_samples, site.size, generator=draw) >= site.p
            for site in self.sites
        ]
        return torch.cat(kept, dim=1).float()

    def project(self, value: Tensor, problem: Problem, known: Known) -> Tensor:
        return value.clamp(0, 1)

    def render(self, value: Tensor) -> tuple[Tensor, ...]:
        """One mask a site, ``[N, samples, *shape]``."""
        return split_sites(value, self.sites)


def split_sites(masks: Tensor, sites: Sequence[Site]) -> tuple[Tensor, ...]:
    """Masks that lie side by side, ``[..., elements]``, as one ``[..., *shape]`` a site."""
    pieces = torch.split(masks, [site.size for site in sites], dim=-1)
    return tuple(
        torch.unflatten(piece, -1, site.shape) for piece, site in zip(pieces, sites, strict=True)
    )
