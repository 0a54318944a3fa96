"""Each prior against its formula, written with loops for one victim."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.layer_call import BatchStatistics
from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets
from keyhole.attacks.matching.parts.priors import (
    BatchNormStatistics,
    DropRate,
    Guess,
    LastFeatures,
    Magnitude,
    PatchSeams,
    PositionCosine,
    Prior,
    TotalVariation,
)
from keyhole.models.dropout_sites import Site

VICTIMS, BATCH, CHANNELS, HEIGHT, WIDTH = 3, 2, 2, 6, 8
NOTHING = BuiltMatch({}, Targets({}))


def guess(
    images: Tensor | None = None,
    *,
    masks: tuple[Tensor, ...] | None = None,
    match: BuiltMatch = NOTHING,
    progress: float = 0.0,
) -> Guess:
    if images is None:
        images = draw()
    return Guess(images, masks, match, torch.full((VICTIMS,), progress))


def draw() -> Tensor:
    return torch.randn(VICTIMS, BATCH, CHANNELS, HEIGHT, WIDTH, dtype=torch.double)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def planes(victim: Tensor) -> list[list[list[float]]]:
    return [plane.tolist() for plane in victim.flatten(0, 1)]


def test_total_variation_is_the_mean_step_down_and_across() -> None:
    images = draw()
    expected = []
    for victim in images:
        down = [
            abs(p[i + 1][j] - p[i][j])
            for p in planes(victim)
            for i in range(HEIGHT - 1)
            for j in range(WIDTH)
        ]
        across = [
            abs(p[i][j + 1] - p[i][j])
            for p in planes(victim)
            for i in range(HEIGHT)
            for j in range(WIDTH - 1)
        ]
        expected.append(0.3 * (mean(down) + mean(across)))
    assert TotalVariation(0.3)(guess(images)).tolist() == pytest.approx(expected)


def test_isotropic_variation_is_the_mean_length_of_the_step() -> None:
    images = draw()
    expected = []
    for victim in images:
        lengths = [
            math.hypot(p[i + 1][j] - p[i][j], p[i][j + 1] - p[i][j])
            for p in planes(victim)
            for i in range(HEIGHT - 1)
            for j in range(WIDTH - 1)
        ]
        expected.append(0.3 * mean(lengths))
    found = TotalVariation(0.3, isotropic=True)(guess(images))
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_magnitude_is_the_mean_square() -> None:
    images = draw()
    expected = [0.3 * mean([v * v for v in victim.flatten().tolist()]) for victim in images]
    assert Magnitude(0.3)(guess(images)).tolist() == pytest.approx(expected)


def test_batch_norms_should_see_what_they_are_used_to() -> None:
    sizes = (4, 7)
    seen = [
        BatchStatistics(
            torch.randn(VICTIMS, size),
            torch.rand(VICTIMS, size),
            torch.randn(size),
            torch.rand(size),
        )
        for size in sizes
    ]
    expected = [
        0.3
        * sum(
            float((s.mean[v] - s.running_mean).norm() + (s.var[v] - s.running_var).norm())
            for s in seen
        )
        for v in range(VICTIMS)
    ]
    match = BuiltMatch({}, Targets({}), seen)
    found = BatchNormStatistics(0.3)(guess(match=match))
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert BatchNormStatistics.needs_statistics


def test_position_gradients_should_point_the_same_way() -> None:
    G, T = torch.randn(VICTIMS, 1, 5, 4), torch.randn(VICTIMS, 1, 5, 4)
    match = BuiltMatch({"p": G, "w": torch.ones(VICTIMS, 2)}, Targets({"p": T}))
    expected = [
        0.3 * (1 - float((G[v] * T[v]).sum() / (G[v].norm() * T[v].norm()))) for v in range(VICTIMS)
    ]
    prior = PositionCosine(0.3, "p")
    assert prior(guess(match=match)).tolist() == pytest.approx(expected, rel=1e-5)
    assert prior.needs_full_gradients


def test_seams_are_the_jumps_between_patches() -> None:
    images = draw()
    expected = []
    for victim in images:
        total = 0.0
        for sample in victim:
            for row in (3,):
                total += float((sample[:, row] - sample[:, row - 1]).norm())
            for column in (2, 4, 6):
                total += float((sample[:, :, column] - sample[:, :, column - 1]).norm())
        expected.append(0.3 * total)
    found = PatchSeams(0.3, (3, 2))(guess(images))
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_an_image_of_one_patch_has_no_seams() -> None:
    assert PatchSeams(0.3, (HEIGHT, WIDTH))(guess()).tolist() == [0.0] * VICTIMS


def test_seams_matter_only_later() -> None:
    prior = PatchSeams(0.3, (3, 2), after=0.5)
    images = draw()
    early, later = prior(guess(images, progress=0.49)), prior(guess(images, progress=0.5))
    assert not early.any()
    torch.testing.assert_close(later, PatchSeams(0.3, (3, 2))(guess(images)))
    one_of_them = Guess(images, None, NOTHING, torch.tensor([0.1, 0.9, 0.2]))
    assert (prior(one_of_them) > 0).tolist() == [False, True, False]


def test_masks_should_drop_as_often_as_the_rate_says() -> None:
    sites = (Site(0.25, (4, 5)), Site(0.5, (7,)))
    masks = tuple(torch.rand(VICTIMS, BATCH, *site.shape) for site in sites)
    expected = [
        0.3 * sum(abs(1 - float(m[v].mean()) - s.p) for m, s in zip(masks, sites, strict=True))
        for v in range(VICTIMS)
    ]
    found = DropRate(0.3, sites)(guess(masks=masks))
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_noise_costs_nothing_where_its_mean_square_is_1() -> None:
    site = (Site(0.0, (4,), is_noise=True),)
    noise = torch.tensor([[1.0, -1.0, 1.0, -1.0], [2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert DropRate(0.5, site)(guess(masks=(noise[:, None],))).tolist() == [0.0, 0.0, 0.5]


def test_masks_that_drop_at_the_rate_cost_nothing() -> None:
    mask = torch.ones(VICTIMS, BATCH, 8)
    mask[..., :2] = 0
    assert DropRate(0.3, (Site(0.25, (8,)),))(guess(masks=(mask,))).abs().max() < 1e-7


@pytest.mark.parametrize(
    "prior",
    [
        TotalVariation(1.0),
        TotalVariation(1.0, isotropic=True),
        Magnitude(1.0),
        PatchSeams(1.0, (3, 2)),
    ],
    ids=str,
)
def test_an_empty_image_costs_nearly_nothing_and_has_a_slope(prior: Prior) -> None:
    images = torch.zeros_like(draw()).requires_grad_()
    loss = prior(guess(images))
    assert loss.detach().abs().max() < 1e-4
    assert torch.autograd.grad(loss.sum(), images)[0].isfinite().all()


def test_differences_across_the_borders_of_shuffled_blocks_do_not_count() -> None:
    """Two blocks of 2x2, flat in themselves, in a 2x4 image: smooth to one who knows them."""
    image = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])[None, None, None]
    seen = guess(image)
    assert float(TotalVariation(1.0)(seen)) > 0
    assert float(TotalVariation(1.0, block=2)(seen)) == 0
    assert float(TotalVariation(1.0, block=4)(seen)) == float(TotalVariation(1.0)(seen))


def test_the_last_features_are_read_off_both_gradients() -> None:
    """The lengths of the gradients do not matter: their ratio gives the features."""
    features, errors = (torch.randn(2, VICTIMS, n, dtype=torch.double) for n in (7, 4))
    weights = torch.einsum("gvc,gvf->gvcf", errors, features)
    dummy = {"fc.weight": weights[0], "fc.bias": errors[0]}
    observed = Targets({"fc.weight": 5 * weights[1], "fc.bias": 5 * errors[1]})
    found = LastFeatures(0.5, "fc")(guess(match=BuiltMatch(dummy, observed)))
    for victim in range(VICTIMS):
        mine, wanted = features[:, victim]
        expected = 0.5 * float((mine - wanted).square().sum() / wanted.square().sum())
        assert float(found[victim]) == pytest.approx(expected)
