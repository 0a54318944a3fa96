"""SPEAR: whole batches from the gradient of a fully connected layer with a ReLU behind it.

The gradient of that layer's weight is a sum over images of (gradient at the output) times (input),
and a unit that is off for an image adds nothing. :mod:`.sparse_directions` finds the images'
directions by these zeros, :mod:`.disaggregation` solves for the images, and the bias' gradient
gives their brightness. One missing direction spoils all images, so it is all or none.

Local steps on the same images change the gradients at the output, never the first layer's input:
sums over steps are of the same form, with or without momentum. Weight decay and Adam are not.
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic.disaggregation import (
    Parts,
    factor,
    read_gradient,
    rectified_share,
    take_apart,
    turn,
)
from keyhole.attacks.analytic.labels import LabelInference
from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.relu_layers import find_relu_layers, gradients_by_class
from keyhole.attacks.analytic.scale import largest_scale
from keyhole.attacks.analytic.sparse_directions import LowRank, Search, find_directions
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.models.anatomy import InputLayer, find_input_layer
from keyhole.seeds import generator
from keyhole.threat import Observation

AGREES = 0.97
"""The least share of units by which an image counts as found."""


@plain_dataclass(frozen=True)
class Separation:
    """What :func:`separate` made of a layer's gradient.

    Args:
        parts: The images' inputs and gradients at the layer; None: they could not be told apart.
        consistency: For each image, the share of units that are off as the model has it.
        diagnostics: How many images there are by the gradient's rank, and how many were found.
    """

    parts: Parts | None
    consistency: Tensor
    diagnostics: dict[str, float]


@plain_dataclass(frozen=True)
class KnownLayer:
    """A layer's weights and gradients as the server has them, in float64 on the CPU."""

    weight: Tensor
    bias: Tensor | None
    weight_gradient: Tensor
    bias_gradient: Tensor | None

    @classmethod
    def read(cls, observation: Observation, layer: str) -> KnownLayer:
        """Reads them; the bias counts only if the update has it."""
        names, update = (f"{layer}.weight", f"{layer}.bias"), observation.update
        weight, bias = (
            observation.model.get_parameter(name).detach().cpu().double()
            if name in update.change
            else None
            for name in names
        )
        assert weight is not None
        gradient = read_gradient(update, names[0])
        return cls(
            weight, bias, gradient, None if bias is None else read_gradient(update, names[1])
        )

    def take_apart(self, directions: Tensor, factors: LowRank) -> Parts:
        """The images of a complete set of directions; without a bias, up to their lengths."""
        parts = take_apart(directions, factors, self.weight_gradient, self.bias_gradient)
        return turn(parts, self.weight) if self.bias is None else parts

    def consistency(self, parts: Parts) -> Tensor:
        """For each image, the share of units that do as behind a ReLU."""
        return rectified_share(parts, self.weight, self.bias)


def separate(observation: Observation, layer: str, search: Search, rounds: int) -> Separation:
    """The input of each image at a fully connected layer with a ReLU behind it.

    Args:
        observation: What the server saw of one client.
        layer: The layer's name.
        search: How directions are proposed.
        rounds: The most rounds of proposals.
    """
    update, none = observation.update, torch.zeros(0, dtype=torch.double)
    factors = factor(update, f"{layer}.weight", observation.knowledge.batch_size)
    if factors is None:
        return Separation(None, none, {"images": 0, "rank": 0})
    rank = len(factors.strengths)
    if rank > 1 and not factors.readable:
        return Separation(None, none, {"images": 0, "rank": rank})
    known = KnownLayer.read(observation, layer)
    draw = generator(0, "spear", observation.client)
    directions, used = find_directions(
        factors,
        draw,
        search,
        rounds,
        lambda complete: known.consistency(known.take_apart(complete, factors)) > AGREES,
    )
    diagnostics = {"rank": rank, "directions": len(directions), "rounds": used}
    if len(directions) < rank:
        return Separation(None, none, {"images": 0, **diagnostics})
    parts = known.take_apart(directions, factors)
    return Separation(parts, known.consistency(parts), {"images": rank, **diagnostics})


