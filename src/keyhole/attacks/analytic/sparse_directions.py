"""Directions in which a low-rank gradient is sparse: the columns that single images leave.

The weight gradient of a fully connected layer is ``dW = D X`` with one column of D and one row of X
for each of b images. Its singular vectors give ``dW = L R`` of rank b, and ``D = L Q``, ``X = Q^-1
R`` for one matrix Q. Behind a ReLU every column of D is zero wherever the unit is off, so that Q's
columns are the directions q in which ``L q`` has many zeros.

* SPEAR (Dimitrov et al., NeurIPS 2024) samples b-1 rows of L, of which q is the null space if one
  image has all these units off: about one sample in ``2^(b-1) / b``.
* Here a random direction is improved until ``sum |L q|`` is least on the sphere, by iteratively
  reweighted least squares: ``q = argmin sum_r (L_r q)^2 / (|L_r q| + e)``, with e falling. The
  number of starts that it takes grows far more slowly with b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Search = Literal["minimised", "sampled"]
STARTS = 200
"""Directions that are improved at once."""
SAMPLES = 10_000
"""Submatrices whose null spaces are computed at once."""
WIDTHS = [0.8**step for step in range(36)] + [1e-4, 1e-5]
"""e in each step of the improvement, in units of the mean entry: slowly at first, then fast."""
POLISHED = (1e-3, 1e-5)
"""Entries smaller than this, in the same units, are then made zero together: a sharper e would cost
more digits than it gives."""
MOST_SAMPLED, FEW_SAMPLES = 12, 2000
"""Up to so many images, so many null spaces are sampled besides."""
MAX_ELEMENTS = 20_000_000
"""Numbers that are held at once while directions are improved."""
INDEPENDENT = 1e-3
"""A direction whose part outside the span of those chosen is smaller depends on them."""
ALIKE, PATIENCE = 0.65, 4
"""A direction counts only with so large a share of the zeros of the sparsest one, since mixtures
have half as many; after so many rounds without a better direction, others count as well."""
STALE_ROUNDS = 8
"""The search ends after so many rounds without a better direction."""


@dataclass(frozen=True)
class LowRank:
    """A gradient's factors, and how small an entry of ``L q`` must be to count as zero.

    Args:
        left: ``L [units, b]`` with orthonormal columns; units without gradient are left out.
        right: ``R [b, inputs]``.
        strengths: The singular values ``[b]``, by which L was divided.
        rounding: The size of the rounding error in one entry of the gradient.
    """

    left: Tensor
    right: Tensor
    strengths: Tensor
    rounding: float

    def tolerance(self, directions: Tensor) -> Tensor:
        """Entries of ``L q`` up to this are zero but for rounding, ``[n, 1]``."""
        amplified = (directions / self.strengths).norm(dim=1, keepdim=True)
        tolerance: Tensor = 8 * self.rounding * amplified + 1e-13
        return tolerance

    def zeros(self, directions: Tensor) -> Tensor:
        """Which entries of ``L q`` are zero, ``[n, units]``."""
        zero: Tensor = (directions @ self.left.T).abs() <= self.tolerance(directions)
        return zero

    @property
    def readable(self) -> bool:
        """Whether zeros can be told from other entries, which are of size ``units^-1/2``."""
        worst = float(self.tolerance(torch.ones_like(self.strengths)[None] / len(self.strengths)))
        return bool(worst * len(self.left) ** 0.5 < 0.05)


def find_directions(
    factors: LowRank,
    draw: torch.Generator,
    search: Search,
    rounds: int,
    agrees: Callable[[Tensor], Tensor],
) -> tuple[Tensor, int]:
    """The sparsest independent directions that were found, ``[at most b, b]``, and rounds used.

    Args:
        factors: The gradient's factors.
        draw: The source of random starts and samples.
        search: How directions are proposed.
        rounds: The most rounds of proposals.
        agrees: Which directions of a complete set agree with the model, bool ``[b]``. The search
            goes on until all do: mixtures of two columns are sparse as well.
    """
    b = len(factors.strengths)
    if b == 1:
        return torch.ones_like(factors.left[:1, :1]), 0
    chosen, known = factors.left.new_zeros(0, b), factors.left.new_zeros(0, b)
    stale, done = 0, 0
    while done < rounds and stale < STALE_ROUNDS:
        proposed = propose(factors, chosen if len(chosen) < b else known, search, done, draw)
        zeros = factors.zeros(torch.cat([chosen, proposed])).sum(1)
        floor = ALIKE * int(zeros.max()) if stale < PATIENCE else 0
        sparse = zeros[len(chosen) :] >= max(floor, least_zeros(factors))
        better = choose_greedily(torch.cat([chosen, proposed[sparse]]), factors)
        done += 1
        if len(better) == b:
            found = agrees(refine(better, factors))
            known = better[found]
            if bool(found.all()):
                return refine(better, factors), done
        same = better.shape == chosen.shape and torch.equal(better, chosen)
        stale = stale + 1 if same and search == "minimised" else 0
        chosen = better
    return refine(chosen, factors), done


def propose(
    factors: LowRank, known: Tensor, search: Search, done: int, draw: torch.Generator
) -> Tensor:
    """A round's proposals ``[n, b]``: every second round looks beside those that are known."""
    b, left = len(factors.strengths), factors.left
    if search == "sampled":
        return sample_null_spaces(left, draw, SAMPLES)
    if done % 4 > 1:  # every row counts alike, which leads to other minima
        left = left / left.norm(dim=1, keepdim=True) / len(left) ** 0.5
    starts = torch.randn(STARTS, b, generator=draw, dtype=torch.double)
    if not len(known) or len(known) == b or not done % 2:
        found = minimise_sums(left, starts)
    else:
        span = torch.linalg.qr(known.T)[0]
        found = minimise_sums(left, starts - (starts @ span) @ span.T, beside=True)
    if b <= MOST_SAMPLED:
        found = torch.cat([found, sample_null_spaces(factors.left, draw, FEW_SAMPLES)])
    return found


