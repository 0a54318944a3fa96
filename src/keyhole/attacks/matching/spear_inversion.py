"""IG guided by the inputs of a fully connected layer, which SPEAR reads for every single image."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic import LabelInference
from keyhole.attacks.analytic.relu_layers import find_relu_layers
from keyhole.attacks.analytic.spear import recognise_labels, separate
from keyhole.attacks.matching.attack import Weight
from keyhole.attacks.matching.inverting_gradients import InvertingGradients
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.priors import KnownInputs
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.models.anatomy import Shape
from keyhole.threat import Observation

SEARCH_ROUNDS = 40
"""Rounds of SPEAR's search for directions."""


@dataclass(frozen=True, kw_only=True)
class SpearInversion(InvertingGradients):
    """IG on a batch, with each image drawn to its own features.

    SPEAR reads the inputs f_i of the first fully connected layer that has a bias and a ReLU behind
    it, image by image, and whose label each is. The search adds ``mean_i |phi(x_i) - f_i|^2 /
    |f_i|^2``. Where SPEAR does not reach, it is IG.

    Args:
        guidance: Weight of the features' distance.
    """

    guidance: Weight = 1.0

    name: ClassVar[str] = "spear-ig"
    summary: ClassVar[str] = "IG guided by the features that SPEAR reads for each image"
    paper: ClassVar[str] = "Keyhole; after Dimitrov et al. 2024 (SPEAR), Kariyappa et al. 2023"
    needs: ClassVar[str] = "a fully connected layer with a bias, then a ReLU; one local step"

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        if find_guiding_layer(observation) is None:
            reasons.append(
                "it needs a fully connected layer with a bias and a ReLU straight after it"
            )
        if observation.update.steps > 1:
            reasons.append("features change from step to step: it needs clients of one local step")
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        layer = find_guiding_layer(observation)
        return {f"{layer}.weight", f"{layer}.bias"}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        parts = super().build_parts(problem)
        model = copy.deepcopy(problem.model).eval()
        layer = find_layer_with_bias(model, problem.knowledge.shape)
        if layer is None:  # the attack does not apply, as `incompatibilities` says
            return parts
        guide = KnownInputs(self.guidance, layer, model)
        return replace(parts, priors=(*parts.priors, guide))

    def extra_inputs(self, observation: Observation) -> dict[str, Tensor]:
        layer = find_guiding_layer(observation)
        assert layer is not None
        width = observation.model.get_parameter(f"{layer}.weight").shape[1]
        batch = observation.knowledge.batch_size
        found = separate(observation, layer, "minimised", SEARCH_ROUNDS)
        if found.parts is None or len(found.parts.inputs) != batch:
            return {"inputs": torch.zeros(batch, width), "guided": torch.zeros(batch)}
        wanted = observation.knowledge.labels
        if self.labels != "given" or wanted is None:
            wanted = LabelInference().reconstruct(observation).labels
        assert wanted is not None
        order = order_by_labels(
            recognise_labels(observation, layer, found.parts).tolist(), wanted.tolist()
        )
        return {"inputs": found.parts.inputs[order], "guided": torch.ones(batch)}


def find_guiding_layer(observation: Observation) -> str | None:
    """The first fully connected layer with a bias and a ReLU behind it; None: there is none."""
    return find_layer_with_bias(observation.model, observation.knowledge.shape)


def find_layer_with_bias(model: nn.Module, shape: Shape) -> str | None:
    """The same for a model and the shape of its images."""
    names = {name for name, _ in model.named_parameters()}
    return next((n for n in find_relu_layers(model, shape) if f"{n}.bias" in names), None)


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
