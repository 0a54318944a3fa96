"""Target gradients of low rank, stored as two thin factors.

The gradient of a weight that was used at K positions has rank K at most. Where K is small, the
target T is stored as ``P R`` with ``P [C, r]`` and ``R [r, Q]``, where r is slightly above K. For a
fully connected layer and one image these are two vectors instead of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.gradient_weights import GradientWeights
from keyhole.attacks.matching.gradients.intervals import IntervalsByName
from keyhole.attacks.matching.gradients.match import Targets

TOLERANCE = 1e-6
"""Relative error up to which a target counts as the product of its factors."""
OVERSAMPLING = 4
"""Columns that the range finder draws beyond the expected rank."""
ALWAYS_BUILT = 1 << 14
"""Entries up to which a weight's gradient is always built: exactness costs nothing there."""


class LowRankTargets(Targets):
    """Targets, some of which are stored as two factors."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        squares: dict[str, Tensor],
        factors: dict[str, tuple[Tensor, Tensor]],
        gradient_weights: Mapping[str, GradientWeights] | None = None,
        intervals: IntervalsByName | None = None,
        *,
        shown: bool | None = None,
        known_share: Tensor | None = None,
    ) -> None:
        super().__init__(
            tensors, squares, gradient_weights, intervals, shown=shown, known_share=known_share
        )
        self.factors = factors

    def select(self, victims: Tensor) -> LowRankTargets:
        targets = super().select(victims)
        factors = {n: (left[victims], right[victims]) for n, (left, right) in self.factors.items()}
        return LowRankTargets(
            targets.tensors,
            targets.squares,
            factors,
            targets.gradient_weights,
            targets.intervals,
            shown=targets.shows_values,
            known_share=targets.known_share,
        )


def factor_targets(
    targets: Targets, ranks: dict[str, int], *, needs_full_gradients: bool
) -> LowRankTargets:
    """Stores targets of known low rank as two factors where that saves memory.

    ``ranks`` gives the expected rank of each weight's gradient. With ``needs_full_gradients`` every
    target stays a whole tensor.
    """
    tensors, factors = dict(targets.tensors), {}
    for name, rank in ranks.items():
        if needs_full_gradients or name not in tensors:
            continue
        if name in targets.gradient_weights or name in targets.intervals:
            continue
        target = tensors[name].flatten(2)
        if target[0].numel() <= ALWAYS_BUILT:
            continue
        width = rank + OVERSAMPLING
        if 2 * width * sum(target.shape[1:]) > target[0].numel():
            continue
        pair = find_range(target, width)
        if pair is not None:
            factors[name] = pair
            del tensors[name]
    return LowRankTargets(
        tensors,
        targets.squares,
        factors,
        targets.gradient_weights,
        targets.intervals,
        shown=targets.shows_values,
        known_share=targets.known_share,
    )


def find_range(target: Tensor, width: int) -> tuple[Tensor, Tensor] | None:
    """``P [N, C, width]`` and ``R [N, width, Q]`` with ``P R = target``, if they exist."""
    fan_in = target.shape[2]
    generator = torch.Generator().manual_seed(0)
    sketch = torch.randn(fan_in, width, generator=generator, dtype=torch.double).to(target.device)
    lefts, rights = [], []
    for matrix in target:
        exact = matrix.double()
        left = torch.linalg.qr(exact @ sketch).Q
        right = left.mT @ exact
        if (left @ right - exact).norm() > TOLERANCE * exact.norm():
            return None
        lefts.append(left.to(target.dtype))
        rights.append(right.to(target.dtype))
    return torch.stack(lefts), torch.stack(rights)
