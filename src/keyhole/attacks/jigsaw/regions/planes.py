"""Which blocks of the colour planes belong together.

A block's texture is nearly the same in red, green and blue, and so is its rank between the
region's darkest and brightest. That tells most blocks apart before anything is known about places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import compute_surprise
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells, reorder_pieces

PLANE_CORRELATION = 0.95
ROUGHNESS, REACH = 0.8, 20.0
"""Pixels of a plane at a distance r have the covariance REACH - r^ROUGHNESS, up to a factor that
each block has for itself, as in natural images."""
NOISE_CONTRAST = 1e-3
"""Below this squared contrast, in units of that covariance, differences are taken for noise."""
OUTLIER_SHARE = 0.05
"""The share of blocks whose planes may differ arbitrarily."""


def match_planes(cells: Cells) -> Tensor:
    """For each piece of the middle plane its partners: ``[B, C, R, Q, 16]``, numbers of pieces.

    Planes are matched one after the other, each with all those before it.

    Args:
        cells: The cells of images whose planes were shuffled apart.
    """
    deviations = subtract_region_means(cells)
    planes = deviations.shape[1]
    middle = planes // 2
    order = torch.arange(CELLS, device=deviations.device).expand(deviations.shape[:5]).clone()
    matched = [middle]
    for plane in [p for p in range(planes) if p != middle]:
        costs = cells.forbidden
        for other in matched:
            reordered = reorder_pieces(deviations, order)[:, other]
            misfits = compute_plane_misfits(reordered, deviations[:, plane])
            possible = torch.ones_like(misfits, dtype=torch.bool)
            costs = costs + compute_surprise(misfits, possible, OUTLIER_SHARE)
        order[:, plane] = cells.assign(costs)
        matched.append(plane)
    return order


def subtract_region_means(cells: Cells) -> Tensor:
    """Pieces less their region's mean, ``[B, C, R, Q, 16, pixels]``; zero where not real."""
    values = cells.pieces.flatten(5)
    real = cells.real[..., None].to(values)
    count = (real.sum(-2, keepdim=True) * values.shape[-1]).clamp_min(1)
    mean = (values * real).sum((-2, -1), keepdim=True) / count
    return (values - mean) * real


def compute_plane_misfits(one: Tensor, two: Tensor) -> Tensor:
    """``log p(a) + log p(b) - log p(a, b)`` of ``[..., 16, n]`` in two planes: ``[..., 16, 16]``.

    A Gaussian with correlation PLANE_CORRELATION whose scale is unknown: a Student t of one degree
    of freedom, p(x) ~ (1 + Q(x) / NOISE_CONTRAST)^(-(n + 1) / 2).
    """
    pixels = one.shape[-1]
    covariance = build_pixel_covariance(round(pixels**0.5))
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).T.to(one)
    u, v = one @ whitening, two @ whitening
    of_u, of_v = (x.square().sum(-1) for x in (u, v))
    cross = u @ v.transpose(-1, -2)
    joint = of_u[..., :, None] + of_v[..., None, :] - 2 * PLANE_CORRELATION * cross
    joint = joint.clamp_min(0) / (1 - PLANE_CORRELATION**2)
    log_u, log_v = (torch.log1p(x / NOISE_CONTRAST) for x in (of_u, of_v))
    separate = log_u[..., :, None] + log_v[..., None, :]
    return (pixels + 0.5) * torch.log1p(joint / NOISE_CONTRAST) - (pixels + 1) / 2 * separate


def build_pixel_covariance(side: int) -> Tensor:
    """Of the pixels of a square, float64 ``[side^2, side^2]``, with a little white noise."""
    axis = torch.arange(side, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis).view(-1, 2)
    distance = torch.cdist(places, places)
    return REACH - distance**ROUGHNESS + 0.01 * torch.eye(side * side, dtype=torch.float64)
