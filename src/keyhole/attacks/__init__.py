"""Attacks: each reads an observation and returns what it believes it saw."""

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.closed_form import April, LabelInference, LinearLeak, PatchLeastSquares
from keyhole.registry import Registry

ATTACKS: Registry[Attack] = Registry(
    "attack", [LinearLeak, PatchLeastSquares, April, LabelInference]
)

__all__ = [
    "ATTACKS",
    "April",
    "Attack",
    "LabelInference",
    "LinearLeak",
    "PatchLeastSquares",
    "Reconstruction",
]
