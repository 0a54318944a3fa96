"""A matching attack as a set of parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keyhole.attacks.matching.parts.batches import Batch, make_batch
from keyhole.attacks.matching.parts.objectives import Objective
from keyhole.attacks.matching.parts.optimisers import Optimiser, Schedule
from keyhole.attacks.matching.parts.priors import DropRate, PatchSeams, Prior, TotalVariation
from keyhole.attacks.matching.parts.unknowns import (
    DropoutMasks,
    ImageUnknown,
    SoftLabels,
    Surrogate,
    Unknown,
)
from keyhole.attacks.matching.problem import MatchingProblem

OF_IMAGES = (TotalVariation, PatchSeams)
"""The priors that say that images are smooth."""


@dataclass(frozen=True)
class MatchingParts:
    """What an attack compares, what it searches for, what it assumes of that, and how it searches.

    Args:
        objective: The distance between dummy gradients and target gradients.
        images: The unknown from which images are rendered.
        optimiser: How the unknowns move.
        schedule: How the learning rate changes.
        priors: Terms added to the objective.
        labels: The unknown labels; None: the labels are known.
        masks: The unknown dropout masks; None: the masks are known, or there is no dropout.
        surrogate: The unknown model between the one sent and the one returned, at which gradients
            are taken; None: they are taken at the one sent.
        batch: How a step's batch is made of the images; None: it consists of them.
        stop_below: A victim whose loss falls below this is done; None: no limit.
    """

    objective: Objective
    images: ImageUnknown
    optimiser: Optimiser
    schedule: Schedule
    priors: tuple[Prior, ...] = ()
    labels: SoftLabels | None = None
    masks: DropoutMasks | None = None
    surrogate: Surrogate | None = None
    batch: Batch | None = None
    stop_below: float | None = None

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """Everything that is searched for."""
        mixture = None if self.batch is None else self.batch.unknown
        candidates = (self.images, self.labels, self.masks, self.surrogate, mixture)
        return tuple(unknown for unknown in candidates if unknown is not None)

    @property
    def needs_statistics(self) -> bool:
        """Whether a prior needs the BatchNorms' batch statistics."""
        return any(prior.needs_statistics for prior in self.priors)

    @property
    def needs_full_gradients(self) -> bool:
        """Whether whole gradients are compared, and not only their products with the targets."""
        priors = any(prior.needs_full_gradients for prior in self.priors)
        return self.objective.needs_full_gradients or priors

    def with_mask_search(self, problem: MatchingProblem, weight: float) -> MatchingParts:
        """Adds the client's dropout masks to the unknowns, which turns IG into DIA.

        Where the model has no dropout, the parts stay as they are.
        """
        if not problem.sites:
            return self
        prior = DropRate(weight, problem.sites)
        return replace(self, masks=DropoutMasks(problem.sites), priors=(*self.priors, prior))

    def with_batch_change(self, problem: MatchingProblem) -> MatchingParts:
        """The parts that form the batch as a known defense does; the same parts without one.

        Where pixels are flipped, images are not smooth, and the priors on images are left out.
        """
        batch = make_batch(problem)
        if batch is None:
            return self
        priors = tuple(p for p in self.priors if not (batch.flips and isinstance(p, OF_IMAGES)))
        return replace(self, batch=batch, priors=priors)
