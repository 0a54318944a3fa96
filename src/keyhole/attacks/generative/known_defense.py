"""A defense on images that a gradient can pass: for the attacker who knows it.

A generator whose drawings are shuffled or made noisy before the discriminator sees them learns the
clean image: expectation over transformations (Athalye et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.csvar import Csvar

Through = Callable[[Tensor], Tensor]
"""Images ``[n, C, H, W]`` in [0, 1] to what a client would train on; has a gradient."""


def through(defense: Defense, draw: torch.Generator) -> Through:
    """``defense`` as the attacker applies it, anew at every call, by its own draws."""
    if isinstance(defense, Csvar):
        return shuffled(defense, draw)
    return straight_through(defense, draw)


def shuffled(defense: Csvar, draw: torch.Generator) -> Through:
    """CSVAR: a pixel's gradient goes back to the place the pixel came from."""

    def moved(images: Tensor) -> Tensor:
        seeds = torch.randint(2**62, (len(images),), generator=draw)
        shown = images.detach()
        sources = defense.plan(shown, defense.draws(shown, seeds)).sources(images.shape[1])
        return images.flatten(1).gather(1, sources).view_as(images)

    return moved


def straight_through(defense: Defense, draw: torch.Generator) -> Through:
    """Any other: the gradient passes as if nothing had been changed (Bengio et al. 2013).

    Right for noise; of no use where pixels change places.
    """

    def changed(images: Tensor) -> Tensor:
        shown = images.detach()
        return images + (defense.on_images(shown, ClientSide(generator=draw)) - shown)

    return changed
