"""How a model's gradients follow from its layers, as a probe found it."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.errors import DoesNotFit

MODEL_ERRORS = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)
"""What torch and models raise when a model cannot be run in a certain way."""


class DoesNotFactor(DoesNotFit):
    """Says why a model's gradients do not follow from its layers' inputs and output gradients."""


@dataclass(frozen=True)
class FactorPlan:
    """What the factored backend needs to know about a model."""

    standalone: dict[str, tuple[int, ...]]
    """Parameters used outside layers, with the shape in which one sample's copy is substituted."""
    cloned_calls: frozenset[int]
    """Numbers of the layer calls whose output the model overwrites."""
    positions: dict[str, int]
    """For each large weight, the number of positions of one sample that its layer sees."""
