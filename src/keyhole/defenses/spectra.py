"""Noise in the high frequencies of convolution kernels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reading = Literal["dc-kept", "printed"]
"""Where the mask's centre is: at the shifted spectrum's zero frequency ``floor(H/2)``, or at
``H/2`` as the paper prints it, which is no bin of an odd kernel and spares none of a 3x3 one."""


def find_high_bins(height: int, width: int, radius: float, reading: Reading = "dc-kept") -> Tensor:
    """Which bins of a kernel's spectrum are high, bool ``[H, W]`` in the order of ``fft2``.

    Bin (u, v) of the shifted spectrum is high if ``(u - c_H)^2 + (v - c_W)^2 >= radius^2``.

    >>> find_high_bins(3, 3, 0.5).int().tolist()
    [[0, 1, 1], [1, 1, 1], [1, 1, 1]]
    >>> int(find_high_bins(1, 1, 0.5).sum()), int(find_high_bins(3, 3, 0.5, "printed").sum())
    (0, 9)
    """
    down, across = (size // 2 if reading == "dc-kept" else size / 2 for size in (height, width))
    rows = torch.arange(height, dtype=torch.double) - down
    columns = torch.arange(width, dtype=torch.double) - across
    distance = rows[:, None].square() + columns[None, :].square()
    bins: Tensor = torch.fft.ifftshift(distance >= radius**2)
    return bins


def noise_energy(bins: Tensor) -> float:
    """The expected squared norm of one slice's noise: the number of high bins.

    A mask that treats a bin and its conjugate differently (the printed centre, large radii) loses
    part of it, as the real part is taken: the bins then count ``((m(k) + m(-k)) / 2)^2``.

    >>> noise_energy(find_high_bins(3, 3, 0.5)), noise_energy(find_high_bins(5, 5, 0.5))
    (8.0, 24.0)
    """
    mask = bins.double()
    conjugate = mask.flip(0, 1).roll((1, 1), (0, 1))
    return float(((mask + conjugate) / 2).square().sum())


def filter_bins(kernels: Tensor, bins: Tensor) -> Tensor:
    """``Re IFFT(mask * FFT(n))`` of kernels ``n [..., H, W]``, all of them at once."""
    return (kernels.flatten(-2) @ build_bin_filter(bins).to(kernels)).view_as(kernels)


def build_bin_filter(bins: Tensor) -> Tensor:
    """The real matrix ``[HW, HW]`` that keeps only these bins of flattened kernels.

    Kernels are small: multiplying by it is faster than two transforms.
    """
    height, width = bins.shape
    each = torch.eye(height * width, dtype=torch.double).view(-1, height, width)
    kept: Tensor = torch.fft.ifft2(torch.fft.fft2(each) * bins).real
    return kept.flatten(1)
