"""Trap weights: rows of the first layer that hardly any image fires, so that some fire for one."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.linear import LinearLeak
from keyhole.attacks.malicious.ladder import spread_quantiles
from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import find_input_layer
from keyhole.seeds import generator
from keyhole.threat import PublicKnowledge

COMPONENTS = 30
"""Principal components of the public images that a row's direction is drawn from."""
RIDGE = 1e-3
"""Of the largest variance: what keeps the constant feature from fitting the public images alone."""


@dataclass(frozen=True, kw_only=True)
class TrapWeights(LinearLeak):
    """Changes the first layer's weights and reads the rows that one image alone has fired.

    By default rows are random directions in which public images vary equally much, with a threshold
    that one image in a batch exceeds. The threshold is the bias; a layer without one gets it from a
    feature that is nearly constant over public images, if there is such a feature.

    Args:
        scale: None: as above. A number: the published rows, half of whose weights are drawn from
            ``-|N(0, 1)|`` and half from ``scale |N(0, 1)|``; the paper takes 0.95.
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
        if public is None or len(public.images) < 2:
            raise DoesNotFit("attack 'trap-weights' needs public images to lay its traps by")
        first = find_input_layer(model, public.shape)
        if isinstance(first, str) or first.tokens != 1:
            why = first if isinstance(first, str) else f"{first.layer!r} sees patches one by one"
            raise DoesNotFit(f"it needs a first layer fully connected to the pixels, but {why}")
        changed = copy.deepcopy(model)
        weight = changed.get_parameter(first.weight)
        bias = dict(changed.named_parameters()).get(first.bias)
        images = public.images.flatten(1)[:, first.layout[0]].to(weight)
        share = 1 / max(2, public.batch_size * public.clients)
        with torch.no_grad():
            if self.scale is not None:
                rows = draw_published_rows(len(weight), images.shape[1], self.scale)
                thresholds = torch.zeros(len(rows))
            else:
                rows, thresholds = draw_rare_rows(len(weight), images.cpu(), share)
            if bias is None:
                rows = rows - thresholds[:, None] * find_constant(images.cpu())
            length = rows.norm(dim=1, keepdim=True) / self.strength
            weight.copy_((rows / length).view_as(weight))
            if bias is not None:
                bias.copy_(-thresholds / length[:, 0])
        return changed


def draw_published_rows(count: int, width: int, scale: float) -> Tensor:
    """Returns rows ``[count, width]`` with a negative half and a positive one times ``scale``."""
    draw = generator(0, "trap weights")
    size = torch.randn(count, width, generator=draw).abs()
    positive = torch.rand(count, width, generator=draw).argsort(1) % 2 == 0
    return torch.where(positive, scale * size, -size)


def draw_rare_rows(count: int, images: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Returns rows ``[count, D]``, and thresholds that a share of ``images [n, D]`` exceeds."""
    _, spread, axes = torch.linalg.svd(images - images.mean(0), full_matrices=False)
    used = min(COMPONENTS, int((spread > 1e-3 * spread[0]).sum()))
    mixture = torch.randn(count, used, generator=generator(0, "trap weights"))
    rows = (mixture / spread[:used]) @ axes[:used]
    wanted = torch.tensor([1 - share])
    return rows, torch.cat([spread_quantiles(values, wanted) for values in rows @ images.T])


def find_constant(images: Tensor) -> Tensor:
    """Returns weights ``[D]`` of the feature that is most nearly 1 for all ``images [n, D]``.

    It is the mean image through the inverse of the images' (ridged) covariance.
    """
    mean = images.mean(0)
    _, spread, axes = torch.linalg.svd(images - mean, full_matrices=False)
    variances = spread.square() / len(images)
    ridge = RIDGE * variances[0].clamp_min(1e-12)
    inside = axes @ mean
    weights = axes.T @ (inside / (variances + ridge)) + (mean - axes.T @ inside) / ridge
    constant: Tensor = weights / (weights @ mean)
    return constant
