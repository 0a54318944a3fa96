"""How bright the image is that a fully connected layer's gradient shows up to a factor.

Without a bias the factor is found from the second layer: its weight gradient holds the first
layer's activations up to a factor, and only the right scale of the image reproduces their
proportions through the non-linearity.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.attacks.analytic.bounds import select_bounds
from keyhole.attacks.analytic.linear_algebra import group_rows, rank_one
from keyhole.attacks.analytic.noise import white_noise
from keyhole.defenses.capabilities import Interval
from keyhole.models.anatomy import InputLayer
from keyhole.threat import Knowledge, Observation

FLAT = 1e-7
"""A second layer whose proportions vary by less with the scale does not tell it."""

TRUSTED = 0.02
"""Nor does one whose proportions no scale reproduces better than this (1 - cos^2)."""


@dataclass(frozen=True)
class SecondLayer:
    """The linear layer that reads the first one's units, with its weight gradient.

    ``gradient [r, units]`` has the rows that are worth looking at, each times its trust.
    """

    model: nn.Module
    name: str
    gradient: Tensor
    bounds: Interval | None = None

    @classmethod
    def of(
        cls,
        observation: Observation,
        first: InputLayer,
        gradient: dict[str, Tensor],
        bounds: dict[str, Interval],
    ) -> SecondLayer | None:
        """The next linear layer that has one input per unit of the first, if there is one."""
        model = observation.model
        units = model.get_parameter(first.weight).shape[0]
        names = [name for name, _ in model.named_modules()]
        after = [
            name
            for name in names[names.index(first.layer) + 1 :]
            if isinstance(model.get_submodule(name), nn.Linear)
        ]
        if not after or f"{after[0]}.weight" not in gradient:
            return None
        if model.get_parameter(f"{after[0]}.weight").shape[1] != units:
            return None
        weight = f"{after[0]}.weight"
        everything = torch.arange(len(gradient[weight]), device=gradient[weight].device)
        rows, trust = white_noise(observation, weight).weigh(everything)
        return cls(
            copy.deepcopy(model).double(),
            after[0],
            gradient[weight][rows] * trust[:, None],
            select_bounds(bounds.get(weight), rows, trust),
        )

    def inputs(self, images: Tensor) -> Tensor:
        """What the layer receives when the model is fed ``images``: ``[n, units]``."""
        caught: list[Tensor] = []
        handle = self.model.get_submodule(self.name).register_forward_pre_hook(
            lambda module, args: caught.append(args[0])
        )
        self.model(images)
        handle.remove()
        return caught[0]


def find_scale(
    direction: Tensor,
    rows: Tensor,
    second: SecondLayer | None,
    knowledge: Knowledge,
) -> float:
    """The factor (either sign) that turns ``direction [C, H, W]`` into the image.

    The second layer's gradient in the columns of ``rows`` is ``delta2 a^T``; the scale sought makes
    the first layer's activations proportional to a. Where the layer does not tell (none there, a
    homogeneous activation such as ReLU, a gradient too damaged to fit any scale), the largest
    scale that stays in the pixels' range.
    """
    limits = {sign: largest_scale(sign * direction, knowledge) for sign in (1.0, -1.0)}
    fallback = max(limits, key=lambda sign: limits[sign])
    if second is None or len(rows) < 3 or not second.gradient[:, rows].any():
        return fallback * limits[fallback]
    columns = second.gradient[:, rows]
    if knowledge.batch_size > 1:
        # A unit may hide another sample from the first layer, where its slope is flat, and still
        # pass it on to the second: only columns that confirm each other are this image's alone.
        confirmed = group_rows(columns.T, 2)
        if confirmed and len(confirmed[0]) >= 3:
            rows, columns = rows[confirmed[0]], columns[:, confirmed[0]]
    bounds = None if second.bounds is None else second.bounds.map(lambda bound: bound[:, rows])
    _, wanted = rank_one(columns, bounds)
    used = wanted != 0

    def mismatch(scales: Tensor) -> Tensor:
        units = second.inputs(scales[:, None, None, None] * direction)[:, rows][:, used]
        cosine = (units @ wanted[used]) / (units.norm(dim=1) * wanted[used].norm()).clamp_min(
            1e-300
        )
        off: Tensor = 1 - cosine.square()
        return off

    best: tuple[float, float] = (float("inf"), fallback * limits[fallback])
    for sign, limit in limits.items():
        steps = torch.logspace(-2, 0.2, 97, dtype=torch.double, device=direction.device)
        scales = sign * limit * steps
        loss = mismatch(scales)
        if float(loss.max() - loss.min()) < FLAT:
            continue
        best = min(best, refine(mismatch, scales, loss))
    return best[1] if best[0] <= TRUSTED else fallback * limits[fallback]


def refine(
    mismatch: Callable[[Tensor], Tensor], scales: Tensor, loss: Tensor
) -> tuple[float, float]:
    """The least mismatch and its scale, by repeatedly looking closer around the best point."""
    for _ in range(6):
        at = int(loss.argmin())
        low, high = scales[max(at - 1, 0)], scales[min(at + 1, len(scales) - 1)]
        scales = torch.linspace(0, 1, 33).to(scales) * (high - low) + low
        loss = mismatch(scales)
    at = int(loss.argmin())
    return float(loss[at]), float(scales[at])


def largest_scale(direction: Tensor, knowledge: Knowledge) -> float:
    """The largest factor that keeps ``direction`` within what pixels can be."""
    low, high = knowledge.box(direction)
    limit = torch.where(direction > 0, high, low) / direction
    return float(limit[torch.isfinite(limit) & (direction != 0)].min().clamp_min(0))
