"""Defenses: one file each; a defense has four doors and uses one or two."""

from keyhole.defenses.base import ClientSide, Defense, DefenseSpec, Telemetry
from keyhole.defenses.dpsgd import DpSgd
from keyhole.defenses.dropout import Dropout
from keyhole.defenses.gaussian import Gaussian
from keyhole.defenses.mjp import Mjp
from keyhole.defenses.none import NoDefense
from keyhole.defenses.pruning import Pruning
from keyhole.registry import Registry

DEFENSES: Registry[Defense] = Registry(
    "defense", [NoDefense, Gaussian, Pruning, Dropout, DpSgd, Mjp]
)

__all__ = [
    "DEFENSES",
    "ClientSide",
    "Defense",
    "DefenseSpec",
    "DpSgd",
    "Dropout",
    "Gaussian",
    "Mjp",
    "NoDefense",
    "Pruning",
    "Telemetry",
]
