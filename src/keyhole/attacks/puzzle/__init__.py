"""Against the masked jigsaw puzzle (MJP): what its updates show, and how to put it in order."""

from keyhole.attacks.puzzle.inversion import PuzzleInversion
from keyhole.attacks.puzzle.span import PuzzleSpan

__all__ = ["PuzzleInversion", "PuzzleSpan"]
