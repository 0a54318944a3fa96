"""How badly two patches fit side by side, judged by the image's own statistics.

For the strips a and b, STRIP pixels wide, on the two sides of a seam the cost is

    log p(a) + log p(b) - log p(a, b)

under a mixture of Gaussians, one for each texture from smooth to rough. Their covariances are
measured where pixels are neighbours for certain: in windows two strips wide inside the patches. So
the cost knows how this image continues across a line. The noise on the pixels need not be known,
since the windows contain it too. Colours are first turned to axes along which the image's gradients
are uncorrelated; each axis is a field of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

STRIP = 2
"""Pixels on either side of a seam; 1 in patches under 4 px."""

TEXTURES = 3
WINDOWS_PER_PIXEL = 10
"""A texture needs this many windows per pixel of a window; small images show fewer than
TEXTURES."""

FLOORS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
"""White noise added to a covariance, in shares of the pixels' variance: little suits a clean photo,
much suits JPEG's block borders or a rough reconstruction (see :func:`compute_seam_costs`)."""


@dataclass(frozen=True)
class SeamCosts:
    """Costs in nats; the lower, the better the fit.

    Args:
        right: ``[N, N]``: patch b (column) to the right of patch a (row).
        below: ``[N, N]``: patch b (column) below patch a (row).
    """

    right: Array
    below: Array

    @property
    def best_buddies(self) -> int:
        """Pairs of patches that are each other's best match: many where costs are sharp."""
        return count_best_buddies(self.right) + count_best_buddies(self.below)


@dataclass(frozen=True)
class Texture:
    """One Gaussian of the mixture.

    Args:
        share: Its weight.
        covariances: One per channel, ``[C, d, d]``, of the d = h * 2k pixels of a window two
            strips wide, row by row.
    """

    share: float
    covariances: Array


def compute_seam_costs(patches: Array) -> SeamCosts:
    """The costs between all ``patches [N, C, h, w]``, of at least 2 px per side.

    It chooses the one of FLOORS that makes the most best buddies, which needs no truth.
    """
    fields = decorrelate_channels(patches - patches.mean((0, 2, 3), keepdims=True))
    turned = fields.swapaxes(2, 3)
    across, down = cut_windows(fields), cut_windows(turned)
    if across.shape[1:] == down.shape[1:]:
        across = down = np.concatenate([across, down])
    in_rows, in_columns = fit_textures(across), fit_textures(down)
    variance = float(fields.var()) or 1.0
    candidates = (
        SeamCosts(
            right=compute_misfits(fields, in_rows, floor * variance),
            below=compute_misfits(turned, in_columns, floor * variance),
        )
        for floor in FLOORS
    )
    return max(candidates, key=lambda seams: seams.best_buddies)


def decorrelate_channels(patches: Array) -> Array:
    """Turns the channels of ``[N, C, h, w]`` to the eigenvectors of the gradients' covariance.

    The pixels' own covariance would not do: at a seam, small differences count.
    """
    steps = [np.diff(patches, axis=axis) for axis in (2, 3)]
    covariance = sum(np.einsum("nchw,ndhw->cd", step, step) for step in steps)
    axes = np.linalg.eigh(covariance)[1]
    turned: Array = np.einsum("cd,nchw->ndhw", axes, patches)
    return turned


def cut_windows(fields: Array) -> Array:
    """All windows ``[M, C, h, 2k]`` over the whole height of a patch and two strips wide."""
    width = 2 * strip_width(fields)
    views = np.lib.stride_tricks.sliding_window_view(fields, width, axis=3)
    return views.transpose(0, 3, 1, 2, 4).reshape(-1, *fields.shape[1:3], width)


