"""Gradient matching by an attacker who knows the puzzle's rules."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.matching import InvertingGradients
from keyhole.attacks.matching.presets import Masks
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.unknowns import ConfinedPixels
from keyhole.attacks.puzzle.reading import covered_cells, embedding_of, read, without_localisation
from keyhole.attacks.puzzle.span import smoothed, why_not_readable
from keyhole.attacks.unshuffle import unshuffle
from keyhole.models.anatomy import known_embedding
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class PuzzleInversion(InvertingGradients):
    """IG with the mask read off the update and the localiser's part of it taken off.

    With ``confined`` the search keeps to what :mod:`keyhole.attacks.puzzle.reading` found: each
    patch moves only within the span of the covered ones, from the smooth image that `mjp-span`
    ends with. The update does not depend on the order of the covered patches, which share one
    position: ``solve`` puts them in order by how well their borders continue each other.
    """

    masks: Masks = "read"
    confined: bool = True
    solve: bool = True

    name: ClassVar[str] = "mjp-ig"
    summary: ClassVar[str] = "IG that reads the puzzle's mask and span, then solves the puzzle"
    paper: ClassVar[str] = "Keyhole; after Geiping et al. 2020 (IG)"
    needs: ClassVar[str] = "a ViT under MJP; one image a client, one step; minutes"
    adapts_to: ClassVar[frozenset[str]] = frozenset({"mjp"})
    only_adaptive: ClassVar[bool] = True

    def misfits(self, observation: Observation) -> list[str]:
        return [*why_not_readable(observation), *super().misfits(observation)]

    def reads(self, observation: Observation) -> set[str]:
        embedding = embedding_of(observation)
        return {embedding.position, embedding.entrance.weight}

    def recipe(self, problem: Problem) -> Recipe:
        plain = super().recipe(problem)
        if not self.confined:
            return plain
        layout = known_embedding(problem.model, problem.knowledge.shape).entrance.layout
        return replace(plain, picture=ConfinedPixels(layout=layout))

    def observed(self, observation: Observation) -> dict[str, Tensor]:
        return without_localisation(observation)

    def told(self, observation: Observation) -> dict[str, Tensor]:
        if not self.confined:
            return {}
        reading = read(observation)
        entrance = embedding_of(observation).entrance
        first = smoothed(reading, entrance, observation.knowledge)
        missing = entrance.tokens - len(reading.space)
        return {
            "rest": reading.rest,
            "space": F.pad(reading.space, (0, 0, 0, missing)),
            "start.pixels": entrance.assemble(first, observation.knowledge.shape)[None],
        }

    def finished(self, images: Tensor, observation: Observation) -> Tensor:
        if not self.solve:
            return images
        shape = observation.knowledge.shape
        tall, wide = embedding_of(observation).entrance.patch(shape)
        covered = covered_cells(observation).view(shape[1] // tall, shape[2] // wide).cpu()
        return torch.stack([unshuffle(image.cpu(), covered).image for image in images])