def recognise_labels(observation: Observation, layer: str, parts: Parts) -> Tensor:
    """The class of each image: the one whose gradient at the layer points as the one found.

    Args:
        observation: What the server saw of one client.
        layer: The layer's name.
        parts: What was read there.
    """
    shape = observation.knowledge.shape
    expected = gradients_by_class(observation.model, layer, parts.inputs, shape).cpu().double()
    return torch.cosine_similarity(expected, parts.gradients[None], dim=-1).nan_to_num().argmax(0)


@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """Reads all images of a batch from a fully connected first layer with a ReLU behind it.

    Args:
        search: How directions are proposed: ``minimised`` improves random ones, ``sampled`` takes
            null spaces of random rows, as the paper does.
        rounds: The most rounds of proposals, 200 directions or 10,000 null spaces each.
    """

    search: Search = "minimised"
    rounds: Annotated[int, Field(ge=1)] = 40

    name: ClassVar[str] = "spear"
    summary: ClassVar[str] = "takes a batch apart by the zeros that a ReLU leaves in its gradient"
    paper: ClassVar[str] = "Dimitrov et al. 2024 (SPEAR)"
    needs: ClassVar[str] = "a first layer fully connected to the pixels, then a ReLU"
    recovers_inputs: ClassVar[bool] = True
    published: ClassVar[dict[str, Any]] = {"search": "sampled", "rounds": 10_000}

    def incompatibilities(self, observation: Observation) -> list[str]:
        found = find_input_layer(observation.model, observation.knowledge.shape)
        if isinstance(found, str) or found.tokens != 1:
            why = found if isinstance(found, str) else f"{found.layer!r} sees patches one by one"
            return [f"it needs a first layer fully connected to the pixels, but {why}"]
        if found.layer not in find_relu_layers(observation.model, observation.knowledge.shape):
            return [f"it needs a ReLU straight after its first layer {found.layer!r}"]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return {first_layer(observation).weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        first = first_layer(observation)
        found = separate(observation, first.layer, self.search, self.rounds)
        if found.parts is None:
            labels = count_labels(observation)
            return Reconstruction(
                labels=labels, diagnostics=found.diagnostics, notes=why_none(found)
            )
        return show_parts(observation, first, found)


def first_layer(observation: Observation) -> InputLayer:
    """The first layer of a model to which the attack applies."""
    found = find_input_layer(observation.model, observation.knowledge.shape)
    assert not isinstance(found, str)
    return found


def show_parts(observation: Observation, first: InputLayer, found: Separation) -> Reconstruction:
    """Images, labels and confidence of what was read at the first layer."""
    knowledge, parts = observation.knowledge, found.parts
    assert parts is not None
    images = first.assemble(parts.inputs[:, None], knowledge.shape)
    notes: tuple[str, ...] = ()
    if first.bias not in observation.update.change:
        images = torch.stack([brighten(image, observation) for image in images])
        notes = ("the layer has no bias: each image is as bright as pixels can be",)
    labels = recognise_labels(observation, first.layer, parts)
    return Reconstruction(
        images=images.to(next(observation.model.parameters()).device),
        labels=labels if len(labels) == knowledge.batch_size else count_labels(observation),
        confidence=(found.consistency * share_in_range(images, knowledge)).clamp(0, 1),
        diagnostics=found.diagnostics,
        notes=notes,
    )


def count_labels(observation: Observation) -> Tensor | None:
    """The labels by the last layer's gradient, in no order; None: the model has no such layer."""
    inference = LabelInference()
    fits = not inference.incompatibilities(observation)
    fits = fits and inference.reads(observation) <= set(observation.update.change)
    return inference.reconstruct(observation).labels if fits else None


def brighten(direction: Tensor, observation: Observation) -> Tensor:
    """The image of the greatest contrast that has this direction."""
    return largest_scale(direction, observation.knowledge) * direction


def why_none(found: Separation) -> tuple[str, ...]:
    """Why no image was read, in one line."""
    rank, directions = int(found.diagnostics["rank"]), found.diagnostics.get("directions")
    if not rank:
        return ("the first layer's gradient is zero",)
    if directions is None:
        return ("the gradient is not precise enough to tell zeros from other entries",)
    return (f"{int(directions)} of {rank} directions were found; images need all of them",)
