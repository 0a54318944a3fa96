"""Analytic attacks: no iterations, a second or less; the audit runs them first."""

from keyhole.attacks.closed_form.april import April, bare_first_block
from keyhole.attacks.closed_form.labels import LabelInference
from keyhole.attacks.closed_form.linear import LinearLeak
from keyhole.attacks.closed_form.patch_lstsq import PatchLeastSquares

__all__ = ["April", "LabelInference", "LinearLeak", "PatchLeastSquares", "bare_first_block"]
