"""Attacks that search for images among those that a generator can produce."""

from keyhole.attacks.generative.conditional import ConditionalBatchNorm, ConditionalGenerator
from keyhole.attacks.generative.gifd import Gifd
from keyhole.attacks.generative.prior import load_generator, public_half, save_generator

__all__ = [
    "ConditionalBatchNorm",
    "ConditionalGenerator",
    "Gifd",
    "load_generator",
    "public_half",
    "save_generator",
]
