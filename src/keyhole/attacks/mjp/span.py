"""Reads a photo out of one or several updates under MJP, without matching gradients."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.mjp.reading import (
    Reading,
    combine_readings,
    read_update,
    require_embedding,
)
from keyhole.attacks.mjp.smoothness import find_smoothest
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import InputLayer, find_patch_embedding
from keyhole.threat import Knowledge, Observation


@dataclass(frozen=True, kw_only=True)
class MjpSpan(Attack):
    """Reads every cell modulo the span of the covered patches; smoothness determines the rest.

    See :mod:`keyhole.attacks.mjp.reading` for what is exact. Cells that were not covered are made
    smooth first, then the covered ones between them. Several updates on the same image have
    different spans, and leave little to guess.

    Args:
        rounds: Rounds of reweighted least squares.
        turns: Iterations of L-BFGS in each round.
    """

    rounds: Annotated[int, Field(ge=0)] = 8
    turns: Annotated[int, Field(ge=1)] = 100

    name: ClassVar[str] = "mjp-span"
    summary: ClassVar[str] = "reads each patch modulo the covered ones, and smooths the rest"
    paper: ClassVar[str] = "Keyhole"
    needs: ClassVar[str] = "a ViT under MJP; one image per client, one step"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.HIDDEN_POSITIONS})
    only_adaptive: ClassVar[bool] = True

    def incompatibilities(self, observation: Observation) -> list[str]:
        return why_not_readable(observation)

    def reads(self, observation: Observation) -> set[str]:
        embedding = require_embedding(observation)
        return {embedding.position, embedding.input_layer.weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge = observation.knowledge
        updates = (*observation.earlier, observation.update)
        before = [observation.in_round(each.number) for each in observation.rounds]
        readings = [
            *(read_update(each) for each in before),
            *(read_update(observation, update) for update in updates),
        ]
        rest, hidden = combine_readings(readings)
        input_layer = require_embedding(observation).input_layer
        none_covered = torch.zeros(len(rest), dtype=torch.bool)
        covered = readings[0].covered if len(readings) == 1 else none_covered
        combined = Reading(covered, hidden, rest, readings[-1].residual)
        patches = smooth_patches(
            combined, input_layer, knowledge, rounds=self.rounds, turns=self.turns
        )
        image = input_layer.assemble(patches, knowledge.shape)[None]
        known = 1 - len(hidden) / min(rest.shape)
        residual = sum(reading.residual for reading in readings) / len(readings)
        return Reconstruction(
            images=image,
            confidence=known * max(0.0, 1 - residual) * share_in_range(image, knowledge),
            diagnostics={
                "covered": float(readings[-1].covered.sum()),
                "hidden": float(len(hidden)),
                "residual": residual,
                "updates": float(len(readings)),
            },
        )


def smooth_patches(
    reading: Reading,
    input_layer: InputLayer,
    knowledge: Knowledge,
    *,
    rounds: int = 8,
    turns: int = 100,
) -> Tensor:
    """The patches ``[N, F]`` of a smooth image: first those not covered, then the covered ones."""
    patches, space = reading.rest, reading.space
    if not rounds or not len(space):
        return patches
    for moved in (~reading.covered, reading.covered):
        if bool(moved.any()):
            patches = find_smoothest(
                patches, space, input_layer, knowledge, moved=moved, rounds=rounds, turns=turns
            )
    return patches


def why_not_readable(observation: Observation) -> list[str]:
    """Why an update does not show its client's puzzle."""
    knowledge = observation.knowledge
    defense = knowledge.defense_with(Capability.HIDDEN_POSITIONS)
    found = find_patch_embedding(observation.model, knowledge.shape)
    reasons = []
    if defense is None:
        reasons.append("it needs to know that clients train with MJP")
    elif defense.hidden_positions() is None:
        reasons.append("no position is unknown here: other attacks read the shuffled image")
    if isinstance(found, str):
        reasons.append(f"it needs a ViT with learned absolute position embeddings, but {found}")
    if knowledge.batch_size != 1:
        reasons.append("it needs one image per client: several images cover different patches")
    if observation.update.steps != 1:
        reasons.append("it needs one local step: every step draws another puzzle")
    return reasons
