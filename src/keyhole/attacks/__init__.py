"""Attacks: each reads an observation and returns what it believes it saw."""

from keyhole.attacks.analytic import April, LabelInference, LinearLeak, PatchLeastSquares
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.generative.gifd import Gifd
from keyhole.attacks.interception import Interception, UndoneInterception
from keyhole.attacks.malicious import Fishing, Imprint, ImprintWeights, Loki, SingleOut, TrapWeights
from keyhole.attacks.matching import (
    DeepLeakage,
    DiaRead,
    DropoutInversion,
    GradInversion,
    GradViT,
    ImprovedDeepLeakage,
    InvertingGradients,
    IterativeApril,
    Matching,
    UploadedInversion,
    Wiig,
)
from keyhole.attacks.mjp import MjpInversion, MjpSpan
from keyhole.registry import Registry

CLOSED_FORM = (
    LinearLeak,
    PatchLeastSquares,
    MjpSpan,
    April,
    Imprint,
    ImprintWeights,
    Loki,
    TrapWeights,
    LabelInference,
    Interception,
    UndoneInterception,
)
ITERATIVE = (
    DeepLeakage,
    ImprovedDeepLeakage,
    InvertingGradients,
    UploadedInversion,
    Wiig,
    DropoutInversion,
    DiaRead,
    IterativeApril,
    GradViT,
    GradInversion,
    Gifd,
    MjpInversion,
    Fishing,
    SingleOut,
)

ATTACKS: Registry[Attack] = Registry(
    "attack", [*CLOSED_FORM, *ITERATIVE], base=Attack, group="keyhole.attacks"
)

__all__ = [
    "ATTACKS",
    "CLOSED_FORM",
    "ITERATIVE",
    "April",
    "Attack",
    "Checkpointer",
    "DeepLeakage",
    "DiaRead",
    "DropoutInversion",
    "Fishing",
    "Gifd",
    "GradInversion",
    "GradViT",
    "Imprint",
    "ImprintWeights",
    "ImprovedDeepLeakage",
    "Interception",
    "InvertingGradients",
    "IterativeApril",
    "LabelInference",
    "LinearLeak",
    "Loki",
    "Matching",
    "MjpInversion",
    "MjpSpan",
    "PatchLeastSquares",
    "Reconstruction",
    "SingleOut",
    "TrapWeights",
    "UndoneInterception",
    "UploadedInversion",
]
