"""InstaHide: private mixtures of images whose pixels' signs are flipped at random."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.batch_gradient import compute_mixed_gradient, mix_images
from keyhole.defenses.capabilities import BatchChange, MixedBatch
from keyhole.defenses.mixup import ONE_IMAGE

LARGEST_SHARE = 0.65
"""No image has a larger share in a mixture, as in the paper's experiments."""
MAX_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class InstaHide(Defense):
    """Mixes each image with k - 1 others of its batch, then flips the sign of half of all pixels.

    Signs are those of pixels scaled to [-1, 1], so that a flip turns p in [0, 1] into 1 - p. Labels
    are mixed in the same shares, of which none is above 0.65. Shares, partners and signs are
    drawn anew in every step. Partners are images of the batch; the paper can also take public ones.

    Args:
        k: How many images a mixture has; 1: images are not mixed.
        flips: Whether signs are flipped.
    """

    k: Annotated[int, Field(ge=1)] = 4
    flips: bool = True

    name: ClassVar[str] = "instahide"
    summary: ClassVar[str] = "mixes k images of a batch and flips pixels' signs at random"
    paper: ClassVar[str] = "Huang et al. 2020 (InstaHide)"
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig",)

    def caveats(self, model: nn.Module) -> list[str]:
        return [f"{ONE_IMAGE} but for the flips"] if self.k > 1 else []

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        """The gradient of the mixed and flipped batch; None where neither is done."""
        if self.k == 1 and not self.flips:
            return None
        side = side or ClientSide()
        weights = self.draw_weights(len(inputs), side.generator).to(inputs)
        mixed = mix_images(inputs, weights)
        if self.flips:
            mixed = flip_signs(mixed, side)
        side.record(mixed=min(self.k, len(inputs)), flips=int(self.flips))
        return compute_mixed_gradient(model, mixed, labels, weights)

    def draw_weights(self, count: int, generator: torch.Generator) -> Tensor:
        """The share of every image in every mixture, ``[count, count]``.

        Args:
            count: How many images the batch has.
            generator: Draws shares and partners.
        """
        used = min(self.k, count)
        weights = torch.zeros(count, count)
        for row in range(count):
            others = torch.randperm(count - 1, generator=generator)[: used - 1]
            partners = [row, *(others + (others >= row)).tolist()]
            weights[row, partners] = draw_shares(used, generator)
        return weights

    def batch_change(self) -> BatchChange | None:
        return MixedBatch(flips=self.flips)


def draw_shares(count: int, generator: torch.Generator) -> Tensor:
    """Random shares that sum to 1, none above 0.65 where that is possible: ``[count]``.

    >>> draw_shares(1, torch.Generator().manual_seed(0))
    tensor([1.])
    """
    shares = torch.full((count,), 1 / count)
    if count == 1:
        return shares
    for _ in range(MAX_TRIES):
        drawn = torch.rand(count, generator=generator)
        drawn = drawn / drawn.sum().clamp(min=1e-9)
        if float(drawn.max()) <= LARGEST_SHARE:
            return drawn
    return shares


def flip_signs(inputs: Tensor, side: ClientSide) -> Tensor:
    """Inputs of which half of the pixels p, in [0, 1], became 1 - p.

    Args:
        inputs: Normalised images, ``[S, C, H, W]``.
        side: Draws the flips and says how images are normalised.
    """
    black, white = (side.normalise(torch.full_like(inputs[:1], level)) for level in (0.0, 1.0))
    chance = torch.rand(inputs.shape, generator=side.generator).to(inputs.device)
    return torch.where(chance < 0.5, black + white - inputs, inputs)
