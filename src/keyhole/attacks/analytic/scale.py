"""The brightness of an image of which a fully connected layer's gradient shows only the direction.

Without a bias the factor is found from the second layer. Its weight gradient holds the first
layer's activations up to a factor, and only the right scale of the image reproduces their
proportions through the non-linearity.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.attacks.analytic.linear_algebra import fit_rank_one, group_parallel_rows
from keyhole.attacks.analytic.noise import known_white_noise, weigh_bounds
from keyhole.attacks.analytic.probes import capture_early_input
from keyhole.defenses.capabilities import Interval
from keyhole.models.anatomy import InputLayer
from keyhole.threat import Knowledge, Observation

MIN_VARIATION = 1e-7
"""If the mismatch varies by less over all scales, the second layer does not determine the scale."""
MAX_MISMATCH = 0.02
"""Nor does it if no scale has a smaller mismatch (1 - cos^2)."""
MIN_UNITS = 3
"""Units of the first layer that are needed to compare proportions."""


@dataclass(frozen=True)
class SecondLayer:
    """The linear layer that reads the first one's units, with its weight gradient.

    ``gradient [r, units]`` has the rows that are not left out for noise, times their weights.
    """

    model: nn.Module
    name: str
    gradient: Tensor
    bounds: Interval | None = None

    @classmethod
    def find(
        cls,
        observation: Observation,
        first: InputLayer,
        gradient: dict[str, Tensor],
        bounds: dict[str, Interval],
    ) -> SecondLayer | None:
        """The next linear layer, if it has one input per unit of the first."""
        model = observation.model
        names = [name for name, _ in model.named_modules()]
        later = names[names.index(first.layer) + 1 :]
        linear = [name for name in later if isinstance(model.get_submodule(name), nn.Linear)]
        weight = f"{linear[0]}.weight" if linear else ""
        if weight not in gradient:
            return None
        if model.get_parameter(weight).shape[1] != model.get_parameter(first.weight).shape[0]:
            return None
        all_rows = torch.arange(len(gradient[weight]), device=gradient[weight].device)
        rows, weights = known_white_noise(observation, weight).weigh_rows(all_rows)
        return cls(
            copy.deepcopy(model).double(),
            linear[0],
            gradient[weight][rows] * weights[:, None],
            weigh_bounds(bounds.get(weight), rows, weights),
        )

    def read_activations(self, units: Tensor) -> Tensor:
        """The activations of some units of the first layer, up to a common factor."""
        bounds = None if self.bounds is None else self.bounds.map(lambda bound: bound[:, units])
        return fit_rank_one(self.gradient[:, units], bounds)[1]


def find_scale(
    direction: Tensor, units: Tensor, second: SecondLayer | None, knowledge: Knowledge
) -> float:
    """The factor (of either sign) that turns ``direction [C, H, W]`` into the image.

    The second layer's gradient in the columns of ``units`` is ``delta2 a^T``. The right scale makes
    the first layer's activations proportional to a. The result is the largest scale that keeps to
    the pixels' range if the layer does not determine the scale: if there is none, if the activation
    is homogeneous as ReLU is, or if the gradient is too damaged to fit any scale.
    """
    limits = {sign: largest_scale(sign * direction, knowledge) for sign in (1.0, -1.0)}
    widest = max(limits, key=lambda sign: limits[sign])
    fallback = widest * limits[widest]
    if second is None or len(units) < MIN_UNITS or not second.gradient[:, units].any():
        return fallback
    if knowledge.batch_size > 1:
        units = select_unmixed_units(second, units)
    activations = second.read_activations(units)
    active = activations != 0

    def mismatch(scales: Tensor) -> Tensor:
        images = scales[:, None, None, None] * direction
        found = capture_early_input(second.model, second.name, images)[:, units][:, active]
        norms = found.norm(dim=1) * activations[active].norm()
        cosine: Tensor = (found @ activations[active]) / norms.clamp_min(1e-300)
        return 1 - cosine.square()

    best = float("inf"), fallback
    for sign, limit in limits.items():
        steps = torch.logspace(-2, 0.2, 97, dtype=torch.double, device=direction.device)
        scales = sign * limit * steps
        loss = mismatch(scales)
        if float(loss.max() - loss.min()) >= MIN_VARIATION:
            best = min(best, refine_scale(mismatch, scales, loss))
    return best[1] if best[0] <= MAX_MISMATCH else fallback


def select_unmixed_units(second: SecondLayer, units: Tensor) -> Tensor:
    """Units whose columns in the second layer's gradient hold one image; all, if too few do.

    Where a unit's slope is flat, the first layer's gradient hides another sample that the unit
    still passes on to the second layer. Only columns that agree in direction hold one image.
    """
    groups = group_parallel_rows(second.gradient[:, units].T, 2)
    return units[groups[0]] if groups and len(groups[0]) >= MIN_UNITS else units


def refine_scale(
    mismatch: Callable[[Tensor], Tensor], scales: Tensor, loss: Tensor
) -> tuple[float, float]:
    """The least mismatch and its scale, by ever finer grids around the best point."""
    for _ in range(6):
        best = int(loss.argmin())
        low, high = scales[max(best - 1, 0)], scales[min(best + 1, len(scales) - 1)]
        scales = torch.linspace(0, 1, 33).to(scales) * (high - low) + low
        loss = mismatch(scales)
    best = int(loss.argmin())
    return float(loss[best]), float(scales[best])


def largest_scale(direction: Tensor, knowledge: Knowledge) -> float:
    """The largest factor that keeps ``direction`` within the range of pixels."""
    low, high = knowledge.box(direction)
    limit = torch.where(direction > 0, high, low) / direction
    return float(limit[torch.isfinite(limit) & (direction != 0)].min().clamp_min(0))
