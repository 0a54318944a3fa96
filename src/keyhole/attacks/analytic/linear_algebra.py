"""The few pieces of linear algebra that the closed forms share."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.defenses.capabilities import Interval
from keyhole.seeds import generator
from keyhole.threat import Knowledge

TURNS = 500
CONVERGED = 1e-10
POWER_TURNS = 100
ALIKE = 1e-5
"""Rows whose directions differ by less (1 - |cos|) come from the same image."""


def solve_by_svd(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, float, int]:
    """Minimum-norm least squares ``A X = B``; also A's condition number and the rank used.

    Solved on the CPU, where LAPACK is quicker with matrices of this size than a GPU.
    """
    A, B = A.cpu(), B.cpu()
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    largest = float(S[0])
    rank = int((rcond * largest < S).sum()) if largest > 0 else 0
    X = Vh[:rank].mH @ ((U[:, :rank].mH @ B) / S[:rank, None])
    smallest = float(S[rank - 1]) if rank else 0.0
    return X, largest / smallest if smallest else float("inf"), rank


def rank_one(matrix: Tensor, values: Interval | None = None) -> tuple[Tensor, Tensor]:
    """``left`` and ``right`` with ``matrix ~ left right^T``, ``|right| = 1``.

    Where ``values`` bounds entries that are not known, each turn fills those with the current
    product, cut to the bounds.
    """
    left, right = leading_pair(matrix)
    if values is None or bool((known := values.known).all()) or not known.any():
        return left, right
    for _ in range(TURNS):
        product = left[:, None] * right[None, :]
        filled = torch.where(known, matrix, product.clamp(values.low, values.high))
        new = filled.mT @ left
        new = new / new.norm()
        left, moved, right = filled @ new, float((new - right).norm()), new
        if moved < CONVERGED:
            break
    return left, right


def leading_pair(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The leading singular pair by power iteration; from the Gram matrix where that is slow."""
    if not matrix.any():
        return torch.zeros_like(matrix[:, 0]), torch.zeros_like(matrix[0])
    start = torch.randn(len(matrix), generator=generator(0, "power")).to(matrix)
    right = matrix.mT @ start  # a mixture of all rows: no invariant subspace holds it
    right = right / right.norm()
    for _ in range(POWER_TURNS):
        new = matrix.mT @ (matrix @ right)
        new = new / new.norm()
        moved, right = float((new - right).norm()), new
        if moved < 1e-13:
            return matrix @ right, right
    right = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors[:, -1]
    return matrix @ right, right


def relative_residual(found: Tensor, wanted: Tensor) -> float:
    """``|found - wanted| / |wanted|``; 1 where nothing was wanted, since nothing is explained."""
    size = float(wanted.norm())
    return float((found - wanted).norm()) / size if size > 0 else 1.0


def share_in_range(images: Tensor, knowledge: Knowledge) -> Tensor:
    """The share of each image's values that a real pixel could have, ``[n]``."""
    low, high = knowledge.box(images)
    slack = 0.01 * (high - low)
    return ((images >= low - slack) & (images <= high + slack)).flatten(1).double().mean(1)


def group_rows(weight: Tensor, batch_size: int) -> list[Tensor]:
    """Sets of rows that hold one image each, strongest first, at most ``batch_size`` of them.

    A row stands for an image only if another row confirms its direction: a mixture of two images
    does not occur twice in the same proportions.
    """
    norms = weight.norm(dim=1)
    alive = torch.nonzero(norms > 1e-12 * norms.max())[:, 0]
    if batch_size == 1 or not len(alive):
        return [alive] if len(alive) else []
    unit = weight[alive] / norms[alive, None]
    alike = (unit @ unit.T).abs() > 1 - ALIKE
    free = torch.ones(len(alive), dtype=torch.bool, device=weight.device)
    groups = []
    for row in alike.sum(1).argsort(descending=True).tolist():
        if not free[row]:
            continue
        members = alike[row] & free
        free &= ~members
        if int(members.sum()) > 1:
            groups.append(alive[members])
    groups.sort(key=lambda rows: -len(rows))
    return groups[:batch_size]
