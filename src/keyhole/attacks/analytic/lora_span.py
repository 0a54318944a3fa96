"""Reads an image out of what a client changed in the first block's LoRA, over several rounds.

The A of a LoRA layer changes by ``dA = (G B)^T X``: its r rows are combinations of the tokens X
``[T, D]`` that the layer gets. The first block's are ``x_i = norm(start_i + E p_i)``, and all in
that formula but the patch p_i is frozen and known. So X is the same in every local step and in
every round on the same image, while B differs: T rows that are independent span all tokens. With P
the projection away from that span, each patch is the solution of linear equations,

    P (scale * C (start_i + E p_i) + t_i shift) = 0,        C: subtracts the mean,

for p_i and the deviation t_i by which the norm divides: D - T equations for F + 1 unknowns. Where a
patch has more pixels than that, what the equations leave open is filled by what pixels of
photographs usually have in common with their neighbours.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.lora_layers import A_PART, TokenLayer, find_token_layer
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.optimisers import Sgd
from keyhole.threat import Observation

GREY, SPREAD = 0.5, 0.3
"""Mean and deviation of a photograph's pixels in [0, 1], as far as they are not known."""
ALIKE = 0.9
"""The correlation of a pixel's colours."""


@dataclass(frozen=True, kw_only=True)
class LoraSpan(Attack):
    """Solves for every patch in the space that the tokens span.

    Args:
        reach: Pixels over which the correlation of neighbours falls to 1/e.
    """

    reach: Annotated[float, Field(gt=0)] = 12.0

    name: ClassVar[str] = "lora-span"
    summary: ClassVar[str] = "reads patches in the span of the first block's LoRA updates"
    paper: ClassVar[str] = "Keyhole"
    needs: ClassVar[str] = "LoRA in a ViT's first block; one image per client, over several rounds"
    most_rounds: ClassVar[int] = 1000

    def incompatibilities(self, observation: Observation) -> list[str]:
        knowledge = observation.knowledge
        layer = find_token_layer(observation.model, knowledge.shape)
        reasons = []
        if isinstance(layer, str):
            reasons.append(layer)
        if knowledge.batch_size != 1:
            reasons.append("it needs one image per client: several span their tokens together")
        optimiser = knowledge.optimiser
        if not isinstance(optimiser, Sgd) or optimiser.weight_decay:
            reasons.append("it needs clients of SGD without weight decay, whose steps are sums")
        if isinstance(layer, TokenLayer):
            rounds = max(knowledge.rounds, 1 + len(observation.rounds))
            blank = count_blank_rounds(observation, layer)
            rows = (rounds - blank) * layer.rank * len(layer.names)
            if rows < layer.tokens:
                each = layer.rank * len(layer.names)
                needed = -(-layer.tokens // each) + blank
                but = ", the first, where B is 0, none" if blank else ""
                reasons.append(
                    f"it needs {needed} rounds of the client on the same image (--repeats {needed} "
                    f"--moving): a round shows {each} combinations of {layer.tokens} tokens{but}"
                )
        return reasons

    def concerns(self, model: nn.Module) -> bool:
        return any(A_PART in name for name, _ in model.named_parameters())

    def reads(self, observation: Observation) -> set[str]:
        layer = find_token_layer(observation.model, observation.knowledge.shape)
        return set() if isinstance(layer, str) else set(layer.names)

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge = observation.knowledge
        layer = find_token_layer(observation.model, knowledge.shape)
        assert isinstance(layer, TokenLayer)
        updates = (observation.update, *(each.update for each in observation.rounds))
        rows = torch.cat([u.change[n].double().cpu() for u in updates for n in layer.names])
        rounding = estimate_rounding(observation, layer, rows)
        directions, strengths = find_span(rows, layer.tokens)
        noise = measure_noise(strengths, rounding)
        prior = Prior.of(observation, layer, self.reach)
        patches, residual = solve_patches(layer, directions, noise, prior)
        image = layer.stem.assemble(patches, knowledge.shape)[None].float()
        equations = layer.embedding.shape[0] - len(directions)
        known = min(1.0, equations / (layer.embedding.shape[1] + 1))
        resolved = float((strengths > rounding).double().mean())
        return Reconstruction(
            images=image,
            confidence=known * resolved * share_in_range(image, knowledge),
            diagnostics={
                "updates": float(len(updates)),
                "rank": float((strengths > rounding).sum()),
                "tokens": float(layer.tokens),
                "residual": residual,
                "noise": noise,
            },
        )


def count_blank_rounds(observation: Observation, layer: TokenLayer) -> int:
    """How many of the rounds show nothing of A: the first, of one step, if B is 0."""
    if observation.update.steps > 1:
        return 0
    parts = [name.replace(".lora_A.", ".lora_B.") for name in layer.names]
    return int(not any(bool(observation.model.get_parameter(part).any()) for part in parts))


def estimate_rounding(observation: Observation, layer: TokenLayer, rows: Tensor) -> float:
    """The error of a row of A's change by the rounding of its type, as the norm of ``[D]`` values.

    Weights are rounded at their own size, gradients at theirs.
    """
    weight = observation.model.get_parameter(layer.names[0])
    own = observation.update.change[layer.names[0]]
    size = float(rows.square().mean().sqrt())
    if observation.update.lr != 1.0 or observation.update.steps > 1:
        size = max(size, float(weight.double().square().mean().sqrt()))
    spacing = float(torch.finfo(own.dtype).eps)
    return spacing * size * math.sqrt(rows.shape[1]) / 2


def find_span(rows: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """The strongest directions ``[k, D]`` of the rows, as many as tokens, and their strengths."""
    _, strengths, directions = torch.linalg.svd(rows, full_matrices=False)
    return directions[:tokens], strengths[:tokens]


def measure_noise(strengths: Tensor, rounding: float) -> float:
    """The error that is expected in an equation for a token of unit deviation."""
    error = torch.where(strengths > rounding, rounding / strengths, 1.0)
    return float(error.square().mean().sqrt()) + 1e-7


class Prior:
    """What is known of a patch before: its mean, and how its pixels go together.

    Args:
        mean: The mean of its model inputs, ``[F]``.
        root: A root of their covariance, ``[F, F]``.
    """

    def __init__(self, mean: Tensor, root: Tensor) -> None:
        self.mean, self.root = mean, root

    @classmethod
    def of(cls, observation: Observation, layer: TokenLayer, reach: float) -> Prior:
        """The prior of photographs, in the model's inputs."""
        knowledge, pixels = observation.knowledge, layer.stem.layout[0]
        _, height, width = knowledge.shape
        channel = pixels // (height * width)
        place = torch.stack([pixels // width % height, pixels % width], 1).double()
        near = torch.exp(-torch.cdist(place, place) / reach)
        alike = torch.where(channel[:, None] == channel[None, :], 1.0, ALIKE)
        mean = torch.tensor(knowledge.mean).double()[channel]
        std = torch.tensor(knowledge.std).double()[channel]
        covariance = (near * alike) * SPREAD**2 / (std[:, None] * std[None, :])
        eye = torch.eye(len(pixels), dtype=torch.double)
        return cls((GREY - mean) / std, torch.linalg.cholesky(covariance + 1e-8 * eye))


def solve_patches(
    layer: TokenLayer, directions: Tensor, noise: float, prior: Prior
) -> tuple[Tensor, float]:
    """The patches ``[N, F]``, and the relative residual of their equations."""
    width = len(layer.scale)
    centre = torch.eye(width, dtype=torch.double) - 1 / width
    away = torch.eye(width, dtype=torch.double) - directions.T @ directions
    seen = away @ (layer.scale[:, None] * centre)  # [D, D]: from a token before the norm
    mixing = seen @ layer.embedding @ prior.root  # of the patch in units of its prior
    shift = (away @ layer.shift)[:, None]
    base = (layer.start + layer.embedding @ prior.mean) @ seen.T  # [N, D]
    size = float((layer.start @ centre).square().mean().sqrt()) + 1e-12
    spread = 10 * size  # of the deviation by which the norm divides
    matrix = torch.cat([mixing, spread * shift], dim=1) / (noise * size)
    gram = matrix.T @ matrix + torch.eye(matrix.shape[1], dtype=torch.double)
    found = torch.linalg.solve(gram, -matrix.T @ (base.T / (noise * size)))  # [F + 1, N]
    left = base.T + matrix @ found * (noise * size)
    residual = float(left.norm() / base.norm().clamp(min=1e-12))
    patches = prior.mean + (prior.root @ found[:-1]).T
    return patches, residual
