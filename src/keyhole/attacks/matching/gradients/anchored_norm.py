"""BatchNorm in train mode with the statistics of the client's own batch, which are known.

The forward pass normalises by the known statistics. The backward pass is that of batch norm in
train mode, with the normalised values by the known statistics:

    dx = (dy - mean(dy) - xh mean(dy xh)) / s.

At the client's own images both equal what the client computed. Away from them the pass forward
does not follow the dummy images' own statistics, so that what one layer gets wrong is not
normalised away by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class InnerPass:
    """Whether the gradient that is compared is being taken: only that is the client's own.

    The derivative of the distance by the images is taken later, of the pass as it was computed.
    """

    def __init__(self) -> None:
        self.active = True


@dataclass(frozen=True)
class KnownMoments:
    """Mean and variance of one BatchNorm's batch, of each victim: ``[N, C]`` each."""

    mean: Tensor
    var: Tensor

    def select(self, victims: Tensor) -> KnownMoments:
        """Those of some of the victims."""
        return KnownMoments(self.mean[victims], self.var[victims])


@dataclass(frozen=True)
class KnownStatistics:
    """What uploaded buffers tell of the batches of N victims.

    Args:
        moments: One entry per BatchNorm, in the order of the forward pass: the moments of the
            batch, or their weighted mean over the local steps.
        shares: The weight of each local step in that mean, one tuple per BatchNorm.
        anchored: Whether dummy images pass the BatchNorms by these moments, and not by their own.
    """

    moments: tuple[KnownMoments, ...]
    shares: tuple[tuple[float, ...], ...]
    anchored: bool

    def select(self, victims: Tensor) -> KnownStatistics:
        """Those of some of the victims."""
        chosen = tuple(each.select(victims) for each in self.moments)
        return KnownStatistics(chosen, self.shares, self.anchored)


class AnchoredNorm(torch.autograd.Function):
    """``(x - mean) / s`` of ``x [N, B, C, ...]``, with a backward pass of its own (see above)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mean: Tensor, scale: Tensor, inner: InnerPass) -> Tensor:
        return (x - mean) * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        _, _, scale, ctx.inner = inputs
        ctx.save_for_backward(output, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        normalised, scale = ctx.saved_tensors
        if ctx.inner.active:
            axes = [1, *range(3, gradient.ndim)]
            slope = (gradient * normalised).mean(axes, keepdim=True)
            gradient = gradient - gradient.mean(axes, keepdim=True) - normalised * slope
        return gradient * scale, None, None, None


def normalise_anchored(x: Tensor, known: KnownMoments, eps: float, inner: InnerPass) -> Tensor:
    """Normalises ``[N * B, C, ...]`` by each victim's known moments ``[N, C]``."""
    victims, channels = known.mean.shape
    shape = (victims, 1, channels, *(1 for _ in x.shape[2:]))
    by_victim = torch.unflatten(x, 0, (victims, -1))
    scale = (known.var + eps).rsqrt().to(x)
    normalised = AnchoredNorm.apply(
        by_victim, known.mean.to(x).view(shape), scale.view(shape), inner
    )
    flat: Tensor = normalised.flatten(0, 1)
    return flat
