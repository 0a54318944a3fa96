"""Distances between reconstructed dropout masks and the client's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mask_distances(
    found: Sequence[Tensor], truth: Sequence[Tensor], order: Tensor | None = None
) -> dict[str, list[float]]:
    """Distances of dropout masks, averaged over samples.

    ``mmd`` is ``(1 / sites) sum over sites |found - truth|^2``, as in the DIA paper; ``mask`` is
    the mean over all elements.

    Args:
        found: Reconstructed masks, one tensor ``[samples, ...]`` per site.
        truth: The client's masks, likewise.
        order: For each sample its index among the reconstructed ones; None: the same.

    >>> found, truth = [torch.tensor([[0.5, 1.0]])], [torch.tensor([[True, True]])]
    >>> mask_distances(found, truth)
    {'mmd': [0.25], 'mask': [0.125]}
    """
    samples = len(truth[0])
    if order is None or len(order) != samples:
        order = torch.arange(samples)
    gaps = [
        (f.to(t.device, torch.double)[order.to(t.device)] - t.double()).square().flatten(1)
        for f, t in zip(found, truth, strict=True)
    ]
    per_site = torch.stack([gap.sum(1).mean() for gap in gaps])
    elements = sum(gap.shape[1] for gap in gaps)
    return {"mmd": [float(per_site.mean())], "mask": [float(per_site.sum() / elements)]}
