from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.model_selection import KFold
from torch import Tensor

from keyhole.errors import BadValue, DoesNotFit
from keyhole_studies.mjp.positions import (
    accumulated_eigenvalues,
    explained_variance,
    position_regression,
)

SHAPES = [(16, 40), (40, 16), (12, 12)]


def random_table(rows: int, width: int, seed: int = 0) -> Tensor:
    """Rows of unlike variances about a mean that is not 0."""
    draws = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, width, generator=draws, dtype=torch.double)
    return table * torch.rand(width, generator=draws) + 0.5


def places(height: int, width: int) -> Tensor:
    number = torch.arange(height * width)
    return torch.stack([number // width, number % width], dim=1).double()


def mean_error(table: Tensor, target: np.ndarray, seed: int) -> float:
    """Least squares of least norm with an intercept, by numpy, in scikit-learn's folds."""
    x, errors = table.numpy(), []
    for train, test in KFold(5, shuffle=True, random_state=seed).split(x):
        centre, middle = x[train].mean(0), target[train].mean(0)
        weights = np.linalg.pinv(x[train] - centre) @ (target[train] - middle)
        errors.append(np.abs((x[test] - centre) @ weights + middle - target[test]).mean())
    return float(np.mean(errors))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dims", [1, 3, 7])
def test_explained_variance_is_that_of_scikit_learn(shape: tuple[int, int], dims: int) -> None:
    table = random_table(*shape)
    expected = PCA(dims, svd_solver="full").fit(table.numpy()).explained_variance_ratio_.sum()
    assert explained_variance(table, dims) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("centred", [True, False])
def test_explained_variance_is_the_papers(shape: tuple[int, int], centred: bool) -> None:
    P = random_table(*shape).numpy()
    P = P - P.mean(0) if centred else P
    V = np.linalg.svd(P)[2][:4].T
    expected = np.sum(np.linalg.svd(P @ V)[1] ** 2) / np.sum(np.linalg.svd(P)[1] ** 2)
    found = explained_variance(random_table(*shape), 4, centred=centred)
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("centred", [True, False])
def test_a_common_offset_is_seen_unless_the_rows_are_centred(centred: bool) -> None:
    table = random_table(16, 40)
    share, moved = (explained_variance(t, 1, centred=centred) for t in (table, table + 9))
    if centred:
        assert moved == pytest.approx(share, abs=1e-9)
    else:
        assert moved > share + 0.1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("centred", [True, False])
def test_shares_rise_to_one_by_ever_smaller_steps(shape: tuple[int, int], centred: bool) -> None:
    shares = accumulated_eigenvalues(random_table(*shape), centred=centred)
    assert shares.shape == (min(shape),)
    assert float(shares[-1]) == pytest.approx(1)
    steps = shares.diff(prepend=shares.new_zeros(1))
    assert (steps >= -1e-12).all()
    assert (steps.diff() <= 1e-12).all()


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_shares_stay_under_scaling_and_turning(scale: float, seed: int) -> None:
    table = random_table(10, 6)
    turn = torch.linalg.qr(random_table(6, 6, seed)).Q
    found = accumulated_eigenvalues(scale * table @ turn)
    torch.testing.assert_close(found, accumulated_eigenvalues(table))


def test_each_dimension_that_carries_nothing_adds_nothing() -> None:
    table = places(5, 5) @ random_table(2, 8)
    shares = accumulated_eigenvalues(table)
    assert float(shares[0]) < 0.999
    assert float(shares[1]) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(25, 8), (25, 60)], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_regression_is_that_of_numpy_in_each_fold(shape: tuple[int, int], seed: int) -> None:
    table = random_table(*shape)
    found = position_regression(table, (5, 5), seed)
    one = mean_error(table, np.arange(25.0), seed)
    assert found.one_dimensional == pytest.approx(one, rel=1e-6)
    two = mean_error(table, places(5, 5).numpy(), seed)
    assert found.two_dimensional == pytest.approx(two, rel=1e-6)


def test_positions_written_linearly_are_read_without_error() -> None:
    table = places(4, 7) @ random_table(2, 10)
    found = position_regression(table, (4, 7), 0)
    assert found.one_dimensional == pytest.approx(0, abs=1e-9)
    assert found.two_dimensional == pytest.approx(0, abs=1e-9)


def test_rows_of_the_table_run_along_rows_of_the_grid() -> None:
    """Angles say the column well and the row not at all, in a grid 7 wide and in no other."""
    angle = 2 * torch.pi * places(4, 7)[:, 1] / 7
    number = torch.arange(28.0)
    table = torch.stack([angle.sin(), angle.cos(), (2 * angle).sin(), number % 7], dim=1)
    right, wrong = (position_regression(table, grid, 0) for grid in [(4, 7), (7, 4)])
    assert right.two_dimensional < 0.8 < wrong.two_dimensional
    assert right.one_dimensional == wrong.one_dimensional


def test_noise_makes_positions_harder_to_read() -> None:
    table = places(6, 6) @ random_table(2, 10)
    noisy = [table + s * random_table(36, 10, 1) for s in (0.01, 0.3, 3.0)]
    errors = [position_regression(t, (6, 6), 0) for t in noisy]
    for kind in ("one_dimensional", "two_dimensional"):
        values = [getattr(error, kind) for error in errors]
        assert values == sorted(values)


def test_the_seed_shuffles_the_folds() -> None:
    table = random_table(36, 10)
    errors = [position_regression(table, (6, 6), seed) for seed in (0, 0, 1, 2**40 + 5)]
    assert errors[0] == errors[1]
    assert len(set(errors)) == 3


def test_a_table_with_a_gradient_is_borne() -> None:
    table = random_table(25, 8).float().requires_grad_()
    assert 0 < explained_variance(table, 2) < 1
    assert position_regression(table, (5, 5), 0).one_dimensional > 0


@pytest.mark.parametrize("dims", [0, -1, 13])
def test_more_directions_than_there_are_cannot_be_asked_for(dims: int) -> None:
    with pytest.raises(BadValue, match="has 1 to 12 directions"):
        explained_variance(random_table(12, 40), dims)


def test_a_table_without_variance_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="all alike"):
        accumulated_eigenvalues(torch.ones(4, 3))


@pytest.mark.parametrize("shape", [(1, 16, 8), (16,), (0, 8)], ids=str)
def test_what_is_not_a_table_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DoesNotFit, match=r"\[patches, dimensions\]"):
        accumulated_eigenvalues(torch.ones(shape))


@pytest.mark.parametrize(("rows", "grid"), [(17, (4, 4)), (4, (2, 2))])
def test_a_table_that_does_not_fill_the_grid_is_refused(rows: int, grid: tuple[int, int]) -> None:
    with pytest.raises(DoesNotFit, match=f"{rows} position embeddings do not fill"):
        position_regression(random_table(rows, 8), grid, 0)
