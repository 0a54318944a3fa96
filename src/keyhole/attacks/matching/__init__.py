"""Gradient matching: one engine with parts, and named attacks as rows of parts."""

from keyhole.attacks.matching.attack import Matching
from keyhole.attacks.matching.precision import use_precision
from keyhole.attacks.matching.presets import (
    DeepLeakage,
    DiaRead,
    DropoutInversion,
    GradInversion,
    GradViT,
    ImprovedDeepLeakage,
    InvertingGradients,
    IterativeApril,
    Wiig,
)
from keyhole.attacks.matching.uploaded import UploadedInversion

__all__ = [
    "DeepLeakage",
    "DiaRead",
    "DropoutInversion",
    "GradInversion",
    "GradViT",
    "ImprovedDeepLeakage",
    "InvertingGradients",
    "IterativeApril",
    "Matching",
    "UploadedInversion",
    "Wiig",
    "use_precision",
]
