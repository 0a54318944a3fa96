"""Rows that are never negative, told apart in a mixture of them.

Behind a ReLU the inputs X of a batch, one row per image, have no negative entry and many zeros. Of
a mixture ``Z = M^-1 X`` the rows of X are the extreme rays of the cone of all combinations ``q Z``
without a negative entry, as long as no row is such a combination of others: each row has entries
where all others are 0. Linear programs with random objectives end at such rays, and what they end
at is made exact on all its zeros together.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

TRIES = 8
"""Linear programs per row, at most."""
SLACK = 1e-4
"""How far under 0 entries may be, relative to their mean: rounding."""
WIDTHS = (3e-2, 3e-3, 1e-3)
"""Entries smaller than this, relative to their root mean square, are made 0 together, in turn."""
ZEROS = 0.02
"""The least share of zeros of a row."""
NEGATIVE = 1e-2
"""How far under 0 a row's entries may be in the end, relative to their root mean square."""
NEW = 1e-2
"""The least part of a row outside the span of those found already."""
WEAK = 1e-6
"""Entries of which the mixture has less than this share of the largest are left out."""


def unmix(mixed: Tensor, draw: torch.Generator) -> Tensor | None:
    """The matrix M ``[B, B]`` with ``M Z >= 0``, rows up to positive factors; None: not found.

    Args:
        mixed: Z, ``[B, entries]``, float64.
        draw: Draws the objectives.
    """
    count = len(mixed)
    if count == 1:
        sign = mixed.sum().sign()
        return (sign if sign else sign + 1).view(1, 1)
    basis, strengths, right = torch.linalg.svd(mixed.T, full_matrices=False)
    norms = basis.norm(dim=1)
    basis = basis[norms > WEAK * norms.max()]
    sums, scale = basis.sum(0), len(basis) ** 0.5
    found = basis.new_zeros(0, count)
    for _ in range(TRIES * count):
        objective = torch.randn(count, generator=draw, dtype=basis.dtype)
        if len(found):
            span = torch.linalg.qr(found.T)[0]
            objective = objective - span @ (span.T @ objective)
        ray = find_ray(basis, objective, sums, scale)
        if ray is None or not is_new(ray, found):
            continue
        found = torch.cat([found, ray[None]])
        if len(found) == count:
            unmixing: Tensor = (found / strengths) @ right
            return unmixing
    return None


def find_ray(basis: Tensor, objective: Tensor, sums: Tensor, scale: float) -> Tensor | None:
    """A unit vector q for which ``basis q`` is nowhere negative and has many zeros; None: no such.

    Args:
        basis: Z's right singular vectors, ``[entries, B]``.
        objective: What the linear program makes as large as it can, ``[B]``.
        sums: The basis' sums over entries.
        scale: The sum that entries are to have.
    """
    solved = linprog(
        -objective.numpy(),
        A_ub=-basis.numpy(),
        b_ub=np.full(len(basis), SLACK * scale / len(basis)),
        A_eq=sums[None].numpy(),
        b_eq=[scale],
        bounds=(None, None),
        method="highs",
    )
    if not solved.success:
        return None
    ray = torch.from_numpy(solved.x)
    for width in WIDTHS:
        entries = basis @ ray
        zero = entries.abs() <= width * entries.square().mean().sqrt()
        if int(zero.sum()) < max(len(ray), ZEROS * len(basis)):
            return None
        ray = torch.linalg.eigh(basis[zero].T @ basis[zero]).eigenvectors[:, 0]
        ray = ray * (sums @ ray).sign()
    entries = basis @ ray
    wrong = entries.min() < -NEGATIVE * entries.square().mean().sqrt()
    return None if bool(wrong) else ray


def is_new(ray: Tensor, found: Tensor) -> bool:
    """Whether a unit vector has a part outside the span of others."""
    if not len(found):
        return True
    span = torch.linalg.qr(found.T)[0]
    return bool((ray - span @ (span.T @ ray)).norm() > NEW)
