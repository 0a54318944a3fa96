"""What an update shows about the puzzle that its client drew, without solving anything.

For one image and one step. A covered patch does not use its row of the position embedding, and the
localiser leaves it out as well: that row's gradient is exactly 0. The localiser's own part of the
gradient depends on weights and mask alone, so the attacker can compute and subtract it.

With g_i the gradient at patch i's embedding (position row i, where i is not covered) and x_i its
pixels,

    dL/dE = sum_known g_i x_i^T + sum_covered g_j x_j^T.

Off the span of the known g_i only the second sum is left: its row space V is the span of the
covered patches. Off V the first sum is left, and the known g_i read (1 - V) x_i off it. The patch
that belongs in a covered cell is one of the covered ones, wherever it was moved: (1 - V) x = 0. So
every cell of the image, covered or not, is known modulo V, and in its right place.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.analytic.linear_algebra import relative_residual
from keyhole.defenses.capabilities import Capability, HiddenPositions
from keyhole.models.anatomy import PatchEmbedding, require_patch_embedding
from keyhole.models.jigsaw import Jigsaw
from keyhole.threat import Observation
from keyhole.update import Update

HIDDEN_BELOW = 1e-5
"""Squared sine of the angle below which a direction counts as hidden in every round."""


@dataclass(frozen=True)
class Reading:
    """What one update shows: every cell's pixels modulo a space.

    Args:
        covered: Which cells were covered, bool ``[N]``.
        space: The span of the covered patches, orthonormal rows ``[k, F]``.
        rest: The part of each cell's patch orthogonal to the space, ``[N, F]``.
        residual: The share of dL/dE that stays unexplained.
    """

    covered: Tensor
    space: Tensor
    rest: Tensor
    residual: float


def find_hidden_positions(observation: Observation) -> HiddenPositions | None:
    """How positions are hidden; None if the attacker knows of no defense that hides them."""
    defense = observation.knowledge.defense_with(Capability.HIDDEN_POSITIONS)
    return None if defense is None else defense.hidden_positions()


def find_covered_cells(observation: Observation, update: Update | None = None) -> Tensor:
    """Which patches the client covered: bool ``[N]``."""
    embedding = require_embedding(observation)
    gradient = (update or observation.update).gradient()[embedding.position]
    return ~embedding.patch_rows(gradient).ne(0).any(1)


def require_embedding(observation: Observation) -> PatchEmbedding:
    """The patch embedding of the model that the server sent out."""
    return require_patch_embedding(observation.model, observation.knowledge.shape)


def subtract_localisation(
    observation: Observation, update: Update | None = None
) -> dict[str, Tensor]:
    """The gradient of the cross-entropy alone: the localiser's part is computed and subtracted.

    Except for a PCA, whose directions are approximate and drawn again each time.
    """
    gradient = (update or observation.update).gradient()
    hidden, model = find_hidden_positions(observation), observation.model
    if hidden is None or not isinstance(model, Jigsaw):
        return gradient
    if model.puzzle.localiser in ("none", "pca"):
        return gradient
    own = copy.deepcopy(model).requires_grad_(True)
    own.puzzle.known_counts = (~find_covered_cells(observation, update)).to(next(own.parameters()))
    names, parameters = zip(*own.named_parameters(), strict=True)
    with torch.enable_grad():
        loss = hidden.localisation_weight * own.localisation_loss()
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    for name, part in zip(names, parts, strict=True):
        if part is not None and name in gradient:
            gradient[name] = gradient[name] - part
    return gradient


def read_update(observation: Observation, update: Update | None = None) -> Reading:
    """Everything an update says about the image by linear algebra, in float64."""
    embedding = require_embedding(observation)
    covered = find_covered_cells(observation, update).cpu()
    gradient = subtract_localisation(observation, update)
    rows = embedding.patch_rows(gradient[embedding.position]).cpu().double()
    at_weight = gradient[embedding.input_layer.weight].cpu().double().flatten(1)
    known = rows[~covered]
    rounding = float(
        torch.finfo((update or observation.update).change[embedding.position].dtype).eps
    )
    left, values, right = torch.linalg.svd(known, full_matrices=False)
    kept = values > rounding * values.amax() if len(values) else values.bool()
    left, values, right = left[:, kept], values[kept], right[kept]
    off = at_weight - right.T @ (right @ at_weight)
    space = torch.linalg.svd(off, full_matrices=False)[2][: int(covered.sum())]
    outside = at_weight - (at_weight @ space.T) @ space
    rest = torch.zeros(len(rows), at_weight.shape[1], dtype=torch.float64)
    rest[~covered] = left @ ((right @ outside) / values[:, None])
    missed = outside - known.T @ rest[~covered]
    return Reading(covered, space, rest, relative_residual(at_weight - missed, at_weight))


def combine_readings(readings: list[Reading]) -> tuple[Tensor, Tensor]:
    """Combines several rounds of one client: ``rest [N, F]`` and the space that stays hidden.

    Each round shows the cells modulo another space, and all rounds together modulo what the spaces
    have in common: where ``sum_t (1 - V_t)`` is not 0, it is inverted.
    """
    if len(readings) == 1:
        return readings[0].rest, readings[0].space
    total = torch.stack([r.rest for r in readings]).sum(0)
    hidden = torch.stack([r.space.T @ r.space for r in readings]).sum(0)
    seen, directions = torch.linalg.eigh(len(readings) * torch.eye(len(hidden)).to(hidden) - hidden)
    visible = seen > HIDDEN_BELOW
    rest = ((total @ directions[:, visible]) / seen[visible]) @ directions[:, visible].T
    return rest, directions[:, ~visible].T
