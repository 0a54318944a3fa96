"""Puts shuffled patches back in their places, by how well their borders continue each other."""

from keyhole.attacks.jigsaw.placement import Placement, unshuffle

__all__ = ["Placement", "unshuffle"]
