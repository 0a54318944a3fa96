"""mixup: every image of a batch is mixed with another one, and so is its label."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.batch_gradient import compute_mixed_gradient, mix_images
from keyhole.defenses.capabilities import BatchChange, MixedBatch

ONE_IMAGE = "a batch of one image has nothing to be mixed with, and leaves as it is"


@dataclass(frozen=True, kw_only=True)
class Mixup(Defense):
    """Trains on ``a x_i + (1 - a) x_j`` with the same mixture of labels; a ~ Beta(alpha, alpha).

    The share a and the pairs are drawn anew in every step. Pairs follow a random circle through
    the batch, so that no image is mixed with itself.

    Args:
        alpha: The parameter of the Beta distribution; 0: nothing is mixed.
    """

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    name: ClassVar[str] = "mixup"
    summary: ClassVar[str] = "mixes each image of a batch with another one, labels too"
    paper: ClassVar[str] = "Zhang et al. 2018 (mixup); Huang et al. 2021 as a defense"
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig",)

    def caveats(self, model: nn.Module) -> list[str]:
        return [ONE_IMAGE]

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        """The gradient of the mixed batch; None where nothing is mixed."""
        if self.alpha == 0 or len(inputs) < 2:
            return None
        side = side or ClientSide()
        weights = self.draw_weights(len(inputs), side.generator).to(inputs)
        side.record(share=float(weights[0, 0]))
        return compute_mixed_gradient(model, mix_images(inputs, weights), labels, weights)

    def draw_weights(self, count: int, generator: torch.Generator) -> Tensor:
        """The share of every image in every mixture, ``[count, count]``.

        Args:
            count: How many images the batch has.
            generator: Draws the share and the pairs.
        """
        share = draw_beta(self.alpha, generator)
        circle = torch.randperm(count, generator=generator)
        partner = torch.empty_like(circle).scatter_(0, circle, circle.roll(1))
        return share * torch.eye(count) + (1 - share) * torch.eye(count)[partner]

    def batch_change(self) -> BatchChange:
        return MixedBatch()


def draw_beta(alpha: float, generator: torch.Generator) -> float:
    """One draw from Beta(alpha, alpha): the share of the first of two Gamma(alpha) draws.

    >>> 0 <= draw_beta(0.4, torch.Generator().manual_seed(0)) <= 1
    True
    """
    shape = torch.full((2,), alpha, dtype=torch.double)
    drawn = torch._standard_gamma(shape, generator=generator)
    return float(drawn[0] / drawn.sum().clamp(min=1e-300))
