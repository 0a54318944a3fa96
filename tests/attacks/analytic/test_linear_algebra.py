from __future__ import annotations

import pytest
import torch

from keyhole.attacks.analytic.linear_algebra import (
    fit_rank_one,
    relative_residual,
    share_in_range,
    solve_by_svd,
)
from keyhole.defenses import Interval, Quantise
from keyhole.seeds import generator
from keyhole.threat import Knowledge
from keyhole.update import Update


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draws, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(30, 10), (10, 30), (20, 20)])
def test_the_solution_is_that_of_lapack(shape: tuple[int, int]) -> None:
    A, B = draw(*shape), draw(shape[0], 4, seed=1)
    X, condition, rank = solve_by_svd(A, B, 0.0)
    expected = torch.linalg.lstsq(A, B, driver="gelsd").solution
    assert torch.allclose(X, expected, atol=1e-9)
    assert condition == pytest.approx(float(torch.linalg.cond(A)), rel=1e-6)
    assert rank == min(shape)


def test_small_singular_values_are_left_out() -> None:
    A = torch.diag(torch.tensor([4.0, 2.0, 1e-9], dtype=torch.float64))
    X, condition, rank = solve_by_svd(A, torch.ones(3, 1, dtype=torch.float64), 1e-6)
    assert X.flatten().tolist() == pytest.approx([0.25, 0.5, 0.0])
    assert (condition, rank) == (2.0, 2)


def test_a_system_of_zeros_has_the_solution_zero() -> None:
    X, condition, rank = solve_by_svd(torch.zeros(3, 2), torch.ones(3, 1), 1e-6)
    assert X.tolist() == [[0.0], [0.0]]
    assert (condition, rank) == (float("inf"), 0)


def test_a_rank_one_matrix_is_taken_apart() -> None:
    left, right = draw(8), draw(12, seed=1)
    found = fit_rank_one(left[:, None] * right)
    assert torch.allclose(found[0][:, None] * found[1], left[:, None] * right)
    assert found[1].norm().item() == pytest.approx(1)


@pytest.mark.parametrize(
    "matrix",
    [
        torch.tensor([[2.0, 0.0], [0.0, 1.5], [0.0, 1.5]]),
        torch.tensor([[2.0, 0.0], [1e-9, 1.5], [1e-9, 1.5]]),
        draw(20, 30).float(),
        draw(30, 20) * (draw(30, 20, seed=1) > 1.5),
    ],
    ids=["orthogonal rows", "nearly orthogonal rows", "full", "sparse"],
)
def test_the_leading_pair_is_the_best_rank_one_matrix(matrix: torch.Tensor) -> None:
    left, _ = fit_rank_one(matrix.double())
    expected = float(torch.linalg.matrix_norm(matrix.double(), 2))
    assert left.norm().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("values", [None, Interval(-torch.ones(4, 3), torch.ones(4, 3))])
def test_a_matrix_of_zeros_is_taken_apart(values: Interval | None) -> None:
    left, right = fit_rank_one(torch.zeros(4, 3, dtype=torch.float64), values)
    assert not left.any()
    assert right.isfinite().all()


def test_missing_small_entries_are_completed() -> None:
    whole = draw(60)[:, None] * draw(40, seed=1)
    threshold = whole.abs().quantile(0.6)
    observed = whole.abs() > threshold
    values = Interval(
        torch.where(observed, whole, -threshold), torch.where(observed, whole, threshold)
    )
    left, right = fit_rank_one(torch.where(observed, whole, 0.0), values)
    naive = fit_rank_one(torch.where(observed, whole, 0.0))
    error = relative_residual(left[:, None] * right, whole)
    assert error < 0.1
    assert relative_residual(naive[0][:, None] * naive[1], whole) > 3 * error


def test_the_share_of_possible_pixels_is_counted() -> None:
    knowledge = Knowledge(shape=(1, 2, 2), classes=2, mean=(0.5,), std=(0.25,))
    images = torch.tensor([[-2.0, 2.0, 0.0, 1.0], [-3.0, 2.5, 0.0, 1.0]]).view(2, 1, 2, 2)
    assert share_in_range(images, knowledge).tolist() == [1.0, 0.5]


@pytest.mark.parametrize("bits", [2, 4])
def test_rounded_values_are_fitted_between_their_bounds(bits: int) -> None:
    errors = {"naive": 0.0, "bounded": 0.0}
    outside = dict(errors)
    for seed in range(8):
        draws = generator(seed)
        left = torch.randn(40, generator=draws, dtype=torch.double)
        truth = left[:, None] * torch.rand(64, generator=draws, dtype=torch.double)
        defense = Quantise(bits=bits)
        sent = defense.on_update(Update({"w": -truth}))
        shown, values = sent.gradient()["w"], defense.possible_values(sent)["w"]
        for name, found in (
            ("naive", fit_rank_one(shown)),
            ("bounded", fit_rank_one(shown, values)),
        ):
            product = found[0][:, None] * found[1]
            errors[name] += relative_residual(product, truth)
            outside[name] += float((product - product.clamp(values.low, values.high)).norm())
    assert errors["bounded"] < errors["naive"]
    assert outside["bounded"] < 0.5 * outside["naive"]
