"""A network that has seen many shuffled images advises the solver of :mod:`..regions`.

The one that comes with Keyhole (:func:`load_unscrambler`) is for images of 17 to 64 px, grey and in
colour. ``python -m keyhole.attacks.unshuffle.learned OUT.safetensors --data-dir DATA`` trains it
again, on images that no audit attacks (:mod:`public`).
"""

from keyhole.attacks.unshuffle.learned.network import Unscrambler
from keyhole.attacks.unshuffle.learned.public import public_albums
from keyhole.attacks.unshuffle.learned.puzzles import Album
from keyhole.attacks.unshuffle.learned.shipped import load_unscrambler, save_unscrambler
from keyhole.attacks.unshuffle.learned.solving import solve_learned
from keyhole.attacks.unshuffle.learned.training import Lesson, learn

__all__ = [
    "Album",
    "Lesson",
    "Unscrambler",
    "learn",
    "load_unscrambler",
    "public_albums",
    "save_unscrambler",
    "solve_learned",
]
