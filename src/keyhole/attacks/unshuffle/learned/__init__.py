"""A learned guess of what a shuffled image was; it guides the search of :mod:`..regions`."""

from keyhole.attacks.unshuffle.learned.network import Unscrambler
from keyhole.attacks.unshuffle.learned.training import Lesson, learn

__all__ = ["Lesson", "Unscrambler", "learn"]
