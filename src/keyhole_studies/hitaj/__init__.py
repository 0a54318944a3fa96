"""A malicious client trains a GAN against the shared model (Hitaj et al. 2017)."""

from keyhole_studies.hitaj.adversary import Adversary, Generated
from keyhole_studies.hitaj.attack import Hitaj
from keyhole_studies.hitaj.generator import Generator
from keyhole_studies.hitaj.infiltration import InfiltratedRound, Infiltration
from keyhole_studies.hitaj.known_defense import (
    DifferentiableDefense,
    make_differentiable,
    make_straight_through,
)

__all__ = [
    "Adversary",
    "DifferentiableDefense",
    "Generated",
    "Generator",
    "Hitaj",
    "InfiltratedRound",
    "Infiltration",
    "make_differentiable",
    "make_straight_through",
]
