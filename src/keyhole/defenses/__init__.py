"""Defenses: one file each; a defense has four doors and uses one or two."""

from keyhole.defenses.base import ClientSide, Defense, DefenseSpec, Telemetry
from keyhole.defenses.csvar import Csvar
from keyhole.defenses.dpsgd import DpSgd
from keyhole.defenses.dropout import Dropout
from keyhole.defenses.gaussian import Gaussian
from keyhole.defenses.image_noise import ImageNoise
from keyhole.defenses.mjp import Mjp
from keyhole.defenses.none import NoDefense
from keyhole.defenses.pruning import Pruning
from keyhole.registry import Registry

DEFENSES: Registry[Defense] = Registry(
    "defense", [NoDefense, Gaussian, Pruning, Dropout, DpSgd, Mjp, Csvar, ImageNoise]
)

__all__ = [
    "DEFENSES",
    "ClientSide",
    "Csvar",
    "Defense",
    "DefenseSpec",
    "DpSgd",
    "Dropout",
    "Gaussian",
    "ImageNoise",
    "Mjp",
    "NoDefense",
    "Pruning",
    "Telemetry",
]
