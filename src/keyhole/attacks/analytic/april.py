"""APRIL's closed form, as the MJP paper used it: on a ViT whose first block the server changed.

Block 0 loses its first LayerNorm and both residual connections, so that the embedded image z0
enters only through the queries, keys and values. With A = dL/dz0 = dL/dE_pos,

    A^T z0 = Wq^T dL/dWq + Wk^T dL/dWk + Wv^T dL/dWv,

and both sides are in the update. The attack solves for z0, subtracts the position embedding and the
patch bias, and inverts the patch embedding E. For ViT-S that last step has 384 equations for the
768 pixels of a patch, so half of the image is lost; for ViT-B it is square. `patch-lstsq` needs
neither step.
"""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.linear_algebra import relative_residual, share_in_range, solve_by_svd
from keyhole.attacks.analytic.probes import capture_early_input, check_patch_embedding
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import require_patch_embedding
from keyhole.threat import Observation, PublicKnowledge

FIRST_BLOCK = "blocks.0"
QKV = f"{FIRST_BLOCK}.attn.qkv.weight"


class StrippedBlock(nn.Module):
    """A transformer block without its first LayerNorm and residuals: ``mlp(norm2(attn(x)))``."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.attn = block.attn
        self.norm2 = block.norm2
        self.mlp = block.mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(self.attn(x)))  # type: ignore[no-any-return, operator]


def strip_first_block(model: nn.Module) -> nn.Module:
    """Returns a copy of a ViT with the change to its first block that APRIL needs.

    Args:
        model: A ViT with ``blocks`` as timm's ViTs and ``vit-small`` have them.
    """
    reason = why_not_strip(model)
    if reason:
        raise DoesNotFit(f"attack 'april' cannot change the model as it needs: {reason}")
    changed = copy.deepcopy(model)
    blocks = changed.get_submodule("blocks")
    assert isinstance(blocks, nn.ModuleList | nn.Sequential)
    if not isinstance(blocks[0], StrippedBlock):
        blocks[0] = StrippedBlock(blocks[0])
    return changed


def why_not_strip(model: nn.Module) -> str:
    """Why the first block cannot be changed; empty if it can."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        return "it has no `blocks` as timm's ViTs have them"
    first = blocks[0]
    missing = [part for part in ("attn", "norm2", "mlp") if not hasattr(first, part)]
    if missing:
        return f"its first block has no {', '.join(missing)}"
    if not isinstance(getattr(first.attn, "qkv", None), nn.Linear):
        return "its first attention has no joint linear `qkv`"
    return ""


