"""Local epochs unrolled with copies of the images, since nobody knows which step took which.

A client divides its images among its steps anew in every epoch. The search has one copy of all
images for each epoch, takes the client's steps on them with its own optimiser, and compares what
comes out (Dimitrov et al. 2022). A prior says that epochs have the same images; at the end the
copies of each image are matched and averaged. Which label belongs to which place in an epoch is
sought together with the images, as a matrix whose rows and columns sum to 1. In a single epoch the
search starts at the order that the last layer's change tells (:mod:`..analytic.step_order`).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic import infer_order
from keyhole.attacks.matching.attack import Weight
from keyhole.attacks.matching.engine import START
from keyhole.attacks.matching.inverting_gradients import InvertingGradients
from keyhole.attacks.matching.parts.epochs import (
    EpochBatches,
    EpochProblem,
    Orders,
    SameInEveryEpoch,
    count_epochs,
)
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.problem import MatchingProblem, simplify_steps
from keyhole.defenses.capabilities import Capability
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class EpochMatching(InvertingGradients):
    """IG through a client's own steps, with copies of the images for each local epoch.

    Args:
        agreement: Weight of the prior that all epochs have the same images.
        told: How sure the search is at its start of the order that the last layer's change tells,
            as the logarithm of odds; 0: it starts without.
        orders: Whether the places of the labels in each epoch are sought; else the order of the
            labels that the attacker knows is taken for that of every epoch.
    """

    agreement: Weight = 0.1
    orders: bool = True
    told: Weight = 5.0

    combines_rounds: ClassVar[bool] = False
    name: ClassVar[str] = "epoch-matching"
    summary: ClassVar[str] = "unrolls local epochs, with copies of the images for each"
    paper: ClassVar[str] = "Dimitrov et al. 2022"
    needs: ClassVar[str] = "the clients' optimiser and learning rate; few local steps"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})

    def prepare(self, observation: Observation) -> Observation:
        known = replace(observation.knowledge, orders=1)
        return simplify_steps(replace(observation, knowledge=known), self.trials)

    def build_problem(self, observation: Observation) -> MatchingProblem:
        plain = super().build_problem(observation)
        images = plain.knowledge.batch_size
        epochs = count_epochs(images, plain.local_batch, plain.steps)
        knowledge = replace(plain.knowledge, batch_size=epochs * images)
        own = {each.name: getattr(plain, each.name) for each in fields(MatchingProblem)}
        return EpochProblem(**own | {"knowledge": knowledge}, images=images)

    def extra_inputs(self, observation: Observation) -> dict[str, Tensor]:
        if not (self.orders and self.told):
            return {}
        order = infer_order(observation, self.read_labels(observation))
        if order is None:
            return {}
        return {START + Orders.name: self.told * torch.eye(len(order))[order][None]}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        assert isinstance(problem, EpochProblem)
        parts = super().build_parts(problem)
        sought = self.orders and problem.label_orders_matter
        batch = EpochBatches(Orders() if sought else None)
        prior = SameInEveryEpoch(self.agreement, problem)
        return replace(parts, batch=batch, priors=(*parts.priors, prior))
