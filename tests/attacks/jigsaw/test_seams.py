from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from keyhole.attacks.jigsaw.costs import Indices
from keyhole.attacks.jigsaw.seams import (
    Array,
    compute_log_densities,
    compute_misfits,
    compute_seam_costs,
    count_best_buddies,
    cut_windows,
    decorrelate_channels,
    fit_textures,
    strip_width,
)
from keyhole.data import load
from keyhole.models.puzzle import cut_patches

Make = Callable[..., Any]


def photo_patches(noise: float = 0.0) -> Array:
    image = load("photos", image_size=128).images([1]).double()
    patches = cut_patches(image, (8, 8))[0].view(64, 3, 16, 16).numpy()
    return patches + noise * np.random.default_rng(0).normal(size=patches.shape)


def found_right(costs: Array, step: int, pairs: Indices) -> float:
    """The share of pairs in which the true neighbour is the cheapest of all."""
    others = costs + np.diag(np.full(len(costs), np.inf))
    return float((others[pairs].argmin(1) == pairs + step).mean())


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.9), (0.03, 0.7), (0.1, 0.4)])
def test_the_true_neighbour_costs_least_even_under_noise(noise: float, least: float) -> None:
    seams, cells = compute_seam_costs(photo_patches(noise)), np.arange(64).reshape(8, 8)
    assert found_right(seams.right, 1, cells[:, :-1].ravel()) > least
    assert found_right(seams.below, 8, cells[:-1].ravel()) > least


def test_costs_know_more_than_the_difference_of_pixels() -> None:
    patches, pairs = photo_patches(0.03), np.arange(64).reshape(8, 8)[:, :-1].ravel()
    ends, starts = (patches[..., at].reshape(64, 1, -1) for at in (-1, 0))
    differences = np.square(ends - starts.swapaxes(0, 1)).sum(-1)
    assert found_right(compute_seam_costs(patches).right, 1, pairs) > found_right(
        differences, 1, pairs
    )


def test_costs_do_not_depend_on_the_pixels_scale() -> None:
    plain, scaled = (
        compute_seam_costs(photo_patches()),
        compute_seam_costs(255 * photo_patches() - 9),
    )
    assert np.allclose(plain.right, scaled.right)
    assert np.allclose(plain.below, scaled.below)


def test_costs_of_a_transposed_image_change_places() -> None:
    patches = photo_patches()
    plain, turned = compute_seam_costs(patches), compute_seam_costs(patches.swapaxes(2, 3))
    assert np.allclose(plain.right, turned.below)
    assert np.allclose(plain.below, turned.right)


def test_costs_of_a_mirrored_image_are_mirrored() -> None:
    patches = photo_patches()
    assert np.allclose(
        compute_seam_costs(patches).right, compute_seam_costs(patches[..., ::-1]).right.T
    )


def test_log_likelihoods_are_those_of_a_gaussian() -> None:
    draw = np.random.default_rng(0)
    root = draw.normal(size=(12, 12))
    S, window = root @ root.T, draw.normal(size=(5, 3, 4))
    a, b = window[..., :2], window[..., 2:]
    of_a, of_b, of_both = compute_log_densities(a, b, S)
    place = np.arange(12).reshape(3, 4)
    at_a, at_b = place[:, :2].ravel(), place[:, 2:].ravel()

    def expected(rows: Array, at: Indices) -> Array:
        density: Array = multivariate_normal(cov=S[np.ix_(at, at)]).logpdf(rows)
        density += len(at) / 2 * np.log(2 * np.pi)
        return density

    assert np.allclose(of_a, expected(a.reshape(5, -1), at_a))
    assert np.allclose(of_b, expected(b.reshape(5, -1), at_b))
    assert np.allclose(of_both.diagonal(), expected(window.reshape(5, -1), place.ravel()))


def test_strips_that_have_nothing_in_common_are_no_evidence() -> None:
    white = np.random.default_rng(0).normal(size=(400, 1, 4, 4))
    costs = compute_misfits(white, fit_textures(cut_windows(white)), white=0.0)
    assert np.abs(costs).mean() < 1


def test_windows_lie_inside_the_patches() -> None:
    patches = np.arange(2 * 3 * 4 * 6, dtype=float).reshape(2, 3, 4, 6)
    found = cut_windows(patches)
    assert found.shape == (2 * 3, 3, 4, 4)
    assert np.array_equal(found[1], patches[0, :, :, 1:5])


@pytest.mark.parametrize(("patches", "side", "parts"), [(196, 16, 3), (64, 4, 1), (64, 8, 2)])
def test_few_windows_make_few_textures(patches: int, side: int, parts: int) -> None:
    samples = cut_windows(np.random.default_rng(0).normal(size=(2 * patches, 1, side, side)))
    found = fit_textures(samples)
    assert len(found) == parts
    assert sum(texture.share for texture in found) == pytest.approx(1)


def test_textures_go_from_smooth_to_rough() -> None:
    draw = np.random.default_rng(0)
    samples = draw.normal(size=(3000, 1, 4, 4)) * draw.uniform(0, 1, size=(3000, 1, 1, 1))
    powers = [np.trace(texture.covariances[0]) for texture in fit_textures(samples)]
    assert len(powers) == 3
    assert powers == sorted(powers)


def test_gradients_of_different_channels_become_uncorrelated() -> None:
    fields = decorrelate_channels(photo_patches())
    steps = [np.diff(fields, axis=axis) for axis in (2, 3)]
    covariance = sum(np.einsum("nchw,ndhw->cd", step, step) for step in steps)
    assert np.allclose(covariance, np.diag(np.diag(covariance)))


@pytest.mark.parametrize(("width", "strip"), [(16, 2), (4, 2), (3, 1), (2, 1)])
def test_two_strips_fit_into_a_patch(width: int, strip: int) -> None:
    assert strip_width(np.zeros((1, 1, 9, width))) == strip


def test_mutual_best_matches_leave_out_a_patch_beside_itself() -> None:
    assert count_best_buddies(np.array([[-9.0, 1, 5], [6, -9, 2], [3, 4, -9]])) == 3
    assert count_best_buddies(np.array([[-9.0, 1, 5], [6, -9, 7], [3, 0, -9]])) == 1
