"""Gradient weights against noise, alone and in a match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from keyhole.attacks.matching.gradients.factored import FactoredMatch
from keyhole.attacks.matching.gradients.factors import Factors
from keyhole.attacks.matching.gradients.gradient_weights import (
    GradientWeights,
    leave_out_values,
    stack_weights,
    weights_from_noise,
)
from keyhole.attacks.matching.gradients.low_rank import factor_targets
from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets
from keyhole.defenses import Noise
from keyhole.defenses.noise_model import build_projection
from keyhole.defenses.spectra import find_high_bins

Clients = Callable[..., list[Any]]

DC = build_projection(find_high_bins(3, 3, 0.5))


def test_a_scaled_row_keeps_the_sum_of_each_kernel() -> None:
    gradient = torch.randn(2, 4, 5, 3, 3, dtype=torch.double)
    keep = torch.tensor([[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 1.0, 1.0]], dtype=torch.double)
    through = GradientWeights(keep, DC)(gradient)
    torch.testing.assert_close(through.sum((-1, -2)), gradient.sum((-1, -2)))
    torch.testing.assert_close(through[0, 0], gradient[0, 0])
    flat = gradient[0, 1].mean((-1, -2), keepdim=True).expand(5, 3, 3)
    torch.testing.assert_close(through[0, 1], flat)
    torch.testing.assert_close(
        through[0, 2], (gradient[0, 2] + gradient[0, 2].mean((-1, -2), True)) / 2
    )


def test_without_bins_whole_rows_are_scaled() -> None:
    gradient = torch.ones(3, 2, 2)
    assert GradientWeights(torch.tensor([0.0, 0.5, 1.0]))(gradient).sum((1, 2)).tolist() == [
        0.0,
        2.0,
        4.0,
    ]


def test_inner_products_weigh_values_by_their_trust() -> None:
    gradient = {"w": torch.randn(4, 200, dtype=torch.double)}
    belief = Noise(torch.tensor([0.0, 0.0, 1.0, 4.0], dtype=torch.double))
    weighting = weights_from_noise(gradient, {"w": belief})["w"]
    other = torch.randn(4, 200, dtype=torch.double)
    weighed = (gradient["w"] * other).sum(1) @ belief.trust(gradient["w"])
    torch.testing.assert_close((weighting(gradient["w"]) * weighting(other)).sum(), weighed)


@pytest.mark.parametrize(("variance", "sums"), [([0.0, 1e6], False), ([1e6, 1e6], True)])
def test_clean_frequencies_of_noisy_rows_count_where_no_row_is_clean(
    variance: list[float], sums: bool
) -> None:
    gradient = {"w": torch.randn(2, 5, 3, 3, dtype=torch.double)}
    belief = Noise(torch.tensor(variance, dtype=torch.double), DC)
    seen = weights_from_noise(gradient, {"w": belief})["w"](gradient["w"])
    assert seen[1].sum((-1, -2)).norm() > 1 if sums else seen[1].norm() < 0.1
    assert sums or torch.equal(seen[0], gradient["w"][0])


def test_each_victim_has_its_own_weights() -> None:
    gradients = [{"w": torch.randn(3, 2)} for _ in range(2)]
    gradient_weights = [
        {"w": GradientWeights(torch.tensor(k))} for k in ([1.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    ]
    targets = Targets.stack(gradients, torch.zeros(()), gradient_weights=gradient_weights)
    assert targets.tensors["w"][0, 1].abs().sum() == 0
    assert targets.tensors["w"][1, 0].abs().sum() == 0
    match = BuiltMatch({"w": torch.ones(1, 3, 2)}, targets.select(torch.tensor([1])))
    assert match.weighted_gradient("w")[0].sum(1).tolist() == [0.0, 2.0, 2.0]


@pytest.mark.parametrize("bins", [DC, None], ids=["frequencies", "rows"])
def test_products_of_factors_are_those_of_what_is_seen(bins: torch.Tensor | None) -> None:
    """Without building the gradient: some rows dimmed, more of them for one victim."""
    victims, columns, channels, taps = 3, 4, 40, 70 * 9
    factors = Factors(
        torch.randn(victims, columns, taps, dtype=torch.double),
        torch.randn(victims, columns, channels, dtype=torch.double),
        torch.Size((channels, 70, 3, 3)),
    )
    keep = torch.rand(victims, channels, dtype=torch.double)
    keep[:, 10:] = 1
    keep[1, 3:] = 1
    observed = [{"w": torch.randn(channels, 70, 3, 3, dtype=torch.double)} for _ in range(victims)]
    gradient_weights = [{"w": GradientWeights(k, bins)} for k in keep]
    targets = Targets.stack(
        observed, torch.zeros((), dtype=torch.double), gradient_weights=gradient_weights
    )
    match = FactoredMatch(
        {}, {"w": factors}, factor_targets(targets, {"w": 4}, needs_full_gradients=False)
    )
    assert not match.is_built("w")
    seen, target = match.weighted_gradient("w"), match.target("w")
    dot, square = match.products("w")
    torch.testing.assert_close(dot, (seen * target).flatten(1).sum(1))
    torch.testing.assert_close(square, seen.square().flatten(1).sum(1))


def test_rows_are_scaled_whole_for_all_if_they_are_for_one() -> None:
    gradient, keep = torch.ones(2, 2, 1, 3, 3), torch.zeros(2)
    both = stack_weights(
        [{"a": GradientWeights(keep, DC)}, {"a": GradientWeights(torch.tensor([1.0, 0.0]))}], keep
    )["a"]
    assert both(gradient).sum((2, 3, 4)).tolist() == [[0.0, 0.0], [9.0, 0.0]]


def test_a_parameter_that_has_no_weights_for_some_victim_has_none() -> None:
    keep = torch.ones(2)
    assert set(
        stack_weights(
            [
                {"a": GradientWeights(keep), "b": GradientWeights(keep)},
                {"a": GradientWeights(keep)},
            ],
            keep,
        )
    ) == {"a"}


def test_values_that_mislead_are_left_out_beside_noisy_rows() -> None:
    rows = {"w": GradientWeights(torch.tensor([1.0, 0.5]))}
    mask = torch.tensor([[True, False, False], [False, False, True]])
    found = leave_out_values(rows, {"w": mask, "b": torch.tensor([True, False]), "s": mask.any()})
    assert found["w"](torch.ones(2, 3)).tolist() == [[0, 1, 1], [0.5, 0.5, 0]]
    assert found["b"](torch.ones(2)).tolist() == [0, 1]
    assert "s" not in found
    assert leave_out_values(rows, {}) == rows


def test_each_victim_has_values_of_its_own_to_leave_out() -> None:
    masks = [torch.tensor([[True, False]]), torch.tensor([[False, True]])]
    stacked = stack_weights([leave_out_values({}, {"w": m}) for m in masks], torch.zeros(1))
    gradient = torch.ones(2, 1, 2)
    assert stacked["w"](gradient).tolist() == [[[0, 1]], [[1, 0]]]
    assert stacked["w"].select(torch.tensor([1]))(gradient[1:]).tolist() == [[[1, 0]]]


def test_factors_are_built_where_single_values_are_left_out() -> None:
    """The products of a match are those of the gradients with these values at 0."""
    inputs, outputs = torch.randn(1, 2, 400).double(), torch.randn(1, 2, 300).double()
    factors = Factors(inputs, outputs, torch.Size((300, 400)))
    mask = torch.rand(300, 400) < 0.5
    target = torch.randn(300, 400).double()
    targets = Targets.stack(
        [{"w": target}], inputs, gradient_weights=[leave_out_values({}, {"w": mask})]
    )
    low = factor_targets(targets, {"w": 2}, needs_full_gradients=False)
    dot, square = FactoredMatch({}, {"w": factors}, low).products("w")
    kept = factors.build()[0] * ~mask
    assert float(dot) == pytest.approx(float((kept * target).sum()))
    assert float(square) == pytest.approx(float(kept.square().sum()))
