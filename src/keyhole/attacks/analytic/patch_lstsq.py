"""Patch-embedding least squares: reads a photo from one ViT gradient, without iterations.

At batch size 1 the gradient of position-embedding row i is also the gradient g_i at patch i's
embedding. The patch embedding's weight gradient sums over patches,

    dL/dE = sum_i g_i x_i^T = G^T X,        G: [N, D],  X: [N, pixels of a patch],

and both sides are in the update: one linear system for all pixels. Dropout comes after the
position embedding is added, so the system stays exact under any mask. Since x_i is the same in
every local step on one image, sums of gradients over steps satisfy it too. LayerNorm, residuals
and biases play no part: the server need not change the model.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from keyhole.attacks.analytic.linear_algebra import relative_residual, share_in_range, solve_by_svd
from keyhole.attacks.analytic.noise import find_signal_directions, known_white_noise
from keyhole.attacks.analytic.probes import check_patch_embedding
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import require_patch_embedding
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class PatchLeastSquares(Attack):
    """Solves ``G^T X = dL/dE`` in float64.

    Against known noise the system is first projected onto the directions in which dL/dE exceeds it:
    dL/dE is far stronger than G and shows where G's signal can be. Noise alone would have singular
    values up to ``sigma * (sqrt(D) + sqrt(F))``. If a patch has fewer pixels than there are
    patches, dL/dE does not span all of G, and the directions are taken from both together. If the
    rows of dL/dE have noise of different strength, the D equations are weighted by how little they
    have; if some rows have none, the noisy ones are left out.

    Args:
        rcond: Singular values of G below ``rcond`` times the largest are left out; None: the
            rounding error of the update's type, which makes narrow models (D < N) readable.
    """

    rcond: Annotated[float, Field(ge=0, lt=1)] | None = None

    name: ClassVar[str] = "patch-lstsq"
    summary: ClassVar[str] = "least squares on the patch and position embeddings' gradients"
    paper: ClassVar[str] = "Keyhole; after Lu et al. 2022 (APRIL)"
    needs: ClassVar[str] = "a ViT with learned absolute position embeddings; one image per client"
    recovers_inputs: ClassVar[bool] = True
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = check_patch_embedding(observation)
        if observation.knowledge.batch_size != 1:
            reasons.append(
                "it needs one image per client: the position embedding's gradient sums over "
                f"{observation.knowledge.batch_size} images"
            )
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        embedding = require_patch_embedding(observation.model, observation.knowledge.shape)
        return {embedding.position, embedding.input_layer.weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        embedding = require_patch_embedding(observation.model, observation.knowledge.shape)
        gradient = observation.update.gradient()
        at_weight = gradient[embedding.input_layer.weight].cpu()
        rounding = torch.finfo(at_weight.dtype).eps
        G = embedding.patch_rows(gradient[embedding.position]).cpu().double()
        dE = at_weight.flatten(1).double()
        noise = known_white_noise(observation, embedding.input_layer.weight)
        if noise.weights is not None:
            rows, weights = noise.weigh_rows(torch.arange(len(dE)))
            G, dE = G[:, rows] * weights, dE[rows] * weights[:, None]
        if noise.sigma > 0:
            spanning = dE if dE.shape[1] >= len(G) else torch.cat([G.T, dE], dim=1)
            signal = find_signal_directions(spanning, noise.sigma)
            G, dE = G @ signal, signal.T @ dE
        X, condition, rank = solve_by_svd(G.T, dE, rounding if self.rcond is None else self.rcond)
        image = embedding.input_layer.assemble(X, observation.knowledge.shape)[None]
        residual = relative_residual(G.T @ X, dE)
        solved_share = rank / embedding.input_layer.tokens
        in_range = share_in_range(image, observation.knowledge)
        confidence = solved_share * max(0.0, 1 - residual) * in_range
        return Reconstruction(
            images=image,
            confidence=confidence,
            diagnostics={"condition": condition, "rank": rank, "residual": residual},
        )
