"""Which blocks of the colour planes belong together.

A block's texture is nearly the same in red, green and blue, and so is its place between the
region's darkest and brightest: that tells most blocks apart, before anything is known of places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import surprise
from keyhole.attacks.jigsaw.regions.blocks import least
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells, picked

LIKENESS = 0.95
"""The correlation of planes."""
ROUGHNESS, REACH = 0.8, 20.0
"""Pixels of a plane r apart have the covariance REACH - r^ROUGHNESS, up to a factor that a block
has for itself: as natural images have it."""
SPECK = 1e-3
"""Below this squared contrast, in units of that covariance, differences are taken for noise."""
UNFORESEEN = 0.05
"""The share of blocks whose planes may differ in anything."""


def matched(cells: Cells) -> Tensor:
    """For each item of the middle plane its partners: ``[B, C, R, Q, 16]``, numbers of items.

    Planes come in one after the other, each judged beside all those before it.
    """
    shades = deviations(cells)
    planes = shades.shape[1]
    first = planes // 2
    order = torch.arange(CELLS, device=shades.device).expand(shades.shape[:5]).clone()
    known = [first]
    for plane in [p for p in range(planes) if p != first]:
        cost = cells.cannot
        for other in known:
            one, two = picked(shades, order)[:, other], shades[:, plane]
            apart = apartness(one, two)
            cost = cost + surprise(apart, torch.ones_like(apart, dtype=torch.bool), UNFORESEEN)
        order[:, plane] = least(cells.as_blocks(cost) + cells.cannot)
        known.append(plane)
    return order


def deviations(cells: Cells) -> Tensor:
    """Items less their region's mean, ``[B, C, R, Q, 16, pixels]``; zero where not real."""
    values = cells.items.flatten(5)
    real = cells.real[..., None].to(values)
    count = (real.sum(-2, keepdim=True) * values.shape[-1]).clamp_min(1)
    mean = (values * real).sum((-2, -1), keepdim=True) / count
    return (values - mean) * real


def apartness(one: Tensor, two: Tensor) -> Tensor:
    """``log p(a) + log p(b) - log p(a, b)`` of ``[..., 16, n]`` in two planes: ``[..., 16, 16]``.

    A Gaussian with correlation LIKENESS whose scale is unknown: a Student t of one degree of
    freedom, p(x) ~ (1 + Q(x) / SPECK)^(-(n + 1) / 2).
    """
    pixels = one.shape[-1]
    white = torch.linalg.inv(torch.linalg.cholesky(covariance(round(pixels**0.5)))).T.to(one)
    u, v = one @ white, two @ white
    of_u, of_v = (x.square().sum(-1) for x in (u, v))
    cross = u @ v.transpose(-1, -2)
    both = of_u[..., :, None] + of_v[..., None, :] - 2 * LIKENESS * cross
    both = both.clamp_min(0) / (1 - LIKENESS**2)
    alone = torch.log1p(of_u / SPECK)[..., :, None] + torch.log1p(of_v / SPECK)[..., None, :]
    return (pixels + 0.5) * torch.log1p(both / SPECK) - (pixels + 1) / 2 * alone


def covariance(side: int) -> Tensor:
    """Of the pixels of a square, float64 ``[side^2, side^2]``, with a little white noise."""
    axis = torch.arange(side, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis).view(-1, 2)
    distance = torch.cdist(places, places)
    return REACH - distance**ROUGHNESS + 0.01 * torch.eye(side * side, dtype=torch.float64)
