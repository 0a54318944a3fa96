"""A deep convolution's gradient, taken apart into the positions of its input.

A convolution of stride 1 whose output is as large as its input has, for tap t of its kernel, the
gradient ``W_t = sum_q d_(q-t) x_q^T``: q runs over positions, ``x_q [B, channels in]`` are the
inputs there and ``d_q`` the gradients at the output; outside the image both are 0. Where there are
fewer ``B * positions`` than channels, the taps are one and the same unknown basis, seen through
*known shifts*: with ``W_t = A K_t Z`` for bases A and Z of columns and rows there are matrices
``Y_q`` and ``Q_q``, B columns each, with

    K_t Y_q = Q_(q-t),   or 0 where q - t is outside.

The borders start it: ``Y`` of the first corner is what all taps that leave the image there send to
0. Each position then follows from its neighbours, by linear equations. What remains unknown is one
B x B matrix that mixes the images, the same at all positions; nothing is assumed of the layers
above, of the loss or of the labels. (Zhu and Blaschko 2021 solve single images layer by layer.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ABOVE_ROUNDING = 30.0
"""Singular values so many times those of the rounding count."""
PRECISION = 3e-8
"""The relative size of singular values of the rounding, where none are left to measure it."""
ROUNDS = 3
"""Rounds in which all positions are solved again from all their neighbours."""
MISMATCH = 0.2
"""The greatest relative error with which the shifts count as explained."""

Place = tuple[int, int]


@dataclass(frozen=True)
class MixedInputs:
    """A convolution's inputs and output gradients, up to a matrix that mixes images.

    With the true inputs x and gradients d there is a ``B x B`` matrix M such that ``x = M inputs``
    and ``d = M^-T gradients``, along the first axis.

    Args:
        inputs: ``[B, channels in, h, w]``, float64.
        gradients: ``[B, channels out, h, w]``, float64.
        mismatch: The relative error with which shifts explain the gradient.
    """

    inputs: Tensor
    gradients: Tensor
    mismatch: float


def separate_positions(gradient: Tensor, grid: tuple[int, int], batch: int) -> MixedInputs | None:
    """Separates the positions; None: they cannot be told apart.

    Args:
        gradient: The gradient of the kernel, ``[channels out, channels in, k, l]``, k and l odd.
        grid: Height and width of the layer's input and output.
        batch: The number of images.
    """
    count = batch * grid[0] * grid[1]
    gradient = gradient.double() / gradient.abs().max().clamp(min=1e-300)
    left = find_basis(gradient.flatten(1), count, may_lack=1)
    right = find_basis(gradient.permute(0, 2, 3, 1).flatten(0, 2).T, count, may_lack=0)
    if left is None or right is None:
        return None
    tall, wide = gradient.shape[2] // 2, gradient.shape[3] // 2
    shifts = Shifts(
        {
            (a - tall, b - wide): left.T @ gradient[:, :, a, b] @ right
            for a in range(gradient.shape[2])
            for b in range(gradient.shape[3])
        },
        grid,
        batch,
    )
    found = shifts.solve()
    if found is None or found[2] > MISMATCH:
        return None
    rows, columns, mismatch = found
    inputs = torch.linalg.solve(rows, right.T)
    return MixedInputs(
        to_images(inputs, grid, batch), to_images((left @ columns).T, grid, batch), mismatch
    )


def to_images(rows: Tensor, grid: tuple[int, int], batch: int) -> Tensor:
    """``[positions * B, channels]`` as ``[B, channels, h, w]``."""
    return rows.view(*grid, batch, -1).permute(2, 3, 0, 1)


def find_basis(matrix: Tensor, count: int, *, may_lack: int) -> Tensor | None:
    """An orthonormal basis of the columns' span, ``[rows, count]``; None: it has another rank.

    Args:
        matrix: ``[rows, columns]``.
        count: The rank.
        may_lack: By how much the rank may be smaller. Gradients behind a batch norm in train mode
            sum to 0 over images and positions.
    """
    if count > min(matrix.shape):
        return None
    vectors, strengths, _ = torch.linalg.svd(matrix, full_matrices=False)
    rest = strengths[count:]
    rounding = max(float(rest[0]) if len(rest) else 0.0, PRECISION * float(strengths[0]))
    rank = int((strengths[:count] > ABOVE_ROUNDING * rounding).sum())
    return vectors[:, :rank] if count - may_lack <= rank else None


@dataclass(frozen=True)
class Shifts:
    """The taps in their bases, ``K_t``, and the grid on which they shift.

    Args:
        taps: ``K_t [left rank, B * positions]`` by its shift.
        grid: Height and width.
        batch: The number of images.
    """

    taps: dict[Place, Tensor]
    grid: tuple[int, int]
    batch: int

    @property
    def places(self) -> list[Place]:
        """All positions, row by row."""
        return [(i, j) for i in range(self.grid[0]) for j in range(self.grid[1])]

    def inside(self, place: Place) -> bool:
        """Whether a position is in the image."""
        return 0 <= place[0] < self.grid[0] and 0 <= place[1] < self.grid[1]

    def solve(self) -> tuple[Tensor, Tensor, float] | None:
        """All Y ``[n, n]`` and Q ``[rank, n]``, and the mismatch; None: there is no start."""
        rows: dict[Place, Tensor] = {}
        columns: dict[Place, Tensor] = {}
        for place in self.places:
            found = self.solve_place(place, columns) if columns else self.solve_corner()
            if found is None:
                return None
            rows[place] = found
            for tap, matrix in self.taps.items():
                target = (place[0] - tap[0], place[1] - tap[1])
                if self.inside(target) and target not in columns:
                    columns[target] = matrix @ found
        everything, images = self.stack_rows(rows), self.stack_columns(columns)
        solver = torch.linalg.pinv(torch.cat(list(self.taps.values())))
        for _ in range(ROUNDS):
            shifted = torch.cat([self.shift(images, tap) for tap in self.taps])
            everything = solver @ shifted
            images = self.average(everything)
        shifted = torch.cat([self.shift(images, tap) for tap in self.taps])
        error = torch.cat([matrix @ everything for matrix in self.taps.values()]) - shifted
        return everything, images, float(error.norm() / shifted.norm())

    def solve_corner(self) -> Tensor | None:
        """``Y`` of the first corner: what the taps that leave the image there send to 0."""
        leaving = [matrix for (a, b), matrix in self.taps.items() if a > 0 or b > 0]
        if not leaving:
            return None
        rows: Tensor = torch.linalg.svd(torch.cat(leaving)).Vh
        return rows[-self.batch :].T

    def solve_place(self, place: Place, columns: dict[Place, Tensor]) -> Tensor:
        """``Y`` of a position, from the gradients known around it."""
        equations, wanted = [], []
        for (a, b), matrix in self.taps.items():
            target = (place[0] - a, place[1] - b)
            if not self.inside(target):
                wanted.append(matrix.new_zeros(len(matrix), self.batch))
            elif target in columns:
                wanted.append(columns[target])
            else:
                continue
            equations.append(matrix)
        solution: Tensor = torch.linalg.lstsq(torch.cat(equations), torch.cat(wanted)).solution
        return solution

    def stack_rows(self, rows: dict[Place, Tensor]) -> Tensor:
        """Y of all positions, ``[n, n]``."""
        return torch.cat([rows[place] for place in self.places], 1)

    def stack_columns(self, columns: dict[Place, Tensor]) -> Tensor:
        """Q of all positions, ``[rank, n]``."""
        return torch.cat([columns[place] for place in self.places], 1)

    def shift(self, columns: Tensor, tap: Place) -> Tensor:
        """``Q_(q-t)`` at each position q, 0 where it is outside."""
        blocks = columns.view(len(columns), *self.grid, self.batch)
        shifted = torch.zeros_like(blocks)
        (to_i, from_i), (to_j, from_j) = (
            overlap(t, n) for t, n in zip(tap, self.grid, strict=True)
        )
        shifted[:, to_i, to_j] = blocks[:, from_i, from_j]
        return shifted.flatten(1)

    def average(self, rows: Tensor) -> Tensor:
        """Q of all positions, each the mean of what the taps say of it."""
        total = rows.new_zeros(len(next(iter(self.taps.values()))), *self.grid, self.batch)
        counts = rows.new_zeros(*self.grid, 1)
        for tap, matrix in self.taps.items():
            said = (matrix @ rows).view(total.shape)
            (to_i, from_i), (to_j, from_j) = (
                overlap(t, n) for t, n in zip(tap, self.grid, strict=True)
            )
            total[:, from_i, from_j] += said[:, to_i, to_j]
            counts[from_i, from_j] += 1
        mean: Tensor = total / counts
        return mean.flatten(1)


def overlap(step: int, size: int) -> tuple[slice, slice]:
    """Where q is, and where q - step is, for all q of ``size`` for which both are inside."""
    return slice(max(0, step), size + min(0, step)), slice(max(0, -step), size - max(0, step))
