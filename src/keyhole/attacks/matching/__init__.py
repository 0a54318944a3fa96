"""Gradient matching: one engine with parts, and named attacks as rows of parts."""

from keyhole.attacks.matching.attack import Matching
from keyhole.attacks.matching.convolution_spear import ConvolutionSpear
from keyhole.attacks.matching.epoch_matching import EpochMatching
from keyhole.attacks.matching.grad_inversion import GradInversion
from keyhole.attacks.matching.guided_inversion import (
    HeadInversion,
    SpearInversion,
    hold_statistics,
)
from keyhole.attacks.matching.inverting_gradients import (
    DiaRead,
    DropoutInversion,
    InvertingGradients,
    UploadedModelInversion,
    Wiig,
)
from keyhole.attacks.matching.precision import use_precision
from keyhole.attacks.matching.presets import (
    DeepLeakage,
    GradViT,
    ImprovedDeepLeakage,
    IterativeApril,
)
from keyhole.attacks.matching.problem import take_as_one_step
from keyhole.attacks.matching.surrogate import SurrogateInversion

__all__ = [
    "ConvolutionSpear",
    "DeepLeakage",
    "DiaRead",
    "DropoutInversion",
    "EpochMatching",
    "GradInversion",
    "GradViT",
    "HeadInversion",
    "ImprovedDeepLeakage",
    "InvertingGradients",
    "IterativeApril",
    "Matching",
    "SpearInversion",
    "SurrogateInversion",
    "UploadedModelInversion",
    "Wiig",
    "hold_statistics",
    "take_as_one_step",
    "use_precision",
]
