"""IG guided by the inputs of a fully connected layer, which are known for every single image."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.features import (
    Features,
    Source,
    decode_features,
    find_source_layer,
    mixes_batches,
    read_features,
    used_once,
)
from keyhole.attacks.matching.attack import Weight
from keyhole.attacks.matching.engine import START
from keyhole.attacks.matching.inverting_gradients import InvertingGradients
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.priors import KnownInputs
from keyhole.attacks.matching.parts.unknowns import Pixels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.victim_statistics import read_moments
from keyhole.seeds import generator
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class GuidedInversion(InvertingGradients):
    """IG on a batch, with each image drawn to its own features.

    The search adds ``mean_i |phi(x_i) - f_i|^2 / |f_i|^2``, where f_i is what a layer's gradient
    tells of image i. Where it tells nothing, it is IG. Where batch norm in train mode makes
    features depend on the whole batch, they give the start alone, by the statistics uploaded.

    Args:
        guidance: Weight of the features' distance.
        start: First guess: images ``decoded`` from the features, the same in every trial, or
            ``random`` ones.
    """

    guidance: Weight = 1.0
    start: Literal["decoded", "random"] = "decoded"

    source: ClassVar[Source]

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        if find_source_layer(observation.model, observation.knowledge.shape, self.source) is None:
            reasons.append(
                "it needs a fully connected layer with a bias and a ReLU straight after it"
                if self.source == "relu"
                else "it needs a linear last layer, whose output is the logits"
            )
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        layer = find_source_layer(observation.model, observation.knowledge.shape, self.source)
        return {f"{layer}.weight"}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        parts = super().build_parts(problem)
        model = copy.deepcopy(problem.model).eval()
        layer = find_source_layer(model, problem.knowledge.shape, self.source)
        if layer is None:  # the attack does not apply, as `incompatibilities` says
            return parts
        guide = KnownInputs(self.guidance, layer, model)
        return replace(parts, priors=(*parts.priors, guide))

    def extra_inputs(self, observation: Observation) -> dict[str, Tensor]:
        layer = find_source_layer(observation.model, observation.knowledge.shape, self.source)
        assert layer is not None
        labels = self.read_labels(observation)
        features = read_features(observation, self.source, labels)
        batch, mixed = observation.knowledge.batch_size, mixes_batches(observation)
        guided = features is not None and not mixed
        if features is None:
            width = observation.model.get_parameter(f"{layer}.weight").shape[1]
            features = Features(layer, torch.zeros(batch, width), labels)
            model = None
        else:
            model = hold_statistics(observation) if mixed else observation.model
        known = {"inputs": features.inputs, "guided": torch.full((batch,), float(guided))}
        if self.start == "decoded":
            known[START + Pixels.name] = self.first_guess(observation, features, model)
        return known

    def first_guess(
        self, observation: Observation, features: Features, model: nn.Module | None
    ) -> Tensor:
        """The images at the start, ``[B, C, H, W]``: random ones where none can be decoded.

        Args:
            observation: What the server saw of one client.
            features: What was read of each image.
            model: The model by which features are decoded; None: they cannot be.
        """
        knowledge = observation.knowledge
        if model is not None:
            return decode_features(features, model, knowledge)[0]
        draw = generator(self.seed, "attack", observation.client, 0, 0)
        return torch.randn(knowledge.batch_size, *knowledge.shape, generator=draw)


def hold_statistics(observation: Observation) -> nn.Module | None:
    """The model with the client's own batch statistics as running ones; None: they are unknown.

    In evaluation mode it computes what the client's model computed in train mode.

    Args:
        observation: What the server saw of one client.
    """
    problem = MatchingProblem.from_observation(observation)
    moments = read_moments(observation, problem) if problem.norms else None
    if moments is None or problem.steps > 1:
        return None
    model = copy.deepcopy(observation.model)
    buffers = dict(model.named_buffers())
    for layer, known in zip(problem.norms, moments, strict=True):
        buffers[f"{layer.name}.running_mean"].copy_(known.mean[0])
        buffers[f"{layer.name}.running_var"].copy_(known.var[0])
    return model


@dataclass(frozen=True, kw_only=True)
class SpearInversion(GuidedInversion):
    """IG on a batch, with each image drawn to the features that SPEAR reads.

    SPEAR reads the inputs of the first fully connected layer that has a bias and a ReLU behind
    it, image by image, and whose label each is.
    """

    source: ClassVar[Source] = "relu"
    name: ClassVar[str] = "spear-ig"
    summary: ClassVar[str] = "IG guided by the features that SPEAR reads for each image"
    paper: ClassVar[str] = "Keyhole; after Dimitrov et al. 2024 (SPEAR), Kariyappa et al. 2023"
    needs: ClassVar[str] = "a layer with a bias, then a ReLU; each image in one local step"

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        if not used_once(observation):
            reasons.append(
                "features change from step to step: it needs clients that use each image once"
            )
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        layer = find_source_layer(observation.model, observation.knowledge.shape, self.source)
        return {f"{layer}.weight", f"{layer}.bias"}


@dataclass(frozen=True, kw_only=True)
class HeadInversion(GuidedInversion):
    """IG on a batch, with each image drawn to the last layer's input that the gradient tells.

    It tells them for batches smaller than the number of classes, whatever the network.
    """

    source: ClassVar[Source] = "head"
    name: ClassVar[str] = "head-ig"
    summary: ClassVar[str] = "IG guided by the last layer's input of each image of a batch"
    paper: ClassVar[str] = "Keyhole; after Ma et al. 2023 (iLRG), Kariyappa et al. 2023"
    needs: ClassVar[str] = "a linear last layer; fewer images than classes; one local step"

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        if observation.update.steps > 1:
            reasons.append("features change from step to step: it needs clients of one local step")
        if observation.knowledge.batch_size >= observation.knowledge.classes:
            reasons.append("it needs fewer images than classes")
        return reasons
