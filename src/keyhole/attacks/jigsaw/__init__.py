"""Puts shuffled patches back in their places, by how well their borders continue each other."""

from keyhole.attacks.jigsaw.placement import Placement, unshuffle
from keyhole.attacks.jigsaw.seams import Seams, seam_costs

__all__ = ["Placement", "Seams", "seam_costs", "unshuffle"]
