"""Gradient matching: one engine with parts, and named attacks as rows of parts."""

from keyhole.attacks.matching.attack import Matching
from keyhole.attacks.matching.presets import (
    DeepLeakage,
    DropoutInversion,
    GradInversion,
    GradViT,
    ImprovedDeepLeakage,
    InvertingGradients,
    IterativeApril,
    MaskReading,
    WellInformed,
)
from keyhole.attacks.matching.uploaded import UploadedInversion

__all__ = [
    "DeepLeakage",
    "DropoutInversion",
    "GradInversion",
    "GradViT",
    "ImprovedDeepLeakage",
    "InvertingGradients",
    "IterativeApril",
    "MaskReading",
    "Matching",
    "UploadedInversion",
    "WellInformed",
]
