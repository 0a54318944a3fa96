"""How badly two patches fit side by side, judged by the image's own statistics.

For the strips a and b, STRIP pixels wide, on the two sides of a seam the cost is

    log p(a) + log p(b) - log p(a, b)

under a mixture of Gaussians, one for each texture from smooth to rough. Their covariances are
measured where pixels are neighbours for certain: in windows two strips wide inside the patches. So
the cost knows how this image goes on across a line, and noise on the pixels, being in the windows
too, need not be known. Colours are first turned to axes along which the image's gradients are
uncorrelated; each axis is a field of its own.
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
"""A texture needs that many windows for each pixel of a window; small images show fewer than
TEXTURES."""

FLOORS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
"""White noise added to a covariance, in shares of the pixels' variance: little suits a clean photo,
much suits JPEG's block borders or a rough reconstruction (see :func:`seam_costs`)."""


@dataclass(frozen=True)
class Seams:
    """Costs in nats; the lower, the better the fit.

    ``right[a, b]`` is the cost of patch b to the right of patch a, ``below[a, b]`` of b below a.
    """

    right: Array
    below: Array

    @property
    def buddies(self) -> int:
        """Pairs of patches each of which is the other's best match: many where costs are sharp."""
        return mutual_best(self.right) + mutual_best(self.below)


@dataclass(frozen=True)
class Texture:
    """One Gaussian of the mixture: its weight and, per channel, its covariance ``[C, d, d]``.

    The d = h * 2k pixels are those of a window two strips wide, row by row.
    """

    share: float
    covariances: Array


def seam_costs(patches: Array) -> Seams:
    """The costs between all ``patches [N, C, h, w]``, of at least 2 px a side.

    Among the FLOORS it takes the one that makes the most mutual best matches: no truth is needed.
    """
    fields = uncorrelated(patches - patches.mean((0, 2, 3), keepdims=True))
    turned = fields.swapaxes(2, 3)
    across, down = windows(fields), windows(turned)
    if across.shape[1:] == down.shape[1:]:
        across = down = np.concatenate([across, down])
    in_rows, in_columns = textures(across), textures(down)
    variance = float(fields.var()) or 1.0
    found = (
        Seams(
            right=misfit(fields, in_rows, floor * variance),
            below=misfit(turned, in_columns, floor * variance),
        )
        for floor in FLOORS
    )
    return max(found, key=lambda seams: seams.buddies)


def uncorrelated(patches: Array) -> Array:
    """``[N, C, h, w]`` with the channels turned to the eigenvectors of the gradients' covariance.

    Not those of the pixels' own: at a seam it is small differences that count.
    """
    steps = [np.diff(patches, axis=axis) for axis in (2, 3)]
    covariance = sum(np.einsum("nchw,ndhw->cd", step, step) for step in steps)
    axes = np.linalg.eigh(covariance)[1]
    turned: Array = np.einsum("cd,nchw->ndhw", axes, patches)
    return turned


def windows(fields: Array) -> Array:
    """All windows ``[M, C, h, 2k]`` over the whole height of a patch and two strips wide."""
    width = 2 * strip_of(fields)
    views = np.lib.stride_tricks.sliding_window_view(fields, width, axis=3)
    return views.transpose(0, 3, 1, 2, 4).reshape(-1, *fields.shape[1:3], width)


def textures(samples: Array) -> list[Texture]:
    """Windows ``[M, C, h, 2k]`` sorted by the energy of their gradients into equal shares."""
    energy = sum(np.square(np.diff(samples, axis=axis)).mean((1, 2, 3)) for axis in (2, 3))
    pixels = samples.shape[2] * samples.shape[3]
    parts = max(1, min(TEXTURES, len(samples) // (WINDOWS_PER_PIXEL * pixels)))
    return [
        Texture(share=len(part) / len(samples), covariances=covariances(samples[part]))
        for part in np.array_split(np.argsort(energy, kind="stable"), parts)
    ]


def covariances(samples: Array) -> Array:
    """Per channel ``[C, d, d]``, made the same from left and right, above and below."""
    count, channels, *sides = samples.shape
    rows = samples.swapaxes(0, 1).reshape(channels, count, -1)
    found: Array = (rows.swapaxes(1, 2) @ rows / count).reshape(channels, *sides, *sides)
    found = (found + found[:, ::-1, :, ::-1]) / 2
    found = (found + found[:, :, ::-1, :, ::-1]) / 2
    return found.reshape(channels, rows.shape[2], rows.shape[2])


def misfit(fields: Array, mixture: list[Texture], white: float) -> Array:
    """``log p(a) + log p(b) - log p(a, b)`` for every b to the right of every a, ``[N, N]``."""
    strip = strip_of(fields)
    ends, starts = fields[..., -strip:], fields[..., :strip]
    of_a, of_b, of_both = (np.full(1, -np.inf) for _ in range(3))
    for texture in mixture:
        a, b, both = (np.full(1, np.log(texture.share)) for _ in range(3))
        for channel, covariance in enumerate(texture.covariances):
            S = covariance + white * np.eye(len(covariance))
            more = log_normal(ends[:, channel], starts[:, channel], S)
            a, b, both = a + more[0], b + more[1], both + more[2]
        of_a, of_b = np.logaddexp(of_a, a), np.logaddexp(of_b, b)
        of_both = np.logaddexp(of_both, both)
    found: Array = of_a[:, None] + of_b[None, :] - of_both
    return found


def log_normal(a: Array, b: Array, S: Array) -> tuple[Array, Array, Array]:
    """``log p(a) [N]``, ``log p(b) [N]``, ``log p(a, b) [N, N]`` of strips ``[N, h, k]``.

    Without the factors of 2 pi, which cancel in the cost.
    """
    place = np.arange(len(S)).reshape(a.shape[1], -1)
    at_a, at_b = place[:, : a.shape[2]].ravel(), place[:, a.shape[2] :].ravel()
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    K = np.linalg.inv(S)
    S_aa, S_bb = S[np.ix_(at_a, at_a)], S[np.ix_(at_b, at_b)]
    with_a, with_b = quadratic(a, K[np.ix_(at_a, at_a)]), quadratic(b, K[np.ix_(at_b, at_b)])
    both = with_a[:, None] + with_b[None, :] + 2 * a @ K[np.ix_(at_a, at_b)] @ b.T
    return (
        -(quadratic(a, np.linalg.inv(S_aa)) + np.linalg.slogdet(S_aa)[1]) / 2,
        -(quadratic(b, np.linalg.inv(S_bb)) + np.linalg.slogdet(S_bb)[1]) / 2,
        -(both + np.linalg.slogdet(S)[1]) / 2,
    )


def quadratic(rows: Array, form: Array) -> Array:
    """``x form x`` for each row x, ``[N]``."""
    found: Array = ((rows @ form) * rows).sum(1)
    return found


def strip_of(fields: Array) -> int:
    """The widest strip, up to STRIP, of which two fit into a patch."""
    return min(STRIP, int(fields.shape[3]) // 2)


def mutual_best(costs: Array) -> int:
    """How many rows' least entries are also the least of their columns, the diagonal left out."""
    others = costs + np.diag(np.full(len(costs), np.inf))
    best_of_row, best_of_column = others.argmin(1), others.argmin(0)
    return int(np.count_nonzero(best_of_column[best_of_row] == np.arange(len(costs))))
