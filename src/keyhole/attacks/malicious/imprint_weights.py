"""An imprint by weights alone: the network's own layers carry the images and sort them."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.noise import known_white_noise
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.malicious.carried_image import (
    CarriedImage,
    find_carried_image,
    wire_convolutions,
)
from keyhole.attacks.malicious.imprint import read_images
from keyhole.attacks.malicious.ladder import spread_quantiles
from keyhole.defenses.capabilities import Capability
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator
from keyhole.threat import Observation, PublicKnowledge


@dataclass(frozen=True, kw_only=True)
class ImprintWeights(Attack):
    """Turns the first fully connected layer into threshold rows, and convolutions into wires.

    The layer's width is the number of bins. The columns of the layer after it become equal, so that
    the loss has the same slope for every row that an image fires.
    """

    name: ClassVar[str] = "imprint-weights"
    summary: ClassVar[str] = "imprint without a new layer: only weights are changed"
    paper: ClassVar[str] = "Fowl et al. 2022 (Robbing the Fed); Boenisch et al. 2023"
    needs: ClassVar[str] = "a fully connected layer and a ReLU, before it wide convolutions at most"
    recovers_inputs: ClassVar[bool] = True
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})
    altered_model: ClassVar[str | None] = "threshold rows in the first fully connected layer"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        if public is None or not len(public.images):
            raise DoesNotFit(f"attack {self.name!r} needs public images to place thresholds by")
        changed = copy.deepcopy(model)
        wire_convolutions(changed, public.shape, float(public.images.min()))
        carried = find_carried_image(changed, public.shape)
        if carried.layer.bias is None:
            raise DoesNotFit(f"{carried.name!r} has no bias to set thresholds with")
        with torch.no_grad():
            lay_ladder(carried, public)
        return changed

    def incompatibilities(self, observation: Observation) -> list[str]:
        try:
            layer = find_carried_image(observation.model, observation.knowledge.shape).layer
        except DoesNotFit as error:
            return [str(error)]
        rows = layer.weight
        is_ladder = torch.allclose(rows, rows[:1].expand_as(rows)) and layer.bias is not None
        return [] if is_ladder else ["the server did not turn its first layer into threshold rows"]

    def reads(self, observation: Observation) -> set[str]:
        name = find_carried_image(observation.model, observation.knowledge.shape).name
        return {f"{name}.weight", f"{name}.bias"}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge, gradient = observation.knowledge, observation.update.gradient()
        carried = find_carried_image(observation.model, knowledge.shape)
        found = read_images(
            observation,
            gradient[f"{carried.name}.weight"][:, carried.pixels],
            gradient[f"{carried.name}.bias"],
            cumulative=True,
            most=knowledge.batch_size,
            noise=known_white_noise(observation, f"{carried.name}.weight").sigma,
        )
        if not len(found):
            return Reconstruction(diagnostics={"images": 0})
        images = found - carried.offset.to(found).view(knowledge.shape)
        return Reconstruction(
            images=images,
            confidence=share_in_range(images, knowledge).cpu(),
            diagnostics={"images": len(images)},
        )


def lay_ladder(carried: CarriedImage, public: PublicKnowledge) -> None:
    """Sets the rows of the layer to one functional, the mean of all pixels, and its quantiles."""
    layer, follower, count = carried.layer, carried.follower, len(carried.pixels)
    layer.weight.zero_()
    layer.weight[:, carried.pixels] = 1 / count
    values = public.images.flatten(1).to(layer.weight).mean(1) + carried.offset.mean()
    shares = (torch.arange(layer.out_features) + 0.01) / layer.out_features
    layer.bias.copy_(-spread_quantiles(values, shares))
    column = torch.rand(follower.out_features, 1, generator=generator(0, "imprint weights")) + 0.5
    follower.weight.copy_(column.to(follower.weight) / layer.out_features)
