"""How a model's gradients come about, found out by probing it."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.errors import DoesNotFit

REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)
"""What torch and models raise where a model cannot be taken."""


class DoesNotFactor(DoesNotFit):
    """Why a model's gradients cannot be had from its layers' inputs and output gradients."""


@dataclass(frozen=True)
class Anatomy:
    """What a probe found out of a model: how its gradients come about."""

    plain: dict[str, tuple[int, ...]]
    """Parameters used outside layers, with the shape in which one sample's copy is substituted."""
    copied: frozenset[int]
    """Calls whose output the model overwrites."""
    positions: dict[str, int]
    """For each large weight, how many positions of one sample its layer sees."""
