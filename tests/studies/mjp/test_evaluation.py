"""What is measured of a trained network."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from keyhole.data import ImageSet
from keyhole.defenses import Mjp
from keyhole.models.puzzle import Puzzle, PuzzleRules
from keyhole_studies.mjp.evaluation import (
    evaluate_network,
    evaluate_positions,
    forward_puzzle,
    run_network,
)
from keyhole_studies.mjp.networks import NETWORKS, PATCH, build_deit, build_network
from mjp_variants import VARIANTS

MakeSet = Callable[[torch.Tensor, torch.Tensor], ImageSet]


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_deit(width=32, depth=1, heads=2)


def test_a_network_without_positions_does_not_notice_shuffling(shades: ImageSet) -> None:
    found = evaluate_network(VARIANTS["B"].prepare_model(small()), shades, seed=0)
    assert found["consistency"] == 1.0
    assert found["difference_norm"] < 1e-5
    assert len(set(found["accuracy_by_gamma"].values())) == 1


def test_a_network_with_positions_does(shades: ImageSet, make_set: MakeSet) -> None:
    model = small()
    with torch.no_grad():
        model.get_parameter("pos_embed").normal_()
    draw = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 255
    varied = make_set(draw.to(torch.uint8), shades.labels)
    found = evaluate_network(model, varied, seed=0)
    assert found["difference_norm"] > 5e-4
    assert "accuracy_without_unknown" not in found


def test_covered_positions_are_unknown_to_a_network_that_learnt_such(shades: ImageSet) -> None:
    model = Mjp().prepare_model(small()).eval()
    with torch.no_grad():
        model.get_parameter("pos_embed").normal_()
    rules = PuzzleRules(0.5, (PATCH, PATCH))
    x = shades.normalise(shades.images([0, 1]))
    covered = Puzzle(torch.zeros(2, 64), torch.arange(64).expand(2, -1))
    hidden = forward_puzzle(model, x, covered, rules, unknown=True)[0]
    shown = forward_puzzle(model, x, covered, rules, unknown=False)[0]
    with model.use_puzzle(covered):  # type: ignore[operator]
        assert torch.equal(hidden, model(x))
    assert torch.equal(shown, model(x))
    assert not torch.allclose(hidden, shown, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"deit-64"}))
def test_features_go_into_the_last_layer(name: str, shades: ImageSet, make_set: MakeSet) -> None:
    model = build_network(name, 0).eval()
    few = make_set(shades.pixels([0, 1]), shades.labels[:2])
    with torch.no_grad():
        logits, features = run_network(model, few, None)
        assert torch.allclose(logits, model(few.normalise(few.images([0, 1]))), atol=1e-5)
    assert features.ndim == 2
    assert math.isfinite(float(features.sum()))


def test_positions_are_measured_of_the_patches_alone() -> None:
    model = small()
    grid = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    with torch.no_grad():
        table = model.get_parameter("pos_embed")
        table.zero_()
        table[0, 1:, :2] = grid
        table[0, 0] = 1e6
    found = evaluate_positions(model, seed=0)
    assert found["regression_2d"] < 1e-4
    assert found["explained_variance"]["3"] == pytest.approx(1.0)
