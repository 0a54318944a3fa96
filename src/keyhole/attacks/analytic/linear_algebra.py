"""The linear algebra that the closed forms share."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.defenses.capabilities import Interval
from keyhole.seeds import generator
from keyhole.threat import Knowledge

COMPLETION_STEPS, COMPLETION_TOLERANCE = 500, 1e-10
"""Completing a matrix ends after so many steps, or when the right vector moves by less."""
POWER_STEPS, POWER_TOLERANCE = 100, 1e-13
"""The same for power iteration."""
PARALLEL_TOLERANCE = 1e-5
"""Rows whose directions differ by less (1 - |cos|) come from the same image."""


def solve_by_svd(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, float, int]:
    """Minimum-norm least squares ``A X = B``; returns X, A's condition number and the rank used.

    Solved on the CPU, where LAPACK is quicker with matrices of this size than a GPU.
    """
    A, B = A.cpu(), B.cpu()
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    largest = float(S[0])
    rank = int((rcond * largest < S).sum()) if largest > 0 else 0
    X = Vh[:rank].mH @ ((U[:, :rank].mH @ B) / S[:rank, None])
    smallest = float(S[rank - 1]) if rank else 0.0
    return X, largest / smallest if smallest else float("inf"), rank


def fit_rank_one(matrix: Tensor, bounds: Interval | None = None) -> tuple[Tensor, Tensor]:
    """``left`` and ``right`` with ``matrix ~ left right^T``, ``|right| = 1``.

    Entries that are not known are given by their ``bounds``; ``matrix`` has a first guess of them.
    Each step fills them with the current product, clamped to the bounds.
    """
    left, right = compute_leading_pair(matrix)
    if bounds is None or bool((known := bounds.known).all()) or not left.any():
        return left, right
    completed = torch.empty_like(matrix)
    for _ in range(COMPLETION_STEPS):
        torch.mul(left[:, None], right[None, :], out=completed).clamp_(bounds.low, bounds.high)
        torch.where(known, matrix, completed, out=completed)
        new = completed.mT @ left
        new = new / new.norm()
        left, moved, right = completed @ new, float((new - right).norm()), new
        if moved < COMPLETION_TOLERANCE:
            break
    return left, right


def compute_leading_pair(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The leading singular pair by power iteration, or from the Gram matrix if that is slow."""
    if not matrix.any():
        return torch.zeros_like(matrix[:, 0]), torch.zeros_like(matrix[0])
    start = torch.randn(len(matrix), generator=generator(0, "power")).to(matrix)
    right = matrix.mT @ start  # a mixture of all rows lies in no invariant subspace
    right = right / right.norm()
    for _ in range(POWER_STEPS):
        new = matrix.mT @ (matrix @ right)
        new = new / new.norm()
        moved, right = float((new - right).norm()), new
        if moved < POWER_TOLERANCE:
            return matrix @ right, right
    if len(matrix) < matrix.shape[1]:
        right = matrix.mT @ torch.linalg.eigh(matrix @ matrix.mT).eigenvectors[:, -1]
        right = right / right.norm()
    else:
        right = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors[:, -1]
    return matrix @ right, right


def relative_residual(found: Tensor, wanted: Tensor) -> float:
    """``|found - wanted| / |wanted|``; 1 if ``wanted`` is 0, since nothing is explained then."""
    size = float(wanted.norm())
    return float((found - wanted).norm()) / size if size > 0 else 1.0


def share_in_range(images: Tensor, knowledge: Knowledge) -> Tensor:
    """The share of each image's values that a real pixel could have, ``[n]``."""
    low, high = knowledge.box(images)
    slack = 0.01 * (high - low)
    return ((images >= low - slack) & (images <= high + slack)).flatten(1).double().mean(1)


def group_parallel_rows(weight: Tensor, batch_size: int) -> list[Tensor]:
    """Sets of rows that hold one image each, largest first, at most ``batch_size`` of them.

    A row counts as an image only if another row has the same direction: a mixture of two images
    does not occur twice in the same proportions.
    """
    norms = weight.norm(dim=1)
    nonzero = torch.nonzero(norms > 1e-12 * norms.max())[:, 0]
    if batch_size == 1 or not len(nonzero):
        return [nonzero] if len(nonzero) else []
    unit = weight[nonzero] / norms[nonzero, None]
    parallel = (unit @ unit.T).abs() > 1 - PARALLEL_TOLERANCE
    free = torch.ones(len(nonzero), dtype=torch.bool, device=weight.device)
    groups = []
    for row in parallel.sum(1).argsort(descending=True).tolist():
        if not free[row]:
            continue
        members = parallel[row] & free
        free &= ~members
        if int(members.sum()) > 1:
            groups.append(nonzero[members])
    groups.sort(key=lambda rows: -len(rows))
    return groups[:batch_size]
