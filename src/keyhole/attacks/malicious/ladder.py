"""A ladder of thresholds: rows that measure the same thing of an image and fire at rising values.

Rows ``i`` of a linear layer share one functional ``h``, and their biases are minus its quantiles
``q_i`` on public images. Under a ReLU every row below an image's own value fires, so the gradients
of neighbouring rows differ by the images between their thresholds alone:

    dW_i - dW_{i+1} = sum over images n with q_i < h(x_n) <= q_{i+1} of g_n x_n

and likewise for the biases, without x_n. Where one image lies there, the quotient is that image. If
each row fires only between two thresholds, no difference needs to be taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

GRID = 4096
"""Points at which the distribution of the functional is evaluated."""
ROUNDING = 64.0
"""Bins below this multiple of the rounding error of the largest sum count as empty."""
LOUD = 4.0
"""Bins count as filled from this multiple of the noise on."""


def spread_quantiles(values: Tensor, shares: Tensor) -> Tensor:
    """Returns quantiles of the distribution that ``values [n]`` were drawn from.

    The distribution is a Gaussian kernel estimate (Silverman's bandwidth), so that there are
    distinct quantiles between and beyond the values.

    >>> spread_quantiles(torch.tensor([0.0, 1.0]), torch.tensor([0.5]))
    tensor([0.5000])

    Args:
        values: Public values of the functional, ``[n]``.
        shares: The wanted shares in (0, 1), ascending, ``[k]``.
    """
    points = values.double()
    spread = points.std(correction=0).clamp_min(1e-3)
    width = 1.06 * spread * len(points) ** -0.2
    low, high = points.min() - 5 * width, points.max() + 5 * width
    grid = torch.linspace(float(low), float(high), GRID, dtype=torch.double)
    below = torch.special.ndtr((grid[:, None] - points[None, :].cpu()) / width.cpu()).mean(1)
    right = torch.searchsorted(below, shares.double().cpu()).clamp(1, GRID - 1)
    rise = (shares.double().cpu() - below[right - 1]) / (below[right] - below[right - 1])
    found = grid[right - 1] + rise * (grid[right] - grid[right - 1])
    quantiles: Tensor = found.to(values)
    return quantiles


@dataclass(frozen=True)
class FilledBins:
    """The bins of a ladder that hold an image, fullest first.

    Args:
        rows: The number of each bin's lower threshold, ``[b]``.
        weight: The weight gradient that belongs to each bin alone, ``[b, D]``, float64.
        bias: The bias gradient of each bin, ``[b]``, float64.
    """

    rows: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def images(self) -> Tensor:
        """The quotients ``[b, D]``: a bin's image, or the weighted mean of several."""
        return self.weight / self.bias[:, None]


def read_bins(weight: Tensor, bias: Tensor, *, cumulative: bool, most: int) -> FilledBins:
    """Returns the bins of a ladder that hold images.

    Args:
        weight: The gradient of the ladder's weights, ``[k, D]``.
        bias: The gradient of its biases, ``[k]``.
        cumulative: Whether every row below an image's value fires, and not one row alone.
        most: How many bins to return at most.
    """
    steps = bias.double()
    if cumulative:
        steps = steps - torch.cat([steps[1:], steps.new_zeros(1)])
    rounding = ROUNDING * torch.finfo(bias.dtype).eps * float(bias.abs().max())
    order = steps.abs().argsort(descending=True)[:most]
    rows = order[steps[order].abs() > (rounding if cumulative else 0.0)]
    part = weight[rows].double()
    if cumulative:
        inside = rows + 1 < len(weight)
        part[inside] -= weight[rows[inside] + 1].double()
    return FilledBins(rows, part, steps[rows])


def read_noisy_bins(
    weight: Tensor, bias: Tensor, *, cumulative: bool, most: int, noise: float
) -> tuple[FilledBins, Tensor]:
    """Returns the bins that stand out of known noise, and the noise variance left in each.

    Between the bins of two images all rows of a cumulative ladder have the same gradient. Their
    mean has that much less noise, so the differences of these means are taken.

    Args:
        weight: The gradient of the ladder's weights, ``[k, D]``.
        bias: The gradient of its biases, ``[k]``.
        cumulative: Whether every row below an image's value fires, and not one row alone.
        most: How many bins to return at most.
        noise: The standard deviation of the noise in every value.
    """
    if not cumulative:
        found = read_bins(weight, bias, cumulative=False, most=most)
        loud = found.bias.abs() > LOUD * noise
        bins = FilledBins(found.rows[loud], found.weight[loud], found.bias[loud])
        return bins, torch.full_like(bins.bias, noise**2)
    rows = torch.cat([weight, bias[:, None]], 1).double()
    cuts = find_cuts(rows, most, noise)
    rest = rows[cuts[-1] :] if cuts else rows
    if len(cuts) < most and len(rest) * rest.mean(0).square().sum() > jump_limit(rows, noise):
        cuts.append(len(rows))  # an image fires every row
    segments = [rows[start:end] for start, end in pairwise([0, *cuts])]
    means = torch.stack([*(part.mean(0) for part in segments), torch.zeros_like(rows[0])])
    shares = torch.tensor([*(1 / len(part) for part in segments), 0.0]).to(rows)
    jumps = means[:-1] - means[1:]
    found = FilledBins(torch.tensor(cuts, dtype=torch.long) - 1, jumps[:, :-1], jumps[:, -1])
    return found, noise**2 * (shares[:-1] + shares[1:])


def find_cuts(rows: Tensor, most: int, noise: float) -> list[int]:
    """Returns where the mean of noisy ``rows [k, D]`` jumps, ascending: at most ``most`` places.

    Segments are cut in two where that explains most, as long as noise alone would not.
    """
    sums = torch.cat([rows.new_zeros(1, rows.shape[1]), rows.cumsum(0)])
    limit = jump_limit(rows, noise)
    cuts = [0, len(rows)]
    while len(cuts) < most + 2:
        gain, place = max(best_cut(sums, start, end) for start, end in pairwise(cuts))
        if gain <= limit:
            break
        cuts = sorted([*cuts, place])
    return cuts[1:-1]


def best_cut(sums: Tensor, start: int, end: int) -> tuple[float, int]:
    """Returns the most that one cut of rows ``start`` to ``end`` explains, and where it is."""
    if end - start < 2:
        return 0.0, start
    before = torch.arange(1, end - start, device=sums.device).to(sums)
    after = (end - start) - before
    inside = sums[start + 1 : end]
    gap = (inside - sums[start]) / before[:, None] - (sums[end] - inside) / after[:, None]
    gains = gap.square().sum(1) * before * after / (end - start)
    best = int(gains.argmax())
    return float(gains[best]), start + 1 + best


def jump_limit(rows: Tensor, noise: float) -> float:
    """Returns what a jump must exceed not to be noise, with 99% confidence over all places.

    The bound of Laurent and Massart for a chi-squared variable of D degrees of freedom.
    """
    places, width = rows.shape
    t = math.log(100 * places)
    return noise**2 * (width + 2 * math.sqrt(width * t) + 2 * t)
