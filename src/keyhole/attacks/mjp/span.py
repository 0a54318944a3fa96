"""A photo out of one MJP update, or several, without matching gradients."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.mjp.reading import Reading, combined, embedding_of, read
from keyhole.attacks.mjp.smoothness import smoothest
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import InputLayer, find_patch_embedding
from keyhole.threat import Knowledge, Observation


@dataclass(frozen=True, kw_only=True)
class MjpSpan(Attack):
    """Reads every cell modulo the span of the covered patches; smoothness tells the rest.

    See :mod:`keyhole.attacks.mjp.reading` for what is exact. Cells that were not covered are
    made smooth first, by ``rounds`` of reweighted least squares; then the covered ones between
    them. Several updates by the same image have different spans, and little is left to guess.
    """

    rounds: Annotated[int, Field(ge=0)] = 8
    turns: Annotated[int, Field(ge=1)] = 100

    name: ClassVar[str] = "mjp-span"
    summary: ClassVar[str] = "reads each patch modulo the covered ones, and smooths the rest"
    paper: ClassVar[str] = "Keyhole"
    needs: ClassVar[str] = "a ViT under MJP; one image a client, one step"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.HIDDEN_POSITIONS})
    only_adaptive: ClassVar[bool] = True

    def incompatibilities(self, observation: Observation) -> list[str]:
        return why_not_readable(observation)

    def reads(self, observation: Observation) -> set[str]:
        embedding = embedding_of(observation)
        return {embedding.position, embedding.input_layer.weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge = observation.knowledge
        updates = (*observation.earlier, observation.update)
        readings = [read(observation, update) for update in updates]
        rest, hidden = combined(readings)
        entrance = embedding_of(observation).input_layer
        alone = len(readings) == 1
        seen = ~readings[0].covered if alone else torch.ones(len(rest), dtype=torch.bool)
        whole = Reading(~seen, hidden, rest, readings[-1].residual)
        patches = smoothed(whole, entrance, knowledge, rounds=self.rounds, turns=self.turns)
        image = entrance.assemble(patches, knowledge.shape)[None]
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


def smoothed(
    reading: Reading,
    entrance: InputLayer,
    knowledge: Knowledge,
    *,
    rounds: int = 8,
    turns: int = 100,
) -> Tensor:
    """The patches ``[N, F]`` of a smooth image: first those that were seen, then the covered."""
    patches, seen = reading.rest, ~reading.covered
    if not rounds or not len(reading.space):
        return patches
    for moved in (seen, ~seen):
        if bool(moved.any()):
            patches = smoothest(
                patches, reading.space, entrance, knowledge, moved=moved, rounds=rounds, turns=turns
            )
    return patches


def why_not_readable(observation: Observation) -> list[str]:
    """Why an update does not show its client's puzzle."""
    knowledge = observation.knowledge
    defense = knowledge.declared(Capability.HIDDEN_POSITIONS)
    found = find_patch_embedding(observation.model, knowledge.shape)
    reasons = []
    if defense is None:
        reasons.append("it needs to know that clients train with MJP")
    elif defense.hidden_positions() is None:
        reasons.append("no position is unknown here: other attacks read the shuffled image")
    if isinstance(found, str):
        reasons.append(f"it needs a ViT with learned absolute position embeddings, but {found}")
    if knowledge.batch_size != 1:
        reasons.append("it needs one image a client: several images cover different patches")
    if observation.update.steps != 1:
        reasons.append("it needs one local step: every step draws another puzzle")
    return reasons
