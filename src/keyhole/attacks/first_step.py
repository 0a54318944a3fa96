"""The gradient behind a single local step of any optimiser that the attacker knows.

An optimiser starts anew in every round. So the first step is a function of the gradient and of the
weights that the server sent, and the server can undo it: all attacks then see a plain gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from keyhole.defenses import Defense
from keyhole.defenses.base import uses_door
from keyhole.optimisers import Sgd
from keyhole.threat import Observation
from keyhole.update import Update


def undo_first_step(observation: Observation) -> Observation:
    """Returns the observation with the update of plain SGD in place of another optimiser's.

    It stays as it is where a client took several steps, where the optimiser is not known, and where
    the attacker knows that a defense changed the update afterwards.

    Args:
        observation: What the server observed of a client.
    """
    update, knowledge = observation.update, observation.knowledge
    optimiser = knowledge.optimiser
    if update.steps > 1 or optimiser is None or optimiser.is_plain:
        return observation
    if knowledge.defense is not None and changes_updates(knowledge.defense):
        return observation
    weights = {name: p.detach() for name, p in observation.model.named_parameters()}

    def undo(update: Update, before: Mapping[str, Tensor]) -> Update:
        def of_weight(name: str, change: Tensor) -> Tensor:
            if name not in weights:  # a buffer
                return change
            return -update.lr * optimiser.undo_first_step(change, before[name], update.lr)

        return update.map(of_weight)

    rounds = (
        replace(r, update=undo(r.update, {**weights, **r.weights})) for r in observation.rounds
    )
    return replace(
        observation,
        update=undo(update, weights),
        earlier=tuple(undo(each, weights) for each in observation.earlier),
        rounds=tuple(rounds),
        knowledge=replace(knowledge, optimiser=Sgd()),
    )


def changes_updates(defense: Defense) -> bool:
    """Whether a defense changes values of an update; sharing only some of them does not."""
    return any(
        part.name != "share" and uses_door(part, "on_update") for part in defense.each_part()
    )
