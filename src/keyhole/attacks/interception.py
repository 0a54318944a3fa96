"""An attacker who intercepts images on their way from the camera to the client that trains."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.data.image_set import normalise
from keyhole.defenses.capabilities import Capability
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class Interception(Attack):
    """Shows the images as they were intercepted."""

    name: ClassVar[str] = "intercept"
    summary: ClassVar[str] = "takes the defended images on their way to the client"
    paper: ClassVar[str] = "the first threat of Chen et al. 2025 (CSVAR)"
    needs: ClassVar[str] = "a defense under which images travel"
    reads_update: ClassVar[bool] = False
    uses: ClassVar[frozenset[Capability]] = frozenset()

    @property
    def given(self) -> frozenset[str]:
        return frozenset({"intercepted"})

    def incompatibilities(self, observation: Observation) -> list[str]:
        if not observation.knowledge.intercepted:
            return ["no image was seen on its way to the client"]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return set()

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return self._show_versions(observation)[-1]

    def other_versions(self, observation: Observation) -> list[Reconstruction]:
        return self._show_versions(observation)[:-1]

    def _show_versions(self, observation: Observation) -> list[Reconstruction]:
        known = observation.knowledge
        return [
            Reconstruction(
                images=normalise(images, known.mean, known.std), confidence=torch.ones(len(images))
            )
            for images in known.intercepted or ()
        ]


@dataclass(frozen=True, kw_only=True)
class UndoneInterception(Interception):
    """Interception by an attacker who knows the defense and undoes it with all versions."""

    name: ClassVar[str] = "intercept-undo"
    summary: ClassVar[str] = "un-shuffles or denoises the images seen on their way"
    paper: ClassVar[str] = "Keyhole"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE})
    only_adaptive: ClassVar[bool] = True

    def incompatibilities(self, observation: Observation) -> list[str]:
        if observation.knowledge.defense_with(Capability.IMAGE_CHANGE) is None:
            return ["it needs to know the defense on the images, one that declares what it changed"]
        return super().incompatibilities(observation)
