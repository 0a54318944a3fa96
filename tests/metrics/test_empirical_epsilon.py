"""The lower bound on epsilon: the paper's own figures, and how often it is too high."""

from __future__ import annotations

import math

import numpy as np
import pytest

from keyhole.defenses import compute_gaussian_epsilon
from keyhole.metrics.empirical_epsilon import (
    bound_by_scores,
    bound_epsilon,
    compute_p_value,
    find_largest_bound,
)

DELTA = 1e-5
SEEDS = 200


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_it_gives_the_papers_figures(
    canaries: int, guesses: int, correct: int, delta: float, published: float
) -> None:
    """Steinke et al. 2023, Appendix D and Section 7."""
    found = bound_epsilon(canaries, guesses, correct, delta=delta)
    assert found == pytest.approx(published, abs=1e-3)


def test_without_delta_it_is_the_binomial_tail() -> None:
    assert compute_p_value(10, 10, 10, 0.0, 0.0) == pytest.approx(0.5**10)
    right = math.exp(2) / (1 + math.exp(2))
    assert compute_p_value(20, 10, 10, 2.0, 0.0) == pytest.approx(right**10)


def test_delta_adds_the_densest_share_of_the_tail() -> None:
    """Two guesses, both right: max over i of P[2 > W >= 2 - i] / i is P[W = 1] at epsilon 0."""
    expected = 0.25 + 2 * 2 * 0.01 * 0.5
    assert compute_p_value(2, 2, 2, 0.0, 0.01) == pytest.approx(expected)


def test_guesses_no_better_than_a_coin_refute_nothing() -> None:
    assert bound_epsilon(1000, 1000, 500, delta=DELTA) == 0.0


def draw_scores(rng: np.random.Generator, canaries: int, sigma: float) -> tuple[list, list]:
    inside = rng.random(canaries) < 0.5
    return list(inside + sigma * rng.standard_normal(canaries)), list(inside)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_of_gaussian_noise_it_is_too_high_in_at_most_a_twentieth_of_all_runs(sigma: float) -> None:
    true, rng = compute_gaussian_epsilon(sigma, DELTA), np.random.default_rng(0)
    runs = (draw_scores(rng, 200, sigma) for _ in range(SEEDS))
    too_high = sum(bound_by_scores(*run, delta=DELTA).epsilon > true for run in runs)
    assert too_high <= 0.05 * SEEDS


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_of_randomised_response_it_is_too_high_so_seldom_too(epsilon: float) -> None:
    """The mechanism for which the bound is tight: guesses are right as often as they may be."""
    rng, too_high, bounds = np.random.default_rng(0), 0, []
    for _ in range(SEEDS):
        inside = rng.random(200) < 0.5
        kept = rng.random(200) < math.exp(epsilon) / (1 + math.exp(epsilon))
        scores = np.where(kept, inside, ~inside) + 1e-3 * rng.random(200)
        bounds.append(bound_by_scores(list(scores), list(inside), delta=0.0).epsilon)
        too_high += bounds[-1] > epsilon
    assert too_high <= 0.05 * SEEDS
    assert np.median(bounds) > 0.4 * epsilon - 0.1


def test_without_noise_it_is_as_high_as_the_canaries_allow() -> None:
    rng = np.random.default_rng(0)
    scores, inside = draw_scores(rng, 2000, 1e-3)
    bound = bound_by_scores(scores, inside, delta=DELTA)
    assert bound.correct == bound.guesses == 1800
    assert bound.epsilon == find_largest_bound(2000, delta=DELTA) > 5


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_the_gaussian_mechanism_has_exactly_this_epsilon(sigma: float) -> None:
    """delta(epsilon) by integrating the privacy loss, as its definition says."""
    epsilon = compute_gaussian_epsilon(sigma, DELTA)
    x = np.linspace(-20 * sigma, 1 + 20 * sigma, 400_001)
    near, far = (np.exp(-((x - at) ** 2) / (2 * sigma**2)) for at in (1.0, 0.0))
    excess = np.clip(near - math.exp(epsilon) * far, 0, None).sum() * (x[1] - x[0])
    assert excess / (sigma * math.sqrt(2 * math.pi)) == pytest.approx(DELTA, rel=1e-3)
    assert compute_gaussian_epsilon(0.0, DELTA) == math.inf
