"""Attacks: each reads an observation and returns what it believes it saw."""

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.closed_form import April, LabelInference, LinearLeak, PatchLeastSquares
from keyhole.attacks.generative.gifd import Gifd
from keyhole.attacks.interception import Interception, UndoneInterception
from keyhole.attacks.matching import (
    DeepLeakage,
    DropoutInversion,
    GradInversion,
    GradViT,
    ImprovedDeepLeakage,
    InvertingGradients,
    IterativeApril,
    MaskReading,
    Matching,
    UploadedInversion,
    WellInformed,
)
from keyhole.attacks.puzzle import PuzzleInversion, PuzzleSpan
from keyhole.attacks.workbench import Workbench
from keyhole.registry import Registry

CLOSED_FORM = (
    LinearLeak,
    PatchLeastSquares,
    PuzzleSpan,
    April,
    LabelInference,
    Interception,
    UndoneInterception,
)
ITERATIVE = (
    DeepLeakage,
    ImprovedDeepLeakage,
    InvertingGradients,
    UploadedInversion,
    WellInformed,
    DropoutInversion,
    MaskReading,
    IterativeApril,
    GradViT,
    GradInversion,
    Gifd,
    PuzzleInversion,
)

ATTACKS: Registry[Attack] = Registry("attack", [*CLOSED_FORM, *ITERATIVE])

__all__ = [
    "ATTACKS",
    "CLOSED_FORM",
    "ITERATIVE",
    "April",
    "Attack",
    "DeepLeakage",
    "DropoutInversion",
    "Gifd",
    "GradInversion",
    "GradViT",
    "ImprovedDeepLeakage",
    "Interception",
    "InvertingGradients",
    "IterativeApril",
    "LabelInference",
    "LinearLeak",
    "MaskReading",
    "Matching",
    "PatchLeastSquares",
    "PuzzleInversion",
    "PuzzleSpan",
    "Reconstruction",
    "UndoneInterception",
    "UploadedInversion",
    "Workbench",
]
