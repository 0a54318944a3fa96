"""Targets of low rank, kept as two thin factors.

A weight gradient that came from K positions has rank K at most. Where that is small, T is kept as
``P R`` with ``P [C, r]`` and ``R [r, Q]``, r a little more than K: of a fully connected layer and
one image, two vectors in place of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from keyhole.attacks.matching.lens import Lens
from keyhole.attacks.matching.match import Targets

THIN = 1e-6
"""Relative error up to which a target counts as the product of its thin factors."""
SPARE = 4
"""Columns beyond the expected rank that the range finder draws."""
SMALL = 1 << 14
"""Entries up to which a weight's gradient is always built: exactness for nothing."""


class ThinTargets(Targets):
    """Targets of which some are kept as thin factors."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        squares: dict[str, Tensor],
        thin: dict[str, tuple[Tensor, Tensor]],
        lenses: Mapping[str, Lens] | None = None,
    ) -> None:
        super().__init__(tensors, squares, lenses)
        self.thin = thin

    def select(self, victims: Tensor) -> ThinTargets:
        kept = super().select(victims)
        thin = {n: (left[victims], right[victims]) for n, (left, right) in self.thin.items()}
        return ThinTargets(kept.tensors, kept.squares, thin, kept.lenses)


def thinned(targets: Targets, ranks: dict[str, int], *, whole: bool) -> ThinTargets:
    """Keeps targets of known low rank as two factors, where they are; ``whole`` keeps them all."""
    tensors, thin = dict(targets.tensors), {}
    for name, rank in ranks.items():
        if whole or name not in tensors or name in targets.lenses:
            continue
        target = tensors[name].flatten(2)
        if target[0].numel() <= SMALL:
            continue
        width = rank + SPARE
        if 2 * width * sum(target.shape[1:]) > target[0].numel():
            continue
        factors = range_finder(target, width)
        if factors is not None:
            thin[name] = factors
            del tensors[name]
    return ThinTargets(tensors, targets.squares, thin, targets.lenses)


def range_finder(target: Tensor, width: int) -> tuple[Tensor, Tensor] | None:
    """``P [N, C, width]`` and ``R [N, width, Q]`` with ``P R = target``, if they exist."""
    fan_in = target.shape[2]
    draw = torch.Generator().manual_seed(0)
    sketch = torch.randn(fan_in, width, generator=draw, dtype=torch.double).to(target.device)
    lefts, rights = [], []
    for one in target:
        exact = one.double()
        left = torch.linalg.qr(exact @ sketch).Q
        right = left.mT @ exact
        if (left @ right - exact).norm() > THIN * exact.norm():
            return None
        lefts.append(left.to(target.dtype))
        rights.append(right.to(target.dtype))
    return torch.stack(lefts), torch.stack(rights)
