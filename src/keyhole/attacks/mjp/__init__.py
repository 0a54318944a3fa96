"""Attacks on clients that train under masked jigsaw puzzles (MJP)."""

from keyhole.attacks.mjp.inversion import MjpInversion
from keyhole.attacks.mjp.span import MjpSpan

__all__ = ["MjpInversion", "MjpSpan"]
