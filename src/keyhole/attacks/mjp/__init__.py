"""Against the masked jigsaw puzzle (MJP): what its updates show, and how to put it in order."""

from keyhole.attacks.mjp.inversion import MjpInversion
from keyhole.attacks.mjp.span import MjpSpan

__all__ = ["MjpInversion", "MjpSpan"]
