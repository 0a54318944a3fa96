"""Analytic attacks: no iterations, a second or less; the audit runs them first."""

from keyhole.attacks.analytic.april import April, strip_first_block
from keyhole.attacks.analytic.cocktail_party import CocktailParty
from keyhole.attacks.analytic.labels import LabelInference
from keyhole.attacks.analytic.linear import LinearLeak
from keyhole.attacks.analytic.lora_span import LoraSpan
from keyhole.attacks.analytic.patch_lstsq import PatchLeastSquares
from keyhole.attacks.analytic.spear import Spear

__all__ = [
    "April",
    "CocktailParty",
    "LabelInference",
    "LinearLeak",
    "LoraSpan",
    "PatchLeastSquares",
    "Spear",
    "strip_first_block",
]
