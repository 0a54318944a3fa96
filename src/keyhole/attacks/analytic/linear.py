"""The rank-one leak of a fully connected first layer.

For one image the weight gradient of the first layer is ``delta x^T``: every row is the image up to
a factor. With a bias the factor is in the update too, because the bias gradient is ``delta``. In a
batch, a row whose unit is on for only one sample is that sample's image up to a factor. Such rows
are recognised because several have the same direction. Dropout therefore helps the attacker.

Without a bias the factor is found from the second layer (:mod:`keyhole.attacks.analytic.scale`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from keyhole.attacks.analytic.linear_algebra import (
    fit_rank_one,
    group_parallel_rows,
    share_in_range,
)
from keyhole.attacks.analytic.noise import (
    apply_wiener_filter,
    known_bounds,
    known_white_noise,
    weigh_bounds,
)
from keyhole.attacks.analytic.scale import SecondLayer, find_scale
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import InputLayer, find_input_layer
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class LinearLeak(Attack):
    """Reads the images that a fully connected first layer's gradient holds.

    If a known defense declares bounds of missing values, the attack completes the rank-one matrix
    within them. If a known defense declares noise, the attack weights the rows by how little noise
    they have and smooths the image.
    """

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "reads the image from a fully connected first layer's gradient"
    paper: ClassVar[str] = "Phong et al. 2018; Geiping et al. 2020; Fowl et al. 2022"
    needs: ClassVar[str] = "a first layer that is fully connected to the pixels"
    recovers_inputs: ClassVar[bool] = True
    uses: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.IMAGE_CHANGE, Capability.NOISE, Capability.VALUES}
    )

    def incompatibilities(self, observation: Observation) -> list[str]:
        found = find_input_layer(observation.model, observation.knowledge.shape)
        if isinstance(found, str):
            return [f"it needs a first layer fully connected to the pixels, but {found}"]
        if found.tokens != 1:
            return [
                "it needs a first layer fully connected to the pixels, "
                f"but {found.layer!r} sees {found.tokens} patches one by one"
            ]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return {require_input_layer(observation).weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge = observation.knowledge
        first = require_input_layer(observation)
        gradient = {k: v.double() for k, v in observation.update.gradient().items()}
        weight = gradient[first.weight].flatten(1)
        bias = gradient.get(first.bias)
        bounds = known_bounds(observation)
        second = SecondLayer.find(observation, first, gradient, bounds)
        noise = known_white_noise(observation, first.weight)
        images, explained_shares = [], []
        for group in group_parallel_rows(weight, knowledge.batch_size):
            rows, weights = noise.weigh_rows(group)
            if not len(rows):
                continue  # all rows of the group are noisy, and rows of other groups are not
            part = weight[rows] * weights[:, None]
            left, right = fit_rank_one(part, weigh_bounds(bounds.get(first.weight), rows, weights))
            image = first.assemble(right[None], knowledge.shape)
            if noise.sigma > 0:
                image = apply_wiener_filter(image, (noise.sigma / float(left.norm())) ** 2)
            if not image.any():
                continue  # nothing exceeds the noise
            if bias is not None and bias[rows].norm() > 0:
                scale = float((left / weights @ bias[rows]) / bias[rows].square().sum())
            else:
                scale = find_scale(image, rows, second, knowledge)
            images.append(scale * image)
            explained_shares.append(float((left.norm() / part.norm()).clamp(max=1.0)) ** 2)
        if not images:
            return Reconstruction(diagnostics={"images": 0})
        stack = torch.stack(images)
        shares = torch.tensor(explained_shares, dtype=torch.double)
        return Reconstruction(
            images=stack,
            confidence=shares * share_in_range(stack, knowledge).cpu(),
            diagnostics={"images": len(images)},
        )


def require_input_layer(observation: Observation) -> InputLayer:
    """The first layer of a model to which the attack applies."""
    found = find_input_layer(observation.model, observation.knowledge.shape)
    assert not isinstance(found, str)
    return found
