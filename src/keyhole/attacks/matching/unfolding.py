"""The columns a convolution multiplies, and their adjoint, as shifted copies.

``F.unfold`` launches a kernel a sample on GPUs and is memory-bound on CPUs; one strided copy for
each place in the kernel is faster on both, and twice differentiable since both maps are linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Geometry:
    """Where a convolution looks: sizes are (rows, columns)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    size: tuple[int, int]
    """Of the image."""

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> Geometry:
        """Of a convolution of ``x`` by ``weight``; the rest as ``F.conv2d`` takes it."""
        (rows, columns), (down, across) = weight.shape[2:], x.shape[2:]
        return cls(
            kernel=(rows, columns),
            stride=_pair(stride),
            padding=_pair(padding),
            dilation=_pair(dilation),
            size=(down, across),
        )

    @property
    def out(self) -> tuple[int, int]:
        """How many windows there are."""
        rows, columns = (
            (self.size[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1)
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        return rows, columns

    def windows(self) -> Iterator[tuple[int, slice, slice]]:
        """For each place in the kernel: the padded image's pixels that meet it."""
        for place in range(self.kernel[0] * self.kernel[1]):
            at = divmod(place, self.kernel[1])
            spans = [
                slice(
                    at[i] * self.dilation[i],
                    at[i] * self.dilation[i] + self.stride[i] * (self.out[i] - 1) + 1,
                    self.stride[i],
                )
                for i in (0, 1)
            ]
            yield place, spans[0], spans[1]


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    return pair[0], pair[-1]


class _Unfold(torch.autograd.Function):
    """``[M, C, H, W] -> [M, C * kernel, L]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry) -> Tensor:
        ctx.geometry = geometry
        rows, columns = geometry.padding
        padded = F.pad(x, (columns, columns, rows, rows)) if rows or columns else x
        places = geometry.kernel[0] * geometry.kernel[1]
        out = x.new_empty(*x.shape[:2], places, *geometry.out)
        for place, down, across in geometry.windows():
            out[:, :, place] = padded[:, :, down, across]
        return out.flatten(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Fold.apply(gradient, ctx.geometry), None


class _Fold(torch.autograd.Function):
    """The adjoint: each pixel gets the sum of its places in all windows."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, geometry: Geometry) -> Tensor:
        ctx.geometry = geometry
        (rows, across_pad), (height, width) = geometry.padding, geometry.size
        places = geometry.kernel[0] * geometry.kernel[1]
        apart = columns.reshape(len(columns), -1, places, *geometry.out)
        shape = (*apart.shape[:2], height + 2 * rows, width + 2 * across_pad)
        padded = columns.new_zeros(shape)
        for place, down, across in geometry.windows():
            padded[:, :, down, across] += apart[:, :, place]
        inner: Tensor = padded[:, :, rows : rows + height, across_pad : across_pad + width]
        return inner.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Unfold.apply(gradient, ctx.geometry), None


def unfold(x: Tensor, geometry: Geometry) -> Tensor:
    """The columns ``[M, Q, L]`` that a convolution with this geometry multiplies."""
    if geometry.kernel == (1, 1) and geometry.padding == (0, 0):
        rows, columns = geometry.stride
        return x[:, :, ::rows, ::columns].flatten(2)
    made: Tensor = _Unfold.apply(x, geometry)
    return made


def convolve(columns: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The convolution whose columns ``[M, L, Q]`` are there already: ``[M, C, *out]``."""
    made = F.linear(columns, weight.flatten(1), bias)
    return made.mT.reshape(len(columns), len(weight), *geometry.out)
