"""The rank-one leak of a fully connected first layer.

For one image the weight gradient of the first layer is ``delta x^T``: every row is the image up to
a factor. With a bias the factor is in the update too (the bias gradient is ``delta``). In a batch,
rows that only one sample drives, because the others' units are off or dropped, are that image up
to a factor; rows that agree in direction give themselves away. Dropout therefore helps.

Without a bias the factor is found from the second layer (:mod:`keyhole.attacks.analytic.scale`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from keyhole.attacks.analytic.bounds import known_bounds, select_bounds
from keyhole.attacks.analytic.linear_algebra import group_rows, rank_one, share_in_range
from keyhole.attacks.analytic.noise import white_noise, wiener
from keyhole.attacks.analytic.scale import SecondLayer, find_scale
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.defenses.capabilities import Capability
from keyhole.models.anatomy import find_input_layer
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class LinearLeak(Attack):
    """Reads the images that a fully connected first layer's gradient holds.

    Where a defense declares between which bounds missing values lie, it completes the rank-one
    matrix within them; knowing the variance of added noise, it smooths the image accordingly, and
    trusts the rows that have the least noise.
    """

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "reads the image off a fully connected first layer's gradient"
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
        found = find_input_layer(observation.model, observation.knowledge.shape)
        assert not isinstance(found, str)
        return {found.weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge = observation.knowledge
        found = find_input_layer(observation.model, knowledge.shape)
        assert not isinstance(found, str)
        gradient = {k: v.double() for k, v in observation.update.gradient().items()}
        weight = gradient[found.weight].flatten(1)
        bias = gradient.get(found.bias)
        bounds = known_bounds(observation)
        second = SecondLayer.of(observation, found, gradient, bounds)
        noise = white_noise(observation, found.weight)
        images, explained = [], []
        for alike in group_rows(weight, knowledge.batch_size):
            rows, trust = noise.weigh(alike)
            if not len(rows):
                continue  # every row has noise where others have none
            part = weight[rows] * trust[:, None]
            left, right = rank_one(part, select_bounds(bounds.get(found.weight), rows, trust))
            image = found.assemble(right[None], knowledge.shape)
            if noise.sigma > 0:
                image = wiener(image, (noise.sigma / float(left.norm())) ** 2)
            if not image.any():
                continue  # nothing stands above the noise
            if bias is not None and bias[rows].norm() > 0:
                scale = float((left / trust @ bias[rows]) / bias[rows].square().sum())
            else:
                scale = find_scale(image, rows, second, knowledge)
            images.append(scale * image)
            explained.append(float((left.norm() / part.norm()).clamp(max=1.0)) ** 2)
        if not images:
            return Reconstruction(diagnostics={"images": 0})
        stack = torch.stack(images)
        confidence = (
            torch.tensor(explained, dtype=torch.double) * share_in_range(stack, knowledge).cpu()
        )
        return Reconstruction(
            images=stack, confidence=confidence, diagnostics={"images": len(images)}
        )
