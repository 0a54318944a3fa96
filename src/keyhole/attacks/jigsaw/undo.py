"""Undoes what a defense declares to have done to images, in the images that an attack reads.

An attack on the update, or on the line, sees what the client was shown: shuffled or noisy images.
An attacker who knows the defense undoes the change, with all versions that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from skimage.restoration import denoise_nl_means
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.jigsaw.learned.solving import fits, solve_learned
from keyhole.attacks.jigsaw.regions import Solved, combined, solve, thumbnail
from keyhole.defenses import Csvar
from keyhole.defenses.capabilities import BlockShuffle, ImageChange, PixelNoise
from keyhole.errors import DoesNotFit

SURE = 0.4
"""Who expects a smaller share of the blocks to lie right shows the mean of what may be."""


@dataclass(frozen=True)
class Restored:
    """Images in [0, 1] with a change undone, and how sure the attacker is of each."""

    images: Tensor
    confidence: Tensor | None = None
    note: str = ""


@singledispatch
def undo(change: ImageChange, versions: Sequence[Tensor], *, exact: bool = True) -> Restored:
    """Undoes what a defense declares to have done to images.

    Args:
        change: What was done to them.
        versions: The same images as they were seen, each version ``[n, C, H, W]`` in [0, 1].
        exact: Whether their pixels were read exactly, or near enough.
    """
    kind = type(change).__name__
    return Restored(versions[-1], note=f"not undone: no solver is registered for {kind}")


@undo.register
def unshuffle_blocks(
    change: BlockShuffle, versions: Sequence[Tensor], *, exact: bool = True
) -> Restored:
    """The puzzle solved region by region; several versions show the same blocks, less noisily.

    Images of 17 to 64 px are solved with the advice of a network that was trained on public ones:
    that lifts MNIST's SSIM from .56 to .85, 25 px faces' from .86 to .87, colour photos' by .00 to
    .01. Where blocks are blurred, or most of them may lie wrong, the mean of what may be is shown.
    """
    known = Csvar(channels=change.channels, block=change.block)
    versions = complete_versions(versions)
    means = [thumbnail(version) for version in versions]
    aligned = [v[match_images(m, means[-1])] for v, m in zip(versions, means, strict=True)]
    try:
        clean = combined(torch.stack(aligned[::-1]).float(), block=known.block)
        solved = solve_best(clean, known)
    except DoesNotFit as error:
        return Restored(versions[-1], note=f"not un-shuffled: {error}")
    sure = ((solved.confidence >= SURE) & exact)[:, None, None, None]
    return Restored(torch.where(sure, solved.images, solved.expected), solved.confidence)


def solve_best(shuffled: Tensor, defense: Csvar) -> Solved:
    """By the solver that is best for images ``[B, C, H, W]`` of this size."""
    return (solve_learned if fits(shuffled) else solve)(shuffled, defense=defense)


@undo.register
def remove_noise(change: PixelNoise, versions: Sequence[Tensor], *, exact: bool = True) -> Restored:
    """The mean of all versions, then non-local means for the noise left (Buades et al. 2005)."""
    versions = complete_versions(versions)
    last = versions[-1]
    aligned = [version[match_images(version, last)] for version in versions]
    mean = torch.stack(aligned).mean(0)
    known = change.sigma / len(versions) ** 0.5
    cleaned = [smooth(image, min(known, noise_left(image))) for image in mean]
    return Restored(torch.stack(cleaned))


def noise_left(image: Tensor) -> float:
    """The deviation of the noise in ``image [C, H, W]`` (Immerkaer 1996).

    By a difference of two Laplacians, which smooth images hardly answer to. An attack that prefers
    smooth images has taken some of the noise off already.
    """
    kernel = torch.tensor([[1.0, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=torch.double)
    answer = F.conv2d(image[:, None].double(), kernel[None, None].to(image.device))
    return float((math.pi / 2) ** 0.5 / 6 * answer.abs().mean())


def smooth(image: Tensor, sigma: float) -> Tensor:
    """One image ``[C, H, W]`` with noise of a known deviation taken off."""
    if sigma == 0:
        return image
    pixels = image.permute(1, 2, 0).double().cpu().numpy()
    found = denoise_nl_means(
        pixels, patch_size=5, patch_distance=7, h=0.8 * sigma, sigma=sigma, channel_axis=-1
    )
    laid = np.ascontiguousarray(found.reshape(pixels.shape))
    return torch.from_numpy(laid).permute(2, 0, 1).to(image)


def complete_versions(versions: Sequence[Tensor]) -> list[Tensor]:
    """Those in which as many images were read as in the last: others cannot be matched with it."""
    return [version for version in versions if len(version) == len(versions[-1])]


def match_images(images: Tensor, wanted: Tensor) -> Tensor:
    """Which of ``images [n, ...]`` goes with each of ``wanted [n, ...]``: by least distance."""
    distance = torch.cdist(wanted.flatten(1).double(), images.flatten(1).double())
    return torch.from_numpy(linear_sum_assignment(distance.cpu().numpy())[1]).to(images.device)
