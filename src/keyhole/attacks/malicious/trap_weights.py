"""Trap weights: rows of the first layer that hardly any image fires, so that some fire for one."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.linear import LinearLeak
from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import find_input_layer
from keyhole.seeds import generator
from keyhole.threat import PublicKnowledge

HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class TrapWeights(LinearLeak):
    """Changes the first layer's weights and reads the rows that one image alone has fired.

    Half of each row's weights are negative, drawn from ``-|N(0, 1)|``; the other half are those of
    another draw, positive and multiplied by ``scale``. The sum is rarely positive, so a row often
    passes one image of a batch and shows it.

    Args:
        scale: The factor of the positive half; the paper takes 0.95. None: for each row the factor
            with which one public image in as many as a batch has fires it.
        strength: The rows' length; large, so that activations such as GELU cut off like a ReLU.
    """

    scale: Annotated[float, Field(gt=0, lt=10)] | None = None
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0

    name: ClassVar[str] = "trap-weights"
    summary: ClassVar[str] = "makes first-layer rows fire rarely, then reads those of one image"
    paper: ClassVar[str] = "Boenisch et al. 2023 (When the Curious Abandon Honesty)"
    needs: ClassVar[str] = "a first layer that is fully connected to the pixels"
    altered_model: ClassVar[str | None] = "weights of the first layer that rarely fire"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        if public is None:
            raise DoesNotFit("attack 'trap-weights' needs to know the images' shape")
        first = find_input_layer(model, public.shape)
        if isinstance(first, str) or first.tokens != 1:
            why = first if isinstance(first, str) else "its first layer sees patches"
            raise DoesNotFit(f"it needs a first layer fully connected to the pixels, but {why}")
        changed = copy.deepcopy(model)
        state = dict(changed.named_parameters())
        weight, bias = state[first.weight], state.get(first.bias)
        images = public.images.flatten(1)[:, first.layout[0]].to(weight)
        with torch.no_grad():
            rows = self.draw_rows(weight.shape, images, max(public.batch_size, 2))
            weight.copy_(rows.view_as(weight))
            if bias is not None:
                bias.zero_()
        return changed

    def draw_rows(self, shape: torch.Size, images: Tensor, batch: int) -> Tensor:
        """Returns rows ``[k, D]`` for images ``[n, D]`` of clients with ``batch`` images each."""
        draw = generator(0, "trap weights")
        count, width = shape[0], images.shape[1]
        size = torch.randn(count, width, generator=draw).abs().to(images)
        positive = torch.rand(count, width, generator=draw).argsort(1).to(images.device) % 2 == 0
        raised, lowered = size * positive, -size * ~positive
        if self.scale is not None or not len(images):
            factor = torch.full((count, 1), self.scale or 0.95).to(images)
        else:
            factor = choose_factors(raised @ images.T, lowered @ images.T, 1 / batch)[:, None]
        rows = lowered + factor * raised
        return self.strength * rows / rows.norm(dim=1, keepdim=True)


def choose_factors(raised: Tensor, lowered: Tensor, share: float) -> Tensor:
    """Returns factors ``[k]`` with which a share of images fires each row.

    Args:
        raised: What the positive half of each row makes of each public image, ``[k, n]``.
        lowered: What the negative half makes of it, ``[k, n]``.
        share: The wanted share of images for which ``lowered + factor * raised`` is positive.
    """
    low, high = torch.zeros(len(raised)).to(raised), torch.full((len(raised),), 2.0).to(raised)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fired = (lowered + middle[:, None] * raised > 0).double().mean(1)
        above = fired > share
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low
