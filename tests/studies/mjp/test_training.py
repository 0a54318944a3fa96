from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from keyhole.defenses.mjp import VARIANTS, Mjp
from keyhole.models.puzzle import Puzzle, Rules
from keyhole.studies.mjp.evaluation import evaluate, forward, positions, run
from keyhole.studies.mjp.networks import NETWORKS, PATCH, deit, network
from keyhole.studies.mjp.training import (
    Pictures,
    Recipe,
    accuracy,
    erased,
    groups,
    mixed,
    schedule,
    smoothed,
    train,
)


@pytest.fixture
def pictures() -> Pictures:
    """Images whose class is their colour: ten shades of grey with a little noise."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 10
    noise = torch.randint(0, 12, (64, 3, 32, 32), generator=draw)
    images = (labels.view(-1, 1, 1, 1) * 24 + noise).to(torch.uint8)
    return Pictures(images, labels, (0.45, 0.45, 0.45), (0.3, 0.3, 0.3))


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    return deit(width=32, depth=1, heads=2)


def test_a_network_learns_and_its_curve_is_kept(pictures: Pictures) -> None:
    model = Mjp().prepared(small())
    recipe = Recipe(epochs=10, batch_size=16, lr=5e-3, warm_up=1, mixed=0.0, erasing=0.0)
    before = accuracy(model, pictures)
    found = train(model, pictures, pictures, recipe, seed=0)
    assert [epoch for epoch, _, _ in found["curve"]] == [5, 10]
    assert found["curve"][-1][1] == accuracy(model, pictures) > before + 0.2
    assert found["recipe"]["epochs"] == 10


def test_training_is_repeatable(pictures: Pictures) -> None:
    recipe = Recipe(epochs=1, batch_size=16)
    twins = [Mjp().prepared(small()) for _ in range(2)]
    for model in twins:
        train(model, pictures, pictures, recipe, seed=3)
    states = [model.state_dict() for model in twins]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_rate_rises_then_falls_to_nought() -> None:
    rates = [schedule(step, 10, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)


def test_positions_and_what_mjp_adds_are_not_decayed() -> None:
    model = Mjp().prepared(small())
    decayed, plain = (group["params"] for group in groups(model, Recipe()))
    free = {id(parameter) for parameter in plain}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in free}
    assert {"pos_embed", "cls_token", "puzzle.unknown", "puzzle.head.0.weight"} <= names
    assert "patch_embed.proj.weight" not in names
    assert len(decayed) + len(plain) == len(list(model.parameters()))


def test_mixed_images_and_targets_mix_alike() -> None:
    x = torch.zeros(2, 3, 32, 32)
    x[1] = 1.0
    targets = torch.eye(2)
    for seed in range(12):
        draw = torch.Generator().manual_seed(seed)
        found, soft = mixed(x, targets, Recipe(mixed=1.0), draw)
        assert soft.sum(1) == pytest.approx([1.0, 1.0])
        assert float(found[0].mean()) == pytest.approx(float(soft[0, 1]), abs=1e-5)
    same, hard = mixed(x, targets, Recipe(mixed=0.0), torch.Generator())
    assert same is x
    assert hard is targets


def test_erasing_touches_only_some_images_and_at_most_a_quarter_of_each() -> None:
    torch.manual_seed(0)
    x = torch.zeros(400, 3, 32, 32)
    changed = erased(x, 0.25).ne(0).any(1).flatten(1).float().mean(1)
    assert 0.15 < float((changed > 0).float().mean()) < 0.3
    assert float(changed.max()) <= 17 * 17 / 32**2
    assert torch.equal(erased(x, 0.0), x)


def test_smoothed_targets() -> None:
    found = smoothed(torch.tensor([3]), 0.1)
    assert float(found[0, 3]) == pytest.approx(0.91)
    assert float(found.sum()) == pytest.approx(1.0)


def test_a_network_without_positions_does_not_notice_shuffling(pictures: Pictures) -> None:
    found = evaluate(VARIANTS["B"].prepared(small()), pictures, seed=0)
    assert found["consistency"] == 1.0
    assert found["difference_norm"] < 1e-5
    assert len(set(found["accuracy_by_gamma"].values())) == 1


def test_a_network_with_positions_does(pictures: Pictures) -> None:
    model = small()
    with torch.no_grad():
        model.get_parameter("pos_embed").normal_()
    draw = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 255
    varied = dataclasses.replace(pictures, images=draw.to(torch.uint8))
    found = evaluate(model, varied, seed=0)
    assert found["difference_norm"] > 5e-4
    assert "accuracy_without_unknown" not in found


def test_covered_positions_are_unknown_to_a_network_that_learnt_such(pictures: Pictures) -> None:
    model = Mjp().prepared(small()).eval()
    with torch.no_grad():
        model.get_parameter("pos_embed").normal_()
    rules = Rules(0.5, (PATCH, PATCH))
    x = pictures.inputs(pictures.images[:2])
    covered = Puzzle(torch.zeros(2, 64), torch.arange(64).expand(2, -1))
    hidden = forward(model, x, covered, rules, unknown=True)[0]
    shown = forward(model, x, covered, rules, unknown=False)[0]
    with model.given(covered):  # type: ignore[operator]
        assert torch.equal(hidden, model(x))
    assert torch.equal(shown, model(x))
    assert not torch.allclose(hidden, shown, atol=1e-4)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_features_go_into_the_last_layer(name: str, pictures: Pictures) -> None:
    model = network(name, 0).eval()
    few = dataclasses.replace(pictures, images=pictures.images[:2], labels=pictures.labels[:2])
    with torch.no_grad():
        logits, features = run(model, few, None)
        assert torch.allclose(logits, model(few.inputs(few.images)), atol=1e-5)
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
    found = positions(model, seed=0)
    assert found["regression_2d"] < 1e-4
    assert found["explained_variance"]["3"] == pytest.approx(1.0)
