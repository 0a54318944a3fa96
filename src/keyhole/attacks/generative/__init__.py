"""Generators that learn from a shared model what a client's images look like."""

from keyhole.attacks.generative.generator import Generator
from keyhole.attacks.generative.hitaj import Adversary, Generated, Hitaj
from keyhole.attacks.generative.infiltration import InfiltratedRound, Infiltration, without_target
from keyhole.attacks.generative.known_defense import Through, straight_through, through

__all__ = [
    "Adversary",
    "Generated",
    "Generator",
    "Hitaj",
    "InfiltratedRound",
    "Infiltration",
    "Through",
    "straight_through",
    "through",
    "without_target",
]
