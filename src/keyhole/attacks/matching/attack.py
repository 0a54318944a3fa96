"""Gradient matching as an attack: observations in, reconstructions out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic import LabelInference
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer
from keyhole.attacks.matching.compiled_step import Compilation
from keyhole.attacks.matching.gradients.gradient_weights import (
    WeightsByName,
    leave_out_values,
    weights_from_noise,
)
from keyhole.attacks.matching.gradients.intervals import IntervalsByName
from keyhole.attacks.matching.gradients.matchers import Backend, Matcher
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.priors import UploadedStatistics
from keyhole.attacks.matching.parts.unknowns import SoftLabels
from keyhole.attacks.matching.precision import Precision, use_precision
from keyhole.attacks.matching.problem import MatchingProblem, simplify_steps
from keyhole.attacks.matching.uploaded_statistics import StatisticsUse
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.attacks.noise import find_misleading_values, merge_updates
from keyhole.defenses.capabilities import Capability
from keyhole.defenses.noise_model import Noise
from keyhole.threat import Observation

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LabelSource = Literal["given", "inferred", "counted", "sought"]
MaskSource = Literal["ignored", "given", "sought", "read"]


@dataclass(frozen=True, kw_only=True)
class Matching(Attack):
    """Searches for images whose gradient is the one observed.

    Where a known defense shows bounds in place of values, the gradient has to lie between them:
    the objective is its :meth:`~keyhole.attacks.matching.parts.objectives.Objective.bounded` form.

    Args:
        iterations: The most iterations for each victim.
        lr: Learning rate.
        labels: Whether the labels are ``given``, ``inferred`` from the last layer's gradient,
            ``counted`` from it class by class (iLRG), which is right more often where a batch has a
            class twice, or ``sought`` together with the images.
        masks: Whether the client's dropout is ``ignored``, or its masks are ``given``, ``sought``
            together with the images, or ``read`` from the update where it shows them and sought
            elsewhere.
        mask_weight: Weight of the masks' drop rate in the loss, if masks are searched for.
        trials: The number of first guesses per client; the one that ends with the least loss
            counts. If the client's local steps used different images, each trial assumes another
            order of the labels.
        backend: How gradients are computed: ``factored``, by ``vmap`` or in a ``loop``; ``auto``:
            the fastest that takes the model.
        batch_statistics: What is done with the batch statistics that buffers tell, where clients
            in train mode uploaded them: they are the wanted values of a ``prior``, or BatchNorms
            are ``anchored`` to them, or ``both``, or they are ``ignored``; ``auto``: both for one
            local step, the prior for several.
        statistics_weight: Weight of that prior.
        precision: The type in which a GPU multiplies.
        compiled: Whether steps are compiled: ``always``, ``never``, or on a GPU where so many steps
            follow that the minutes of compiling are won back (``auto``).
        seed: Seed of the first guesses.
    """

    iterations: Count = 2000
    lr: Positive = 0.1
    labels: LabelSource = "given"
    masks: MaskSource = "ignored"
    mask_weight: Weight = 1e-4
    trials: Count = 1
    backend: Backend = "auto"
    batch_statistics: StatisticsUse = "auto"
    statistics_weight: Weight = 0.01
    precision: Precision = "float32"
    compiled: Compilation = "auto"
    seed: int = 0

    published: ClassVar[dict[str, Any]] = {}
    """The paper's settings where ours differ; ``--parity paper`` uses them."""
    combines_rounds: ClassVar[bool] = True
    """Whether it matches earlier rounds of a client as well, where the server saw some."""
    exact: ClassVar[bool] = False
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.VALUES})
    needs: ClassVar[str] = "any differentiable model; minutes rather than seconds"

    @abstractmethod
    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        """Returns the parts without unknown labels and masks; :meth:`build_all_parts` adds them.

        Args:
            problem: The model and what its victims have in common.
        """

    def prepare(self, observation: Observation) -> Observation:
        """Returns the observation as this attack can use it: local steps that are too many, or
        whose images nobody knows, are taken for one large step.

        Args:
            observation: What the server observed of the victim.
        """
        return simplify_steps(observation, self.trials)

    def build_problem(self, observation: Observation) -> MatchingProblem:
        """Returns what all victims have in common, given the first of them.

        Args:
            observation: What the server observed of the first victim.
        """
        return MatchingProblem.from_observation(observation)

    def read_labels(self, observation: Observation) -> Tensor:
        """The client's labels as this attack has them: given, or inferred from the update.

        Args:
            observation: What the server saw of one client.
        """
        if self.labels == "given":
            known = observation.knowledge.labels
        else:
            softmax: Literal["classwise", "random"]
            softmax = "classwise" if self.labels == "counted" else "random"
            known = LabelInference(softmax=softmax).reconstruct(observation).labels
        assert known is not None
        return known

    def build_all_parts(self, problem: MatchingProblem) -> MatchingParts:
        """Returns the parts, with labels and masks among the unknowns if they are sought.

        Args:
            problem: The model and what its victims have in common.
        """
        parts = self.build_parts(problem)
        if Capability.VALUES in self.uses and problem.knowledge.defense_with(Capability.VALUES):
            parts = replace(parts, objective=parts.objective.bounded())
        if self.labels == "sought":
            parts = replace(parts, labels=SoftLabels())
        if self.masks in ("sought", "read"):
            parts = parts.with_mask_search(problem, self.mask_weight)
        if problem.norms and self.batch_statistics in ("auto", "prior", "both"):
            prior = UploadedStatistics(self.statistics_weight)
            parts = replace(parts, priors=(*parts.priors, prior))
        if Capability.BATCH_CHANGE in self.uses:
            parts = parts.with_batch_change(problem)
        return parts

    @property
    def given(self) -> frozenset[str]:
        sources = {"labels": self.labels, "masks": self.masks}
        return frozenset(name for name, source in sources.items() if source == "given")

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = []
        if self.labels in ("inferred", "counted"):
            reasons += LabelInference().incompatibilities(observation)
        if self.labels == "given" and observation.knowledge.labels is None:
            reasons.append("it must be given the labels, but was not")
        if self.masks == "given" and observation.knowledge.masks is None:
            reasons.append("it must be given the client's dropout masks, but was not")
        if (
            self.batch_statistics in ("prior", "anchored", "both")
            and not MatchingProblem.from_observation(observation).norms
        ):
            reasons.append(
                "it needs the batch statistics of clients that train in train mode, have BatchNorm "
                "and share weights with their buffers, not a gradient"
            )
        if self.masks == "given" and not MatchingProblem.from_observation(observation).sites:
            reasons.append("the client drops nothing, so there are no masks to be given")
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        """Nothing if the update has any of the model's parameters, for any of them will do."""
        names = [name for name, _ in observation.model.named_parameters()]
        reported = [name for name in names if name in observation.update.change]
        return set() if reported else set(names[:1])

    def target_gradient(self, observation: Observation) -> dict[str, Tensor]:
        """Returns the gradient that the images are to match, by parameter.

        Args:
            observation: What the server observed of the victim.
        """
        return self.target_and_noise(observation)[0]

    def gradient_weights(self, observation: Observation) -> WeightsByName:
        """Returns the weights by which noisy and misleading values of that gradient count less.

        Args:
            observation: What the server observed of the victim.
        """
        weights = weights_from_noise(*self.target_and_noise(observation))
        return leave_out_values(weights, self.misleading_values(observation))

    def misleading_values(self, observation: Observation) -> Mapping[str, Tensor]:
        """Returns the values to leave out, if this attack uses what a known defense says of them.

        Args:
            observation: What the server observed of the victim.
        """
        used = Capability.MISLEADING in self.uses
        return find_misleading_values(observation) if used else {}

    def target_and_noise(
        self, observation: Observation
    ) -> tuple[dict[str, Tensor], dict[str, Noise]]:
        """Returns the gradient to match and, if this attack uses it, the noise declared in it.

        Args:
            observation: What the server observed of the victim.
        """
        if Capability.NOISE not in self.uses:
            return observation.update.gradient(), {}
        return merge_updates(observation)

    def target_intervals(self, observation: Observation) -> IntervalsByName:
        """Returns the bounds that a known defense declares for values that are not shown.

        Args:
            observation: What the server observed of the victim.
        """
        defense = observation.knowledge.defense_with(Capability.VALUES)
        if defense is None or Capability.VALUES not in self.uses:
            return {}
        return defense.possible_values(observation.update)

    def adapt_matcher(self, matcher: Matcher, observations: Sequence[Observation]) -> Matcher:
        """Returns the matcher that the search uses, by default the one that the backend gives.

        Args:
            matcher: The matcher of some victims.
            observations: What the server observed of each of them.
        """
        return matcher

    def extra_inputs(self, observation: Observation) -> dict[str, Tensor]:
        """Returns tensors that the attack's own parts need to know about one victim, by name.

        Args:
            observation: What the server observed of the victim.
        """
        return {}

    def postprocess(self, images: Tensor, observation: Observation) -> Tensor:
        """Returns the images that the attack reports, by default those that match best.

        Args:
            images: The images that match best, ``[B, C, H, W]``.
            observation: What the server observed of the victim.
        """
        return images

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return next(self.stream([observation], NullCheckpointer()))

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        if not observations:
            return
        group = VictimGroup(self, observations)
        runner = group.make_runner(self.iterations, checkpointer, group.known_values)
        with use_precision(self.precision):
            runner.run()
        for number in range(len(observations)):
            yield group.reconstruct(number, runner)
