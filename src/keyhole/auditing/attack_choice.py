"""Which attacks are worth a try on one update, and what keeps one from running."""

from __future__ import annotations

from keyhole.attacks import (
    CLOSED_FORM,
    ITERATIVE,
    Attack,
    Gifd,
    InvertingGradients,
    LabelInference,
    Matching,
)
from keyhole.defenses import Defense, NoDefense
from keyhole.threat import Observation

MAX_IMAGES_ITERATIVE = 64
"""A client's images up to which iterative attacks are tried without being asked for."""


def choose_closed_forms() -> list[Attack]:
    """The closed forms that an honest server can run."""
    return [member() for member in CLOSED_FORM if member.altered_model is None]


def choose_iterative(defense: Defense | None, shape: tuple[int, int, int]) -> list[Matching]:
    """The iterative attacks worth a client's time; those that know the defense come first."""
    known = defense or NoDefense()
    adaptive = [m() for m in ITERATIVE if m.only_adaptive and m().knows(known)]
    generative = [Gifd()] if Gifd().generates(shape) else []
    found: list[Attack] = [*adaptive, InvertingGradients(), *generative]
    return [attack for attack in found if isinstance(attack, Matching)]


def describe_missing(attack: Attack, observation: Observation) -> str | None:
    """Which parameter an attack that fits the model would read, but the update does not have."""
    if attack.incompatibilities(observation):
        return None
    absent = sorted(attack.reads(observation) - set(observation.update.change))
    return f"it reads {absent[0]!r}, which the update does not have" if absent else None


def describe_obstacle(attack: Attack, observation: Observation) -> str | None:
    """Why an attack cannot run on an observation; None if it can."""
    reasons = "; ".join(attack.incompatibilities(observation))
    return reasons or describe_missing(attack, observation)


def can_infer_labels(observation: Observation) -> bool:
    return describe_obstacle(LabelInference(), observation) is None
