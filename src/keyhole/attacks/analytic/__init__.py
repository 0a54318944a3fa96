"""Analytic attacks: no iterations, a second or less; the audit runs them first."""

from keyhole.attacks.analytic.april import April, strip_first_block
from keyhole.attacks.analytic.cocktail_party import CocktailParty
from keyhole.attacks.analytic.convolution_features import ConvolutionInputs, read_convolution
from keyhole.attacks.analytic.earlier_inputs import read_earlier
from keyhole.attacks.analytic.features import FeatureDecoding
from keyhole.attacks.analytic.head_inputs import read_head_inputs
from keyhole.attacks.analytic.labels import LabelInference
from keyhole.attacks.analytic.linear import LinearLeak
from keyhole.attacks.analytic.lora_span import LoraSpan
from keyhole.attacks.analytic.patch_lstsq import PatchLeastSquares
from keyhole.attacks.analytic.probes import capture_input
from keyhole.attacks.analytic.spear import Spear
from keyhole.attacks.analytic.step_order import infer_order

__all__ = [
    "April",
    "CocktailParty",
    "ConvolutionInputs",
    "FeatureDecoding",
    "LabelInference",
    "LinearLeak",
    "LoraSpan",
    "PatchLeastSquares",
    "Spear",
    "capture_input",
    "infer_order",
    "read_convolution",
    "read_earlier",
    "read_head_inputs",
    "strip_first_block",
]