@dataclass(frozen=True, kw_only=True)
class April(Attack):
    """Solves for the embedded image, then for the pixels of each patch, in float64.

    The rounding errors of a float32 gradient are amplified twice, by A's condition and by E's. The
    first system is overdetermined, so its residual shows how uncertain each token is.
    ``shrink=False, rcond=0`` is the published attack: plain least squares twice.

    Args:
        shrink: Whether the second solve is damped by that uncertainty (ridge regression with a
            unit prior).
        rcond: Singular values of A below ``rcond`` times the largest are left out; None: the
            rounding error of the update's type.
    """

    shrink: bool = True
    rcond: Annotated[float, Field(ge=0, lt=1)] | None = None

    name: ClassVar[str] = "april"
    summary: ClassVar[str] = "closed form through queries, keys and values of a changed ViT"
    paper: ClassVar[str] = "Lu et al. 2022 (APRIL)"
    needs: ClassVar[str] = "a ViT whose first block the server strips; one image per client"
    recovers_inputs: ClassVar[bool] = True
    altered_model: ClassVar[str | None] = "first block without LayerNorm 1 and residuals"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        return strip_first_block(model)

    def incompatibilities(self, observation: Observation) -> list[str]:
        blocks = getattr(observation.model, "blocks", None)
        first = next(blocks.children(), None) if isinstance(blocks, nn.Module) else None
        if not isinstance(first, StrippedBlock):
            reason = why_not_strip(observation.model)
            return [reason or "the model's first block must be stripped: use strip_first_block"]
        reasons = check_patch_embedding(observation)
        if not reasons and count_positions(observation) != count_tokens(observation):
            reasons.append("its position embedding leaves out some of the tokens")
        if not isinstance(getattr(observation.model, "norm_pre", nn.Identity()), nn.Identity):
            reasons.append("it normalises the tokens before the first block")
        if observation.knowledge.batch_size != 1:
            reasons.append("it needs one image per client")
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        embedding = require_patch_embedding(observation.model, observation.knowledge.shape)
        return {embedding.position, QKV}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        embedding = require_patch_embedding(observation.model, observation.knowledge.shape)
        used = {QKV, embedding.position, embedding.input_layer.weight, embedding.input_layer.bias}
        state, update = observation.model.state_dict(), observation.update.gradient()
        weights = {k: v.cpu().double() for k, v in state.items() if k in used}
        gradient = {k: v.cpu().double() for k, v in update.items() if k in used}
        A = gradient[embedding.position].flatten(0, -2)
        right = weights[QKV].T @ gradient[QKV]
        rounding = torch.finfo(observation.update.change[QKV].dtype).eps
        z, condition, rank = solve_by_svd(
            A.T, right, rounding if self.rcond is None else self.rcond
        )
        patches = slice(embedding.offset, embedding.offset + embedding.input_layer.tokens)
        features = (z - weights[embedding.position].flatten(0, -2))[patches]
        if embedding.input_layer.bias in weights:
            features = features - weights[embedding.input_layer.bias]
        E = weights[embedding.input_layer.weight].flatten(1)
        variance = estimate_variance(A, z, right, rank)[patches] if self.shrink else E.new_zeros(1)
        pixels = solve_damped(E, features, variance)
        image = embedding.input_layer.assemble(pixels, observation.knowledge.shape)[None]
        residual = relative_residual(A.T @ z, right)
        return Reconstruction(
            images=image,
            confidence=max(0.0, 1 - residual) * share_in_range(image, observation.knowledge),
            diagnostics={"condition": condition, "rank": rank, "residual": residual},
        )


def count_positions(observation: Observation) -> int:
    """The number of tokens that the position embedding covers."""
    embedding = require_patch_embedding(observation.model, observation.knowledge.shape)
    table = observation.model.get_parameter(embedding.position)
    return table.numel() // table.shape[-1]


def count_tokens(observation: Observation) -> int:
    """The number of tokens that the first block receives."""
    model = observation.model
    black = torch.zeros(1, *observation.knowledge.shape).to(next(model.parameters()))
    return capture_early_input(model, FIRST_BLOCK, black).shape[1]


def estimate_variance(A: Tensor, z: Tensor, right: Tensor, rank: int) -> Tensor:
    """The variance of each row of ``z``, from the residual of ``A^T z = right``: ``[tokens]``.

    Ordinary least squares: residual variance times the diagonal of ``(A A^T)^-1``.
    """
    freedom = max(right.shape[0] - rank, 1)
    residual_variance = (A.T @ z - right).square().sum() / (freedom * right.shape[1])
    U, S, _ = torch.linalg.svd(A, full_matrices=False)
    variance: Tensor = residual_variance * (U[:, :rank] / S[:rank]).square().sum(1)
    return variance


def solve_damped(E: Tensor, features: Tensor, variance: Tensor) -> Tensor:
    """Solves ``E x = f`` for each row f of ``features [T, D]``: ``[T, F]``.

    ``variance`` is that of the features; pixels are assumed to have variance 1. If the features are
    certain, this is the minimum-norm solution.
    """
    U, S, Vh = torch.linalg.svd(E, full_matrices=False)
    kept = torch.finfo(S.dtype).eps * max(E.shape) * S[0] < S
    U, S, Vh = U[:, kept], S[kept], Vh[kept]
    pixels: Tensor = (features @ U) * (S / (S.square() + variance[:, None])) @ Vh
    return pixels
