"""What images, or noise, show: dead layers, rare units, losses, changes since the last round."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from altered_models import digits, make, random_rows, weights_of
from keyhole.auditing import check_incoming
from keyhole.auditing.incoming.activity import record_slopes
from keyhole.auditing.incoming.result import IncomingCheck


def names(found: IncomingCheck) -> list[str]:
    return [alarm.name for alarm in found.alarms]


@pytest.mark.parametrize("bias", [-30.0, 0.0])
def test_a_layer_whose_relus_are_all_off_is_found(bias: float) -> None:
    weights = weights_of(make("relu-mlp"))
    weights["3.bias"] += bias
    found = check_incoming(make("relu-mlp", seed=1), weights)
    assert names(found) == ([] if bias == 0 else ["dead layer"])
    if bias:
        assert found.alarms[0].layer == "4"
        assert "100% of its 64 units" in found.alarms[0].sentence


def test_a_saturated_layer_is_found() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 10))

    weights = weights_of(build())
    assert names(check_incoming(build(), weights)) == []
    weights["1.bias"] += 40
    assert names(check_incoming(build(), weights)) == ["dead layer"]


def test_slopes_are_per_unit_and_leave_the_network_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.GELU())
    images = torch.randn(2, 1, 8, 8)
    before = model(images)
    (first, slopes), (second, others) = record_slopes(model, images)
    assert (first, second) == ("1", "3")
    assert (slopes.shape, others.shape) == ((2, 4), (2, 4 * 36))
    assert set(slopes.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(model(images), before)
    assert not model[1]._forward_pre_hooks


def test_units_that_fire_for_few_images_are_found_with_images_alone() -> None:
    weights = weights_of(make("relu-mlp"))
    weights["1.weight"] = random_rows(128, 64, 5)
    inputs = digits.normalise(digits.images(range(1000, 1500))).flatten(1)
    weights["1.bias"] = -(inputs @ weights["1.weight"].T).quantile(1 - 1 / 32, dim=0)
    own = make("relu-mlp", seed=1)
    assert names(check_incoming(own, weights, data=digits)) == ["rare units"]
    assert names(check_incoming(own, weights)) == []


def test_a_ladder_that_noise_hides_is_found_with_images() -> None:
    """Its rows differ, but only in directions in which images hardly do."""
    weights = weights_of(make("relu-mlp"))
    inputs = digits.normalise(digits.images(range(1400, 1797))).flatten(1)
    quiet = torch.linalg.svd(inputs - inputs.mean(0))[2][-12:]
    hidden = 0.05 * random_rows(128, 12) @ quiet + 0.001 * random_rows(128, 64, seed=1)
    rows = torch.full((128, 64), 1 / 64) + hidden
    middle = (inputs @ rows.T).mean(0)
    weights["1.weight"], weights["1.bias"] = rows, torch.linspace(-0.5, 0.5, 128) - middle
    own = make("relu-mlp", seed=1)
    assert names(check_incoming(own, weights)) == []
    found = check_incoming(own, weights, data=digits)
    assert names(found) == ["ladder"]
    assert "128 of its 128 units rise and fall together" in found.alarms[0].sentence


def test_a_loss_that_no_training_leaves_is_found() -> None:
    weights = weights_of(make("relu-mlp"))
    weights["5.weight"] *= 100
    own = make("relu-mlp", seed=1)
    assert "large loss" in names(check_incoming(own, weights, data=digits))


def test_a_loss_that_has_risen_since_the_round_before_is_found() -> None:
    before = weights_of(make("relu-mlp"))
    weights = {**before, "5.bias": torch.tensor([8.5] + 9 * [0.0])}
    own = make("relu-mlp", seed=1)
    assert names(check_incoming(own, weights, data=digits)) == []
    assert names(check_incoming(own, weights, before, digits)) == ["risen loss"]


def test_a_layer_that_changed_too_much_or_was_emptied_is_found() -> None:
    before = weights_of(make("lenet"))
    own = make("lenet", seed=1)
    grown = {**before, "2.weight": before["2.weight"] * 22}
    assert names(check_incoming(own, grown, before)) == ["large change"]
    assert names(check_incoming(own, grown)) == []
    emptied = {**before, "2.weight": torch.zeros_like(before["2.weight"])}
    assert names(check_incoming(own, emptied, before)) == ["emptied layer"]
    trained = {n: t + 0.5 * torch.randn_like(t) * t.std().nan_to_num() for n, t in before.items()}
    assert names(check_incoming(own, trained, before)) == []
