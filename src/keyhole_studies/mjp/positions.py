"""What position embeddings tell of positions: their spectrum, and how well they regress.

All take the rows of the patches alone, ``table`` of shape ``[N, D]``, without those of class or
unknown tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, cross_val_score
from torch import Tensor

from keyhole.data import Size
from keyhole.errors import BadValue, DoesNotFit

FOLDS = 5


@dataclass(frozen=True)
class PositionError:
    """Mean absolute error, in patches, of positions regressed on their embeddings.

    Args:
        one_dimensional: Of the patch's number.
        two_dimensional: Of its row and column, averaged.
    """

    one_dimensional: float
    two_dimensional: float


def explained_variance(table: Tensor, dims: int, *, centred: bool = True) -> float:
    """``sum sigma(P V)^2 / sum sigma(P)^2`` for the ``dims`` directions V that keep the most.

    Args:
        table: P, ``[N, D]``.
        dims: How many directions.
        centred: The mean row is taken off first.

    >>> round(explained_variance(torch.diag(torch.tensor([3.0, 4.0])), 1, centred=False), 2)
    0.64
    """
    shares = accumulated_eigenvalues(table, centred=centred)
    if not 1 <= dims <= len(shares):
        raise BadValue(
            f"a table of shape {tuple(table.shape)} has 1 to {len(shares)} directions, not {dims}"
        )
    return float(shares[dims - 1])


def accumulated_eigenvalues(table: Tensor, *, centred: bool = True) -> Tensor:
    """The share of the n largest eigenvalues of ``P^T P`` in their sum, ``[min(N, D)]``.

    The eigenvalues are the squares of P's singular values.

    Args:
        table: P, ``[N, D]``.
        centred: The mean row is taken off first, so that they are variances.

    >>> accumulated_eigenvalues(torch.diag(torch.tensor([3.0, 4.0])), centred=False)
    tensor([0.6400, 1.0000], dtype=torch.float64)
    """
    rows = check_table(table)
    if centred:
        rows = rows - rows.mean(0)
    eigenvalues = torch.linalg.svdvals(rows).square()
    if not eigenvalues.sum() > 0:
        raise DoesNotFit("the rows of the position table are all alike: no variance to explain")
    shares: Tensor = eigenvalues.cumsum(0) / eigenvalues.sum()
    return shares


def position_regression(table: Tensor, grid: Size, seed: int) -> PositionError:
    """How well a linear map reads a patch's place off its embedding, mean over 5 shuffled folds.

    Ordinary least squares (of least norm where D > N) onto the raw numbers 0 .. N-1 in one
    dimension, and onto (row, column) in two; there the error is averaged over both.

    Args:
        table: ``[N, D]``.
        grid: Rows and columns of the patches.
        seed: Of the folds.
    """
    rows = check_table(table)
    height, width = grid
    if len(rows) != height * width or len(rows) < FOLDS:
        raise DoesNotFit(
            f"{len(rows)} position embeddings do not fill a {height}x{width} grid "
            f"of at least {FOLDS} patches"
        )
    number = torch.arange(len(rows))
    place = torch.stack([number // width, number % width], dim=1)
    folds = KFold(FOLDS, shuffle=True, random_state=seed % 2**32)

    def error(target: Tensor) -> float:
        scores = cross_val_score(
            LinearRegression(),
            rows.numpy(),
            target.double().numpy(),
            cv=folds,
            scoring="neg_mean_absolute_error",
        )
        return -float(scores.mean())

    return PositionError(error(number), error(place))


def check_table(table: Tensor) -> Tensor:
    """The table as float64 on the CPU; raises :class:`DoesNotFit` unless it is one."""
    if table.ndim != 2 or 0 in table.shape:
        raise DoesNotFit(f"a position table is [patches, dimensions], got {tuple(table.shape)}")
    return table.detach().cpu().double()
