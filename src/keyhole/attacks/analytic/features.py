"""Features of every single image of a batch, and images decoded from them.

A fully connected layer's gradient tells the inputs of each image of a batch: behind a ReLU by
SPEAR, and at the last layer because the inputs determine the softmax. Behind convolutions these
inputs are features, from which a linear decoder makes blurred images.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.decoding import (
    Decoder,
    Measurement,
    draw_errors,
    fit_decoder,
    refine,
)
from keyhole.attacks.analytic.head_inputs import read_head_equations, read_head_inputs
from keyhole.attacks.analytic.head_labels import solve_with_labels
from keyhole.attacks.analytic.labels import LabelInference
from keyhole.attacks.analytic.relu_layers import find_relu_layers
from keyhole.attacks.analytic.spear import recognise_labels, separate
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.data.image_set import normalise
from keyhole.federation.training import cut_batches
from keyhole.models import has_batch_norm
from keyhole.models.anatomy import Shape, cache_per_model, find_logits_layer
from keyhole.threat import Knowledge, Observation

SEARCH_ROUNDS = 40
"""Rounds of SPEAR's search for directions."""

Source = Literal["relu", "head"]
"""A layer with a ReLU behind it, or the last layer."""


@plain_dataclass(frozen=True)
class Features:
    """What a layer's gradient tells of each image.

    Args:
        layer: The layer's name.
        inputs: Its input of each image, ``[B, F]``.
        labels: The label of each image, ``[B]``.
    """

    layer: str
    inputs: Tensor
    labels: Tensor


def find_source_layer(model: nn.Module, shape: Shape, source: Source) -> str | None:
    """The name of the layer that is read; None: the model has no such layer.

    Args:
        model: The model.
        shape: The shape of its images.
        source: Which layer.
    """
    if source == "head":
        return find_logits_layer(model, shape)
    names = {name for name, _ in model.named_parameters()}
    return next((n for n in find_relu_layers(model, shape) if f"{n}.bias" in names), None)


def used_once(observation: Observation) -> bool:
    """Whether each image was in one local step at most, so that its input did not change.

    Args:
        observation: What the server saw of one client.
    """
    update, images = observation.update, observation.knowledge.batch_size
    return update.steps <= len(cut_batches(images, min(update.batch_size, images)))


def read_features(
    observation: Observation, source: Source, labels: Tensor, *, guessed: bool = False
) -> Features | None:
    """The features of each image, in the order of the labels; None: they cannot be told apart.

    Args:
        observation: What the server saw of one client.
        source: The layer to read.
        labels: The client's labels, ``[B]``, as far as the attacker knows them.
        guessed: Whether the labels may be wrong; then the last layer's equations correct them.
    """
    layer = find_source_layer(observation.model, observation.knowledge.shape, source)
    if layer is None or f"{layer}.weight" not in observation.update.change:
        return None
    if source == "head":
        return _read_head(observation, layer, labels, guessed=guessed)
    separation = separate(observation, layer, "minimised", SEARCH_ROUNDS)
    parts = separation.parts
    if parts is None or len(parts.inputs) != len(labels):
        return None
    recognised = recognise_labels(observation, layer, parts)
    order = order_by_labels(recognised.tolist(), labels.tolist())
    return Features(layer, parts.inputs[order], labels)


def _read_head(
    observation: Observation, layer: str, labels: Tensor, *, guessed: bool
) -> Features | None:
    if observation.update.steps > 1:
        return None
    if guessed and (equations := read_head_equations(observation, labels)) is not None:
        solved = solve_with_labels(equations)
        return None if solved is None else Features(layer, solved[0].inputs, solved[1])
    found = read_head_inputs(observation, labels)
    return None if found is None else Features(layer, found.inputs, labels)


