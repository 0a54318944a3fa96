"""Puts shuffled patches back in their places, by how well their borders continue each other."""

from keyhole.attacks.unshuffle.placement import Placement, unshuffle
from keyhole.attacks.unshuffle.seams import Seams, seam_costs

__all__ = ["Placement", "Seams", "seam_costs", "unshuffle"]
