"""A defense on images that a gradient can pass, for an attacker who knows the defense.

A generator whose drawings are shuffled or made noisy before the discriminator sees them learns the
clean image: expectation over transformations (Athalye et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from keyhole.defenses import ClientSide, Csvar, Defense

DifferentiableDefense = Callable[[Tensor], Tensor]
"""Images ``[n, C, H, W]`` in [0, 1] to what a client would train on; has a gradient."""


def make_differentiable(defense: Defense, draw: torch.Generator) -> DifferentiableDefense:
    """The defense as the attacker applies it: with new draws at every call.

    Args:
        defense: What clients do to their images.
        draw: The attacker's own draws.
    """
    if isinstance(defense, Csvar):
        return make_differentiable_shuffle(defense, draw)
    return make_straight_through(defense, draw)


def make_differentiable_shuffle(defense: Csvar, draw: torch.Generator) -> DifferentiableDefense:
    """CSVAR: a pixel's gradient goes back to the place the pixel came from."""

    def shuffle(images: Tensor) -> Tensor:
        seeds = torch.randint(2**62, (len(images),), generator=draw)
        shown = images.detach()
        sources = defense.plan_shuffle(shown, defense.draw_numbers(shown, seeds)).sources(
            images.shape[1]
        )
        return images.flatten(1).gather(1, sources).view_as(images)

    return shuffle


def make_straight_through(defense: Defense, draw: torch.Generator) -> DifferentiableDefense:
    """Any other defense: gradients pass as if it changed nothing (Bengio et al. 2013).

    Right for noise; of no use where pixels change places.
    """

    def apply(images: Tensor) -> Tensor:
        shown = images.detach()
        return images + (defense.on_images(shown, ClientSide(generator=draw)) - shown)

    return apply
