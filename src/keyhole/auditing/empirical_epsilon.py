"""Audits a privacy budget: a lower bound on epsilon beside the one that a defense claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from keyhole.auditing.canaries import plant_canaries
from keyhole.auditing.epsilon_plan import EpsilonPlan
from keyhole.auditing.finding import read_versions
from keyhole.data import load
from keyhole.defenses import DEFENSES, Budget, Defense
from keyhole.errors import DoesNotFit
from keyhole.metrics.empirical_epsilon import EpsilonBound, bound_by_scores, find_largest_bound
from keyhole.models import build
from keyhole.progress import NullProgress, Progress

DELTA = 1e-5
"""The delta of the bound where a defense claims no budget."""
REFUTED, CONSISTENT = "refuted", "not refuted"
NO_CLAIM, OUT_OF_REACH = "no claim", "out of reach"


@dataclass(frozen=True)
class EpsilonResult:
    """What the canaries of one run prove of a defense's privacy budget.

    Args:
        plan: What was run.
        bound: The lower bound on epsilon, and the guesses that it rests on.
        delta: The delta of the bound and of the claim.
        claimed: What the defense claims to have spent; None: it claims nothing.
        provable: The largest bound that so many canaries can give.
    """

    plan: EpsilonPlan
    bound: EpsilonBound
    delta: float
    claimed: float | None
    provable: float

    @property
    def status(self) -> str:
        """``refuted``: the claimed epsilon is below the bound; ``not refuted``: it is not;
        ``out of reach``: so few canaries could not refute it; ``no claim``."""
        if self.claimed is None:
            return NO_CLAIM
        if self.claimed < self.bound.epsilon:
            return REFUTED
        return CONSISTENT if self.claimed < self.provable else OUT_OF_REACH

    @property
    def words(self) -> str:
        """The result as a sentence."""
        proven = (
            f"epsilon is at least {self.bound.epsilon:.2f} with {self.plan.confidence:.0%} "
            f"confidence ({self.bound.correct} of {self.bound.guesses} guesses right, "
            f"{self.plan.canaries} canaries, delta {self.delta:g})"
        )
        if self.claimed is None:
            return f"{proven}; the defense claims no budget"
        claim = "infinite" if math.isinf(self.claimed) else f"{self.claimed:.2f}"
        ends = {
            REFUTED: f"the claimed {claim} is refuted",
            CONSISTENT: f"the claimed {claim} is not refuted",
            OUT_OF_REACH: f"the claimed {claim} could not be refuted by so few canaries, which "
            f"prove {self.provable:.2f} at most",
        }
        return f"{proven}; {ends[self.status]}"

    def to_json(self) -> dict[str, Any]:
        """What ``keyhole epsilon --json`` prints; an infinite claim is the text ``infinite``."""
        infinite = self.claimed is not None and math.isinf(self.claimed)
        return {
            "status": self.status,
            "words": self.words,
            "lower_bound": self.bound.epsilon,
            "confidence": self.plan.confidence,
            "guesses": self.bound.guesses,
            "correct": self.bound.correct,
            "claimed": "infinite" if infinite else self.claimed,
            "delta": self.delta,
            "provable": self.provable,
            "plan": self.plan.to_json(),
            "versions": read_versions(),
        }


def audit_epsilon(
    plan: EpsilonPlan,
    *,
    defense: Defense | None = None,
    data_dir: str | None = None,
    progress: Progress | None = None,
) -> EpsilonResult:
    """Plants canaries in one round under a defense, and bounds epsilon by how well they are found.

    Args:
        plan: The defense, the model, and the canaries.
        defense: A defense as an object, in place of the one that the plan names.
        data_dir: The folder of data sets that are read from files.
        progress: Told what is being done.
    """
    chosen = DEFENSES.parse(plan.defense) if defense is None else defense
    data = load(plan.data, image_size=plan.image_size, data_dir=data_dir)
    if len(data.classes) < 2:
        raise DoesNotFit(f"{plan.data!r} has one class: canaries need two logits or more")
    model = build(
        plan.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=plan.seed,
        weights=plan.weights,
    )
    shown = progress or NullProgress()
    shown.show(f"clients train on canaries under {chosen.name}")
    planted = plant_canaries(chosen, model, data, plan, shown)
    claimed = planted.budget or Budget(math.nan, DELTA)
    bound = bound_by_scores(
        planted.scores, planted.inside, delta=claimed.delta, confidence=plan.confidence
    )
    return EpsilonResult(
        plan=plan,
        bound=bound,
        delta=claimed.delta,
        claimed=None if planted.budget is None else planted.budget.epsilon,
        provable=find_largest_bound(plan.canaries, delta=claimed.delta, confidence=plan.confidence),
    )
