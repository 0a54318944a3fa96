"""What of a gradient is looked at: noisy rows or frequencies dimmed, victim by victim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from keyhole.attacks.noise import Noise


@dataclass(frozen=True)
class Lens:
    """Dims some rows of one parameter's gradient, in all or in some frequencies of its kernels:

        G' = G - (1 - keep) * G P.

    ``keep [..., K]`` in [0, 1] is one number a row, ``bins`` the projection P (see
    :class:`keyhole.attacks.noise.Noise`); None: P is the identity. Gradients are
    ``[..., K, *rest]``, with as many axes before K as ``keep`` has.
    """

    keep: Tensor
    bins: Tensor | None = None
    rows: Tensor | None = None
    """The rows ``[N, r]`` of each of N victims that may be dimmed; None: any."""

    def __call__(self, gradient: Tensor) -> Tensor:
        keep = self.keep.to(gradient)
        keep = keep.view(*keep.shape, *[1] * (gradient.dim() - keep.dim()))
        if self.bins is None:
            return gradient * keep
        dimmed = (gradient.flatten(-2) @ self.bins.to(gradient)).view_as(gradient)
        return gradient - (1 - keep) * dimmed

    def select(self, victims: Tensor) -> Lens:
        rows = None if self.rows is None else self.rows[victims]
        return replace(self, keep=self.keep[victims], rows=rows)

    def ready(self, like: Tensor) -> Lens:
        """For N victims where ``like`` is and of its type, so that no step has to look at it."""
        dimmed = self.keep < 1
        most = int(dimmed.sum(-1).max())
        rows = dimmed.to(like.device, torch.uint8).topk(most, dim=-1).indices
        bins = None if self.bins is None else self.bins.to(like)
        return Lens(self.keep.to(like), bins, rows)


Lenses = Mapping[str, Lens]
"""By the name of a parameter; one without a lens is seen as it is."""


def lenses_for(gradient: Mapping[str, Tensor], noise: Mapping[str, Noise]) -> dict[str, Lens]:
    """Lenses under which an inner product weighs each value by :meth:`Noise.trust`.

    Beside rows without noise a noisy one is dimmed whole, the frequencies that it shows cleanly
    too: on deep networks those are loud and say little (see the docs on TIP, with figures). Where
    every row has noise they are what there is.
    """
    found = {}
    for name, belief in noise.items():
        alone = bool((belief.variance > 0).all())
        found[name] = Lens(belief.trust(gradient[name]).sqrt(), belief.bins if alone else None)
    return found


def stacked(each: Sequence[Lenses], like: Tensor) -> dict[str, Lens]:
    """The lenses of several victims as one with the victim axis first.

    Rows are dimmed whole for all where they are for any.
    """
    names = [n for n in each[0] if all(n in lenses for lenses in each)]
    found = {}
    for n in names:
        own = [lenses[n] for lenses in each]
        bins = None if any(lens.bins is None for lens in own) else own[0].bins
        found[n] = Lens(torch.stack([lens.keep for lens in own]), bins).ready(like)
    return found
