"""The few pieces of linear algebra that the closed forms share."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.seeds import generator
from keyhole.threat import Knowledge

TURNS = 500
CONVERGED = 1e-10
POWER_TURNS = 100


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


def rank_one(matrix: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``left`` and ``right`` with ``matrix ~ left right^T``, ``|right| = 1``.

    With a boolean mask ``observed`` the other entries are unknown but no larger than the smallest
    one observed: each turn fills them with the current product, cut to that size.
    """
    left, right = leading_pair(matrix)
    if observed is None or bool(observed.all()) or not observed.any():
        return left, right
    bound = float(matrix[observed].abs().min())
    for _ in range(TURNS):
        product = left[:, None] * right[None, :]
        filled = torch.where(observed, matrix, product.clamp(-bound, bound))
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


def in_range(images: Tensor, knowledge: Knowledge) -> Tensor:
    """The share of each image's values that a real pixel could have, ``[n]``."""
    low, high = knowledge.box(images)
    slack = 0.01 * (high - low)
    return ((images >= low - slack) & (images <= high + slack)).flatten(1).double().mean(1)
