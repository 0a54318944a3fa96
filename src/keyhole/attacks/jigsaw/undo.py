"""Undoes what a defense declares to have done to images, in the images that an attack reads.

An attack on the update, or on the images' way to the client, reads what the client was shown:
shuffled or noisy images. An attacker who knows the defense undoes the change, with all versions
that were seen.
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

from keyhole.attacks.jigsaw.learned.solving import fits_shipped_network, solve_with_network
from keyhole.attacks.jigsaw.regions import Solution, build_thumbnail, combine_versions, solve
from keyhole.attacks.jigsaw.reversal import find_steps, reverse_steps
from keyhole.defenses import Csvar
from keyhole.defenses.capabilities import BlockShuffle, ChosenSteps, ImageChange, PixelNoise
from keyhole.errors import DoesNotFit

MIN_CONFIDENCE = 0.4
"""An attacker who expects a smaller share of the blocks to be right shows the expected image."""


@dataclass(frozen=True)
class RestoredImages:
    """Images with a change undone, and how sure the attacker is of each.

    Args:
        images: ``[n, C, H, W]`` in [0, 1].
        confidence: One value in [0, 1] per image; None: unknown.
        note: What a reader should know, if the change was not undone.
    """

    images: Tensor
    confidence: Tensor | None = None
    note: str = ""


@singledispatch
def undo(change: ImageChange, versions: Sequence[Tensor], *, exact: bool = True) -> RestoredImages:
    """Undoes a change that a defense declares to have made to images.

    Args:
        change: What the defense did.
        versions: The same images as they were seen, each version ``[n, C, H, W]`` in [0, 1].
        exact: Whether their pixels were read exactly, or nearly so.
    """
    kind = type(change).__name__
    return RestoredImages(versions[-1], note=f"not undone: no solver is registered for {kind}")


@undo.register
def unshuffle_blocks(
    change: BlockShuffle, versions: Sequence[Tensor], *, exact: bool = True
) -> RestoredImages:
    """Solves the puzzle region by region; several versions together have less noise.

    Images of 17 to 64 px are solved with the advice of a network that was trained on public images.
    That lifts the SSIM of MNIST from .56 to .85, of 25 px faces from .86 to .87, of colour photos
    by .00 to .01. Where blocks are blurred, or most of them may be wrong, the result is the mean of
    all arrangements by the attacker's beliefs.
    """
    known = Csvar(channels=change.channels, block=change.block)
    versions = drop_incomplete_versions(versions)
    means = [build_thumbnail(version) for version in versions]
    aligned = [v[match_images(m, means[-1])] for v, m in zip(versions, means, strict=True)]
    try:
        clean = combine_versions(torch.stack(aligned[::-1]).float(), block=known.block)
        solution = solve_by_size(clean, known)
    except DoesNotFit as error:
        return RestoredImages(versions[-1], note=f"not un-shuffled: {error}")
    sure = ((solution.confidence >= MIN_CONFIDENCE) & exact)[:, None, None, None]
    images = torch.where(sure, solution.images, solution.expected)
    return RestoredImages(images, solution.confidence)


def solve_by_size(shuffled: Tensor, defense: Csvar) -> Solution:
    """Solves images ``[B, C, H, W]`` by the solver that is best for their size."""
    solver = solve_with_network if fits_shipped_network(shuffled) else solve
    return solver(shuffled, defense=defense)


@undo.register
def remove_noise(
    change: PixelNoise, versions: Sequence[Tensor], *, exact: bool = True
) -> RestoredImages:
    """Averages all versions, then denoises by non-local means (Buades et al. 2005)."""
    versions = drop_incomplete_versions(versions)
    last = versions[-1]
    aligned = [version[match_images(version, last)] for version in versions]
    mean = torch.stack(aligned).mean(0)
    known = change.sigma / len(versions) ** 0.5
    cleaned = [denoise(image, min(known, estimate_noise(image))) for image in mean]
    return RestoredImages(torch.stack(cleaned))


@undo.register
def undo_steps(
    change: ChosenSteps, versions: Sequence[Tensor], *, exact: bool = True
) -> RestoredImages:
    """Finds by its gap how each image was moved or turned, and reverses that.

    Changes of contrast and brightness are reversed only where pixels were read exactly: elsewhere
    that would make the errors of the reading stronger.
    """
    found = [find_steps(image, change.ways) for image in versions[-1]]
    pairs = zip(versions[-1], found, strict=True)
    return RestoredImages(torch.stack([reverse_steps(i, w, colours=exact) for i, w in pairs]))


def estimate_noise(image: Tensor) -> float:
    """The deviation of the noise in ``image [C, H, W]`` (Immerkaer 1996).

    By a difference of two Laplacians, which is nearly zero for smooth images. It may be less than
    the defense's noise: an attack that prefers smooth images has removed some of it already.
    """
    kernel = torch.tensor([[1.0, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=torch.double)
    response = F.conv2d(image[:, None].double(), kernel[None, None].to(image.device))
    return float((math.pi / 2) ** 0.5 / 6 * response.abs().mean())


def denoise(image: Tensor, sigma: float) -> Tensor:
    """Removes noise of a known deviation from an image ``[C, H, W]``."""
    if sigma == 0:
        return image
    pixels = image.permute(1, 2, 0).double().cpu().numpy()
    smoothed = denoise_nl_means(
        pixels, patch_size=5, patch_distance=7, h=0.8 * sigma, sigma=sigma, channel_axis=-1
    )
    contiguous = np.ascontiguousarray(smoothed.reshape(pixels.shape))
    return torch.from_numpy(contiguous).permute(2, 0, 1).to(image)


def drop_incomplete_versions(versions: Sequence[Tensor]) -> list[Tensor]:
    """Keeps the versions with as many images as the last: others cannot be matched with it."""
    return [version for version in versions if len(version) == len(versions[-1])]


def match_images(images: Tensor, wanted: Tensor) -> Tensor:
    """Which of ``images [n, ...]`` goes with each of ``wanted [n, ...]``: by least distance."""
    distance = torch.cdist(wanted.flatten(1).double(), images.flatten(1).double())
    return torch.from_numpy(linear_sum_assignment(distance.cpu().numpy())[1]).to(images.device)