def order_by_labels(found: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Which image found goes where, so that labels agree; those that fit nowhere fill the rest.

    >>> order_by_labels([4, 2, 2], [2, 4, 2])
    [1, 0, 2]
    """
    free = list(range(len(found)))
    order: list[int | None] = []
    for label in wanted:
        match = next((i for i in free if found[i] == label), None)
        order.append(match)
        if match is not None:
            free.remove(match)
    return [free.pop(0) if place is None else place for place in order]


@plain_dataclass(frozen=True)
class FittedDecoder:
    """A layer's decoder, fitted once.

    Args:
        measurement: How images become the layer's inputs.
        decoder: The decoder.
    """

    measurement: Measurement
    decoder: Decoder

    @cached_property
    def errors(self) -> Tensor:
        """What it leaves out of random fields."""
        return draw_errors(self.decoder, self.measurement)


@cache_per_model
def fitted_decoders(model: nn.Module, shape: Shape) -> dict[tuple[object, ...], FittedDecoder]:
    """The decoders that were fitted for a model, by layer, mean and deviation of pixels."""
    return {}


def find_decoder(model: nn.Module, layer: str, knowledge: Knowledge) -> FittedDecoder:
    """The decoder of a layer of a model in evaluation mode, fitted once.

    Args:
        model: The model.
        layer: The layer's name.
        knowledge: The shape and the normalisation of images.
    """
    mean, std = tuple(knowledge.mean), tuple(knowledge.std)
    fitted, key = fitted_decoders(model, knowledge.shape), (layer, mean, std)
    if key not in fitted:
        still = copy.deepcopy(model).eval()
        measurement = Measurement(still, layer, knowledge.shape, mean, std)
        fitted[key] = FittedDecoder(measurement, fit_decoder(measurement))
    return fitted[key]


def decode_features(
    features: Features, model: nn.Module, knowledge: Knowledge, rounds: int = 0
) -> tuple[Tensor, Decoder]:
    """The images as model inputs, ``[B, C, H, W]``, and the decoder that made them.

    Args:
        features: What was read of each image.
        model: The model; in evaluation mode it computes the features as the client did.
        knowledge: The shape and the normalisation of images.
        rounds: How often images are decoded once more, near what was found.
    """
    fitted = find_decoder(model, features.layer, knowledge)
    height, width = knowledge.shape[-2:]
    images = fitted.decoder(features.inputs, (height, width))
    for _ in range(rounds):
        images = refine(images, features.inputs, fitted.errors, fitted.measurement)
    return normalise(images, knowledge.mean, knowledge.std), fitted.decoder


def mixes_batches(observation: Observation) -> bool:
    """Whether an image's features depend on the other images of its batch.

    Args:
        observation: What the server saw of one client.
    """
    return observation.knowledge.client_mode == "train" and has_batch_norm(observation.model)


@dataclass(frozen=True, kw_only=True)
class FeatureDecoding(Attack):
    """Reads the features of every image of a batch, and decodes them by linear regression.

    The first layer with a bias and a ReLU behind it is read by SPEAR. Without one, or where
    SPEAR does not reach, the last layer is read, for batches smaller than the number of classes.

    Args:
        rounds: How often each image is decoded once more, by regression near what was found.
    """

    rounds: Annotated[int, Field(ge=0)] = 2

    name: ClassVar[str] = "decode"
    summary: ClassVar[str] = "decodes what fully connected layers tell of each image of a batch"
    paper: ClassVar[str] = "Keyhole; after Dimitrov et al. 2024 (SPEAR), Ma et al. 2023 (iLRG)"
    needs: ClassVar[str] = "a linear last layer; each image in one local step"
    exact: ClassVar[bool] = False

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = LabelInference().incompatibilities(observation)
        if mixes_batches(observation):
            reasons.append("features depend on the batch: it needs clients without batch norm")
        if not used_once(observation):
            reasons.append(
                "features change from step to step: it needs clients that use each image once"
            )
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        return LabelInference().reads(observation)

    def reconstruct(self, observation: Observation) -> Reconstruction:
        labels = LabelInference().reconstruct(observation).labels
        assert labels is not None
        sources: tuple[Source, ...] = ("relu", "head")
        for source in sources:
            features = read_features(observation, source, labels, guessed=True)
            if features is not None:
                return self.show(observation, features)
        return Reconstruction(
            labels=labels,
            diagnostics={"images": 0},
            notes=("the images could not be told apart by any fully connected layer",),
        )

    def show(self, observation: Observation, features: Features) -> Reconstruction:
        """The images of features, and how much of random images their decoder explains.

        Args:
            observation: What the server saw of one client.
            features: What was read of each image.
        """
        images, decoder = decode_features(
            features, observation.model, observation.knowledge, self.rounds
        )
        like = next(observation.model.parameters())
        return Reconstruction(
            images=images.to(like),
            labels=features.labels,
            confidence=torch.full((len(images),), 0.5 * min(1.0, decoder.explained)),
            diagnostics={"images": len(images), "explained": decoder.explained},
            notes=(f"decoded from the inputs of {features.layer!r}",),
        )
