"""The rank-one leak of a fully connected first layer.

For one image the weight gradient of the first layer is ``delta x^T``: every row is the image up to
a factor. With a bias the factor is in the update too (the bias gradient is ``delta``). In a batch,
rows that only one sample drives, because the others' units are off or dropped, are that image up
to a factor; rows that agree in direction give themselves away. Dropout therefore helps.

Without a bias the factor is found from the second layer: its weight gradient holds the first
layer's activations up to a factor, and only the right scale of the image reproduces their
proportions through the non-linearity.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass as parameters
from torch import Tensor, nn

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.closed_form.linear_algebra import in_range, rank_one
from keyhole.attacks.closed_form.noise import known_noise, wiener
from keyhole.models.anatomy import Entrance, entrance
from keyhole.threat import Knowledge, Observation

ALIKE = 1e-5
"""Rows whose directions differ by less (1 - |cos|) come from the same image."""

FLAT = 1e-7
"""A second layer whose proportions vary by less with the scale does not tell it."""

TRUSTED = 0.02
"""Nor does one whose proportions no scale reproduces better than this (1 - cos^2)."""


@parameters(frozen=True, kw_only=True)
class LinearLeak(Attack):
    """Reads the images that a fully connected first layer's gradient holds.

    Knowing that small values were pruned, it takes zeros for missing entries and completes the
    rank-one matrix; knowing the variance of added noise, it smooths the image accordingly.
    """

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "reads the image off a fully connected first layer's gradient"
    paper: ClassVar[str] = "Phong et al. 2018; Geiping et al. 2020; Fowl et al. 2022"
    needs: ClassVar[str] = "a first layer that is fully connected to the pixels"
    recovers_inputs: ClassVar[bool] = True
    adapts_to: ClassVar[frozenset[str]] = frozenset({"gaussian", "dpsgd", "pruning"})

    def misfits(self, observation: Observation) -> list[str]:
        found = entrance(observation.model, observation.knowledge.shape)
        if isinstance(found, str):
            return [f"it needs a first layer fully connected to the pixels, but {found}"]
        if found.tokens != 1:
            return [
                "it needs a first layer fully connected to the pixels, "
                f"but {found.layer!r} sees {found.tokens} patches one by one"
            ]
        return []

    def reads(self, observation: Observation) -> set[str]:
        found = entrance(observation.model, observation.knowledge.shape)
        assert not isinstance(found, str)
        return {found.weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge = observation.knowledge
        found = entrance(observation.model, knowledge.shape)
        assert not isinstance(found, str)
        gradient = {k: v.double() for k, v in observation.update.gradient().items()}
        weight = gradient[found.weight].flatten(1)
        bias = gradient.get(found.bias)
        second = SecondLayer.of(observation.model, found, gradient)
        missing = knowledge.defense is not None and knowledge.defense.name == "pruning"
        sigma = known_noise(observation)
        images, explained = [], []
        for rows in groups_of_rows(weight, knowledge.batch_size):
            part = weight[rows]
            left, right = rank_one(part, part != 0 if missing else None)
            image = found.assemble(right[None], knowledge.shape)
            if sigma > 0:
                image = wiener(image, (sigma / float(left.norm())) ** 2)
            if not image.any():
                continue  # nothing stands above the noise
            if bias is not None and bias[rows].norm() > 0:
                scale = float((left @ bias[rows]) / bias[rows].square().sum())
            else:
                scale = find_scale(image, rows, second, knowledge, missing=missing)
            images.append(scale * image)
            explained.append(float((left.norm() / part.norm()).clamp(max=1.0)) ** 2)
        if not images:
            return Reconstruction(diagnostics={"images": 0})
        stack = torch.stack(images)
        confidence = torch.tensor(explained, dtype=torch.double) * in_range(stack, knowledge).cpu()
        return Reconstruction(
            images=stack, confidence=confidence, diagnostics={"images": len(images)}
        )


def groups_of_rows(weight: Tensor, batch_size: int) -> list[Tensor]:
    """Sets of rows that hold one image each, strongest first, at most ``batch_size`` of them.

    A row stands for an image only if another row confirms its direction: a mixture of two images
    does not occur twice in the same proportions.
    """
    norms = weight.norm(dim=1)
    alive = torch.nonzero(norms > 1e-12 * norms.max())[:, 0]
    if batch_size == 1 or not len(alive):
        return [alive] if len(alive) else []
    unit = weight[alive] / norms[alive, None]
    alike = (unit @ unit.T).abs() > 1 - ALIKE
    free = torch.ones(len(alive), dtype=torch.bool, device=weight.device)
    groups = []
    for row in alike.sum(1).argsort(descending=True).tolist():
        if not free[row]:
            continue
        members = alike[row] & free
        free &= ~members
        if int(members.sum()) > 1:
            groups.append(alive[members])
    groups.sort(key=lambda rows: -len(rows))
    return groups[:batch_size]


@dataclass(frozen=True)
class SecondLayer:
    """The linear layer that reads the first one's units, with its weight gradient."""

    model: nn.Module
    name: str
    gradient: Tensor

    @classmethod
    def of(
        cls, model: nn.Module, first: Entrance, gradient: dict[str, Tensor]
    ) -> SecondLayer | None:
        """The next linear layer that has one input a unit of the first, if there is one."""
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
        return cls(copy.deepcopy(model).double(), after[0], gradient[f"{after[0]}.weight"])

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
    *,
    missing: bool,
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
        confirmed = groups_of_rows(columns.T, 2)
        if confirmed and len(confirmed[0]) >= 3:
            rows, columns = rows[confirmed[0]], columns[:, confirmed[0]]
    _, wanted = rank_one(columns, columns != 0 if missing else None)
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
