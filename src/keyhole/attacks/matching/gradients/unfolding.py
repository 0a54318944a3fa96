"""The columns that a convolution multiplies, and their adjoint, as shifted copies.

``F.unfold`` launches one kernel per sample on GPUs and is memory-bound on CPUs. One strided copy
per kernel offset is faster on both, and twice differentiable because both maps are linear. Only
where windows are few, and for the adjoint, a CPU is faster with torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_WINDOWS = 16
"""Windows up to which a CPU is faster with torch's own unfolding."""
AVOIDS_WRITES: ContextVar[bool] = ContextVar("AVOIDS_WRITES", default=False)
"""Whether columns are stacked and summed instead of written in place, which a compiler can fuse."""


@contextmanager
def without_writes() -> Iterator[None]:
    """Unfolds and folds without writing in place inside the block."""
    token = AVOIDS_WRITES.set(True)
    try:
        yield
    finally:
        AVOIDS_WRITES.reset(token)


@dataclass(frozen=True)
class ConvGeometry:
    """The windows of a convolution; sizes are (rows, columns)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    image_size: tuple[int, int]

    @classmethod
    def from_conv(
        cls, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any
    ) -> ConvGeometry:
        """The geometry of ``F.conv2d(x, weight, None, stride, padding, dilation)``."""
        (rows, columns), (down, across) = weight.shape[2:], x.shape[2:]
        return cls(
            kernel=(rows, columns),
            stride=_pair(stride),
            padding=_pair(padding),
            dilation=_pair(dilation),
            image_size=(down, across),
        )

    @property
    def output_size(self) -> tuple[int, int]:
        """The number of windows."""
        rows, columns = (
            (self.image_size[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1)
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        return rows, columns

    @property
    def arguments(self) -> tuple[tuple[int, int], ...]:
        """What ``F.unfold`` and ``F.fold`` take, in their order."""
        return self.kernel, self.dilation, self.padding, self.stride

    def kernel_pixels(self) -> Iterator[tuple[int, slice, slice]]:
        """For each offset in the kernel, the pixels of the padded image that it multiplies."""
        for number in range(self.kernel[0] * self.kernel[1]):
            offset = divmod(number, self.kernel[1])
            spans = [
                slice(
                    offset[i] * self.dilation[i],
                    offset[i] * self.dilation[i] + self.stride[i] * (self.output_size[i] - 1) + 1,
                    self.stride[i],
                )
                for i in (0, 1)
            ]
            yield number, spans[0], spans[1]


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    return pair[0], pair[-1]


class _Unfold(torch.autograd.Function):
    """``[M, C, H, W] -> [M, C * kernel, L]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: ConvGeometry) -> Tensor:
        ctx.geometry = geometry
        compiles = AVOIDS_WRITES.get()
        if x.is_cpu and not compiles and prod(geometry.output_size) <= FEW_WINDOWS:
            return F.unfold(x, *geometry.arguments)
        rows, columns = geometry.padding
        padded = F.pad(x, (columns, columns, rows, rows)) if rows or columns else x
        if compiles:
            return stack_columns(padded, geometry)
        if x.is_cpu and geometry.dilation == (1, 1):
            return copy_windows(padded, geometry)
        offsets = geometry.kernel[0] * geometry.kernel[1]
        out = x.new_empty(*x.shape[:2], offsets, *geometry.output_size)
        for offset, down, across in geometry.kernel_pixels():
            out[:, :, offset] = padded[:, :, down, across]
        return out.flatten(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Fold.apply(gradient, ctx.geometry), None


class _Fold(torch.autograd.Function):
    """The adjoint: each pixel gets the sum of its entries in all windows."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, geometry: ConvGeometry) -> Tensor:
        ctx.geometry = geometry
        if AVOIDS_WRITES.get():
            return sum_columns(columns, geometry)
        if columns.is_cpu:
            return F.fold(columns, geometry.image_size, *geometry.arguments)
        (pad_rows, pad_columns), (height, width) = geometry.padding, geometry.image_size
        offsets = geometry.kernel[0] * geometry.kernel[1]
        split = columns.reshape(len(columns), -1, offsets, *geometry.output_size)
        shape = (*split.shape[:2], height + 2 * pad_rows, width + 2 * pad_columns)
        padded = columns.new_zeros(shape)
        for offset, down, across in geometry.kernel_pixels():
            padded[:, :, down, across] += split[:, :, offset]
        inner: Tensor = padded[
            :, :, pad_rows : pad_rows + height, pad_columns : pad_columns + width
        ]
        return inner.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Unfold.apply(gradient, ctx.geometry), None


def copy_windows(padded: Tensor, geometry: ConvGeometry) -> Tensor:
    """The columns ``[M, C * kernel, L]`` of padded images, by one copy of overlapping views."""
    rows = padded.unfold(2, geometry.kernel[0], geometry.stride[0])
    windows = rows.unfold(3, geometry.kernel[1], geometry.stride[1])
    columns = windows.permute(0, 1, 4, 5, 2, 3)
    return columns.reshape(len(padded), -1, prod(geometry.output_size))


def stack_columns(padded: Tensor, geometry: ConvGeometry) -> Tensor:
    """The columns ``[M, C * kernel, L]`` of padded images, without writing in place."""
    windows = [padded[:, :, down, across] for _, down, across in geometry.kernel_pixels()]
    return torch.stack(windows, 2).flatten(1, 2).flatten(2)


def sum_columns(columns: Tensor, geometry: ConvGeometry) -> Tensor:
    """The images ``[M, C, H, W]`` of summed columns, without writing in place.

    Each offset's windows are spread by the stride, moved to their place in the padded image by
    padding them with zeros, and added.
    """
    (pad_rows, pad_columns), (height, width) = geometry.padding, geometry.image_size
    rows, across = height + 2 * pad_rows, width + 2 * pad_columns
    offsets = geometry.kernel[0] * geometry.kernel[1]
    split = columns.reshape(len(columns), -1, offsets, *geometry.output_size)
    placed = []
    for offset in range(offsets):
        row, column = divmod(offset, geometry.kernel[1])
        top, left = row * geometry.dilation[0], column * geometry.dilation[1]
        spread = spread_windows(split[:, :, offset], geometry.stride)
        spread = spread[..., : rows - top, : across - left]
        right, bottom = across - left - spread.shape[-1], rows - top - spread.shape[-2]
        placed.append(F.pad(spread, (left, right, top, bottom)))
    total = placed[0]
    for image in placed[1:]:
        total = total + image
    return total[:, :, pad_rows : pad_rows + height, pad_columns : pad_columns + width]


def spread_windows(x: Tensor, stride: tuple[int, int]) -> Tensor:
    """``[M, C, h, w]`` with ``stride - 1`` zeros after each row and column."""
    if stride == (1, 1):
        return x
    spread = F.pad(x[..., :, None, :, None], (0, stride[1] - 1, 0, 0, 0, stride[0] - 1))
    return spread.flatten(-2).flatten(-3, -2)


def unfold(x: Tensor, geometry: ConvGeometry) -> Tensor:
    """The columns ``[M, Q, L]`` that a convolution with this geometry multiplies."""
    if geometry.kernel == (1, 1) and geometry.padding == (0, 0):
        rows, columns = geometry.stride
        return x[:, :, ::rows, ::columns].flatten(2)
    unfolded: Tensor = _Unfold.apply(x, geometry)
    return unfolded


def convolve_columns(
    columns: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry
) -> Tensor:
    """The convolution ``[M, C, *output_size]`` of images whose columns are ``[M, L, Q]``."""
    product = F.linear(columns, weight.flatten(1), bias)
    return product.mT.reshape(len(columns), len(weight), *geometry.output_size)


def multiply_columns(
    columns: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry
) -> Tensor:
    """The same of columns ``[M, Q, L]``."""
    flat = weight.flatten(1)
    product = torch.bmm(flat.expand(len(columns), *flat.shape), columns)  # not folded into one
    product = product if bias is None else product + bias[:, None]
    return product.reshape(len(columns), len(weight), *geometry.output_size)
