"""Weights on the rows of a gradient: noisy rows or frequencies count less, per victim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from keyhole.defenses.noise_model import Noise


@dataclass(frozen=True)
class GradientWeights:
    """Scales down some rows of one parameter's gradient, in all or some frequencies of its kernels:

        G' = G - (1 - keep) * G P.

    ``keep [..., K]`` in [0, 1] has one value per row. ``bins`` is the projection P (see
    :class:`keyhole.defenses.Noise`); None means the identity. Gradients are
    ``[..., K, *rest]``, with as many axes before K as ``keep`` has. Afterwards single values are
    multiplied by ``values``, which has the gradient's shape; None means ones.
    """

    keep: Tensor
    bins: Tensor | None = None
    rows: Tensor | None = None
    """The rows ``[N, r]`` that may be scaled down for each of N victims; None: any row."""
    values: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor:
        weighted = self._weigh_rows(gradient)
        return weighted if self.values is None else weighted * self.values.to(weighted)

    def _weigh_rows(self, gradient: Tensor) -> Tensor:
        keep = self.keep.to(gradient)
        keep = keep.view(*keep.shape, *[1] * (gradient.dim() - keep.dim()))
        if self.bins is None:
            return gradient * keep
        projected = (gradient.flatten(-2) @ self.bins.to(gradient)).view_as(gradient)
        return gradient - (1 - keep) * projected

    def select(self, victims: Tensor) -> GradientWeights:
        rows = None if self.rows is None else self.rows[victims]
        values = None if self.values is None else self.values[victims]
        return replace(self, keep=self.keep[victims], rows=rows, values=values)

    def prepare(self, like: Tensor) -> GradientWeights:
        """Moves weights of N victims to the device and type of ``like`` and lists their rows.

        No later step has to read values back from the device.
        """
        reduced = self.keep < 1
        most = int(reduced.sum(-1).max())
        rows = reduced.to(like.device, torch.uint8).topk(most, dim=-1).indices
        bins = None if self.bins is None else self.bins.to(like)
        values = None if self.values is None else self.values.to(like)
        return GradientWeights(self.keep.to(like), bins, rows, values)


WeightsByName = Mapping[str, GradientWeights]
"""Keyed by parameter name; a parameter that is not listed is compared as it is."""


def weights_from_noise(
    gradient: Mapping[str, Tensor], noise: Mapping[str, Noise]
) -> dict[str, GradientWeights]:
    """Weights under which an inner product counts each value by :meth:`Noise.trust`.

    If a parameter has rows without noise, its noisy rows are scaled down in all frequencies, clean
    ones included: in deep networks the clean frequencies of noisy rows are large and carry little
    (the docs on TIP give figures). If every row is noisy, only the noisy frequencies are scaled.
    """
    weights = {}
    for name, belief in noise.items():
        all_noisy = bool((belief.variance > 0).all())
        weights[name] = GradientWeights(
            belief.trust(gradient[name]).sqrt(), belief.bins if all_noisy else None
        )
    return weights


def leave_out_values(weights: WeightsByName, misleading: Mapping[str, Tensor]) -> WeightsByName:
    """The same weights, and 0 for each value that is misleading.

    Args:
        weights: The weights of rows.
        misleading: Bool, in the shape of each parameter's gradient.
    """
    found = dict(weights)
    for name, mask in misleading.items():
        if mask.dim():
            plain = GradientWeights(torch.ones(len(mask), device=mask.device))
            found[name] = replace(found.get(name, plain), values=(~mask).float())
    return found


def keep_largest(
    weights: WeightsByName, gradient: Mapping[str, Tensor], share: float
) -> WeightsByName:
    """The same weights, and 0 for all values of a gradient but the largest.

    Args:
        weights: The weights of rows and values.
        gradient: The gradient by parameter.
        share: The share of all its values that is kept.
    """
    sizes = torch.cat([g.abs().flatten().double().cpu() for g in gradient.values()])
    kept = max(1, round(share * len(sizes)))
    least = float(sizes.topk(kept).values[-1])
    found = dict(weights)
    for name, value in gradient.items():
        if not value.dim():
            continue
        plain = GradientWeights(torch.ones(len(value), device=value.device))
        own = found.get(name, plain)
        large = (value.abs() >= least).float()
        values = large if own.values is None else own.values * large
        found[name] = replace(own, values=values)
    return found


def stack_weights(
    weights_per_victim: Sequence[WeightsByName], like: Tensor
) -> dict[str, GradientWeights]:
    """Combines the weights of several victims into one object with the victim axis first.

    Whole rows are scaled for all victims if they are for any.
    """
    first = weights_per_victim[0]
    shared = [n for n in first if all(n in weights for weights in weights_per_victim)]
    stacked = {}
    for name in shared:
        group = [weights[name] for weights in weights_per_victim]
        bins = None if any(weights.bins is None for weights in group) else group[0].bins
        keep = torch.stack([weights.keep for weights in group])
        some = [weights.values for weights in group if weights.values is not None]
        values = torch.stack(some) if len(some) == len(group) else None
        stacked[name] = GradientWeights(keep, bins, values=values).prepare(like)
    return stacked
