"""Clips updates and draws noise; raises an error rather than let an update pass undefended."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from keyhole.errors import BadUpdate
from keyhole.update import Update, kind_of

TOLERANCE = 1e-6
"""By how much rounding may lengthen a clipped update."""
MIN_ROUNDING_STEPS = 4
"""The least strength of noise on weights, in steps between neighbouring floating-point numbers."""


def clip_update(update: Update, limit: float) -> tuple[Update, float]:
    """The update scaled to the norm ``limit`` where it is longer, and the scale.

    Raises :class:`BadUpdate` where the norm or the limit is no finite number. Half precision may
    round every value of a scaled update up: it is then scaled further.

    >>> clip_update(Update({"w": torch.tensor([6.0, 8.0])}), 5.0)[0].change["w"]
    tensor([3., 4.])
    """
    norm = update.norm()
    if not (math.isfinite(norm) and math.isfinite(limit)):
        raise BadUpdate(
            f"the update of norm {norm} cannot be clipped to {limit}: check the learning rate, and "
            "that no value is NaN, infinite or beyond 1e150"
        )
    if norm <= limit:
        return update, 1.0
    for shrink in (1.0, 0.999, 0.5):
        scale = limit / norm * shrink
        scaled = scale_update(update, scale)
        if scaled.norm() <= limit * (1 + TOLERANCE):
            return scaled, scale
    return scale_update(update, 0.0), 0.0


def scale_update(update: Update, scale: float) -> Update:
    return update.map(lambda _, tensor: tensor * scale)


def draw_noise(
    tensor: Tensor, sigma: float, draw: torch.Generator, weight: Tensor | None = None
) -> Tensor:
    """N(0, sigma^2) in the shape and type of ``tensor``; raises where the type rounds it to 0.

    A client that sends ``weight + tensor + noise`` must not lose the noise in rounding, or a
    server could remove it by sending large weights. Where ``weight`` is given, the noise is at
    least as strong as ``MIN_ROUNDING_STEPS`` steps between neighbouring numbers of that size.
    """
    noise = torch.randn(tensor.shape, generator=draw, device=draw.device).to(tensor)
    if weight is None:
        noise = noise * sigma
    else:
        size = weight.to(tensor).abs() + tensor.abs()
        step = torch.finfo(tensor.dtype).eps * size
        noise = noise * (MIN_ROUNDING_STEPS * step).clamp_min(sigma)
    if sigma > 0 and noise.numel() and not noise.any():
        raise BadUpdate(
            f"noise of sigma={sigma:g} is zero in {kind_of(tensor)}: send float32, or more noise"
        )
    return noise


def total_norm(squared_norms: list[Tensor]) -> float:
    """The norm of all tensors together, whose squared norms these are."""
    return math.sqrt(float(torch.stack(squared_norms).sum())) if squared_norms else 0.0


def squared_norm(noise: Tensor) -> Tensor:
    """The squared norm, in double."""
    wide = noise.to(torch.promote_types(noise.dtype, torch.float32))
    return wide.square().sum(dtype=torch.double)
