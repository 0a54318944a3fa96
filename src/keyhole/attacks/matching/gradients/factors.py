"""A weight gradient as the product of a layer's output gradients and inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.frozen_convolution import ProductOfColumns
from keyhole.attacks.matching.gradients.gradient_weights import GradientWeights
from keyhole.attacks.matching.gradients.low_rank import ALWAYS_BUILT
from keyhole.attacks.matching.gradients.products import GramProduct, sum_per_victim


@dataclass(frozen=True)
class Factors:
    """One layer's inputs ``[N, K, Q]`` and output gradients ``[N, K, C]``."""

    inputs: Tensor
    output_gradients: Tensor
    weight_shape: torch.Size

    @property
    def build_is_cheaper(self) -> bool:
        """Whether ``D^T U`` costs less than the two Gram matrices, or next to nothing."""
        (_, positions, fan_in), fan_out = self.inputs.shape, self.output_gradients.shape[2]
        size = fan_in * fan_out
        return size <= ALWAYS_BUILT or size < positions * (fan_in + fan_out)

    def build(self) -> Tensor:
        """G, ``[N, *weight_shape]``."""
        if self.has_columns:
            built: Tensor = ProductOfColumns.apply(self.output_gradients.mT, self.inputs.mT)
            return built.reshape(-1, *self.weight_shape)
        return (self.output_gradients.mT @ self.inputs).view(-1, *self.weight_shape)

    @property
    def has_columns(self) -> bool:
        """Whether the inputs are columns ``[N, Q, K]`` in a CPU's memory.

        Products are then written so that the derivative by the columns is in their order as well:
        folding it in another order takes four times as long.
        """
        return self.inputs.is_cpu and self.inputs.mT.is_contiguous()

    def squared_norm(self) -> Tensor:
        """``|G|^2``, ``[N]``."""
        squared: Tensor = GramProduct.apply(self.output_gradients, self.inputs)
        return squared

    def weighted_squared_norm(self, weights: GradientWeights) -> Tensor:
        """``|G'|^2`` of the weighted gradient, ``[N]``.

        For weights on frequencies this is ``|G|^2 - (1 - keep^2) |G P|^2``, of which only the few
        rows with ``keep < 1`` are built.
        """
        if weights.bins is None:
            weighted = self.output_gradients * weights.keep[:, None]
            return replace(self, output_gradients=weighted).squared_norm()
        assert weights.rows is not None
        removed = (1 - weights.keep.square()).gather(1, weights.rows).sqrt()
        rows = weights.rows[:, None].expand(-1, self.output_gradients.shape[1], -1)
        D = self.output_gradients.gather(2, rows) * removed[:, None].to(self.output_gradients)
        kernels = self.inputs.unflatten(2, (-1, len(weights.bins)))  # type: ignore[no-untyped-call]
        U = (kernels @ weights.bins.to(self.inputs)).flatten(2)
        return self.squared_norm() - sum_per_victim((D.mT @ U).square())

    def dot(self, target: Tensor) -> Tensor:
        """``<G, T>``, ``[N]``."""
        if self.has_columns:
            responses = (target.flatten(2).to(self.inputs) @ self.inputs.mT).mT
        else:
            responses = self.inputs @ target.flatten(2).to(self.inputs).mT
        return sum_per_victim(self.output_gradients * responses)

    def dot_low_rank(self, left: Tensor, right: Tensor) -> Tensor:
        """``<G, left @ right>`` for factors ``[N, C, r]`` and ``[N, r, Q]``: ``[N]``."""
        lefts = self.output_gradients @ left.to(self.output_gradients)
        rights = self.inputs @ right.to(self.inputs).mT
        return sum_per_victim(lefts * rights)
