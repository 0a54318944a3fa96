"""What several searches for the same images agree on, after their results were registered.

Gradients of a convolutional network change little when an image moves by a few pixels, so that
searches from different first guesses end at shifted images. Each image is shifted to where it
correlates best with that of the best search, and the mean over the searches is what they agree on
(Yin et al. 2021, by shifts in place of their flow).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_SHIFT = 0.125
"""The largest shift, as a share of the image's side."""


def register(images: Tensor, reference: Tensor) -> Tensor:
    """Images ``[B, C, H, W]``, each rolled to where it correlates best with its reference.

    Args:
        images: The images.
        reference: As many images.
    """
    height, width = images.shape[-2:]
    centred, wanted = (
        x.double() - x.double().mean((-2, -1), keepdim=True) for x in (images, reference)
    )
    spectrum = torch.fft.rfft2(wanted) * torch.fft.rfft2(centred).conj()
    correlation = torch.fft.irfft2(spectrum, s=(height, width)).sum(1)
    for axis, side in ((-2, height), (-1, width)):
        shifts = torch.arange(side, device=images.device)
        far = torch.minimum(shifts, side - shifts) > MAX_SHIFT * side
        correlation = correlation.index_fill(axis, far.nonzero().flatten(), -torch.inf)
    best = correlation.flatten(1).argmax(1)
    moved = [
        image.roll((int(place) // width, int(place) % width), (-2, -1))
        for image, place in zip(images, best, strict=True)
    ]
    return torch.stack(moved)


def agree(found: Sequence[Tensor], losses: Sequence[float]) -> Tensor:
    """The mean of several searches' images, registered with those of least loss.

    Args:
        found: The images of each search, ``[B, C, H, W]``.
        losses: The loss of each search; those that are not finite do not count.
    """
    finite = [k for k, loss in enumerate(losses) if loss < torch.inf]
    best = min(finite, key=lambda k: losses[k], default=0)
    kept = [register(found[k], found[best]) for k in finite] or [found[best]]
    return torch.stack(kept).mean(0)