def fit_textures(samples: Array) -> list[Texture]:
    """Fits Gaussians to equal shares of windows ``[M, C, h, 2k]``, sorted by gradient energy."""
    energy = sum(np.square(np.diff(samples, axis=axis)).mean((1, 2, 3)) for axis in (2, 3))
    pixels = samples.shape[2] * samples.shape[3]
    parts = max(1, min(TEXTURES, len(samples) // (WINDOWS_PER_PIXEL * pixels)))
    return [
        Texture(share=len(part) / len(samples), covariances=estimate_covariances(samples[part]))
        for part in np.array_split(np.argsort(energy, kind="stable"), parts)
    ]


def estimate_covariances(samples: Array) -> Array:
    """One per channel, ``[C, d, d]``, averaged over mirror images."""
    count, channels, *sides = samples.shape
    rows = samples.swapaxes(0, 1).reshape(channels, count, -1)
    found: Array = (rows.swapaxes(1, 2) @ rows / count).reshape(channels, *sides, *sides)
    found = (found + found[:, ::-1, :, ::-1]) / 2
    found = (found + found[:, :, ::-1, :, ::-1]) / 2
    return found.reshape(channels, rows.shape[2], rows.shape[2])


def compute_misfits(fields: Array, mixture: list[Texture], white: float) -> Array:
    """``log p(a) + log p(b) - log p(a, b)`` for every b to the right of every a, ``[N, N]``."""
    strip = strip_width(fields)
    ends, starts = fields[..., -strip:], fields[..., :strip]
    of_a, of_b, of_both = (np.full(1, -np.inf) for _ in range(3))
    for texture in mixture:
        a, b, both = (np.full(1, np.log(texture.share)) for _ in range(3))
        for channel, covariance in enumerate(texture.covariances):
            S = covariance + white * np.eye(len(covariance))
            more = compute_log_densities(ends[:, channel], starts[:, channel], S)
            a, b, both = a + more[0], b + more[1], both + more[2]
        of_a, of_b = np.logaddexp(of_a, a), np.logaddexp(of_b, b)
        of_both = np.logaddexp(of_both, both)
    found: Array = of_a[:, None] + of_b[None, :] - of_both
    return found


def compute_log_densities(a: Array, b: Array, S: Array) -> tuple[Array, Array, Array]:
    """``log p(a) [N]``, ``log p(b) [N]``, ``log p(a, b) [N, N]`` of strips ``[N, h, k]``.

    Without the factors of 2 pi, which cancel in the cost.
    """
    place = np.arange(len(S)).reshape(a.shape[1], -1)
    at_a, at_b = place[:, : a.shape[2]].ravel(), place[:, a.shape[2] :].ravel()
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    K = np.linalg.inv(S)
    S_aa, S_bb = S[np.ix_(at_a, at_a)], S[np.ix_(at_b, at_b)]
    with_a = compute_quadratic_form(a, K[np.ix_(at_a, at_a)])
    with_b = compute_quadratic_form(b, K[np.ix_(at_b, at_b)])
    both = with_a[:, None] + with_b[None, :] + 2 * a @ K[np.ix_(at_a, at_b)] @ b.T
    return (
        -(compute_quadratic_form(a, np.linalg.inv(S_aa)) + np.linalg.slogdet(S_aa)[1]) / 2,
        -(compute_quadratic_form(b, np.linalg.inv(S_bb)) + np.linalg.slogdet(S_bb)[1]) / 2,
        -(both + np.linalg.slogdet(S)[1]) / 2,
    )


def compute_quadratic_form(rows: Array, form: Array) -> Array:
    """``x form x`` for each row x, ``[N]``."""
    found: Array = ((rows @ form) * rows).sum(1)
    return found


def strip_width(fields: Array) -> int:
    """The widest strip, up to STRIP, of which two fit into a patch."""
    return min(STRIP, int(fields.shape[3]) // 2)


def count_best_buddies(costs: Array) -> int:
    """Counts the rows whose least entry is also the least of its column, diagonal left out."""
    others = costs + np.diag(np.full(len(costs), np.inf))
    best_of_row, best_of_column = others.argmin(1), others.argmin(0)
    return int(np.count_nonzero(best_of_column[best_of_row] == np.arange(len(costs))))
