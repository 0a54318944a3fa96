"""Inverting Gradients (IG) and its variants: for dropout masks, and at the uploaded model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer
from keyhole.attacks.matching.attack import Count, MaskSource, Matching, Positive, Weight
from keyhole.attacks.matching.gradients.gradient_weights import WeightsByName, keep_largest
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.objectives import Cosine, NormsAndRightAngles, Objective
from keyhole.attacks.matching.parts.optimisers import Adam, Plateau
from keyhole.attacks.matching.parts.priors import LastFeatures, Prior, TotalVariation
from keyhole.attacks.matching.parts.unknowns import Pixels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.readable_masks import find_readable_sites
from keyhole.defenses.base import Defense
from keyhole.defenses.capabilities import BlockShuffle, Capability
from keyhole.models.anatomy import find_logits_layer
from keyhole.models.channel_importance import apply_change
from keyhole.threat import Observation

FULL_FEATURE_WEIGHT = 45.0
"""Weight of the last layer's inputs if all filters are noisy, and inputs are as many as pixels.

It was chosen on eight images of CIFAR-10's training set, together with the square of the share.
"""


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(Matching):
    """Cosine distance with total variation, by Adam on the sign of the pixels' gradient.

    An attacker who knows where a defense adds noise gives the noisy values less weight and
    averages several updates of the same images (see :mod:`keyhole.attacks.noise`). One who knows
    bounds of values that are not shown searches between them
    (:mod:`keyhole.attacks.matching.parts.bounded_objectives`).

    Args:
        tv: Weight of the images' total variation.
        patience: Iterations without progress after which the learning rate falls tenfold.
        drops: The number of such falls after which a victim is done; None: no limit.
        give_up: Iterations without a new least loss after which a victim is done; None: no limit.
        stop_below: A victim whose loss falls below this is done; None: no limit.
        features: Weight of the last layer's inputs, which the update of one image determines
            exactly if that layer has no noise. None: 0, or if only other layers are known to have
            noise, a weight that grows with the share of their rows that do.
        largest: The share of the update's values that is matched, the largest ones (partial
            matching, as in FedLeak); 1: all.
    """

    iterations: Count = 3000
    tv: Weight = 1e-5
    patience: Count = 100
    drops: Count | None = 4
    give_up: Count | None = None
    stop_below: Positive | None = None
    features: Weight | None = None
    largest: Annotated[float, Field(gt=0, le=1)] = 1.0

    name: ClassVar[str] = "ig"
    summary: ClassVar[str] = "matches gradients' direction, smooth images preferred"
    paper: ClassVar[str] = "Geiping et al. 2020 (IG), as run in Scheliga et al. 2023"
    uses: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.IMAGE_CHANGE,
            Capability.NOISE,
            Capability.VALUES,
            Capability.MISLEADING,
            Capability.NORMS,
            Capability.BATCH_CHANGE,
        }
    )
    published: ClassVar[dict[str, Any]] = {
        "iterations": 20_000,
        "patience": 800,
        "drops": None,
        "give_up": 4000,
        "stop_below": 1e-5,
    }

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        return MatchingParts(
            objective=choose_objective(problem),
            images=Pixels(),
            optimiser=Adam(lr=self.lr, signed=(Pixels.name,)),
            schedule=Plateau(patience=self.patience, drops=self.drops, give_up=self.give_up),
            priors=self.build_priors(problem),
            stop_below=self.stop_below,
        )

    def gradient_weights(self, observation: Observation) -> WeightsByName:
        weights = super().gradient_weights(observation)
        if self.largest == 1:
            return weights
        parameters = {name for name, _ in observation.model.named_parameters()}
        target = self.target_gradient(observation)
        return keep_largest(
            weights, {n: g for n, g in target.items() if n in parameters}, self.largest
        )

    def build_priors(self, problem: MatchingProblem) -> tuple[Prior, ...]:
        """Returns total variation and, if they count, the last layer's inputs.

        Args:
            problem: The model and what its victims have in common.
        """
        smoothness = TotalVariation(self.tv, block=find_block_size(problem))
        weight = choose_feature_weight(problem) if self.features is None else self.features
        layer = find_readable_last_layer(problem) if weight > 0 else None
        return (smoothness,) if layer is None else (smoothness, LastFeatures(weight, layer))


def choose_objective(problem: MatchingProblem) -> Objective:
    """The cosine distance, unless a known defense leaves nothing of a gradient but its norms."""
    replaced = problem.knowledge.defense_with(Capability.NORMS) is not None
    return NormsAndRightAngles() if replaced else Cosine()


def choose_feature_weight(problem: MatchingProblem) -> float:
    """The weight of the last layer's inputs against a defense that adds noise only before it.

    It grows with the share of rows that have noise. It is smaller if the layer has fewer inputs
    than the image has values, because they determine less of the image then.
    """
    layer = find_readable_last_layer(problem) if problem.noise else None
    if layer is None or {f"{layer}.weight", f"{layer}.bias"} & set(problem.noise):
        return 0.0
    inputs = problem.model.get_parameter(f"{layer}.weight").shape[1]
    inputs_per_value = min(1.0, inputs / math.prod(problem.knowledge.shape))
    noisy_share = max(noise.share for noise in problem.noise.values())
    return FULL_FEATURE_WEIGHT * inputs_per_value * noisy_share**2


def find_readable_last_layer(problem: MatchingProblem) -> str | None:
    """The last layer if an update determines its inputs: that of one image, in one step."""
    if problem.knowledge.batch_size > 1 or problem.steps > 1:
        return None
    layer = find_logits_layer(problem.model, problem.knowledge.shape)
    parameters = {name for name, _ in problem.model.named_parameters()}
    shown = parameters if problem.reported is None else parameters & problem.reported
    return layer if {f"{layer}.weight", f"{layer}.bias"} <= shown else None


def find_block_size(problem: MatchingProblem) -> int | None:
    """The side of the smallest blocks that a known defense shuffles; None: it shuffles none."""
    _, height, width = problem.knowledge.shape
    defense = problem.knowledge.defense_with(Capability.IMAGE_CHANGE)
    change = None if defense is None else defense.image_change()
    return change.finest(height, width) if isinstance(change, BlockShuffle) else None


@dataclass(frozen=True, kw_only=True)
class Wiig(InvertingGradients):
    """Well-informed IG, which is given the client's dropout masks and nothing else in addition."""

    masks: MaskSource = "given"

    name: ClassVar[str] = "wiig"
    summary: ClassVar[str] = "IG with the client's own dropout masks"
    paper: ClassVar[str] = "Scheliga et al. 2023 (WIIG)"


