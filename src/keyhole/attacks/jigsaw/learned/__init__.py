"""A network that has seen many shuffled images advises the solver of :mod:`..regions`.

The shipped network (:func:`load_unscrambler`) is for images of 17 to 64 px, grey and in colour.
 ``python tools/train_unscrambler.py OUT.safetensors --data-dir DATA`` trains it again.
"""

from keyhole.attacks.jigsaw.learned.network import Unscrambler
from keyhole.attacks.jigsaw.learned.shipped import load_unscrambler, save_unscrambler
from keyhole.attacks.jigsaw.learned.solving import solve_with_network

__all__ = ["Unscrambler", "load_unscrambler", "save_unscrambler", "solve_with_network"]
