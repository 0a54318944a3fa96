"""What an attacker makes of values that a known defense left out of an update."""

from __future__ import annotations

from torch import Tensor

from keyhole.defenses.capabilities import Capability, Interval
from keyhole.threat import Observation


def known_bounds(observation: Observation) -> dict[str, Interval]:
    """What a known defense declares of values that the update does not show, in float64."""
    defense = observation.knowledge.defense_with(Capability.VALUES)
    declared = {} if defense is None else defense.possible_values(observation.update)
    return {name: values.map(Tensor.double) for name, values in declared.items()}


def select_bounds(values: Interval | None, rows: Tensor, trust: Tensor) -> Interval | None:
    """The bounds of some rows, each multiplied by its ``trust``; None: all values are known."""
    if values is None:
        return None
    return values.map(lambda bound: bound.flatten(1)[rows] * trust[:, None])
