"""The attacker who listens where images travel: from the camera to the client that trains."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.undoing import UNDOING
from keyhole.data.image_set import normalise
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class Interception(Attack):
    """Shows the images as they were seen on their way."""

    name: ClassVar[str] = "intercept"
    summary: ClassVar[str] = "takes the defended images on their way to the client"
    paper: ClassVar[str] = "the first threat of Chen et al. 2025 (CSVAR)"
    needs: ClassVar[str] = "a defense under which images travel"
    reads_update: ClassVar[bool] = False
    undoes: ClassVar[bool] = False

    @property
    def given(self) -> frozenset[str]:
        return frozenset({"intercepted"})

    def misfits(self, observation: Observation) -> list[str]:
        if not observation.knowledge.intercepted:
            return ["no image was seen on its way to the client"]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return set()

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return self.shown(observation, self.versions(observation)[-1])

    def others(self, observation: Observation) -> list[Reconstruction]:
        return [self.shown(observation, one) for one in self.versions(observation)[:-1]]

    def versions(self, observation: Observation) -> tuple[Tensor, ...]:
        assert observation.knowledge.intercepted is not None
        return observation.knowledge.intercepted

    def shown(self, observation: Observation, images: Tensor) -> Reconstruction:
        known = observation.knowledge
        return Reconstruction(
            images=normalise(images, known.mean, known.std), confidence=torch.ones(len(images))
        )


@dataclass(frozen=True, kw_only=True)
class UndoneInterception(Interception):
    """The same by one who knows the defense, and takes it off with all versions that were seen."""

    name: ClassVar[str] = "intercept-undo"
    summary: ClassVar[str] = "un-shuffles or denoises the images seen on their way"
    paper: ClassVar[str] = "Keyhole"
    adapts_to: ClassVar[frozenset[str]] = frozenset(UNDOING)
    only_adaptive: ClassVar[bool] = True
    undoes: ClassVar[bool] = True

    def misfits(self, observation: Observation) -> list[str]:
        defense = observation.knowledge.defense
        if defense is None or defense.name not in UNDOING:
            return [f"it needs to know the defense on the images: {' or '.join(UNDOING)}"]
        return super().misfits(observation)
