"""An attack as a row of parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keyhole.attacks.matching.objectives import Objective
from keyhole.attacks.matching.optimisers import Optimiser, Schedule
from keyhole.attacks.matching.priors import DropRate, Prior
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.unknowns import DropoutMasks, Picture, SoftLabels, Unknown


@dataclass(frozen=True)
class Recipe:
    """What is compared, what is looked for, what is believed of it, and how it is searched."""

    objective: Objective
    picture: Picture
    optimiser: Optimiser
    schedule: Schedule
    priors: tuple[Prior, ...] = ()
    labels: SoftLabels | None = None
    """None: the labels are given."""
    masks: DropoutMasks | None = None
    """None: the masks are given, or nothing is dropped."""
    stop_below: float | None = None
    """A victim whose loss falls below this is done."""

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        found = (self.picture, self.labels, self.masks)
        return tuple(unknown for unknown in found if unknown is not None)

    @property
    def watches_statistics(self) -> bool:
        return any(prior.statistics for prior in self.priors)

    @property
    def needs_whole(self) -> bool:
        """Whether whole gradients are compared, not only their products with the targets."""
        return self.objective.whole or any(prior.whole for prior in self.priors)

    def seeking_masks(self, problem: Problem, weight: float) -> Recipe:
        """The same attack with the client's dropout masks among the unknowns: what makes IG DIA.

        Where the model drops nothing it stays as it is.
        """
        if not problem.sites:
            return self
        prior = DropRate(weight, problem.sites)
        return replace(self, masks=DropoutMasks(problem.sites), priors=(*self.priors, prior))
