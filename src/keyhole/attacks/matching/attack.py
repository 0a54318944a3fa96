"""Gradient matching as an attack: observations in, reconstructions out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic import LabelInference
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer
from keyhole.attacks.matching.allocator import keep_memory
from keyhole.attacks.matching.gradients.gradient_weights import WeightsByName, weights_from_noise
from keyhole.attacks.matching.gradients.matchers import Backend
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.unknowns import SoftLabels
from keyhole.attacks.matching.precision import Precision, use_precision
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.attacks.noise import merge_updates
from keyhole.defenses.capabilities import Capability
from keyhole.defenses.noise_model import Noise
from keyhole.threat import Observation

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Matching(Attack):
    """Looks for images whose gradient is the one observed.

    ``labels``: ``given``, ``inferred`` from the last layer, or ``sought`` with the images.
    ``masks``: the clients' dropout is ``ignored``, its masks are ``given``, ``sought`` with the
    images, or ``read`` off the update where it shows them and sought elsewhere.
    ``trials`` first guesses are followed and the one of least loss is taken; where images differ in
    the local steps they were in, each guess believes another order of them. ``backend`` and
    ``precision`` say how it is computed.
    """

    iterations: Count = 2000
    lr: Positive = 0.1
    labels: Literal["given", "inferred", "sought"] = "given"
    masks: Literal["ignored", "given", "sought", "read"] = "ignored"
    mask_weight: Weight = 1e-4
    trials: Count = 1
    backend: Backend = "auto"
    precision: Precision = "float32"
    seed: int = 0

    published: ClassVar[dict[str, Any]] = {}
    """The settings of the paper, where ours differ: ``--parity paper``."""
    exact: ClassVar[bool] = False
    needs: ClassVar[str] = "any differentiable model; minutes rather than seconds"

    @abstractmethod
    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        """The parts, for one model; labels and masks are seen to by :meth:`build_all_parts`."""

    def build_all_parts(self, problem: MatchingProblem) -> MatchingParts:
        """The parts, with labels and masks among the unknowns where they are sought."""
        recipe = self.build_parts(problem)
        if self.labels == "sought":
            recipe = replace(recipe, labels=SoftLabels())
        if self.masks in ("sought", "read"):
            recipe = recipe.with_mask_search(problem, self.mask_weight)
        return recipe

    @property
    def given(self) -> frozenset[str]:
        told = {"labels": self.labels, "masks": self.masks}
        return frozenset(name for name, how in told.items() if how == "given")

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = []
        if self.labels == "inferred":
            reasons += LabelInference().incompatibilities(observation)
        if self.labels == "given" and observation.knowledge.labels is None:
            reasons.append("it must be given the labels, and was not")
        if self.masks == "given" and observation.knowledge.masks is None:
            reasons.append("it must be given the client's dropout masks, and was not")
        if self.masks == "given" and not MatchingProblem.from_observation(observation).sites:
            reasons.append("the client drops nothing, so that there are no masks to be given")
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        """Any parameter will do; of those there are, at least one must be reported."""
        names = [name for name, _ in observation.model.named_parameters()]
        reported = [name for name in names if name in observation.update.change]
        return set() if reported else set(names[:1])

    def target_gradient(self, observation: Observation) -> dict[str, Tensor]:
        """The gradient that is to be matched."""
        return self.weighted_target(observation)[0]

    def gradient_weights(self, observation: Observation) -> WeightsByName:
        """Through what that gradient is seen, by an attacker who knows where noise is in it."""
        return weights_from_noise(*self.weighted_target(observation))

    def weighted_target(
        self, observation: Observation
    ) -> tuple[dict[str, Tensor], dict[str, Noise]]:
        """The gradient, and the noise in it, where this attack uses what is known of that."""
        if Capability.NOISE not in self.uses:
            return observation.update.gradient(), {}
        return merge_updates(observation)

    def extra_inputs(self, observation: Observation) -> dict[str, Tensor]:
        """What else the recipe's parts must know of one victim."""
        return {}

    def postprocess(self, images: Tensor, observation: Observation) -> Tensor:
        """What the attack makes of the images that match, ``[B, C, H, W]``."""
        return images

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return next(self.stream([observation], NullCheckpointer()))

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        if not observations:
            return
        keep_memory()
        problem = MatchingProblem.from_observation(observations[0])
        group = VictimGroup(self, problem, observations)
        runner = group.make_runner(self.iterations, checkpointer, group.known_values)
        with use_precision(self.precision):
            runner.run()
        for number in range(len(observations)):
            yield group.reconstruct(number, runner)
