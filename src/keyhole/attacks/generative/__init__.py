"""Generators: those that learn what a client's images look like, and those that know before."""

from keyhole.attacks.generative.adversarial_training import Lesson, Trained, train
from keyhole.attacks.generative.conditional import ConditionalGenerator
from keyhole.attacks.generative.generator import Generator
from keyhole.attacks.generative.gifd import Gifd
from keyhole.attacks.generative.hitaj import Adversary, Generated, Hitaj
from keyhole.attacks.generative.infiltration import InfiltratedRound, Infiltration, without_target
from keyhole.attacks.generative.known_defense import Through, straight_through, through
from keyhole.attacks.generative.prior import load_generator, public_half, save_generator

__all__ = [
    "Adversary",
    "ConditionalGenerator",
    "Generated",
    "Generator",
    "Gifd",
    "Hitaj",
    "InfiltratedRound",
    "Infiltration",
    "Lesson",
    "Through",
    "Trained",
    "load_generator",
    "public_half",
    "save_generator",
    "straight_through",
    "through",
    "train",
    "without_target",
]
