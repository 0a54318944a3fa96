"""The settings of an audit of a privacy budget; imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from keyhole.settings import ClientMode, Count, Positive, Seed, Settings


class EpsilonPlan(Settings):
    """One defense, and canaries that the server looks for. The same plan gives the same bound.

    The first paragraph below a field is the help of the option by which ``keyhole epsilon`` sets
    it.
    """

    defense: str = "dpsgd"
    """The defense, such as 'dpsgd(noise=1.0)'."""
    model: str = "mlp"
    """The model, by name."""
    data: str = "digits"
    """The data set, which says how large images are, and how many classes there are."""
    canaries: Annotated[int, Field(ge=20, lt=2**24)] = 1000
    """Canaries, each in or out by a coin."""
    norm: Positive = 1000.0
    """The norm of a canary's gradient; a defense that clips shortens it."""
    steps: Count = 1
    """Local SGD steps; more than one need lr."""
    lr: Positive | None = None
    """Learning rate: clients share weights, not gradients."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Of the lower bound."""
    client_mode: ClientMode = "train"
    """train, eval or frozen-norm."""
    image_size: str | int | None = None
    """Size to scale images to: 224, or 112x92 (height x width)."""
    weights: Path | None = None
    """The model's weights, safetensors; default: random."""
    seed: Seed = 0
    """Seed of all random numbers."""
