"""Gradient matching by an attacker who knows the rules of the puzzle."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.matching import InvertingGradients
from keyhole.attacks.matching.attack import MaskSource
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.unknowns import ConfinedPixels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.mjp.reading import (
    find_covered_cells,
    read_update,
    require_embedding,
    subtract_localisation,
)
from keyhole.attacks.mjp.span import smooth_patches, why_not_readable
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import require_patch_embedding
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class MjpInversion(InvertingGradients):
    """IG that reads the mask off the update and subtracts the localiser's part of the gradient.

    The update does not depend on the order of the covered patches, which share one position.

    Args:
        confined: Whether the search keeps to what :mod:`keyhole.attacks.mjp.reading` found: each
            patch moves only within the span of the covered ones, starting at the smooth image of
            `mjp-span`.
        solve: Whether the covered patches are put in order by how well their borders continue
            each other.
    """

    masks: MaskSource = "read"
    confined: bool = True
    solve: bool = True

    name: ClassVar[str] = "mjp-ig"
    summary: ClassVar[str] = "IG that reads the puzzle's mask and span, then solves the puzzle"
    paper: ClassVar[str] = "Keyhole; after Geiping et al. 2020 (IG)"
    needs: ClassVar[str] = "a ViT under MJP; one image per client, one step; minutes"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.HIDDEN_POSITIONS})
    only_adaptive: ClassVar[bool] = True

    def incompatibilities(self, observation: Observation) -> list[str]:
        return [*why_not_readable(observation), *super().incompatibilities(observation)]

    def reads(self, observation: Observation) -> set[str]:
        embedding = require_embedding(observation)
        return {embedding.position, embedding.input_layer.weight}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        plain = super().build_parts(problem)
        if not self.confined:
            return plain
        layout = require_patch_embedding(problem.model, problem.knowledge.shape).input_layer.layout
        return replace(plain, images=ConfinedPixels(layout=layout))

    def target_gradient(self, observation: Observation) -> dict[str, Tensor]:
        return subtract_localisation(observation)

    def extra_inputs(self, observation: Observation) -> dict[str, Tensor]:
        if not self.confined:
            return {}
        reading = read_update(observation)
        input_layer = require_embedding(observation).input_layer
        start = smooth_patches(reading, input_layer, observation.knowledge)
        missing = input_layer.tokens - len(reading.space)
        return {
            "rest": reading.rest,
            "space": F.pad(reading.space, (0, 0, 0, missing)),
            "start.pixels": input_layer.assemble(start, observation.knowledge.shape)[None],
        }

    def postprocess(self, images: Tensor, observation: Observation) -> Tensor:
        if not self.solve:
            return images
        from keyhole.attacks.jigsaw import unshuffle  # solvers are imported only where needed

        shape = observation.knowledge.shape
        tall, wide = require_embedding(observation).input_layer.patch_size(shape)
        covered = find_covered_cells(observation).view(shape[1] // tall, shape[2] // wide).cpu()
        return torch.stack([unshuffle(image.cpu(), covered).image for image in images])
