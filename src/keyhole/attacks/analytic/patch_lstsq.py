"""Patch-embedding least squares: a photo out of one ViT gradient, without iterations.

At batch size 1 the gradient of position-embedding row i is also the gradient g_i at patch i's
embedding. The patch embedding's weight gradient sums over patches,

    dL/dE = sum_i g_i x_i^T = G^T X,        G: [N, D],  X: [N, pixels of a patch],

and both sides are in the update: one linear system for all pixels. Dropout comes after the
position embedding is added, so the system stays exact under any mask; and since x_i is the same
in every local step on one image, sums of gradients over steps satisfy it too. LayerNorm,
residuals and biases play no part: the model is attacked as it is.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from keyhole.attacks.analytic.linear_algebra import relative_residual, share_in_range, solve_by_svd
from keyhole.attacks.analytic.noise import signal_directions, white_noise
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import find_patch_embedding
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class PatchLeastSquares(Attack):
    """Solves ``G^T X = dL/dE`` in float64.

    Singular values of G below ``rcond`` times the largest are left out; by default that is the
    rounding error of the update's own type, which is what makes narrow models (D < N) readable.

    Against known noise the system is first projected on the directions of dL/dE that stand above
    it, ``sigma * (sqrt(D) + sqrt(F))`` being the largest singular value that noise alone would
    have: dL/dE is far stronger than G and shows where G's signal can be. Where a patch has fewer
    pixels than there are patches, dL/dE does not span all of G, and both are asked. Where a defense
    treats the rows of dL/dE differently, the D equations count by how little noise they have; rows
    with noise are left out beside rows without.
    """

    rcond: Annotated[float, Field(ge=0, lt=1)] | None = None

    name: ClassVar[str] = "patch-lstsq"
    summary: ClassVar[str] = "least squares on the patch and position embeddings' gradients"
    paper: ClassVar[str] = "Keyhole; after Lu et al. 2022 (APRIL)"
    needs: ClassVar[str] = "a ViT with learned absolute position embeddings; one image a client"
    recovers_inputs: ClassVar[bool] = True
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = []
        found = find_patch_embedding(observation.model, observation.knowledge.shape)
        if isinstance(found, str):
            reasons.append(f"it needs a ViT with learned absolute position embeddings, but {found}")
        if observation.knowledge.batch_size != 1:
            reasons.append(
                "it needs one image a client: the position embedding's gradient sums over "
                f"{observation.knowledge.batch_size} images"
            )
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        embedding = find_patch_embedding(observation.model, observation.knowledge.shape)
        assert not isinstance(embedding, str)
        return {embedding.position, embedding.input_layer.weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        embedding = find_patch_embedding(observation.model, observation.knowledge.shape)
        assert not isinstance(embedding, str)
        gradient = observation.update.gradient()
        at_weight = gradient[embedding.input_layer.weight].cpu()
        rounding = torch.finfo(at_weight.dtype).eps
        G = embedding.patch_rows(gradient[embedding.position]).cpu().double()
        dE = at_weight.flatten(1).double()
        noise = white_noise(observation, embedding.input_layer.weight)
        if noise.weights is not None:
            used, trust = noise.weigh(torch.arange(len(dE)))
            G, dE = G[:, used] * trust, dE[used] * trust[:, None]
        if noise.sigma > 0:
            wide = dE.shape[1] >= len(G)
            signal = signal_directions(dE if wide else torch.cat([G.T, dE], dim=1), noise.sigma)
            G, dE = G @ signal, signal.T @ dE
        X, condition, rank = solve_by_svd(G.T, dE, rounding if self.rcond is None else self.rcond)
        image = embedding.input_layer.assemble(X, observation.knowledge.shape)[None]
        residual = relative_residual(G.T @ X, dE)
        solved = rank / embedding.input_layer.tokens
        confidence = solved * max(0.0, 1 - residual) * share_in_range(image, observation.knowledge)
        return Reconstruction(
            images=image,
            confidence=confidence,
            diagnostics={"condition": condition, "rank": rank, "residual": residual},
        )