def least_zeros(factors: LowRank) -> int:
    """Zeros that no direction has by construction: b - 1 rows are always solved."""
    units, b = factors.left.shape
    return b - 1 + max(4, round(0.05 * units))


def minimise_sums(left: Tensor, starts: Tensor, *, beside: bool = False) -> Tensor:
    """Directions ``[n, b]`` of locally least ``sum |L q|``, from these starts.

    With ``beside`` the sum is least under the condition ``start^T q = 1`` and not on the sphere,
    which is a convex problem. A direction orthogonal to the start cannot come out.
    """
    units, b = left.shape
    found = []
    for some in torch.split(starts, max(1, MAX_ELEMENTS // (units * b))):
        start = some / some.norm(dim=1, keepdim=True).clamp_min(1e-300)
        q = start
        for width in WIDTHS:
            weights = 1 / ((q @ left.T).abs() + width / units**0.5)
            squares = (left.T * weights[:, None, :]) @ left
            if beside:
                q = torch.linalg.solve(squares, start)
                q = q / q.norm(dim=1, keepdim=True)
            else:
                q = torch.linalg.eigh(squares).eigenvectors[:, :, 0]
        for width in POLISHED:
            small = ((q @ left.T).abs() <= width / units**0.5).to(left)
            q = torch.linalg.eigh((left.T * small[:, None, :]) @ left).eigenvectors[:, :, 0]
        found.append(q)
    return torch.cat(found)


def sample_null_spaces(left: Tensor, draw: torch.Generator, samples: int) -> Tensor:
    """The null direction of b-1 random rows each, ``[n, b]``, all of them solved together."""
    units, b = left.shape
    ranks = torch.rand(samples, units, generator=draw, dtype=torch.float32)
    rows = left[ranks.topk(b - 1, dim=1).indices]
    solved, bad = torch.linalg.solve_ex(rows[:, :, :-1], -rows[:, :, -1:])
    null = torch.cat([solved[:, :, 0], torch.ones(samples, 1, dtype=left.dtype)], 1)
    null = null[(bad == 0) & null.isfinite().all(1)]
    unit: Tensor = null / null.norm(dim=1, keepdim=True)
    return unit


def choose_greedily(proposed: Tensor, factors: LowRank) -> Tensor:
    """The sparsest of the proposals that are independent of each other, ``[at most b, b]``.

    A mixture of two columns is zero only where both are, and so less sparse than either: taking the
    sparsest independent one each time ends with the columns themselves if all were proposed.
    """
    order = factors.zeros(proposed).sum(1).argsort(descending=True, stable=True)
    span, chosen = proposed.new_zeros(0, proposed.shape[1]), []
    rest = proposed[order].clone()
    for number, q in enumerate(proposed[order]):
        outside = rest[number]
        if outside.norm() <= INDEPENDENT:
            continue
        chosen.append(q)
        unit = outside / outside.norm()
        rest = rest - (rest @ unit)[:, None] * unit
        span = torch.cat([span, unit[None]])
        if len(chosen) == proposed.shape[1]:
            break
    return torch.stack(chosen) if chosen else span


def refine(chosen: Tensor, factors: LowRank) -> Tensor:
    """Each direction again, as the one nearest to zero on all its zeros together."""
    refined = []
    for q, zero in zip(chosen, factors.zeros(chosen), strict=True):
        rows = factors.left[zero]
        refined.append(torch.linalg.svd(rows, full_matrices=True).Vh[-1] if len(rows) else q)
    return torch.stack(refined) if refined else chosen