@dataclass(frozen=True, kw_only=True)
class DropoutInversion(InvertingGradients):
    """IG that searches for the dropout masks together with the image."""

    masks: MaskSource = "sought"

    name: ClassVar[str] = "dia"
    summary: ClassVar[str] = "IG that seeks the client's dropout masks with the image"
    paper: ClassVar[str] = "Scheliga et al. 2023 (DIA)"
    uses: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.IMAGE_CHANGE, Capability.NOISE, Capability.VALUES, Capability.HIDDEN_MASKS}
    )


@dataclass(frozen=True, kw_only=True)
class DiaRead(DropoutInversion):
    """DIA that reads the masks from the update where it shows them, and searches for the others."""

    masks: MaskSource = "read"

    name: ClassVar[str] = "dia-read"
    summary: ClassVar[str] = "DIA with the masks that the update shows read from it"
    paper: ClassVar[str] = "Keyhole; after Scheliga et al. 2023 (DIA)"
    needs: ClassVar[str] = "one image per client; dropout straight before a linear layer"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.HIDDEN_MASKS, Capability.VALUES})
    only_adaptive: ClassVar[bool] = True

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        if not find_readable_sites(MatchingProblem.from_observation(observation)):
            reasons.append(
                "no mask can be read from the update: it needs one image per client and a dropout "
                "whose output goes straight into a linear layer"
            )
        return reasons

    def matching_capabilities(self, defense: Defense) -> frozenset[Capability]:
        usable = super().matching_capabilities(defense)
        return usable if Capability.HIDDEN_MASKS in usable else frozenset()


@dataclass(frozen=True, kw_only=True)
class UploadedModelInversion(InvertingGradients):
    """IG that compares gradients at the uploaded model, noise included, not at the one sent out.

    A server that has both models has no reason to do so, because the client took its gradients at
    the model that was sent out. The authors' code does it, and this attack allows comparison with
    their tables. It makes no use of known noise. Each client has its own model, so that the clients
    are attacked one after the other.
    """

    name: ClassVar[str] = "ig-uploaded"
    summary: ClassVar[str] = "IG at the model that the client uploaded"
    paper: ClassVar[str] = "Geiping et al. 2020 (IG), as run in Wang and Su 2025 (TIP)"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE})
    published: ClassVar[dict[str, Any]] = {"iterations": 10_000, "lr": 0.004, "tv": 1e-4}

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        for number, observation in enumerate(observations):
            model = apply_change(observation.model, observation.update.change)
            own = SingleClientCheckpointer(checkpointer, number, len(observations))
            yield from super().stream([replace(observation, model=model)], own)


@plain_dataclass
class SingleClientCheckpointer(NullCheckpointer):
    """Reports one client's progress as a part of the whole; saves nothing."""

    checkpointer: Checkpointer
    number: int
    count: int

    def __post_init__(self) -> None:
        self.deadline = self.checkpointer.deadline

    def watch(self, done: int, total: int, text: str) -> None:
        self.checkpointer.watch(self.number * total + done, self.count * total, text)
